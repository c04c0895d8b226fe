"""An NVIDIA driver library for tests: stands where ``pynvml`` loads ``libnvidia-ml.so.1``.

Its attributes are C functions: they take ctypes arguments, write through their references and
return error codes. What they answer comes from recordings. It keeps the books that a driver would
not forgive: calls on dead handles, calls after nvmlShutdown, samples and event sets left behind.
"""

# ruff: noqa: N802, N815  methods are named as the C functions that they stand for
from __future__ import annotations

import bisect
import ctypes
import gzip
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from gpuwhy.source.nvml import NvmlSource

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"

METRIC_NAMES = {
    getattr(pynvml, f"NVML_GPM_METRIC_{stem}"): raw
    for stem, raw in {
        "GRAPHICS_UTIL": "graphics_util",
        "SM_UTIL": "sm_util",
        "SM_OCCUPANCY": "sm_occupancy",
        "INTEGER_UTIL": "integer_util",
        "ANY_TENSOR_UTIL": "any_tensor_util",
        "DFMA_TENSOR_UTIL": "dfma_tensor_util",
        "HMMA_TENSOR_UTIL": "hmma_tensor_util",
        "IMMA_TENSOR_UTIL": "imma_tensor_util",
        "DRAM_BW_UTIL": "dram_bw_util",
        "FP64_UTIL": "fp64_util",
        "FP32_UTIL": "fp32_util",
        "FP16_UTIL": "fp16_util",
        "PCIE_TX_PER_SEC": "pcie_tx_mib_s",
        "PCIE_RX_PER_SEC": "pcie_rx_mib_s",
        "NVLINK_TOTAL_RX_PER_SEC": "nvlink_rx_mib_s",
        "NVLINK_TOTAL_TX_PER_SEC": "nvlink_tx_mib_s",
    }.items()
}
# Field ids by number, from the driver's header: (raw name, nvmlValueType_t).
FIELDS = {
    74: ("sw_power_cap_ns", 3),
    76: ("sync_boost_ns", 3),
    82: ("mem_temp_c", 1),
    185: ("power_avg_mw", 1),
    186: ("power_instant_mw", 1),
    269: ("sw_thermal_ns", 3),
    270: ("hw_thermal_ns", 3),
    271: ("hw_power_brake_ns", 3),
}
_CLEANING = {"nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree"}
COUNTERS = ("energy_mj", *(raw for raw, _ in FIELDS.values() if raw.endswith("_ns")))
NO_DATA = pynvml.NVML_ERROR_NO_DATA
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT

# GPU instance profiles of an 80 GB card by NVML's number for them: (profile id, slices, GiB).
PROFILES = {0: (19, 1, 10), 1: (14, 2, 20), 2: (9, 3, 40), 3: (5, 4, 40), 4: (0, 7, 80)}
NO_INSTANCE = 0xFFFFFFFF


def _object(reference: Any) -> Any:
    """What a ``byref`` points to."""
    return reference._obj


