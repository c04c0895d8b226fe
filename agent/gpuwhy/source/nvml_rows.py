"""What NVML is asked of each GPU, and how that becomes rows of a reading.

To read one more thing, add a row to ``QUERIES`` (plain) or ``METRICS`` (GPM), and its signal to
``sample.signals``. How a row is asked, and what an error code costs, is in ``nvml_calls``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from gpuwhy.source.mig import Instance, Layout
from gpuwhy.source.nvml_calls import (
    ACTS,
    Act,
    Call,
    FieldCall,
    FieldQuery,
    GpmCall,
    GpuLostError,
    ProcessList,
    ProcessUse,
    Query,
    Troubles,
    address,
    error_name,
)
from gpuwhy.source.reading import Capability, GpuFacts, GpuReading, Part

LAYOUT_EVERY = 10  # ticks between two looks at how a GPU is split: 160 us where it is not
MIB = 1024.0 * 1024.0


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
        mig="",
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
        mig="instance",
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

# 2,000 us (1,400 on an idle GPU): only of a GPU that several processes share; at once when others do.
USE_EVERY = 3
SEVERAL = 2

# One call gives all for 1,450 us (1,100-3,500 under load), five metrics or twelve alike, at each tick and
# for each MIG instance. Percent, and MiB/s for links, over the time between two samples.
ACTIVITY: tuple[tuple[str, int], ...] = (
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
)
# In MIG mode the board's, where its own sample can be taken.
LINKS: tuple[tuple[str, int], ...] = (
    ("pcie_tx_mib_s", pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC),
    ("pcie_rx_mib_s", pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC),
    ("nvlink_rx_mib_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC),
    ("nvlink_tx_mib_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC),
)
# What no signal rests on: it is had where it costs no call of its own.
RECORDED_ONLY = frozenset(
    {"dfma_tensor_util", "hmma_tensor_util", "dmma_tensor_util", "imma_tensor_util", "pstate"}
)
METRICS = (*ACTIVITY, *LINKS)

PLAIN, GPM = "nvml", "nvml-gpm"  # the parts' names

# In the plain part of a reading that follows critical errors only: their codes in order, repeats included.
XID_EVENTS = "xid_events"


def wanted() -> list[tuple[str, str]]:
    """(raw name, part) of all that is asked for; the owners count as one."""
    plain = [name for query in QUERIES for name in _names(query)]
    return [*((name, GPM) for name, _ in METRICS), *((name, PLAIN) for name in plain), ("owners", PLAIN)]


def _names(query: Query | FieldQuery) -> tuple[str, ...]:
    pairs: Sequence[tuple[str, object]] = query.raw if isinstance(query, Query) else query.fields
    return tuple(name for name, _ in pairs)


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all GPUs of a source.

    No window is longer than ``longest_s``; with ``lists_only`` nothing but processes is read.
    """

    troubles: Troubles
    clock: Callable[[], float]
    wall: Callable[[], float]
    longest_s: float
    lists_only: bool = False


# What each kind of row is asked: queries by whose they are in MIG mode, and GPM metrics.
_OWN: Mapping[str, tuple[tuple[str, ...], tuple[tuple[str, int], ...]]] = {
    "whole": (("", "board", "instance"), METRICS),
    "board": (("board",), LINKS),
    "instance": (("instance",), ACTIVITY),
}
_ELSEWHERE = "in MIG mode the board and each instance have only what is their own, and nobody has GPU-Util"


