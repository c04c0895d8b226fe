"""What a source hands on: one look at the host, in the units of whoever was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class SourceError(Exception):
    """A source cannot start or go on; the message names what was tried and the remedy."""


class NoGpuError(SourceError):
    """No GPU on this host answers any source that may be used."""


class DriverMismatchError(SourceError):
    """The driver's kernel module and its user-space library have different versions."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change while a GPU is up. None = not read.

    ``index`` is the NVML index, ``mig`` the NVML id of the GPU instance ("" for a whole GPU),
    ``share_ratio`` the row's part of the whole GPU. A GPU in MIG mode has a row for each instance and
    one, ``split``, for its board: that carries what is the board's alone (power, clocks, temperatures),
    no activity, and the share that no instance has.
    """

    index: int
    uuid: str
    mig: str = ""
    model: str = ""
    pci_bus_id: str = ""
    compute_capability: str = ""
    driver: str = ""
    profile: str = ""
    share_ratio: float = 1.0
    split: bool = False
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    sm_clock_max_hertz: float | None = None
    memory_clock_max_hertz: float | None = None
    memory_total_bytes: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Row identity that survives renumbering: (uuid, mig)."""
        return (self.uuid, self.mig)


@dataclass(frozen=True, slots=True)
class Part:
    """Raw values of one GPU from one source, by raw name (see ``sample.signals``); None = not read.

    They speak for ``span_s`` up to the reading's end; None = for the reading's own span. ``period_s``
    is how often this source has new ones, None = as often as there are readings.
    """

    source: str
    values: Mapping[str, Any]
    span_s: float | None = None
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a raw value of a GPU can be read.

    ``source`` is the part that carries it; None = it cannot be read, for ``reason``.
    """

    source: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU's part of a reading.

    ``parts`` are ordered best source first: a signal is taken from the first part that has it.
    ``owners`` are the pids with a compute context, None when the list was not read.
    ``up`` is False for a GPU that was there and no longer answers. ``holder`` is who holds the
    GPU, where a source says so: pods as "namespace/pod", or else jobs as "job:id", with commas between. ``process_use`` is the share of time that each
    pid kept SMs busy (0-1), as the driver estimates it where several share the GPU; None = not read.
    ``device_uuids`` are those of a MIG instance's own devices, by which it is granted.
    """

    facts: GpuFacts
    parts: tuple[Part, ...] = ()
    owners: tuple[int, ...] | None = None
    up: bool = True
    holder: str = ""
    process_use: Mapping[int, float] | None = None
    device_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostReading:
    """What the kernel said of the host and of the GPUs' process trees, over its own span.

    Counters are cumulative and raw, named as in recordings; None = not read.
    """

    end_s: float
    span_s: float
    values: Mapping[str, Any] | None = None
    processes: tuple[Mapping[str, Any], ...] | None = None
    cgroups: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one host.

    It ends at ``end_s`` on the monotonic clock (``unix_s`` on the wall clock) and speaks for the
    time since the previous reading, ``span_s``. ``period_s`` is what the source aims at.
    ``restart`` marks a reading whose counters may not be compared with the ones before. ``host`` is
    the newest look at the host, None = not read. Readings of one ``origin`` are of one host.
    ``workload`` is what a recording calls all that runs in it, "" where there is none.
    """

    end_s: float
    unix_s: float
    span_s: float
    period_s: float
    gpus: tuple[GpuReading, ...]
    host: HostReading | None = None
    restart: bool = False
    origin: int = 0
    workload: str = ""
