"""NVML calls made ready for one GPU: buffers and arguments are made once, a tick only calls.

They go to the C functions of the library that ``pynvml`` has loaded, because its wrappers make their
buffers anew at each call and ask the driver for each process list twice. What an error code asks for
stands in ``ACTS``; what is asked, and how often, in ``nvml``.
"""

from __future__ import annotations

import ctypes
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

import pynvml

from gpuwhy.source.reading import DriverMismatchError, GpuFacts

log = logging.getLogger(__name__)

MIN_WINDOW_S = 0.1  # a shorter GPM window has no DRAM figure on H200 (NaN at 10 ms)
MAX_PIDS = 65536  # a process list said to be longer is a lie
AHEAD_S = 1.0  # of our wall clock: a later timestamp is of no use
MAX_XIDS = 64  # per reading: a GPU that falls off the bus may repeat itself

Problems = Sequence[tuple[tuple[str, ...], int]]
"""(raw names, error code) of what was asked and not answered; those of one call stand together."""


class Act(Enum):
    """What to do about an error code."""

    MISSING = auto()  # no value this time
    NEVER = auto()  # this GPU or driver does not have it: not asked again
    DENIED = auto()  # not allowed to us: likewise, and somebody should know
    LOST = auto()  # the GPU is gone: its handle is dead
    GONE = auto()  # the driver is gone: every handle is dead
    MISMATCH = auto()  # cannot heal in this process, the library stays mapped


# Codes that are not here cost the value, are counted and logged.
ACTS: Mapping[int, Act] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Act.NEVER,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Act.NEVER,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Act.NEVER,
    pynvml.NVML_ERROR_DEPRECATED: Act.NEVER,
    pynvml.NVML_ERROR_NO_PERMISSION: Act.DENIED,
    pynvml.NVML_ERROR_NOT_FOUND: Act.MISSING,
    pynvml.NVML_ERROR_NO_DATA: Act.MISSING,
    pynvml.NVML_ERROR_NOT_READY: Act.MISSING,
    pynvml.NVML_ERROR_GPU_IS_LOST: Act.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Act.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Act.LOST,
    pynvml.NVML_ERROR_UNINITIALIZED: Act.GONE,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Act.GONE,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Act.GONE,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Act.MISMATCH,
}

_ERROR_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def error_name(code: int) -> str:
    """NVML's name of an error code, as in "NOT_SUPPORTED"."""
    return _ERROR_NAMES.get(code, f"ERROR_{code}")


class GpuLostError(Exception):
    """A GPU's handle may not be used any more."""


class DriverGoneError(Exception):
    """No handle may be used any more."""


def mismatch() -> DriverMismatchError:
    """The error for a kernel module and a library that do not belong together."""
    return DriverMismatchError(
        "the NVIDIA kernel module and libnvidia-ml.so.1 have different driver versions (LIB_RM_VERSION_MISMATCH), "
        "as after an upgrade without a reboot; reload the nvidia modules or reboot, then restart gpuwhy; "
        "in a container, restart the container"
    )


class Troubles:
    """What went wrong, for the log; outlives the handles.

    ``errors`` counts odd answers by (uuid, function, what), those of MIG instances with their GPU's.
    """

    def __init__(self) -> None:
        self.errors: Counter[tuple[str, str, str]] = Counter()
        self._told: set[tuple[str, str]] = set()

    def is_final(
        self, gpu: GpuFacts, function: str, names: tuple[str, ...], code: int, *, first: bool
    ) -> bool:
        """Whether ``names`` shall not be asked again; ``first`` = they have never been answered.

        Raises:
            GpuLostError, DriverGoneError, DriverMismatchError: see ``ACTS``.
        """
        act = ACTS.get(code)
        if act is None and first and code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            act = Act.NEVER  # an id that this driver does not know
        reason = f"{function}: {error_name(code)}"
        if act is Act.MISMATCH:
            raise mismatch()
        if act is Act.GONE:
            raise DriverGoneError(reason)
        if act is Act.LOST:
            raise GpuLostError(reason)
        if act is Act.NEVER or act is Act.DENIED:
            self._tell_once(gpu, names, reason, denied=act is Act.DENIED)
            return True
        if act is None:
            self.count(gpu, function, error_name(code))
        return False

    def count(self, gpu: GpuFacts, function: str, what: str) -> None:
        """Counts something odd, and logs it the 1st, 10th, 100th ... time."""
        self.errors[gpu.uuid, function, what] += 1
        times = self.errors[gpu.uuid, function, what]
        if times == 10 ** (len(str(times)) - 1):
            log.warning("GPU %d (%s): %s: %s (seen %d times)", gpu.index, gpu.uuid, function, what, times)

    def _tell_once(self, gpu: GpuFacts, names: tuple[str, ...], reason: str, *, denied: bool) -> None:
        if all((gpu.uuid, name) in self._told for name in names):
            return
        self._told.update((gpu.uuid, name) for name in names)
        what = ", ".join(names)
        if denied:
            remedy = "the driver refuses it to this user; run gpuwhy as root to have it"
            log.warning("GPU %d (%s): missing: %s (%s): %s", gpu.index, gpu.uuid, what, reason, remedy)
        else:
            log.debug("GPU %d (%s): not available: %s (%s)", gpu.index, gpu.uuid, what, reason)