class _Row:
    """What becomes one row of the readings: a whole GPU, or in MIG mode its board or one of its instances.

    ``identity`` tells it from any other row of its GPU, also from one that had the same id before.
    ``doubtful`` says that an instance may be gone: nothing of it may be asked until that is known.
    """

    def __init__(
        self, facts: GpuFacts, handle: Any, instance: Instance | None, terms: Terms, *, position: int
    ) -> None:
        self.facts = facts
        self.identity = _identity(instance, split=facts.split)
        self._device_uuids = () if instance is None else tuple(filter(None, instance.compute))
        self.doubtful = False
        self._terms = terms
        self._troubles = terms.troubles
        self._position = position
        self._served: set[str] = set()
        self._refused: dict[str, str] = {}
        self._busy = False
        owners, metrics = _OWN[self.identity if isinstance(self.identity, str) else "instance"]
        self._queries = [query for query in QUERIES if query.mig in owners]
        self._elsewhere = _ELSEWHERE
        if terms.lists_only:
            self._queries, metrics, self._elsewhere = [], (), "only process lists are read through NVML"
        self._names = {"owners", *(name for name, _ in metrics)}
        self._names.update(name for query in self._queries for name in _names(query))
        self.bind((handle,) if instance is None else instance.devices)
        self._no_gpm = ""
        self._gpm: GpmCall | None = None
        if metrics and self.devices:
            self._gpm = self._open_gpm(metrics, handle, instance, terms)

    def bind(self, devices: tuple[Any, ...]) -> None:
        """Asks these handles from now on, and everything anew."""
        self.devices = devices
        self._values: dict[str, Any] = {}
        self._new = True
        self._resting: set[Call | FieldCall] = set()
        # Compute instances share the memory of theirs: any of them tells it.
        self._calls = [
            Call(query, devices[0]) if isinstance(query, Query) else FieldCall(query, devices[0])
            for query in (self._queries if devices else ())
        ]
        pid_max = _pid_max()
        listed = () if self.facts.split else devices
        self._compute = [ProcessList(_COMPUTE, one, every=COMPUTE_EVERY, pid_max=pid_max) for one in listed]
        self._mps = [ProcessList(_MPS_CLIENTS, one, every=MPS_EVERY, pid_max=pid_max) for one in listed]
        self._use: ProcessUse | None = None
        if self.identity == "whole":  # the driver has none under MIG
            wall, longest_s = self._terms.wall, self._terms.longest_s
            self._use = ProcessUse(devices[0], every=USE_EVERY, wall=wall, longest_s=longest_s)
        # Rows of one cadence fall on different ticks, and a row on another tick for each GPU: all
        # ticks cost about the same.
        use = () if self._use is None else (self._use,)
        rows = [row for row in (*self._calls, *self._compute, *self._mps, *use) if row.every > 1]
        self._phases = {id(row): 3 * place + self._position for place, row in enumerate(rows)}

    def _open_gpm(
        self,
        metrics: tuple[tuple[str, int], ...],
        handle: Any,
        instance: Instance | None,
        terms: Terms,
    ) -> GpmCall | None:
        number = None if instance is None else instance.id
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._no_gpm = (
                    "nvmlGpmQueryDeviceSupport: not on this GPU (data-centre cards have GPM from Hopper on)"
                )
                return None
            gpm = GpmCall(metrics, handle, number, clock=terms.clock, longest_s=terms.longest_s)
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

    def read(self, tick: int, *, everything: bool, xids: Sequence[int], spared: frozenset[str]) -> GpuReading:
        """Asks what is due at ``tick``, or ``everything``, as it does the first time; nothing of what is
        ``spared`` as a whole.

        Raises:
            GpuLostError, DriverGoneError, DriverMismatchError: see ``nvml_calls.ACTS``.
        """
        active: dict[str, Any] = {}
        if self._gpm is not None and self._gpm.names:
            if spared.issuperset(set(self._gpm.names) - RECORDED_ONLY):
                self._gpm.pause()
            else:
                self._ask(self._gpm, active)
        everything = everything or self._new
        self._new = False
        values = self._values
        due = self._due(tick, everything=everything, spared=spared)
        answered = sum([self._ask(row, values) for row in due])
        # Where few are asked they may have nothing just now: then the others tell whether it is there.
        if due and not (answered or self.facts.mig or any(self._ask(row, {}) for row in self._resting)):
            raise GpuLostError("nothing that it was asked was answered")
        self._read_lists(tick, everything=everything)
        owners = self._owners()
        use = self._read_use(tick, owners, everything=everything)
        self._served.update(active, values, () if owners is None else ("owners",))
        plain = {**values, XID_EVENTS: tuple(xids)} if xids else dict(values)
        parts = [Part(source, found) for source, found in ((GPM, active), (PLAIN, plain)) if found]
        for row in self._calls:
            if row.counter:
                for name in row.names:
                    values.pop(name, None)
        return GpuReading(
            self.facts, tuple(parts), owners=owners, process_use=use, device_uuids=self._device_uuids
        )

    def _due(self, tick: int, *, everything: bool, spared: frozenset[str]) -> list[Call | FieldCall]:
        """What is to be asked now. What rests is forgotten, and due as soon as it is wanted again."""
        due = []
        for row in self._calls:
            if spared and spared.issuperset(set(row.names) - RECORDED_ONLY):
                self._resting.add(row)
                for name in row.names:
                    self._values.pop(name, None)
            elif row.names and (everything or row in self._resting or self._is_due(row, tick)):
                self._resting.discard(row)
                due.append(row)
        return due

    def _is_due(self, row: Call | FieldCall | ProcessList | ProcessUse, tick: int) -> bool:
        return row.every == 1 or (tick + self._phases[id(row)]) % row.every == 0

    def _ask(self, row: Call | FieldCall | GpmCall, values: dict[str, Any]) -> bool:
        """Asks one row anew; whether anything was answered."""
        names, first = row.names, not row.answered
        for name in names:
            values.pop(name, None)
        if self.doubtful:
            return False
        problems = row.ask(values)
        for refused, code in problems:
            if refused == names and self._casts_doubt(row, code, first=first):
                return False
            if not self._is_final(row.what, refused, code, first=first):
                continue
            if not row.drop(refused):
                for name in refused:
                    del self._refused[name]
                return self._ask(row, values)
        return any(name in values for name in names)

    def _casts_doubt(self, row: Call | FieldCall | GpmCall | ProcessList, code: int, *, first: bool) -> bool:
        """Whether this instance may be gone, because what used to be answered is not.

        A GPM sample is taken of the GPU; when that is lost, it is.
        """
        sure = {Act.GONE, Act.MISMATCH, Act.LOST} if isinstance(row, GpmCall) else {Act.GONE, Act.MISMATCH}
        if self.facts.mig and not first and ACTS.get(code) not in sure:
            self.doubtful = True
        return self.doubtful

    def _is_final(self, function: str, names: tuple[str, ...], code: int, *, first: bool) -> bool:
        # An instance is an invalid argument while it comes or goes, which says nothing for good.
        first = first and (not self.facts.mig or function == "nvmlGpmMetricsGet")
        final = self._troubles.is_final(self.facts, function, names, code, first=first)
        if final:
            self._refused.update(dict.fromkeys(names, f"{function}: {error_name(code)}"))
        return final

    def _read_lists(self, tick: int, *, everything: bool) -> None:
        util = self._values.get("gpu_util_pct")
        busy = self._busy if util is None else bool(util)
        now = everything or busy != self._busy
        self._busy = busy
        for rows, name in ((self._compute, "owners"), (self._mps, "MPS clients")):
            for row in rows:
                if row.dropped or self.doubtful or not (now or row.pids is None or self._is_due(row, tick)):
                    continue
                first = not row.answered
                code = row.ask()
                if code != pynvml.NVML_SUCCESS:
                    row.dropped = not self._casts_doubt(row, code, first=first) and self._is_final(
                        row.what, (name,), code, first=first
                    )
                elif row.lies:
                    self._troubles.count(self.facts, row.what, "pids that cannot exist")
        for row in self._compute:
            if util and row.pids == ():
                # Someone works whom the list does not show, as inside some containers: it was not read.
                row.pids = None

    def _owners(self) -> tuple[int, ...] | None:
        """None = not read. Nothing can run on the board of a split GPU, or without a compute instance."""
        pids: list[int] = []
        for row in self._compute:
            if row.pids is None:
                return None
            pids += row.pids
        for row in self._mps:
            pids += row.pids or ()
        return tuple(dict.fromkeys(pids))

    def _read_use(
        self, tick: int, owners: tuple[int, ...] | None, *, everything: bool
    ) -> Mapping[int, float] | None:
        """Who kept the GPU busy how much of the time, where several may have."""
        row, pids = self._use, frozenset(owners or ())
        if row is None or row.dropped:
            return None
        if len(pids) < SEVERAL:
            row.asked = frozenset()
            return None
        if everything or pids != row.asked or self._is_due(row, tick):
            first = not row.answered
            code = row.ask(pids)
            if code != pynvml.NVML_SUCCESS:
                row.dropped = self._is_final(row.what, ("use of the GPU by process",), code, first=first)
        return row.shares

    def capability(self, name: str, source: str, spared: frozenset[str]) -> Capability:
        if name not in self._names:
            return Capability(None, self._elsewhere)
        if not self.devices and name not in self._served:
            return Capability(None, "a MIG instance without a compute instance has no data")
        if source == GPM and self._gpm is None:
            return Capability(None, self._no_gpm)
        refused = self._refused.get(name)
        if refused is not None:
            return Capability(None, refused)
        if name in spared:
            return Capability(None, "another source carries it")
        return Capability(source) if name in self._served else Capability(None, "no value yet")

    def free(self) -> None:
        if self._gpm is not None:
            self._gpm.free()


