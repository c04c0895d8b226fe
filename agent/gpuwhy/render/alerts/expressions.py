"""What alerts ask Prometheus: a function per kind of question, and the texts that ask along.

Doses are taken as the last value of a counter less its least one in the window, not with ``increase()``: that
one extends what it saw to the window's ends, by up to an interval between scrapes on either side, and more
where scrapes are missing, so an alert would claim time that nobody observed. After a restart of the agent the
difference counts from the restart: it may come late, and never too much.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuwhy import recorded
from gpuwhy.catalog import WORKLOAD
from gpuwhy.render.alerts import text
from gpuwhy.render.alerts.alert import Alert
from gpuwhy.render.promql import Promql, braces, by, duration
from gpuwhy.render.recording import Recording
from gpuwhy.verdict.vocabulary import IDLE, PSEUDO_PEAK, STARVING

HOUR_S = 3600


def gained(promql: Promql, stem: str, window: str, *matchers: str) -> str:
    """What was seen of a counter's gain in the window, at most what it was."""
    raw = promql.raw(stem, *matchers, window=window)
    return f"last_over_time({raw}) - min_over_time({raw})"


# --- Doses of a verdict


def _of_verdict(alert: Alert) -> tuple[str, ...]:
    causes = f'cause=~"{"|".join(alert.causes)}"' if alert.causes else ""
    return (f'verdict="{alert.verdict}"', causes)


def dose(alert: Alert, promql: Promql) -> str:
    """Rows that had a verdict for a share of the window; the value is seconds."""
    seconds = gained(promql, "verdict_seconds_total", alert.window, *_of_verdict(alert))
    return f"sum{by(promql.row)} ({seconds}) >= {alert.dose_s:g}"


def dose_text(alert: Alert, promql: Promql) -> str:
    """Who, how long, why for the most part, and whose."""
    head = f"{text.gpu(promql.host)} {alert.said or f'was {alert.verdict}'} for {text.value('Duration')} of the last {alert.window}."
    return head + _leading_cause(alert, promql) + _whose(alert, promql)


def _row(promql: Promql) -> tuple[str, ...]:
    return text.same(promql.host, "uuid", "mig")


def _leading_cause(alert: Alert, promql: Promql) -> str:
    seconds = gained(promql, "verdict_seconds_total", alert.window, *_row(promql), *_of_verdict(alert))
    return text.each(
        f"topk(1, sum by (cause) ({seconds}) > 0)",
        f" Leading cause: {{{{ .Labels.cause }}}}, {{{{ .Value | humanizeDuration }}}}"
        f" ({_heading(alert, promql)}).",
    )


def _heading(alert: Alert, promql: Promql) -> str:
    """Where the runbook speaks of the cause: a link, if it is known where the runbook is."""
    if promql.options.runbook_url:
        # The anchor of "verdict/cause", from which the slash is left out.
        return f"{promql.options.runbook_url}#{alert.verdict}{{{{ .Labels.cause }}}}"
    return f"runbook heading {alert.verdict}/{{{{ .Labels.cause }}}}"


def _whose(alert: Alert, promql: Promql) -> str:
    # What is granted and unused is a workload's loss, whatever verdict its own seconds have.
    stem = "workload_lost_seconds_total" if alert.verdict == IDLE else "workload_verdict_seconds_total"
    own = _of_verdict(alert) if alert.verdict == IDLE else (f'verdict="{alert.verdict}"',)
    seconds = gained(promql, stem, alert.window, *_row(promql), *own)
    return text.each(
        f"topk(1, sum{by(WORKLOAD)} ({seconds}) > 0)",
        f" Workload: {text.workload('.Labels')}, {{{{ .Value | humanizeDuration }}}}.",
    )


# --- One GPU of a workload that its peers wait for

_LAGS_BELOW = 0.4  # of the peers' share of waiting: it waits for nobody, or for one later than itself
_SEEN = 0.8  # of the window: a row that came or went in it is no peer
# Of two and of eight, half are enough; in between it is one more than half.
_HALF = 0.6
_NAMED = 'workload_kind!~"unknown|other"'
_OVER_HOSTS = "slurm|kubernetes"
_WAITS = (
    f'verdict=~"{PSEUDO_PEAK}|{STARVING}"',
    'cause=~"spin-wait|communication|peer-wait"',
)


