"""Raw readings to samples: SI units, absent where not read, impossible values rejected and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from gpuwhy.catalog import HOST_CPU_MODES, PRESSURE_RESOURCES
from gpuwhy.sample.sample import CgroupSample, HostSample, ProcessSample, Sample
from gpuwhy.sample.signals import (
    CLOCK_EVENT_BITS,
    CLOCK_EVENT_COUNTERS,
    CLOCK_EVENT_MASKS,
    DEVICE,
    SIGNALS,
    Signal,
)
from gpuwhy.source import GpuReading, HostReading, Part, Reading
from gpuwhy.source.cgroup import belongs_to_one_job

# "No value" as NVML and DCGM write it: all ones in 32 and 64 bits, DCGM's blank int32, int64 and
# fp64 with the three classes above each (dcgm_structs.h). As integers, and as floats that they became.
_BLANKS = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328)
_NO_VALUE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, *(blank + k for blank in _BLANKS for k in range(4)))
SENTINELS = frozenset([*_NO_VALUE, *map(float, _NO_VALUE)])

_NUMBERS = (int, float)  # a bool is none

# What no host can exceed. Linux runs on at most 8192 CPUs; thousands of threads may wait for one.
MOST_CORES = 8192.0
MOST_WAITING = 1e5
MOST_BYTES_PER_SECOND = 1e12

# Counters of a process: name, raw name, factor to SI (None: clock ticks), fastest believable gain per
# second, signal. The first two, which never fall, tell processes apart where start times were not read.
_PROCESS: tuple[tuple[str, str, float | None, float, str], ...] = (
    ("user", "utime", None, MOST_CORES, "process_tree_cpu_cores"),
    ("system", "stime", None, MOST_CORES, "process_tree_cpu_cores"),
    ("run", "threads_run_ns", 1e-9, MOST_CORES, "process_tree_cpu_cores"),
    ("wait", "threads_wait_ns", 1e-9, MOST_WAITING, "process_tree_runqueue_wait_ratio"),
    ("hottest", "hottest_thread_run_ns", 1e-9, MOST_CORES, "process_tree_hottest_thread_cores"),
    ("busiest", "busiest_thread_run_ns", 1e-9, MOST_CORES, "process_tree_hottest_thread_cores"),
    ("main", "main_run_ns", 1e-9, MOST_CORES, "process_tree_hottest_thread_cores"),
    ("read", "read_bytes", 1.0, MOST_BYTES_PER_SECOND, "process_tree_read_bytes_per_second"),
    ("write", "write_bytes", 1.0, MOST_BYTES_PER_SECOND, "process_tree_write_bytes_per_second"),
)
# What says how busy the hottest thread was, best first: the hottest of each reading, the one with most
# time so far, the main thread.
_HOTTEST = (
    ("hottest", "hottest_thread_run_ns"),
    ("busiest", "busiest_thread_run_ns"),
    ("main", "main_run_ns"),
)

# Counters of a cgroup, in microseconds: raw name, fastest believable gain per second, signal.
_OF_CGROUPS: dict[str, tuple[float, str]] = {
    "throttled_usec": (MOST_CORES, "process_tree_throttled_ratio"),
    "own_usage_usec": (MOST_CORES, "process_tree_cpu_cores"),
    "psi_cpu_some_us": (1.0, "process_tree_cpu_pressure_ratio"),
    "psi_io_some_us": (1.0, "process_tree_io_pressure_ratio"),
}

SLOW = 1.5  # times the reading's period: what has news less often speaks for a time of its own

Counters = MutableMapping[Hashable, tuple[float, float]]  # name -> (when it was read, what it said)

_RAW: dict[str, tuple[Signal, float]] = {
    raw: (signal, scale) for signal in DEVICE for raw, scale in signal.raw
}
_KNOWN_BITS = sum(bit for _, bit in CLOCK_EVENT_BITS)


class Rejected(Exception):  # noqa: N818  it is an outcome, and never leaves this module
    """A raw value that cannot be true; the reason is its argument."""


def _is_slow(part: Part, reading: Reading) -> bool:
    return part.period_s is not None and part.period_s > SLOW * reading.period_s


def checked(value: Any) -> float:
    """``value`` as a finite float.

    Raises:
        Rejected: with the reason.

    """
    if type(value) not in _NUMBERS:
        raise Rejected("nan")
    if value in SENTINELS:
        raise Rejected("sentinel")
    try:
        number = float(value)
    except OverflowError:
        raise Rejected("out-of-range") from None
    if not math.isfinite(number):
        raise Rejected("nan" if math.isnan(number) else "out-of-range")
    return number


def gauge(signal: Signal, value: Any, scale: float) -> float:
    """A gauge in SI units inside its bounds.

    Raises:
        Rejected: with the reason.

    """
    number = checked(value) * scale
    if signal.minimum <= number <= signal.maximum:
        return number
    if number > signal.maximum and number <= signal.maximum * (1 + signal.rounding):
        return signal.maximum
    raise Rejected("out-of-range")


def gained(
    counters: Counters, name: Hashable, number: float, now: float, most: float
) -> tuple[float, float] | None:
    """What a counter gained, and in how many seconds, since it was read last; None the first time.

    ``counters`` keeps what it said. ``most`` is the fastest believable gain per second; counters are
    updated in steps, so a second's worth more is believed.

    Raises:
        Rejected: with the reason. The next gain counts from the value that was rejected, so that a
            counter that was reset is lost for one reading only.

    """
    if not 0 <= number < math.inf:
        raise Rejected("out-of-range")
    before = counters.get(name)
    counters[name] = (now, number)
    if before is None or now <= before[0]:
        return None
    gain, seconds = number - before[1], now - before[0]
    if gain < 0:
        raise Rejected("backwards")
    if gain > most * (seconds + 1):
        raise Rejected("out-of-range")
    return gain, seconds


class Normaliser:
    """Turns one host's readings into samples; keeps what counters said before.

    ``rejected`` counts (signal, reason) and only grows.
    """

    def __init__(self) -> None:
        self.rejected: Counter[tuple[str, str]] = Counter()
        self._counters: Counters = {}
        self._spoken_s: dict[tuple[str, str], float] = {}  # by row, until when
        self._counting: dict[Hashable, str] = {}  # by counter, the source that told it last
        self._host: Counters = {}
        self._processes: dict[int, _Process] = {}
        self._processes_s: float | None = None  # when the list of processes was read last
        self._cgroups: dict[int, _Cgroup] = {}
        self._end_s: float | None = None
        self._last_host: tuple[HostReading, HostSample] | None = None

    def samples(self, reading: Reading) -> list[Sample]:
        """One sample per GPU of which something was read; nothing for a reading that does not move time on."""
        if reading.restart:
            self._counters, self._host, self._processes, self._cgroups = {}, {}, {}, {}
            self._last_host = self._processes_s = None
        before = self._end_s
        if (
            not (math.isfinite(reading.end_s) and math.isfinite(reading.span_s))
            or reading.span_s <= 0
            or (before is not None and reading.end_s <= before and not reading.restart)
        ):
            self.rejected["reading", "stale"] += 1
            return []
        self._end_s = reading.end_s
        host = None if reading.host is None else self.host(reading.host)
        samples: list[Sample] = []
        for gpu in reading.gpus:
            if gpu.up:
                samples += self._samples(reading, gpu, host, self._spoken_s.get(gpu.facts.key, before))
        return samples

    def _samples(
        self, reading: Reading, gpu: GpuReading, host: HostSample | None, before: float | None
    ) -> list[Sample]:
        """What was read at the reading's own pace, and a sample for each slower source that had news.

        ``before`` is until when this GPU has been spoken for.
        """
        taken: set[str] = set()  # what a better part has given already
        quick = [part for part in gpu.parts if not _is_slow(part, reading)]
        spans = [part.span_s for part in quick if part.span_s is not None]
        covered = min(max(spans, default=reading.span_s), 2 * reading.period_s)
        if before is not None and reading.end_s > before:
            # No second is spoken for twice, whatever span a source claims.
            covered = min(covered, reading.end_s - before)
        found = [self._sample(reading, gpu, quick, taken, covered)]
        if found[0] is None and gpu.owners is not None:
            found = [
                Sample(
                    gpu.facts, reading.end_s - covered, reading.end_s, reading.unix_s, reading.period_s, {}
                )
            ]
        if found[0] is not None:
            self._spoken_s[gpu.facts.key] = reading.end_s
            values = dict(found[0].values)
            limit = gpu.facts.power_limit_watts
            if not gpu.facts.mig and limit is not None:
                values.setdefault("power_limit_watts", limit)
            found[0] = replace(
                found[0],
                values=values,
                owners=gpu.owners,
                host=host,
                holder=gpu.holder,
                process_use=self._process_use(gpu.process_use),
            )
        for part in gpu.parts:
            if _is_slow(part, reading):
                period = part.period_s or reading.period_s
                span = min(period if part.span_s is None else part.span_s, 2 * period)
                slow = self._sample(reading, gpu, [part], taken, span)
                found.append(None if slow is None else replace(slow, period_s=period, holder=gpu.holder))
        return [sample for sample in found if sample is not None]

    def _sample(
        self, reading: Reading, gpu: GpuReading, parts: Iterable[Part], taken: set[str], covered: float
    ) -> Sample | None:
        """The device values of some parts, best first; None where they have none that is not ``taken``."""
        values: dict[str, float] = {}
        gains: dict[str, float] = {}
        sources: dict[str, str] = {}
        reasons: frozenset[str] | None = None
        reason_seconds: dict[str, float] = {}
        key, now = gpu.facts.key, reading.end_s
        for part in parts:
            for raw, (signal, scale) in _RAW.items():
                value = part.values.get(raw)
                if value is None or signal.name in taken:
                    continue
                try:
                    if signal.kind == "gauge":
                        values[signal.name] = gauge(signal, value, scale)
                    else:
                        name = self._counted_by(part.source, (key, signal.name))
                        gain = gained(self._counters, name, checked(value) * scale, now, signal.maximum)
                        if gain is not None:
                            gains[signal.name] = gain[0]
                except Rejected as rejected:
                    self.rejected[signal.name, str(rejected)] += 1
                else:
                    sources[signal.name] = part.source
                    taken.add(signal.name)
            for mask in CLOCK_EVENT_MASKS:
                if "clock_event_reasons" in taken:
                    break
                reasons = self._reasons(part.values.get(mask))
                if reasons is not None:
                    sources["clock_event_reasons"] = part.source
                    taken.add("clock_event_reasons")
            for reason, raws in CLOCK_EVENT_COUNTERS:
                for raw in raws:
                    value = part.values.get(raw)
                    if value is None or raws[0] in taken:
                        continue
                    try:
                        name = self._counted_by(part.source, (key, reason))
                        gain = gained(self._counters, name, checked(value) * 1e-9, now, 1.0)
                    except Rejected as rejected:
                        self.rejected["clock_event_seconds", str(rejected)] += 1
                    else:
                        taken.add(raws[0])
                        if gain is not None:
                            # Of a gain over a gap, the part of the time that the sample speaks for.
                            reason_seconds[reason] = gain[0] * min(1.0, covered / gain[1])
        if not (sources or reason_seconds):
            return None
        return Sample(
            gpu=gpu.facts,
            start_s=now - covered,
            end_s=now,
            unix_s=reading.unix_s,
            period_s=reading.period_s,
            values=values,
            gains=gains,
            sources=sources,
            reasons=reasons,
            reason_seconds=reason_seconds,
        )

    def _process_use(self, use: Mapping[int, Any] | None) -> Mapping[int, float] | None:
        """What can be true of it; None where nothing of it can."""
        found: dict[int, float] = {}
        for pid, value in (use or {}).items():
            if value is None:
                continue
            try:
                share = checked(value)
            except Rejected as rejected:
                self.rejected["process_use", str(rejected)] += 1
                continue
            if 0 <= share <= 1:
                found[pid] = share
            else:
                self.rejected["process_use", "out-of-range"] += 1
        return None if use is None or (use and not found) else found

    def _counted_by(self, source: str, counter: Hashable) -> Hashable:
        """The name of one source's count. Where another source counted meanwhile, it begins anew."""
        if self._counting.get(counter, source) != source:
            self._counters.pop((counter, source), None)
        self._counting[counter] = source
        return (counter, source)

    def _reasons(self, value: Any) -> frozenset[str] | None:
        if value is None:
            return None
        try:
            number = checked(value)
        except Rejected as rejected:
            self.rejected["clock_event_reasons", str(rejected)] += 1
            return None
        if not 0 <= number < 2**64 or not number.is_integer():
            self.rejected["clock_event_reasons", "out-of-range"] += 1
            return None
        mask = int(value)
        names = {name for name, bit in CLOCK_EVENT_BITS if mask & bit}
        return frozenset(names | {"other"} if mask & ~_KNOWN_BITS else names)

    def host(self, reading: HostReading) -> HostSample:
        """The host's sample of a reading; asked again for the same reading, the same sample."""
        if self._last_host is None or self._last_host[0] is not reading:
            self._last_host = (reading, self._host_sample(reading))
        return self._last_host[1]

    def _host_sample(self, reading: HostReading) -> HostSample:
        host = reading.values or {}
        now = reading.end_s
        values: dict[str, float] = {}
        cpu_seconds: dict[str, float] = {}
        pressure: dict[str, float] = {}
        cpus = host.get("cpus")
        cpus = cpus if isinstance(cpus, int) and 0 < cpus <= MOST_CORES else None
        hertz = host.get("clock_ticks_per_s")
        hertz = float(hertz) if isinstance(hertz, (int, float)) and 1 <= hertz <= 1e9 else 100.0
        cores = MOST_CORES if cpus is None else float(cpus)
        ticks = host.get("cpu_ticks")
        if isinstance(ticks, Mapping):
            for mode in HOST_CPU_MODES:
                gain = self._host_gain("host_cpu_seconds", mode, ticks.get(mode), now, cores, scale=1 / hertz)
                if gain is not None:
                    cpu_seconds[mode] = gain[0]
                    if mode == "iowait":
                        values["host_iowait_cores"] = gain[0] / gain[1]
            total = sum(cpu_seconds.values())
            if total > 0 and {"user", "system", "idle"} <= cpu_seconds.keys():
                still = cpu_seconds["idle"] + cpu_seconds.get("iowait", 0.0)
                values["host_cpu_busy_ratio"] = max(0.0, 1 - still / total)
        for resource in PRESSURE_RESOURCES:
            total_us = host.get(f"psi_{resource}_some_us")
            gain = self._host_gain("host_pressure_seconds", resource, total_us, now, 1.0, scale=1e-6)
            if gain is not None:
                pressure[resource] = min(gain[0], gain[1])
                values[f"host_pressure_{resource}_ratio"] = pressure[resource] / gain[1]
        for direction, raw in (("receive", "net_rx_bytes"), ("transmit", "net_tx_bytes")):
            signal = SIGNALS[f"host_network_{direction}_bytes_per_second"]
            gain = self._host_gain(signal.name, raw, host.get(raw), now, signal.maximum)
            if gain is not None:
                values[signal.name] = gain[0] / gain[1]
        blocked = host.get("procs_blocked")
        if isinstance(blocked, (int, float)) and not isinstance(blocked, bool) and 0 <= blocked < 1e7:
            values["host_blocked_processes"] = float(blocked)
        return HostSample(
            values=values,
            cpus=cpus,
            cpu_seconds=cpu_seconds,
            pressure_seconds=pressure,
            processes=None if reading.processes is None else self._process_samples(reading, hertz),
            cgroups={} if reading.cgroups is None else self._cgroup_samples(reading.cgroups, now),
        )

    def _host_gain(
        self, signal: str, name: str, value: Any, now: float, most: float, *, scale: float = 1.0
    ) -> tuple[float, float] | None:
        if value is None:
            return None
        try:
            return gained(self._host, (signal, name), checked(value) * scale, now, most)
        except Rejected as rejected:
            # The kernel documents that iowait may decrease; that is no fault of the reading.
            if (name, str(rejected)) != ("iowait", "backwards"):
                self.rejected[signal, str(rejected)] += 1
            return None

    def _process_samples(self, reading: HostReading, hertz: float) -> dict[int, ProcessSample]:
        seen: dict[int, _Process] = {}
        samples: dict[int, ProcessSample] = {}
        now, before, self._processes_s = reading.end_s, self._processes_s, reading.end_s
        span_s = 0.0 if before is None else now - before
        cgroups = reading.cgroups or {}
        for record in reading.processes or ():
            pid = record.get("pid")
            if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
                continue
            known = self._processes.get(pid)
            held = None if known is None else known.held(record)
            if known is not None and held is not None:
                seen[pid], samples[pid] = known, held
                continue
            start = record.get("start_ticks")
            if known is None or known.start != start:
                # Another start time is another process under the same pid.
                known = _Process(start)
            seen[pid] = known
            rates = self._rates(record, known.counters, now, hertz)
            # What adds up counts in this reading, whenever it was used.
            late = (now - known.read_s) / span_s if span_s > 0 and known.read_s is not None else 1.0
            ppid = record.get("ppid")
            path = record.get("cgroup") or cgroups.get(str(pid), {}).get("path")
            # One that was read and fell (that thread ended) leaves it unknown: the others may say far less.
            told = next((name for name, raw in _HOTTEST if record.get(raw) is not None), "")
            hottest = rates.get(told)
            samples[pid] = ProcessSample(
                pid=pid,
                ppid=ppid if isinstance(ppid, int) else 0,
                command=_text(record.get("comm")),
                # Where threads of its own read and wait, the main one's state does not show it.
                state="D" if record.get("blocked_threads") else _text(record.get("state"))[:1],
                cpu_cores=rates.get("cpu"),
                system_cores=rates.get("system"),
                # One thread cannot use more than one core; a handover between two busiest ones may say so.
                hottest_thread_cores=None if hottest is None else min(hottest, 1.0),
                runqueue_wait=rates.get("wait"),
                read_bytes_per_second=_times(rates.get("read"), late),
                write_bytes_per_second=_times(rates.get("write"), late),
                age_s=_positive(record.get("age_s")),
                cpus_allowed=_positive(record.get("cpus_allowed")),
                cgroup=_text(path),
                gained_cores=_times(rates.get("cpu"), late),
            )
            known.note(record, samples[pid], now)
        self._processes = seen
        return samples

    def _rates(
        self, process: Mapping[str, Any], counters: Counters, now: float, hertz: float
    ) -> dict[str, float]:
        """Gains per second by the names in ``_PROCESS``, and ``cpu``, the best of what says it."""
        rates: dict[str, float] = {}
        rounding = 0.0
        for name, raw, scale, most, signal in _PROCESS:
            value = process.get(raw)
            if value is None:
                continue
            number = 0.0
            try:
                number = checked(value) * (1 / hertz if scale is None else scale)
                gain = gained(counters, name, number, now, most)
            except Rejected as rejected:
                if str(rejected) != "backwards":
                    self.rejected[signal, str(rejected)] += 1
                elif scale is None:
                    # Another process: nothing of the one before may be compared.
                    rates.clear()
                    counters.clear()
                    counters[name] = (now, number)
                # Sums over threads fall when one of them ends, which is no fault of the reading.
                continue
            if gain is not None:
                rates[name] = gain[0] / gain[1]
                if scale is None:
                    rounding += 1 / hertz / gain[1]
        run = rates.get("run")
        ticks = rates["user"] + rates["system"] if "user" in rates and "system" in rates else None
        # Run time is finer than ticks, but lacks what threads that have ended had used.
        cpu = ticks if run is None or (ticks is not None and ticks > run + rounding) else run
        if cpu is not None:
            rates["cpu"] = cpu
        return rates

    def _cgroup_samples(
        self, cgroups: Mapping[str, Mapping[str, Any]], now: float
    ) -> dict[int, CgroupSample]:
        samples: dict[int, CgroupSample] = {}
        seen: dict[int, _Cgroup] = {}
        for name, cgroup in cgroups.items():
            if not (name.isascii() and name.isdigit() and len(name) < 11):
                continue
            pid, path = int(name), _text(cgroup.get("path"))
            known = self._cgroups.get(pid)
            if known is None or known.path != path:
                known = _Cgroup(path)
            seen[pid] = known
            held = self._cgroup_rate(known.counters, "throttled_usec", cgroup, now)
            look = cgroup.get("look")
            if look is None or look != known.look:
                known.look = look
                known.own = self._own_values(known, cgroup, now) if belongs_to_one_job(path) else _NOTHING
            cpu, cpu_pressure, io_pressure = known.own
            samples[pid] = CgroupSample(
                path=path,
                quota_cores=_quota(cgroup.get("cpu_max")),
                throttled_ratio=held,
                cpu_cores=cpu,
                cpu_pressure_ratio=cpu_pressure,
                io_pressure_ratio=io_pressure,
            )
        self._cgroups = seen
        return samples

    def _own_values(self, known: _Cgroup, cgroup: Mapping[str, Any], now: float) -> _Own:
        """What a job's group says of itself."""
        cpu, cpu_pressure, io_pressure = (
            self._cgroup_rate(known.counters, raw, cgroup, now)
            for raw in _OF_CGROUPS
            if raw != "throttled_usec"
        )
        # Nobody waits for more than all of the time; the kernel's clock and ours differ a little.
        return cpu, _times(cpu_pressure, 1.0, most=1.0), _times(io_pressure, 1.0, most=1.0)

    def _cgroup_rate(
        self, counters: Counters, raw: str, cgroup: Mapping[str, Any], now: float
    ) -> float | None:
        value = cgroup.get(raw)
        if value is None:
            return None
        most, signal = _OF_CGROUPS[raw]
        try:
            gain = gained(counters, raw, checked(value) * 1e-6, now, most)
        except Rejected as rejected:
            self.rejected[signal, str(rejected)] += 1
            return None
        return None if gain is None else gain[0] / gain[1]


