"""Jobs of Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.identity import Identity
from gpuwhy.source.slurm import SLUID, Job
from gpuwhy.workload.tables import PROFILES, UNNAMED, Key, Row, Tables

KIND = "slurm"

# From where Slurm makes its groups, which others may not: users and services name only what is theirs.
_PATH = re.compile(
    rf"(?:/\.\.)*(?:/slurm(?:_[^/]+)?/uid_[0-9]+|(?:/(?!user\.slice/)[^/]+\.slice)?/(?:[^/]+_)?slurmstepd\.scope)"
    rf"/(?:job_([0-9]{{1,10}})|({SLUID}))(?:/|$)"
)
_NUMBER = re.compile(r"[0-9]{1,10}")
_GPU = re.compile(r"([0-9]{1,4})(?:\.([0-9]+))?")  # with a MIG instance
_WORD = re.compile(r"[\s,;]+")


def tenant(identity: Identity, tables: Tables) -> Tenant | None:
    """The job that a process belongs to by its control group.

    The owner is the account, where the controller tells it: it is what Slurm charges and what stands for a
    team. A user may work for several.
    """
    number = job_of(identity.cgroups)
    if not number:
        return None
    job = tables.jobs.get(number)
    return _tenant(job or Job(number), identity, tables, waits=job is None)


def claimed(identity: Identity, tables: Tables) -> Tenant | None:
    """The job that a process's environment names, where Slurm uses no control groups.

    Anybody may set a variable: where the job's user is known it must be the process's own, and where jobs
    have control groups the job must be on this host. Root's processes run for others.
    """
    number = _told(identity)
    job = tables.jobs.get(number)
    if not number or (job is None and any(each.live is not None for each in tables.jobs.values())):
        return None
    if job is not None and job.user and identity.user not in {job.user, "", "root", "uid:0"}:
        return None
    return _tenant(job or Job(number), identity, tables)


def holder(job: str, tables: Tables) -> Tenant:
    """The job that a source names."""
    return _tenant(tables.jobs.get(job) or Job(job), None, tables)


def grants(tables: Tables, rows: Sequence[Row]) -> dict[Key, tuple[Tenant, ...]]:
    """Which jobs hold each GPU, also where they run nothing on it; without those that have ended.

    Where it is not certain which GPU a number means, nobody is said to hold it.
    """
    found: dict[Key, dict[str, Tenant]] = {}
    jobs = {job.id: job for job in tables.jobs.values() if job.live is not False}
    for number in sorted(jobs, key=lambda number: (len(number), number)):
        for name in jobs[number].gpus:
            row = _row(name, rows, mapped=jobs[number].mapped)
            if row is not None:
                found.setdefault(row.key, {})[number] = _tenant(jobs[number], None, tables)
    return {key: tuple(tenants.values()) for key, tenants in found.items()}


def job_of(cgroups: Sequence[str]) -> str:
    """The id or SLUID of the job in the first path that has one, else ""."""
    for path in cgroups:
        match = _PATH.match(path)
        if match:
            return match[1] or match[2]
    return ""


def _tenant(job: Job, identity: Identity | None, tables: Tables, *, waits: bool = False) -> Tenant:
    environ = identity.environ if identity is not None and _told(identity) == job.id else {}
    user = job.user or (identity.user if identity else "")
    said = dict(word.partition("=")[::2] for word in _WORD.split(job.comment))
    profile = said.get(tables.profile_label, "")
    profile = profile if profile in PROFILES else ""
    return Tenant(
        Workload(
            KIND,
            name=job.name or environ.get("SLURM_JOB_NAME", "") or UNNAMED,
            owner=job.account or user,
        ),
        run=job.array_id or job.id,
        profile=profile,
        hint="Slurm comment" if profile else "",
        waits=waits,
    )


def _told(identity: Identity) -> str:
    """The id that its environment names, else ""."""
    told = identity.environ.get("SLURM_JOB_ID") or identity.environ.get("SLURM_JOBID", "")
    return told if _NUMBER.fullmatch(told) else ""


def _row(name: str, rows: Sequence[Row], *, mapped: bool) -> Row | None:
    """The GPU or instance of a name, None where there is none or it is not sure which."""
    match = _GPU.fullmatch(name)
    if match is None:
        return next(
            (row for row in rows if name in row.devices or (row.key == (name, "") and not _split(row, rows))),
            None,
        )
    if not mapped and any(row.key[1] for row in rows):
        # Slurm counts instances like GPUs.
        return None
    index, instance = int(match[1]), match[2] or ""
    row = next((row for row in rows if row.index == index and row.key[1] == instance), None)
    if row is None or (not instance and _split(row, rows)):
        return None
    # Slurm counts in the order of device files or of the bus, depending on how it found the GPUs.
    return row if mapped or row.minor in {None, row.index} else None


def _split(row: Row, rows: Sequence[Row]) -> bool:
    return any(other.key[0] == row.key[0] and other.key[1] for other in rows)
