"""The counters of workloads: as many as are allowed, for as long as they live and some time after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuwhy.catalog import PREFIX, SERIES_BY_NAME, WORKLOAD, Series
from gpuwhy.exporter.rows import Child, Row
from gpuwhy.exporter.snapshot import GpuKey
from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuFacts
from gpuwhy.verdict import vocabulary
from gpuwhy.verdict.types import CauseKey, Verdict, WorkloadVerdict
from gpuwhy.workload.directory import OTHER

MOST_RUNS = 64  # of one workload on one GPU that are named: time-slicing offers fewer replicas

_VERDICT = SERIES_BY_NAME[f"{PREFIX}workload_verdict_seconds_total"]
_LOST = SERIES_BY_NAME[f"{PREFIX}workload_lost_seconds_total"]
_USEFUL = SERIES_BY_NAME[f"{PREFIX}workload_useful_seconds_total"]
_MEASURED = SERIES_BY_NAME[f"{PREFIX}workload_measured_seconds_total"]
_SHARE = SERIES_BY_NAME[f"{PREFIX}workload_share_ratio"]


class _WorkloadRow(Row):
    __slots__ = ("profile", "ratio", "tenants")

    def __init__(self, facts: GpuFacts, workload: Workload) -> None:
        names = (workload.kind, workload.name, workload.namespace, workload.owner)
        identity = {"gpu": str(facts.index), "uuid": facts.uuid, "mig": facts.mig}
        super().__init__({**identity, **dict(zip(WORKLOAD, names, strict=True))})
        self.ratio: float | None = None  # None = not in the last interval
        self.profile = ""
        self.tenants: dict[Tenant, None] = {}
        self.start(_VERDICT, [(verdict,) for verdict in vocabulary.VERDICTS])
        self.start(_LOST, [])
        for series in (_USEFUL, _MEASURED):
            self.start(series, [()])


class WorkloadRows:
    """Rows by GPU and workload; one thread only may use it.

    At most ``most`` workloads have rows; others are counted as ``OTHER``, and in ``overflows`` once
    for each time that one comes. A workload that has had no time for ``retention_s`` goes.
    """

    def __init__(self, *, most: int, retention_s: float, lost: Iterable[CauseKey]) -> None:
        self.overflows = 0.0
        self._most = most
        self._retention_s = retention_s
        self._lost = frozenset(lost)
        self._rows: dict[GpuKey, dict[Workload, _WorkloadRow]] = {}
        self._last_s: dict[Workload, float | None] = {}  # when each had time; None = not yet
        self._refused: set[Workload] = set()  # of late, so that none is counted twice

    def add(self, facts: GpuFacts, workloads: Iterable[Workload]) -> bool:
        """Shows these from now on, those that are new at 0; whether any was."""
        rows = self._rows.setdefault(facts.key, {})
        before = len(rows)
        for workload in workloads:
            self._row(facts, rows, workload)
        return len(rows) > before

    def retire_gpu(self, key: GpuKey) -> None:
        """Drops the rows of a GPU that is gone for good."""
        self._rows.pop(key, None)

    def credit(self, verdicts: Sequence[Verdict]) -> int:
        """Counts one interval; how many values could not be."""
        dropped = 0
        now_s = max((verdict.end_s for verdict in verdicts), default=0.0)
        self._refused.intersection_update(each.workload for verdict in verdicts for each in verdict.workloads)
        for verdict in verdicts:
            rows = self._rows.setdefault(verdict.gpu.key, {})
            for row in rows.values():
                row.ratio, row.tenants = None, {}
            for each in verdict.workloads:
                row = self._row(verdict.gpu, rows, each.workload)
                self._last_s[each.workload if each.workload in rows else OTHER] = now_s
                dropped += self._count(row, each)
        for workload, last_s in list(self._last_s.items()):
            if last_s is None:
                self._last_s[workload] = (
                    now_s  # it was shown, and its first time comes with the next interval
                )
            elif now_s - last_s > self._retention_s:
                del self._last_s[workload]
                for rows in self._rows.values():
                    rows.pop(workload, None)
        return dropped

    def samples(self, series: Series, keys: Iterable[GpuKey]) -> Iterator[tuple[str, float]]:
        """The sample lines up to their values, and the values."""
        for key in keys:
            for row in self._rows.get(key, {}).values():
                if series.kind == "counter":
                    yield from row.counters(series)
                elif row.ratio is None:
                    continue
                elif series is _SHARE:
                    yield row.prefix(series, ()), row.ratio
                else:
                    for child in _runs(row):
                        yield row.prefix(series, child), 1.0

    def _row(self, facts: GpuFacts, rows: dict[Workload, _WorkloadRow], workload: Workload) -> _WorkloadRow:
        if workload not in self._last_s and workload != OTHER:
            named = len(self._last_s) - (OTHER in self._last_s)
            if named >= self._most:
                self.overflows += workload not in self._refused
                self._refused.add(workload)
                workload = OTHER
        self._last_s.setdefault(workload, None)
        row = rows.get(workload)
        if row is None:
            row = rows[workload] = _WorkloadRow(facts, workload)
        return row

    def _count(self, row: _WorkloadRow, verdict: WorkloadVerdict) -> int:
        row.ratio = (row.ratio or 0.0) + verdict.ratio
        row.profile = verdict.profile
        row.tenants.update(dict.fromkeys(verdict.tenants))
        gains: list[tuple[Series, Child, float]] = [
            (_USEFUL, (), verdict.time.useful),
            (_MEASURED, (), verdict.time.measured),
        ]
        gains += [(_VERDICT, (name,), seconds) for (name, _), seconds in verdict.time.verdict.items()]
        for cause, seconds in verdict.time.lost.items():
            if cause in self._lost:
                row.start(_LOST, [cause])
            gains.append((_LOST, cause, seconds))
        return sum(not row.add(*gain) for gain in gains)


def _runs(row: _WorkloadRow) -> Iterator[Child]:
    # Two tenants of one run differ in what was said of them meanwhile.
    runs = dict.fromkeys(tenant.run for tenant in row.tenants)
    for run in list(runs)[:MOST_RUNS]:
        yield (run, row.profile)