def lagging(alert: Alert, promql: Promql) -> str:
    """Rows that do not wait while half of the workload's rows do; the value is the row's share of waiting."""
    rows = by((*promql.row, *WORKLOAD))
    held = f"sum{rows} ({gained(promql, 'workload_verdict_seconds_total', alert.window, _NAMED)})"
    held = f"({held} >= {_SEEN * alert.window_s:g})"
    lost = f"sum{rows} ({gained(promql, 'workload_lost_seconds_total', alert.window, _NAMED, *_WAITS)})"
    # A cause that never occurred has no series: that is no waiting.
    waiting = f"({lost} / {held} or 0 * {held})"
    # Only a scheduler's names mean the same on several hosts.
    waiting = f'label_replace({waiting}, "peers", "$1", "{promql.host}", "(.*)")'
    waiting = f'label_replace({waiting}, "peers", "", "workload_kind", "{_OVER_HOSTS}")'
    job = (*WORKLOAD, "peers")
    peers = f"quantile{by(job)} ({_HALF}, {waiting}) >= {alert.limit:g}"
    late = f"{waiting} < on ({', '.join(job)}) group_left () ({_LAGS_BELOW:g} * ({peers}))"
    return f"max{rows} ({late})"


def lagging_text(alert: Alert, promql: Promql) -> str:
    """How long it waited, against the others."""
    return (
        f"{text.gpu(promql.host)} lags in {text.workload('$labels')}: in the last {alert.window} it waited for"
        f" peers for {text.value('Percentage')} of its time, and half of the workload's GPUs for"
        f" {alert.limit:.0%} of theirs or more."
    )


# --- Efficiency against its own past, from recorded hours

_NOW_GPU_S, _BEFORE_GPU_S = 2 * HOUR_S, 10 * HOUR_S  # of wanted time: fewer are an accident
_BEFORE = "7d"
_BEFORE_HOURS = 6  # with wanted time: fewer show no spread
_LEAST_DROP = 0.05
_SPREADS = 2


def _useful(level: str, *matchers: str) -> str:
    useful, measured = (recorded.hourly(level, stem) + braces(*matchers) for stem in ("useful", "measured"))
    # Times 1, so that hours with and without use are one nameless series over a subquery.
    return f"(1 * {useful} or 0 * {measured})"


def _wanted(level: str, promql: Promql, *matchers: str) -> str:
    """Seconds of an hour in which somebody wanted the GPU: a night without requests is no loss of efficiency."""
    labels = by(Recording(promql).labels(recorded.LEVEL[level]))
    measured = recorded.hourly(level, "measured") + braces(*matchers)
    lost = recorded.hourly(level, "lost") + braces(*matchers, f'verdict="{IDLE}"')
    idle = f"sum{labels} ({lost})"
    if recorded.LEVEL[level].workload:
        held = f"sum{labels} ({recorded.hourly(level, 'verdict')}{braces(*matchers)})"
        unwanted = f"({idle} or 0 * {measured})"
    else:
        held = recorded.hourly(level, "observed") + braces(*matchers)
        free = recorded.hourly(level, "free") + braces(*matchers)
        unwanted = f"(({idle} or 0 * {measured}) + (1 * {free} or 0 * {measured}))"
    # Idle time is charged whether or not it was measured: of measured time the same share is taken to be idle.
    return f"({measured} * clamp_min(1 - {unwanted} / {held}, 0))"


def _useful_share(level: str, promql: Promql, window: str, least_s: float, *matchers: str) -> str:
    """Useful over wanted seconds of full hours, where enough were wanted; ``window`` may have an offset."""
    useful, wanted = _useful(level, *matchers), _wanted(level, promql, *matchers)
    return f"sum_over_time({useful}{window}) / (sum_over_time({wanted}{window}) >= {least_s:g})"


def _now(alert: Alert) -> str:
    # At full hours, where the recorded ones neither overlap nor leave gaps.
    return f"[{alert.window}:1h]"


def _before(alert: Alert) -> str:
    return f"[{_BEFORE}:1h] offset {alert.window}"


