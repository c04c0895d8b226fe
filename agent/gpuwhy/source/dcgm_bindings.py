"""NVIDIA's own Python bindings of DCGM 3 and 4 (pydcgm): finds and loads them, and speaks through them.

Only ``dcgm_agent`` and what it imports is loaded, and nothing is needed of it that DCGM 3.0 lacks. What an
error code costs stands in ``dcgm_rows``.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuwhy.source.reading import NoGpuError, SourceError

# Where an engine listens, and where DCGM 4 and DCGM 3 put their bindings.
ADDRESSES = ("127.0.0.1:5555", "/tmp/nv-hostengine")  # noqa: S108  NVIDIA's choice
FOLDERS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
_MODULES = ("dcgmvalue", "dcgm_structs", "dcgm_fields", "dcgm_agent")

# From dcgm_fields.h and dcgm_structs.h.
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5  # DCGM_FE_GPU, DCGM_FE_GPU_I, DCGM_FE_GPU_CI
_EMPTY_GROUP, _AUTO = 1, 1  # DCGM_GROUP_EMPTY, DCGM_OPERATION_MODE_AUTO
_DOUBLE, _STRING = ord("d"), ord("s")

# The begin of a dcgmFieldValue_v2, of 4 KiB: fieldId, fieldType, status, ts, value.i64. Through the
# bindings' own structures one of these takes longer than all five do here.
_VALUE = struct.Struct("=12xHhi4xqq")
_VALUE_LAYOUT = {"fieldId": 12, "fieldType": 14, "status": 16, "ts": 24, "value": 32}
_AS_DOUBLE = struct.Struct("=d")

_SKEW = (
    "the bindings, libdcgm.so and the engine are of different DCGM versions: install one, and set "
    "agent.dcgm_bindings and agent.dcgm_library to it"
)
# What to do about a code, where that can be said.
REMEDIES = {
    "CONNECTION_NOT_VALID": "the engine ended or was restarted, or something else listens there",
    "TIMEOUT": "the engine does not answer; see `systemctl status nvidia-dcgm`",
    "NVML_NOT_LOADED": "the engine was started before the NVIDIA driver: `systemctl restart nvidia-dcgm`",
    "NVML_DRIVER_TIMEOUT": "the driver does not answer the engine; see `dmesg | grep -i xid`",
    "NOT_WATCHED": "the engine has dropped what gpuwhy watches",
    "MAX_LIMIT": "all 64 groups of the engine are taken, perhaps left by other clients: restart it",
    "FUNCTION_NOT_FOUND": _SKEW,
    "VER_MISMATCH": _SKEW,
    "REQUIRES_ROOT": "run the engine as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    "NO_PERMISSION": "run the engine as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    "MODULE_NOT_LOADED": "before Hopper, profiling needs DCGM's profiling module, as in "
    "datacenter-gpu-manager-4-proprietary; GeForce cards before Blackwell have none",
    "PROFILING_LIBRARY_ERROR": "another profiler (nsys, ncu) or another engine owns the counters",
    "IN_USE": "another profiler (nsys, ncu) or another engine owns the counters",
    "PAUSED": "profiling is paused, as by `dcgmi profile --pause` or a diagnostic",
    "STALE_DATA": "the engine answers, but its values stand still",
    "DUPLICATE_KEY": "another client has a group of this name",
}


class EngineError(Exception):
    """A call to the engine failed. ``code`` is DCGM's name of the error, as in "NOT_SUPPORTED"."""

    def __init__(self, function: str, code: str) -> None:
        super().__init__(f"{function}: {explained(code)}")
        self.code = code


class Answer(NamedTuple):
    """What the engine has of one field. ``status`` is DCGM's code, "" for none; ``ts`` is in microseconds."""

    field: int
    status: str
    ts: int
    value: float | str | None


def explained(code: str) -> str:
    """An error's name with its remedy."""
    return f"{code} ({REMEDIES[code]})" if code in REMEDIES else code


def find_engine(address: str, timeout_s: float) -> str:
    """Where an engine seems to listen: ``address``, or with "" the first of ``ADDRESSES``.

    Raises:
        NoGpuError: nobody listens at any of ``ADDRESSES``.
        SourceError: nobody listens at ``address``.
    """
    tried = []
    for candidate in (address,) if address else ADDRESSES:
        try:
            probe(candidate, timeout_s)
        except (OSError, ValueError) as error:
            tried.append(f"{candidate}: {getattr(error, 'strerror', None) or error}")
        else:
            return candidate
    where = "; ".join(tried)
    if address:
        raise SourceError(
            f"no DCGM host engine answers at agent.dcgm_address ({where}); start it (`systemctl start nvidia-dcgm`), "
            "or correct the address"
        )
    raise NoGpuError(
        f"no DCGM host engine runs here ({where}); start one (`systemctl enable --now nvidia-dcgm`), or set "
        "agent.dcgm_address"
    )


def probe(address: str, timeout_s: float) -> None:
    """Connects to a TCP address or unix socket, and hangs up.

    Raises:
        OSError: nobody listens there.
    """
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(timeout_s)
        listener.connect(address)


