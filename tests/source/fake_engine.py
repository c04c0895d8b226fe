"""A DCGM host engine for tests: stands behind the modules in ``fake_dcgm``, which stand for NVIDIA's bindings.

It plays recordings: what NVML said then, it says in DCGM's fields and units, as it polled it, once a
period after a watch. It answers with error codes on demand and keeps the books that an engine keeps for
its clients: connections, groups, field groups, watches.
"""

# ruff: noqa: N802, N815  methods are named as the C functions that they stand for
from __future__ import annotations

import ctypes
import sys
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwhy.source import dcgm_bindings
from gpuwhy.source.dcgm_fields import FIELDS

from .fake_nvml import FakeGpu

FOLDER = str(Path(__file__).parent / "fake_dcgm")
MODULES = ("dcgmvalue", "dcgm_structs", "dcgm_fields", "dcgm_agent")
TCP, SOCKET = "127.0.0.1:5555", "/tmp/nv-hostengine"

GPU, GPU_I, GPU_CI = 1, 4, 5
MIB = 1 << 20
BLANKS = {"i": 0x7FFFFFFFFFFFFFF0, "d": 140737488355328.0}
STRINGS = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")
BLANK, NOT_FOUND, NOT_SUPPORTED, NOT_PERMITTED = range(4)

# dcgmReturn_t, in dcgm_structs.h
ST = {
    "OK": 0,
    "BADPARAM": -1,
    "GENERIC_ERROR": -3,
    "NOT_SUPPORTED": -6,
    "INIT_ERROR": -7,
    "NVML_ERROR": -8,
    "UNINITIALIZED": -10,
    "TIMEOUT": -11,
    "VER_MISMATCH": -12,
    "UNKNOWN_FIELD": -13,
    "NO_DATA": -14,
    "STALE_DATA": -15,
    "NOT_WATCHED": -16,
    "NO_PERMISSION": -17,
    "GPU_IS_LOST": -18,
    "RESET_REQUIRED": -19,
    "FUNCTION_NOT_FOUND": -20,
    "CONNECTION_NOT_VALID": -21,
    "GPU_NOT_SUPPORTED": -22,
    "GROUP_INCOMPATIBLE": -23,
    "MAX_LIMIT": -24,
    "LIBRARY_NOT_FOUND": -25,
    "DUPLICATE_KEY": -26,
    "REQUIRES_ROOT": -29,
    "FIELD_UNSUPPORTED_BY_API": -32,
    "MODULE_NOT_LOADED": -33,
    "IN_USE": -34,
    "PROFILING_NOT_SUPPORTED": -36,
    "PROFILING_LIBRARY_ERROR": -37,
    "PROFILING_MULTI_PASS": -38,
    "INSTANCE_NOT_FOUND": -45,
    "COMPUTE_INSTANCE_NOT_FOUND": -46,
    "PAUSED": -54,
    "NVML_NOT_LOADED": -56,
    "NVML_DRIVER_TIMEOUT": -57,
    "GPUS_DETACHED": -67,
}

# DcgmEntityStatus_t
OK, UNSUPPORTED, LOST, HALTED, DETACHED = 1, 2, 4, 6, 7


