"""What several dashboards share: queries, variables, words and colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpuwhy import recorded
from gpuwhy.catalog import WORKLOAD
from gpuwhy.config import RenderConfig
from gpuwhy.render.panels import Column, Link, Note, Number, Query, Shown, Variable, to_board
from gpuwhy.render.promql import Promql, braces, by, over
from gpuwhy.verdict import colours, vocabulary

FLEET, HOST, WORKLOADS, WEEKLY, ITSELF = (
    f"gpuwhy-{name}" for name in ("fleet", "host", "workloads", "weekly", "itself")
)

RATE = "$__rate_interval"
# Full hours of the range: their windows neither overlap nor leave gaps. In Prometheus 2 a range holds its own
# beginning: one that ends at a full hour would count an hour too many, so that it is read a moment before.
HOURS = "$__range:1h"
MOMENT = "1ms"
# Recorded every five minutes, and a rule may be late.
NEWEST = "10m"

# Charts of what is recorded need no finer step than it has.
EVERY_RECORD = "5m"

LOSING = (vocabulary.STARVING, vocabulary.THROTTLED, vocabulary.PSEUDO_PEAK, vocabulary.IDLE)

GPU = "GPU {{gpu}} MIG {{mig}}"
HOURS_UNIT = "locale"
POINTS = "suffix: pp"
# Figures have little room: their descriptions end in the second sentence.
NOT_RECORDED = "none until the next full hour"
FIRST_HOUR = "The first figure comes at the next full hour after alerts/recording.rules.yaml was loaded."
NO_HOURS = (
    "No full hour is recorded in this range: load alerts/recording.rules.yaml. The first values come at the next "
    "full hour after it was loaded"
)
NO_POINTS = (
    "Nothing is recorded in this range: load alerts/recording.rules.yaml. The first points come ten minutes after "
    "it was loaded"
)
NO_READINGS = "No such reading in this range: no agent was scraped, or its sources do not offer this signal"

LEADING = {cause: Shown(cause, colour) for cause, colour in colours.CAUSES.items()}
# By the anchor of the cause's heading in the runbook, which is verdict/cause there.
MEANINGS = {"".join(cause.key): Shown(cause.meaning) for cause in vocabulary.CAUSES}
# The number that stands for a verdict where a chart takes numbers only.
CODE = {verdict: code for code, verdict in enumerate(vocabulary.VERDICTS, 1)}
CODES = {str(code): Shown(verdict, colours.VERDICTS[verdict]) for verdict, code in CODE.items()}


def equals(label: str, value: str) -> str:
    return f'{label}="{value}"'


def total(expr: str, labels: Iterable[str] = ()) -> str:
    return f"sum{by(labels)} ({expr})"


def hours(
    level: str,
    stem: str,
    *matchers: str,
    labels: Iterable[str] = (),
    window: str = HOURS,
    ago: str = "",
) -> str:
    """GPU-hours in the full hours of the range, or of another window; ``ago`` is how long before."""
    seconds = over(recorded.hourly(level, stem), window, *matchers)
    return f"{total(f'sum_over_time({seconds} offset {ago}{MOMENT})', labels)} / 3600"


def week(level: str, stem: str, *matchers: str, labels: Iterable[str] = ()) -> str:
    """GPU-hours in the seven days before the end of the range."""
    return f"{total(newest(recorded.weekly(level, stem), *matchers), labels)} / 3600"


def newest(name: str, *matchers: str) -> str:
    """A recorded series as it is now."""
    return f"last_over_time({over(name, NEWEST, *matchers)})"


def change(expr: str, step: float) -> str:
    """A difference in steps that can be seen, and without the sign of zero."""
    return f"round({expr}, {step:g}) + 0"


def or_zero(expr: str, where: str) -> str:
    """Rows of zero are not recorded: 0 where ``where`` has something, and nothing where that is missing."""
    return f"({expr}) or 0 * ({where})"


def ratio(part: str, whole: str) -> str:
    return f"({or_zero(part, whole)}) / ({whole})"


def leading(expr: str, keys: Iterable[str]) -> str:
    """The verdict and cause with most of ``expr`` for each of ``keys``, in a label ``leading``."""
    return named(f"topk{by(keys)} (1, {expr})")


def named(expr: str) -> str:
    return f'label_join({expr}, "leading", "/", "verdict", "cause")'


def explained(expr: str) -> str:
    """With a label ``meaning`` too, that ``MEANINGS`` puts into words."""
    return f'label_join({named(expr)}, "meaning", "", "verdict", "cause")'


def verdicts(expr: str) -> tuple[Query, ...]:
    """A query for each verdict, so that they stack in one order; ``expr`` holds ``VERDICT`` as a matcher."""
    return tuple(
        Query(expr.replace("VERDICT", equals("verdict", verdict)), verdict) for verdict in vocabulary.VERDICTS
    )


def causes(expr: str) -> tuple[Query, ...]:
    """The same for what is lost, by verdict and cause."""
    return tuple(
        Query(expr.replace("VERDICT", equals("verdict", verdict)), "{{verdict}}/{{cause}}")
        for verdict in LOSING
    )


LOST_COLOURS = {name: colour for verdict in LOSING for name, colour in colours.of(verdict).items()}


def host_variable(promql: Promql, stem: str = "gpu_info", *, several: bool) -> Variable:
    return Variable(name="host", title="Host", series=promql.raw(stem), label=promql.host, several=several)


def to_workload(title: str) -> Link:
    """From a table with these columns. Where namespace or owner are empty, the variable matches what has none,
    or falls back to All: it shows the workload either way.
    """
    fields = {name: f"${{__data.fields.{name.capitalize()}}}" for name in ("owner", "namespace", "workload")}
    return to_board(title, WORKLOADS, **fields)


def firing(*matchers: str) -> str:
    """Alerts of gpuwhy that fire, as Prometheus keeps them, whatever the selector of the options."""
    own = braces('alertname=~"Gpuwhy.+"', 'alertstate="firing"', *matchers)
    return f"ALERTS{own}"


def placed(expr: str, between: str, labels: Iterable[str]) -> str:
    """With a label ``where``, which is there even where some of ``labels`` are not."""
    quoted = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expr}, "where", "{between}", {quoted})'


def of_gpus(promql: Promql, expr: str) -> str:
    return placed(expr, " GPU ", (promql.host, "gpu"))


def of_others(promql: Promql, expr: str) -> str:
    """Alerts of hosts and of workloads."""
    return placed(expr, " ", (promql.host, *WORKLOAD[1:]))


def alerts(*exprs: str) -> Note:
    return Note(
        name="Firing alerts",
        expr=" or ".join(exprs),
        title="{{alertname}}",
        text="{{where}}",
        tags=("severity", "verdict", "mig"),
    )


def share(promql: Promql, *matchers: str, window: str = "") -> str:
    """The part of a GPU that each row is, or was in a window on average, to multiply with."""
    ratio = promql.raw("gpu_share_ratio", *matchers, window=window)
    ratio = f"avg_over_time({ratio})" if window else ratio
    return f"on ({', '.join(promql.row)}) group_left () max{by(promql.row)} ({ratio})"


def price(options: RenderConfig) -> str:
    """Grafana's unit for the currency."""
    # The one that Grafana has no unit for.
    return "currency:CN¥" if options.currency == "CNY" else f"currency{options.currency}"