def text(value: Any) -> str:
    """A string of NVML's, which may be bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _function(name: str) -> Callable[..., int] | None:
    """A C function of the loaded library, None where this driver does not have it."""
    found: Callable[..., int] | None = getattr(pynvml.nvmlLib, name, None)
    return found


def address(handle: Any) -> int | None:
    """What tells one NVML handle from another."""
    return ctypes.cast(handle, ctypes.c_void_p).value


@dataclass(frozen=True, slots=True)
class Query:
    """``function(device, *arguments, result)``, asked every ``every`` ticks.

    ``raw`` pairs raw names with the field of the result that holds them. A gauge is carried until
    it is asked again; a ``counter`` is reported only when it was read. ``older`` asks the same of
    drivers that do not have ``function``. ``mig`` says whose it is on a GPU in MIG mode: nobody's,
    the whole board's, or each instance's.
    """

    function: str
    raw: tuple[tuple[str, str], ...]
    result: Callable[[], Any] = ctypes.c_uint
    arguments: tuple[int, ...] = ()
    every: int = 1
    counter: bool = False
    mig: Literal["", "board", "instance"] = "board"
    older: Query | None = None


@dataclass(frozen=True, slots=True)
class FieldQuery:
    """One call of nvmlDeviceGetFieldValues, like ``Query``; ``fields`` pairs raw names with field ids."""

    fields: tuple[tuple[str, int], ...]
    every: int = 1
    counter: bool = False
    mig: Literal["", "board", "instance"] = "board"


class Call:
    """A ``Query`` made ready."""

    def __init__(self, query: Query, handle: Any) -> None:
        self.every, self.counter = query.every, query.counter
        self._handle = handle
        self._prepare(query)

    def _prepare(self, query: Query) -> None:
        self.what = query.function
        self.names = tuple(name for name, _ in query.raw)
        self.answered = False
        self._query = query
        self._call = _function(query.function)
        self._result = query.result()
        self._arguments = (self._handle, *query.arguments, ctypes.byref(self._result))

    def ask(self, values: dict[str, Any]) -> Problems:
        """Adds what is answered to ``values``."""
        code = self._call(*self._arguments) if self._call else pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        if code != pynvml.NVML_SUCCESS:
            return [(self.names, code)]
        self.answered = True
        for name, field in self._query.raw:
            values[name] = getattr(self._result, field)
        return ()

    def drop(self, names: tuple[str, ...]) -> bool:
        """Does not ask for ``names`` any more; False when an older function takes over."""
        if self._query.older is not None:
            self._prepare(self._query.older)
            return False
        self.names = tuple(name for name in self.names if name not in names)
        return True


_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class FieldCall:
    """A ``FieldQuery`` made ready."""

    what = "nvmlDeviceGetFieldValues"

    def __init__(self, query: FieldQuery, handle: Any) -> None:
        self.every, self.counter = query.every, query.counter
        self.answered = False
        self._handle = handle
        self._call = _function(self.what)
        self._prepare(query.fields)

    def _prepare(self, fields: tuple[tuple[str, int], ...]) -> None:
        self.names = tuple(name for name, _ in fields)
        self._fields = fields
        self._slots = (pynvml.c_nvmlFieldValue_t * len(fields))()
        self._reference = ctypes.byref(self._slots)
        self._views = list(zip(self.names, self._slots, strict=True))
        for slot, (_, field_id) in zip(self._slots, fields, strict=True):
            slot.fieldId = field_id

    def ask(self, values: dict[str, Any]) -> Problems:
        """Adds what is answered to ``values``."""
        if self._call is None:
            return [(self.names, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)]
        code = self._call(self._handle, len(self._views), self._reference)
        if code == pynvml.NVML_ERROR_INVALID_ARGUMENT and not self.answered:
            # One id that the driver does not know must cost only itself.
            for _, slot in self._views:
                slot.nvmlReturn = self._call(self._handle, 1, ctypes.byref(slot)) or slot.nvmlReturn
        elif code != pynvml.NVML_SUCCESS:
            return [(self.names, code)]
        problems: list[tuple[tuple[str, ...], int]] = []
        for name, slot in self._views:
            if slot.nvmlReturn != pynvml.NVML_SUCCESS:
                problems.append(((name,), slot.nvmlReturn))
            elif slot.valueType >= len(_VALUE_FIELDS):
                problems.append(((name,), pynvml.NVML_ERROR_NO_DATA))
            else:
                self.answered = True
                values[name] = getattr(slot.value, _VALUE_FIELDS[slot.valueType])
        return problems

    def drop(self, names: tuple[str, ...]) -> bool:
        """Does not ask for ``names`` any more."""
        self._prepare(tuple(field for field in self._fields if field[0] not in names))
        return True


class GpmCall:
    """Two samples of one GPU, or of one of its MIG instances, taken in turn, and the metrics between them.

    ``metrics`` pairs raw names with metric ids. A window longer than ``longest_s`` gives nothing.
    """

    def __init__(
        self,
        metrics: tuple[tuple[str, int], ...],
        handle: Any,
        instance: int | None = None,
        *,
        clock: Callable[[], float],
        longest_s: float,
    ) -> None:
        self.what = self._sampling = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        self.answered = False
        self._sampled = (handle,) if instance is None else (handle, instance)
        self._clock = clock
        self._longest_s = longest_s
        self._taken_s: float | None = None
        self._alone = False
        self._sample_get = _function(self._sampling)
        self._metrics_get = _function("nvmlGpmMetricsGet")
        self._request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION)
        self._reference = ctypes.byref(self._request)
        self._prepare(metrics)
        self._samples = [pynvml.nvmlGpmSampleAlloc()]
        try:
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError:
            self.free()
            raise
        self._last, self._spare = self._samples

    def _prepare(self, metrics: tuple[tuple[str, int], ...]) -> None:
        self.names = tuple(name for name, _ in metrics)
        self._metrics = metrics
        self._request.numMetrics = len(metrics)
        self._views = [(name, self._request.metrics[place]) for place, name in enumerate(self.names)]
        for (_, slot), (_, metric_id) in zip(self._views, metrics, strict=True):
            slot.metricId = metric_id

    def ask(self, values: dict[str, Any]) -> Problems:
        """Takes a sample, and adds what lies between the one before and it to ``values``."""
        if self._sample_get is None or self._metrics_get is None:
            return [(self.names, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)]
        now, before = self._clock(), self._taken_s
        if before is not None and now - before < MIN_WINDOW_S:
            return ()
        self.what = self._sampling
        code = self._sample_get(*self._sampled, self._spare)
        if code != pynvml.NVML_SUCCESS:
            return [(self.names, code)]
        self._last, self._spare = self._spare, self._last
        self._taken_s = now
        if before is None or now - before > self._longest_s:
            return ()
        self._request.sample1, self._request.sample2 = self._spare, self._last
        self.what = "nvmlGpmMetricsGet"
        code = self._metrics_get(self._reference)
        if code == pynvml.NVML_SUCCESS:
            answers = [(name, slot.nvmlReturn, slot.value) for name, slot in self._views]
        elif self.answered or self._alone or ACTS.get(code, Act.NEVER) is not Act.NEVER:
            return [(self.names, code)]
        else:
            answers = self._one_by_one(self._metrics_get)
        problems: list[tuple[tuple[str, ...], int]] = []
        for name, code, value in answers:
            if code == pynvml.NVML_SUCCESS:
                self.answered = True
                values[name] = value
            else:
                problems.append(((name,), code))
        return problems

    def _one_by_one(self, metrics_get: Callable[..., int]) -> list[tuple[str, int, float]]:
        """Each metric alone, once: an id that this driver does not know must cost only itself."""
        self._alone = True
        answers: list[tuple[str, int, float]] = []
        slot = self._request.metrics[0]
        self._request.numMetrics = 1
        for name, metric_id in self._metrics:
            slot.metricId = metric_id
            code = metrics_get(self._reference)
            answers.append((name, code or slot.nvmlReturn, slot.value))
        self._prepare(self._metrics)
        return answers

    def drop(self, names: tuple[str, ...]) -> bool:
        """Does not ask for ``names`` any more."""
        self._prepare(tuple(metric for metric in self._metrics if metric[0] not in names))
        return True

    def pause(self) -> None:
        """The next sample begins a window of its own."""
        self._taken_s = None

    def free(self) -> None:
        for sample in self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples = []


class _Growing(ABC):
    """A call that fills a buffer of ours, which grows when the driver has more than fits."""

    def __init__(self, size: int) -> None:
        self._count = ctypes.c_uint()
        self._grow(size)

    @abstractmethod
    def _buffer_of(self, size: int) -> Any: ...

    @abstractmethod
    def _fill(self, call: Callable[..., int]) -> int: ...

    def _grow(self, size: int) -> None:
        self._size = size
        self._buffer = self._buffer_of(size)

    def _fill_whole(self, call: Callable[..., int]) -> int:
        """The driver's code, when all that it has was given room."""
        self._count.value = self._size
        code = self._fill(call)
        if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE and self._count.value < MAX_PIDS:
            self._grow(2 * self._count.value + 8)  # more may start meanwhile
            self._count.value = self._size
            code = self._fill(call)
        return code


