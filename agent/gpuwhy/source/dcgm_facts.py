"""Which GPUs and MIG instances a DCGM engine shows, and what does not change about them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpuwhy.source.dcgm_bindings import COMPUTE_INSTANCE, GPU, GPU_INSTANCE, Engine, EngineError, as_text
from gpuwhy.source.dcgm_rows import blank, ends
from gpuwhy.source.mig_slices import slices_of
from gpuwhy.source.reading import GpuFacts

# DcgmEntityStatus_t (dcgm_structs.h) of a GPU that was there and does not answer, and of a paused one.
DOWN_STATUS = {3: "inaccessible", 4: "lost", 7: "detached"}
PAUSED_STATUS = 6

# What is read once, by field id (dcgm_fields.h), and where facts keep it.
_NAME, _CAPABILITY, _MAX_SLICES, _MEMORY_MIB = 50, 63, 69, 250
_SCALED: Mapping[int, tuple[str, float]] = {
    113: ("sm_clock_max_hertz", 1e6),
    114: ("memory_clock_max_hertz", 1e6),
    235: ("pcie_generation", 1),
    236: ("pcie_width", 1),
    _MEMORY_MIB: ("memory_total_bytes", 1024.0**2),
}
_PROFILE = re.compile(r"\d+g\.\S+")  # as in "MIG 3g.40gb"


class Instance(NamedTuple):
    """A MIG instance, as the engine numbers it (``entity``) and as NVML does."""

    entity: int
    number: int
    profile: int
    slices: int
    nvml_index: int
    computes: tuple[int, ...] = ()


Layout = Mapping[int, tuple[Instance, ...]]
"""The MIG instances of each GPU, by the engine's number."""


def layout(engine: Engine, known: Collection[int]) -> Layout:
    """The GPUs that the engine supports now, or that are ``known`` or lost, with their MIG instances."""
    supported = set(engine.call("dcgmGetAllSupportedDevices"))
    gpus = [
        gpu
        for gpu in engine.call("dcgmGetAllDevices")
        if gpu in supported or gpu in known or engine.gpu_status(gpu) in DOWN_STATUS
    ]
    instances: dict[int, tuple[int, Instance]] = {}
    for entry in _hierarchy(engine):
        entity, parent, info = entry.entity, entry.parent, entry.info
        if entity.entityGroupId == GPU_INSTANCE:
            number, profile = info.nvmlInstanceId, info.nvmlMigProfileId
            slices, nvml_index = info.nvmlProfileSlices, info.nvmlGpuIndex
            found = Instance(entity.entityId, number, profile, slices, nvml_index)
            instances[found.entity] = (parent.entityId, found)
        elif entity.entityGroupId == COMPUTE_INSTANCE and parent.entityId in instances:
            gpu, found = instances[parent.entityId]
            computes = (*found.computes, info.nvmlComputeInstanceId)
            instances[found.entity] = (gpu, found._replace(computes=computes))
    return {gpu: tuple(found for parent, found in instances.values() if parent == gpu) for gpu in gpus}


def _hierarchy(engine: Engine) -> Sequence[Any]:
    try:
        # Most hosts have none, and all of the hierarchy is 73 KiB, for which an engine took 90 ms over TCP.
        if not engine.call("dcgmGetEntityGroupEntities", GPU_INSTANCE, 0):
            return ()
        hierarchy = engine.call("dcgmGetGpuInstanceHierarchy")
    except EngineError as error:
        if ends(error):
            raise
        return ()  # as where no card can be split
    return [hierarchy.entityList[place] for place in range(hierarchy.count)]


def board(engine: Engine, gpu: int, instances: Sequence[Instance]) -> GpuFacts:
    """A GPU's facts; its index is yet to come. Only its UUID must be told.

    Raises:
        EngineError: it is not told.
    """
    attributes = engine.call("dcgmGetDeviceAttributes", gpu)
    who, limits = attributes.identifiers, attributes.powerLimits
    uuid = _text(who.uuid)
    if not uuid:
        raise EngineError("dcgmGetDeviceAttributes", "NO_DATA")
    once = _once(engine, engine.entity(GPU, gpu), (_CAPABILITY, _MAX_SLICES, *_SCALED))
    slices = int(once.get(_MAX_SLICES) or slices_of(_text(who.deviceName)))
    split = bool(instances) or attributes.settings.migModeEnabled == 1
    major, minor = divmod(int(once.get(_CAPABILITY, 0)), 2**16)
    facts = GpuFacts(
        index=-1,
        uuid=uuid,
        model=_text(who.deviceName),
        pci_bus_id=_text(who.pciBusId),
        compute_capability=f"{major}.{minor}" if major else "",
        driver=_text(who.driverVersion),
        # What no instance has, of a GPU that is split.
        share_ratio=max(0, slices - sum(found.slices for found in instances)) / slices if split else 1.0,
        split=split,
        power_limit_watts=_number(limits.enforcedPowerLimit),
        default_power_limit_watts=_number(limits.defaultPowerLimit),
    )
    found = _scaled(once)
    return replace(
        facts, **{**found, "memory_total_bytes": None} if split else found
    )  # instances have theirs


def slice_of(engine: Engine, whole: GpuFacts, instance: Instance) -> GpuFacts:
    """A MIG instance's facts. ``whole`` are its board's."""
    once = _once(engine, engine.entity(GPU_INSTANCE, instance.entity), (_NAME, _MAX_SLICES, _MEMORY_MIB))
    named = _PROFILE.search(str(once.get(_NAME, "")))  # only where it has a compute instance
    size = f".{math.ceil(once[_MEMORY_MIB] / 1024)}gb" if _MEMORY_MIB in once else ""
    facts = replace(
        whole,
        mig=str(instance.number),
        profile=named[0] if named else f"{instance.slices}g{size}",
        share_ratio=instance.slices / int(once.get(_MAX_SLICES) or slices_of(whole.model)),
        split=False,
        # The board's alone:
        power_limit_watts=None,
        default_power_limit_watts=None,
        memory_total_bytes=None,
        pcie_generation=None,
        pcie_width=None,
    )
    return replace(facts, **_scaled(once))


def _once(engine: Engine, entity: Any, fields: tuple[int, ...]) -> dict[int, Any]:
    try:
        answers = engine.once([entity], fields)
    except EngineError as error:
        if ends(error):
            raise
        return {}
    return {
        answer.field: answer.value
        for answer in answers
        if not answer.status and (isinstance(answer.value, str) or not blank(answer.value))
    }


def _scaled(once: Mapping[int, Any]) -> dict[str, Any]:
    return {name: once[number] * scale for number, (name, scale) in _SCALED.items() if once.get(number)}


def _number(value: int) -> float | None:
    return float(value) if value and not blank(value) else None


def _text(value: Any) -> str:
    told = as_text(value)
    return "" if told.startswith("<<<") else told  # DCGM_STR_BLANK and its like