def now_code(promql: Promql, *matchers: str) -> str:
    """The number of the verdict that holds now, by row."""
    coded = (
        f"{code} * {promql.raw('verdict', *matchers, equals('verdict', verdict))}"
        for verdict, code in CODE.items()
    )
    return total(" or ".join(coded), promql.row)


def split(read: Read, *, unread: str, width: int = 0) -> Number:
    """Where the observed GPU-hours went: parts that add up to them."""
    observed = read("fleet", "observed")
    named = {stem: or_zero(read("fleet", stem), observed) for stem in ("useful", "lost", "headroom", "free")}
    rest = " - ".join(f"({expr})" for expr in (observed, *named.values()))
    return Number(
        title="Where the observed GPU-hours went",
        about="Observed is the sum of useful, lost, headroom, free and unattributed; measured is the part in which all "
        "signals were read that useful time needs. Headroom is slack that nobody can be sure to win.",
        advice="Much that is unattributed, or little that is measured, makes the other figures weak: see gpuwhy itself. "
        + FIRST_HOUR,
        empty=unread,
        unit=HOURS_UNIT,
        decimals=0,
        width=width,
        queries=(
            Query(observed, "observed"),
            Query(or_zero(read("fleet", "measured"), observed), "measured"),
            *(Query(expr, stem) for stem, expr in named.items()),
            Query(rest, "unattributed"),
        ),
    )


class Read(Protocol):
    """``hours`` or ``week``."""

    def __call__(self, level: str, stem: str, *matchers: str, labels: Iterable[str] = ()) -> str: ...


def losses(
    read: Read, level: str, keys: tuple[str, ...], *matchers: str, base: str = "observed"
) -> tuple[Column, ...]:
    """Columns for a table of what each of ``keys`` lost; ``base`` is what its whole time is called."""
    whole = read(level, base, *matchers, labels=keys)
    return (
        Column(
            title="Lost GPU-h",
            expr=or_zero(read(level, "lost", *matchers, labels=keys), whole),
            unit=HOURS_UNIT,
            decimals=1,
            width=130,
            bar=True,
        ),
        Column(
            title="Leading cause",
            label="leading",
            expr=leading(read(level, "lost", *matchers, labels=(*keys, "verdict", "cause")), keys),
            width=195,
            texts=LEADING,
        ),
        Column(
            title="Efficiency",
            expr=ratio(
                read(level, "useful", *matchers, labels=keys), read(level, "measured", *matchers, labels=keys)
            ),
            unit="percentunit",
            decimals=1,
            width=85,
        ),
        Column(title="GPU-h", expr=whole, unit=HOURS_UNIT, decimals=1, width=80),
    )
