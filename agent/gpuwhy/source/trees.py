"""Which processes belong to the GPUs' owners, and one look at all of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuwhy.source.cgroup import Cgroup, Cgroups
from gpuwhy.source.kept import Budget, Turn, entries, read_once, whole
from gpuwhy.source.process import Process, parse_stat

log = logging.getLogger("gpuwhy")

MOST_PROCESSES = 1024
# Of the processes that used no CPU time when last looked at, owners aside, so many are looked at each
# time. The gain of one that wakes up comes late by at most a round, and then is whole.
SLEEPERS_EACH_LOOK = 32
# Of the others, so many are asked each time how much they read and wrote.
READERS_EACH_LOOK = 32
# Of all but the owners, so many are asked each time for children.
PARENTS_EACH_LOOK = 8
# Listing a pid costs 5 microseconds: with so many pids for each look between two listings that is a
# quarter of a millisecond a look, or 2.5 while owners come and go.
PIDS_PER_LOOK = 50
PIDS_PER_LOOK_EAGER = 500


class Trees:
    """The processes that are read: the owners, their descendants, and who shares an owner's cgroup where
    that holds one job, at most ``MOST_PROCESSES`` of them.

    Children of an owner's main thread and members of its cgroup are found at once, or nearly so, and all
    others when ``/proc`` is listed: the more pids, the more rarely. ``readable`` is False where that fails.
    """

    def __init__(self, proc: str, cgroups: Cgroups, budget: Budget) -> None:
        self.processes: dict[int, Process] = {}
        self.readable = True
        self._proc = proc
        self._cgroups = cgroups
        self._budget = budget
        self._owners: set[int] = set()
        self._sleepers = Turn()
        self._readers = Turn()
        self._parents_turn = Turn()
        self._parents: dict[str, int] = {}
        self._strange: set[str] = set()
        self._learnt_at: int | None = None
        self._pid_max = whole((read_once(f"{proc}/sys/kernel/pid_max") or b"").strip()) or 32768
        self._listed_forks: int | None = None
        self._looks = 0
        self._list_at = self._list_early_at = self._members_at = 0
        self._full = False
        try:
            self._agent = int(Path(proc, "self").readlink().name)
        except (OSError, ValueError):
            self._agent = 0

    def follow(self, owners: Iterable[int], forks: int | None) -> None:
        """Brings ``processes`` up to date; ``forks`` counts all that was ever started on the host."""
        pids = set(owners)
        if pids != self._owners:
            self._list_at, self._listed_forks = self._list_early_at, None
        for pid in pids:
            self._add(pid)
        self._owners = pids
        self._looks += 1
        if not pids:
            self.close()
        elif forks is not None and forks == self._listed_forks:
            pass  # nobody has started anything since the last listing
        elif self._looks >= self._list_at:
            self._list(forks)
        else:
            self._add_children()
            if self._looks >= self._members_at:
                self._add_all(self._cgroup_members())

    def look(self, now_s: float, uptime_s: float | None, ticks_per_s: float) -> list[dict[str, Any]]:
        """Raw values of each process as in recordings."""
        workers = self.processes.keys() - self._owners
        awake = {pid for pid in workers if self.processes[pid].awake}
        asleep = workers - awake
        skipped = asleep.difference(self._sleepers.choose(asleep, SLEEPERS_EACH_LOOK))
        unasked = awake.difference(self._readers.choose(awake, READERS_EACH_LOOK))
        records: list[dict[str, Any]] = []
        for pid, process in list(self.processes.items()):
            news = pid not in skipped and process.look(io=pid not in unasked)
            if news and process.record and process.cgroup:
                process.record["cgroup"] = self._cgroups.of(process.cgroup, pid).path
            if process.gone:
                self.processes.pop(pid).close()
            elif process.record and pid in self._owners:
                record = process.record | process.owner_values(now_s, ticks_per_s)
                if uptime_s is not None:
                    record["age_s"] = max(0.0, uptime_s - record["start_ticks"] / ticks_per_s)
                records.append(record)
            elif process.record:
                records.append(process.record)
        return records

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.processes = {}

    def _add(self, pid: int) -> None:
        if pid not in self.processes:
            self.processes[pid] = Process(f"{self._proc}/{pid}", pid, self._budget)

    def _add_all(self, pids: Iterable[int]) -> None:
        """Adds whom there is room for. The agent is nobody's worker, even in a job's own container."""
        for pid in pids:
            if len(self.processes) < MOST_PROCESSES and pid != self._agent:
                self._add(pid)

    def _add_children(self) -> None:
        for pid in self._owners:
            self._add_all(self.processes[pid].children(keep=True))
        for pid in self._parents_turn.choose(self.processes.keys() - self._owners, PARENTS_EACH_LOOK):
            self._add_all(self.processes[pid].children(keep=False))

    def _cgroup_members(self) -> set[int]:
        owners = [self.processes[pid] for pid in self._owners]
        groups: set[Cgroup] = {self._cgroups.of(owner.cgroup, owner.pid) for owner in owners if owner.cgroup}
        members = {pid for group in groups for pid in group.members()}
        self._members_at = self._looks + 1 + len(members) // PIDS_PER_LOOK
        return members

    def _list(self, forks: int | None) -> None:
        """Finds all of the trees, and forgets who is in them no more."""
        names = entries(self._proc)
        self.readable = names is not None
        if names is None:
            return
        self._listed_forks = forks
        self._list_at = self._looks + 1 + len(names) // PIDS_PER_LOOK
        self._list_early_at = self._looks + 1 + len(names) // PIDS_PER_LOOK_EAGER
        self._learn(names, forks)
        found = self._descendants([*self._owners, *self._cgroup_members()])
        if len(found) > MOST_PROCESSES:
            if not self._full:
                log.warning(
                    "the GPUs' process trees hold %d processes; %d are read", len(found), MOST_PROCESSES
                )
            # Those that are read stay, so that their counters go on.
            found.sort(key=lambda pid: (pid not in self._owners, pid not in self.processes))
        self._full = len(found) > MOST_PROCESSES
        kept = set(found[:MOST_PROCESSES])
        for pid in self.processes.keys() - kept - self._owners:
            self.processes.pop(pid).close()
        self._add_all(kept)
        self._cgroups.keep(process.cgroup for process in self.processes.values())

    def _learn(self, names: set[str], forks: int | None) -> None:
        """Reads the parents of pids that were not there before."""
        # A pid comes again only after the kernel has gone through all of them.
        if forks is None or self._learnt_at is None or forks - self._learnt_at > self._pid_max // 2:
            self._learnt_at, self._parents, self._strange = forks, {}, set()
        self._strange &= names
        self._parents = {name: ppid for name, ppid in self._parents.items() if name in names}
        for name in names.difference(self._strange, self._parents):
            stat = parse_stat(read_once(f"{self._proc}/{name}/stat") or b"") if name.isdecimal() else None
            if stat is None:
                self._strange.add(name)
            else:
                self._parents[name] = stat["ppid"]

    def _descendants(self, roots: Iterable[int]) -> list[int]:
        """``roots`` and all that descend from them, nearest first."""
        children: dict[int, list[int]] = {}
        for name, ppid in self._parents.items():
            pid = int(name)
            # Who is read says itself who adopted it.
            record = self.processes[pid].record if pid in self.processes else None
            children.setdefault(record["ppid"] if record else ppid, []).append(pid)
        found = dict.fromkeys(roots)
        queue = deque(found)
        while queue:
            for child in children.get(queue.popleft(), ()):
                if child not in found:
                    found[child] = None
                    queue.append(child)
        return list(found)
