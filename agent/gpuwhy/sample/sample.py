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
    A process may be looked at in some readings only. These rates then hold since it was looked at before,
    and until it is again. ``gained_cores``, and the bytes read and written, are what came to light in this
    reading, per second of it: nothing where it was not looked at, and all of the time since where it
    was. So they add up to what was used, over processes and over time.
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
    gained_cores: float | None = None

    @property
    def thread_cores(self) -> float | None:
        """The busiest thread, or what bounds it from above where threads were not read."""
        if self.hottest_thread_cores is not None or self.cpu_cores is None:
            return self.hottest_thread_cores
        return min(self.cpu_cores, 1.0)


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """The cgroup of one process: cores allowed (None = no quota), share of time that the quota held it.

    ``cpu_cores`` is the CPU time of all in the group and below, also of those that have ended;
    ``cpu_pressure_ratio`` and ``io_pressure_ratio`` the share of time in which some task of it waited for a
    CPU, or for storage. All three are None where the group does not hold one job.
    """

    path: str
    quota_cores: float | None = None
    throttled_ratio: float | None = None
    cpu_cores: float | None = None
    cpu_pressure_ratio: float | None = None
    io_pressure_ratio: float | None = None


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
class Workload:
    """Whose work it is, under a name that stays the same from run to run.

    ``kind`` is one of ``catalog.WORKLOAD_KINDS``. ``name`` is the controller's, job's, container's,
    unit's or executable's; ``namespace`` the Kubernetes namespace or compose project; ``owner`` who
    answers for it: user, account or team. All are clean: printable, and no longer than allowed.
    """

    kind: str
    name: str
    namespace: str = ""
    owner: str = ""

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Tenant:
    """One run of a workload on this host.

    ``run`` is the pod, job id or container id. ``profile`` is what the workload aims at, "" = nobody
    said, and ``hint`` where that was said. ``waits`` where something new is not in a reader's table yet.
    """

    workload: Workload
    run: str = ""
    profile: str = ""
    hint: str = ""
    waits: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Share:
    """One workload's part of a GPU over one sample or interval.

    ``ratio`` is its part of that time. ``basis`` is what the part rests on: "alone", "utilization"
    (the driver's estimate by process), "even", or "granted" where only a scheduler says so and no process
    of it was seen. ``tenants`` are its runs; ``values`` the signals of its own process tree, absent = not read.
    """

    workload: Workload
    ratio: float
    basis: str
    tenants: tuple[Tenant, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU over ``start_s..end_s`` on the monotonic clock, in SI units, ratios 0-1.

    ``values`` are gauges by signal name and hold over the span; ``gains`` what counters gained since
    they were last read. ``reasons`` are the clock-event reasons set, None = not read;
    ``reason_seconds`` the driver's own count of them. A signal that was not read is absent.
    ``owners`` are the pids with a context, None = not read. ``family`` names what the owners descend
    from and live in: GPUs whose families meet work on one job. ``holder`` is who holds the
    GPU, where a source says so; ``process_use`` what the driver says of each pid's part. ``shares`` are
    the workloads on it, empty where nobody holds it, None where that is not known. A source slower than the readings
    has samples of its own, without owners and host, with its own ``period_s``.
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
    process_use: Mapping[int, float] | None = None
    shares: tuple[Share, ...] | None = None
    up: bool = True

    @property
    def span_s(self) -> float:
        return self.end_s - self.start_s
