"""How a GPU is split by MIG: its GPU instances, and the handles of their compute instances.

NVML's MIG device handles are compute instances. A GPU instance that has none shows only in a list that
NVML gives to root, and has no data; DCGM leaves it blank likewise.
"""

from __future__ import annotations

import ctypes
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from gpuwhy.source.mig_slices import MOST
from gpuwhy.source.nvml_calls import Troubles, text
from gpuwhy.source.reading import GpuFacts

log = logging.getLogger(__name__)


# As in "NVIDIA A100-SXM4-40GB MIG 3g.20gb", and "... MIG 1c.3g.20gb" for a part of that instance.
_PROFILE = re.compile(r"\bMIG (?:\d+c\.)?(\d+g\.\S+)")


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance; another look has found the same one when all but ``devices`` is equal.

    ``slices`` are its compute slices, ``compute`` the UUIDs of its compute instances and ``devices``
    their handles. A handle dies with its compute instance, and NVML may use it again for another one.
    """

    id: int
    profile: str
    slices: int
    memory_mib: int
    compute: tuple[str, ...] = ()
    devices: tuple[Any, ...] = field(default=(), compare=False)


class Layout:
    """The GPU instances of one GPU. ``slices`` is how many compute slices the whole GPU has."""

    def __init__(self, gpu: GpuFacts, handle: Any, troubles: Troubles) -> None:
        self.slices = MOST
        self._gpu = gpu
        self._handle = handle
        self._troubles = troubles
        self._split = False
        self._refused: set[str] = set()
        self._profiles: dict[int, Any] = {}
        self._most = 0
        self._told: str | None = None

    def read(self) -> tuple[Instance, ...] | None:
        """The instances, by id; None = the GPU is not split.

        Raises:
            GpuLostError, DriverGoneError, DriverMismatchError: see ``nvml_calls.ACTS``.
        """
        mode = self._ask(pynvml.nvmlDeviceGetMigMode, self._handle)
        if mode is not None and self._split != (mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE):
            self._split = not self._split
            self._refused.clear()
            self._profiles = self._read_profiles() if self._split else {}
            slices = [profile.sliceCount for profile in self._profiles.values()]
            self.slices = max(slices, default=0) or MOST
            self._most = self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._handle) or self.slices
        found = sorted(self._read_instances(), key=lambda instance: instance.id) if self._split else []
        self._tell(", ".join(instance.profile for instance in found) or "no instances")
        return tuple(found) if self._split else None

    def _read_instances(self) -> list[Instance]:
        members: dict[int, list[tuple[str, Any]]] = {}
        for index in range(self._most):
            device = self._ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._handle, index)
            number = None if device is None else self._ask(pynvml.nvmlDeviceGetGpuInstanceId, device)
            if number is not None:
                uuid = text(self._ask(pynvml.nvmlDeviceGetUUID, device))
                members.setdefault(number, []).append((uuid, device))
        found = [self._instance(number, devices) for number, devices in members.items()]
        left = self.slices - sum(instance.slices for instance in found)
        for profile in self._profiles.values():
            if profile.sliceCount <= left:  # 330 us a profile on an H200
                listed = self._listed(profile)
                found += [self._empty(number, profile) for number in listed if number not in members]
        return found

    def _instance(self, number: int, members: list[tuple[str, Any]]) -> Instance:
        devices = tuple(device for _, device in members)
        size = self._ask(pynvml.nvmlDeviceGetAttributes_v2, devices[0])
        slices, memory_mib = (0, 0) if size is None else (size.gpuInstanceSliceCount, size.memorySizeMB)
        profile = _profile(self._ask(pynvml.nvmlDeviceGetName, devices[0]), slices, memory_mib)
        slices = slices or int(profile.partition("g.")[0] or 0)
        return Instance(
            number, profile, slices, memory_mib, tuple(sorted(uuid for uuid, _ in members)), devices
        )

    def _listed(self, profile: Any) -> list[int]:
        """The ids of all instances of a profile, nothing where we may not have them."""
        handles = (pynvml.c_nvmlGpuInstance_t * profile.instanceCount)()
        count = ctypes.c_uint()
        list_all = pynvml.nvmlDeviceGetGpuInstances
        if self._ask(list_all, self._handle, profile.id, handles, ctypes.byref(count)) is None:
            return []
        infos = [self._ask(pynvml.nvmlGpuInstanceGetInfo, handle) for handle in handles[: count.value]]
        return [info.id for info in infos if info is not None]

    def _empty(self, number: int, profile: Any) -> Instance:
        slices, memory_mib = profile.sliceCount, profile.memorySizeMB
        return Instance(
            number, _profile(getattr(profile, "name", ""), slices, memory_mib), slices, memory_mib
        )

    def _read_profiles(self) -> dict[int, Any]:
        """The profiles that this card has, by their ids; they stay as long as it is split."""
        found: dict[int, Any] = {}
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            for version in (2, 1):  # older drivers have version 1 only
                try:
                    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(self._handle, number, version)
                except pynvml.NVMLError as error:
                    # Every card lacks some profiles, and every driver does not know the newest.
                    self._is_final(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, error.value, first=True)
                else:
                    found[profile.id] = profile
                    break
        return found

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function`` answers, None = nothing."""
        name = function.__name__
        if name in self._refused:
            return None
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            if self._is_final(function, error.value) and arguments[0] is self._handle:
                self._refused.add(name)
            return None

    def _is_final(self, function: Callable[..., Any], code: int, *, first: bool = False) -> bool:
        what = _LACKING.get(function.__name__, "MIG instances")
        return self._troubles.is_final(self._gpu, function.__name__, (what,), code, first=first)

    def _tell(self, profiles: str) -> None:
        told, self._told = self._told, profiles if self._split else None
        if self._told is not None and self._told != told:
            log.info("GPU %d (%s) is split by MIG: %s", self._gpu.index, self._gpu.uuid, profiles)
        elif told is not None and self._told is None:
            log.info("GPU %d (%s) is no longer split by MIG", self._gpu.index, self._gpu.uuid)


# What is missing without an answer of these.
_LACKING = {
    "nvmlDeviceGetMigMode": "MIG mode",
    "nvmlDeviceGetGpuInstanceProfileInfo": "MIG profiles",
    "nvmlDeviceGetGpuInstances": "MIG instances without a compute instance",
}


def _profile(name: Any, slices: int, memory_mib: int) -> str:
    """As in "3g.40gb", from a name, or nearly so from a size: an H200's 16384 MiB are called 1g.18gb."""
    named = _PROFILE.search(text(name))
    if named is not None:
        return named[1]
    return f"{slices}g.{math.ceil(memory_mib / 1024)}gb" if slices else ""
