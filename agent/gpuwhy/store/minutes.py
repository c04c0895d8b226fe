"""Verdicts to minutes of wall-clock time, until they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuwhy.interval import Stat
from gpuwhy.sample import Workload
from gpuwhy.source import GpuFacts
from gpuwhy.store.schema import SUMS
from gpuwhy.store.signals import CONFIDENCE, KEPT, Kept
from gpuwhy.store.types import MINUTE_S
from gpuwhy.verdict.types import NO_DATA, CauseKey, TimeSplit, Verdict
from gpuwhy.workload.directory import OTHER

LONGEST_S = 7 * 86400.0  # of one interval: what is longer is no interval
_FARTHEST_S = 2.0**38  # from 1970, of a clock that can be meant
_MOST_STEPS = 1e9  # of a signal's value


class Subject(NamedTuple):
    """What a row is about, as far as history keeps it apart."""

    number: int
    uuid: str
    mig: str
    model: str
    driver: str
    profile: str
    share_ratio: float

    @classmethod
    def of(cls, facts: GpuFacts) -> Subject:
        return cls(
            facts.index,
            storable(facts.uuid),
            storable(facts.mig),
            storable(facts.model),
            storable(facts.driver),
            storable(facts.profile),
            facts.share_ratio if 0 <= facts.share_ratio <= 1 else 1.0,
        )


class Measured(NamedTuple):
    """One signal of a cell: integral in steps x milliseconds / 1000, milliseconds unread, p95 in steps."""

    integral: int
    unread: int
    p95: int | None


@dataclass(frozen=True, slots=True)
class Cell:
    """What is added to the row of one GPU, or of one workload on it, in the minute from ``start``.

    Times are milliseconds: ``sums`` in the order of ``SUMS``, ``causes`` by cause those of the headline and those
    lost. Of a workload there are no ``signals``; for others they are in the order of ``KEPT``.
    """

    start: int
    subject: Subject
    workload: Workload | None
    read: int
    sums: tuple[int, ...]
    causes: Mapping[CauseKey, tuple[int, int]]
    energy: int | None = None
    signals: tuple[Measured, ...] = ()

    @property
    def observed_s(self) -> float:
        """Seconds of a GPU in it; none of a workload, whose time is its GPU's."""
        return 0.0 if self.workload else sum(verdict for verdict, _ in self.causes.values()) / 1e3


@dataclass(slots=True)
class _Sums:
    """A cell in the making, in seconds."""

    read: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    verdict: dict[CauseKey, float] = field(default_factory=dict)
    lost: dict[CauseKey, float] = field(default_factory=dict)
    energy: float | None = None
    signals: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    def add(self, time: TimeSplit, share: float) -> float:
        """Adds a share of the time, and returns the seconds of it with readings."""
        for name in self.sums:
            self.sums[name] += _seconds(getattr(time, name)) * share
        for mine, theirs in ((self.verdict, time.verdict), (self.lost, time.lost)):
            for key, seconds in theirs.items():
                mine[key] = mine.get(key, 0.0) + _seconds(seconds) * share
        read = sum(_seconds(seconds) for key, seconds in time.verdict.items() if key != NO_DATA) * share
        self.read += read
        return read

    def cell(self, start: int, subject: Subject, workload: Workload | None) -> Cell:
        causes = {
            key: (_ms(self.verdict.get(key)), _ms(self.lost.get(key)))
            for key in dict.fromkeys([*self.verdict, *self.lost])
        }
        read = _ms(self.read)
        return Cell(
            start,
            subject,
            workload,
            read,
            tuple(map(_ms, self.sums.values())),
            {key: both for key, both in causes.items() if any(both)},
            None if self.energy is None else round(self.energy),
            () if workload else tuple(self._measured(kept, read) for kept in KEPT),
        )

    def _measured(self, kept: Kept, read: int) -> Measured:
        values, weights = self.signals.get(kept.name, ((), ()))
        covered = _ms(sum(weights))
        if covered <= 0:
            return Measured(0, read, None)
        stat = Stat(tuple(values), tuple(weights))
        return Measured(round(stat.integral / kept.step), max(0, read - covered), round(stat.p95 / kept.step))