class Bindings:
    """The bindings' modules, and the library behind them.

    They are loaded once per process: an upgrade of DCGM takes a restart. ``version`` is the library's.

    Raises:
        SourceError: not found, not loadable, or modules of these names came from elsewhere; names the
            paths tried and the remedy.
    """

    def __init__(self, folder: str, library: str, reason: str) -> None:
        folders = (folder,) if folder else FOLDERS
        try:
            found = next((path for path in folders if Path(path, "dcgm_agent.py").is_file()), None)
        except OSError as error:
            raise SourceError(
                f"{reason}, but agent.dcgm_bindings cannot be read by this user ({error}); make the folder readable"
            ) from None
        if found is None:
            raise SourceError(
                f"{reason}, but NVIDIA's Python bindings are not in {' or '.join(folders)}; install "
                "datacenter-gpu-manager-4-core, or set agent.dcgm_bindings to their folder"
            )
        self.folder = found
        self.agent, self.structs = _imported(found)
        self._codes = {
            value: name.removeprefix("DCGM_ST_")
            for name, value in vars(self.structs).items()
            if name.startswith("DCGM_ST_")
        }
        try:
            self._check_layout()
            self.structs._dcgmInit(library or None)  # noqa: SLF001  there is no other way to name a folder
            self.agent.dcgmInit()
            build = self.agent.dcgmVersionInfo().rawBuildInfoString
        except self.structs.DCGMError as error:
            raise SourceError(self._load_error(self.code(error), library)) from None
        except (AttributeError, TypeError) as error:
            raise SourceError(f"NVIDIA's Python bindings in {found}: {error}; {_SKEW}") from None
        self.version = dict(part.partition(":")[::2] for part in as_text(build).split(";")).get("version", "")

    def code(self, error: Any) -> str:
        """The name of what a ``DCGMError`` or a status stands for, "" for DCGM_ST_OK."""
        number = getattr(error, "value", error)
        return self._codes.get(number, f"ERROR_{number}") if number else ""

    def _check_layout(self) -> None:
        value = self.structs.c_dcgmFieldValue_v2
        layout = {name: getattr(value, name).offset for name in _VALUE_LAYOUT}
        if layout != _VALUE_LAYOUT:
            raise TypeError(f"dcgmFieldValue_v2 is laid out in an unknown way ({layout})")

    def _load_error(self, code: str, library: str) -> str:
        if code != "LIBRARY_NOT_FOUND":
            return f"libdcgm.so cannot be used with the bindings in {self.folder}: {explained(code)}"
        tried = [library, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
        tried += [f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64"]
        return (
            f"the bindings in {self.folder} find no libdcgm.so of their version that can be loaded "
            f"(tried {', '.join(filter(None, tried))}, as far as this user may read them); install the package that they came with, or set "
            "agent.dcgm_library to its folder"
        )


def _imported(folder: str) -> tuple[Any, Any]:
    """``dcgm_agent`` and ``dcgm_structs`` out of ``folder``; the path for imports stays as it was."""
    path = sys.path[:]
    new = set(_MODULES) - sys.modules.keys()
    sys.path.append(folder)  # last: some of its modules have names such as "logger"
    problem = ""
    try:
        importlib.import_module("dcgm_agent")
    except (Exception, SystemExit) as error:
        problem = f"cannot be imported ({type(error).__name__}: {error}): reinstall their package"
    finally:
        sys.path[:] = path
    missing = [name for name in ("dcgm_agent", "dcgm_structs") if name not in sys.modules]
    if missing and not problem:
        problem = f"lack {' and '.join(missing)}: reinstall their package"
    for name in _MODULES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and Path(file or "/").resolve().parent != Path(folder).resolve():
            problem = (
                f"are hidden by the module {name} from {file}: remove that from this Python environment, and "
                "restart gpuwhy"
            )
    if problem:
        for name in new:
            sys.modules.pop(name, None)
        raise SourceError(f"NVIDIA's Python bindings in {folder} {problem}")
    return sys.modules["dcgm_agent"], sys.modules["dcgm_structs"]


class Engine:
    """A connection to a host engine, or with address "" an engine inside this process.

    Calls raise EngineError; each may hang.
    """

    _starts = itertools.count()

    def __init__(self, bindings: Bindings, address: str, timeout_s: float, period_s: float) -> None:
        self.address = address
        self._lost = False
        self._bindings = bindings
        self._agent = bindings.agent
        self._period_s = period_s
        # Names are the engine's, for all its clients: pids repeat in containers, and times on one host.
        self._name = f"gpuwhy-{os.getpid()}-{time.time_ns()}-{next(self._starts)}"
        self._names = itertools.count()
        self._groups: list[Any] = []
        self._field_groups: dict[tuple[int, ...], Any] = {}
        self._watches: list[tuple[Any, tuple[int, ...]]] = []
        self._stride = ctypes.sizeof(bindings.structs.c_dcgmFieldValue_v2)
        self._handle = self._connect(timeout_s) if address else self._guarded("dcgmStartEmbedded", _AUTO)

    def _connect(self, timeout_s: float) -> Any:
        params = self._bindings.structs.c_dcgmConnectV2Params_v2()
        params.persistAfterDisconnect = 0
        params.timeoutMs = int(timeout_s * 1000)
        params.addressIsUnixSocket = int(self.address.startswith("/"))
        return self._guarded("dcgmConnect_v2", self.address, params)

    def _guarded(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._agent, function)(*arguments)
        except self._bindings.structs.DCGMError as error:
            code = self._bindings.code(error)
        except AttributeError:
            code = "FUNCTION_NOT_FOUND"
        self._lost |= code in {"CONNECTION_NOT_VALID", "TIMEOUT"}
        raise EngineError(function, code)

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of ``dcgm_agent`` that takes a handle first."""
        return self._guarded(function, self._handle, *arguments)

    def entity(self, kind: int, number: int) -> Any:
        """An entity as ``values`` wants it."""
        pair = self._bindings.structs.c_dcgmGroupEntityPair_t()
        pair.entityGroupId, pair.entityId = kind, number
        return pair

    def gpu_status(self, gpu: int) -> int:
        """DcgmEntityStatus_t of a GPU, 0 (unknown) where the bindings are of DCGM 3."""
        try:
            return int(self.call("dcgmGetGpuStatus", gpu))
        except EngineError:
            return 0

    def group(self, entities: Sequence[Any]) -> Any:
        """A new group of entities."""
        group = self.call("dcgmGroupCreate", _EMPTY_GROUP, f"{self._name}-{next(self._names)}")
        self._groups.append(group)
        try:
            for entity in entities:
                self.call("dcgmGroupAddEntity", group, entity.entityGroupId, entity.entityId)
        except EngineError:
            self.drop(group)
            raise
        return group

    def drop(self, group: Any) -> None:
        """Ends a group and its watches, as far as the engine still knows them."""
        standing, self._watches = self._watches, []
        for watch in standing:
            if watch[0] is group:
                self._tidy("dcgmUnwatchFields", group, self._field_groups[watch[1]])
            else:
                self._watches.append(watch)
        self._groups.remove(group)
        self._tidy("dcgmGroupDestroy", group)

    def watch(self, group: Any, fields: tuple[int, ...], every: int = 1) -> None:
        """Has the engine read fields of a group's entities each ``every`` periods; all of them, or none.

        Asked again for what it watches, it starts anew.
        """
        if fields not in self._field_groups:
            name = f"{self._name}-{next(self._names)}"
            self._field_groups[fields] = self.call("dcgmFieldGroupCreate", list(fields), name)
        every_s = every * self._period_s
        every_us, keep_s, any_number = int(every_s * 1e6), max(60.0, 6 * every_s), 0
        self._watches = [watch for watch in self._watches if watch != (group, fields)]
        try:
            arguments = (group, self._field_groups[fields], every_us, keep_s, any_number)
            self.call("dcgmWatchFields", *arguments)
        except EngineError:
            if all(watch[1] != fields for watch in self._watches):
                self._tidy("dcgmFieldGroupDestroy", self._field_groups.pop(fields))
            raise
        self._watches.append((group, fields))

    def values(self, entities: Sequence[Any], fields: Sequence[int]) -> list[Answer]:
        """The newest values in the engine's cache, by entity and then by field, with no word to the driver.

        Costs the library some 4 MiB of memory that is cleared for each call: ask for much at once.
        """
        found = self.call("dcgmEntitiesGetLatestValues", entities, fields, 0)
        code = self._bindings.code
        answers = []
        for place in range(len(entities) * len(fields)):
            offset = place * self._stride
            field, kind, status, ts, value = _VALUE.unpack_from(found, offset)
            if kind == _DOUBLE:
                (value,) = _AS_DOUBLE.unpack_from(found, offset + 32)
            elif kind == _STRING:
                value = as_text(found[place].value.str)
            answers.append(Answer(field, code(status) if status else "", ts, value))
        return answers

    def once(self, entities: Sequence[Any], fields: tuple[int, ...]) -> list[Answer]:
        """Values that hardly change: has the engine read them now, and no more."""
        group = self.group(entities)
        try:
            self.watch(group, fields)
            # Of a MIG instance, it would begin with what its cache has of another one with that number.
            self.call("dcgmUpdateAllFields", 1)
            return self.values(entities, fields)
        finally:
            self.drop(group)

    def close(self) -> None:
        """Takes back what was made, and hangs up. Never raises."""
        for group, fields in reversed(self._watches):
            self._tidy("dcgmUnwatchFields", group, self._field_groups[fields])
        for field_group in reversed(self._field_groups.values()):
            self._tidy("dcgmFieldGroupDestroy", field_group)
        for group in reversed(self._groups):
            self._tidy("dcgmGroupDestroy", group)
        with suppress(Exception):
            self.call("dcgmDisconnect" if self.address else "dcgmStopEmbedded")

    def _tidy(self, function: str, *arguments: Any) -> None:
        """An engine that is gone forgets us with the connection, and to ask it would only wait."""
        if not self._lost:
            with suppress(Exception):
                self.call(function, *arguments)


def as_text(value: Any) -> str:
    """Text of the bindings, whose structures give it decoded or not."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