class ProcessList(_Growing):
    """One of a GPU's process lists, from the first of ``functions`` that the driver has.

    ``pids`` is None when the list was not read or cannot be believed. ``lies`` is how many of the
    last list's pids cannot exist.
    """

    def __init__(self, functions: Sequence[str], handle: Any, *, every: int, pid_max: int) -> None:
        self.what = next((name for name in functions if _function(name) is not None), functions[0])
        self.every = every
        self.pids: tuple[int, ...] | None = None
        self.lies = 0
        self.answered = False
        self.dropped = False
        self._call = _function(self.what)
        self._handle = handle
        self._pid_max = pid_max
        super().__init__(64)

    def _buffer_of(self, size: int) -> Any:
        return (pynvml.c_nvmlProcessInfo_v2_t * size)()

    def ask(self) -> int:
        """Reads the list; an error code, 0 = read."""
        self.pids, self.lies = None, 0
        if self._call is None:
            return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        code = self._fill_whole(self._call)
        if code == pynvml.NVML_SUCCESS:
            self.answered = True
            # Some R535 drivers fill a longer struct, so that pids and sizes come out mixed.
            listed = [self._buffer[place].pid for place in range(min(self._count.value, self._size))]
            possible = [pid for pid in listed if 0 < pid <= self._pid_max]
            self.lies = len(listed) - len(possible)
            self.pids = tuple(dict.fromkeys(possible)) if possible or not listed else None
        return code

    def _fill(self, call: Callable[..., int]) -> int:
        return call(self._handle, ctypes.byref(self._count), self._buffer)


