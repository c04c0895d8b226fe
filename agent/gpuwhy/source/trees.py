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
# Of the workers that used so much of a core when last looked at, or are blocked, and of the others that
# used any CPU time, so many are looked at each time, or where there are more, a quarter of them.
HOT_FROM = 0.1
HOT_EACH_LOOK = 16
AWAKE_EACH_LOOK = 8
ROUND = 4
# Of those that used none, so many are looked at each time, and more of them at once while the host uses so
# many cores that the trees do not account for. The gain of one that wakes up comes late, and then is whole.
SLEEPERS_EACH_LOOK = 8
SEARCH_SLEEPERS = 32
SEARCH_FROM = 0.3
# Of those that are looked at, so many are asked each time how much they read and wrote.
READERS_EACH_LOOK = 8
# So many owners, and workers that use CPU time, are asked each time for children.
OWNERS_EACH_LOOK = 4
PARENTS_EACH_LOOK = 4
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
        # By how they are looked at; owners are in none of these.
        self._fresh: set[int] = set()
        self._hot: set[int] = set()
        self._awake: set[int] = set()
        self._asleep: set[int] = set()
        self._hot_turn: Turn[int] = Turn()
        self._awake_turn: Turn[int] = Turn()
        self._asleep_turn: Turn[int] = Turn()
        self._owners_turn: Turn[int] = Turn()
        self._parents_turn: Turn[int] = Turn()
        self._records: dict[int, dict[str, Any]] = {}
        self._search = _Search()
        # Of all that /proc lists, trees or not.
        self._names: set[str] = set()
        self._parents: dict[int, int] = {}
        self._children: dict[int, set[int]] = {}
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
        if pids != self._owners:
            self._change_owners(pids)
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

    def look(
        self, now_s: float, uptime_s: float | None, ticks_per_s: float, busy_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Raw values of each process as in recordings. Who was not looked at has the same record as before.

        ``busy_s`` is how long the host's CPUs have worked since it came up.
        """
        chosen = self._choose(now_s, busy_s)
        awake = len(chosen) - len(self._asleep.intersection(chosen))
        io_every = -(-awake // READERS_EACH_LOOK) or 1
        for pid in chosen:
            process = self.processes[pid]
            news = process.look(now_s, ticks_per_s, io_every=io_every)
            if process.gone:
                self._remove(pid)
                continue
            record = process.record
            if news and record:
                if process.cgroup:
                    record["cgroup"] = self._cgroups.of(process.cgroup, pid).path
                self._records[pid] = record
            if pid not in self._owners:
                self._sort(pid, process)
            elif record:
                record = record | process.owner_values(now_s, ticks_per_s, owners=len(self._owners))
                if uptime_s is not None:
                    record["age_s"] = max(0.0, uptime_s - record["start_ticks"] / ticks_per_s)
                self._records[pid] = record
        return list(self._records.values())

    def _choose(self, now_s: float, busy_s: float | None) -> list[int]:
        """Who is looked at this time."""
        self._fresh -= self._owners
        asleep = SLEEPERS_EACH_LOOK
        if len(self._asleep) > asleep and self._search.wanted(now_s, busy_s, self._used_cores()):
            asleep = SEARCH_SLEEPERS
            self._search.looked_at(asleep, of=len(self._asleep))
        return [
            *(pid for pid in self._owners if pid in self.processes),
            *self._fresh,
            *self._hot_turn.choose(self._hot, max(HOT_EACH_LOOK, -(-len(self._hot) // ROUND))),
            *self._awake_turn.choose(self._awake, max(AWAKE_EACH_LOOK, -(-len(self._awake) // ROUND))),
            *self._asleep_turn.choose(self._asleep, asleep),
        ]

    def _used_cores(self) -> float:
        """What the trees use, as last looked at."""
        pids = (pid for group in (self._owners, self._hot, self._awake) for pid in group)
        return sum(self.processes[pid].cores or 0.0 for pid in pids if pid in self.processes)

    def _sort(self, pid: int, process: Process) -> None:
        """Puts a worker where it is looked at as it deserves."""
        if process.cores is None:
            mine = self._fresh
        elif process.cores >= HOT_FROM or process.blocked:
            mine = self._hot
        else:
            mine = self._awake if process.awake else self._asleep
        if pid not in mine:
            for group in (self._fresh, self._hot, self._awake, self._asleep):
                group.discard(pid)
            mine.add(pid)

    def _remove(self, pid: int) -> None:
        self.processes.pop(pid).close()
        self._records.pop(pid, None)
        for group in (self._fresh, self._hot, self._awake, self._asleep):
            group.discard(pid)

    def close(self) -> None:
        for pid in list(self.processes):
            self._remove(pid)

    def _add(self, pid: int) -> None:
        if pid not in self.processes:
            self.processes[pid] = Process(f"{self._proc}/{pid}", pid, self._budget)
            self._fresh.add(pid)

    def _change_owners(self, pids: set[int]) -> None:
        for group in (self._hot, self._awake, self._asleep):
            group.difference_update(pids)
        # What is read of owners only is not read of those that are none any more.
        self._fresh.update(pid for pid in self._owners - pids if pid in self.processes)
        self._owners = pids

    def _add_all(self, pids: Iterable[int]) -> None:
        """Adds whom there is room for. The agent is nobody's worker, even in a job's own container."""
        for pid in pids:
            if len(self.processes) < MOST_PROCESSES and pid != self._agent:
                self._add(pid)

    def _add_children(self) -> None:
        for pid in self._owners_turn.choose(self._owners, OWNERS_EACH_LOOK):
            self._add_all(self.processes[pid].children(keep=True))
        # Who forks uses CPU time.
        for pid in self._parents_turn.choose(self._hot | self._awake, PARENTS_EACH_LOOK):
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
            self._remove(pid)
        self._add_all(kept)
        self._cgroups.keep(process.cgroup for process in self.processes.values())

    def _learn(self, names: set[str], forks: int | None) -> None:
        """Reads the parents of pids that were not there before."""
        # A pid comes again only after the kernel has gone through all of them.
        if forks is None or self._learnt_at is None or forks - self._learnt_at > self._pid_max // 2:
            self._learnt_at, self._names, self._parents, self._children = forks, set(), {}, {}
        for name in self._names - names:
            if name.isdecimal():
                self._set_parent(int(name), None)
        for name in names - self._names:
            stat = parse_stat(read_once(f"{self._proc}/{name}/stat") or b"") if name.isdecimal() else None
            if stat is not None:
                self._set_parent(int(name), stat["ppid"])
        self._names = names
        # Who is read says itself who adopted it.
        for pid, record in self._records.items():
            if pid in self._parents:
                self._set_parent(pid, record["ppid"])

    def _set_parent(self, pid: int, ppid: int | None) -> None:
        """None for one that is there no more."""
        before = self._parents.get(pid)
        if before == ppid:
            return
        if before is not None:
            siblings = self._children[before]
            siblings.discard(pid)
            if not siblings:
                del self._children[before]
        if ppid is None:
            del self._parents[pid]
        else:
            self._parents[pid] = ppid
            self._children.setdefault(ppid, set()).add(pid)

    def _descendants(self, roots: Iterable[int]) -> list[int]:
        """``roots`` and all that descend from them, nearest first."""
        found = dict.fromkeys(roots)
        queue = deque(found)
        while queue:
            for child in self._children.get(queue.popleft(), ()):
                if child not in found:
                    found[child] = None
                    queue.append(child)
        return list(found)


class _Search:
    """Whether somebody who sleeps may have woken up: the host uses more than what the trees account for.

    Strangers use some of it: that is what is left when all sleepers were looked at in vain.
    """

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._strangers = 0.0
        self._unexplained = 0.0
        self._looked_at = 0

    def wanted(self, now_s: float, busy_s: float | None, used_cores: float) -> bool:
        """Asked once a look. True where nobody knows, as when the host's CPU time cannot be read."""
        before, self._before = self._before, None if busy_s is None else (now_s, busy_s)
        if busy_s is None or before is None or now_s <= before[0]:
            return True
        self._unexplained = max(0.0, (busy_s - before[1]) / (now_s - before[0]) - used_cores)
        self._strangers = min(self._strangers, self._unexplained)
        if self._unexplained < self._strangers + SEARCH_FROM:
            self._looked_at = 0
            return False
        return True

    def looked_at(self, count: int, *, of: int) -> None:
        """So many sleepers are looked at this time, of all there are."""
        self._looked_at += count
        if self._looked_at > of:
            self._strangers, self._looked_at = self._unexplained, 0
