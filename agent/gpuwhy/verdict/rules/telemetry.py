"""Readings that contradict each other are a fault of the telemetry, never a verdict on the workload."""

from __future__ import annotations

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import Limit, at_least, below, evidence, margin, shown
from gpuwhy.verdict.vocabulary import UNKNOWN

UTIL = Limit(
    0.50, "trackers of DCGM report counters frozen at 0 while GPU-Util is near 1 (DCGM issues 202, 303)"
)
POWER = Limit(0.20, "power this far above an idle context cannot be drawn with every counter at 0")
COUNTERS = tuple(
    f"{name}_active_ratio" for name in ("graphics", "sm", "tensor", "dram", "fp64", "fp32", "fp16")
)


WORKING = Limit(0.50, "no pipe and no DRAM works half of the time on the power of an idle context")
NO_POWER = Limit(
    0.05, "of the span from idle to limit: an idle context; a spinning kernel draws about as little"
)
NO_UTIL = Limit(0.05, "nothing runs by GPU-Util")


def judge(case: Case) -> Finding | None:
    """``unknown/telemetry-fault`` where profiling counters stand at exactly 0 on a working GPU."""
    read = {name: value for name in COUNTERS if (value := case.mean(name)) is not None}
    stuck = _stuck_high(case)
    if stuck is not None:
        return stuck
    if not {"graphics_active_ratio", "sm_active_ratio"} & read.keys() or any(read.values()):
        return None
    util = at_least("gpu_util_ratio", case.mean("gpu_util_ratio"), UTIL)
    power = shown(
        at_least(case.power_signal, case.power_ratio, POWER),
        *case.evidence(case.power_signal, f">= {POWER.value} of the span from idle to limit"),
    )
    # Both speak where both were read: GPU-Util alone may be stuck, power alone may lag behind.
    # A copy in flight also reads GPU-Util 1 with no SM activity, but its engine and DRAM are not at exactly 0.
    if not (util or case.mean("gpu_util_ratio") is None) or not (power or case.power_ratio is None):
        return None
    # Counters at 0 agree with a GPU that no process holds: GPU-Util alone does not outweigh both.
    if not power and (not util or case.owners == frozenset()):
        return None
    return Finding(
        UNKNOWN,
        "telemetry-fault",
        margin(power, util),
        (*evidence(util), *case.evidence(next(iter(read)), "== 0"), *evidence(power)),
        reason="profiling counters stand at exactly 0 while power and GPU-Util say that the GPU works",
    )


def _stuck_high(case: Case) -> Finding | None:
    """Counters that stand at a busy value while neither power nor GPU-Util see anything."""
    name = max(
        ("tensor", "dram", "fp64", "fp32", "fp16"), key=lambda unit: case.mean(f"{unit}_active_ratio") or 0.0
    )
    works = at_least(f"{name}_active_ratio", case.mean(f"{name}_active_ratio"), WORKING)
    util = below("gpu_util_ratio", case.mean("gpu_util_ratio"), NO_UTIL)
    power = shown(
        below(case.power_signal, case.power_ratio, NO_POWER),
        *case.evidence(case.power_signal, f"< {NO_POWER.value} of the span from idle to limit"),
    )
    if not (works and util and power):
        return None
    return Finding(
        UNKNOWN,
        "telemetry-fault",
        margin(works, util, power),
        evidence(works, util, power),
        reason="profiling counters say that the GPU works while power and GPU-Util say that it does not",
    )
