"""Which processes work for a GPU, and what they do.

A GPU's tree is its owners (pids with a context on it), their descendants and the processes of the
same cgroup. It is cut at a process that owns another GPU: that one is judged there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuwhy.sample import HostSample, ProcessSample, Sample, Share, Tenant, Workload
from gpuwhy.source.cgroup import belongs_to_one_job
from gpuwhy.workload.directory import BROKER, UNKNOWN, Directory

BUSY_WORKER_CORES = 0.5
UNSEEN_CORES = 0.1  # less than this between a cgroup and its processes is when each of them was read

Children = dict[int, list[int]]  # pid -> pids


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
    children: Children = {}
    if owned:
        host = next((sample.host for sample in samples if sample.host is not None), None)
        for process in ({} if host is None else host.processes or {}).values():
            children.setdefault(process.ppid, []).append(process.pid)
    return [_with_tree(sample, owned, children, directory) for sample in samples]


def _with_tree(
    sample: Sample,
    owned: Mapping[int, set[tuple[str, str]]],
    children: Children,
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
        owners = [host.processes[pid] for pid in dict.fromkeys(sample.owners) if pid in host.processes]
        family = _family(owners, host.processes)
        if owners:
            elsewhere = {pid for pid, gpus in owned.items() if sample.gpu.key not in gpus}

            def tree(owners: Sequence[ProcessSample], cut: set[int]) -> dict[str, float]:
                return tree_values(owners, _workers(owners, processes, children, cut), host)

            processes = host.processes
            whole = tree(owners, elsewhere)
            values.update(whole)
            sources.update(dict.fromkeys(whole, "host"))
            if tenants is not None and len(tenants) > 1:
                for workload, pids in tenants.items():
                    own = [owner for owner in owners if owner.pid in pids]
                    others = {owner.pid for owner in owners if owner.pid not in pids}
                    trees[workload] = tree(own, elsewhere | others) if own else {}
    shares = None if tenants is None else _shares(sample, tenants, trees)
    return replace(sample, values=values, sources=sources, family=family, shares=shares)


Tenants = dict[Workload, dict[int, Tenant]]  # by pid; 0 and less where the pid is not known


def _tenants(sample: Sample, directory: Directory) -> Tenants | None:
    """Who is on the GPU: empty where nobody is, None where that is not known, or not yet."""
    found: Tenants = {}
    hidden = False
    for pid in sample.owners or ():
        tenant = directory.tenant(pid)
        if tenant is None:
            return None
        if tenant is BROKER:
            continue
        hidden = hidden or tenant is UNKNOWN
        found.setdefault(tenant.workload, {})[pid] = tenant
    if sample.gpu.split or (found and not hidden):
        return found
    # To whom it was given says nothing where others use it, and much where nobody does or can be seen.
    granted = list(directory.granted(sample.gpu.key))
    if not granted and sample.holder:
        granted = [directory.holder(name) for name in sample.holder.split(",")]
    if granted:
        found.pop(UNKNOWN.workload, None)
        if not found:
            for number, tenant in enumerate(granted):
                found.setdefault(tenant.workload, {})[-number] = tenant
    elif sample.owners is None:
        return None
    return found


def _shares(
    sample: Sample, tenants: Tenants, trees: Mapping[Workload, Mapping[str, float]]
) -> tuple[Share, ...]:
    """The parts that add up to 1, or nothing where nobody holds the GPU."""
    use = sample.process_use or {}
    used = {workload: sum(use.get(pid, 0.0) for pid in pids) for workload, pids in tenants.items()}
    total = sum(used.values())
    shares = []
    for workload, pids in tenants.items():
        if not sample.owners:
            basis, ratio = "granted", 1 / len(tenants)
        elif len(tenants) == 1:
            basis, ratio = "alone", 1.0
        elif total > 0:
            basis, ratio = "utilization", used[workload] / total
        else:
            basis, ratio = "even", 1 / len(tenants)
        runs = tuple(dict.fromkeys(pids.values()))
        shares.append(Share(workload, ratio, basis, runs, trees.get(workload, {})))
    return tuple(shares)


def _workers(
    owners: Sequence[ProcessSample],
    processes: Mapping[int, ProcessSample],
    children: Children,
    elsewhere: set[int],
) -> list[ProcessSample]:
    own = {owner.pid for owner in owners}
    cgroups = {owner.cgroup for owner in owners if belongs_to_one_job(owner.cgroup)}
    # What works for an owner of another GPU is judged there, also where it shares the cgroup.
    foreign = elsewhere | _descendants(elsewhere, children, own)
    mates = {
        process.pid
        for process in processes.values()
        if process.cgroup in cgroups and process.pid not in foreign and process.pid not in own
    }
    found = mates | _descendants(own | mates, children, elsewhere)
    return [processes[pid] for pid in found - own]


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
    owners: Sequence[ProcessSample], workers: Sequence[ProcessSample], host: HostSample
) -> dict[str, float]:
    """Signals of one process tree over one reading, by name; what was not read is absent.

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
        cpu += _unseen_cores(owners, everyone, host)
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
    owners: Iterable[ProcessSample], everyone: Sequence[ProcessSample], host: HostSample
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
            _is_in(process.cgroup, group) and process.pid not in own
            for process in (host.processes or {}).values()
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
