"""What the interval stage hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuFacts


@dataclass(frozen=True, slots=True)
class Stat:
    """One signal over an interval: its values, each with the seconds that it held."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def covered_s(self) -> float:
        return sum(self.weights)

    @property
    def integral(self) -> float:
        """Value times seconds."""
        return sum(value * weight for value, weight in zip(self.values, self.weights, strict=True))

    @property
    def mean(self) -> float:
        return self.integral / self.covered_s

    def quantile(self, share: float) -> float:
        """The value below which ``share`` of the covered time lies."""
        ordered = sorted(zip(self.values, self.weights, strict=True))
        wanted, below = share * self.covered_s, 0.0
        for value, weight in ordered:
            below += weight
            if below >= wanted:
                return value
        return ordered[-1][0]

    @property
    def p5(self) -> float:
        return self.quantile(0.05)

    @property
    def p95(self) -> float:
        return self.quantile(0.95)


@dataclass(frozen=True, slots=True)
class Portion:
    """One workload's part of an interval.

    ``ratio`` is its part of the time for which it is known who held the GPU; ``basis`` what most of
    that rests on, as in ``sample.Share``. ``stats`` are the signals of its own process tree where
    others shared the GPU with it, empty where it was alone.
    """

    workload: Workload
    ratio: float
    basis: str
    tenants: tuple[Tenant, ...] = ()
    stats: Mapping[str, Stat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interval:
    """One GPU over ``start_s..end_s`` on the monotonic clock.

    ``stats`` holds what was read by signal name, absent = not read; ``gains`` what counters gained.
    ``reasons`` is the share of covered time in each clock-event reason, None when neither reasons nor
    the driver's counters of them were read. ``reason_samples`` says in how many samples each was set,
    None when reasons were not read. ``owners`` are all pids seen with a context, None = not read.
    ``portions`` are the workloads that held the GPU, empty where nobody did or it is not known.
    """

    gpu: GpuFacts
    start_s: float
    end_s: float
    unix_end_s: float
    covered_s: float
    samples: int
    stats: Mapping[str, Stat] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, float] | None = None
    reason_samples: Mapping[str, int] | None = None
    owners: frozenset[int] | None = None
    family: frozenset[str] = frozenset()
    portions: tuple[Portion, ...] = ()
    up: bool = True

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def coverage(self) -> float:
        """Share of the interval for which device readings speak."""
        return min(1.0, self.covered_s / self.length_s) if self.length_s > 0 else 0.0

    def mean(self, signal: str) -> float | None:
        """Time-weighted mean, None = not read."""
        stat = self.stats.get(signal)
        return None if stat is None else stat.mean
