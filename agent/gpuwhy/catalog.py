"""The series catalogue: one row per exported series, read by exporter, alerts, dashboards and docs.

To add a series, add a row here. A row whose ``origin`` is ``signal``, ``fact`` or ``increment`` is
filled from its ``fields`` and needs no other code; the others are filled in ``exporter/ledger.py``.
Names are frozen once released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "gpuwhy_"
IDENTITY = ("gpu", "uuid", "mig")
WORKLOAD = ("workload_kind", "workload", "workload_namespace", "workload_owner")

# Label values, in the order they are exported. A unit's or sensor's signal is named after it.
ACTIVITY_UNITS = ("graphics", "sm", "tensor", "dram", "fp64", "fp32", "fp16", "int")
TEMPERATURE_SENSORS = ("gpu", "memory")
CLOCK_REASONS = (
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal",
    "hw-thermal",
    "hw-power-brake",
    "app-clocks",
    "display-clock",
    "gpu-idle",
    "other",
)
WORKLOAD_KINDS = (
    "slurm",
    "kubernetes",
    "container",
    "systemd",
    "process",
    "replay",
    "unknown",
    "other",
)
REJECTION_REASONS = ("sentinel", "nan", "out-of-range", "backwards", "stale")
# What says whose a process or a GPU is: /proc, the kubelet's grants, the API server's pods, folders that the
# kubelet and container engines keep, Slurm's jobs.
RESOLVERS = ("processes", "kubelet", "kubernetes-api", "pod-folders", "slurm", "containers")
SOURCES = ("dcgm", "nvml-gpm", "nvml", "dcgm-exporter", "host", "replay", *RESOLVERS)
HOST_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
PRESSURE_RESOURCES = ("cpu", "io", "memory")

Kind = Literal["counter", "gauge", "info", "summary"]

# Where the value comes from:
#   signal     the interval's mean, ``Verdict.signals[field]``
#   fact       the same, or where it was not read ``GpuFacts.field``
#   increment  summed ``Verdict.increments[field]``
#   split      summed ``TimeSplit.field``
#   clock      summed ``Verdict.clock_events``
#   verdict    the verdict shown now, or of the last interval
#   identity   ``GpuFacts``
#   workload   summed or latest ``WorkloadVerdict``
#   host       summed ``HostIncrements``
#   health     ``Health``, filled by the daemon
#   agent      what the ledger counts about the sampling
#   exporter   what the exposition counts about itself
Origin = Literal[
    "signal",
    "fact",
    "increment",
    "split",
    "clock",
    "verdict",
    "identity",
    "workload",
    "host",
    "health",
    "agent",
    "exporter",
]

# When it shows:
#   agent   from the start, counters at 0 with all children, for as long as the row is known
#   cause   from when its cause first occurs, counters at 0 until that was scraped, for as long as the row is known
#   read    from the first time it was read
#   driver  from the first time it was read, and gone while readings are stale
#   now     while the last interval has it, and gone while readings are stale
Life = Literal["agent", "cause", "read", "driver", "now"]


@dataclass(frozen=True, slots=True)
class Series:
    """One exported series.

    ``labels`` holds the identity labels of per-GPU series first, then those of the workload where it has
    one, then the series' own.
    ``unit`` is the base unit that ends the family's name, "" for none.
    ``fields`` pairs a value of the own label ("" without one) with the name the value is read by.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    origin: Origin
    life: Life
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def family(self) -> str:
        """The name without the suffix that its kind adds, as OpenMetrics names families."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names that its samples carry."""
        return (f"{self.name}_count", f"{self.name}_sum") if self.kind == "summary" else (self.name,)

    @property
    def own_labels(self) -> tuple[str, ...]:
        return tuple(label for label in self.labels if label not in {*IDENTITY, *WORKLOAD})

    @property
    def per_gpu(self) -> bool:
        return self.labels[: len(IDENTITY)] == IDENTITY