class ProcessUse(_Growing):
    """The driver's estimate of how much of the time each process kept a GPU's SMs busy.

    As measured on an H200: the driver notes about five times a second whose work runs, and gives for
    each pid one mean over the notes since a time that we name, in percent of all that time, with the
    pid's newest note's wall-clock time. That is right in the mean and coarse at once: one of two that
    work alike had 0.14 to 0.81 of three seconds.
    """

    what = "nvmlDeviceGetProcessUtilization"

    def __init__(self, handle: Any, *, every: int, wall: Callable[[], float], longest_s: float) -> None:
        self.every = every
        self.asked: frozenset[int] = frozenset()
        self.shares: Mapping[int, float] | None = None
        self.answered = False
        self.dropped = False
        self._call = _function(self.what)
        self._handle = handle
        self._wall = wall
        self._longest_us = int(longest_s * 1e6)
        self._newest_us = 0
        self._since = ctypes.c_ulonglong()
        super().__init__(128)  # the driver wants room for 72 where one process runs

    def _buffer_of(self, size: int) -> Any:
        return (pynvml.c_nvmlProcessUtilizationSample_t * size)()

    def ask(self, pids: frozenset[int]) -> int:
        """Sets ``shares`` of these processes since the last call; an error code, 0 = read.

        Who is not in the driver's answer did nothing; None where that shows none of ``pids``.
        """
        self.asked, self.shares = pids, None
        if self._call is None:
            return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        now_us = int(self._wall() * 1e6)
        latest_us = now_us + int(AHEAD_S * 1e6)
        earliest_us = max(0, now_us - self._longest_us)
        if not earliest_us < self._newest_us <= latest_us:
            self._newest_us = earliest_us  # a pause, or the wall clock was set
        since_us = self._since.value = self._newest_us
        code = self._fill_whole(self._call)
        if code == pynvml.NVML_SUCCESS:
            self.answered = True
            self._read(pids, since_us, latest_us)
        return code

    def _read(self, pids: frozenset[int], since_us: int, latest_us: int) -> None:
        found: dict[int, list[int]] = {}
        for place in range(min(self._count.value, self._size)):
            sample = self._buffer[place]
            # Drivers are known to answer with what they cannot have seen.
            if since_us < sample.timeStamp <= latest_us and sample.smUtil <= 100:
                self._newest_us = max(self._newest_us, sample.timeStamp)
                if sample.pid in pids:
                    found.setdefault(sample.pid, []).append(sample.smUtil)
        if found:
            self.shares = {
                pid: sum(shares) / (100 * len(shares)) if (shares := found.get(pid)) else 0.0 for pid in pids
            }

    def _fill(self, call: Callable[..., int]) -> int:
        return call(self._handle, self._buffer, ctypes.byref(self._count), self._since)


