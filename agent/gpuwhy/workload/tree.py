"""Which processes work for a GPU, and what they do.

A GPU's tree is its owners (pids with a context on it), their descendants and the processes of the
same cgroup. It is cut at a process that owns another GPU: that one is judged there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwhy.sample import HostSample, ProcessSample, Sample, Share, Tenant, Workload
from gpuwhy.source.cgroup import belongs_to_one_job
from gpuwhy.workload.directory import BROKER, UNKNOWN, Directory, pending

BUSY_WORKER_CORES = 0.5
STILL = 0.002  # busy time of a GPU on which nothing runs: as ``verdict.rules.idle.NOTHING``
UNSEEN_CORES = 0.1  # less than this between a cgroup and its processes is when each of them was read

Children = dict[int, list[int]]  # pid -> pids


@dataclass(frozen=True, slots=True)
class _Processes:
    """A host's processes by pid, and the pids by parent and by control group."""

    by_pid: Mapping[int, ProcessSample]
    children: Children
    groups: Mapping[str, list[int]]

    @classmethod
    def of(cls, host: HostSample | None) -> _Processes:
        by_pid = {} if host is None else host.processes or {}
        children: Children = {}
        groups: dict[str, list[int]] = {}
        for process in by_pid.values():
            children.setdefault(process.ppid, []).append(process.pid)
            groups.setdefault(process.cgroup, []).append(process.pid)
        return cls(by_pid, children, groups)


def attribute(
    samples: Sequence[Sample],
    known: Mapping[tuple[str, str], Iterable[int]] | None = None,
    directory: Directory | None = None,
) -> list[Sample]:
    """The samples of one host's reading with what their process trees did added to ``values``, and the
    workloads on each GPU as ``shares``.

    ``known`` are the owners of GPUs as last read: one that is lost does not hand its owner's work
    to the others. Without a ``directory`` nobody is named.
    """
    owned: dict[int, set[tuple[str, str]]] = {}
    read = {sample.gpu.key for sample in samples if sample.owners is not None}
    for key, pids in (known or {}).items():
        if key not in read:
            for pid in pids:
                owned.setdefault(pid, set()).add(key)
    for sample in samples:
        for pid in sample.owners or ():
            owned.setdefault(pid, set()).add(sample.gpu.key)
    host = next((sample.host for sample in samples if sample.host is not None), None)
    table = _Processes.of(host if owned else None)
    return [
        # A slow source's sample lies beside the one that has the processes.
        _with_tree(
            sample,
            owned,
            table,
            directory if sample.owners is not None or sample.gpu.key not in read else None,
        )
        for sample in samples
    ]


def _with_tree(
    sample: Sample,
    owned: Mapping[int, set[tuple[str, str]]],
    table: _Processes,
    directory: Directory | None,
) -> Sample:
    tenants = None if directory is None else _tenants(sample, directory)
    host = sample.host
    if host is None:
        return sample if tenants is None else replace(sample, shares=_shares(sample, tenants, {}))
    values = {**sample.values, **host.values}
    sources = dict(sample.sources)
    sources.update(dict.fromkeys(host.values, "host"))
    family: frozenset[str] = frozenset()
    trees: dict[Workload, Mapping[str, float]] = {}
    if host.processes is not None and sample.owners:
        # An owner that is not in the list lives where the agent cannot see it (another pid namespace).
        owners = [table.by_pid[pid] for pid in dict.fromkeys(sample.owners) if pid in table.by_pid]
        family = _family(owners, table.by_pid)
        if owners:
            elsewhere = {pid for pid, gpus in owned.items() if sample.gpu.key not in gpus}

            def tree(owners: Sequence[ProcessSample], cut: set[int]) -> dict[str, float]:
                return tree_values(owners, _workers(owners, table, cut), host, table.groups)

            whole = tree(owners, elsewhere)
            values.update(whole)
            sources.update(dict.fromkeys(whole, "host"))
            for workload, pids in (tenants or {}).items():
                own = [owner for owner in owners if owner.pid in pids]
                others = {owner.pid for owner in owners if owner.pid not in pids}
                trees[workload] = whole if not others else tree(own, elsewhere | others) if own else {}
    shares = None if tenants is None else _shares(sample, tenants, trees)
    return replace(sample, values=values, sources=sources, family=family, shares=shares)


Tenants = dict[Workload, dict[int, Tenant]]  # by pid; 0 and less where the pid is not known