_Own = tuple[float | None, float | None, float | None]  # cores, pressure on CPU and on storage
_NOTHING: _Own = (None, None, None)


class _Process:
    """What is known of one process from the readings before."""

    __slots__ = ("_held", "_record", "_sample", "counters", "read_s", "start")

    def __init__(self, start: Any) -> None:
        self.start = start
        self.counters: Counters = {}
        self.read_s: float | None = None
        self._record: Mapping[str, Any] = {}
        self._sample: ProcessSample | None = None
        self._held: ProcessSample | None = None

    def note(self, record: Mapping[str, Any], sample: ProcessSample, now: float) -> None:
        self._record, self._sample, self.read_s, self._held = record, sample, now, None

    def held(self, record: Mapping[str, Any]) -> ProcessSample | None:
        """Its sample where it was not looked at again, as ``record`` says: rates as before, and nothing new.

        None where it was looked at.
        """
        look = record.get("look")
        if look is None or self._sample is None:
            return None
        if record is not self._record and (
            look != self._record.get("look") or self.start != record.get("start_ticks")
        ):
            return None
        if self._held is None:
            self._held = replace(
                self._sample,
                gained_cores=_times(self._sample.gained_cores, 0.0),
                read_bytes_per_second=_times(self._sample.read_bytes_per_second, 0.0),
                write_bytes_per_second=_times(self._sample.write_bytes_per_second, 0.0),
            )
        return self._held


class _Cgroup:
    """What is known of one process's cgroup from the readings before."""

    __slots__ = ("counters", "look", "own", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.counters: Counters = {}
        self.look: Any = None
        self.own = _NOTHING


def _times(value: float | None, factor: float, *, most: float = math.inf) -> float | None:
    return None if value is None else min(most, value * factor)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _positive(value: Any) -> float | None:
    try:
        number = checked(value)
    except Rejected:
        return None
    return number if number >= 0 else None


def _quota(value: Any) -> float | None:
    """Cores of a ``cpu.max`` line, None for "max" and for what is no quota."""
    if not isinstance(value, (list, tuple)):
        return None
    try:
        quota, period = (float(part) for part in value)
        cores = quota / period
    except (TypeError, ValueError, ArithmeticError):
        return None
    return cores if 0 < cores < math.inf and period > 0 else None
