"""The DCGM fields that are read: one row each, for the host engine (by id) and for dcgm-exporter (by name).

To read one more field, add a row here and its name to a signal's row in ``sample.signals``. Ids are
NVIDIA's and never change; names did, in DCGM 4.6. Source: ``dcgm_fields.h`` of DCGM 3.3 to 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SELDOM = 10  # periods between two values of a field that is dear to read

# Watched apart, because a watch fails as a whole: one group must not cost the others.
Group = Literal["device", "seldom", "profiling", "rates", "pipes"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``name`` is what its raw value is called here, ``also`` its other names.

    ``slice`` is True where a MIG instance has a value of its own; else the value is the whole board's.
    ``integer`` tells the type: int64, else double.
    """

    id: int
    name: str
    group: Group
    also: tuple[str, ...] = ()
    integer: bool = True
    slice: bool = False

    @property
    def profiles(self) -> bool:
        """Whether it is of the profiling counters, which another tool may own."""
        return self.group not in {"device", "seldom"}


FIELDS: tuple[Field, ...] = (
    Field(100, "DCGM_FI_DEV_SM_CLOCK", "device"),
    Field(101, "DCGM_FI_DEV_MEM_CLOCK", "device"),
    Field(112, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "device", ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",)),
    Field(140, "DCGM_FI_DEV_MEMORY_TEMP", "device", ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",)),
    Field(150, "DCGM_FI_DEV_GPU_TEMP", "device", ("DCGM_FI_DEV_GPU_TEMP_CELSIUS",)),
    Field(155, "DCGM_FI_DEV_POWER_USAGE", "device", ("DCGM_FI_DEV_BOARD_POWER_WATTS",), integer=False),
    Field(
        157,
        "DCGM_FI_DEV_POWER_USAGE_INSTANT",
        "device",
        ("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS",),
        integer=False,
    ),
    Field(
        164,
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "device",
        ("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",),
        integer=False,
    ),
    Field(203, "DCGM_FI_DEV_GPU_UTIL", "device", ("DCGM_FI_DEV_GPU_UTIL_RATIO",)),
    Field(204, "DCGM_FI_DEV_MEM_COPY_UTIL", "device"),
    Field(252, "DCGM_FI_DEV_FB_USED", "device", slice=True),
    # Nanoseconds since driver load, whatever older headers and help texts say (DCGM issue 266).
    Field(240, "DCGM_FI_DEV_POWER_VIOLATION", "device"),
    Field(242, "DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "device"),
    Field(1422, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "device"),
    # The driver takes 1 to 4 ms for each of these (H200); a counter loses nothing by being read seldom.
    Field(156, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "seldom"),
    Field(1423, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "seldom"),
    Field(1424, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "seldom"),
    Field(
        1001,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "profiling",
        ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1002,
        "DCGM_FI_PROF_SM_ACTIVE",
        "profiling",
        ("DCGM_FI_PROF_SM_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1003,
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "profiling",
        ("DCGM_FI_PROF_SM_OCCUPANCY_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1004,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "profiling",
        ("DCGM_FI_PROF_TENSOR_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1005,
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "profiling",
        ("DCGM_FI_PROF_DRAM_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1006,
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        "pipes",
        ("DCGM_FI_PROF_FP64_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1007,
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        "pipes",
        ("DCGM_FI_PROF_FP32_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1008,
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        "pipes",
        ("DCGM_FI_PROF_FP16_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    Field(
        1016,
        "DCGM_FI_PROF_PIPE_INT_ACTIVE",
        "pipes",
        ("DCGM_FI_PROF_INT_UTIL_RATIO",),
        integer=False,
        slice=True,
    ),
    # Bytes per second over the last interval, not counters, whatever their names say.
    Field(1009, "DCGM_FI_PROF_PCIE_TX_BYTES", "rates"),
    Field(1010, "DCGM_FI_PROF_PCIE_RX_BYTES", "rates"),
    Field(1011, "DCGM_FI_PROF_NVLINK_TX_BYTES", "rates"),
    Field(1012, "DCGM_FI_PROF_NVLINK_RX_BYTES", "rates"),
)
