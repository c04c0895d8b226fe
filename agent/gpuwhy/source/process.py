"""One process of a GPU's tree, and the threads of one that owns a context, from ``/proc``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from gpuwhy.source.kept import MOST_DIGITS, Budget, KeptFile, Turn, entries, read_once, whole

ALL_THREADS = 16  # of a process with no more threads than these, all are read each time
BUSY_THREADS = 48  # of one with more, so many that were busy when last read,
BUSY_FROM = 0.005  # which is to have used, or wanted, this much of a core:
HOT_FROM = 0.05  # from here each time, below a third of them each time,
ROUND = 3
TURN_THREADS = 2  # some of the others in turn,
SEARCH_THREADS = 64  # and more of them at once while threads that were not read use this much of a core:
SEARCH_FROM = 0.05
STATES = 2  # threads whose state is looked at each time, beside those that were blocked
MANY_OWNERS = 5  # from so many on, one of an owner's other threads is read, and one state, each time
KEEP_ALL = 64  # up to so many threads their files stay open, beyond only those of busy ones
QUIET_BELOW = 0.2  # an owner that has used less of a core than this
QUIET_AFTER = 2  # at more than so many looks in a row
LOOKS_PER_QUIET = 4  # has its threads read every so many looks, until it uses more,
QUIET_AGAIN = 10  # but at all of so many looks after one was blocked: else that would be seen too rarely
LOOKS_PER_STATUS = 16  # status and cgroup hardly ever change
LOOKS_PER_CGROUP = 64

# Parts of the kernel functions in which a thread in uninterruptible sleep waits for another thread of its
# own process that changes the memory map, or for one in the GPU's driver: that is no input or output.
_LOCKS = (
    "mm_",
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "vma",
    "user_addr_fault",
    "page_fault",
)
_DRIVER_LOCKS = ("os_acquire", "os_cond_acquire", "nv", "_nv", "rm_", "uvm")


def parse_stat(line: bytes) -> dict[str, Any] | None:
    """``/proc/PID/stat`` under the names of recordings, None for a line that is cut or no such line."""
    # A command may hold blanks, parentheses and newlines; nothing after it does.
    begin, end = line.find(b"("), line.rfind(b")")
    fields = line[end + 2 :].split(None, 20)
    if begin < 0 or end < begin or len(fields) < 20 or not line.endswith(b"\n"):
        return None
    ppid, utime, stime, threads, start = fields[1], fields[11], fields[12], fields[17], fields[19]
    # Judged together: this is what costs most where hundreds of processes are read.
    numbers = b"%b%b%b%b%b" % (ppid, utime, stime, threads, start)
    if not numbers.isdigit() or len(numbers) > 5 * MOST_DIGITS:
        return None
    return {
        "ppid": int(ppid),
        "state": fields[0][:1].decode("ascii", "replace"),
        "comm": line[begin + 1 : end].decode("utf-8", "replace"),
        "utime": int(utime),
        "stime": int(stime),
        "threads": int(threads),
        "start_ticks": int(start),
    }


def network_namespace(folder: str) -> int:
    """A number for the network namespace of a process, 0 where that may not be known."""
    try:
        return Path(folder, "ns", "net").stat().st_ino
    except OSError:
        return 0


class Process:
    """The files of one process.

    ``record`` holds its raw values as in recordings, as of the last look, None before the first; ``look``
    in it counts the looks. ``awake`` says whether it has used CPU time between the last two looks, wants
    some, or is ``blocked``, in uninterruptible sleep; ``cores`` how much it used, None before the second
    look. ``gone`` turns True when it has ended, or another one has its pid.
    """

    __slots__ = (
        "_budget",
        "_children",
        "_children_file",
        "_folder",
        "_io",
        "_io_late",
        "_line",
        "_look_s",
        "_looks",
        "_moved",
        "_network",
        "_quiet",
        "_stat",
        "_status",
        "_status_in",
        "_threads",
        "_threads_said",
        "awake",
        "blocked",
        "cgroup",
        "cores",
        "gone",
        "pid",
        "record",
    )

    def __init__(self, folder: str, pid: int, budget: Budget) -> None:
        self.pid = pid
        self.record: dict[str, Any] | None = None
        self.awake = True
        self.blocked = False
        self.cores: float | None = None
        self.gone = False
        self.cgroup = read_once(f"{folder}/cgroup") or b""
        self._folder = folder
        self._budget = budget
        self._stat = KeptFile(f"{folder}/stat", budget)
        self._io = KeptFile(f"{folder}/io", budget)
        self._status: dict[str, int] = {}
        self._status_in = 0
        self._children_file: KeptFile | None = None
        self._children: bytes | None = None
        self._threads: Threads | None = None
        self._threads_said: dict[str, int] = {}
        self._quiet = 0  # looks in a row
        self._network: int | None = None
        self._line = b""
        self._moved: dict[str, int] = {}
        self._io_late = False
        self._look_s = 0.0
        # What many processes do at some of their looks only shall not fall on the same look of them all.
        self._looks = pid % LOOKS_PER_CGROUP

    @property
    def network(self) -> int:
        """A number for its network namespace, 0 where that may not be known."""
        if self._network is None:
            self._network = network_namespace(self._folder)
        return self._network

    def children(self, *, keep: bool) -> list[int]:
        """Pids that its main thread has forked, and that live. Empty where the kernel (built without
        CONFIG_PROC_CHILDREN) does not tell, and for one that is kept also where they are as before.
        """
        path = f"{self._folder}/task/{self.pid}/children"
        if not keep:
            data = read_once(path)
        else:
            if self._children_file is None:
                self._children_file = KeptFile(path, self._budget)
            before, data = self._children, self._children_file.read()
            if data == before:
                return []
            self._children = data
        return [pid for pid in map(whole, (data or b"").split()) if pid]

    def look(self, now_s: float, ticks_per_s: float, *, io_every: int) -> bool:
        """Brings ``record`` up to date, bytes read and written every so many looks; whether it is a new one.

        Where ``stat`` says the same as before, the process has used no CPU time, and can have read or
        written nothing either.
        """
        line = self._stat.read()
        if line is None:
            self.gone = True
            return False
        before, span_s = self.record, now_s - self._look_s
        if before is not None and line == self._line:
            self._note(now_s)
            self.awake = before["state"] in {"R", "D"}
            self.cores = 0.0
            if self._io_late:
                self._read_io()
            self.record = {**before, **self._moved, "look": self._looks}
            return True
        stat = parse_stat(line)
        if stat is None:
            return False
        if before and stat["start_ticks"] != before["start_ticks"]:
            self.gone = True
            return False
        self._line = line
        self._note(now_s)
        if self._looks % LOOKS_PER_CGROUP == 0:
            self.cgroup = read_once(f"{self._folder}/cgroup") or self.cgroup
        if not self.awake or before is None or self._looks % io_every == 0:
            self._read_io()
        else:
            self._io_late = True
        self.awake, self.blocked = True, stat["state"] == "D"
        if before and span_s > 0:
            used = stat["utime"] + stat["stime"] - before["utime"] - before["stime"]
            self.cores = max(0, used) / ticks_per_s / span_s
        self.record = {"pid": self.pid, **stat, **self._moved, "look": self._looks}
        return True

    def _note(self, now_s: float) -> None:
        self._look_s = now_s
        self._looks += 1

    def _read_io(self) -> None:
        self._moved = _io(self._io.read() or b"")
        self._io_late = False

    def owner_values(self, now_s: float, ticks_per_s: float, *, owners: int = 1) -> dict[str, int]:
        """What is read of owners only: their threads, context switches and the CPUs that they may use.

        ``owners`` is how many there are: of many, less is read of each.
        """
        if self.record is None:
            return {}
        if self._threads is None:
            self._threads = Threads(f"{self._folder}/task", self.pid, ticks_per_s, self._budget)
        if self._status_in == 0:
            self._status = _status(read_once(f"{self._folder}/status") or b"")
            self._status_in = LOOKS_PER_STATUS
        self._status_in -= 1
        quiet = self.cores is not None and self.cores < QUIET_BELOW
        self._quiet = (
            -QUIET_AGAIN if self._threads.blocked else self._quiet + 1 if quiet else min(self._quiet, 0)
        )
        if self._quiet <= QUIET_AFTER or self._looks % LOOKS_PER_QUIET == 0:
            self._threads_said = self._threads.look(now_s, self.record, thorough=owners < MANY_OWNERS)
        else:
            self._threads_said = self._threads.hold(now_s)
        return self._status | self._threads_said

    def close(self) -> None:
        for file in (self._stat, self._io, self._children_file, self._threads):
            if file:
                file.close()


def _io(data: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in (b"read_bytes", b"write_bytes"):
        # "cancelled_write_bytes" ends in the name of another.
        text = data.partition(b"\n" + name + b": ")[2]
        value = whole(text.partition(b"\n")[0])
        if value is not None:
            found[name.decode()] = value
    return found


def _status(data: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, key in (("vcsw", b"voluntary_ctxt_switches"), ("ivcsw", b"nonvoluntary_ctxt_switches")):
        value = whole(data.partition(b"\n" + key + b":")[2].partition(b"\n")[0].strip())
        if value is not None:
            found[name] = value
    cpus = _count(data.partition(b"\nCpus_allowed_list:")[2].partition(b"\n")[0].strip())
    if cpus:
        found["cpus_allowed"] = cpus
    return found


def _count(ranges: bytes) -> int | None:
    """How many numbers a list such as ``0-3,8`` holds."""
    total = 0
    for part in ranges.split(b","):
        first, dash, last = part.partition(b"-")
        low, high = whole(first), whole(last if dash else first)
        if low is None or high is None or high < low:
            return None
        total += high - low + 1
    return total


def _schedstat(data: bytes | None) -> tuple[int | None, int | None]:
    """Nanoseconds on a CPU, and runnable without one."""
    fields = (data or b"").split(None, 2)
    return (whole(fields[0]), whole(fields[1])) if len(fields) == 3 else (None, None)


def _holds(function: str) -> bool:
    """Whether a thread that sleeps in this kernel function waits for something outside: storage, network."""
    return (
        function not in {"", "0"}
        and not function.startswith(_DRIVER_LOCKS)
        and not any(part in function for part in _LOCKS)
    )


class _Thread:
    __slots__ = ("cores", "files", "read_s", "run", "text", "wait")

    def __init__(self, run: int | None, read_s: float) -> None:
        self.cores = 0.0  # when last read
        self.run = run  # ns, None until it was read once
        self.wait = 0
        self.read_s = read_s
        self.text = b""
        self.files: dict[str, KeptFile] = {}

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}


class _Gain(NamedTuple):
    """What a thread did since it was read before; ordered by how much it wanted a CPU."""

    load: float  # cores used or wanted
    ran: int  # ns, as is ``waited``
    waited: int
    cores: float  # cores used
    tid: int


class _Told:
    """A counter of what is read now and then, told evenly over as long as that took."""

    __slots__ = ("_pace", "_total", "value")

    def __init__(self) -> None:
        self.value = self._total = 0
        self._pace = 0.0

    def add(self, gain: int, span_s: float, told_s: float) -> None:
        """What came to light of the last ``span_s``; of that, ``told_s`` have not been told of yet."""
        self.value = self._total + (gain if told_s >= span_s else int(gain * told_s / span_s))
        self._total += gain
        self._pace = gain / span_s

    def go_on(self, span_s: float) -> None:
        """Tells for so long of what is left."""
        self.value = min(self._total, self.value + int(self._pace * span_s))


class Threads:
    """The threads of a process that owns a context.

    Up to ``ALL_THREADS`` all are read each time. Of more, up to ``BUSY_THREADS`` that ran or waited for a CPU
    when last read, busiest first, the less busy in turn, and a few of the others in turn. Where these do not
    account for the process's CPU time, more of the others are read at once: of ``SEARCH_THREADS`` one that
    wakes up is found in the same look, of 5,000 within 80.
    """

    def __init__(self, folder: str, main: int, ticks_per_s: float, budget: Budget) -> None:
        self._folder = folder
        self._main = main
        self._tick_ns = 1e9 / ticks_per_s
        self._budget = budget
        self._known: dict[int, _Thread] = {}
        self._kept: set[int] = set()
        self._warm: set[int] = set()
        self._warm_turn: Turn[int] = Turn()
        self._blocked: set[int] = set()
        self._held: set[int] = set()
        self._turn: Turn[int] = Turn()
        self._states_turn: Turn[int] = Turn()
        self._listed_s: float | None = None
        self._list_in = 0
        self._look_s: float | None = None
        self._told_s = 0.0
        self._thorough = True
        self._ticks = 0
        self._run, self._wait, self._hottest = _Told(), _Told(), _Told()
        self._longest = 0
        # An owner's main thread has run: zeros mean that the kernel does not account (CONFIG_SCHED_INFO).
        self._accounted = bool(_schedstat(read_once(f"{folder}/{main}/schedstat"))[0])

    def look(self, now_s: float, stat: dict[str, Any], *, thorough: bool = True) -> dict[str, int]:
        """Raw values as in recordings: counters in ns, and how many threads are in uninterruptible sleep
        (``d_state_threads``), and of these on something else than a lock (``blocked_threads``, absent where
        none is, or where that may not be read).

        ``hottest_thread_run_ns`` grows by what the hottest thread ran between two looks, whichever it was;
        ``threads_run_ns`` and ``threads_wait_ns`` by what all threads did. The first of them is absent where
        not all are read: the process's own ticks are whole.
        """
        self._thorough = thorough
        self._list(now_s, stat["threads"])
        if not self._known:
            return {}
        ticks = stat["utime"] + stat["stime"]
        if self._look_s is None:
            self._read(list(self._known), now_s)
            self._run.add(sum(thread.run or 0 for thread in self._known.values()), 1.0, 1.0)
            self._wait.add(sum(thread.wait for thread in self._known.values()), 1.0, 1.0)
            self._hottest.add(self._longest, 1.0, 1.0)
        else:
            self._count(now_s, now_s - self._look_s, (ticks - self._ticks) * self._tick_ns)
        self._ticks, self._look_s, self._told_s = ticks, now_s, now_s
        return self._values()

    @property
    def blocked(self) -> bool:
        """Whether a thread was in uninterruptible sleep when last looked at."""
        return bool(self._blocked)

    def hold(self, now_s: float) -> dict[str, int]:
        """The values where nothing is read: of what was read last, what was not told then."""
        if self._look_s is None or not self._known:
            return {}
        for counter in (self._run, self._wait, self._hottest):
            counter.go_on(now_s - self._told_s)
        self._told_s = now_s
        return self._values()

    def close(self) -> None:
        for thread in self._known.values():
            thread.close()

    def _values(self) -> dict[str, int]:
        values = {
            "hottest_thread_run_ns": self._hottest.value,
            "busiest_thread_run_ns": self._longest,
            "d_state_threads": len(self._blocked),
        }
        if self._held:
            values["blocked_threads"] = len(self._held)
        if len(self._known) <= ALL_THREADS:
            values["threads_run_ns"] = self._run.value
        if self._accounted:
            values["threads_wait_ns"] = self._wait.value
            main = self._known.get(self._main)
            if main is not None and main.run is not None:
                values["main_run_ns"], values["main_wait_ns"] = main.run, main.wait
        return values

    def _list(self, now_s: float, count: int) -> None:
        self._list_in -= 1
        if count == len(self._known) or self._list_in > 0:
            return
        names = entries(self._folder)
        if names is None:
            return
        tids = {int(name) for name in names if name.isdecimal()}
        for tid in self._known.keys() - tids:
            self._drop(tid)
        # What is new since the last list has done all that it did since then.
        run, read_s = (None, now_s) if self._listed_s is None else (0, self._listed_s)
        for tid in tids - self._known.keys():
            self._known[tid] = _Thread(run, read_s)
        self._listed_s = now_s
        # Listing 500 threads costs as much as reading 64.
        self._list_in = 1 + len(tids) // 500

    def _drop(self, tid: int) -> None:
        self._known.pop(tid).close()
        self._kept.discard(tid)
        self._warm.discard(tid)
        self._blocked.discard(tid)
        self._held.discard(tid)

    def _count(self, now_s: float, span_s: float, used_ns: float) -> None:
        """Reads the threads that are worth it, and adds what they did to the counters."""
        unread: list[int] = []
        if len(self._known) <= ALL_THREADS:
            self._kept = set(self._known)
            gains = self._read(list(self._known), now_s)
        else:
            later = self._warm.difference(self._warm_turn.choose(self._warm, -(-len(self._warm) // ROUND)))
            chosen = self._kept - later
            chosen.update(self._turn.choose(self._known, TURN_THREADS if self._thorough else 1))
            gains = self._read(list(chosen), now_s)
            # User and system time are cut to whole ticks each.
            missing = used_ns - span_s * 1e9 * (
                sum(gain.cores for gain in gains) + self._cores(later - chosen)
            )
            if missing > max(SEARCH_FROM * span_s * 1e9, 3 * self._tick_ns):
                more = later.union(self._turn.choose(self._known, SEARCH_THREADS)) - chosen
                if self._main in self._known and self._main not in chosen:
                    more.add(self._main)
                gains += self._read(list(more), now_s)
                chosen |= more
            gains.sort(reverse=True)
            busy = {gain.tid: gain.load for gain in gains[:BUSY_THREADS] if gain.load >= BUSY_FROM}
            # Who was not read is as busy as before.
            unread = list(islice((later - chosen) & self._known.keys(), BUSY_THREADS - len(busy)))
            self._warm = {tid for tid, load in busy.items() if load < HOT_FROM}.union(unread)
            self._keep(self._warm.union(busy, islice(self._blocked, BUSY_THREADS)))
        # One that runs half of the time is not held up by being blocked.
        self._look_at_states([gain.tid for gain in gains if gain.cores < 0.5])
        cores = [gain.cores for gain in gains] + [self._known[tid].cores for tid in unread]
        told_s = now_s - self._told_s
        self._run.add(sum(gain.ran for gain in gains), span_s, told_s)
        self._wait.add(sum(gain.waited for gain in gains), span_s, told_s)
        self._hottest.add(int(max(cores, default=0.0) * span_s * 1e9), span_s, told_s)

    def _cores(self, tids: Iterable[int]) -> float:
        """Cores that these used when last read."""
        return sum(self._known[tid].cores for tid in tids if tid in self._known)

    def _keep(self, tids: set[int]) -> None:
        if len(self._known) > KEEP_ALL:
            for tid in self._kept - tids:
                self._known[tid].close()
        self._kept = tids

    def _read(self, tids: list[int], now_s: float) -> list[_Gain]:
        """What these threads did since each was read; nothing of those that did nothing."""
        gains: list[_Gain] = []
        for tid in tids:
            thread = self._known[tid]
            run, wait, elapsed = thread.run, thread.wait, now_s - thread.read_s
            if not self._read_times(tid, thread):
                self._drop(tid)
                continue
            thread.read_s = now_s
            thread.cores = 0.0
            if run is None or thread.run is None:
                self._longest = max(self._longest, thread.run or 0)
            elif (thread.run != run or thread.wait != wait) and elapsed > 0:
                self._longest = max(self._longest, thread.run)
                ran, waited = max(0, thread.run - run), max(0, thread.wait - wait)
                thread.cores = ran / elapsed / 1e9
                gains.append(_Gain((ran + waited) / elapsed / 1e9, ran, waited, thread.cores, tid))
        return gains

    def _read_times(self, tid: int, thread: _Thread) -> bool:
        """Whether it is still there."""
        if not self._accounted:
            return self._read_state(tid, thread)
        text = self._content(tid, thread, "schedstat")
        if text is None or text != thread.text:
            run, wait = _schedstat(text)
            if run is None or wait is None:
                return False
            thread.run, thread.wait, thread.text = run, wait, text or b""
        return True

    def _read_state(self, tid: int, thread: _Thread) -> bool:
        stat = parse_stat(self._content(tid, thread, "stat") or b"")
        if stat is None:
            return False
        self._blocked.discard(tid)
        self._held.discard(tid)
        if stat["state"] == "D":
            self._blocked.add(tid)
            if _holds((read_once(f"{self._folder}/{tid}/wchan") or b"").decode("ascii", "replace")):
                self._held.add(tid)
        if not self._accounted:
            thread.run = int((stat["utime"] + stat["stime"]) * self._tick_ns)
        return True

    def _look_at_states(self, tids: list[int]) -> None:
        """Finds out who is blocked. A thread becomes so by what it does itself: only those that ran since
        need to be looked at, and those that were blocked.
        """
        chosen = self._states_turn.choose(dict.fromkeys(tids), STATES if self._thorough else 1)
        for tid in self._blocked.union(chosen) if self._accounted else ():
            self._read_state(tid, self._known[tid])

    def _content(self, tid: int, thread: _Thread, name: str) -> bytes | None:
        file = thread.files.get(name)
        if file is not None:
            return file.read()
        path = f"{self._folder}/{tid}/{name}"
        if tid not in self._kept and len(self._known) > KEEP_ALL:
            return read_once(path)
        file = thread.files[name] = KeptFile(path, self._budget)
        return file.read()
