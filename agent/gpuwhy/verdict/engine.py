"""Intervals of one host to verdicts: which rule decides, how sure it is, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwhy.interval import Interval, Portion
from gpuwhy.verdict.cards import find
from gpuwhy.verdict.case import PIPES, Case, Finding
from gpuwhy.verdict.check import Limit
from gpuwhy.verdict.learn import Learner
from gpuwhy.verdict.rules import healthy, idle, memory_bound, pseudo_peak, starving, telemetry, throttled
from gpuwhy.verdict.types import NO_DATA, CauseKey, Evidence, TimeSplit, Verdict, WorkloadVerdict
from gpuwhy.verdict.vocabulary import HEALTHY, IDLE, MEMORY_BOUND, STARVING, THROTTLED, UNKNOWN

COVERAGE = Limit(0.60, "below it, what was not seen could overturn the verdict")
LEAST_CONFIDENCE = Limit(0.35, "below it a verdict would be a guess")
UNATTRIBUTED_GAP = Limit(0.05, "launch gaps of any load; nobody can be blamed for them")
STILL = Limit(0.05, "below it there is no busy part to judge")
WORKS_RATIO = Limit(0.05, "of what all of a GPU's processes use: below it, the driver's estimate is noise")
WORKS_PARKED_RATIO = Limit(
    0.25, "where no thread launches anything, one estimate of a few seconds may be off by that much"
)
WARM_UP_S = 120.0

CEILING_ALL = 0.95
CEILING_NO_HOST = 0.70
CEILING_PARTIAL = 0.70
CEILING_NO_PROFILING = 0.45
CEILING_NO_CLOCK = 0.45  # throttling cannot be ruled out
CEILING_UNKNOWN_CARD = 0.60


def judge(
    intervals: Sequence[Interval],
    *,
    profile: str = "unknown",
    cards: Mapping[str, Mapping[str, float]] | None = None,
    learner: Learner | None = None,
) -> list[Verdict]:
    """One verdict per interval. All GPUs of a host come together: peers are evidence.

    ``profile`` is what the host is for: "throughput", "latency" or "unknown". ``learner`` refines
    each GPU's numbers and learns from these intervals. Nothing raises for what was or was not read.
    """
    rows = [find(interval.gpu.model, cards) for interval in intervals]
    boards = {interval.gpu.uuid: interval for interval in intervals if interval.gpu.split}
    cases = [
        Case.of(
            interval,
            row if learner is None else learner.card(interval.gpu.key, row),
            profile,
            boards.get(interval.gpu.uuid) if interval.gpu.mig else None,
        )
        for interval, row in zip(intervals, rows, strict=True)
    ]
    for_each = [replace(case, peers=tuple(peer for peer in cases if peer is not case)) for case in cases]
    verdicts = [_verdict(case) for case in for_each]
    if learner is not None:
        for interval, row, verdict in zip(intervals, rows, verdicts, strict=True):
            learner.learn(interval, verdict, row)
    return verdicts


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the rules say of one case."""

    headline: Finding
    confidence: float
    gap: Finding | None
    busy: Finding | None
    measured: bool
    time: TimeSplit


def _verdict(case: Case) -> Verdict:
    interval = case.interval
    if interval.covered_s <= 0:
        return _unseen(case)
    profile, hint = _profile(interval.portions, case.profile)
    case = replace(case, profile=profile, hint=hint)
    judged = _judged(case)
    portions = [_portion(case, portion, judged) for portion in interval.portions]
    apart = _disagreement(case, judged.headline, portions)
    if apart is not None:
        judged = _judged(case, apart)
    headline, busy, gap = judged.headline, judged.busy, judged.gap
    sol = max(case.compute or 0.0, case.dram or 0.0)
    return Verdict(
        gpu=interval.gpu,
        start_s=interval.start_s,
        end_s=interval.end_s,
        unix_end_s=interval.unix_end_s,
        verdict=headline.verdict,
        cause=headline.cause,
        confidence=judged.confidence,
        evidence=_with_gap(case, headline),
        time=judged.time,
        gap_cause=None if gap is None else gap.key,
        busy_verdict=None if busy is None else busy.key,
        reason=headline.reason,
        flags=_flags(case),
        up=interval.up,
        workloads=tuple(portions),
        speed_of_light=min(1.0, sol) if judged.measured else None,
        owners=tuple(sorted(interval.owners or ())),
        signals=case.means,
        sources=interval.sources,
        increments={**{name: stat.integral for name, stat in interval.stats.items()}, **interval.gains},
        clock_events=None
        if interval.reasons is None
        else {reason: share * interval.covered_s for reason, share in interval.reasons.items()},
    )


