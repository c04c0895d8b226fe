"""What the verdict stage hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuFacts

CauseKey = tuple[str, str]  # (verdict, cause), a row of ``vocabulary.CAUSES``
NO_DATA: CauseKey = ("unknown", "no-data")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reading that a verdict rests on: the signal, its value, and the test it passed.

    ``test`` is the comparison as text (``"< 0.60"``); ratios are 0-1, other values in the
    signal's base unit.
    """

    signal: str
    value: float
    test: str


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Seconds of one GPU over one span, split so that nothing is counted twice.

    ``observed = useful + headroom + free + sum(lost) + unattributed``.
    ``verdict`` holds the seconds by headline; they too add up to ``observed``.
    """

    observed: float = 0.0
    measured: float = 0.0
    useful: float = 0.0
    headroom: float = 0.0
    free: float = 0.0
    lost: Mapping[CauseKey, float] = field(default_factory=dict)
    verdict: Mapping[CauseKey, float] = field(default_factory=dict)

    def part(self, ratio: float) -> TimeSplit:
        """That part of the time for which there were readings."""
        verdict = {key: seconds * ratio for key, seconds in self.verdict.items() if key != NO_DATA}
        return TimeSplit(
            observed=sum(verdict.values()),
            measured=self.measured * ratio,
            useful=self.useful * ratio,
            headroom=self.headroom * ratio,
            free=self.free * ratio,
            lost={key: seconds * ratio for key, seconds in self.lost.items()},
            verdict=verdict,
        )

    @property
    def unattributed(self) -> float:
        used = self.useful + self.headroom + self.free + sum(self.lost.values())
        return max(0.0, self.observed - used)


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """The judgement of one workload on one GPU over one interval.

    Its own host evidence decides where it shared the GPU; alone, the GPU's verdict is its own. ``ratio``
    and ``basis`` are those of ``interval.Portion``; ``time`` is its part of the time that was read.
    ``profile`` is what it was judged by, and ``hint`` where that was said.
    """

    workload: Workload
    tenants: tuple[Tenant, ...]
    ratio: float
    basis: str
    verdict: str
    cause: str
    confidence: float
    evidence: tuple[Evidence, ...]
    time: TimeSplit
    profile: str = "unknown"
    hint: str = ""

    @property
    def key(self) -> CauseKey:
        return (self.verdict, self.cause)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one GPU over one interval: exactly one headline, with its evidence.

    ``signals`` are the interval's means by signal name (``sample.signals``), absent = not read;
    ``sources`` says where each came from. ``clock_events`` are seconds by clock-event reason,
    None when reasons were not read. ``increments`` are what the GPU's counters gained in the
    interval, by signal name. ``owners`` are the pids with a context. ``workloads`` are those that held the
    GPU, with verdicts of their own. ``reason`` says in words why the verdict is ``unknown``.
    """

    gpu: GpuFacts
    start_s: float
    end_s: float
    unix_end_s: float
    verdict: str
    cause: str
    confidence: float
    evidence: tuple[Evidence, ...]
    time: TimeSplit
    gap_cause: CauseKey | None = None
    busy_verdict: CauseKey | None = None
    reason: str | None = None
    flags: frozenset[str] = frozenset()
    up: bool = True
    speed_of_light: float | None = None
    workloads: tuple[WorkloadVerdict, ...] = ()
    owners: tuple[int, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    increments: Mapping[str, float] = field(default_factory=dict)
    clock_events: Mapping[str, float] | None = None

    @property
    def key(self) -> CauseKey:
        return (self.verdict, self.cause)
