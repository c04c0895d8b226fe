"""A gap in the GPU's work while someone in the owner's process tree works, waits or is blocked."""

from __future__ import annotations

from dataclasses import replace

from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import MISSING, Check, Limit, at_least, below, evidence, margin, shown
from gpuwhy.verdict.rules import idle
from gpuwhy.verdict.types import Evidence
from gpuwhy.verdict.vocabulary import STARVING

GAP = Limit(
    0.40, "high-throughput work is expected above 60 % busy (field report: image service before launch)"
)
GAP_LATENCY = Limit(0.70, "low-latency serving is at 20-30 % in good order (the same report)")
WAIT = Limit(0.15, "undisturbed owners wait under 0.06 s/s for a CPU; contention and quotas 0.4 and more")
WAIT_SHARE = Limit(
    0.10, "of the time that the owners' threads run or wait: many busy threads add up to more in good order"
)
QUOTA = Limit(0.05, "a cgroup quota that holds the owner a twentieth of the time delays every launch")
WORKER = Limit(0.85, "a data-loading worker near a full core cannot go faster")
TREE = Limit(0.85, "the tree uses nearly all the cores that it may")
CROWD = Limit(1.50, "cores used beside the owner's hottest thread: several decoders at work")
HOST = Limit(0.85, "without processes: nearly all of the host's CPU is busy")
COPY = Limit(1e9, "1 GB/s over PCIe with idle SMs is a copy, not launch traffic (0.15 GB/s at most)")
COPY_BUSY = Limit(0.10, "above it kernels run beside the copy")
BLOCKED = Limit(0.30, "a process of the tree in uninterruptible sleep a third of the time waits for storage")
PRESSURE = Limit(0.15, "PSI io: some task stalled on storage; undisturbed hosts read 0.00")
IOWAIT = Limit(0.30, "without PSI: a third of a CPU idle with I/O outstanding")
READS = Limit(
    0.1e6, "0.1 MB/s: small pieces from a slow disk; a server that only writes its log reads nothing"
)
FLINCHES = Limit(0.02, "a process of the tree seen in uninterruptible sleep now and then")
STREAM = Limit(10e6, "10 MB/s of storage or network with sleeping threads: the tree waits for data")
ASLEEP = Limit(0.50, "the hottest thread sleeps more than it works")
HOT = Limit(0.50, "one thread works at least half of the time that the engine stands still")
LAUNCH_BUSY = Limit(0.05, "launches keep the engine busy at least this much")
LAUNCH_PER_BUSY = Limit(
    250 * 2**20, "bytes received per busy second: launch loops 390-690 MiB, training steps under 100"
)
LAUNCH_PER_CPU = Limit(
    60 * 2**20, "bytes received per CPU second: launch loops 86-137 MiB, Python between launches under 40"
)
TURNS_SUM = (0.75, 1.15)
TURNS_EACH = 0.75
GUESS_CEILING = 0.45  # the same readings are seen where nobody wants the GPU


def gap(case: Case) -> Check:
    """Whether the GPU stands still for so long that somebody should ask why."""
    limit = GAP_LATENCY if case.profile == "latency" else GAP
    busy = below(case.high_signal, case.busy_high, 1 - limit.value)
    said = f" (latency profile by {case.hint or 'agent.profile'})" if limit is GAP_LATENCY else ""
    test = f"< {1 - limit.value:.4g}{said}"
    return shown(busy, *case.evidence(case.high_signal, test)) if busy else MISSING


def judge(case: Case) -> Finding | None:
    """``starving`` with a cause that the host's evidence names, or None where it names none."""
    for rule in (_contention, _preprocess, _copy, _io_wait, _turns, _launch, _serial):
        finding = rule(case)
        if finding is not None:
            return finding
    return None


def undetermined(case: Case) -> Finding:
    """The gap stands, the host does not say why, and nobody may want the GPU at all."""
    found = case.evidence(
        case.high_signal, "host evidence names no cause" if case.host_read else "host not read"
    )
    return Finding(STARVING, "undetermined", 1.0, found, ceiling=GUESS_CEILING)


