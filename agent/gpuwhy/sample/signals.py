"""The signal table: one row per thing that is read, with where it is found and what is possible.

To add a signal, add a row here; if it shall be exported, add its series to ``catalog.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal in SI units.

    ``raw`` maps the raw names that carry it (as in recordings) to the factor that makes them SI.
    ``gauge`` values must lie in ``minimum..maximum``; up to ``rounding`` beyond is clamped.
    ``counter`` signals are cumulative; the sample carries what they gained since the reading before.
    ``maximum`` of a counter is its fastest believable gain per second.
    """

    name: str
    raw: tuple[tuple[str, float], ...]
    kind: Literal["gauge", "counter"] = "gauge"
    minimum: float = 0.0
    maximum: float = float("inf")
    rounding: float = 0.0
    help: str = ""


def _ratio(name: str, raw: str, dcgm: str, about: str) -> Signal:
    # GPM and DCGM round and overshoot by a few percent at full load, and SM activity on MIG slices
    # more (DCGM issue 152 reports 1.29); 5 % is rounding, more is a fault.
    scale = 1.0 if dcgm.startswith("DCGM_FI_PROF_") else 0.01
    return Signal(name, ((raw, 0.01), (dcgm, scale)), maximum=1.0, rounding=0.05, help=about)


DEVICE: tuple[Signal, ...] = (
    _ratio(
        "gpu_util_ratio",
        "gpu_util_pct",
        "DCGM_FI_DEV_GPU_UTIL",
        "share of time with at least one kernel or copy on the device (GPU-Util)",
    ),
    _ratio(
        "memory_util_ratio",
        "mem_util_pct",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "share of time with any DRAM access (NVML), not bandwidth",
    ),
    _ratio(
        "graphics_active_ratio",
        "graphics_util",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "graphics or compute engine active",
    ),
    _ratio(
        "sm_active_ratio",
        "sm_util",
        "DCGM_FI_PROF_SM_ACTIVE",
        "SMs with a warp resident, mean over SMs and time",
    ),
    _ratio(
        "sm_occupancy_ratio",
        "sm_occupancy",
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "resident warps over the most that fit",
    ),
    _ratio(
        "tensor_active_ratio",
        "any_tensor_util",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "tensor cores over their sustained peak",
    ),
    _ratio("dram_active_ratio", "dram_bw_util", "DCGM_FI_PROF_DRAM_ACTIVE", "DRAM interface busy"),
    _ratio("fp64_active_ratio", "fp64_util", "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "FP64 pipe"),
    _ratio("fp32_active_ratio", "fp32_util", "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "FP32 pipe"),
    _ratio(
        "fp16_active_ratio", "fp16_util", "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "FP16 pipe, without tensor cores"
    ),
    _ratio("int_active_ratio", "integer_util", "DCGM_FI_PROF_PIPE_INT_ACTIVE", "integer pipe"),
    # Fastest link of any card in the table is PCIe gen 6 x16, about 120 GB/s; 4x leaves room.
    Signal(
        "pcie_receive_bytes_per_second",
        (("pcie_rx_mib_s", MIB), ("DCGM_FI_PROF_PCIE_RX_BYTES", 1.0)),
        maximum=500e9,
        help="host to device",
    ),
    Signal(
        "pcie_transmit_bytes_per_second",
        (("pcie_tx_mib_s", MIB), ("DCGM_FI_PROF_PCIE_TX_BYTES", 1.0)),
        maximum=500e9,
        help="device to host",
    ),
    Signal(
        "nvlink_receive_bytes_per_second",
        (("nvlink_rx_mib_s", MIB), ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1.0)),
        maximum=4e12,
        help="all links, in",
    ),
    Signal(
        "nvlink_transmit_bytes_per_second",
        (("nvlink_tx_mib_s", MIB), ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1.0)),
        maximum=4e12,
        help="all links, out",
    ),
    Signal(
        "power_watts",
        (("power_avg_mw", 1e-3), ("power_mw", 1e-3), ("DCGM_FI_DEV_POWER_USAGE", 1.0)),
        maximum=5000.0,
        help="board power, mean over a second where the card gives it",
    ),
    Signal(
        "power_instant_watts",
        (("power_instant_mw", 1e-3), ("DCGM_FI_DEV_POWER_USAGE_INSTANT", 1.0)),
        maximum=5000.0,
        help="board power now; may exceed the limit",
    ),
    Signal(
        "power_limit_watts",
        (("power_limit_mw", 1e-3), ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1.0)),
        maximum=5000.0,
        help="enforced limit",
    ),
    Signal(
        "sm_clock_hertz", (("sm_clock_mhz", 1e6), ("DCGM_FI_DEV_SM_CLOCK", 1e6)), maximum=6e9, help="SM clock"
    ),
    Signal(
        "memory_clock_hertz",
        (("mem_clock_mhz", 1e6), ("DCGM_FI_DEV_MEM_CLOCK", 1e6)),
        maximum=20e9,
        help="memory clock",
    ),
    Signal(
        "gpu_temperature_celsius",
        (("gpu_temp_c", 1.0), ("DCGM_FI_DEV_GPU_TEMP", 1.0)),
        minimum=-50.0,
        maximum=150.0,
        help="core",
    ),
    Signal(
        "memory_temperature_celsius",
        (("mem_temp_c", 1.0), ("DCGM_FI_DEV_MEMORY_TEMP", 1.0)),
        minimum=-50.0,
        maximum=150.0,
        help="memory",
    ),
    Signal(
        "memory_used_bytes",
        (("memory_used_bytes", 1.0), ("DCGM_FI_DEV_FB_USED", MIB)),
        maximum=4e12,
        help="device memory held",
    ),
    Signal(
        "energy_joules",
        (("energy_mj", 1e-3), ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3)),
        kind="counter",
        maximum=5000.0,
        help="energy since driver load",
    ),
)

