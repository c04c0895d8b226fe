"""Nobody in the process tree wants the GPU."""

from __future__ import annotations

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import MISSING, Check, Limit, at_least, below, evidence, margin
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import IDLE

NOTHING = Limit(
    0.002, "counters of a GPU that runs nothing read under 0.0001; one small kernel a second reads 0.002"
)
NOTHING_REDUCED = Limit(0.02, "GPU-Util has steps of 0.01 and shows driver calls")
FREE = Limit(0.02, "the tail of a process that just ended")
ASLEEP = Limit(
    0.45,
    "a server at a third of its capacity keeps its thread at 0.3 of a core; one that works all the time at 1.0",
)
HELD = Limit(0.05, "a parked process wakes up for housekeeping only")
POLLING = Limit(0.25, "a loop around a system call: share of system time; work in Python reads under 0.16")
UNSEEN_BUSY = Limit(0.05, "more than what a process leaves behind")
UNSEEN_CPU = Limit(0.01, "cores: nobody launches kernels for a twentieth of the time with less")
FREE_MEMORY = 1.5e9  # bytes: driver and firmware hold up to 0.6 GB of a large card, a CUDA context adds 0.5
SOME_MEMORY = 1e9  # bytes
FREE_POWER = 0.85  # H200: 81 W without a context, 120-128 W with one
TRAFFIC = 1e6  # bytes per second above the bus's idle floor
GUESS_CEILING = 0.45  # what would have shown another verdict was not read


def free(case: Case) -> Finding | None:
    """``idle/free``: no process holds the GPU and nothing runs; ``idle/held`` where it was given to a
    job all the same, which keeps others off it.
    """
    if case.owners is None or case.owners:
        return None
    signal, busy = (case.low_signal, case.busy_low) if case.profiled else (case.high_signal, case.busy_high)
    quiet = below(signal, busy, FREE)
    if not quiet or moves(case) or _is_held(case):
        return None
    if case.granted:
        grant = Evidence("processes", 0.0, f"== 0, and granted to {case.granted}")
        return Finding(IDLE, "held", margin(quiet), (*evidence(quiet), grant))
    return Finding(IDLE, "free", margin(quiet), (*evidence(quiet), Evidence("processes", 0.0, "== 0")))


def unallocated(case: Case) -> Finding:
    """``idle/free`` for a board in MIG mode: its row stands for the share that no instance has."""
    share = Evidence("gpu_share_ratio", case.interval.gpu.share_ratio, "of the GPU, in no MIG instance")
    return Finding(IDLE, "free", 1.0, (share,))


def polls(case: Case) -> Finding | None:
    """``idle/no-demand`` for a thread that is hot asking, not working: nothing runs and nothing moves."""
    nothing = nothing_runs(case)
    system = at_least(
        "process_tree_owner_system_ratio", case.mean("process_tree_owner_system_ratio"), POLLING
    )
    if not (nothing and system) or moves(case):
        return None
    hot = at_least(
        "process_tree_hottest_thread_cores", case.mean("process_tree_hottest_thread_cores"), ASLEEP
    )
    if not hot:
        return None
    return Finding(IDLE, "no-demand", margin(nothing, system), evidence(nothing, system))


def judge(case: Case) -> Finding | None:
    """``idle`` where the tree sleeps: ``held`` if nothing runs at all, else ``no-demand``."""
    nothing = nothing_runs(case)
    if not case.host_read:
        if not nothing or moves(case):
            return None
        cause = "held" if case.owners or case.granted or not _looks_free(case) else "free"
        return Finding(IDLE, cause, margin(nothing), evidence(nothing), ceiling=GUESS_CEILING)
    asleep = _asleep(case)
    if not asleep:
        return None
    # A thread hotter than that sleeps in the gap only if it spins for the GPU, which it may not.
    surely = below(*hottest(case), ASLEEP) and _waits_were_read(case) and not _works_unseen(case)
    ceiling = 1.0 if surely else GUESS_CEILING
    parked = below(*hottest(case), HELD)
    if nothing and parked and not moves(case):
        return Finding(IDLE, "held", margin(nothing, parked), evidence(nothing, parked), ceiling=ceiling)
    return Finding(IDLE, "no-demand", margin(asleep), evidence(asleep), ceiling=ceiling)


