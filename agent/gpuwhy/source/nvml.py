"""Reads GPUs through NVML: activity counters (GPM) where the card has them, and the plain queries.

What is asked, and how often, is in ``nvml_rows``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pynvml

from gpuwhy.source.nvml_calls import (
    ACTS,
    Act,
    DriverGoneError,
    GpuLostError,
    Troubles,
    XidEvents,
    error_name,
    mismatch,
    text,
)
from gpuwhy.source.nvml_rows import METRICS, PLAIN, XID_EVENTS, Device, Terms, order, wanted
from gpuwhy.source.reading import Capability, GpuFacts, GpuReading, NoGpuError, Part, Reading, SourceError

__all__ = ["METRICS", "NvmlSource"]

log = logging.getLogger(__name__)

STALE_PERIODS = 5  # after a longer pause everything is asked anew, and no GPM window spans it
RETRY_S, RETRY_MAX_S = 1.0, 60.0


class _Session:
    """Everything between one nvmlInit and its nvmlShutdown; no handle outlives it.

    ``devices`` are by UUID. ``unread`` says by NVML index why a GPU could not be opened at all;
    ``retry`` whether that may change.
    """

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.devices: dict[str, Device] = {}
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

    A GPU in MIG mode has a row for its board and one for each instance that it has now: those go and
    come as it is reconfigured. Root sees instances without a compute instance too.

    ``spared`` names by ``GpuFacts.key`` the raw values that another source serves; it may be replaced by
    any thread. What one call gives is not asked when all of it is spared. Processes and Xid events always
    are. With ``lists_only`` nothing else is read at all.
    """

    name = "nvml"
    yielding = ""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        period_s: float = 1.0,
        expected: Iterable[GpuFacts] = (),
        lists_only: bool = False,
    ) -> None:
        self.period_s = period_s
        self.spared: Mapping[tuple[str, str], frozenset[str]] = {}
        self._clock = clock
        self._wall = wall
        self._rows: dict[str, tuple[GpuFacts, ...]] = {}  # by UUID, as they were when last seen
        for facts in sorted(expected, key=order):
            self._rows[facts.uuid] = (*self._rows.get(facts.uuid, ()), facts)
        self._troubles = Troubles()
        self._terms = Terms(self._troubles, clock, wall, STALE_PERIODS * period_s, lists_only)
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
        """Opens NVML and begins the first activity window. The facts of the GPUs that answer, by index,
        and of their instances.

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

    def capabilities(self) -> dict[tuple[str, str], dict[str, Capability]]:
        """By ``GpuFacts.key`` and raw name: which part carries it, or why none can.

        Complete after the first reading that comes a period or more after ``start``.
        """
        devices = () if self._session is None else self._session.devices.values()
        rows = {row.facts.key: row for device in devices if device.lost is None for row in device.rows}
        found: dict[tuple[str, str], dict[str, Capability]] = {}
        for facts in self._known():
            row = rows.get(facts.key)
            absent = Capability(None, self._down.get(facts.uuid, "NVML does not show this GPU"))
            spared = self.spared.get(facts.key, frozenset())
            found[facts.key] = {
                name: absent if row is None else row.capability(name, source, spared)
                for name, source in wanted()
            }
        return found

    def advice(self) -> tuple[str, ...]:
        """Nothing makes NVML say more than it does."""
        return ()

    def _known(self) -> list[GpuFacts]:
        return sorted((facts for rows in self._rows.values() for facts in rows), key=order)

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
        spared = self.spared
        for uuid, rows in sorted(self._rows.items(), key=lambda gpu: order(gpu[1][0])):
            device = None if session is None or gone is not None else session.devices.get(uuid)
            codes = xids.get(uuid, ())
            read: list[GpuReading] = []
            if device is not None:
                try:
                    read = device.read(self._tick, everything=everything, xids=codes, spared=spared)
                except GpuLostError as error:
                    device.lost = str(error)
                    self._mark_down(uuid, str(error))
                except DriverGoneError as error:
                    gone = str(error)
            if read:
                self._rows[uuid] = tuple(reading.facts for reading in read)
                if self._down.pop(uuid, None) is not None:
                    log.info("GPU %d (%s) answers again", rows[0].index, uuid)
            else:
                read = [GpuReading(facts, up=False) for facts in rows]
                if codes:
                    read[0] = replace(read[0], parts=(Part(PLAIN, {XID_EVENTS: tuple(codes)}),))
            readings += read
        if gone is not None:
            for uuid in self._rows:
                self._mark_down(uuid, gone)
            self._drop_session()
            self._restart = True
        return tuple(readings)

    def _mark_down(self, uuid: str, reason: str) -> None:
        if uuid not in self._down:
            index = self._rows[uuid][0].index
            log.error("GPU %d (%s) is down (%s); NVML is reopened until it is back", index, uuid, reason)
        self._down[uuid] = reason

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _is_whole(self) -> bool:
        session = self._session
        if session is None or session.retry:
            return False
        return all(uuid in session.devices and session.devices[uuid].lost is None for uuid in self._rows)

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
            self._rows.setdefault(facts.uuid, (facts,))
            device = Device(facts, handle, self._terms, position=len(session.devices))
            session.devices[facts.uuid] = device
            self._rows[facts.uuid] = tuple(row.facts for row in device.rows)
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
        known = self._rows.get(facts.uuid)
        if known is not None:
            return replace(facts, index=known[0].index)
        taken = {other.index for other in self._known()}
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
    return GpuFacts(
        index=index,
        uuid=text(uuid),
        model=text(read(pynvml.nvmlDeviceGetName, handle)),
        pci_bus_id=text(pci.busId) if pci is not None else "",
        compute_capability="" if capability is None else "{}.{}".format(*capability),
        driver=text(read(pynvml.nvmlSystemGetDriverVersion)),
        power_limit_watts=scaled(1e-3, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        default_power_limit_watts=scaled(1e-3, pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        sm_clock_max_hertz=scaled(1e6, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_max_hertz=scaled(1e6, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        memory_total_bytes=None if memory is None else float(memory.total),
        pcie_generation=read(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=read(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )
