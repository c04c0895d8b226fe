"""DRAM bandwidth is the limit of the busy part."""

from __future__ import annotations

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import Limit, at_least, evidence, margin
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import MEMORY_BOUND

DENSITY = Limit(
    0.65,
    "Nsight Compute calls 0.6 of peak well used and 0.8 the limit; a sort that is bound by DRAM shows 0.66",
)
UTIL = Limit(0.80, "without profiling: busy by GPU-Util")
MEMORY_UTIL = Limit(
    0.75, "without profiling: DRAM touched nearly always; tiny scattered access reads the same"
)
REDUCED_CEILING = 0.45


def judge(case: Case) -> Finding | None:
    """``memory-bound/bandwidth`` where DRAM leads and is near its practical peak per busy time."""
    dram, compute = case.dram, case.compute or 0.0
    if dram is None:
        return None
    density = at_least("dram_active_ratio", case.density(dram), DENSITY)
    if not density or dram <= compute:
        return None
    limit = DENSITY.value * case.busy_high * case.card.dram_peak_ratio
    found = [Evidence("dram_active_ratio", case.mean("dram_active_ratio") or 0.0, f">= {limit:.3g}")]
    pipe = case.busiest_pipe
    if pipe is not None:
        found.append(
            Evidence(
                f"{pipe}_active_ratio",
                case.mean(f"{pipe}_active_ratio") or 0.0,
                "less than DRAM, each over its peak",
            )
        )
    return Finding(MEMORY_BOUND, "bandwidth", margin(density), tuple(found))


def judge_reduced(case: Case) -> Finding | None:
    """The same without any profiling counter: a guess from time with memory access."""
    util = at_least("gpu_util_ratio", case.mean("gpu_util_ratio"), UTIL)
    memory = at_least("memory_util_ratio", case.mean("memory_util_ratio"), MEMORY_UTIL)
    if not (util and memory):
        return None
    return Finding(MEMORY_BOUND, "bandwidth", margin(memory), evidence(util, memory), ceiling=REDUCED_CEILING)