def _found(case: Case, cause: str, *checks: Check, ceiling: float = 1.0) -> Finding:
    """``starving`` with the cause that ``checks`` are evidence for."""
    sure = margin(*checks)
    if idle.judge(case) is None:
        # Without this evidence it would be starving all the same: near its limit only the cause is less sure.
        sure = 0.6 + 0.4 * sure
    return Finding(STARVING, cause, sure, evidence(*checks), ceiling=ceiling)


def _tree(case: Case, name: str, limit: Limit) -> Check:
    return at_least(f"process_tree_{name}", case.mean(f"process_tree_{name}"), limit)


def _contention(case: Case) -> Finding | None:
    held = _tree(case, "throttled_ratio", QUOTA)
    if held:
        return _found(case, "host-contention", held)
    waits = _tree(case, "runqueue_wait_ratio", WAIT)
    waited, ran = (
        case.mean("process_tree_runqueue_wait_ratio") or 0.0,
        case.mean("process_tree_owner_cpu_cores"),
    )
    if not waits or (ran is not None and waited < WAIT_SHARE.value * (ran + waited)):
        return None
    # A tree that fills its cores by itself contends with nobody else.
    if _tree(case, "cpu_ratio", TREE):
        return None
    found = _found(case, "host-contention", waits)
    pressed = at_least("process_tree_cpu_pressure_ratio", case.mean("process_tree_cpu_pressure_ratio"), WAIT)
    # It says the same once more, of all in the cgroup: shown, and no reason to be more or less sure.
    return replace(found, evidence=(*found.evidence, *evidence(pressed)))


def _preprocess(case: Case) -> Finding | None:
    for check in (_tree(case, "busiest_worker_cores", WORKER), _tree(case, "cpu_ratio", TREE)):
        if check:
            return _found(case, "cpu-preprocess", check)
    total, hottest = case.mean("process_tree_cpu_cores"), case.mean("process_tree_hottest_thread_cores")
    if total is not None and hottest is not None:
        # A process that drives several GPUs may spin in a thread for each.
        driven = 1 + sum(
            bool((case.owners or frozenset()) & (peer.owners or frozenset())) for peer in case.peers
        )
        crowd = shown(
            at_least("process_tree_cpu_cores", total - driven * hottest, CROWD),
            *case.evidence("process_tree_cpu_cores", f">= {CROWD.value + driven * hottest:.4g}"),
        )
        if crowd:
            return _found(case, "cpu-preprocess", crowd)
    if not case.host_read:
        host = at_least("host_cpu_busy_ratio", case.mean("host_cpu_busy_ratio"), HOST)
        if host:
            return _found(case, "cpu-preprocess", host, ceiling=GUESS_CEILING)
    return None


def _copy(case: Case) -> Finding | None:
    still = below(case.low_signal or case.high_signal, case.busy_low, COPY_BUSY)
    for way in ("receive", "transmit"):
        signal = f"pcie_{way}_bytes_per_second"
        moved = at_least(signal, case.mean(signal), COPY)
        if still and moved:
            return _found(case, "copy", moved, still)
    return None