# Raw names of recordings (NVML's units) in DCGM's: by field id, the name and the factor.
FROM_GPM: dict[int, tuple[str, float]] = {
    1001: ("graphics_util", 0.01),
    1002: ("sm_util", 0.01),
    1003: ("sm_occupancy", 0.01),
    1004: ("any_tensor_util", 0.01),
    1005: ("dram_bw_util", 0.01),
    1006: ("fp64_util", 0.01),
    1007: ("fp32_util", 0.01),
    1008: ("fp16_util", 0.01),
    1016: ("integer_util", 0.01),
    1009: ("pcie_tx_mib_s", MIB),
    1010: ("pcie_rx_mib_s", MIB),
    1011: ("nvlink_tx_mib_s", MIB),
    1012: ("nvlink_rx_mib_s", MIB),
}
FROM_ROW: dict[int, tuple[str, float]] = {
    100: ("sm_clock_mhz", 1),
    101: ("mem_clock_mhz", 1),
    112: ("event_reasons", 1),
    140: ("mem_temp_c", 1),
    150: ("gpu_temp_c", 1),
    155: ("power_avg_mw", 1e-3),
    156: ("energy_mj", 1),
    157: ("power_instant_mw", 1e-3),
    164: ("power_limit_mw", 1e-3),
    203: ("gpu_util_pct", 1),
    204: ("mem_util_pct", 1),
    240: ("sw_power_cap_ns", 1),
    242: ("sync_boost_ns", 1),
    252: ("memory_used_bytes", 1 / MIB),
    1422: ("sw_thermal_ns", 1),
    1423: ("hw_thermal_ns", 1),
    1424: ("hw_power_brake_ns", 1),
}
TYPES = {row.id: "i" if row.integer else "d" for row in FIELDS} | {50: "s"}
PROFILING = frozenset(row.id for row in FIELDS if row.group != "device")


@dataclass
class FakeInstance:
    """A MIG instance: ``gpu``'s recording is what runs in it. ``id`` is NVML's."""

    id: int
    slices: int
    gpu: FakeGpu
    profile: str = ""
    memory_mib: int = 10240
    computes: int = 1


@dataclass
class _Polled:
    """A field of an entity that is, or was, watched: when it was polled first and last, what was found, for whom."""

    first_s: float
    last_s: float
    value: Any = None
    waits_s: float = -1.0  # until after that
    clients: set[int] = field(default_factory=set)


Entity = tuple[int, int]