def regression(level: str) -> Callable[[Alert, Promql], str]:
    """Falls below a share of its own week, further than that week's hours spread; the value is efficiency."""

    def expr(alert: Alert, promql: Promql) -> str:
        before, wanted = _before(alert), f"({_wanted(level, promql)} > 0)"
        now = _useful_share(level, promql, _now(alert), _NOW_GPU_S)
        then = f"({_useful_share(level, promql, before, _BEFORE_GPU_S)})"
        spread = f"{_SPREADS} * stddev_over_time(({_useful(level)} / {wanted}){before})"
        hours = f"count_over_time({wanted}{before}) >= {_BEFORE_HOURS}"
        drop = f"clamp_min({1 - alert.limit:.4g} * {then} > {spread} or {spread}, {_LEAST_DROP:g})"
        return f"{now} < {then} - {drop} and {hours}"

    return expr


def regression_text(level: str, who: Callable[[Promql], str]) -> Callable[[Alert, Promql], str]:
    """What the efficiency is, what it was, and what most of the loss is charged to."""

    def description(alert: Alert, promql: Promql) -> str:
        labels = alert.labels(promql)
        mine = text.same(*labels)
        then = text.each(
            _useful_share(level, promql, _before(alert), _BEFORE_GPU_S, *mine),
            ", {{ .Value | humanizePercentage }} in the seven days before",
        )
        lost = recorded.hourly(level, "lost") + braces(*mine, f'verdict!="{IDLE}"')
        charged = text.each(
            f"topk(1, sum by (verdict, cause) (sum_over_time({lost}{_now(alert)})))",
            " Most of what it lost: {{ .Labels.verdict }}/{{ .Labels.cause }},"
            " {{ .Value | humanizeDuration }} of GPU time.",
        )
        return (
            f"{who(promql)} made use of {text.value('Percentage')} of the GPU time that it wanted in the last"
            f" {alert.window}{then}.{charged}"
        )

    return description


# --- GPUs, sources and the agent itself


def _hosts(promql: Promql, expr: str) -> str:
    return f"max by ({promql.host}) ({expr})"


def gpu_lost(alert: Alert, promql: Promql) -> str:
    """Whole GPUs that are said to be gone, or that were there and are not spoken of by an agent that answers."""
    rows, whole = by(promql.row), 'mig=""'
    seen = promql.raw("gpu_up", whole, window=alert.window)
    return (
        f"max{rows} ({promql.raw('gpu_up', whole)}) == 0 or (max{rows} (last_over_time({seen}))"
        # A GPU has its uuid in MIG mode and under another index too.
        f" unless on ({promql.host}, uuid) {promql.raw('gpu_up')}"
        # Nor is one lost that was moved to another host.
        f" unless on (uuid) ({promql.raw('gpu_up')} == 1)"
        f" and on ({promql.host}) {promql.raw('build_info')})"
    )


def gpu_lost_text(alert: Alert, promql: Promql) -> str:
    xid = promql.raw("xid_events_total", *text.same(promql.host, "uuid"), window=alert.window)
    return (
        f"GPU {text.label('gpu')} ({text.label('uuid')}) on {text.label(promql.host)} does not answer."
        + text.each(f"sum by (xid) (last_over_time({xid})) > 0", " Xid {{ .Labels.xid }} was reported.")
    )


def gpus_missing(_alert: Alert, promql: Promql) -> str:
    """Hosts on which fewer GPUs answer than the configuration expects; the value is how many do."""
    host = promql.host
    expected = _hosts(promql, promql.raw("expected_gpus"))
    # A GPU in MIG mode has several rows and is one GPU.
    answer = f"sum by ({host}) (max by ({host}, uuid) ({promql.raw('gpu_up')}))"
    return f"({answer} or 0 * {expected}) < on ({host}) {expected}"


def gpus_missing_text(_alert: Alert, promql: Promql) -> str:
    expected = _hosts(promql, promql.raw("expected_gpus", *text.same(promql.host)))
    count = text.each(expected, " of {{ .Value | humanize }}")
    return f"{text.label(promql.host)}: {text.value('')}{count} GPUs answer."