def _put(reference: Any, address: int) -> None:
    ctypes.c_void_p.from_buffer(_object(reference)).value = address


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _filled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with what was read less often than once a row carried on: a driver has it all the time."""
    known: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
    for row in reversed(rows):
        known |= row
    filled = []
    for row in rows:
        known |= row
        filled.append(dict(known))
    return filled


class FakeGpu:
    """One GPU that lives through a recording's rows, over and over."""

    def __init__(self, recording: str = "gemm", gpu: int = 0, *, uuid: str | None = None) -> None:
        with gzip.open(RECORDINGS / f"{recording}.jsonl.gz") as lines:
            header, *rows = (json.loads(line) for line in lines)
        self.header = header["gpus"][gpu]
        self.driver = header["driver"]
        self.uuid = uuid or self.header["uuid"]
        self.rows = _filled([row["gpus"][gpu] for row in rows])
        self.times = [row["mono"] - rows[0]["mono"] for row in rows]
        self.length = self.times[-1] + header["period_s"]
        self.changed: dict[str, Any] = {}
        self.pids: list[int] | None = None
        self.mps_pids: list[int] = []
        self.use: list[tuple[int, float, int]] = []  # (pid, seconds before now, percent), as the driver notes
        self.gpm = True
        self.mig = False
        self.instances: list[FakeInstance | None] = []  # None is a gap in the numbering of MIG devices
        self.slices = 7
        self.board_gpm = False  # whether a sample of the whole board can be taken in MIG mode
        self.metrics_unknown: set[int] = set()  # refused one by one, as driver 580 does
        self.metrics_refused: set[int] = set()  # the whole call is refused

    def at(self, elapsed_s: float) -> dict[str, Any]:
        """The row that holds at a time since the driver was loaded; counters go on over the seam."""
        rounds, rest = divmod(max(0.0, elapsed_s) + 1e-9, self.length)
        row = {"pstate": 0, **self.rows[bisect.bisect_right(self.times, rest) - 1]}
        for name in COUNTERS:
            if row.get(name) is not None:
                row[name] += int(rounds) * (self.rows[-1][name] - self.rows[0][name])
        return {**row, **self.changed}

    def window(self, start_s: float, end_s: float) -> dict[str, float | None]:
        """GPM's means over (start, end]: each row speaks of the time since the row before."""
        rounds = int((max(0.0, end_s) + 1e-9) // self.length)
        rows = [
            row["gpm"]
            for turn in {max(0, rounds - 1), rounds}
            for time, row in zip(self.times, self.rows, strict=True)
            if start_s + 1e-6 < turn * self.length + time <= end_s + 1e-6
        ] or [self.at(end_s)["gpm"]]
        names = {name for row in rows for name in row}
        found: dict[str, float | None] = {}
        for name in names:
            values = [row.get(name) for row in rows]
            known = [value for value in values if value is not None]
            found[name] = sum(known) / len(known) if known else None
        return {**found, **{name: value for name, value in self.changed.items() if name in names}}


class FakeInstance(FakeGpu):
    """A GPU instance that lives through a recording as if it were a GPU. ``compute`` are the pids in each
    of its compute instances, by their ids.
    """

    def __init__(
        self,
        number: int,
        profile: str = "3g.40gb",
        recording: str = "gemm",
        compute: dict[int, list[int]] | None = None,
        life: str = "",
    ) -> None:
        super().__init__(recording)
        self.id, self.profile, self.life = number, profile, life
        slices, _, memory = profile.partition("g.")
        self.instance_slices, self.memory_mib = int(slices), int(memory.removesuffix("gb")) * 1024 - 512
        self.compute = {0: [100 + number]} if compute is None else compute


class FakeMigDevice:
    """A compute instance, which is what a MIG device handle stands for; all else it has from its instance."""

    def __init__(self, instance: FakeInstance, number: int) -> None:
        self.instance, self.number = instance, number
        self.uuid = f"MIG-{instance.id}-{number}{instance.life}"
        part = "1c." if len(instance.compute) > 1 else ""
        self.header = {
            **instance.header,
            "name": f"{instance.header['name']} MIG {part}{instance.profile}",
            "memory_total_bytes": instance.memory_mib * 1024 * 1024 + 4096,
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self.instance, name)

    @property
    def pids(self) -> list[int]:
        return self.instance.compute[self.number]


class FakeNvml:
    """The library. ``fail`` maps a function, or (function, GPU position), to what it answers instead;
    (function, (GPU position, instance id)) for a MIG device or instance.

    Values of ``fail`` are error codes, or callables that return one (0 goes on as usual).
    A handle is dead once the library has said so. One of a MIG device is used again for whichever
    device has its index when it is asked for anew.
    """

    def __init__(self, gpus: list[FakeGpu], clock: Callable[[], float] = lambda: 0.0) -> None:
        self.gpus = gpus
        self.clock = clock
        self.loaded_s = 0.0
        self.fail: dict[Any, Any] = {}
        self.absent: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.inits = self.shutdowns = 0
        self.stale: list[str] = []
        self.crossed: list[str] = []  # GPM windows over two lives of what has the same id
        self.privileged = True
        self.use_room = 72  # that the driver wants for the use by process, however many there are
        self.asked_since: list[int] = []
        self.wall_ahead_s = 1e9  # of ``clock``
        self.xids: deque[tuple[int, int]] = deque()
        self.samples: dict[int, float] = {}
        self.event_sets: set[int] = set()
        self.watched: set[int] = set()
        self._live: dict[int, FakeGpu | FakeMigDevice] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._instances: dict[int, FakeInstance] = {}
        self._dead: set[int] = set()
        self._sampled: dict[int, FakeGpu] = {}
        self._next = 0x1000
        self._functions: dict[str, Callable[..., int]] = {}

    @property
    def opened(self) -> int:
        return self.inits - self.shutdowns

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.absent or not hasattr(type(self), f"_{name}"):
            raise AttributeError(name)
        if name not in self._functions:

            def function(*arguments: Any) -> int:
                return self._called(name, arguments)

            self._functions[name] = function
        return self._functions[name]

    def _called(self, name: str, arguments: tuple[Any, ...]) -> int:
        self.calls[name] += 1
        gpu = self._gpu(name, arguments[0]) if name in _OF_A_GPU else None
        if self.opened < 1 and name != "nvmlInitWithFlags":
            self.stale.append(name)
            return pynvml.NVML_ERROR_UNINITIALIZED
        where = self._where(gpu)
        keys = [name, (name, where), ("*", where), "*"]
        if name == "nvmlGpmMigSampleGet":
            keys.append((name, (where, arguments[1])))
        for key in keys:
            answer = self.fail.get(key)
            if answer is not None and not (key == "*" and name in _CLEANING):
                code = answer() if callable(answer) else answer
                if code:
                    if gpu is not None and code in {15, 16, 28}:
                        self._dead.add(_address(arguments[0]))
                        self._dead.update(slot for (place, _), slot in self._slots.items() if place == where)
                    return int(code)
        if isinstance(gpu, FakeMigDevice):
            if where is None:
                self._dead.add(_address(arguments[0]))
                return INVALID_ARGUMENT
            if name not in _OF_A_MIG_DEVICE:
                return NOT_SUPPORTED
        method = getattr(self, f"_{name}")
        return (method(gpu, *arguments[1:]) if gpu is not None else method(*arguments)) or 0

    def _where(self, gpu: FakeGpu | FakeMigDevice | None) -> int | tuple[int, int] | None:
        """The place of a GPU, (place, instance id) of a MIG device, None for what is no more."""
        if not isinstance(gpu, FakeMigDevice):
            return self.gpus.index(gpu) if gpu in self.gpus else None
        for place, parent in enumerate(self.gpus):
            if parent.mig and gpu.instance in parent.instances and gpu.number in gpu.instance.compute:
                return place, gpu.instance.id
        return None

    def _gpu(self, name: str, handle: Any) -> FakeGpu | FakeMigDevice | None:
        address = _address(handle)
        if address not in self._live or address in self._dead:
            self.stale.append(name)
        return self._live.get(address)

    def _row(self, gpu: FakeGpu) -> dict[str, Any]:
        return gpu.at(self.clock() - self.loaded_s)

    def _new(self) -> int:
        self._next += 0x10
        return self._next

    def _give(self, gpu: FakeGpu, raw: str, reference: Any, field: str = "value") -> int:
        row = self._row(gpu)
        if raw not in row:
            return NOT_SUPPORTED
        if row[raw] is None:
            return NO_DATA
        setattr(_object(reference), field, int(row[raw]))
        return 0

    # --- the library and its GPUs

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self.inits += 1

    def _nvmlShutdown(self) -> None:
        self.shutdowns += 1
        self._live.clear()
        self._dead.clear()
        self._slots.clear()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        _object(count).value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        where = index.value
        code = self.fail.get(("handle", where)) or self.fail.get(("*", where))
        code = code() if callable(code) else code
        if code:
            return int(code)
        address = self._new()
        self._live[address] = self.gpus[where]
        _put(handle, address)
        return 0

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> None:
        buffer.value = self.gpus[0].driver.encode()

    def _nvmlDeviceGetUUID(self, gpu: FakeGpu, buffer: Any, size: Any) -> None:
        buffer.value = gpu.uuid.encode()

    def _nvmlDeviceGetName(self, gpu: FakeGpu, buffer: Any, size: Any) -> None:
        buffer.value = gpu.header["name"].encode()

    def _nvmlDeviceGetPciInfo_v3(self, gpu: FakeGpu, info: Any) -> None:
        _object(info).busId = gpu.header["pci_bus_id"].encode()

    def _nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu, major: Any, minor: Any) -> None:
        _object(major).value, _object(minor).value = (
            int(part) for part in gpu.header["compute_capability"].split(".")
        )

    def _nvmlDeviceGetMigMode(self, gpu: FakeGpu, current: Any, pending: Any) -> None:
        _object(current).value = _object(pending).value = int(gpu.mig)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: FakeGpu, limit: Any) -> None:
        _object(limit).value = int(gpu.header["default_power_limit_w"] * 1000)

    def _nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> None:
        _object(clock).value = gpu.header["max_sm_clock_mhz" if kind.value == 1 else "max_mem_clock_mhz"]

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu, generation: Any) -> None:
        _object(generation).value = gpu.header["pcie_gen"]

    def _nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu, width: Any) -> None:
        _object(width).value = gpu.header["pcie_width"]

    # --- MIG

    def _nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu, count: Any) -> None:
        _object(count).value = gpu.slices if gpu.mig else 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: Any, handle: Any) -> int:
        devices: list[FakeMigDevice | None] = []
        for instance in gpu.instances if gpu.mig else ():
            devices += (
                [None] if instance is None else [FakeMigDevice(instance, one) for one in instance.compute]
            )
        device = devices[index.value] if index.value < len(devices) else None
        if device is None:
            return NOT_FOUND
        address = self._slots.setdefault((self.gpus.index(gpu), index.value), self._new())
        self._live[address] = device
        self._dead.discard(address)
        _put(handle, address)
        return 0

    def _nvmlDeviceGetGpuInstanceId(self, device: FakeMigDevice, number: Any) -> None:
        _object(number).value = device.instance.id

    def _nvmlDeviceGetAttributes_v2(self, device: FakeMigDevice, attributes: Any) -> None:
        found = _object(attributes)
        found.gpuInstanceSliceCount = device.instance_slices
        found.memorySizeMB = device.memory_mib

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: FakeGpu, number: int, info: Any) -> int:
        if number == 17:
            return INVALID_ARGUMENT  # as driver 580 says, which does not know it yet
        if number not in PROFILES or PROFILES[number][1] > gpu.slices:
            return NOT_SUPPORTED
        found = _object(info)
        found.id, found.sliceCount, gib = PROFILES[number]
        found.instanceCount = gpu.slices // found.sliceCount
        found.memorySizeMB = gib * 1024 - 512
        return 0

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, gpu: FakeGpu, number: int, info: Any) -> int:
        if _object(info).version != 0x02000098:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        _object(info).name = (
            f"MIG {PROFILES[number][1]}g.{PROFILES[number][2]}gb".encode() if (number in PROFILES) else b""
        )
        return self._nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, info)

    def _nvmlDeviceGetGpuInstances(self, gpu: FakeGpu, profile: int, handles: Any, count: Any) -> int:
        if not self.privileged:
            return NO_PERMISSION
        slices = next(slices for number, slices, _ in PROFILES.values() if number == profile)
        instances = gpu.instances if gpu.mig else []
        found = [one for one in instances if one is not None and one.instance_slices == slices]
        _object(count).value = len(found)
        for place, instance in enumerate(found):
            address = self._new()
            self._instances[address] = instance
            handles[place] = ctypes.cast(address, pynvml.c_nvmlGpuInstance_t)
        return 0

    def _nvmlGpuInstanceGetInfo(self, handle: Any, info: Any) -> None:
        _object(info).id = self._instances.pop(_address(handle)).id

    # --- plain queries

    def _nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, rates: Any) -> int:
        if gpu.mig:
            return NOT_SUPPORTED
        return self._give(gpu, "gpu_util_pct", rates, "gpu") or self._give(
            gpu, "mem_util_pct", rates, "memory"
        )

    def _nvmlDeviceGetPowerUsage(self, gpu: FakeGpu, power: Any) -> int:
        return self._give(gpu, "power_mw", power)

    def _nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> int:
        return self._give(gpu, {1: "sm_clock_mhz", 2: "mem_clock_mhz"}[getattr(kind, "value", kind)], clock)

    def _nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int, temperature: Any) -> int:
        return self._give(gpu, "gpu_temp_c", temperature)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu, reasons: Any) -> int:
        return self._give(gpu, "event_reasons", reasons)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetPerformanceState(self, gpu: FakeGpu, state: Any) -> int:
        return self._give(gpu, "pstate", state)

    def _nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu, limit: Any) -> None:
        _object(limit).value = int(gpu.changed.get("power_limit_mw", gpu.header["power_limit_w"] * 1000))

    def _nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu, energy: Any) -> int:
        return self._give(gpu, "energy_mj", energy)

    def _nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, memory: Any) -> int:
        if _object(memory).version != 0x02000028:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        return self._nvmlDeviceGetMemoryInfo(gpu, memory)

    def _nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, memory: Any) -> int:
        if self._is_closed(gpu):
            return NO_PERMISSION
        _object(memory).total = int(gpu.header["memory_total_bytes"])
        return self._give(gpu, "memory_used_bytes", memory, "used")

    def _nvmlDeviceGetFieldValues(self, gpu: FakeGpu, count: int, fields: Any) -> int:
        found = _object(fields)
        row = self._row(gpu)
        for slot in (
            [found] if isinstance(found, ctypes.Structure) else list(found)[: getattr(count, "value", count)]
        ):
            raw, kind = FIELDS[slot.fieldId]
            code = self.fail.get(("field", slot.fieldId), 0)
            if code == "whole":
                return pynvml.NVML_ERROR_INVALID_ARGUMENT
            slot.nvmlReturn = code or (
                NOT_SUPPORTED if raw not in row else NO_DATA if row[raw] is None else 0
            )
            slot.valueType = kind
            if slot.nvmlReturn == 0:
                setattr(slot.value, "uiVal" if kind == 1 else "ullVal", int(row[raw]))
        return 0

    # --- processes

    def _is_closed(self, gpu: FakeGpu) -> bool:
        """Whether this is said of a split GPU as a whole, which only root may know."""
        return not self.privileged and not isinstance(gpu, FakeMigDevice) and gpu.mig

    def _list(self, gpu: FakeGpu, listed: list[tuple[int, int]], count: Any, buffer: Any) -> int:
        if self._is_closed(gpu):
            return NO_PERMISSION
        room = _object(count).value
        _object(count).value = len(listed)
        if len(listed) > room:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for place, (pid, instance) in enumerate(listed):
            buffer[place].pid = pid
            buffer[place].usedGpuMemory = 0xFFFFFFFFFFFFFFFF
            buffer[place].gpuInstanceId = instance
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, buffer: Any) -> int:
        if isinstance(gpu, FakeMigDevice):
            listed = [(pid, gpu.instance.id) for pid in gpu.pids]
        elif gpu.mig:
            instances = [instance for instance in gpu.instances if instance is not None]
            listed = [(pid, one.id) for one in instances for pids in one.compute.values() for pid in pids]
        else:
            pids = [process["pid"] for process in self._row(gpu)["procs"]] if gpu.pids is None else gpu.pids
            listed = [(pid, NO_INSTANCE) for pid in pids]
        return self._list(gpu, listed, count, buffer)

    _nvmlDeviceGetComputeRunningProcesses_v2 = _nvmlDeviceGetComputeRunningProcesses_v3

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, buffer: Any) -> int:
        return self._list(gpu, [(pid, NO_INSTANCE) for pid in gpu.mps_pids], count, buffer)

    def wall(self) -> float:
        return self.clock() + self.wall_ahead_s

    def _nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, buffer: Any, count: Any, since: Any) -> int:
        self.asked_since.append(since.value)
        if gpu.mig:
            return NOT_SUPPORTED
        room, _object(count).value = _object(count).value, self.use_room
        if room < self.use_room:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        now_us = int(self.wall() * 1e6)
        noted = [(pid, now_us - int(ago_s * 1e6), percent) for pid, ago_s, percent in gpu.use]
        noted = [note for note in noted if note[1] > since.value]
        if not noted:
            return NOT_FOUND
        _object(count).value = len(noted)
        for place, (pid, stamp, percent) in enumerate(noted):
            buffer[place].pid, buffer[place].timeStamp, buffer[place].smUtil = pid, stamp, percent
        return 0

    # --- GPM

    def _nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu, support: Any) -> None:
        _object(support).isSupportedDevice = int(gpu.gpm)

    def _nvmlGpmSampleAlloc(self, sample: Any) -> None:
        address = self._new()
        self.samples[address] = float("nan")
        _put(sample, address)

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        del self.samples[_address(sample)]

    def _nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> int:
        if gpu.mig and not gpu.board_gpm:
            return NOT_SUPPORTED
        return self._sample(gpu, sample)

    def _nvmlGpmMigSampleGet(self, gpu: FakeGpu, number: int, sample: Any) -> int:
        instances = gpu.instances if gpu.mig else []
        instance = next((one for one in instances if one is not None and one.id == number), None)
        if not gpu.gpm:
            return NOT_SUPPORTED
        if instance is None:
            # Who is told that an instance is gone knows that its handles are.
            self._dead.update(
                address
                for address, device in self._live.items()
                if isinstance(device, FakeMigDevice) and device.instance.id == number
            )
            return INVALID_ARGUMENT
        return self._sample(instance, sample) if instance.compute else NO_DATA

    def _sample(self, gpu: FakeGpu, sample: Any) -> int:
        self.samples[_address(sample)] = self.clock() - self.loaded_s
        self._sampled[_address(sample)] = gpu
        return 0

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = _object(request)
        first, second = _address(asked.sample1), _address(asked.sample2)
        start, end = self.samples[first], self.samples[second]
        if self._sampled[first] is not self._sampled[second]:
            self.crossed.append(self._sampled[second].uuid)
        if asked.version != 1 or not start < end or self._sampled[first] is not self._sampled[second]:
            return INVALID_ARGUMENT
        gpu = self._sampled[second]
        values = gpu.window(start, end)
        wanted = [asked.metrics[place] for place in range(asked.numMetrics)]
        if any(metric.metricId in gpu.metrics_refused for metric in wanted):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        for metric in wanted:
            raw = METRIC_NAMES.get(metric.metricId)
            value = values.get(raw) if raw else None
            metric.nvmlReturn = NOT_SUPPORTED if raw not in values else NO_DATA if value is None else 0
            if metric.metricId in gpu.metrics_unknown:
                metric.nvmlReturn = pynvml.NVML_ERROR_INVALID_ARGUMENT
            metric.value = float("nan") if value is None else value
        return 0

    # --- events

    def _nvmlEventSetCreate(self, event_set: Any) -> None:
        address = self._new()
        self.event_sets.add(address)
        _put(event_set, address)

    def _nvmlEventSetFree(self, event_set: Any) -> None:
        self.event_sets.remove(_address(event_set))

    def _nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: Any, event_set: Any) -> None:
        assert kinds.value == 8
        self.watched.add(self.gpus.index(gpu))

    def _nvmlEventSetWait_v2(self, event_set: Any, data: Any, timeout_ms: int) -> int:
        assert getattr(timeout_ms, "value", timeout_ms) == 0, "the tick may not wait"
        if not self.xids:
            return pynvml.NVML_ERROR_TIMEOUT
        where, xid = self.xids.popleft()
        event = _object(data)
        address = next(address for address, gpu in self._live.items() if gpu is self.gpus[where])
        ctypes.c_void_p.from_buffer(event, type(event).device.offset).value = address
        event.eventType, event.eventData = 8, xid
        return 0


