"""Compute pipes are the limit, or close to it, or compute and DRAM together."""

from __future__ import annotations

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import Limit, at_least, evidence, margin, shown
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import HEALTHY

DENSITY = Limit(
    0.35, "fleet tensor activity of good training is 0.3-0.6; large models reach 0.38-0.48 of peak FLOPS"
)
TOGETHER = Limit(0.70, "compute and DRAM add up to most of the busy time: neither alone is short")
TOGETHER_COMPUTE = Limit(0.20, "below a fifth of the pipe it is no compute work")
POWER = Limit(0.75, "without profiling: power of a real load; a hot FP32 burn draws it too")
UTIL = Limit(0.60, "without profiling: busy by GPU-Util")
REDUCED_CEILING = 0.45


def judge(case: Case) -> Finding | None:
    """``healthy`` where a pipe, or a pipe and DRAM, carry the busy time."""
    pipe, compute, dram = case.busiest_pipe, case.compute, case.dram
    if pipe is None or compute is None:
        return None
    signal = f"{pipe}_active_ratio"
    value = case.mean(signal) or 0.0
    peak = getattr(case.card, f"{pipe}_peak_ratio")
    cause = "compute" if pipe == "tensor" else "compute-off-tensor"
    alone = at_least(signal, case.density(compute), DENSITY)
    if alone:
        found = Evidence(signal, value, f">= {DENSITY.value * case.busy_high * peak:.3g}")
        return Finding(HEALTHY, cause, margin(alone), (found,))
    both = at_least(signal, case.density(compute + (dram or 0.0)), TOGETHER)
    enough = at_least(signal, case.density(compute), TOGETHER_COMPUTE)
    if both and enough:
        return Finding(
            HEALTHY,
            cause,
            margin(both, enough),
            (
                Evidence(signal, value, f">= {TOGETHER_COMPUTE.value * case.busy_high * peak:.3g}"),
                Evidence(
                    "dram_active_ratio",
                    case.mean("dram_active_ratio") or 0.0,
                    f"with compute >= {TOGETHER.value} of busy",
                ),
            ),
        )
    return None


def judge_reduced(case: Case) -> Finding | None:
    """Without any profiling counter: power says that something works."""
    util = at_least("gpu_util_ratio", case.mean("gpu_util_ratio"), UTIL)
    power = shown(
        at_least(case.power_signal, case.power_ratio, POWER),
        *case.evidence(case.power_signal, f">= {POWER.value} of the span from idle to limit"),
    )
    if not (util and power):
        return None
    return Finding(HEALTHY, "compute", margin(power), evidence(util, power), ceiling=REDUCED_CEILING)