class XidEvents:
    """Critical Xid errors of all GPUs, as the driver announces them."""

    what = "nvmlEventSetWait_v2"

    def __init__(self) -> None:
        self._by_address: dict[int | None, GpuFacts] = {}
        self._wait = _function(self.what)
        self._event = pynvml.c_nvmlEventData_t()
        self._reference = ctypes.byref(self._event)
        self._set: Any = None
        with suppress(pynvml.NVMLError):
            self._set = pynvml.nvmlEventSetCreate()

    def watch(self, gpu: GpuFacts, handle: Any) -> None:
        """Also listens to ``gpu``.

        Raises:
            NVMLError: it cannot announce events.
        """
        if self._set is not None and self._wait is not None:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self._by_address[address(handle)] = gpu

    def take(self, troubles: Troubles) -> dict[str, list[int]]:
        """Xid codes announced since the last call, by UUID. Does not wait.

        Raises:
            DriverGoneError, DriverMismatchError: see ``ACTS``.
        """
        codes: dict[str, list[int]] = {}
        if self._wait is None or not self._by_address:
            return codes
        for _ in range(MAX_XIDS):
            code = self._wait(self._set, self._reference, 0)
            if code != pynvml.NVML_SUCCESS:
                if code != pynvml.NVML_ERROR_TIMEOUT:
                    self._refused(troubles, code)
                break
            gpu = self._by_address.get(address(self._event.device))
            if gpu is not None and self._event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                codes.setdefault(gpu.uuid, []).append(int(self._event.eventData))
        return codes

    def _refused(self, troubles: Troubles, code: int) -> None:
        # The answer is about the whole set. While it holds a lost GPU it gives nothing else; which GPU
        # that is comes out when they are asked.
        any_gpu = next(iter(self._by_address.values()))
        with suppress(GpuLostError):
            if troubles.is_final(any_gpu, self.what, ("xid_events",), code, first=False):
                self._by_address.clear()

    def free(self) -> None:
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None