# Functions whose first argument is a GPU's handle.
_OF_A_GPU = {
    name.removeprefix("_")
    for name in vars(FakeNvml)
    if name.startswith(("_nvmlDevice", "_nvmlGpmMigSample"))
    or name in {"_nvmlGpmSampleGet", "_nvmlGpmQueryDeviceSupport"}
} - {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}

# Of these, those that a MIG device answers, too.
_OF_A_MIG_DEVICE = {
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


def load_into_pynvml(monkeypatch: Any, library: FakeNvml | None) -> None:
    """Lets ``pynvml`` find ``library``; None = no such library on this host."""

    def load(name: str) -> FakeNvml:
        assert name == "libnvidia-ml.so.1"
        if library is None:
            raise OSError(name)
        return library

    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


class Clock:
    """Time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """One host with a fake driver, and a source that reads it once per ``tick``."""

    def __init__(
        self, monkeypatch: Any, *gpus: FakeGpu, period_s: float = 1.0, start: bool = True, **options: Any
    ) -> None:
        self.clock = Clock()
        self.library = FakeNvml(list(gpus) or [FakeGpu()], self.clock)
        self.library.loaded_s = self.clock.now
        load_into_pynvml(monkeypatch, self.library)
        self.period_s = period_s
        self.source = NvmlSource(clock=self.clock, wall=self.library.wall, period_s=period_s, **options)
        if start:
            self.facts = self.source.start()

    def tick(self, ticks: int = 1) -> Any:
        for _ in range(ticks):
            self.clock.now += self.period_s
            reading = self.source.read()
        return reading

    def part(self, name: str, gpu: int = 0) -> Any:
        parts = {part.source: part.values for part in self.tick().gpus[gpu].parts}
        return parts.get(name)


@contextmanager
def hosts(monkeypatch: Any) -> Iterator[Callable[..., Host]]:
    """Makes a ``Host`` at each call; at the end all must have been given back, and no dead handle used."""
    made: list[Host] = []

    def make(*gpus: FakeGpu, **options: Any) -> Host:
        for one in made:
            one.source.close()  # one library is loaded at a time
        made.append(Host(monkeypatch, *gpus, **options))
        return made[-1]

    yield make
    for one in made:
        one.source.close()
        assert one.library.opened == 0, "nvmlInit and nvmlShutdown are not balanced"
        assert not one.library.samples, "GPM samples were not freed"
        assert not one.library.event_sets, "event sets were not freed"
        assert not one.library.stale, f"dead handles were used: {Counter(one.library.stale)}"
        assert not one.library.crossed, f"GPM windows over two lives: {Counter(one.library.crossed)}"
