"""Reads GPUs through NVML: activity counters (GPM) where the card has them, and the plain queries.

To read one more thing, add a row to ``QUERIES`` (plain) or ``METRICS`` (GPM), and its signal to
``sample.signals``. How a row is asked, and what an error code costs, is in ``nvml_calls``.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from gpuwhy.source.nvml_calls import (
    ACTS,
    Act,
    Call,
    DriverGoneError,
    FieldCall,
    FieldQuery,
    GpmCall,
    GpuLostError,
    ProcessList,
    Query,
    Troubles,
    XidEvents,
    error_name,
    mismatch,
)
from gpuwhy.source.reading import GpuFacts, GpuReading, NoGpuError, Part, Reading, SourceError

log = logging.getLogger(__name__)

STALE_PERIODS = 5  # after a longer pause everything is asked anew, and no GPM window spans it
RETRY_S, RETRY_MAX_S = 1.0, 60.0


def _memory_v2() -> Any:
    return pynvml.c_nvmlMemory_v2_t(version=pynvml.nvmlMemory_v2)


# What is asked of each GPU, and every how many ticks. Costs are of one call on an H200;
# GetFieldValues costs the sum of its fields.
QUERIES: tuple[Query | FieldQuery, ...] = (
    # 2 us each, and what verdicts are made of.
    Query(
        "nvmlDeviceGetUtilizationRates",
        (("gpu_util_pct", "gpu"), ("mem_util_pct", "memory")),
        pynvml.c_nvmlUtilization_t,
    ),
    Query("nvmlDeviceGetPowerUsage", (("power_mw", "value"),)),
    Query("nvmlDeviceGetClockInfo", (("sm_clock_mhz", "value"),), arguments=(pynvml.NVML_CLOCK_SM,)),
    Query("nvmlDeviceGetClockInfo", (("mem_clock_mhz", "value"),), arguments=(pynvml.NVML_CLOCK_MEM,)),
    Query("nvmlDeviceGetTemperature", (("gpu_temp_c", "value"),), arguments=(pynvml.NVML_TEMPERATURE_GPU,)),
    Query(
        "nvmlDeviceGetCurrentClocksEventReasons",
        (("event_reasons", "value"),),
        ctypes.c_ulonglong,
        older=Query(
            "nvmlDeviceGetCurrentClocksThrottleReasons", (("event_reasons", "value"),), ctypes.c_ulonglong
        ),
    ),
    # 4-5 us a field.
    FieldQuery((("power_avg_mw", 185), ("power_instant_mw", 186))),
    FieldQuery((("sw_power_cap_ns", 74), ("sync_boost_ns", 76), ("sw_thermal_ns", 269)), counter=True),
    # 2-9 us, but they hardly move within an interval.
    Query("nvmlDeviceGetPerformanceState", (("pstate", "value"),), every=5),
    Query("nvmlDeviceGetEnforcedPowerLimit", (("power_limit_mw", "value"),), every=5),
    FieldQuery((("mem_temp_c", 82),), every=5),
    Query(
        # Without the driver's own reserve, as nvidia-smi and DCGM count it; the older call counts it in.
        "nvmlDeviceGetMemoryInfo_v2",
        (("memory_used_bytes", "used"),),
        _memory_v2,
        every=5,
        older=Query("nvmlDeviceGetMemoryInfo", (("memory_used_bytes", "used"),), pynvml.c_nvmlMemory_t),
    ),
    # 3,300-4,100 us, more than all the rest: a counter loses nothing by being read seldom.
    Query(
        "nvmlDeviceGetTotalEnergyConsumption",
        (("energy_mj", "value"),),
        ctypes.c_ulonglong,
        every=10,
        counter=True,
    ),
    # 640-930 us each; the event-reason bits say the same each tick, if only of that moment.
    FieldQuery((("hw_thermal_ns", 270),), every=10, counter=True),
    FieldQuery((("hw_power_brake_ns", 271),), every=10, counter=True),
)

# 8-20 us with one process, up to 550 us seen under load; also asked at once when GPU-Util starts or stops.
_COMPUTE = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_MPS_CLIENTS = ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2")
COMPUTE_EVERY, MPS_EVERY = 3, 10

# One call gives all for 1,450 us (1,100-3,500 under load), five metrics or twelve alike, at each tick.
# Percent, and MiB/s for links, over the time between two samples.
METRICS: tuple[tuple[str, int], ...] = (
    ("graphics_util", pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL),
    ("sm_util", pynvml.NVML_GPM_METRIC_SM_UTIL),
    ("sm_occupancy", pynvml.NVML_GPM_METRIC_SM_OCCUPANCY),
    ("integer_util", pynvml.NVML_GPM_METRIC_INTEGER_UTIL),
    ("any_tensor_util", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    ("dfma_tensor_util", pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL),
    ("hmma_tensor_util", pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL),
    ("dmma_tensor_util", pynvml.NVML_GPM_METRIC_DMMA_TENSOR_UTIL),
    ("imma_tensor_util", pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL),
    ("dram_bw_util", pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
    ("fp64_util", pynvml.NVML_GPM_METRIC_FP64_UTIL),
    ("fp32_util", pynvml.NVML_GPM_METRIC_FP32_UTIL),
    ("fp16_util", pynvml.NVML_GPM_METRIC_FP16_UTIL),
    ("pcie_tx_mib_s", pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC),
    ("pcie_rx_mib_s", pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC),
    ("nvlink_rx_mib_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC),
    ("nvlink_tx_mib_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC),
)

PLAIN, GPM = "nvml", "nvml-gpm"  # the parts' names

# In the plain part of a reading that follows critical errors only: their codes in order, repeats included.
XID_EVENTS = "xid_events"


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a raw value of a GPU can be read.

    ``source`` is the part that carries it; None = it cannot be read, for ``reason``.
    """

    source: str | None
    reason: str = ""