def _judged(case: Case, instead: Finding | None = None) -> _Judged:
    """What the rules say, or what follows from ``instead`` as the headline."""
    interval = case.interval
    if interval.gpu.split:
        fault = throttle = busy = None
        gap: Finding | None = idle.unallocated(case)
        headline = _thin(case) or idle.unallocated(case)
    else:
        throttle = throttled.judge(case)
        fault = telemetry.judge(case)
        busy = _busy_part(case)
        gap = _gap_part(case)
        headline = instead or _thin(case) or fault or throttle or _headline(case, busy, gap)
    confidence = min(headline.ceiling, _ceiling(case, headline)) * headline.margin
    if headline.verdict == UNKNOWN:
        confidence = {"telemetry-fault": confidence, "mixed": 0.5}.get(headline.cause, 0.0)
    elif confidence < LEAST_CONFIDENCE.value:
        headline = Finding(
            UNKNOWN,
            "insufficient-evidence",
            1.0,
            headline.evidence,
            reason=f"{headline.verdict}/{headline.cause} fits best, but only with confidence {confidence:.2f}",
        )
        confidence = 0.0
    measured = case.measured and fault is None
    time = _time(case, headline, busy, gap, throttle, measured=measured)
    return _Judged(headline, round(min(1.0, max(0.0, confidence)), 4), gap, busy, measured, time)


def _profile(portions: Sequence[Portion], host: str) -> tuple[str, str]:
    """What the work on a GPU aims at, and who said so: all of its workloads alike, or the host's profile."""
    said = {(tenant.profile, tenant.hint) for portion in portions for tenant in portion.tenants}
    profiles = {profile for profile, _ in said}
    if len(profiles) != 1 or "" in profiles:
        return host, ""
    return min(said)


def _portion(case: Case, portion: Portion, whole: _Judged) -> WorkloadVerdict:
    """One workload's verdict: the GPU's where it is alone on it, else what its own process tree says."""
    profile, hint = _profile([portion], case.profile)
    own = case if len(case.interval.portions) == 1 else case.of_portion(portion, profile, hint)
    judged = whole if own is case else _judged(own)
    return WorkloadVerdict(
        workload=portion.workload,
        tenants=portion.tenants,
        ratio=portion.ratio,
        basis=portion.basis,
        verdict=judged.headline.verdict,
        cause=judged.headline.cause,
        confidence=judged.confidence,
        evidence=_with_gap(own, judged.headline),
        time=judged.time.part(portion.ratio),
        profile=profile,
        hint=hint,
    )


def _disagreement(case: Case, headline: Finding, workloads: Sequence[WorkloadVerdict]) -> Finding | None:
    """``unknown/mixed`` where a GPU would be starving, but one of those that work on it is not held up
    by its host: a gap that one of them wants filled may be another's pause.
    """
    if headline.verdict != STARVING or len(workloads) < 2:
        return None
    portions = {portion.workload: portion for portion in case.interval.portions}
    working = [each for each in workloads if _works(each, portions[each.workload])]
    # Of one that nobody can see it is not known that its host holds it up.
    seen = [each.verdict == STARVING and bool(portions[each.workload].stats) for each in working]
    if working and all(seen):
        return None
    said = ", ".join(f"{each.workload.title} {each.verdict}/{each.cause}" for each in workloads)
    return Finding(
        UNKNOWN, "mixed", 1.0, headline.evidence, reason=f"the workloads that share the GPU differ: {said}"
    )


