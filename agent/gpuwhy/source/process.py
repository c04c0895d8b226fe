"""One process of a GPU's tree, and the threads of one that owns a context, from ``/proc``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from gpuwhy.source.kept import Budget, KeptFile, Turn, entries, read_once, whole

ALL_THREADS = 16  # of a process with no more threads than these, all are read each time
BUSY_THREADS = 48  # of one with more, so many that were busy when last read,
BUSY_FROM = 0.005  # which is to have used, or wanted, this much of a core,
TURN_THREADS = 2  # some of the others in turn,
SEARCH_THREADS = 64  # and more of them at once while threads that were not read use this much of a core:
SEARCH_FROM = 0.05
STATES = 2  # threads whose state is looked at each time, beside those that were blocked
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
    ppid, utime, stime = whole(fields[1]), whole(fields[11]), whole(fields[12])
    threads, start = whole(fields[17]), whole(fields[19])
    if ppid is None or utime is None or stime is None or threads is None or start is None:
        return None
    return {
        "ppid": ppid,
        "state": fields[0][:1].decode("ascii", "replace"),
        "comm": line[begin + 1 : end].decode("utf-8", "replace"),
        "utime": utime,
        "stime": stime,
        "threads": threads,
        "start_ticks": start,
    }


def network_namespace(folder: str) -> int:
    """A number for the network namespace of a process, 0 where that may not be known."""
    try:
        return Path(folder, "ns", "net").stat().st_ino
    except OSError:
        return 0


class Process:
    """The files of one process.

    ``record`` holds its raw values as in recordings, as of the last look, None before the first. ``awake``
    says whether it has used CPU time between the last two looks, wants some, or is blocked. ``gone`` turns
    True when it has ended, or another one has its pid.
    """

    __slots__ = (
        "_budget",
        "_children",
        "_children_file",
        "_folder",
        "_io",
        "_line",
        "_looks",
        "_moved",
        "_network",
        "_stat",
        "_status",
        "_status_in",
        "_threads",
        "awake",
        "cgroup",
        "gone",
        "pid",
        "record",
    )

    def __init__(self, folder: str, pid: int, budget: Budget) -> None:
        self.pid = pid
        self.record: dict[str, Any] | None = None
        self.awake = True
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
        self._network: int | None = None
        self._line = b""
        self._moved: dict[str, int] = {}
        # The looks of many processes at their cgroups shall not fall on the same read.
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

    def look(self, *, io: bool) -> bool:
        """Brings ``record`` up to date, bytes read and written on demand; whether it is a new one.

        Where ``stat`` says the same as before, the process has used no CPU time, and can have read or
        written nothing either.
        """
        line = self._stat.read()
        if line is None:
            self.gone = True
            return False
        if line == self._line:
            self.awake = line[line.rfind(b")") + 2 :][:1] in b"RD"
            return False
        stat = parse_stat(line)
        if stat is None:
            return False
        if self.record and stat["start_ticks"] != self.record["start_ticks"]:
            self.gone = True
            return False
        self._line = line
        self._looks += 1
        if self._looks % LOOKS_PER_CGROUP == 0:
            self.cgroup = read_once(f"{self._folder}/cgroup") or self.cgroup
        self.awake = True
        if io or self.record is None:
            self._moved = _io(self._io.read() or b"")
        self.record = {"pid": self.pid, **stat, **self._moved}
        return True

    def owner_values(self, now_s: float, ticks_per_s: float) -> dict[str, int]:
        """What is read of owners only: their threads, context switches and the CPUs that they may use."""
        if self.record is None:
            return {}
        if self._threads is None:
            self._threads = Threads(f"{self._folder}/task", self.pid, ticks_per_s, self._budget)
        if self._status_in == 0:
            self._status = _status(read_once(f"{self._folder}/status") or b"")
            self._status_in = LOOKS_PER_STATUS
        self._status_in -= 1
        return self._status | self._threads.look(now_s, self.record)

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
    __slots__ = ("files", "read_s", "run", "text", "wait")

    def __init__(self, run: int | None, read_s: float) -> None:
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


class Threads:
    """The threads of a process that owns a context.

    Up to ``ALL_THREADS`` all are read each time. Of more, the main thread, up to ``BUSY_THREADS`` that ran
    or waited for a CPU when last read, busiest first, and a few of the others in turn. Where these do not
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
        self._blocked: set[int] = set()
        self._held: set[int] = set()
        self._turn = Turn()
        self._states_turn = Turn()
        self._listed_s: float | None = None
        self._list_in = 0
        self._look_s: float | None = None
        self._ticks = 0
        self._run = self._wait = self._hottest = self._longest = 0
        # An owner's main thread has run: zeros mean that the kernel does not account (CONFIG_SCHED_INFO).
        self._accounted = bool(_schedstat(read_once(f"{folder}/{main}/schedstat"))[0])

    def look(self, now_s: float, stat: dict[str, Any]) -> dict[str, int]:
        """Raw values as in recordings: counters in ns, and how many threads are in uninterruptible sleep
        (``d_state_threads``), and of these on something else than a lock (``blocked_threads``, absent where
        none is, or where that may not be read).

        ``hottest_thread_run_ns`` grows by what the hottest thread ran between two looks, whichever it was;
        ``threads_run_ns`` and ``threads_wait_ns`` by what all threads did. The first of them is absent where
        not all are read: the process's own ticks are whole.
        """
        self._list(now_s, stat["threads"])
        if not self._known:
            return {}
        ticks = stat["utime"] + stat["stime"]
        if self._look_s is None:
            self._read(list(self._known), now_s)
            self._run = sum(thread.run or 0 for thread in self._known.values())
            self._wait = sum(thread.wait for thread in self._known.values())
            self._hottest = self._longest
        else:
            self._count(now_s, now_s - self._look_s, (ticks - self._ticks) * self._tick_ns)
        self._ticks, self._look_s = ticks, now_s
        return self._values()

    def close(self) -> None:
        for thread in self._known.values():
            thread.close()

    def _values(self) -> dict[str, int]:
        values = {
            "hottest_thread_run_ns": self._hottest,
            "busiest_thread_run_ns": self._longest,
            "d_state_threads": len(self._blocked),
        }
        if self._held:
            values["blocked_threads"] = len(self._held)
        if len(self._known) <= ALL_THREADS:
            values["threads_run_ns"] = self._run
        if self._accounted:
            values["threads_wait_ns"] = self._wait
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
        self._blocked.discard(tid)
        self._held.discard(tid)

    def _count(self, now_s: float, span_s: float, used_ns: float) -> None:
        """Reads the threads that are worth it, and adds what they did to the counters."""
        if len(self._known) <= ALL_THREADS:
            self._kept = set(self._known)
            gains = self._read(list(self._known), now_s)
        else:
            chosen = (self._kept | {self._main}) & self._known.keys()
            chosen.update(self._turn.choose(self._known, TURN_THREADS))
            gains = self._read(list(chosen), now_s)
            # User and system time are cut to whole ticks each.
            missing = used_ns - sum(gain.ran for gain in gains)
            if missing > max(SEARCH_FROM * span_s * 1e9, 3 * self._tick_ns):
                more = self._turn.choose(self._known, SEARCH_THREADS)
                gains += self._read([tid for tid in more if tid not in chosen], now_s)
            gains.sort(reverse=True)
            busy = {gain.tid for gain in gains[:BUSY_THREADS] if gain.load >= BUSY_FROM}
            self._keep(busy.union(islice(self._blocked, BUSY_THREADS)))
        # One that runs half of the time is not held up by being blocked.
        self._look_at_states([gain.tid for gain in gains if gain.cores < 0.5])
        self._run += sum(gain.ran for gain in gains)
        self._wait += sum(gain.waited for gain in gains)
        self._hottest += int(max((gain.cores for gain in gains), default=0.0) * span_s * 1e9)

    def _keep(self, tids: set[int]) -> None:
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
            if run is None or thread.run is None:
                self._longest = max(self._longest, thread.run or 0)
            elif (thread.run != run or thread.wait != wait) and elapsed > 0:
                self._longest = max(self._longest, thread.run)
                ran, waited = max(0, thread.run - run), max(0, thread.wait - wait)
                gains.append(_Gain((ran + waited) / elapsed / 1e9, ran, waited, ran / elapsed / 1e9, tid))
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
        chosen = self._states_turn.choose(dict.fromkeys(tids), STATES)
        for tid in self._blocked.union(chosen) if self._accounted else ():
            self._read_state(tid, self._known[tid])

    def _content(self, tid: int, thread: _Thread, name: str) -> bytes | None:
        path = f"{self._folder}/{tid}/{name}"
        if tid not in self._kept:
            return read_once(path)
        file = thread.files.get(name)
        if file is None:
            file = thread.files[name] = KeptFile(path, self._budget)
        return file.read()