def _wanted() -> list[tuple[str, str]]:
    """(raw name, part) of all that is asked for; the owners count as one."""
    names = [(name, GPM) for name, _ in METRICS]
    for query in QUERIES:
        pairs: Sequence[tuple[str, object]] = query.raw if isinstance(query, Query) else query.fields
        names += [(name, PLAIN) for name, _ in pairs]
    return [*names, ("owners", PLAIN)]


class _Device:
    """One GPU between nvmlInit and nvmlShutdown: its handle and the calls made ready for it.

    ``lost`` says why the handle may not be used any more.
    """

    def __init__(
        self,
        facts: GpuFacts,
        handle: Any,
        troubles: Troubles,
        *,
        position: int,
        clock: Callable[[], float],
        period_s: float,
    ) -> None:
        self.facts = facts
        self.lost: str | None = None
        self._troubles = troubles
        self._values: dict[str, Any] = {}
        self._served: set[str] = set()
        self._busy = False
        self._new = True
        self._calls = [
            Call(query, handle) if isinstance(query, Query) else FieldCall(query, handle) for query in QUERIES
        ]
        pid_max = _pid_max()
        self._compute = ProcessList(_COMPUTE, handle, every=COMPUTE_EVERY, pid_max=pid_max)
        self._mps = ProcessList(_MPS_CLIENTS, handle, every=MPS_EVERY, pid_max=pid_max)
        # Rows of one cadence fall on different ticks, and a row on another tick for each GPU: all
        # ticks cost about the same.
        rows = [row for row in (*self._calls, self._compute, self._mps) if row.every > 1]
        self._phases = {id(row): 3 * place + position for place, row in enumerate(rows)}
        self._no_gpm = ""
        self._gpm = self._open_gpm(handle, clock, STALE_PERIODS * period_s)

    def _open_gpm(self, handle: Any, clock: Callable[[], float], longest_s: float) -> GpmCall | None:
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._no_gpm = (
                    "nvmlGpmQueryDeviceSupport: not on this GPU (data-centre cards have GPM from Hopper on)"
                )
                return None
            gpm = GpmCall(METRICS, handle, clock=clock, longest_s=longest_s)
        except pynvml.NVMLError as error:
            self._no_gpm = f"GPM: {error_name(error.value)}"
            self._troubles.is_final(self.facts, "GPM", (GPM,), error.value, first=True)
            return None
        try:
            self._ask(gpm, {})  # begins the first window
        except Exception:
            gpm.free()
            raise
        return gpm

    def read(self, tick: int, *, everything: bool, xids: Sequence[int]) -> GpuReading:
        """Asks what is due at ``tick``, or ``everything``, as it does the first time.

        Raises:
            GpuLostError: from now on always.
            DriverGoneError, DriverMismatchError: see ``nvml_calls.ACTS``.
        """
        if self.lost is not None:
            raise GpuLostError(self.lost)
        active: dict[str, Any] = {}
        if self._gpm is not None and self._gpm.names:
            self._ask(self._gpm, active)
        everything = everything or self._new
        self._new = False
        values = self._values
        due = [row for row in self._calls if row.names and (everything or self._is_due(row, tick))]
        if due and not sum([self._ask(row, values) for row in due]):
            raise GpuLostError("nothing that it was asked was answered")
        self._read_lists(tick, everything=everything)
        owners = self._owners()
        self._served.update(active, values, () if owners is None else ("owners",))
        parts = [Part(PLAIN, {**values, XID_EVENTS: tuple(xids)} if xids else dict(values))]
        if active:
            parts.insert(0, Part(GPM, active))
        for row in self._calls:
            if row.counter:
                for name in row.names:
                    values.pop(name, None)
        return GpuReading(self.facts, tuple(parts), owners=owners)

    def _is_due(self, row: Call | FieldCall | ProcessList, tick: int) -> bool:
        return row.every == 1 or (tick + self._phases[id(row)]) % row.every == 0

    def _ask(self, row: Call | FieldCall | GpmCall, values: dict[str, Any]) -> bool:
        """Asks one row anew; whether anything was answered."""
        names, first = row.names, not row.answered
        for name in names:
            values.pop(name, None)
        problems = row.ask(values)
        for refused, code in problems:
            final = self._troubles.is_final(self.facts, row.what, refused, code, first=first)
            if final and not row.drop(refused):
                for name in refused:
                    self._troubles.refused.pop((self.facts.uuid, name))
                return self._ask(row, values)
        return any(name in values for name in names)

    def _read_lists(self, tick: int, *, everything: bool) -> None:
        busy = bool(self._values.get("gpu_util_pct"))
        now = everything or busy != self._busy
        self._busy = busy
        for row, name in ((self._compute, "owners"), (self._mps, "MPS clients")):
            if row.dropped or not (now or row.pids is None or self._is_due(row, tick)):
                continue
            first = not row.answered
            code = row.ask()
            if code != pynvml.NVML_SUCCESS:
                row.dropped = self._troubles.is_final(self.facts, row.what, (name,), code, first=first)
            elif row.lies:
                self._troubles.count(self.facts, row.what, "pids that cannot exist")
        if busy and self._compute.pids == ():
            # Someone works whom the list does not show, as inside some containers: it was not read.
            self._compute.pids = None

    def _owners(self) -> tuple[int, ...] | None:
        if self._compute.pids is None:
            return None
        return tuple(dict.fromkeys((*self._compute.pids, *(self._mps.pids or ()))))

    def capability(self, name: str, source: str) -> Capability:
        if self.lost is not None:
            return Capability(None, self.lost)
        if source == GPM and self._gpm is None:
            return Capability(None, self._no_gpm)
        refused = self._troubles.refused.get((self.facts.uuid, name))
        if refused is not None:
            return Capability(None, refused)
        return Capability(source) if name in self._served else Capability(None, "no value yet")

    def free(self) -> None:
        if self._gpm is not None:
            self._gpm.free()