def _works(verdict: WorkloadVerdict, portion: Portion) -> bool:
    """Whether a workload that shares a GPU uses it, by the driver's estimate, or by its own threads."""
    hottest = portion.stats.get("process_tree_hottest_thread_cores")
    parked = hottest is not None and hottest.mean < idle.HELD.value
    if verdict.basis == "utilization":
        return verdict.ratio >= (WORKS_PARKED_RATIO if parked else WORKS_RATIO).value
    return not parked


def _unseen(case: Case) -> Verdict:
    interval = case.interval
    return Verdict(
        gpu=interval.gpu,
        start_s=interval.start_s,
        end_s=interval.end_s,
        unix_end_s=interval.unix_end_s,
        verdict=UNKNOWN,
        cause="no-data",
        confidence=0.0,
        evidence=(),
        time=TimeSplit(observed=interval.length_s, verdict={NO_DATA: interval.length_s}),
        reason="no reading of this GPU came in this interval",
        up=interval.up,
    )


def _thin(case: Case) -> Finding | None:
    """``unknown`` where too little was read of what says whether the GPU is busy."""
    length = case.interval.length_s
    coverage = min(1.0, case.covered_s(case.high_signal) / length) if length > 0 else 0.0
    if coverage >= COVERAGE.value:
        return None
    return Finding(
        UNKNOWN,
        "insufficient-evidence",
        1.0,
        (Evidence("coverage", coverage, f"< {COVERAGE.value}"),),
        reason=f"readings cover {coverage:.0%} of the interval, {COVERAGE.value:.0%} are needed",
    )


def _headline(case: Case, busy: Finding | None, gap: Finding | None) -> Finding:
    free = idle.free(case)
    if free is not None:
        return free
    wide = starving.gap(case)
    if wide and gap is not None:
        return replace(gap, margin=min(gap.margin, wide.margin))
    if busy is not None:
        return busy
    return _undecided(case)


def _undecided(case: Case) -> Finding:
    if case.profiled and case.busy_read is not None and case.all_pipes and case.dram is not None:
        return Finding(
            UNKNOWN,
            "mixed",
            1.0,
            (
                Evidence(
                    f"{case.busiest_pipe}_active_ratio",
                    case.mean(f"{case.busiest_pipe}_active_ratio") or 0.0,
                    "between two verdicts",
                ),
                Evidence("dram_active_ratio", case.mean("dram_active_ratio") or 0.0, "between two verdicts"),
            ),
            reason="compute and DRAM lie between pseudo-peak and a limit",
        )
    missing = [
        name
        for name in (
            "graphics_active_ratio",
            "tensor_active_ratio",
            "fp64_active_ratio",
            "fp32_active_ratio",
            "dram_active_ratio",
        )
        if case.mean(name) is None
    ]
    reason = (
        f"not read: {', '.join(missing)}" if missing else "power and clock allow more than one explanation"
    )
    return Finding(UNKNOWN, "insufficient-evidence", 1.0, (), reason=reason)


def _busy_part(case: Case) -> Finding | None:
    """What the time is like while the engine works, or None where nothing decides."""
    if case.busy_high < STILL.value:
        return None
    if case.profiled:
        if case.busy_read is None and case.busy_low < 1 - starving.GAP.value:
            return None
        return memory_bound.judge(case) or healthy.judge(case) or pseudo_peak.judge(case)
    return memory_bound.judge_reduced(case) or healthy.judge_reduced(case) or pseudo_peak.judge_reduced(case)


def _gap_part(case: Case) -> Finding | None:
    """Who leaves the engine waiting, or None where there is no gap worth a name."""
    if 1 - case.busy_high < UNATTRIBUTED_GAP.value:
        return None
    if case.owners is not None and not case.owners:
        # Busy with no process in the list: somebody is hidden from us and cannot be asked.
        return idle.free(case) or idle.judge(case) or starving.undetermined(case)
    polling = idle.polls(case)
    if polling is not None:
        return polling
    return starving.judge(case) or idle.judge(case) or starving.undetermined(case)


