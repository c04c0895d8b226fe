"""The agent's running totals and latest values, kept by the sampling thread alone.

The agent's own counters start at 0, because Prometheus counts an increase only from a value it has
seen. Those by cause are shown once the cause occurred, at 0 until a scrape has seen that: of 54 that
a GPU could have, few ever move. They are never restored after a restart: a restored counter that is
behind the last scrape would be counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwhy.catalog import (
    CLOCK_REASONS,
    HOST_CPU_MODES,
    PREFIX,
    PRESSURE_RESOURCES,
    REJECTION_REASONS,
    SERIES,
    SERIES_BY_NAME,
    Origin,
    Series,
)
from gpuwhy.exporter.rows import Child, Row, is_gain
from gpuwhy.exporter.snapshot import STALE_INTERVALS, Family, GpuKey, GpuNow, Health, Snapshot
from gpuwhy.exporter.workloads import WorkloadRows
from gpuwhy.sample import Workload
from gpuwhy.sample.signals import DEVICE
from gpuwhy.source import GpuFacts
from gpuwhy.verdict import vocabulary
from gpuwhy.verdict.types import NO_DATA, CauseKey, Verdict

LOST_CAUSES: tuple[CauseKey, ...] = tuple(
    cause.key
    for cause in vocabulary.CAUSES
    if cause.verdict in {vocabulary.STARVING, vocabulary.PSEUDO_PEAK, vocabulary.THROTTLED}
    or (cause.verdict == vocabulary.IDLE and cause.name != "free")
)
_LOST = frozenset(LOST_CAUSES)


@dataclass(frozen=True, slots=True)
class HostIncrements:
    """What the host's counters gained in one interval, in seconds; a missing key was not read.

    ``cpu_seconds`` is by ``catalog.HOST_CPU_MODES``, ``pressure_seconds`` by
    ``catalog.PRESSURE_RESOURCES``.
    """

    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)


def _series(stem: str) -> Series:
    return SERIES_BY_NAME[PREFIX + stem]


def _of(origin: Origin) -> tuple[Series, ...]:
    return tuple(series for series in SERIES if series.origin == origin)


_VERDICT_SECONDS = _series("verdict_seconds_total")
_LOST_SECONDS = _series("lost_seconds_total")
_CLOCK_EVENTS = _series("clock_event_seconds_total")
_HOST_CPU = _series("host_cpu_seconds_total")
_HOST_PRESSURE = _series("host_pressure_seconds_total")
_REJECTED = _series("reading_rejected_total")
_TICK_DURATION = _series("tick_duration_seconds")
_TICKS_MISSED = _series("ticks_missed_total")
_XID_EVENTS = _series("xid_events_total")
_OVERFLOWS = _series("workloads_overflowed_total")
_INCREMENTS = _of("increment")
_SPLITS = tuple(series for series in _of("split") if not series.own_labels)


class _GpuRow(Row):
    __slots__ = ("facts", "identity", "index", "last", "now", "unread")

    def __init__(self, facts: GpuFacts) -> None:
        self.identity = {"gpu": str(facts.index), "uuid": facts.uuid, "mig": facts.mig}
        super().__init__(self.identity)
        self.index = facts.index
        self.facts = facts
        self.last: Verdict | None = None
        self.now: Verdict | None = None
        self.unread = 0  # intervals without a device reading, up to the last one
        for series in _SPLITS:
            self.start(series, [()])
        for series in _INCREMENTS:
            if series.life == "agent":
                self.start(series, [_child(value) for value, _ in series.fields])

    @property
    def stale(self) -> bool:
        return self.unread >= STALE_INTERVALS


class Ledger:
    """Counts what the verdicts say and remembers the latest values; only one thread may use it.

    A value that is no finite number, or has no place in the vocabulary, is left out and counted;
    nothing that is credited raises.
    """

    def __init__(self, *, most_workloads: int = 100, retention_s: float = 3600.0) -> None:
        self._gpus: dict[GpuKey, _GpuRow] = {}
        self._workloads = WorkloadRows(most=most_workloads, retention_s=retention_s, lost=LOST_CAUSES)
        self._host = Row({})
        self._host.start(_REJECTED, [(row.name, reason) for row in DEVICE for reason in REJECTION_REASONS])
        self._host.start(_TICKS_MISSED, [()])
        self._tick_count = 0
        self._tick_seconds = 0.0
        self._judged = 0
        self._dropped = 0

    def add_gpu(self, facts: GpuFacts) -> None:
        """Show a GPU from now on, its counters at 0.

        A known one keeps its counters and its index label: a renumbered GPU must not become a
        second row.
        """
        row = self._gpus.get(facts.key)
        if row is None:
            self._gpus[facts.key] = _GpuRow(facts)
        else:
            row.facts = facts

    def retire_gpu(self, key: GpuKey) -> None:
        """Drop a row for good, as when a MIG slice is destroyed; a lost GPU stays, with ``up`` False."""
        self._gpus.pop(key, None)
        self._workloads.retire_gpu(key)

    def add_workloads(self, facts: GpuFacts, workloads: Iterable[Workload]) -> bool:
        """Show these workloads of a GPU from now on, those that are new at 0; whether any was."""
        self.add_gpu(facts)
        return self._workloads.add(facts.key, self._gpus[facts.key].identity, workloads)

    def credit(
        self,
        verdicts: Sequence[Verdict],
        host: HostIncrements | None,
        now: Mapping[GpuKey, Verdict],
        *,
        scraped: int | None = None,
    ) -> None:
        """Credit one judged interval: each GPU's own verdict to the counters, ``now`` to the gauges.

        ``host`` is None when the host was not read. A GPU that is new gets its row here. ``scraped`` is the
        ``Snapshot.judged`` of the newest snapshot that was scraped, None = the one before this interval.
        """
        seen = self._judged if scraped is None else scraped
        self._judged += 1
        for row in self._gpus.values():
            row.settle(seen, self._judged)
        self._workloads.settle(seen, self._judged)
        for verdict in verdicts:
            self.add_gpu(verdict.gpu)
            self._credit_gpu(self._gpus[verdict.gpu.key], verdict)
        self._dropped += self._workloads.credit(
            verdicts, {key: row.identity for key, row in self._gpus.items()}, self._judged
        )
        for key, row in self._gpus.items():
            row.now = now.get(key)
        if host is not None:
            self._credit_children(self._host, _HOST_CPU, HOST_CPU_MODES, host.cpu_seconds)
            self._credit_children(self._host, _HOST_PRESSURE, PRESSURE_RESOURCES, host.pressure_seconds)

    def reject(self, signal: str, reason: str, n: int = 1) -> None:
        """Count readings of a signal that cannot be true, by ``catalog.REJECTION_REASONS``."""
        self._host.start(_REJECTED, [(signal, known) for known in REJECTION_REASONS])
        self._add(self._host, _REJECTED, (signal, reason), n)

    def xid(self, key: GpuKey, code: int) -> None:
        """Count an Xid error of a GPU that is known."""
        row = self._gpus.get(key)
        if row is not None:
            row.start(_XID_EVENTS, [(str(code),)])
            self._add(row, _XID_EVENTS, (str(code),), 1.0)

    def tick(self, duration_s: float, missed: int = 0) -> None:
        """Count one tick that took ``duration_s``, and the ticks left out before it."""
        self._add(self._host, _TICKS_MISSED, (), missed)
        if is_gain(duration_s):
            self._tick_count += 1
            self._tick_seconds += duration_s
        else:
            self._dropped += 1

    def snapshot(self, health: Health, *, taken_s: float, interval_s: float) -> Snapshot:
        """Everything to show, frozen; ``taken_s`` is on the monotonic clock."""
        rows = sorted(self._gpus.items(), key=lambda item: (item[1].index, item[0]))
        families = []
        for series in SERIES:
            if series.origin == "exporter":
                continue
            samples = tuple(self._samples(series, rows, health))
            if samples:
                families.append(Family(series, samples))
        return Snapshot(
            taken_s=taken_s,
            interval_s=interval_s,
            judged=self._judged,
            families=tuple(families),
            gpus=tuple(GpuNow(row.facts, health.gpu_up.get(key), row.now) for key, row in rows),
            sources=tuple(health.source_up),
            dropped=self._dropped,
            health=health,
        )

    def _add(self, row: Row, series: Series, child: Child, gain: object) -> None:
        if not row.add(series, child, gain):
            self._dropped += 1

    def _credit_gpu(self, row: _GpuRow, verdict: Verdict) -> None:
        row.last = verdict
        row.unread = row.unread + 1 if verdict.key == NO_DATA else 0
        for series, known, gains in (
            (_VERDICT_SECONDS, vocabulary.CAUSE_BY_KEY, verdict.time.verdict),
            (_LOST_SECONDS, _LOST, verdict.time.lost),
        ):
            for cause, seconds in gains.items():
                if not (cause in known and row.occur(series, cause, seconds, self._judged)):
                    self._dropped += 1
        for series in _SPLITS:
            self._add(row, series, (), getattr(verdict.time, series.fields[0][1]))
        for series in _INCREMENTS:
            for value, name in series.fields:
                if name in verdict.increments:
                    row.start(series, [_child(value)])
                    self._add(row, series, _child(value), verdict.increments[name])
        if verdict.clock_events is not None:
            row.start(_CLOCK_EVENTS, [(reason,) for reason in CLOCK_REASONS])
            self._credit_children(row, _CLOCK_EVENTS, CLOCK_REASONS, verdict.clock_events)

    def _credit_children(
        self, row: Row, series: Series, known: Sequence[str], gains: Mapping[str, float]
    ) -> None:
        row.start(series, [(name,) for name in known if name in gains])
        for name, gain in gains.items():
            self._add(row, series, (name,), gain)

    def _samples(
        self, series: Series, rows: Sequence[tuple[GpuKey, _GpuRow]], health: Health
    ) -> Iterator[tuple[str, float]]:
        if series.origin == "workload":
            yield from self._workloads.samples(series, [key for key, _ in rows])
        elif series.origin == "health" and not series.per_gpu:
            for child, value in _health_values(series, health):
                yield self._host.prefix(series, child), value
        elif series is _OVERFLOWS:
            yield self._host.prefix(series, ()), self._workloads.overflows
        elif series.kind == "counter" and series.per_gpu:
            for _, row in rows:
                if series.life != "driver" or not row.stale:
                    yield from row.counters(series)
        elif series.kind == "counter":
            yield from self._host.counters(series)
        elif series is _TICK_DURATION:
            yield f"{series.name}_count", self._tick_count
            yield f"{series.name}_sum", self._tick_seconds
        elif series.per_gpu:
            for key, row in rows:
                for child, value in _gpu_values(series, row, health.gpu_up.get(key)):
                    yield row.prefix(series, child), value


def _child(value: str) -> Child:
    return (value,) if value else ()


def _gpu_values(series: Series, row: _GpuRow, up: bool | None) -> Iterator[tuple[Child, float]]:
    """The children and values of a GPU's gauge or info; nothing for what is not known."""
    match series.origin, series.name.removeprefix(PREFIX):
        case "signal" | "fact", _:
            yield from _signal_values(series, row)
        case _, "verdict" if row.now:
            for verdict in vocabulary.VERDICTS:
                yield (verdict,), float(verdict == row.now.verdict)
        case _, "verdict_confidence_ratio" if row.now:
            yield (), row.now.confidence
        case _, "speed_of_light_ratio" if row.last and row.last.speed_of_light is not None:
            yield (), row.last.speed_of_light
        case _, "signal_source_info" if row.last:
            for signal_and_source in sorted(row.last.sources.items()):
                yield signal_and_source, 1.0
        case _, "gpu_info":
            yield tuple(str(getattr(row.facts, label)) for label in series.own_labels), 1.0
        case _, "gpu_share_ratio":
            yield (), row.facts.share_ratio
        case _, "gpu_up" if up is not None:
            yield (), float(up)


def _signal_values(series: Series, row: _GpuRow) -> Iterator[tuple[Child, float]]:
    signals = row.last.signals if row.last else {}
    for own, name in series.fields:
        value = signals.get(name)
        if value is None and series.origin == "fact" and not row.stale:
            value = getattr(row.facts, name)
        if value is not None:
            yield _child(own), value


def _health_values(series: Series, health: Health) -> Iterator[tuple[Child, float]]:
    match series.name.removeprefix(PREFIX):
        case "expected_gpus" if health.expected_gpus:
            yield (), float(health.expected_gpus)
        case "source_info":
            for source in health.source_up:
                yield (source,), 1.0
        case "source_up":
            for source, up in health.source_up.items():
                yield (source,), float(up)
        case "source_yielding":
            for source, yielding in health.source_yielding.items():
                yield (source,), float(yielding)
        case "source_degraded":
            yield (), float(health.degraded)
        case "store_up" if health.store_up is not None:
            yield (), float(health.store_up)
        case "store_dropped_seconds_total" if health.store_dropped_s is not None:
            yield (), health.store_dropped_s
        case "last_sample_timestamp_seconds" if health.last_sample_unix_s is not None:
            yield (), health.last_sample_unix_s
