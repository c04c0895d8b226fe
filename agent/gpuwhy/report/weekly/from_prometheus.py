"""History from the recorded series of a Prometheus, or of what speaks its API.

Hours are read as points: the value at an hour's end is that of the hour. They are added up here, but for those
of single GPUs, which are too many to be sent.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from gpuwhy.catalog import IDENTITY, PREFIX, SERIES_BY_NAME, WORKLOAD
from gpuwhy.config import Config
from gpuwhy.recorded import HOST, LEVEL, LEVELS, ROW, Level, hourly
from gpuwhy.report.weekly.history import (
    LOST,
    SUMMED,
    Gatherer,
    Group,
    History,
    Progress,
    ReportError,
    Row,
    Stream,
    Table,
    Window,
)
from gpuwhy.report.weekly.periods import HOUR_S, Span
from gpuwhy.report.weekly.prometheus import PARALLEL, Client, Series, TooMuchError, in_halves

# Workloads whose hosts are asked for: those that may come to be named.
NAMED = 24
SPLIT = ("verdict", "lost")  # quantities with verdict and cause


@dataclass(frozen=True, slots=True)
class _Task:
    """One question about one span.

    ``stream`` is that of every series in the answer, None = by its name. ``stem`` is the quantity of single GPUs
    whose hours are summed up, "" for all else.
    """

    window: int
    level: Level
    query: str
    stream: Stream | None = None
    stem: str = ""


def read(config: Config, spans: tuple[Span, ...], progress: Progress) -> History:
    """The period, and the spans before it. Raises ReportError."""
    reader = _Reader(config, spans)
    return reader.read(progress)


class _Reader:
    def __init__(self, config: Config, spans: tuple[Span, ...]) -> None:
        self._config = config
        self._spans = spans
        self._client = Client(config.report)
        self._notes: list[str] = []

    def read(self, progress: Progress) -> History:
        gatherers = [Gatherer(span.hours) for span in self._spans]
        gpus: dict[Group, dict[Stream, float]] = {}
        left_out = False
        tasks = list(self._tasks(shared=self._shared()))
        steps = len(tasks) + 1
        with ThreadPoolExecutor(PARALLEL) as pool:
            waiting = {pool.submit(self._answer, task): task for task in tasks}
            try:
                for done, future in enumerate(as_completed(waiting), start=1):
                    task = waiting.pop(future)
                    if task.stem:
                        left_out |= not self._sum(task, future, gpus)
                    else:
                        self._gather(task, future.result(), gatherers[task.window])
                    progress(done, steps)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if left_out:
            gpus.clear()
            self._notes.append(
                "Single GPUs are left out: the server will not add up so many hours of them at once. A shorter "
                "period has them."
            )
        tables = [gatherer.tables for gatherer in gatherers]
        if not tables[0].get("fleet"):
            self._look_for_series()
        places = self._places(tables[0].get("workload", {}))
        progress(steps, steps)
        self._notes += [f"The server warns: {warning[:200]}" for warning in self._client.warnings]
        period, *before = (
            Window(span, table, {} if number else gpus)
            for number, (span, table) in enumerate(zip(self._spans, tables, strict=True))
        )
        return History(self._config.report.source, period, tuple(before), places, tuple(self._notes))

    def _tasks(self, *, shared: bool) -> Iterator[_Task]:
        for level in LEVELS:
            stems = [quantity.stem for quantity in level.quantities]
            plain = [stem for stem in stems if stem not in SPLIT]
            if level.name == "gpu":
                for stem in (*plain, "lost"):
                    yield _Task(0, level, self._summed(level, stem, shared=shared), stem=stem)
            else:
                for asked in (plain, *([stem] for stem in SPLIT)):
                    yield _Task(0, level, self._hourly(level, asked))
        for window in range(1, len(self._spans)):
            fleet = LEVEL["fleet"]
            yield _Task(window, fleet, self._hourly(fleet, [quantity.stem for quantity in fleet.quantities]))
            for name in SUMMED:
                level = LEVEL[name]
                known = {quantity.stem for quantity in level.quantities}
                asked = [stem for stem in ("observed", "measured", "useful") if stem in known]
                yield _Task(window, level, self._hourly(level, asked))
                lost = self._hourly(level, ["lost"])
                yield _Task(window, level, f"sum without (verdict, cause) ({lost})", LOST)

    def _hourly(self, level: Level, stems: Iterable[str]) -> str:
        names = [hourly(level.name, stem) for stem in stems]
        name = f'__name__=~"{"|".join(names)}"' if len(names) > 1 else f'__name__="{names[0]}"'
        return f"{{{','.join(filter(None, (name, self._config.report.selector)))}}}"

    def _summed(self, level: Level, stem: str, *, shared: bool) -> str:
        """All hours of a series of single GPUs as one, weighed by their MIG shares where any is shared."""
        span = self._spans[0]
        # Steps of subqueries are full hours of UTC; where local ones are others, each looks so much ahead.
        into = span.start_unix % HOUR_S
        ahead = f" offset -{into}s" if into else ""
        hours = f"{self._hourly(level, [stem])}{ahead}"
        if shared:
            row = ", ".join(self._labels(level))
            share = f"max by ({row}) (last_over_time({self._raw('gpu_share_ratio')}[1h]{ahead}))"
            # A row of which no share is known any more counts as a whole GPU.
            hours = f"{hours} * on ({row}) group_left () ({share} or group by ({row}) ({hours}))"
        # Half an hour less: the hour before the first is in it by no version's reading of ranges.
        return f"sum_over_time(({hours})[{span.hours * 60 - 30}m:1h])"

    def _shared(self) -> bool:
        """Whether any GPU was split by MIG; the first question, so that what is wrong shows at once."""
        span = self._spans[0]
        query = f"count({self._raw('gpu_share_ratio')} < 1)"
        return bool(list(in_halves(self._client, query, (span.start_unix, span.end_unix), HOUR_S)))

    def _raw(self, stem: str, *matchers: str) -> str:
        """A series of the agents themselves."""
        name = SERIES_BY_NAME[f"{PREFIX}{stem}"].name
        render, report = self._config.render.selector, self._config.report.selector
        given = ",".join(filter(None, (*matchers, render, report)))
        return f"{name}{{{given}}}"

    def _answer(self, task: _Task) -> list[Series]:
        span = self._spans[task.window]
        if task.stem:
            return self._client.instant(task.query, span.end_unix - span.start_unix % HOUR_S)
        return list(in_halves(self._client, task.query, (span.start_unix, span.end_unix), HOUR_S))

    def _labels(self, level: Level) -> tuple[str, ...]:
        host = self._config.render.host_label
        named = {ROW: (host, *IDENTITY), HOST: (host,)}
        return tuple(label for name in level.by for label in named.get(name, (name,)))

    def _gather(self, task: _Task, answer: Iterable[Series], gatherer: Gatherer) -> None:
        labels = self._labels(task.level)
        streams = {
            hourly(task.level.name, quantity.stem): quantity.stem for quantity in task.level.quantities
        }
        for series in answer:
            metric = series.metric
            group = tuple(metric.get(label, "") for label in labels)
            stream = task.stream
            if stream is None:
                stem = streams[metric["__name__"]]
                stream = (stem, metric.get("verdict", ""), metric.get("cause", ""))
            values = _values(series, self._spans[task.window])
            gatherer.merge(task.level.name, group, stream, values)

    def _sum(self, task: _Task, answer: Future[list[Series]], gpus: dict[Group, dict[Stream, float]]) -> bool:
        """Whether there was an answer; one that is too much is no reason to do without a report."""
        labels = self._labels(task.level)
        try:
            found = answer.result()
        except TooMuchError:
            return False
        for series in found:
            metric = series.metric
            group = tuple(metric.get(label, "") for label in labels)
            stream = (task.stem, metric.get("verdict", ""), metric.get("cause", ""))
            seconds = float(series.value[1]) if series.value else 0.0
            if 0 < seconds < math.inf:
                row = gpus.setdefault(group, {})
                row[stream] = row.get(stream, 0.0) + seconds
        return True

    def _places(self, workloads: Table) -> Mapping[Group, tuple[str, ...]]:
        """The hosts on which the workloads that lost most were seen at full hours."""
        most = sorted(workloads, key=lambda group: -_lost(workloads[group]))[:NAMED]
        if not most:
            return {}
        span = self._spans[0]
        host = self._config.render.host_label
        names = "|".join(sorted({_literal(group[WORKLOAD.index("workload")]) for group in most}))
        series = self._raw("workload_useful_seconds_total", f'workload=~"{names}"')
        query = f"group by ({', '.join((host, *WORKLOAD))}) ({series})"
        try:
            answer = list(in_halves(self._client, query, (span.start_unix, span.end_unix), HOUR_S))
        except ReportError as error:
            self._notes.append(f"On which hosts workloads ran is not known: {error}")
            return {}
        found: dict[Group, set[str]] = {group: set() for group in most}
        for each in answer:
            group = tuple(each.metric.get(label, "") for label in WORKLOAD)
            if group in found and each.metric.get(host):
                found[group].add(each.metric[host])
        return {group: tuple(sorted(hosts)) for group, hosts in found.items() if hosts}

    def _look_for_series(self) -> None:
        """Raises ReportError where what is missing is not the hours but the series."""
        recorded = self._hourly(LEVEL["fleet"], ["observed"])
        if self._client.instant(f"count({recorded})"):
            return
        url, selector = self._config.report.source, self._config.report.selector
        if self._client.instant(f"count({self._raw('observed_seconds_total')})"):
            raise ReportError(
                f"{url} scrapes gpuwhy but has none of its recorded series: load alerts/recording.rules.yaml there "
                "(rule_files in prometheus.yml, or the ruler of Thanos, Mimir or vmalert), and come back after "
                "an hour"
            )
        chosen = f"that match {selector}" if selector else "of gpuwhy"
        raise ReportError(
            f"{url} has no series {chosen} in that time, nor now: check the address"
            + (", report.selector" if selector else "")
            + " and the tenant, and that agents are scraped"
        )


def _values(series: Series, span: Span) -> array[float]:
    """The hours of a span; what is no number of seconds is 0."""
    values = array("d", [float(text) for _, text in series.values])
    if len(values) != span.hours or not (math.isfinite(sum(values)) and min(values) >= 0):
        first, found = span.start_unix + HOUR_S, values
        values = array("d", bytes(8 * span.hours))
        for (at, _), seconds in zip(series.values, found, strict=True):
            hour = int(at - first) // HOUR_S
            if 0 <= hour < span.hours and 0 < seconds < math.inf:
                values[hour] = seconds
    return values


def _lost(row: Row) -> float:
    return sum(sum(values) for (quantity, *_), values in row.items() if quantity == "lost")


@functools.cache
def _literal(text: str) -> str:
    """A regular expression inside a PromQL string that matches this text alone."""
    escaped = "".join(f"\\{letter}" if letter in r"\.+*?()|[]{}^$" else letter for letter in text)
    return escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