def _ceiling(case: Case, headline: Finding) -> float:
    if case.interval.gpu.split:
        return CEILING_ALL
    ceilings = [CEILING_ALL]
    host = case.host_read
    if headline.verdict == IDLE and case.owners is not None and not case.owners:
        host = True  # without a process there is no tree to be read
    if not host:
        ceilings.append(CEILING_NO_PROFILING if headline.verdict in {STARVING, IDLE} else CEILING_NO_HOST)
    if headline.verdict not in {IDLE, STARVING}:
        if not case.all_pipes or case.mean("sm_active_ratio") is None:
            ceilings.append(CEILING_PARTIAL)
        if headline.verdict != THROTTLED and case.mean("sm_clock_hertz") is None:
            ceilings.append(CEILING_NO_CLOCK)
    if not case.profiled:
        ceilings.append(CEILING_NO_PROFILING)
    if not case.card.known:
        ceilings.append(CEILING_UNKNOWN_CARD)
    return min(ceilings)


def _with_gap(case: Case, headline: Finding) -> tuple[Evidence, ...]:
    wide = starving.gap(case)
    if headline.verdict in {STARVING, IDLE} and wide.evidence is not None and headline.cause != "free":
        return (wide.evidence, *(item for item in headline.evidence if item.signal != wide.evidence.signal))
    return headline.evidence


def _flags(case: Case) -> frozenset[str]:
    age = case.mean("process_tree_age_seconds")
    return frozenset({"warm-up"}) if age is not None and age < WARM_UP_S else frozenset()


def _time(
    case: Case,
    headline: Finding,
    busy: Finding | None,
    gap: Finding | None,
    throttle: Finding | None,
    *,
    measured: bool,
) -> TimeSplit:
    """Splits the interval by the formula of ``docs/verdicts.md``; nothing is counted twice.

    ``unknown`` blames nobody: what it did not use is left unattributed.
    """
    interval = case.interval
    covered, length = interval.covered_s, interval.length_s
    seconds: dict[CauseKey, float] = {headline.key: covered}
    if length - covered > 0:
        seconds[NO_DATA] = seconds.get(NO_DATA, 0.0) + length - covered
    if headline.verdict == UNKNOWN:
        busy = gap = throttle = None
    lost: dict[CauseKey, float] = {}
    headroom = free = 0.0
    # Of the headline's time, that for which what the split rests on was read.
    needed = [case.exact_signal, "dram_active_ratio", *(f"{name}_active_ratio" for name in PIPES)]
    read_s = case.covered_s(*(needed if measured else [case.high_signal]))

    def charge(blamed: Finding | None, share: float) -> None:
        nonlocal headroom, free
        if blamed is None or share <= 0:
            return
        if blamed.key == (IDLE, "free"):
            free += share * read_s
        elif blamed.verdict in {HEALTHY, MEMORY_BOUND}:
            headroom += share * read_s
        else:
            lost[blamed.key] = lost.get(blamed.key, 0.0) + share * read_s

    if interval.gpu.split:
        charge(gap, 1.0)
        return TimeSplit(observed=length, free=free, verdict=seconds)
    if not measured:
        if 1 - case.busy_high >= UNATTRIBUTED_GAP.value:
            charge(gap, 1 - case.busy_high)
        return TimeSplit(observed=length, free=free, lost=lost, verdict=seconds)
    read, compute, dram = case.busy_low, case.compute or 0.0, case.dram or 0.0
    used = min(1.0, max(compute, dram, min(read, compute + dram)))
    total = max(read, used)
    idle_share, slack = 1 - total, total - used
    if read < STILL.value:
        idle_share, slack = idle_share + slack, 0.0
    if idle_share >= UNATTRIBUTED_GAP.value:
        charge(gap, idle_share)
    charge(busy, slack)
    k = 1.0 if throttle is None else _speed(case)
    charge(throttle, used * (1 - k))
    return TimeSplit(
        observed=length,
        measured=read_s,
        useful=used * k * read_s,
        headroom=headroom,
        free=free,
        lost=lost,
        verdict=seconds,
    )


def _speed(case: Case) -> float:
    """Speed that throttling leaves, as clock over expected clock; the memory's where DRAM leads."""
    if (case.dram or 0.0) > (case.compute or 0.0):
        ratio, expected = case.memory_clock_ratio, 1.0
    else:
        ratio, expected = case.clock_ratio, throttled.expected_clock_ratio(case)
    return 1.0 if ratio is None else min(1.0, ratio / expected)
