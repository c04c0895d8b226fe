"""What control groups say of a process: whose it is, what CPU time it may use, when it was held.

Version 2, version 1 and hybrids of both, also as seen from a private cgroup namespace.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwhy.source.kept import Budget, KeptFile, read_once, whole

LIMITS_EVERY = 16  # reads between two looks at the quotas, which people change by hand
# Levels of a foreign namespace's root that are tried: kubepods, quality of service, pod, container.
_DEEPEST_ROOT = 4
# Groups in which a service starts what does not belong together.
_SHARED = frozenset(
    {
        "init.scope",
        "containerd.service",
        "cron.service",
        "crond.service",
        "docker.service",
        "jupyterhub.service",
        "kubelet.service",
        "slurmd.service",
        "ssh.service",
        "sshd.service",
    }
)


def belongs_to_one_job(path: str) -> bool:
    """Whether the processes of a cgroup work on one thing: not the root, a slice, a login or a spawner."""
    last = path.rstrip("/").rpartition("/")[2]
    return (
        last not in {"", ".."}
        and not last.endswith(".slice")
        and not last.startswith(("session-", "user@"))
        and last not in _SHARED
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of ``/proc/PID/cgroup``; a version 2 line names no controllers."""

    controllers: tuple[str, ...]
    path: str

    @property
    def depth(self) -> int:
        return sum(part not in {"", ".."} for part in self.path.split("/"))


def _lines(data: bytes) -> Iterator[_Line]:
    for line in data.decode(errors="replace").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/") and "\0" not in line:
            yield _Line(tuple(name.removeprefix("name=") for name in parts[1].split(",") if name), parts[2])


def _job_line(lines: Iterable[_Line]) -> _Line | None:
    """The deepest path: a batch system or a runtime may use some controllers only, and all jobs be one
    service's in the others. Version 2 wins a tie.
    """
    return max(lines, key=lambda line: (line.depth, not line.controllers), default=None)


class Cgroup:
    """The control groups of the processes whose ``/proc/PID/cgroup`` reads the same."""

    def __init__(self, root: Path, data: bytes, pid: int, budget: Budget) -> None:
        self._budget = budget
        lines = list(_lines(data))
        job = _job_line(lines)
        self.path = job.path if job else ""
        self.one_job = belongs_to_one_job(self.path)
        self._members = _folder(root, job, pid) if job and self.one_job else None
        version1 = next((line for line in lines if "cpu" in line.controllers), None)
        accounted = next((line for line in lines if "cpuacct" in line.controllers), None)
        version2 = next((line for line in lines if not line.controllers), None)
        self._version1 = version1 is not None
        line = version1 or version2
        self._levels = _levels(root, line, pid) if line else []
        # What the group says of itself, by raw name: file, and what is found in it. Elsewhere than at the
        # job's own group it would be of others, at the root of the whole host.
        self._own: list[tuple[KeptFile, str]] = []
        self._own_values: dict[str, Any] = {}
        self._looks = 0
        if version2 and version2.path == self.path and (own := _folder(root, version2, pid)):
            self._own.append((KeptFile(f"{own}/cpu.pressure", budget), "psi_cpu_some_us"))
            if self.one_job:
                self._own.append((KeptFile(f"{own}/io.pressure", budget), "psi_io_some_us"))
                if version1 is None:
                    self._own.append((KeptFile(f"{own}/cpu.stat", budget), "own_usage_usec"))
        if (
            self.one_job
            and accounted
            and accounted.path == self.path
            and (own := _folder(root, accounted, pid))
        ):
            self._own.append((KeptFile(f"{own}/cpuacct.usage", budget), "own_usage_usec"))
        self._stat: KeptFile | None = None
        self._limit: tuple[str, str] | None = None
        self._limits_in = 0

    def members(self) -> list[int]:
        """The pids in the job's own group; empty where it cannot be read or holds more than one job."""
        data = read_once(f"{self._members}/cgroup.procs") if self._members else None
        # Processes outside of the reader's pid namespace are printed as 0.
        return [pid for pid in map(whole, (data or b"").split()) if pid]

    def values(self, *, look: bool = True) -> dict[str, Any]:
        """Raw values as in recordings. ``cpu_max`` and the counters are those of the tightest level,
        where the kernel holds the threads; counters are left out where no level has a quota.
        ``own_usage_usec`` and the pressures are the group's own. They are as before unless ``look``ed at,
        which the number ``look`` counts, and the first two of them are told of one job's group only.
        """
        if self._limits_in == 0:
            self._find_limit()
            self._limits_in = LIMITS_EVERY
        self._limits_in -= 1
        values: dict[str, Any] = {"path": self.path}
        if self._limit:
            values["cpu_max"] = list(self._limit)
        if self._stat:
            values.update(_counters(self._stat.read() or b""))
        if self._own:
            if look or not self._looks:
                self._look_at_own()
            values.update(self._own_values)
        return values

    def close(self) -> None:
        for file in (self._stat, *(file for file, _ in self._own)):
            if file:
                file.close()

    def _look_at_own(self) -> None:
        self._looks += 1
        found: dict[str, Any] = {}
        for file, name in self._own:
            data = file.read() or b""
            value = _usage(data) if name == "own_usage_usec" else psi_totals(data).get("some")
            if value is not None:
                found[name] = value
        self._own_values = {**found, "look": self._looks} if found else {}

    def _find_limit(self) -> None:
        tightest: tuple[float, Path, tuple[str, str]] | None = None
        self._limit = None
        for level in self._levels:
            limit = _limit_v1(level) if self._version1 else _limit_v2(level)
            if limit is None:
                continue
            self._limit = self._limit or limit
            quota, period = whole(limit[0].encode()), whole(limit[1].encode())
            if quota and period and (tightest is None or quota / period < tightest[0]):
                tightest = (quota / period, level, limit)
        stat = None
        if tightest:
            self._limit = tightest[2]
            stat = f"{tightest[1]}/cpu.stat"
        if self._stat and self._stat.path != stat:
            self._stat.close()
            self._stat = None
        if stat and not self._stat:
            self._stat = KeptFile(stat, self._budget)