def _identity(instance: Instance | None, *, split: bool) -> Instance | str:
    return instance or ("board" if split else "whole")


class Device:
    """One GPU between nvmlInit and nvmlShutdown: its handle and its rows, the GPU's or board's own first.

    ``lost`` says why no handle of it may be used any more.
    """

    def __init__(self, facts: GpuFacts, handle: Any, terms: Terms, *, position: int) -> None:
        self.lost: str | None = None
        self.rows: list[_Row] = []
        self._facts = facts
        self._handle = handle
        self._terms = terms
        self._position = position
        self._layout = Layout(facts, handle, terms.troubles)
        try:
            self._look()
        except BaseException:
            self.free()
            raise

    def _look(self) -> None:
        """Makes the rows those that there are now; one that is still the same keeps its values and window."""
        found = self._layout.read()
        split, instances = found is not None, found or ()
        now = {_identity(one, split=split): one for one in (None, *instances)}
        for row in self.rows:
            if row.doubtful or row.identity not in now:
                row.free()
        self.rows = [row for row in self.rows if row.identity in now and not row.doubtful]
        known = {row.identity: row for row in self.rows}
        slices = self._layout.slices
        left = max(0, slices - sum(instance.slices for instance in instances)) / slices
        memory = None if split else self._facts.memory_total_bytes  # instances have theirs
        own = replace(self._facts, split=split, share_ratio=left, memory_total_bytes=memory)
        for identity, instance in now.items():
            same = known.get(identity)
            if same is None:
                facts = own if instance is None else _instance_facts(self._facts, instance, slices)
                position = self._position + (0 if instance is None else instance.id)
                self.rows.append(_Row(facts, self._handle, instance, self._terms, position=position))
            elif instance is None:
                same.facts = own
            elif [address(one) for one in same.devices] != [address(one) for one in instance.devices]:
                same.bind(instance.devices)
        self.rows.sort(key=lambda row: order(row.facts))

    def read(
        self,
        tick: int,
        *,
        everything: bool,
        xids: Sequence[int],
        spared: Mapping[tuple[str, str], frozenset[str]],
    ) -> list[GpuReading]:
        """Reads all rows, after a look at which there are when that is due or an instance seems gone.

        Raises:
            GpuLostError: from now on always.
            DriverGoneError, DriverMismatchError: see ``nvml_calls.ACTS``.
        """
        if self.lost is not None:
            raise GpuLostError(self.lost)
        if everything or (tick + self._position) % LAYOUT_EVERY == 0:
            self._look()
        read: dict[_Row, GpuReading] = {}
        for again in (False, True):
            for row in self.rows:
                if row not in read:
                    read[row] = row.read(
                        tick,
                        everything=everything,
                        xids=() if row.facts.mig else xids,
                        spared=spared.get(row.facts.key, frozenset()),
                    )
            if again or not any(row.doubtful for row in self.rows):
                break
            self._look()
        return [replace(read[row], facts=row.facts) for row in self.rows]

    def free(self) -> None:
        for row in self.rows:
            row.free()


def _instance_facts(gpu: GpuFacts, instance: Instance, slices: int) -> GpuFacts:
    memory_bytes = instance.memory_mib * MIB or None
    with suppress(pynvml.NVMLError):
        if instance.devices:
            memory_bytes = float(pynvml.nvmlDeviceGetMemoryInfo(instance.devices[0]).total)
    return replace(
        gpu,
        mig=str(instance.id),
        profile=instance.profile,
        share_ratio=instance.slices / slices,
        memory_total_bytes=memory_bytes,
    )


def order(facts: GpuFacts) -> tuple[int, int, str]:
    """Rows are sorted by index, the board before its instances, those by the number that their id is."""
    return (facts.index, len(facts.mig), facts.mig)


def _pid_max() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 4194304  # the kernel's own bound on 64-bit machines
