"""Which processes work for a GPU, and what they do.

A GPU's tree is its owners (pids with a context on it), their descendants and the processes of the
same cgroup. It is cut at a process that owns another GPU: that one is judged there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuwhy.sample import HostSample, ProcessSample, Sample
from gpuwhy.source.cgroup import belongs_to_one_job

BUSY_WORKER_CORES = 0.5

Children = dict[int, list[int]]  # pid -> pids


def attribute(
    samples: Sequence[Sample], known: Mapping[tuple[str, str], Iterable[int]] | None = None
) -> list[Sample]:
    """The samples of one host's reading with what their process trees did added to ``values``.

    ``known`` are the owners of GPUs as last read: one that is lost does not hand its owner's work
    to the others.
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
    return [_with_tree(sample, owned, children) for sample in samples]


def _with_tree(sample: Sample, owned: Mapping[int, set[tuple[str, str]]], children: Children) -> Sample:
    host = sample.host
    if host is None:
        return sample
    values = {**sample.values, **host.values}
    sources = dict(sample.sources)
    sources.update(dict.fromkeys(host.values, "host"))
    family: frozenset[str] = frozenset()
    if host.processes is not None and sample.owners:
        # An owner that is not in the list lives where the agent cannot see it (another pid namespace).
        owners = [host.processes[pid] for pid in dict.fromkeys(sample.owners) if pid in host.processes]
        family = _family(owners, host.processes)
        if owners:
            elsewhere = {pid for pid, gpus in owned.items() if sample.gpu.key not in gpus}
            workers = _workers(owners, host.processes, children, elsewhere)
            tree = tree_values(owners, workers, host)
            values.update(tree)
            sources.update(dict.fromkeys(tree, "host"))
    return replace(sample, values=values, sources=sources, family=family)


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
    """Signals of one process tree over one reading, by name; what was not read is absent."""
    everyone = [*owners, *workers]
    values: dict[str, float] = {}

    def put(name: str, value: float | None) -> None:
        if value is not None:
            values[f"process_tree_{name}"] = value

    cpu = _total(process.cpu_cores for process in everyone)
    owner_cpu = _total(process.cpu_cores for process in owners)
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
    put("throttled_ratio", _most(_cgroup(host, process.pid, "throttled_ratio") for process in owners))
    if any(process.state for process in everyone):
        put("blocked_ratio", float(any(process.state == "D" for process in everyone)))
    put("age_seconds", min((process.age_s for process in owners if process.age_s is not None), default=None))
    put("read_bytes_per_second", _total(process.read_bytes_per_second for process in everyone))
    put("write_bytes_per_second", _total(process.write_bytes_per_second for process in everyone))
    return values


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