def source_degraded(_alert: Alert, promql: Promql) -> str:
    return f"{_hosts(promql, promql.raw('source_degraded'))} == 1"


def source_degraded_text(alert: Alert, promql: Promql) -> str:
    mine = text.same(promql.host)
    down = text.each(
        f"max by (source) ({promql.raw('source_up', *mine)}) == 0", " {{ .Labels.source }} does not answer."
    )
    paused = text.each(
        f"max by (source) ({promql.raw('source_yielding', *mine)}) == 1",
        " {{ .Labels.source }} is paused or taken by another tool.",
    )
    return (
        f"On {text.label(promql.host)} signals have come from a lower source, or from none, for"
        f" {duration(alert.for_s)}.{down}{paused}"
    )


def _seen(alert: Alert, promql: Promql) -> str:
    return f"last_over_time({promql.raw('build_info', window=alert.window)})"


def _up(promql: Promql) -> str:
    # Prometheus' own series; its job keeps other targets of a host apart.
    return f"up{braces(promql.options.selector)}"


def agent_down(alert: Alert, promql: Promql) -> str:
    """Hosts whose agent answered in the window, or at a full hour of the week, and now fails to."""
    host = promql.host
    week = f"last_over_time({promql.raw('build_info', window='7d:1h')})"
    return _hosts(
        promql,
        f"{_up(promql)} == 0 and on ({host}, job) ({_seen(alert, promql)} or {week})"
        f" unless on ({host}) {promql.raw('build_info')}",
    )


def agent_down_text(_alert: Alert, promql: Promql) -> str:
    return (
        f"Prometheus gets no answer from the agent on {text.label(promql.host)}: why its GPUs do what they do is"
        " not known."
    )


def agent_restarts(alert: Alert, promql: Promql) -> str:
    """Agents that start again and again; the value is how often in the window."""
    ticks = promql.raw("tick_duration_seconds_count", window=alert.window)
    return f"{_hosts(promql, f'resets({ticks})')} >= {alert.limit:g}"


def agent_restarts_text(alert: Alert, promql: Promql) -> str:
    return (
        f"The agent on {text.label(promql.host)} started {text.value('')} times in the last {alert.window}. Alerts by"
        " dose begin anew with each start, so that most of them cannot fire for this host."
    )


def agent_gone(alert: Alert, promql: Promql) -> str:
    """Hosts whose agent answered in the window and is asked no more."""
    host = promql.host
    return _hosts(
        promql,
        f"{_seen(alert, promql)} unless on ({host}) {promql.raw('build_info')}"
        f" unless on ({host}, job) {_up(promql)}",
    )


def agent_gone_text(alert: Alert, promql: Promql) -> str:
    return (
        f"The agent on {text.label(promql.host)} answered in the last {alert.window}, and Prometheus no longer"
        " scrapes it."
    )


def agent_absent(_alert: Alert, promql: Promql) -> str:
    # Without the matchers' labels, so that it looks the same whatever the selector.
    return f"max(absent({promql.raw('build_info')}))"


def agent_absent_text(_alert: Alert, _promql: Promql) -> str:
    return "Prometheus has series of no gpuwhy agent at all: no other alert of gpuwhy can fire."


def host_unknown(_alert: Alert, promql: Promql) -> str:
    """Agents whose series do not say which host they are of; the value is how many series of them."""
    nameless = promql.raw("build_info", f'{promql.host}=""')
    return f"count({nameless}) > 0"


def host_unknown_text(_alert: Alert, promql: Promql) -> str:
    return (
        f"{text.value('')} agents are scraped without the label {promql.host}, by which these rules tell hosts apart:"
        " all of them count as one host, and an agent that fails is not noticed."
    )


def readings_stale(alert: Alert, promql: Promql) -> str:
    """Agents whose last device reading is old; the value is its age in seconds."""
    return f"time() - {_hosts(promql, promql.raw('last_sample_timestamp_seconds'))} > {alert.limit:g}"


def readings_stale_text(_alert: Alert, promql: Promql) -> str:
    return (
        f"The agent on {text.label(promql.host)} answers, and its last reading of a GPU is"
        f" {text.value('Duration')} old."
    )