class FakeEngine:
    """The engine, and the library that speaks to it.

    ``fail`` maps a function to what it answers instead: a code, or a callable that takes its arguments
    and returns one (0 goes on as usual; it may also hang). ``refuse`` maps a field id, or (GPU, field
    id), to what a watch of it answers; ``blank`` and ``status`` likewise to the class of blank and to the
    status of its values. GPUs are meant by their position.
    """

    def __init__(
        self,
        gpus: list[FakeGpu],
        clock: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] | None = None,
        *,
        version: int = 4,
        library: str = "/usr/lib64",
    ) -> None:
        self.gpus = gpus
        self.clock = clock
        self.wall = wall or (lambda: clock() + 1e9)
        self.version = version
        self.library = library  # the folder of libdcgm.so
        self.loaded_s = clock()
        self.listens = {TCP}
        # Before DCGM 4.2 there were none of these.
        self.unknown = {1422, 1423, 1424} if version == 3 else set()
        self.module = True  # DCGM's profiling module, for GPUs without GPM
        self.instances: dict[int, list[FakeInstance]] = {}
        self.split: set[int] = set()  # in MIG mode
        self.slices = 7
        self.unsupported: set[int] = set()
        self.lost: set[int] = set()
        self.paused = False  # profiling
        self.halted = False  # everything, as for a diagnostic
        self.frozen: set[int] = set()  # GPUs, and fields, that are not polled
        self.untimed: set[int] = set()  # fields without a time
        self.hidden: set[int] = set()
        self.fail: dict[str, Any] = {}
        self.refuse: dict[Any, int] = {}
        self.blank: dict[Any, int] = {}
        self.status: dict[Any, int] = {}
        self.calls: Counter[str] = Counter()
        self.asked: list[tuple[list[Entity], list[int]]] = []
        self.names: list[str] = []
        self.faults: list[str] = []  # what a client must not do
        self.left: list[str] = []  # what clients had not taken back when they hung up
        self._excused: set[int] = set()
        self._next = 100
        self._forget()

    def _forget(self) -> None:
        self.connections: set[int] = set()
        self.groups: dict[int, tuple[int, str, list[Entity]]] = {}
        self.field_groups: dict[int, tuple[int, str, tuple[int, ...]]] = {}
        self.watches: set[tuple[int, int]] = set()  # (group, field group)
        self.intervals: dict[tuple[int, int], tuple[int, float, int]] = {}
        self._polled: dict[tuple[Entity, int], _Polled] = {}
        self._module: set[tuple[int, Entity, int]] = set()  # what its profiling module collects, for whom

    # --- what may happen to it

    def restart(self) -> None:
        """A new engine in the old one's place: it knows no client."""
        self._forget()

    def stop(self) -> None:
        self._forget()
        self.listens.clear()

    @property
    def is_clean(self) -> bool:
        """Whether no client has anything here."""
        return not (self.connections or self.groups or self.field_groups or self.watches)

    def watched(self, entity: Entity) -> set[int]:
        """The fields of an entity that somebody watches."""
        return {number for (who, number), polled in self._polled.items() if who == entity and polled.clients}

    def forget_watches(self) -> None:
        """Drops all watches and their values, and says nothing."""
        self._polled.clear()

    # --- the library

    def called(self, function: str, arguments: tuple[Any, ...]) -> int:
        self.calls[function] += 1
        answer = self.fail.get(function)
        code = answer(arguments) if callable(answer) else answer
        if code:
            if code in {ST["CONNECTION_NOT_VALID"], ST["TIMEOUT"]}:
                self._excused |= (
                    self.connections
                )  # no client takes back what it has in an engine that is gone
            return int(code)
        if function in {"dcgmInit", "dcgmVersionInfo", "dcgmConnect_v2", "dcgmStartEmbedded"}:
            return getattr(self, f"_{function}")(*arguments) or 0
        handle = arguments[0].value
        if handle not in self.connections:
            return ST["CONNECTION_NOT_VALID"]
        return getattr(self, f"_{function}")(handle, *arguments[1:]) or 0

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _dcgmInit(self) -> None:
        pass

    def _dcgmVersionInfo(self, info: Any) -> None:
        info.rawBuildInfoString = f"version:{self.version}.9.1;arch:x86_64;buildid:1".encode()

    def _dcgmConnect_v2(self, address: str, params: Any, handle: Any) -> int:
        if params.version != ctypes.sizeof(params) | (2 << 24):
            return ST["VER_MISMATCH"]
        if address not in self.listens or bool(params.addressIsUnixSocket) != address.startswith("/"):
            return ST["CONNECTION_NOT_VALID"]
        if params.persistAfterDisconnect or not params.timeoutMs:
            self.faults.append("connected to stay, or without a timeout")
        return self._dcgmStartEmbedded(1, handle)

    def _dcgmStartEmbedded(self, mode: int, handle: Any) -> int:
        handle.value = self._new()
        self.connections.add(handle.value)
        return 0

    def _dcgmDisconnect(self, handle: int) -> None:
        mine = [
            name for owner, name, _ in (*self.groups.values(), *self.field_groups.values()) if owner == handle
        ]
        self.left += [] if handle in self._excused else mine
        self.connections.discard(handle)
        for table in (self.groups, self.field_groups):
            for number in [number for number, (owner, *_) in table.items() if owner == handle]:
                del table[number]
        self.watches = {watch for watch in self.watches if watch[0] in self.groups}
        for polled in self._polled.values():
            polled.clients.discard(handle)

    _dcgmStopEmbedded = _dcgmDisconnect

    # --- GPUs

    def _dcgmGetAllDevices(self, handle: int, gpus: list[int]) -> None:
        gpus += [gpu for gpu in range(len(self.gpus)) if gpu not in self.hidden]

    def _dcgmGetAllSupportedDevices(self, handle: int, gpus: list[int]) -> None:
        if not self.halted:
            poor = self.hidden | self.unsupported | self.lost
            gpus += [gpu for gpu in range(len(self.gpus)) if gpu not in poor]

    def _dcgmGetGpuStatus(self, handle: int, gpu: int, status: Any) -> None:
        status.value = (
            LOST
            if gpu in self.lost
            else UNSUPPORTED
            if gpu in self.unsupported
            else HALTED
            if self.halted
            else OK
        )

    def _dcgmGetDeviceAttributes(self, handle: int, gpu: int, attributes: Any) -> None:
        header = self.gpus[gpu].header
        who, limits = attributes.identifiers, attributes.powerLimits
        who.uuid = (STRINGS[0] if gpu in self.lost else self.gpus[gpu].uuid).encode()
        who.deviceName = header["name"].encode()
        who.pciBusId = header["pci_bus_id"].encode()
        who.driverVersion = self.gpus[gpu].driver.encode()
        limits.enforcedPowerLimit = int(header["power_limit_w"])
        limits.defaultPowerLimit = int(header["default_power_limit_w"])
        attributes.settings.migModeEnabled = int(gpu in self.split)

    def entities(self) -> dict[int, tuple[int, FakeInstance]]:
        """The MIG instances by the engine's numbers, which the next ones take over."""
        return {
            gpu * self.slices + place: (gpu, instance)
            for gpu, instances in self.instances.items()
            for place, instance in enumerate(instances)
        }

    def _dcgmGetEntityGroupEntities(self, handle: int, kind: int, flags: int, found: list[int]) -> None:
        found += list(self.entities()) if kind == GPU_I else []

    def _dcgmGetGpuInstanceHierarchy(self, handle: int, hierarchy: Any) -> None:
        order = sorted(range(len(self.gpus)), key=lambda gpu: self.gpus[gpu].header["pci_bus_id"])
        for number, (gpu, instance) in self.entities().items():
            for compute in (None, *range(instance.computes)):
                entry = hierarchy.entityList[hierarchy.count]
                hierarchy.count += 1
                board = compute is None
                entry.entity.entityGroupId = GPU_I if board else GPU_CI
                entry.entity.entityId = number if board else 10 * number + compute
                entry.parent.entityGroupId = GPU if board else GPU_I
                entry.parent.entityId = gpu if board else number
                entry.info.nvmlGpuIndex = order.index(gpu)
                entry.info.nvmlInstanceId = instance.id
                entry.info.nvmlComputeInstanceId = 0xFFFFFFFF if board else compute
                entry.info.nvmlMigProfileId = instance.slices
                entry.info.nvmlProfileSlices = instance.slices if board else 1

    # --- groups and watches

    def _named(self, name: str) -> int:
        self.names.append(name)
        taken = [other for _, other, _ in (*self.groups.values(), *self.field_groups.values())]
        return ST["DUPLICATE_KEY"] if name in taken else 0

    def _dcgmGroupCreate(self, handle: int, kind: int, name: str, group: Any) -> int:
        if len(self.groups) >= 64:
            return ST["MAX_LIMIT"]
        if kind != 1:
            self.faults.append("a group that is not empty at first")
        code = self._named(name)
        if not code:
            group.value = self._new()
            self.groups[group.value] = (handle, name, [])
        return code

    def _dcgmGroupAddEntity(self, handle: int, group: Any, kind: int, number: int) -> int:
        known = number < len(self.gpus) if kind == GPU else number in self.entities()
        if not known:
            return ST["BADPARAM"]
        self.groups[group.value][2].append((kind, number))
        return 0

    def _dcgmGroupDestroy(self, handle: int, group: Any) -> None:
        if any(watch[0] == group.value for watch in self.watches):
            self.faults.append("a group ended before its watches")
        del self.groups[group.value]

    def _dcgmFieldGroupCreate(self, handle: int, fields: list[int], name: str, field_group: Any) -> int:
        if len(self.field_groups) >= 64:
            return ST["MAX_LIMIT"]
        code = ST["BADPARAM"] if self.unknown & set(fields) else self._named(name)
        if not code:
            field_group.value = self._new()
            self.field_groups[field_group.value] = (handle, name, tuple(fields))
        return code

    def _dcgmFieldGroupDestroy(self, handle: int, field_group: Any) -> None:
        if any(watch[1] == field_group.value for watch in self.watches):
            self.faults.append("a field group ended before its watches")
        del self.field_groups[field_group.value]

    def _dcgmWatchFields(self, handle: int, group: Any, field_group: Any, *how: Any) -> int:
        entities, fields = self.groups[group.value][2], self.field_groups[field_group.value][2]
        self.watches.add((group.value, field_group.value))
        self.intervals[group.value, field_group.value] = how
        code = next(
            filter(None, (self._watch(handle, entity, number) for entity in entities for number in fields)), 0
        )
        if code:
            self._dcgmUnwatchFields(handle, group, field_group)
        return code

    def _watch(self, handle: int, entity: Entity, number: int) -> int:
        gpu, now = self._gpu(entity), self._now()
        code = self.refuse.get(number, 0) or self.refuse.get((gpu, number), 0)
        if gpu in self.lost:
            code = ST["GPU_IS_LOST"]
        if not code and number in PROFILING and not self.gpus[gpu].gpm:
            code = 0 if self.module else ST["MODULE_NOT_LOADED"]
            self._module.add((handle, entity, number))
        if code:
            return code
        polled = self._polled.setdefault((entity, number), _Polled(now, -1))
        if not polled.clients:
            polled.first_s = now
            if entity[0] == GPU or polled.last_s < 0:  # else it is polled with the next ones that are due
                polled.last_s = now
                polled.value = self._value(entity, number, polled)
            else:
                polled.waits_s = now
        polled.clients.add(handle)
        return 0

    def _dcgmUnwatchFields(self, handle: int, group: Any, field_group: Any) -> None:
        watch = (group.value, field_group.value)
        if watch not in self.watches:
            self.faults.append("a watch ended that was none")
        self.watches.discard(watch)
        fields = self.field_groups[field_group.value][2]
        for entity in self.groups[group.value][2]:
            for number in fields:
                if (entity, number) in self._polled:
                    self._poll(entity, number)
                    self._polled[entity, number].clients.discard(handle)
        if PROFILING & set(fields):
            # The engine's profiling module is told whose watches shall end, and not which.
            for mine in [mine for mine in self._module if mine[0] == handle]:
                self._poll(mine[1], mine[2])
                self._module.discard(mine)

    def _dcgmUpdateAllFields(self, handle: int, wait: int) -> None:
        for (entity, number), polled in self._polled.items():
            polled.waits_s = -1.0
            self._poll(entity, number)

    # --- values

    def _gpu(self, entity: Entity) -> int:
        return entity[1] if entity[0] == GPU else entity[1] // self.slices

    def _now(self) -> float:
        return self.clock() - self.loaded_s

    def _poll(self, entity: Entity, number: int) -> _Polled | None:
        polled = self._polled.get((entity, number))
        if polled is None or not polled.clients:
            return polled
        gpu = self._gpu(entity)
        collected = any((who, entity, number) in self._module for who in polled.clients)
        if self.halted or gpu in self.frozen or number in self.frozen:
            return polled
        if number in PROFILING and not self.gpus[gpu].gpm and not collected:
            return polled
        periods = int(self._now() - polled.last_s + 1e-6)
        if periods and self._now() > polled.waits_s and (entity[0] == GPU or entity[1] in self.entities()):
            polled.last_s += periods
            polled.value = self._value(entity, number, polled)
        return polled

    def _dcgmEntitiesGetLatestValues(
        self, handle: int, entities: list[Any], fields: list[int], flags: int, found: Any
    ) -> None:
        if flags:
            self.faults.append("values asked of the driver itself")
        pairs = [(pair.entityGroupId, pair.entityId) for pair in entities]
        self.asked.append((pairs, list(fields)))
        for place, (entity, number) in enumerate((pair, number) for pair in pairs for number in fields):
            slot = found[place]
            slot.entityGroupId, slot.entityId = entity
            slot.fieldId = number
            self._fill(slot, entity, number)

    def _fill(self, slot: Any, entity: Entity, number: int) -> None:
        gpu, kind = self._gpu(entity), TYPES.get(number, "i")
        polled = self._poll(entity, number)
        status = self.status.get(number, 0) or self.status.get((gpu, number), 0)
        if polled is None:
            status = status or ST["NOT_WATCHED"]
        blank = self.blank.get(number, self.blank.get((gpu, number)))
        value: Any = None
        if status:
            slot.status = status
            blank = BLANK
        else:
            assert polled is not None
            slot.ts = 0 if number in self.untimed else int((polled.last_s + self.wall() - self._now()) * 1e6)
            if gpu in self.lost or (self.paused and number in PROFILING):
                blank = BLANK
            elif blank is None:
                value = polled.value
                blank = BLANK if value is None else NOT_SUPPORTED if value is NotImplemented else None
        slot.fieldType = ord(kind)
        if kind == "s":
            slot.value.str = (STRINGS[blank] if blank is not None else value).encode()
        elif kind == "d":
            slot.value.dbl = float(value) if blank is None else BLANKS["d"] + blank
        else:
            slot.value.i64 = int(value) if blank is None else BLANKS["i"] + blank

    def _value(self, entity: Entity, number: int, polled: _Polled) -> Any:
        """What was polled: None = nothing yet, NotImplemented = this cannot be had."""
        gpu = self.gpus[self._gpu(entity)]
        instance = None if entity[0] == GPU else self.entities()[entity[1]][1]
        runs = gpu if instance is None else instance.gpu
        if number in FROM_GPM:
            if polled.last_s - polled.first_s < 1 - 1e-6 or (instance is not None and not instance.computes):
                return None
            raw, scale = FROM_GPM[number]
            found: Any = runs.window(polled.last_s - 1, polled.last_s)
        elif number in FROM_ROW:
            raw, scale = FROM_ROW[number]
            found = runs.at(polled.last_s)
            found.setdefault("power_limit_mw", gpu.header["power_limit_w"] * 1000)
            if found.get("power_avg_mw") is None:
                found["power_avg_mw"] = found.get("power_mw")
        else:
            return self._fact(gpu, instance, number)
        if raw not in found or (number in {203, 204} and self._gpu(entity) in self.split):
            return NotImplemented
        return None if found[raw] is None else found[raw] * scale

    def _fact(self, gpu: FakeGpu, instance: FakeInstance | None, number: int) -> Any:
        major, minor = gpu.header["compute_capability"].split(".")
        total = gpu.header["memory_total_bytes"] / MIB if instance is None else instance.memory_mib
        named = gpu.header["name"] if instance is None else instance.profile if instance.computes else ""
        return {
            50: named or STRINGS[0],
            63: int(major) << 16 | int(minor),
            69: self.slices,
            113: gpu.header["max_sm_clock_mhz"],
            114: gpu.header["max_mem_clock_mhz"],
            235: gpu.header["pcie_gen"],
            236: gpu.header["pcie_width"],
            250: total,
        }[number]


def install(monkeypatch: Any, engine: FakeEngine | None) -> None:
    """Lets the source find ``engine`` through ``fake_dcgm``; None = neither engine nor library is here."""
    forget_bindings(monkeypatch)
    monkeypatch.setattr(dcgm_bindings, "FOLDERS", (FOLDER,))
    library = types.ModuleType("libdcgm")
    library.engine, library.codes = engine, ST  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "libdcgm", library)

    def probe(address: str, timeout_s: float) -> None:
        if engine is None or address not in engine.listens:
            raise ConnectionRefusedError(111, "Connection refused")
        engine.calls["probe"] += 1

    monkeypatch.setattr(dcgm_bindings, "probe", probe)


def forget_bindings(monkeypatch: Any) -> None:
    """Forgets modules of these names, now and after the test."""
    for name in (*MODULES, "libdcgm"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        del sys.modules[name]