class _Session:
    """Everything between one nvmlInit and its nvmlShutdown; no handle outlives it.

    ``devices`` are by UUID. ``unread`` says by NVML index why a GPU could not be opened at all;
    ``retry`` whether that may change.
    """

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.devices: dict[str, _Device] = {}
        self.events = XidEvents()
        self.unread: dict[int, str] = {}
        self.retry = False

    def close(self) -> None:
        for device in self.devices.values():
            device.free()
        self.events.free()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class NvmlSource:
    """All GPUs of this host, through the NVIDIA driver's own library.

    All methods must be called from one and the same thread; each may hang with the driver. A GPU
    once seen stays in every reading, under its first index, with ``up`` False while it does not
    answer. GPUs that another source has seen may be given as ``expected``: they are kept likewise.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        period_s: float = 1.0,
        expected: Iterable[GpuFacts] = (),
    ) -> None:
        self.period_s = period_s
        self._clock = clock
        self._wall = wall
        self._facts = {facts.uuid: facts for facts in expected if not facts.mig}
        self._troubles = Troubles()
        self._session: _Session | None = None
        self._down: dict[str, str] = {}
        self._unread_told: set[tuple[int, str]] = set()
        self._last_s: float | None = None
        self._tick = 0
        self._restart = True
        self._retry_s = RETRY_S
        self._retry_at_s: float | None = None
        self._reopened_s: float | None = None

    @property
    def errors(self) -> Mapping[tuple[str, str, str], int]:
        """Odd answers so far, by (uuid, function, what)."""
        return Counter(self._troubles.errors)

    def start(self) -> tuple[GpuFacts, ...]:
        """Opens NVML and begins the first activity window. The facts of the GPUs that answer, by index.

        Raises:
            NoGpuError: no library, no driver or no GPU here; names the remedy.
            DriverMismatchError: the driver's parts have different versions.
            SourceError: NVML refuses for another reason.
        """
        self.close()
        self._tick, self._restart, self._retry_at_s = 0, True, None
        try:
            session = self._open()
        except pynvml.NVMLError as error:
            raise _start_error(error.value) from None
        except DriverGoneError as error:
            raise SourceError(f"the NVIDIA driver went away meanwhile ({error}); see `dmesg`") from None
        if not session.devices:
            session.close()
            raise _none_error(session.unread)
        self._session = session
        self._last_s = self._clock()
        return tuple(facts for facts in self._known() if facts.uuid in session.devices)

    def read(self) -> Reading:
        """Asks every GPU what is due. Counters are in those readings only that read them.

        Raises:
            DriverMismatchError: this process cannot read GPUs any more; restart it.
            SourceError: not started.
        """
        if self._last_s is None:
            raise SourceError("NVML is not open: start() comes before read()")
        now = self._clock()
        span = now - self._last_s
        # Readings without a driver compare nothing; the mark is for the first one with it.
        restart = self._restart and self._session is not None
        self._restart = self._restart and not restart
        everything = span > STALE_PERIODS * self.period_s
        reading = Reading(
            end_s=now,
            unix_s=self._wall(),
            span_s=span if span > 0 else self.period_s,
            period_s=self.period_s,
            gpus=self._read_gpus(everything=everything),
            restart=restart,
        )
        self._last_s = now
        self._tick += 1
        # Last, so that at the next reading the GPUs that are well have a nearly whole activity window.
        self._mend(now)
        return reading

    def close(self) -> None:
        """Gives everything back to the driver. Safe at any time, and more than once."""
        self._last_s = None
        self._drop_session()

    def capabilities(self) -> dict[str, dict[str, Capability]]:
        """By UUID and raw name: which part carries it, or why none can.

        Complete after the first reading that comes a period or more after ``start``.
        """
        found: dict[str, dict[str, Capability]] = {}
        for facts in self._known():
            device = None if self._session is None else self._session.devices.get(facts.uuid)
            absent = Capability(None, self._down.get(facts.uuid, "NVML does not show this GPU"))
            found[facts.uuid] = {
                name: absent if device is None else device.capability(name, source)
                for name, source in _wanted()
            }
        return found

    def _known(self) -> list[GpuFacts]:
        return sorted(self._facts.values(), key=lambda facts: facts.index)

    def _read_gpus(self, *, everything: bool) -> tuple[GpuReading, ...]:
        session = self._session
        xids: dict[str, list[int]] = {}
        gone: str | None = None
        if session is not None:
            try:
                xids = session.events.take(self._troubles)
            except DriverGoneError as error:
                gone = str(error)
        readings: list[GpuReading] = []
        for facts in self._known():
            device = None if session is None or gone is not None else session.devices.get(facts.uuid)
            codes = xids.get(facts.uuid, ())
            reading: GpuReading | None = None
            if device is not None:
                try:
                    reading = device.read(self._tick, everything=everything, xids=codes)
                except GpuLostError as error:
                    device.lost = str(error)
                    self._mark_down(facts, str(error))
                except DriverGoneError as error:
                    gone = str(error)
            if reading is None:
                parts = (Part(PLAIN, {XID_EVENTS: tuple(codes)}),) if codes else ()
                reading = GpuReading(facts, parts, up=False)
            elif self._down.pop(facts.uuid, None) is not None:
                log.info("GPU %d (%s) answers again", facts.index, facts.uuid)
            readings.append(reading)
        if gone is not None:
            for facts in self._known():
                self._mark_down(facts, gone)
            self._drop_session()
            self._restart = True
        return tuple(readings)

    def _mark_down(self, facts: GpuFacts, reason: str) -> None:
        if facts.uuid not in self._down:
            log.error(
                "GPU %d (%s) is down (%s); NVML is reopened until it is back", facts.index, facts.uuid, reason
            )
        self._down[facts.uuid] = reason

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _is_whole(self) -> bool:
        session = self._session
        if session is None or session.retry:
            return False
        return all(uuid in session.devices and session.devices[uuid].lost is None for uuid in self._facts)

    def _mend(self, now: float) -> None:
        """Reopens NVML, at growing intervals, while a GPU that was seen does not answer.

        That takes 20 ms for one H200, of which the others lose nothing but a piece of one window.
        """
        if self._is_whole():
            self._retry_at_s = None
            return
        if self._retry_at_s is None:
            # A GPU that comes and goes is not asked more often than one that stays away.
            flaps = self._reopened_s is not None and now - self._reopened_s <= RETRY_MAX_S
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S) if flaps else RETRY_S
            self._retry_at_s = now + self._retry_s
        if now < self._retry_at_s:
            return
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self._retry_at_s = now + self._retry_s
        self._reopened_s = now
        self._drop_session()
        try:
            self._session = self._open()
        except pynvml.NVMLError as error:
            if ACTS.get(error.value) is Act.MISMATCH:
                raise mismatch() from None
            log.warning(
                "NVML cannot be opened (%s); next try in %.0f s", error_name(error.value), self._retry_s
            )
        except DriverGoneError as error:
            log.warning("NVML cannot be opened (%s); next try in %.0f s", error, self._retry_s)

    def _open(self) -> _Session:
        """A session with a device for every GPU that answers.

        Raises:
            NVMLError, DriverGoneError, DriverMismatchError: nothing is left open.
        """
        session = _Session()
        try:
            self._troubles.refused.clear()
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._add_device(session, index)
        except BaseException:
            session.close()
            raise
        return session

    def _add_device(self, session: _Session, index: int) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            facts = self._named(_facts(index, handle))
            self._facts[facts.uuid] = facts
            session.devices[facts.uuid] = _Device(
                facts,
                handle,
                self._troubles,
                position=len(session.devices),
                clock=self._clock,
                period_s=self.period_s,
            )
        except GpuLostError as error:
            self._skip(session, index, str(error), retry=True)
            return
        except pynvml.NVMLError as error:
            act = ACTS.get(error.value)
            if act is Act.MISMATCH:
                raise mismatch() from None
            if act is Act.GONE:
                raise
            self._skip(session, index, error_name(error.value), retry=act not in {Act.DENIED, Act.NEVER})
            return
        try:
            session.events.watch(facts, handle)
        except pynvml.NVMLError as error:
            with suppress(GpuLostError):  # the first reading tells
                self._troubles.is_final(
                    facts, "nvmlDeviceRegisterEvents", (XID_EVENTS,), error.value, first=True
                )

    def _skip(self, session: _Session, index: int, reason: str, *, retry: bool) -> None:
        session.unread[index] = reason
        session.retry |= retry
        if (index, reason) not in self._unread_told:
            self._unread_told.add((index, reason))
            remedy = (
                "see `dmesg | grep -i xid`" if retry else "run gpuwhy as root, or give the container that GPU"
            )
            log.warning("the GPU with NVML index %d cannot be opened (%s): %s", index, reason, remedy)

    def _named(self, facts: GpuFacts) -> GpuFacts:
        """``facts`` under the index that this UUID had first; no two GPUs share one."""
        known = self._facts.get(facts.uuid)
        if known is not None:
            return replace(facts, index=known.index)
        taken = {other.index for other in self._facts.values()}
        return facts if facts.index not in taken else replace(facts, index=max(taken) + 1)


def _start_error(code: int) -> SourceError:
    name = error_name(code)
    if ACTS.get(code) is Act.MISMATCH:
        return mismatch()
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NoGpuError(
            "libnvidia-ml.so.1 cannot be loaded: the NVIDIA driver is not installed here; install it, "
            "or in a container use the NVIDIA container runtime (--gpus all)"
        )
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return NoGpuError(
            "the NVIDIA kernel driver is not loaded; try `modprobe nvidia` and see `dmesg`; "
            "in a container, ask for GPUs (--gpus all, or nvidia.com/gpu in Kubernetes)"
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return SourceError(
            f"NVML cannot be opened ({name}); run gpuwhy as root, or give this user access to /dev/nvidiactl"
        )
    return SourceError(
        f"NVML cannot be opened ({name}); try nvidia-smi and see `dmesg`; a container that worked before must be "
        "restarted: `systemctl daemon-reload` on the host can take its devices away"
    )


def _none_error(unread: Mapping[int, str]) -> SourceError:
    if unread:
        why = "; ".join(f"GPU {index}: {reason}" for index, reason in unread.items())
        return SourceError(
            f"no GPU of this host answers NVML ({why}); try nvidia-smi and see `dmesg | grep -i xid`"
        )
    return NoGpuError(
        "the NVIDIA driver is loaded and has no GPU; see `lspci | grep -i nvidia` and `dmesg`; "
        "in a container, ask for GPUs (--gpus all, or nvidia.com/gpu in Kubernetes)"
    )


def _facts(index: int, handle: Any) -> GpuFacts:
    """What does not change about a GPU. Only its UUID must be answered.

    Raises:
        NVMLError: the UUID cannot be read, or the GPU or the driver is gone.
    """

    def read(ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except pynvml.NVMLError as error:
            if ACTS.get(error.value) in {Act.LOST, Act.GONE, Act.MISMATCH}:
                raise
            return None

    def scaled(scale: float, ask: Callable[..., Any], *arguments: Any) -> float | None:
        value = read(ask, *arguments)
        return value * scale if value else None

    uuid = pynvml.nvmlDeviceGetUUID(handle)
    pci = read(pynvml.nvmlDeviceGetPciInfo, handle)
    memory = read(pynvml.nvmlDeviceGetMemoryInfo, handle)
    capability = read(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = read(pynvml.nvmlDeviceGetMigMode, handle)
    if mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        log.info(
            "GPU %d (%s) is split by MIG: only what NVML says of the whole board is read", index, _text(uuid)
        )
    return GpuFacts(
        index=index,
        uuid=_text(uuid),
        model=_text(read(pynvml.nvmlDeviceGetName, handle)),
        pci_bus_id=_text(pci.busId) if pci is not None else "",
        compute_capability="" if capability is None else "{}.{}".format(*capability),
        driver=_text(read(pynvml.nvmlSystemGetDriverVersion)),
        power_limit_watts=scaled(1e-3, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        default_power_limit_watts=scaled(1e-3, pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        sm_clock_max_hertz=scaled(1e6, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_max_hertz=scaled(1e6, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        memory_total_bytes=None if memory is None else float(memory.total),
        pcie_generation=read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=read(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _pid_max() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 4194304  # the kernel's own bound on 64-bit machines