def _tenants(sample: Sample, directory: Directory) -> Tenants | None:
    """Who is on the GPU: empty where nobody is, None where that is not known."""
    found: Tenants = {}
    hidden: list[int] = []
    awaited: list[int] = []
    for pid in sample.owners or ():
        tenant = directory.tenant(pid)
        if tenant is None:
            awaited.append(pid)
        elif tenant is UNKNOWN:
            hidden.append(pid)
        elif tenant is not BROKER:
            found.setdefault(tenant.workload, {})[pid] = tenant
    if sample.gpu.split:
        return {}
    granted: dict[Workload, list[Tenant]] = {}
    for tenant in _granted(sample, directory):
        granted.setdefault(tenant.workload, []).append(tenant)
    if sample.owners is None and not granted:
        return None
    # To whom it was given and who is not seen works out of sight; else whoever alone was given it.
    unseen = [workload for workload in granted if workload not in found] or list(granted)
    out_of_sight = granted[unseen[0]][0] if len(unseen) == 1 else UNKNOWN
    for pid in awaited:
        found[pending(pid)] = {pid: out_of_sight}
    if hidden:
        found.setdefault(out_of_sight.workload, {}).update(dict.fromkeys(hidden, out_of_sight))
        return found
    if granted and not granted.keys() & found.keys() and (not found or _stands_still(sample)):
        # Who only holds a context, as monitors do, does not keep the others off; who was given it does.
        return {
            workload: {-number: tenant for number, tenant in enumerate(runs)}
            for workload, runs in granted.items()
        }
    return found


def _granted(sample: Sample, directory: Directory) -> Sequence[Tenant]:
    granted = directory.granted(sample.gpu.key)
    if not granted and sample.holder:
        return [directory.holder(name) for name in sample.holder.split(",")]
    return granted


def _stands_still(sample: Sample) -> bool:
    """Whether nothing ran in this sample, as far as the best of what says so was read."""
    for name in ("graphics_active_ratio", "sm_active_ratio", "gpu_util_ratio"):
        if name in sample.values:
            return sample.values[name] < STILL
    return False


def _shares(
    sample: Sample, tenants: Tenants, trees: Mapping[Workload, Mapping[str, float]]
) -> tuple[Share, ...]:
    """The parts that add up to 1, or nothing where nobody holds the GPU."""
    use = sample.process_use or {}
    used = {workload: sum(use.get(pid, 0.0) for pid in pids) for workload, pids in tenants.items()}
    total = sum(used.values())
    shares = []
    for workload, pids in tenants.items():
        if max(pids) <= 0:
            # Without a list of processes nobody can say that it runs nothing.
            basis = "granted" if sample.owners is not None else "alone" if len(tenants) == 1 else "even"
            ratio = 1 / len(tenants)
        elif len(tenants) == 1:
            basis, ratio = "alone", 1.0
        elif total > 0:
            basis, ratio = "utilization", used[workload] / total
        else:
            basis, ratio = "even", 1 / len(tenants)
        runs = tuple(dict.fromkeys(pids.values()))
        shares.append(Share(workload, ratio, basis, runs, trees.get(workload, {})))
    return tuple(shares)


def _workers(owners: Sequence[ProcessSample], table: _Processes, elsewhere: set[int]) -> list[ProcessSample]:
    own = {owner.pid for owner in owners}
    cgroups = {owner.cgroup for owner in owners if belongs_to_one_job(owner.cgroup)}
    # What works for an owner of another GPU is judged there, also where it shares the cgroup.
    foreign = elsewhere | _descendants(elsewhere, table.children, own)
    mates = {pid for group in cgroups for pid in table.groups.get(group, ())} - foreign - own
    found = mates | _descendants(own | mates, table.children, elsewhere)
    return [table.by_pid[pid] for pid in found - own]


def _descendants(roots: Iterable[int], children: Children, cut: Collection[int]) -> set[int]:
    """What descends from ``roots``; a pid in ``cut`` is left out with all that descends from it."""
    found: set[int] = set()
    to_visit = list(roots)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in found and child not in cut:
                found.add(child)
                to_visit.append(child)
    return found


def _family(owners: Iterable[ProcessSample], processes: Mapping[int, ProcessSample]) -> frozenset[str]:
    names: set[str] = set()
    for owner in owners:
        names.add(f"pid:{owner.pid}")
        if belongs_to_one_job(owner.cgroup):
            names.add(f"cgroup:{owner.cgroup}")
        process: ProcessSample | None = owner
        while process is not None and process.ppid > 1 and f"pid:{process.ppid}" not in names:
            names.add(f"pid:{process.ppid}")
            process = processes.get(process.ppid)
    return frozenset(names)