def _seconds(field: str, about: str, *own: str) -> Series:
    name = f"{PREFIX}{field}_seconds_total"
    life: Life = "cause" if own else "agent"
    return Series(name, "counter", "seconds", about, IDENTITY + own, "split", life, (("", field),))


def _workload(stem: str, kind: Kind, unit: str, about: str, *own: str, life: Life = "agent") -> Series:
    name = f"{PREFIX}workload_{stem}"
    return Series(name, kind, unit, about, (*IDENTITY, *WORKLOAD, *own), "workload", life)


def _gauge(field: str, unit: str, about: str, origin: Literal["signal", "fact"] = "signal") -> Series:
    return Series(f"{PREFIX}{field}", "gauge", unit, about, IDENTITY, origin, "now", (("", field),))


def _gain(stem: str, unit: str, about: str, field: str, life: Life) -> Series:
    name = f"{PREFIX}{stem}_total"
    return Series(name, "counter", unit, about, IDENTITY, "increment", life, (("", field),))


SERIES: tuple[Series, ...] = (
    # Seconds, split so that nothing is counted twice
    _seconds(
        "verdict", "Seconds by verdict and cause, adding up to the observed seconds.", "verdict", "cause"
    ),
    _seconds("lost", "Seconds lost, by the verdict and cause they are charged to.", "verdict", "cause"),
    _seconds("useful", "Seconds at the speed of light: what compute pipes and DRAM really did."),
    _seconds("headroom", "Seconds of slack while healthy or memory-bound, which nobody can be sure to win."),
    _seconds("free", "Seconds in which no process held the GPU."),
    _seconds("unattributed", "Observed seconds that are neither useful, lost, headroom nor free."),
    _seconds("measured", "Seconds with all signals that useful time needs: the denominator of efficiency."),
    _seconds("observed", "Seconds for which the agent ran and knew this GPU."),
    Series(
        f"{PREFIX}activity_seconds_total",
        "counter",
        "seconds",
        "Seconds of full activity by unit of the GPU; the rate is the exact mean activity.",
        (*IDENTITY, "unit"),
        "increment",
        "read",
        tuple((unit, f"{unit}_active_ratio") for unit in ACTIVITY_UNITS),
    ),
    Series(
        f"{PREFIX}clock_event_seconds_total",
        "counter",
        "seconds",
        "Seconds in which the driver named this reason for holding the clock; reasons overlap.",
        (*IDENTITY, "reason"),
        "clock",
        "driver",
    ),
    # Now: the last interval
    Series(
        f"{PREFIX}verdict",
        "gauge",
        "",
        "1 for the verdict that holds now, 0 for the others.",
        (*IDENTITY, "verdict"),
        "verdict",
        "now",
    ),
    Series(
        f"{PREFIX}verdict_confidence_ratio",
        "gauge",
        "ratio",
        "How sure the verdict that holds now is.",
        IDENTITY,
        "verdict",
        "now",
    ),
    Series(
        f"{PREFIX}speed_of_light_ratio",
        "gauge",
        "ratio",
        "Nearness to the card's practical peak: the busier of compute pipes and DRAM.",
        IDENTITY,
        "verdict",
        "now",
    ),
    _gauge("graphics_active_ratio", "ratio", "Share of time with the graphics or compute engine active."),
    _gauge("sm_active_ratio", "ratio", "Share of SMs with a warp resident, mean over SMs and time."),
    _gauge("sm_occupancy_ratio", "ratio", "Resident warps over the most that fit."),
    _gauge("tensor_active_ratio", "ratio", "Tensor cores over their sustained peak."),
    _gauge("dram_active_ratio", "ratio", "Share of time with the DRAM interface busy."),
    _gauge("fp64_active_ratio", "ratio", "Share of time with the FP64 pipe active."),
    _gauge("fp32_active_ratio", "ratio", "Share of time with the FP32 pipe active."),
    _gauge("fp16_active_ratio", "ratio", "Share of time with the FP16 pipe active, tensor cores left out."),
    _gauge("int_active_ratio", "ratio", "Share of time with the integer pipe active."),
    _gauge(
        "gpu_util_ratio", "ratio", "Share of time with at least one kernel or copy on the device (GPU-Util)."
    ),
    _gauge("power_watts", "watts", "Board power."),
    _gauge("power_limit_watts", "watts", "Enforced power limit.", "fact"),
    _gauge("sm_clock_hertz", "hertz", "SM clock."),
    _gauge("sm_clock_max_hertz", "hertz", "Highest SM clock the card offers.", "fact"),
    _gauge("memory_clock_hertz", "hertz", "Memory clock."),
    Series(
        f"{PREFIX}temperature_celsius",
        "gauge",
        "celsius",
        "Temperature by sensor.",
        (*IDENTITY, "sensor"),
        "signal",
        "now",
        tuple((sensor, f"{sensor}_temperature_celsius") for sensor in TEMPERATURE_SENSORS),
    ),
    _gauge("memory_used_bytes", "bytes", "Device memory held."),
    _gauge("memory_total_bytes", "bytes", "Device memory there is.", "fact"),
    # Driver counters, as increments since the agent's start
    _gain("energy_joules", "joules", "Energy used since the agent's start.", "energy_joules", "driver"),
    _gain(
        "pcie_receive_bytes",
        "bytes",
        "Bytes from host to device over PCIe since the agent's start.",
        "pcie_receive_bytes_per_second",
        "driver",
    ),
    _gain(
        "pcie_transmit_bytes",
        "bytes",
        "Bytes from device to host over PCIe since the agent's start.",
        "pcie_transmit_bytes_per_second",
        "driver",
    ),
    _gain(
        "nvlink_receive_bytes",
        "bytes",
        "Bytes received over all NVLinks since the agent's start.",
        "nvlink_receive_bytes_per_second",
        "driver",
    ),
    _gain(
        "nvlink_transmit_bytes",
        "bytes",
        "Bytes sent over all NVLinks since the agent's start.",
        "nvlink_transmit_bytes_per_second",
        "driver",
    ),
    Series(
        f"{PREFIX}xid_events_total",
        "counter",
        "",
        "Xid errors that the driver reported, by code, since the agent's start.",
        (*IDENTITY, "xid"),
        "agent",
        "read",
    ),
    # The host
    Series(
        f"{PREFIX}host_cpu_seconds_total",
        "counter",
        "seconds",
        "CPU seconds of the host by mode, since the agent's start.",
        ("mode",),
        "host",
        "read",
    ),
    Series(
        f"{PREFIX}host_pressure_seconds_total",
        "counter",
        "seconds",
        "Seconds in which some task of the host waited for this resource, since the agent's start.",
        ("resource",),
        "host",
        "read",
    ),
    _gain(
        "process_tree_cpu_seconds",
        "seconds",
        "CPU seconds of the GPU's processes and their helpers.",
        "process_tree_cpu_cores",
        "read",
    ),
    _gauge(
        "process_tree_hottest_thread_cores",
        "cores",
        "CPU use of the busiest thread of the GPU's process tree.",
    ),
    _gain(
        "process_tree_runqueue_wait_seconds",
        "seconds",
        "Seconds that the GPU's processes were ready to run and waited for a CPU.",
        "process_tree_runqueue_wait_ratio",
        "read",
    ),
    _gain(
        "process_tree_throttled_seconds",
        "seconds",
        "Seconds that a cgroup CPU quota held the GPU's processes.",
        "process_tree_throttled_ratio",
        "read",
    ),
    # Whose it was
    _workload(
        "verdict_seconds_total",
        "counter",
        "seconds",
        "Seconds that a workload held the GPU, by verdict; where several share it, each has its part.",
        "verdict",
    ),
    _workload(
        "lost_seconds_total",
        "counter",
        "seconds",
        "Seconds that a workload lost, by the verdict and cause they are charged to.",
        "verdict",
        "cause",
        life="cause",
    ),
    _workload("useful_seconds_total", "counter", "seconds", "A workload's seconds at the speed of light."),
    _workload(
        "measured_seconds_total",
        "counter",
        "seconds",
        "A workload's seconds with all signals that useful time needs.",
    ),
    _workload(
        "share_ratio",
        "gauge",
        "ratio",
        "The workload's part of the GPU's time in the last interval; under 1 it was shared.",
        life="now",
    ),
    _workload(
        "info",
        "info",
        "",
        "The runs (pods, jobs, containers) of a workload in the last interval, and the profile it is judged by.",
        "run",
        "profile",
        life="now",
    ),
    Series(
        f"{PREFIX}workloads_overflowed_total",
        "counter",
        "",
        "Workloads that came when there were series for as many as are allowed, and are counted as other.",
        (),
        "agent",
        "agent",
    ),
    # The GPU's identity and the agent itself
    Series(
        f"{PREFIX}gpu_info",
        "info",
        "",
        "What each row is: join on (instance, gpu, uuid, mig).",
        (*IDENTITY, "model", "driver", "pci_bus_id", "compute_capability", "profile"),
        "identity",
        "agent",
    ),
    Series(
        f"{PREFIX}gpu_share_ratio",
        "gauge",
        "ratio",
        "The row's part of a whole GPU, which weighs MIG slices in GPU-hours.",
        IDENTITY,
        "identity",
        "agent",
    ),
    Series(
        f"{PREFIX}gpu_up",
        "gauge",
        "",
        "1 while the GPU answers, 0 for one that was there and no longer does.",
        IDENTITY,
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}expected_gpus",
        "gauge",
        "",
        "GPUs that the configuration says this host has; absent where it does not say.",
        (),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}source_info",
        "info",
        "",
        "Sources in use on this host.",
        ("source",),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}source_up",
        "gauge",
        "",
        "1 while the source answers, 0 after it failed.",
        ("source",),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}source_yielding",
        "gauge",
        "",
        "1 while the source's profiling is paused or taken by another tool, and other sources stand in.",
        ("source",),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}source_degraded",
        "gauge",
        "",
        "1 while a lower source stands in for one that was lost.",
        (),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}signal_source_info",
        "info",
        "",
        "Which source served each signal in the last interval; absent means unavailable.",
        (*IDENTITY, "signal", "source"),
        "verdict",
        "now",
    ),
    Series(
        f"{PREFIX}reading_rejected_total",
        "counter",
        "",
        "Readings thrown away because they cannot be true.",
        ("signal", "reason"),
        "agent",
        "agent",
    ),
    Series(
        f"{PREFIX}tick_duration_seconds",
        "summary",
        "seconds",
        "How long one tick of reading and judging took.",
        (),
        "agent",
        "agent",
    ),
    Series(
        f"{PREFIX}ticks_missed_total",
        "counter",
        "",
        "Ticks left out because an earlier one took too long.",
        (),
        "agent",
        "agent",
    ),
    Series(
        f"{PREFIX}last_sample_timestamp_seconds",
        "gauge",
        "seconds",
        "Unix time of the last device reading; scrapes are answered from readings taken at the tick.",
        (),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}store_up",
        "gauge",
        "",
        "1 while local history is kept, 0 while it cannot be; absent where it is switched off.",
        (),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}store_dropped_seconds_total",
        "counter",
        "seconds",
        "Seconds of GPUs that local history left out, because its file could not be written for long.",
        (),
        "health",
        "agent",
    ),
    Series(
        f"{PREFIX}values_dropped_total",
        "counter",
        "",
        "Values left out because they were no finite number or had no place in the vocabulary.",
        (),
        "exporter",
        "agent",
    ),
    Series(
        f"{PREFIX}exposition_errors_total",
        "counter",
        "",
        "Renderings, or pieces of one, that failed and were left out or answered from the last good one.",
        (),
        "exporter",
        "agent",
    ),
    Series(
        f"{PREFIX}build_info",
        "info",
        "",
        "Versions of the agent and its Python.",
        ("version", "python"),
        "exporter",
        "agent",
    ),
)

SERIES_BY_NAME: dict[str, Series] = {series.name: series for series in SERIES}
