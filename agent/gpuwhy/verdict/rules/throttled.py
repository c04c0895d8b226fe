"""Clocks held down harmfully. A power cap at full load is normal and no throttling."""

from __future__ import annotations

from dataclasses import replace

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import Check, Limit, at_least, below, evidence, margin, shown
from gpuwhy.verdict.rules import memory_bound
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import THROTTLED

BUSY = Limit(0.50, "an idle GPU lowers its clock and may show any reason; that harms nobody")
HARD_SHARE = Limit(0.05, "one slowdown sample flashes at P-state changes; two samples and 5 % do not")
HARD_SAMPLES = 2
SOFT_SHARE = Limit(
    0.20, "software thermal slowdown comes and goes around the limit; a fifth of the time costs work"
)
SOFT_CLOCK = Limit(0.85, "server-test guides call 0.80-0.95 of the maximum a healthy steady clock")
SLOWDOWN_SHARE = Limit(0.20, "the umbrella bit alone also flashes for fast power excursions")
CAP_SHARE = Limit(0.50, "a cap that holds less than half the time is a peak being cut")
CAP_CLOCK = Limit(
    0.89, "times the card's clock at full load (0.65 of the maximum on H200, whose bf16 GEMM runs at 0.73)"
)
LOW_LIMIT = Limit(0.95, "an enforced limit 5 % under the default is somebody's setting or another supply")
LOW_LIMIT_CLOCK = Limit(1.10, "times the card's clock at full load (0.80 of the maximum on H200)")
DEEP_LIMIT = Limit(0.60, "no data-centre card keeps its speed on 60 % of its default limit")
LOCK_SHARE = Limit(0.50, "an application clock is set for long or not at all")
FULL_LOAD = Limit(0.35, "as for healthy: compute that lets a card run into its power limit")
HELD_CLOCK = Limit(0.95, "a clock nearer to the maximum is not held")
AT_LIMIT = Limit(0.90, "of the power limit: under it a card has power to spare")
UNREPORTED_CLOCK = Limit(0.90, "times the expected clock: 10 % below it with no reason given")
BOUND_CLOCK = Limit(
    0.65, "of the maximum: memory-bound work keeps its speed down to this SM clock (decode under a cap)"
)
FULL_MEMORY_CLOCK = Limit(0.98, "of the maximum: memory-bound work is not held while memory is not")
DEEP_CEILING = 0.60  # the clock does not show the harm
UNREAD_CEILING = 0.45  # nothing but the clock was read, or nothing is known of the card's clock


def judge(case: Case) -> Finding | None:
    """``throttled`` with its cause, or None. Judged only while the GPU is busy."""
    # Where nothing bounds busy time from above, what was seen at work has to do.
    busy = case.busy_low if case.high_signal is None else case.busy_high
    if not at_least(case.high_signal or case.low_signal, busy, BUSY):
        return None
    if case.clocked.reasons is None:
        return _reasons_unread(case)
    for rule in (_hard, _slowdown, _sw_thermal, _power_cap, _held):
        finding = rule(case)
        if finding is not None:
            return finding
    return _unreported(case)


def expected_clock_ratio(case: Case) -> float:
    """SM clock over maximum that this load should run at on this card."""
    density = case.density_at_most(case.compute)
    light = case.all_pipes and density is not None and density < FULL_LOAD.value
    return case.card.light_load_clock_ratio if light else case.card.full_load_clock_ratio


def _found(case: Case, cause: str, *checks: Check, ceiling: float = 1.0) -> Finding:
    found = evidence(*checks)
    if not any(item.signal == "sm_clock_hertz" for item in found):
        found += case.evidence("sm_clock_hertz", "seen meanwhile")
    return Finding(THROTTLED, cause, margin(*checks), found, ceiling=ceiling)


def _share(case: Case, reason: str, limit: Limit) -> Check:
    return at_least(f"clock_event_ratio:{reason}", case.reason(reason), limit)


def _clock(case: Case, limit: Limit, scale: float = 1.0) -> Check:
    """Whether the clock lies under ``limit`` times ``scale`` of the maximum; evidence in hertz."""
    share = min(1.0, limit.value * scale)
    test = f"< {share * (case.clock_max_hertz or 0.0):.4g}"
    return shown(below("sm_clock_hertz", case.clock_ratio, share), *case.evidence("sm_clock_hertz", test))


