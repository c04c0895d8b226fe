"""What the sample stage hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwhy.source import GpuFacts


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process over one reading's span; rates are None until two readings of it exist.

    ``cpu_cores`` is CPU seconds per second over all threads; ``runqueue_wait`` the time that its
    threads were runnable and waited, seconds per second; ``hottest_thread_cores`` its busiest thread.
    """

    pid: int
    ppid: int
    command: str
    state: str
    cpu_cores: float | None = None
    system_cores: float | None = None
    hottest_thread_cores: float | None = None
    runqueue_wait: float | None = None
    read_bytes_per_second: float | None = None
    write_bytes_per_second: float | None = None
    age_s: float | None = None
    cpus_allowed: float | None = None
    cgroup: str = ""

    @property
    def thread_cores(self) -> float | None:
        """The busiest thread, or what bounds it from above where threads were not read."""
        if self.hottest_thread_cores is not None or self.cpu_cores is None:
            return self.hottest_thread_cores
        return min(self.cpu_cores, 1.0)


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """The quota of one process's cgroup: cores allowed (None = no quota), share of time held."""

    path: str
    quota_cores: float | None = None
    throttled_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """The host over one reading's span.

    ``values`` are host signals by name; ``cpu_seconds`` and ``pressure_seconds`` what the kernel's
    counters gained. ``processes`` is None when processes were not read.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    cpus: int | None = None
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)
    processes: Mapping[int, ProcessSample] | None = None
    cgroups: Mapping[int, CgroupSample] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU over ``start_s..end_s`` on the monotonic clock, in SI units, ratios 0-1.

    ``values`` are gauges by signal name and hold over the span; ``gains`` what counters gained since
    they were last read. ``reasons`` are the clock-event reasons set, None = not read;
    ``reason_seconds`` the driver's own count of them. A signal that was not read is absent.
    ``owners`` are the pids with a context, None = not read. ``family`` names what the owners descend
    from and live in: GPUs whose families meet work on one job. ``holder`` is the pod that holds the
    GPU, where a source says so. A source slower than the readings has samples of its own, without
    owners and host, with its own ``period_s``.
    """

    gpu: GpuFacts
    start_s: float
    end_s: float
    unix_s: float
    period_s: float
    values: Mapping[str, float]
    gains: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    reasons: frozenset[str] | None = None
    reason_seconds: Mapping[str, float] = field(default_factory=dict)
    owners: tuple[int, ...] | None = None
    family: frozenset[str] = frozenset()
    host: HostSample | None = None
    holder: str = ""
    up: bool = True

    @property
    def span_s(self) -> float:
        return self.end_s - self.start_s