def _io_wait(case: Case) -> Finding | None:
    blocked = _tree(case, "blocked_ratio", BLOCKED)
    if blocked:
        return _found(case, "io-wait", blocked)
    asleep = below(*idle.hottest(case), idle.in_gap(case, ASLEEP))
    if case.host_read and not asleep:
        return None
    own_pressure = _tree(case, "io_pressure_ratio", PRESSURE)
    if own_pressure:
        # A server that waits to write its log waits for storage, too: the tree should be seen to read.
        part = _takes_part(case)
        unread = case.mean("process_tree_read_bytes_per_second") is None
        ceiling = 1.0 if part or unread else GUESS_CEILING
        return _found(case, "io-wait", own_pressure, *([part] if part else []), ceiling=ceiling)
    pressure = at_least("host_pressure_io_ratio", case.mean("host_pressure_io_ratio"), PRESSURE)
    if case.mean("process_tree_io_pressure_ratio") is not None:
        pressure = MISSING  # what the host's tasks wait for, the tree's do not
    elif case.mean("host_pressure_io_ratio") is None:
        pressure = at_least("host_iowait_cores", case.mean("host_iowait_cores"), IOWAIT)
    if pressure:
        # Somebody else's I/O presses the host as well: the tree must be seen to take part.
        part = _takes_part(case)
        if part:
            return _found(case, "io-wait", pressure, part)
        if case.mean("process_tree_read_bytes_per_second") is None:
            return _found(case, "io-wait", pressure, ceiling=GUESS_CEILING)
    own = _tree(case, "read_bytes_per_second", STREAM) or _tree(case, "write_bytes_per_second", STREAM)
    if own and asleep:
        return _found(case, "io-wait", own)
    # The host's traffic, which may be requests to a server that idles as well as a data set.
    network = at_least(
        "host_network_receive_bytes_per_second", case.mean("host_network_receive_bytes_per_second"), STREAM
    )
    if network and asleep:
        return _found(case, "io-wait", network, ceiling=GUESS_CEILING)
    return None


def _takes_part(case: Case) -> Check:
    """Whether the tree reads from storage, or waits for it now and then."""
    return _tree(case, "read_bytes_per_second", READS) or _tree(case, "blocked_ratio", FLINCHES)


def _turns(case: Case) -> Finding | None:
    """GPUs of one job that work one after the other: busy time adds up to one GPU's."""
    group = [case, *case.family_peers]
    if len(group) < 2 or any(member.busy_high > TURNS_EACH for member in group):
        return None
    total = sum(member.busy_high for member in group)
    low, high = TURNS_SUM
    if not low <= total <= high or not _alternate(group):
        return None
    return Finding(
        STARVING,
        "peer-wait",
        0.8,
        (
            *case.evidence(case.high_signal, f"< {TURNS_EACH}"),
            Evidence(f"busy of {len(group)} GPUs of the job", total, f"{low}-{high}: they take turns"),
        ),
    )


def _alternate(group: list[Case]) -> bool:
    """Whether busy times exclude each other sample by sample, and differ enough to see that or have one owner."""
    series = [member.interval.stats.get(member.high_signal or "") for member in group]
    rows = list(zip(*(stat.values for stat in series if stat is not None), strict=False))
    if None in series or not rows or max(sum(row) for row in rows) > TURNS_SUM[1] + 0.1:
        return False
    owners = [member.owners or frozenset() for member in group]
    return bool(frozenset.intersection(*owners)) or max(max(row) for row in rows) >= TURNS_EACH


def _launch(case: Case) -> Finding | None:
    busy = at_least(case.low_signal, case.busy_low, LAUNCH_BUSY)
    hot = _tree(case, "hottest_thread_cores", HOT)
    received = case.rate_above_floor("pcie_receive_bytes_per_second")
    cpu = case.mean("process_tree_owner_cpu_cores")
    if not (busy and hot) or received is None or cpu is None:
        return None
    # A process uses no less CPU than its hottest thread, whichever of the two was read a moment earlier.
    cpu = max(cpu, HOT.value)
    per_busy = at_least("pcie_receive_bytes_per_busy_second", received / case.busy_low, LAUNCH_PER_BUSY)
    # Nobody counts the bytes by process: of those of a shared GPU, a workload's launches are its part.
    per_cpu = at_least("pcie_receive_bytes_per_cpu_second", case.part * received / cpu, LAUNCH_PER_CPU)
    return _found(case, "launch-bound", hot, per_busy, per_cpu) if per_busy and per_cpu else None


def _serial(case: Case) -> Finding | None:
    name = "process_tree_hottest_thread_cores"
    hot = at_least(name, case.mean(name), idle.in_gap(case, HOT))
    if not hot:
        return None
    # A thread that is hot while nothing at all reaches the GPU may prepare work, or poll for some.
    alone = idle.nothing_runs(case) and not idle.moves(case)
    return Finding(
        STARVING, "host-serial", margin(hot), evidence(hot), ceiling=GUESS_CEILING if alone else 1.0
    )