def nothing_runs(case: Case) -> Check:
    """Whether the engine stood still all the time."""
    if case.exact_signal is not None:
        return below(case.exact_signal, case.busy_read, NOTHING)
    # One busy SM of a hundred hides in SM activity and GPU-Util shows driver calls: what was read must agree.
    checks = [
        below(name, case.mean(name), limit)
        for name, limit in (
            ("graphics_active_ratio", NOTHING),
            ("sm_active_ratio", NOTHING),
            ("gpu_util_ratio", NOTHING_REDUCED),
        )
        if case.mean(name) is not None
    ]
    return min(checks, key=lambda check: check.margin, default=MISSING)


def hottest(case: Case) -> tuple[str | None, float | None]:
    """The owners' busiest thread, or all their CPU, which bounds it."""
    for name in (
        "process_tree_hottest_thread_cores",
        "process_tree_owner_cpu_cores",
        "process_tree_cpu_cores",
    ):
        if case.mean(name) is not None:
            return name, case.mean(name)
    return None, None


def in_gap(case: Case, limit: Limit) -> float:
    """Cores of the busiest thread at which it works ``limit`` of the time that the engine stands still.

    CUDA synchronisation spins: a thread that only waits for the GPU is as hot as the engine is busy.
    """
    busy = min(1.0, case.busy_high)
    return busy + limit.value * (1 - busy)


def _asleep(case: Case) -> Check:
    """Whether every thread of the tree sleeps most of the time that the engine stands still."""
    owner = below(*hottest(case), in_gap(case, ASLEEP))
    worker = below(
        "process_tree_busiest_worker_cores", case.mean("process_tree_busiest_worker_cores"), ASLEEP
    )
    if not worker:
        tree, owners = case.mean("process_tree_cpu_cores"), case.mean("process_tree_owner_cpu_cores")
        beside = 0.0 if tree is None or owners is None else tree - owners
        if case.mean("process_tree_busiest_worker_cores") is not None or beside >= ASLEEP.value:
            return MISSING
        return owner
    return min(owner, worker, key=lambda check: check.margin)


def _waits_were_read(case: Case) -> bool:
    """Whether a sleeping tree that waits for a CPU or for storage would have been seen."""
    storage = ("process_tree_blocked_ratio", "host_pressure_io_ratio")
    return case.mean("process_tree_runqueue_wait_ratio") is not None and any(
        case.mean(name) is not None for name in storage
    )


def _works_unseen(case: Case) -> bool:
    """Whether the GPU does more than the tree can have asked for: an MPS server sleeps while its clients launch."""
    cpu = case.mean("process_tree_cpu_cores")
    return bool(at_least(case.low_signal, case.busy_low, UNSEEN_BUSY) and below("cpu", cpu, UNSEEN_CPU))


def _is_held(case: Case) -> bool:
    """Whether memory or power contradict an empty process list, as in a container that sees no pids."""
    power, memory = case.mean("power_watts"), case.mean("memory_used_bytes") or 0.0
    drawn = power is not None and case.card.known and power >= FREE_POWER * case.card.context_watts
    # Where the context's power is a prior only, some memory must agree with it.
    return memory >= FREE_MEMORY or bool(drawn and (case.card.measured or memory >= SOME_MEMORY))


def _looks_free(case: Case) -> bool:
    """Without a process list: less power than a context draws, or hardly any memory held."""
    power, memory = case.mean("power_watts"), case.mean("memory_used_bytes")
    if memory is not None:
        return memory < FREE_MEMORY
    return power is not None and case.card.known and power < FREE_POWER * case.card.context_watts


def moves(case: Case) -> bool:
    """Whether data crosses the bus beyond its idle floor."""
    rates = [case.rate_above_floor(f"pcie_{way}_bytes_per_second") for way in ("receive", "transmit")]
    return any(rate is not None and rate >= TRAFFIC for rate in rates)