# Cumulative time in a clock-event reason, nanoseconds: NVML field values 74, 76, 269-271, and DCGM's names.
CLOCK_EVENT_COUNTERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("sw-power-cap", ("sw_power_cap_ns", "DCGM_FI_DEV_POWER_VIOLATION")),
    ("sync-boost", ("sync_boost_ns", "DCGM_FI_DEV_SYNC_BOOST_VIOLATION")),
    ("sw-thermal", ("sw_thermal_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS")),
    ("hw-thermal", ("hw_thermal_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS")),
    ("hw-power-brake", ("hw_power_brake_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS")),
)

CLOCK_EVENT_MASKS = ("event_reasons", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")

# nvmlClocksEventReasons bits; bits not named here are "other".
CLOCK_EVENT_BITS: tuple[tuple[str, int], ...] = (
    ("gpu-idle", 0x1),
    ("app-clocks", 0x2),
    ("sw-power-cap", 0x4),
    ("hw-slowdown", 0x8),
    ("sync-boost", 0x10),
    ("sw-thermal", 0x20),
    ("hw-thermal", 0x40),
    ("hw-power-brake", 0x80),
    ("display-clock", 0x100),
)
CLOCK_EVENT_REASONS: tuple[str, ...] = (*(name for name, _ in CLOCK_EVENT_BITS), "other")

HOST: tuple[Signal, ...] = (
    Signal("host_cpu_busy_ratio", (), maximum=1.0, help="host CPUs not idle and not waiting for I/O"),
    Signal("host_iowait_cores", (), help="host CPUs idle with I/O outstanding"),
    Signal("host_pressure_cpu_ratio", (), maximum=1.0, help="time with some task waiting for a CPU (PSI)"),
    Signal("host_pressure_io_ratio", (), maximum=1.0, help="time with some task waiting for I/O (PSI)"),
    Signal(
        "host_pressure_memory_ratio", (), maximum=1.0, help="time with some task waiting for memory (PSI)"
    ),
    Signal("host_blocked_processes", (), help="processes in uninterruptible sleep"),
    Signal("host_network_receive_bytes_per_second", (), maximum=1e12, help="all interfaces but loopback"),
    Signal("host_network_transmit_bytes_per_second", (), maximum=1e12, help="all interfaces but loopback"),
)

PROCESS_TREE: tuple[Signal, ...] = (
    Signal(
        "process_tree_cpu_cores", (), help="CPU of the GPU's processes, their descendants and cgroup mates"
    ),
    Signal("process_tree_cpu_ratio", (), help="the same over the cores that they may use"),
    Signal("process_tree_owner_cpu_cores", (), help="CPU of the processes with a context on the GPU"),
    Signal("process_tree_owner_system_ratio", (), maximum=1.0, help="system mode's share of the owners' CPU"),
    Signal("process_tree_hottest_thread_cores", (), help="busiest thread of the owners"),
    Signal("process_tree_busiest_worker_cores", (), help="busiest process of the tree that owns no GPU"),
    Signal("process_tree_busy_workers", (), help="processes of the tree, owners aside, above half a core"),
    Signal(
        "process_tree_runqueue_wait_ratio",
        (),
        help="time that the owners' threads were runnable and waited, s/s",
    ),
    Signal("process_tree_throttled_ratio", (), help="time that a cgroup quota held the owners, s/s"),
    Signal(
        "process_tree_blocked_ratio",
        (),
        maximum=1.0,
        help="time with a process of the tree in uninterruptible sleep",
    ),
    Signal(
        "process_tree_cpu_pressure_ratio",
        (),
        maximum=1.0,
        help="time with some task of the owners' own cgroup waiting for a CPU (PSI)",
    ),
    Signal(
        "process_tree_io_pressure_ratio",
        (),
        maximum=1.0,
        help="time with some task of the owners' own cgroup waiting for I/O (PSI)",
    ),
    Signal("process_tree_age_seconds", (), help="age of the youngest owner"),
    Signal("process_tree_read_bytes_per_second", (), help="storage reads of the tree"),
    Signal("process_tree_write_bytes_per_second", (), help="storage writes of the tree"),
)

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in (*DEVICE, *HOST, *PROCESS_TREE)}

# What each raw name of a device is for: two sources that carry the same can stand in for each other.
SIGNAL_OF_RAW: dict[str, str] = {
    **{raw: signal.name for signal in DEVICE for raw, _ in signal.raw},
    **{raw: f"clock_event_seconds/{reason}" for reason, raws in CLOCK_EVENT_COUNTERS for raw in raws},
    **dict.fromkeys(CLOCK_EVENT_MASKS, "clock_event_reasons"),
}
