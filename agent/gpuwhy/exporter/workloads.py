"""The counters of workloads: as many as are allowed, for as long as they live and some time after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuwhy.catalog import PREFIX, SERIES_BY_NAME, WORKLOAD, Series
from gpuwhy.exporter.rows import Child, Row
from gpuwhy.exporter.snapshot import GpuKey
from gpuwhy.exporter.textformat import sample_prefix
from gpuwhy.sample import Tenant, Workload
from gpuwhy.verdict import vocabulary
from gpuwhy.verdict.types import CauseKey, Verdict, WorkloadVerdict
from gpuwhy.workload.directory import OTHER

MOST_REFUSED = 10_000  # that are remembered, so that none is counted twice
MOST_RUNS = 64  # of one workload on one GPU that are named: time-slicing offers fewer replicas

_VERDICT = SERIES_BY_NAME[f"{PREFIX}workload_verdict_seconds_total"]
_LOST = SERIES_BY_NAME[f"{PREFIX}workload_lost_seconds_total"]
_USEFUL = SERIES_BY_NAME[f"{PREFIX}workload_useful_seconds_total"]
_MEASURED = SERIES_BY_NAME[f"{PREFIX}workload_measured_seconds_total"]
_SHARE = SERIES_BY_NAME[f"{PREFIX}workload_share_ratio"]


class _WorkloadRow(Row):
    __slots__ = ("labels", "profile", "ratio", "tenants")

    def __init__(self, identity: Mapping[str, str], workload: Workload) -> None:
        names = (workload.kind, workload.name, workload.namespace, workload.owner)
        self.labels = {**identity, **dict(zip(WORKLOAD, names, strict=True))}
        super().__init__(self.labels)
        self.ratio: float | None = None  # None = not in the last interval
        self.profile = ""
        self.tenants: dict[Tenant, None] = {}
        self.start(_VERDICT, [(verdict,) for verdict in vocabulary.VERDICTS])
        for series in (_USEFUL, _MEASURED):
            self.start(series, [()])


class WorkloadRows:
    """Rows by GPU and workload; one thread only may use it.

    At most ``most`` workloads have rows. One that comes when all places are taken gets that of the one
    that has had no time for longest; where all have some, it is counted as ``OTHER``, and once in
    ``overflows``. A workload that has had no time for ``retention_s`` goes.
    """

    def __init__(self, *, most: int, retention_s: float, lost: Iterable[CauseKey]) -> None:
        self.overflows = 0.0
        self._most = most
        self._retention_s = retention_s
        self._lost = frozenset(lost)
        self._rows: dict[GpuKey, dict[Workload, _WorkloadRow]] = {}
        self._last_s: dict[Workload, float] = {}  # when each was last seen to have time
        self._refused: dict[Workload, float] = {}  # likewise, so that none is counted twice
        self._now_s = -math.inf  # end of the newest interval

    def add(self, key: GpuKey, identity: Mapping[str, str], workloads: Iterable[Workload]) -> bool:
        """Shows these from now on, those that are new at 0; whether any was. ``identity`` are the GPU's labels."""
        rows = self._rows.setdefault(key, {})
        added = False
        for workload in workloads:
            added |= workload not in rows and self._row(rows, identity, workload)[1]
        return added

    def retire_gpu(self, key: GpuKey) -> None:
        """Drops the rows of a GPU that is gone for good."""
        self._rows.pop(key, None)

    def settle(self, scraped: int, interval: int) -> None:
        """``Row.settle`` for all of them."""
        for rows in self._rows.values():
            for row in rows.values():
                row.settle(scraped, interval)

    def credit(
        self, verdicts: Sequence[Verdict], identities: Mapping[GpuKey, Mapping[str, str]], interval: int
    ) -> int:
        """Counts one interval, which has this number; how many values could not be.

        ``identities`` are the labels of each GPU.
        """
        if not verdicts:
            return 0
        dropped = 0
        first = self._now_s == -math.inf
        self._now_s = max(self._now_s, *(verdict.end_s for verdict in verdicts))
        if first:
            self._last_s = dict.fromkeys(self._last_s, self._now_s)
        # Whoever has time now keeps its place, wherever in the list it stands.
        now = {each.workload for verdict in verdicts for each in verdict.workloads}
        self._last_s.update(dict.fromkeys(now & self._last_s.keys(), self._now_s))
        for verdict in verdicts:
            key = verdict.gpu.key
            rows = self._rows.setdefault(key, {})
            for row in rows.values():
                row.ratio, row.tenants = None, {}
            for each in verdict.workloads:
                row, _ = self._row(rows, identities[key], each.workload)
                dropped += self._count(row, each, interval)
        for workload, last_s in list(self._last_s.items()):
            if self._now_s - last_s > self._retention_s:
                self._drop(workload)
        oldest_s = self._now_s - self._retention_s
        self._refused = {workload: last_s for workload, last_s in self._refused.items() if last_s >= oldest_s}
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
                    # Not kept, as those of counters are: runs come and go for as long as the agent lives.
                    for run in _runs(row):
                        labels = {**row.labels, "run": run, "profile": row.profile}
                        yield sample_prefix(series.name, labels), 1.0

    def _row(
        self, rows: dict[Workload, _WorkloadRow], identity: Mapping[str, str], workload: Workload
    ) -> tuple[_WorkloadRow, bool]:
        """The row that a workload is counted in, and whether it is new."""
        if workload != OTHER and workload not in self._last_s and not self._has_place():
            if workload not in self._refused:
                self.overflows += 1
                if len(self._refused) >= MOST_REFUSED:
                    self._refused.pop(min(self._refused, key=lambda each: self._refused[each]))
            self._refused[workload] = self._now_s
            workload = OTHER
        self._last_s[workload] = self._now_s
        row = rows.get(workload)
        if row is not None:
            return row, False
        row = rows[workload] = _WorkloadRow(identity, workload)
        return row, True

    def _has_place(self) -> bool:
        named = {workload: last_s for workload, last_s in self._last_s.items() if workload != OTHER}
        if len(named) < self._most:
            return True
        # One who has left must not keep out those who come.
        eldest = min(named, key=lambda workload: named[workload])
        if named[eldest] >= self._now_s:
            return False
        self._drop(eldest)
        return True

    def _drop(self, workload: Workload) -> None:
        del self._last_s[workload]
        for rows in self._rows.values():
            rows.pop(workload, None)

    def _count(self, row: _WorkloadRow, verdict: WorkloadVerdict, interval: int) -> int:
        row.ratio = (row.ratio or 0.0) + verdict.ratio
        row.profile = verdict.profile
        for tenant in verdict.tenants[:MOST_RUNS]:
            row.tenants[tenant] = None
        gains: list[tuple[Series, Child, float]] = [
            (_USEFUL, (), verdict.time.useful),
            (_MEASURED, (), verdict.time.measured),
        ]
        gains += [(_VERDICT, (name,), seconds) for (name, _), seconds in verdict.time.verdict.items()]
        refused = sum(not row.add(*gain) for gain in gains)
        return refused + sum(
            not (cause in self._lost and row.occur(_LOST, cause, seconds, interval))
            for cause, seconds in verdict.time.lost.items()
        )


def _runs(row: _WorkloadRow) -> list[str]:
    # Two tenants of one run differ in what was said of them meanwhile.
    return list(dict.fromkeys(tenant.run for tenant in row.tenants))[:MOST_RUNS]