class Cgroups:
    """The control groups of the processes that are read, each looked up once."""

    def __init__(self, root: Path, budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._known: dict[bytes, Cgroup] = {}

    def of(self, data: bytes, pid: int) -> Cgroup:
        """The group of the process ``pid``, whose ``/proc/PID/cgroup`` says ``data``."""
        group = self._known.get(data)
        if group is None:
            group = self._known[data] = Cgroup(self._root, data, pid, self._budget)
        return group

    def keep(self, used: Iterable[bytes]) -> None:
        """Forgets all groups but these."""
        for data in self._known.keys() - set(used):
            self._known.pop(data).close()


def psi_totals(data: bytes) -> dict[str, int]:
    """Microseconds of "some" and "full" since boot, of a pressure file."""
    totals: dict[str, int] = {}
    for line in data.splitlines():
        kind, _, rest = line.partition(b" ")
        total = whole(rest.rpartition(b"total=")[2])
        if kind in {b"some", b"full"} and total is not None:
            totals[kind.decode()] = total
    return totals


def _counters(data: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in data.splitlines():
        name, _, text = line.partition(b" ")
        value = whole(text.strip())
        if value is None:
            continue
        if name in {b"usage_usec", b"nr_periods", b"nr_throttled", b"throttled_usec"}:
            found[name.decode()] = value
        elif name == b"throttled_time":  # version 1, nanoseconds
            found["throttled_usec"] = value // 1000
    return found


def _usage(data: bytes) -> int | None:
    """Microseconds of CPU time: of ``cpu.stat``, or of version 1's ``cpuacct.usage``, nanoseconds."""
    for line in data.splitlines():
        name, blank, text = line.partition(b" ")
        if name == b"usage_usec":
            return whole(text.strip())
        if not blank and (value := whole(name)) is not None:
            return value // 1000
    return None


def _limit_v2(folder: Path) -> tuple[str, str] | None:
    parts = (read_once(f"{folder}/cpu.max") or b"").decode(errors="replace").split()
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _limit_v1(folder: Path) -> tuple[str, str] | None:
    quota, period = (
        (read_once(f"{folder}/cpu.cfs_{name}_us") or b"").decode(errors="replace").strip()
        for name in ("quota", "period")
    )
    if not quota or not period:
        return None
    return ("max" if quota.startswith("-") else quota, period)


def _mount(root: Path, line: _Line) -> Path | None:
    # Version 2 lies beside the controllers of a hybrid, and is the root itself where it is alone.
    names = [",".join(line.controllers), *line.controllers] if line.controllers else ["unified", ""]
    return next((root / name for name in names if _is_folder(root / name)), None)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _folder(root: Path, line: _Line, pid: int) -> Path | None:
    """Where a group lies below the mount, None where it cannot be found.

    From a private namespace a path is relative to the reader's own group, while the mount may be the
    host's. The levels between are not known: the one group that holds ``pid`` is looked for.
    """
    mount = _mount(root, line)
    if mount is None:
        return None
    parts = [part for part in line.path.split("/") if part]
    if ".." not in parts and _is_folder(mount.joinpath(*parts)):
        return mount.joinpath(*parts)
    tail = "/".join(glob.escape(part) for part in parts if part != "..")
    if not tail:
        return None
    try:
        for levels in range(_DEEPEST_ROOT + 1):
            for folder in mount.glob("*/" * levels + tail):
                if str(pid).encode() in (read_once(f"{folder}/cgroup.procs") or b"").split():
                    return folder
    except OSError:
        pass
    return None


def _levels(root: Path, line: _Line, pid: int) -> list[Path]:
    """The group's folder and its ancestors' up to the mount, whose top is a container's own group at times."""
    mount, folder = _mount(root, line), _folder(root, line, pid)
    if mount is None or folder is None:
        return []
    return [folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)]
