"""Busy by the engine, but neither the compute pipes nor DRAM are."""

from __future__ import annotations

from dataclasses import replace

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import MISSING, Check, Limit, at_least, below, evidence, margin, shown
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import PSEUDO_PEAK

COMPUTE = Limit(0.25, "half of the weakest tensor activity seen in good training")
DRAM = Limit(0.55, "Nsight Compute: below 0.6 of peak in both compute and memory is a latency problem")
LINK = Limit(
    0.30, "a collective that moves data runs links at 0.3-0.8 of peak; control traffic stays under 0.05"
)
PEER_LIKENESS = 0.20  # ranks of one job do the same work within this share
PEER_BUSY = Limit(0.50, "a peer this much less busy, doing the same work, is the one that is waited for")
FEW_SMS = Limit(0.40, "a grid that fills two fifths of the SMs leaves most of the card empty")
SPIN_POWER = Limit(
    0.15,
    "resident warps that compute draw 0.7 and more of the power span per SM activity; spinning ones 0.04",
)
SPIN_SM = Limit(0.50, "below it, few SMs explain the low power")
BLIND_POWER = Limit(0.15, "without all pipes: this little power cannot hide FP64 or FP32 work")
REDUCED_UTIL = Limit(0.90, "without profiling: resident all the time by GPU-Util")
REDUCED_POWER = Limit(
    0.25, "without profiling: an all-reduce draws 0.25 of the power span, an FP64 kernel 0.33"
)
REDUCED_MEMORY_UTIL = Limit(
    0.40, "without profiling: LLM decode draws a fifth of the limit too, but touches DRAM nearly always"
)
REDUCED_CEILING = 0.45


def judge(case: Case) -> Finding | None:
    """``pseudo-peak`` with its cause, where compute and DRAM are both low per busy time."""
    pipe, busy = case.busiest_pipe, case.busy_low
    if pipe is None:
        return None
    signal, peak = f"{pipe}_active_ratio", getattr(case.card, f"{pipe}_peak_ratio")
    compute = shown(
        below(signal, case.density_at_most(case.compute), COMPUTE),
        *case.evidence(signal, f"< {COMPUTE.value * busy * peak:.3g}"),
    )
    dram = shown(
        below("dram_active_ratio", case.density_at_most(case.dram), DRAM),
        *case.evidence("dram_active_ratio", f"< {DRAM.value * busy * case.card.dram_peak_ratio:.3g}"),
    )
    if not (compute and dram):
        return None
    # A pipe that was not read may be the one that works: only what draws no power is surely idle.
    every_pipe = case.all_pipes and case.pipe("int") is not None
    quiet = MISSING if every_pipe else _little_power(case, BLIND_POWER)
    if not (quiet or case.all_pipes):
        return None
    ceiling = 1.0 if quiet or every_pipe else REDUCED_CEILING
    cause, why = _cause(case)
    found = (*case.evidence(case.low_signal, "busy"), *evidence(compute, dram, quiet), *why)
    return Finding(PSEUDO_PEAK, cause, margin(compute, dram, quiet), found, ceiling=ceiling)


def _little_power(case: Case, limit: Limit) -> Check:
    return shown(
        below(case.power_signal, case.power_ratio, limit),
        *case.evidence(case.power_signal, f"< {limit.value} of the span from idle to limit"),
    )


def judge_reduced(case: Case) -> Finding | None:
    """Without any profiling counter: always resident, and hardly any power or access to memory."""
    util = at_least("gpu_util_ratio", case.mean("gpu_util_ratio"), REDUCED_UTIL)
    power = _little_power(case, REDUCED_POWER)
    memory = below("memory_util_ratio", case.mean("memory_util_ratio"), REDUCED_MEMORY_UTIL)
    if not (util and power) or (case.mean("memory_util_ratio") is not None and not memory):
        return None
    return Finding(
        PSEUDO_PEAK,
        "spin-wait",
        margin(util, power, memory),
        evidence(util, power, memory),
        ceiling=REDUCED_CEILING,
    )


def _cause(case: Case) -> tuple[str, tuple[Evidence, ...]]:
    link = busiest_link(case)
    if link:
        return "communication", evidence(link)
    late = _late_peer(case)
    if late is not None:
        return "spin-wait", late
    sm = case.mean("sm_active_ratio")
    if below("sm_active_ratio", case.density_at_most(sm), FEW_SMS):
        return "few-sms", case.evidence("sm_active_ratio", f"< {FEW_SMS.value * case.busy_low:.3g}")
    power, resident = case.power_ratio, at_least("sm_active_ratio", sm, SPIN_SM)
    spin = shown(
        below(case.power_signal, None if power is None or not sm else power / sm, SPIN_POWER),
        *case.evidence(case.power_signal, f"< {SPIN_POWER.value} of the span per SM activity"),
    )
    if spin and resident:
        return "spin-wait", evidence(resident, spin)
    if sm is None or power is None:
        return "undetermined", ()
    return "latency-bound", case.evidence("sm_active_ratio", f">= {FEW_SMS.value * case.busy_low:.3g}")


def busiest_link(case: Case) -> Check:
    """NVLink or PCIe, either direction, against its peak."""
    pcie = case.card.pcie_bytes_per_second
    generation, width = case.interval.gpu.pcie_generation, case.interval.gpu.pcie_width
    if generation and width:
        # Practical rate per lane of PCIe gen 3, doubling with each generation.
        pcie = 0.8e9 * width * 2.0 ** (min(generation, 6) - 3)
    for kind, peak in (("nvlink", case.card.nvlink_bytes_per_second), ("pcie", pcie)):
        for direction in ("receive", "transmit"):
            signal = f"{kind}_{direction}_bytes_per_second"
            value = case.mean(signal)
            if peak and value is not None:
                check = at_least(signal, value, LINK.value * peak)
                if check:
                    return check
    return MISSING


def _late_peer(case: Case) -> tuple[Evidence, ...] | None:
    """A GPU of the same job that does the same work in less busy time: ours spins for it."""
    for peer in case.family_peers:
        slower = below(peer.high_signal, peer.busy_high, PEER_BUSY.value * case.busy_low)
        if slower and all(
            _alike(case.mean(name), peer.mean(name)) for name in ("tensor_active_ratio", "dram_active_ratio")
        ):
            test = f"< {PEER_BUSY.value * case.busy_low:.3g} at the same work"
            return tuple(
                replace(item, signal=f"{item.signal} of GPU {peer.interval.gpu.index}")
                for item in peer.evidence(peer.high_signal, test)
            )
    return None


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    top = max(one, other)
    return top > 0.002 and abs(one - other) <= PEER_LIKENESS * top
