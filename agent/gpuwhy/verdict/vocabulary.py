"""The closed vocabulary: every verdict and cause there is, with what it means.

Label values, JSON, alerts, dashboards and docs all come from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass

STARVING = "starving"
MEMORY_BOUND = "memory-bound"
THROTTLED = "throttled"
PSEUDO_PEAK = "pseudo-peak"
HEALTHY = "healthy"
IDLE = "idle"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for one verdict, and what it means in a sentence."""

    verdict: str
    name: str
    meaning: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.verdict, self.name)


VERDICTS: dict[str, str] = {
    STARVING: "a gap in the GPU's work, while someone in the owner's process tree works, waits or is blocked",
    MEMORY_BOUND: "DRAM bandwidth is the limit of the busy part",
    THROTTLED: "clocks are held down harmfully",
    PSEUDO_PEAK: "busy by the engine, but neither the compute pipes nor DRAM are",
    HEALTHY: "compute pipes are the limit, or close to it, or compute and DRAM together",
    IDLE: "nobody in the process tree wants the GPU",
    UNKNOWN: "the evidence does not decide",
}

CAUSES: tuple[Cause, ...] = (
    Cause(STARVING, "cpu-preprocess", "a worker or decoder is near a full core, or many are busy"),
    Cause(STARVING, "host-serial", "one thread works or synchronises between GPU bursts"),
    Cause(STARVING, "launch-bound", "the owner's thread is busy launching small kernels"),
    Cause(STARVING, "copy", "host-device copies run while the engine waits"),
    Cause(STARVING, "io-wait", "tasks are blocked on storage or network"),
    Cause(STARVING, "host-contention", "the owner's threads wait for a CPU or are held by a cgroup quota"),
    Cause(STARVING, "peer-wait", "it takes turns with another GPU of the same job"),
    Cause(STARVING, "undetermined", "there is a gap, and the host evidence does not say why"),
    Cause(MEMORY_BOUND, "bandwidth", "DRAM moves close to what the card can"),
    Cause(THROTTLED, "hw-thermal", "the hardware cut the clock by temperature"),
    Cause(THROTTLED, "sw-thermal", "the driver lowered the clock by temperature"),
    Cause(THROTTLED, "power-brake", "an external power brake holds the clock"),
    Cause(THROTTLED, "power-cap", "the power limit holds the clock far below what a full load needs"),
    Cause(THROTTLED, "sync-boost", "another GPU of the boost group holds the clock"),
    Cause(THROTTLED, "clock-locked", "somebody set an application clock below the maximum"),
    Cause(THROTTLED, "hw-slowdown", "the hardware slowed down without saying whether by heat or power"),
    Cause(THROTTLED, "unreported", "the clock is far below the expected one and no reason is given"),
    Cause(PSEUDO_PEAK, "few-sms", "kernels occupy a few of the SMs only"),
    Cause(PSEUDO_PEAK, "spin-wait", "kernels are resident and wait, drawing no power"),
    Cause(PSEUDO_PEAK, "communication", "a link is busy instead of the SMs"),
    Cause(PSEUDO_PEAK, "latency-bound", "stalls, small elementwise kernels, or work inside the L2 cache"),
    Cause(PSEUDO_PEAK, "undetermined", "busy without work, and the signals that would say why are missing"),
    Cause(HEALTHY, "compute", "tensor cores, alone or together with DRAM"),
    Cause(HEALTHY, "compute-off-tensor", "FP32, FP64, FP16 or integer pipes, not the tensor cores"),
    Cause(IDLE, "free", "no process holds the GPU"),
    Cause(IDLE, "held", "a process, or a job that was granted the GPU, holds it, and nothing runs"),
    Cause(IDLE, "no-demand", "it serves little: the owner's threads mostly sleep, or poll"),
    Cause(UNKNOWN, "telemetry-fault", "the readings contradict each other"),
    Cause(UNKNOWN, "no-data", "the agent ran and got no device reading"),
    Cause(UNKNOWN, "insufficient-evidence", "signals that would decide are missing"),
    Cause(UNKNOWN, "mixed", "the readings, or the workloads that share the GPU, allow two verdicts"),
)

CAUSE_BY_KEY: dict[tuple[str, str], Cause] = {cause.key: cause for cause in CAUSES}
