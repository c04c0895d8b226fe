"""A ``/proc`` and a ``/sys/fs/cgroup`` made of plain files, and a clock that only the test moves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from gpuwhy.source import HostReading
from gpuwhy.source.host import HostSource

TICKS = os.sysconf("SC_CLK_TCK")
NET_HEAD = "Inter-|   Receive        |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n"


def stat_line(
    pid: int,
    ppid: int = 1,
    *,
    comm: bytes = b"python3",
    state: str = "S",
    utime: int = 0,
    stime: int = 0,
    threads: int = 1,
    start: int = 500,
) -> bytes:
    """One line as the kernel prints it, with its 52 fields."""
    fields = [state, ppid, *[7] * 9, utime, stime, 0, 0, 20, 0, threads, 0, start, *[9] * 30]
    return b"%d (%s) " % (pid, comm) + " ".join(map(str, fields)).encode() + b"\n"


class FakeHost:
    """Files are not kept open here, so that one which a test removes is gone."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self.now_s = 1000.0
        self.forks = 100
        self.put("uptime", "1000.00 1990.00\n")
        self.put("sys/kernel/pid_max", "32768\n")
        self.host()
        self.cgroup.mkdir()

    def put(self, name: str, content: str | bytes) -> None:
        self._write(self.proc / name, content)

    def put_cgroup(self, name: str, content: str | bytes) -> None:
        self._write(self.cgroup / name, content)

    def host(self, cpu: str = "cpu  10 1 5 80 3 1 2 4 6 0", forks: int | None = None) -> None:
        self.forks = self.forks if forks is None else forks
        lines = [cpu, "cpu0 5 0 2 40 1 0 1 2 3 0", "cpu1 5 1 3 40 2 1 1 2 3 0", "intr 12345 0 9", "ctxt 4321"]
        lines += [
            "btime 1700000000",
            f"processes {self.forks}",
            "procs_running 3",
            "procs_blocked 2",
            "softirq 1 2",
        ]
        self.put("stat", "\n".join(lines) + "\n")

    def process(
        self,
        pid: int,
        ppid: int = 1,
        *,
        threads: dict[int, tuple[int, int]] | None = None,
        cgroup: str = "0::/\n",
        io: tuple[int, int] | None = (0, 0),
        **stat: Any,
    ) -> None:
        """Starts a process or changes it; ``threads`` are (run, wait) in ns by thread id."""
        threads = {pid: (1_000_000, 0)} if threads is None else threads
        self.put(f"{pid}/stat", stat_line(pid, ppid, threads=len(threads), **stat))
        self.put(f"{pid}/cgroup", cgroup)
        if io is not None:
            self.put(
                f"{pid}/io",
                f"rchar: 1\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\ncancelled_write_bytes: 5\n",
            )
        for tid, (run, wait) in threads.items():
            self.thread(pid, tid, run, wait)

    def thread(
        self, pid: int, tid: int, run: int, wait: int = 0, *, state: str = "S", wchan: str = "0"
    ) -> None:
        self.put(f"{pid}/task/{tid}/schedstat", f"{run} {wait} 7\n")
        self.put(f"{pid}/task/{tid}/stat", stat_line(tid, state=state, utime=run * TICKS // 10**9))
        self.put(f"{pid}/task/{tid}/wchan", wchan)

    def remove(self, name: str | int) -> None:
        path = self.proc / str(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def forked(self) -> None:
        """Somebody started something."""
        self.host(forks=self.forks + 1)

    def source(self, **more: Any) -> HostSource:
        return HostSource(proc=self.proc, cgroup=self.cgroup, clock=lambda: self.now_s, kept_files=0, **more)

    def read(self, source: HostSource, *owners: int, after_s: float = 1.0) -> HostReading:
        """The next look, a second after the one before unless told otherwise."""
        self.now_s += after_s
        return source.read(owners)

    def _write(self, path: Path, content: str | bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def by_pid(reading: HostReading) -> dict[int, dict[str, Any]]:
    """The reading's processes by pid; a pid is never there twice."""
    assert reading.processes is not None
    table = {process["pid"]: dict(process) for process in reading.processes}
    assert len(table) == len(reading.processes)
    return table