def tree_values(
    owners: Sequence[ProcessSample],
    workers: Sequence[ProcessSample],
    host: HostSample,
    groups: Mapping[str, list[int]] | None = None,
) -> dict[str, float]:
    """Signals of one process tree over one reading, by name; what was not read is absent. ``groups`` are the
    host's pids by control group.

    CPU time is that of the processes that were read, and of those that came and went between two looks
    where the owners' cgroup tells of them and holds nobody else.
    """
    everyone = [*owners, *workers]
    values: dict[str, float] = {}

    def put(name: str, value: float | None) -> None:
        if value is not None:
            values[f"process_tree_{name}"] = value

    cpu = _gained(everyone)
    if cpu is not None:
        cpu += _unseen_cores(owners, everyone, host, _Processes.of(host).groups if groups is None else groups)
    owner_cpu = _gained(owners)
    put("cpu_cores", cpu)
    put("owner_cpu_cores", owner_cpu)
    allowed = _allowed_cores(owners, host)
    if cpu is not None and allowed:
        put("cpu_ratio", cpu / allowed)
    system = _total(process.system_cores for process in owners)
    if system is not None and owner_cpu is not None:
        # System time comes in ticks of 10 ms, run time in ns: over a short span one may pass the other.
        put("owner_system_ratio", min(1.0, system / owner_cpu) if owner_cpu > 0.02 else None)
    put("hottest_thread_cores", _most(process.thread_cores for process in owners))
    put("runqueue_wait_ratio", _total(process.runqueue_wait for process in owners))
    if workers:
        put("busiest_worker_cores", _most(process.cpu_cores for process in workers))
        known = [process.cpu_cores for process in workers if process.cpu_cores is not None]
        if known:
            put("busy_workers", float(sum(cores >= BUSY_WORKER_CORES for cores in known)))
    for name in ("throttled_ratio", "cpu_pressure_ratio", "io_pressure_ratio"):
        put(name, _most(_cgroup(host, process.pid, name) for process in owners))
    if any(process.state for process in everyone):
        put("blocked_ratio", float(any(process.state == "D" for process in everyone)))
    put("age_seconds", min((process.age_s for process in owners if process.age_s is not None), default=None))
    put("read_bytes_per_second", _total(process.read_bytes_per_second for process in everyone))
    put("write_bytes_per_second", _total(process.write_bytes_per_second for process in everyone))
    return values


def _gained(processes: Iterable[ProcessSample]) -> float | None:
    """CPU time that came to light in this reading."""
    return _total(each.cpu_cores if each.gained_cores is None else each.gained_cores for each in processes)


def _unseen_cores(
    owners: Iterable[ProcessSample],
    everyone: Sequence[ProcessSample],
    host: HostSample,
    groups: Mapping[str, list[int]],
) -> float:
    """CPU time that the owners' cgroups used beyond the processes that were read."""
    used: dict[str, float] = {}
    for owner in owners:
        cores = _cgroup(host, owner.pid, "cpu_cores")
        if cores is not None:
            used[owner.cgroup] = cores
    unseen, own = 0.0, {process.pid for process in everyone}
    for group, cores in used.items():
        # What is below a group counts in it.
        if any(_is_in(group, other) for other in used if other != group):
            continue
        members = [process for process in everyone if _is_in(process.cgroup, group)]
        # Of many workers only some are looked at each time: their rates as last known tell that from missing ones.
        seen = max(_gained(members) or 0.0, _total(process.cpu_cores for process in members) or 0.0)
        missing = cores - seen
        if missing >= UNSEEN_CORES and not any(
            _is_in(path, group) and not own.issuperset(pids) for path, pids in groups.items()
        ):
            unseen += missing
    return unseen


def _is_in(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group.rstrip('/')}/")


def _allowed_cores(owners: Sequence[ProcessSample], host: HostSample) -> float | None:
    """Cores that the owners may use together by affinity and quota; None = not known."""
    cpus = None if host.cpus is None else float(host.cpus)
    pinned = [owner.cpus_allowed for owner in owners if owner.cpus_allowed]
    if pinned and len(pinned) == len(owners):
        # Owners may share their CPUs or not: together they have no more than the sum.
        cpus = sum(pinned) if cpus is None else min(sum(pinned), cpus)
    quotas: dict[str, float | None] = {}
    for owner in owners:
        cgroup = host.cgroups.get(owner.pid)
        quotas[owner.cgroup] = None if cgroup is None else cgroup.quota_cores
    known = [quota for quota in quotas.values() if quota is not None]
    if len(known) < len(quotas):
        return cpus
    return sum(known) if cpus is None else min(sum(known), cpus)


def _cgroup(host: HostSample, pid: int, field: str) -> float | None:
    cgroup = host.cgroups.get(pid)
    value = None if cgroup is None else getattr(cgroup, field)
    return value if value is None else float(value)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