def _seen_enough(case: Case, reason: str) -> bool:
    seen = (case.clocked.reason_samples or {}).get(reason, 0)
    # Seen by the driver's counter alone, the share speaks for itself.
    return seen == 0 or seen >= HARD_SAMPLES


def _hard(case: Case) -> Finding | None:
    for reason, cause in (("hw-power-brake", "power-brake"), ("hw-thermal", "hw-thermal")):
        share = _share(case, reason, HARD_SHARE)
        if share and _seen_enough(case, reason):
            return _found(case, cause, share)
    return None


def _slowdown(case: Case) -> Finding | None:
    share, clock = _share(case, "hw-slowdown", SLOWDOWN_SHARE), _clock(case, SOFT_CLOCK)
    return _found(case, "hw-slowdown", share, clock) if share and clock else None


def _sw_thermal(case: Case) -> Finding | None:
    share, clock = _share(case, "sw-thermal", SOFT_SHARE), _clock(case, SOFT_CLOCK)
    return _found(case, "sw-thermal", share, clock) if share and clock else None


def _power_cap(case: Case) -> Finding | None:
    share = _share(case, "sw-power-cap", CAP_SHARE)
    if not share:
        return None
    full_load = case.card.full_load_clock_ratio
    lowered = _limit(case, LOW_LIMIT)
    by_dram = memory_bound.judge(case) if case.profiled else memory_bound.judge_reduced(case)
    memory_clock, clock = case.memory_clock_ratio, case.clock_ratio
    bound = by_dram is not None and (memory_clock is None or memory_clock >= FULL_MEMORY_CLOCK.value)
    if bound and (clock is None or clock >= BOUND_CLOCK.value):
        return None
    ceiling = 1.0 if case.card.known else UNREAD_CEILING
    far = _clock(case, CAP_CLOCK, full_load)
    if far:
        return _found(case, "power-cap", share, far, lowered, ceiling=ceiling)
    near = _clock(case, LOW_LIMIT_CLOCK, full_load)
    if lowered and near:
        return _found(case, "power-cap", share, lowered, near, ceiling=ceiling)
    deep = _limit(case, DEEP_LIMIT)
    held = _clock(case, HELD_CLOCK) or _at_limit(case)
    if deep and held and not bound:
        return _found(case, "power-cap", share, deep, ceiling=min(ceiling, DEEP_CEILING))
    return None


def _at_limit(case: Case) -> bool:
    """Whether the card draws what it may: a cap that nothing reaches holds nothing."""
    power = None if case.power_signal is None else case.mean(case.power_signal)
    limit = case.mean("power_limit_watts")
    return power is not None and bool(limit) and power >= AT_LIMIT.value * (limit or 0.0)


def _limit(case: Case, limit: Limit) -> Check:
    """Whether the enforced power limit lies under ``limit`` times the default one; limits are exact."""
    default = case.clocked.gpu.default_power_limit_watts or 0.0
    check = shown(
        below("power_limit_watts", case.limit_ratio, limit),
        *case.evidence("power_limit_watts", f"< {limit.value * default:.4g}"),
    )
    return replace(check, margin=1.0) if check else check


def _held(case: Case) -> Finding | None:
    for reason, cause in (("sync-boost", "sync-boost"), ("app-clocks", "clock-locked")):
        share, clock = _share(case, reason, LOCK_SHARE), _clock(case, SOFT_CLOCK)
        if share and clock:
            return _found(case, cause, share, clock)
    return None


def _unreported(case: Case) -> Finding | None:
    reasons = case.clocked.reasons or {}
    # The driver's counters know of no application clocks: without the mask nobody said "no reason".
    if case.clocked.reason_samples is None or any(share >= HARD_SHARE.value for share in reasons.values()):
        return None
    clock = _clock(case, UNREPORTED_CLOCK, expected_clock_ratio(case))
    if not clock:
        return None
    none = Evidence("clock_event_ratio", sum(reasons.values()), "no reason set")
    ceiling = 1.0 if case.card.known else UNREAD_CEILING
    return Finding(THROTTLED, "unreported", margin(clock), (*evidence(clock), none), ceiling=ceiling)


def _reasons_unread(case: Case) -> Finding | None:
    """The clock alone, against what even a full load would run at: it can convince only so far."""
    clock = _clock(case, UNREPORTED_CLOCK, case.card.full_load_clock_ratio)
    if not clock or not case.card.known:
        return None
    return _found(case, "unreported", clock, ceiling=UNREAD_CEILING)
