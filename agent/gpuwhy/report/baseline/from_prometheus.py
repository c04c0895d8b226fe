"""Samples from a Prometheus: what the agents' own counters gained between two scrapes.

The scrapes themselves are asked for, not values at steps of a grid: all series of one scrape carry one time,
so that what they gained fits together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from gpuwhy.catalog import ACTIVITY_UNITS, IDENTITY, PREFIX, SERIES_BY_NAME
from gpuwhy.config import Config
from gpuwhy.report.baseline.types import SIGNALS, AskedError, BaselineError, Choice, Gpu, Sample, Steps
from gpuwhy.report.weekly.history import ReportError
from gpuwhy.report.weekly.prometheus import Client, Series
from gpuwhy.verdict.types import CauseKey, TimeSplit

PIECE_S = 3600.0  # of the window that one question is about
MOST_S = 48 * 3600.0
MOST_ROWS = 256

_Row = tuple[str, ...]  # host and identity
_Points = dict[float, float]  # by time


def _name(stem: str) -> str:
    return SERIES_BY_NAME[f"{PREFIX}{stem}"].name


PLAIN = ("observed", "measured", "useful", "headroom", "free")
GAUGES = {
    _name(signal): signal
    for signal in SIGNALS
    if f"{PREFIX}{signal}" in SERIES_BY_NAME and signal.removesuffix("_active_ratio") not in ACTIVITY_UNITS
}
ACTIVITY, ENERGY = _name("activity_seconds_total"), _name("energy_joules_total")
TEMPERATURE = _name("temperature_celsius")
SHARE, LIMIT, CLOCK = _name("gpu_share_ratio"), _name("power_limit_watts"), _name("sm_clock_max_hertz")
INFO, SOURCE, BUILD = _name("gpu_info"), _name("signal_source_info"), _name("build_info")
HELD = _name("workload_share_ratio")
COUNTERS = {_name(f"{stem}_seconds_total"): stem for stem in (*PLAIN, "lost", "verdict")}
OF_WORKLOADS = {
    _name(f"workload_{stem}_seconds_total"): stem for stem in ("measured", "useful", "lost", "verdict")
}
ASKED = (*COUNTERS, ACTIVITY, ENERGY, TEMPERATURE, *GAUGES, SHARE, LIMIT, CLOCK, INFO, SOURCE, HELD)


@dataclass(slots=True)
class _Known:
    """All that was read of one row."""

    counters: dict[tuple[str, str, str], _Points] = field(default_factory=dict)
    parts: dict[tuple[str, str, str], _Points] = field(default_factory=dict)
    gauges: dict[str, _Points] = field(default_factory=dict)
    activity: dict[str, _Points] = field(default_factory=dict)
    energy: _Points = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    workloads: set[str] = field(default_factory=set)


def read(
    config: Config, start_unix: float, end_unix: float, chosen: Choice, progress: Steps
) -> tuple[list[Gpu], str]:
    """What was scraped in the window, and the version of the agents ("" if they differ).

    Raises:
        BaselineError: it cannot be had, or is too much.

    """
    if end_unix - start_unix > MOST_S:
        raise AskedError(f"a window from a Prometheus may have {MOST_S / 3600:.0f} hours: ask for less")
    try:
        return _Reader(config, chosen).read(start_unix, end_unix, progress)
    except ReportError as error:
        raise BaselineError(str(error)) from error


class _Reader:
    def __init__(self, config: Config, chosen: Choice) -> None:
        self._host = config.render.host_label
        self._labels = (self._host, *IDENTITY)
        self._given = [each for each in (config.render.selector, config.report.selector) if each]
        self._url = config.report.source
        self._client = Client(config.report)
        self._chosen = chosen
        self._rows: dict[_Row, _Known] = {}

    def read(self, start: float, end: float, progress: Steps) -> tuple[list[Gpu], str]:
        pieces = max(1, math.ceil((end - start) / PIECE_S))
        length = (end - start) / pieces
        for piece in range(pieces):
            for series in self._ask(ASKED, length, start + (piece + 1) * length):
                self._take(series)
            if self._chosen.workload:
                for series in self._ask(tuple(OF_WORKLOADS), length, start + (piece + 1) * length):
                    self._take_part(series)
            if len(self._rows) > MOST_ROWS:
                raise AskedError(
                    f"{self._url} has more than {MOST_ROWS} GPUs{self._chosen.words}: choose with --host, --gpu or "
                    "--workload"
                )
            progress(piece + 1, pieces)
        return [self._gpu(row, known) for row, known in self._rows.items()], self._version(end, end - start)

    def _ask(self, names: tuple[str, ...], length: float, end: float) -> list[Series]:
        matchers = [f'__name__=~"{"|".join(names)}"', *self._given]
        if self._chosen.hosts:
            matchers.append(f"{self._host}=~{quoted('|'.join(map(_literal, self._chosen.hosts)))}")
        return self._client.instant(f"{{{','.join(matchers)}}}[{_milliseconds(length)}] @ {end:.3f}")

    def _version(self, end: float, length: float) -> str:
        found = {series.metric.get("version", "") for series in self._ask((BUILD,), length, end)}
        return found.pop() if len(found) == 1 else ""

    def _row(self, metric: Mapping[str, str]) -> _Known | None:
        row = tuple(metric.get(label, "") for label in self._labels)
        host, index, uuid, _ = row
        if not index.isdigit() or not self._chosen.takes(host, int(index), uuid):
            return None
        return self._rows.setdefault(row, _Known())

    def _take(self, series: Series) -> None:
        metric = series.metric
        known = self._row(metric)
        if known is None:
            return
        name = metric["__name__"]
        if name in COUNTERS:
            key = (COUNTERS[name], metric.get("verdict", ""), metric.get("cause", ""))
            _add(known.counters.setdefault(key, {}), series)
        elif name == ACTIVITY:
            _add(known.activity.setdefault(metric.get("unit", ""), {}), series)
        elif name == ENERGY:
            _add(known.energy, series)
        elif name == INFO:
            known.info = metric
        elif name == SOURCE:
            known.sources.add(metric.get("source", ""))
        elif name == HELD:
            namespace, workload = metric.get("workload_namespace", ""), metric.get("workload", "")
            known.workloads.add(f"{namespace}/{workload}" if namespace else workload)
        else:
            signal = f"{metric.get('sensor')}_temperature_celsius" if name == TEMPERATURE else name
            _add(known.gauges.setdefault(GAUGES.get(signal, signal), {}), series)

    def _take_part(self, series: Series) -> None:
        metric = series.metric
        if not self._chosen.is_of(metric.get("workload", ""), metric.get("workload_namespace", "")):
            return
        known = self._row(metric)
        if known is not None:
            # Two workloads of one name and different owners are one.
            owner = f"{metric.get('workload_kind', '')}/{metric.get('workload_namespace', '')}/{metric.get('workload_owner', '')}"
            stem = f"{OF_WORKLOADS[metric['__name__']]}\n{owner}"
            key = (stem, metric.get("verdict", ""), metric.get("cause", ""))
            _add(known.parts.setdefault(key, {}), series)

    def _gpu(self, row: _Row, known: _Known) -> Gpu:
        host, index, uuid, mig = row
        share = _last(known.gauges.get(SHARE))
        return Gpu(
            host=host,
            index=int(index),
            uuid=uuid,
            mig=mig,
            model=known.info.get("model", ""),
            driver=known.info.get("driver", ""),
            profile=known.info.get("profile", ""),
            share_ratio=1.0 if share is None else share,
            power_limit_watts=_last(known.gauges.get(LIMIT)),
            sm_clock_max_hertz=_last(known.gauges.get(CLOCK)),
            sources=tuple(sorted(known.sources - {""})),
            workloads=tuple(sorted(known.workloads)),
            samples=tuple(self._samples(known)),
        )

    def _samples(self, known: _Known) -> Iterator[Sample]:
        observed = known.counters.get(("observed", "", ""), {})
        times = sorted(observed)
        for begin, end in pairwise(times):
            restarted = observed[end] < observed[begin]

            def gained(
                points: _Points, begin: float = begin, end: float = end, fresh: bool = restarted
            ) -> float:
                return _gained(points, begin, end, fresh=fresh)

            time = _split(known.parts if self._chosen.workload else known.counters, gained)
            seconds = gained(observed)
            # Of two scrapes within one interval the second has nothing new.
            if seconds > 0 and time.observed > 0:
                yield Sample(
                    end, seconds, time, _energy(known, gained), _signals(known, gained, seconds, end)
                )


def _signals(
    known: _Known, gained: Callable[[_Points], float], seconds: float, end: float
) -> dict[str, float]:
    found = {
        f"{unit}_active_ratio": gained(points) / seconds
        for unit, points in known.activity.items()
        if unit in ACTIVITY_UNITS and end in points
    }
    for name in SIGNALS:
        value = known.gauges.get(name, {}).get(end)
        if name not in found and value is not None:
            found[name] = value
    return found


def _energy(known: _Known, gained: Callable[[_Points], float]) -> float | None:
    return gained(known.energy) if known.energy else None


def _split(counters: Mapping[tuple[str, str, str], _Points], gained: Callable[[_Points], float]) -> TimeSplit:
    plain = dict.fromkeys(PLAIN, 0.0)
    by_cause: dict[str, dict[CauseKey, float]] = {"lost": {}, "verdict": {}}
    for (stem, verdict, cause), points in counters.items():
        seconds = gained(points)
        quantity = stem.partition("\n")[0]
        if seconds <= 0:
            continue
        if quantity in by_cause:
            key = (verdict, cause)
            by_cause[quantity][key] = by_cause[quantity].get(key, 0.0) + seconds
        else:
            plain[quantity] += seconds
    plain["observed"] = plain["observed"] or sum(by_cause["verdict"].values())
    return TimeSplit(**plain, lost=by_cause["lost"], verdict=by_cause["verdict"])


def _gained(points: _Points, begin: float, end: float, *, fresh: bool = False) -> float:
    """What a counter gained; after a start of the agent it began at 0."""
    after = points.get(end)
    if after is None:
        return 0.0
    before = 0.0 if fresh else points.get(begin, 0.0)
    return after - before if after >= before else after


def _add(points: _Points, series: Series) -> None:
    for at, text in series.values:
        value = float(text)
        if math.isfinite(value):
            points[at] = value


def _last(points: _Points | None) -> float | None:
    return points[max(points)] if points else None


def quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(f"\\{letter}" if letter in r"\.+*?()|[]{}^$" else letter for letter in text)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