class Minutes:
    """Minutes in the making. An interval that spans the end of one is divided by time.

    Of each minute at most ``most_workloads`` keep their names, the others are ``OTHER``.
    """

    def __init__(self, *, most_workloads: int) -> None:
        self._most_workloads = most_workloads
        self._making: dict[int, dict[tuple[Subject, Workload | None], _Sums]] = {}
        self._named: dict[int, set[Workload]] = {}
        self._subjects: dict[GpuFacts, Subject] = {}

    def add(self, verdict: Verdict) -> bool:
        """Whether it could be added: its times are those of a clock."""
        length = verdict.end_s - verdict.start_s
        if not (0 <= length <= LONGEST_S and abs(verdict.unix_end_s) <= _FARTHEST_S):
            return False
        subject = self._subjects.get(verdict.gpu)
        if subject is None:
            if len(self._subjects) >= 1024:
                self._subjects.clear()  # facts that change with each reading
            subject = self._subjects[verdict.gpu] = Subject.of(verdict.gpu)
        for start, share in pieces(verdict.unix_end_s, length):
            cells = self._making.setdefault(start, {})
            self._add_gpu(cells.setdefault((subject, None), _Sums()), verdict, share)
            for each in verdict.workloads:
                workload = self._named_in(start, each.workload)
                cells.setdefault((subject, workload), _Sums()).add(each.time, share)
        return True

    def take(self, current: Iterable[float] = ()) -> list[Cell]:
        """Ends all minutes but those that hold these Unix times, oldest first."""
        kept = {minute(unix_s) for unix_s in current}
        done: list[Cell] = []
        for start in sorted(self._making.keys() - kept):
            cells = self._making.pop(start)
            self._named.pop(start, None)
            done += [sums.cell(start, subject, workload) for (subject, workload), sums in cells.items()]
        return done

    @staticmethod
    def _add_gpu(sums: _Sums, verdict: Verdict, share: float) -> None:
        read = sums.add(verdict.time, share)
        energy = verdict.increments.get("energy_joules")
        if energy is not None and 0 <= energy <= _MOST_STEPS:
            sums.energy = (sums.energy or 0.0) + energy * share
        if read <= 0:
            return
        for kept in KEPT:
            value = verdict.confidence if kept.name == CONFIDENCE else verdict.signals.get(kept.name)
            if value is not None and abs(value) <= _MOST_STEPS * kept.step:
                values, weights = sums.signals.setdefault(kept.name, ([], []))
                values.append(value)
                weights.append(read)

    def _named_in(self, start: int, workload: Workload) -> Workload:
        named = self._named.setdefault(start, set())
        if workload not in named:
            if len(named) >= self._most_workloads:
                return OTHER
            named.add(workload)
        return workload


def minute(unix_s: float) -> int:
    """The start of the minute that ends at or after it: a minute's end is its own."""
    return MINUTE_S * (math.ceil(unix_s / MINUTE_S) - 1)


def pieces(unix_end_s: float, length_s: float) -> Iterator[tuple[int, float]]:
    """The minutes that an interval lies in, each with its share of the interval; shares add up to 1."""
    start_s, last = unix_end_s - length_s, minute(unix_end_s)
    at = MINUTE_S * math.floor(start_s / MINUTE_S)
    if at >= last:
        yield last, 1.0
        return
    rest = 1.0
    while at < last:
        share = (at + MINUTE_S - max(at, start_s)) / length_s
        rest -= share
        yield at, share
        at += MINUTE_S
    yield last, max(0.0, rest)


def storable(text: str) -> str:
    """A text without what no file can hold, such as half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def observed(verdicts: Sequence[Verdict]) -> float:
    """Seconds of GPUs in verdicts."""
    return sum(_seconds(seconds) for each in verdicts for seconds in each.time.verdict.values())


def _seconds(value: float) -> float:
    # One that is no number fails both comparisons; it must not spoil a sum.
    return value if 0 <= value <= LONGEST_S else 0.0


def _ms(seconds: float | None) -> int:
    return round(1e3 * (seconds or 0.0))
