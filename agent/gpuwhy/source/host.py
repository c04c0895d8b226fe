"""What the kernel says of the host and of the GPUs' process trees, from ``/proc`` and ``/sys/fs/cgroup``.

Nothing here touches a device. Everything that a host says is taken as it comes: what is missing, cut,
denied or strange is absent from the reading.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuwhy.source.cgroup import Cgroup, Cgroups, psi_totals
from gpuwhy.source.kept import Budget, KeptFile, Turn, whole
from gpuwhy.source.process import Process, network_namespace
from gpuwhy.source.reading import HostReading
from gpuwhy.source.trees import Trees

MOST_KEPT_FILES = 1024
GROUPS_EACH_LOOK = 4  # cgroups that are asked each time for their own CPU time and pressure
READS_PER_GAUGE = 16  # load and free memory are for the record only, and uptime goes with the clock

_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_WORK_MODES = ("user", "nice", "system")
_FILES = ("stat", "loadavg", "meminfo", "uptime", "pressure/cpu", "pressure/io", "pressure/memory")


class HostSource:
    """Reads the host and the trees of the processes that own a GPU context.

    A tree is the owners, all their descendants and the processes in an owner's cgroup where that holds one
    job; at most ``MOST_PROCESSES`` are read, those nearest to an owner. Threads are read for owners only
    (``process.Threads`` says how many). Counters whose name is not the kernel's (``threads_*``,
    ``hottest_thread_run_ns``, ``net_*``) are summed here from gains and start anew with the source.
    """

    name = "host"

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
        kept_files: int | None = None,
    ) -> None:
        """``kept_files`` bounds the descriptors held; by default half of what the process may open."""
        if kept_files is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            kept_files = (
                MOST_KEPT_FILES if soft == resource.RLIM_INFINITY else min(MOST_KEPT_FILES, soft // 2)
            )
        self._proc = str(proc)
        self._clock = clock
        self._budget = Budget(kept_files)
        self._ticks_per_s = float(os.sysconf("SC_CLK_TCK"))
        self._files = {name: KeptFile(f"{proc}/{name}", self._budget) for name in _FILES}
        self._network = _Network(self._proc, self._budget)
        self._cgroups = Cgroups(cgroup, self._budget)
        self._trees = Trees(self._proc, self._cgroups, self._budget)
        self._groups_turn: Turn[Cgroup] = Turn()
        self._gauges_in = 0
        self._up_since_s: float | None = None  # on the clock
        self._end_s = clock()
        self._last: HostReading | None = None

    def read(self, owners: Iterable[int]) -> HostReading:
        """One look at the host and at the trees of ``owners``, pids with a GPU context.

        It speaks for the time since the look before; asked again at the same instant it is the same one.
        ``processes`` is None where the process table cannot be read, and empty where it holds no owner.
        """
        now = self._clock()
        if self._last is not None and now <= self._end_s:
            return self._last
        wanted = list(dict.fromkeys(pid for pid in owners if pid > 0))
        values, forks = self._host(now)
        self._trees.follow(wanted, forks)
        uptime_s = None if self._up_since_s is None else now - self._up_since_s
        records = self._trees.look(now, uptime_s, self._ticks_per_s, self._busy_s(values))
        present = [self._trees.processes[pid] for pid in wanted if pid in self._trees.processes]
        self._last = HostReading(
            end_s=now,
            # The first look has nothing to compare with; its span only must not be zero.
            span_s=max(now - self._end_s, 1e-3),
            values=values | self._network.read(present),
            processes=tuple(records) if records or self._trees.readable or not wanted else None,
            cgroups=self._read_cgroups(present),
        )
        self._end_s = now
        return self._last

    def close(self) -> None:
        """Gives all descriptors back."""
        self._trees.close()
        for file in self._files.values():
            file.close()
        self._network.close()
        self._cgroups.keep(())

    def _read_cgroups(self, owners: Iterable[Process]) -> dict[str, dict[str, Any]]:
        groups = {owner.pid: self._cgroups.of(owner.cgroup, owner.pid) for owner in owners if owner.cgroup}
        distinct = dict.fromkeys(groups.values())
        looked_at = self._groups_turn.choose(distinct, GROUPS_EACH_LOOK)
        read = {group: group.values(look=group in looked_at) for group in distinct}
        return {str(pid): read[group] for pid, group in groups.items()}

    def _read(self, name: str) -> bytes:
        return self._files[name].read() or b""

    def _busy_s(self, values: dict[str, Any]) -> float | None:
        ticks = values.get("cpu_ticks")
        return None if ticks is None else sum(ticks.get(mode, 0) for mode in _WORK_MODES) / self._ticks_per_s

    def _host(self, now_s: float) -> tuple[dict[str, Any], int | None]:
        """Values of the whole host, and how many processes and threads were ever started on it."""
        stat = self._read("stat")
        values: dict[str, Any] = {
            "cpus": stat.count(b"\ncpu") or None,
            "clock_ticks_per_s": self._ticks_per_s,
            "cpu_ticks": _cpu_ticks(stat),
            "ctxt": _line(stat, b"ctxt "),
            "procs_running": _line(stat, b"procs_running "),
            "procs_blocked": _line(stat, b"procs_blocked "),
        }
        if self._gauges_in == 0:
            self._gauges_in = READS_PER_GAUGE
            uptime_s = _decimal(self._read("uptime"))
            self._up_since_s = None if uptime_s is None else now_s - uptime_s
            values["loadavg1"] = _decimal(self._read("loadavg"))
            values["mem_available_kb"] = _line(self._read("meminfo"), b"MemAvailable:")
        self._gauges_in -= 1
        for name in ("cpu", "io", "memory"):
            for kind, total in psi_totals(self._read(f"pressure/{name}")).items():
                values[f"psi_{name}_{kind}_us"] = total
        return {name: value for name, value in values.items() if value is not None}, _line(
            stat, b"processes "
        )


class _Network:
    """Traffic of all interfaces but the loopback, in the network namespaces of the owners.

    Where owners live in containers with networks of their own, only those count; without owners, or where
    theirs may not be known, the reader's.
    """

    def __init__(self, proc: str, budget: Budget) -> None:
        self._proc = proc
        self._budget = budget
        self._own = network_namespace(f"{proc}/self")
        self._files: dict[int, KeptFile] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self._sums: tuple[int, int] | None = None

    def read(self, owners: Iterable[Process]) -> dict[str, int]:
        """``net_rx_bytes`` and ``net_tx_bytes``: what the first look found, and all gains since."""
        folders = {owner.network: f"{self._proc}/{owner.pid}" for owner in owners if owner.network}
        if self._own in folders or not folders:
            folders[self._own] = self._proc
        # An open file keeps its namespace alive, and that of a container that has ended must go.
        for namespace in self._files.keys() - folders.keys():
            self._files.pop(namespace).close()
            self._before.pop(namespace, None)
        gains: list[tuple[int, int]] = []
        for namespace, folder in folders.items():
            if namespace not in self._files:
                self._files[namespace] = KeptFile(f"{folder}/net/dev", self._budget)
            totals = _interfaces(self._files[namespace].read() or b"")
            if totals is None:
                # The next owner in this namespace may be readable.
                self._files.pop(namespace).close()
                continue
            # A namespace that joins later has a past that is not the span's.
            before = self._before.get(namespace, totals if self._sums else (0, 0))
            self._before[namespace] = totals
            # An interface that went took its bytes along.
            gains.append((max(0, totals[0] - before[0]), max(0, totals[1] - before[1])))
        if not gains:
            return {}
        received, sent = self._sums or (0, 0)
        self._sums = (received + sum(gain for gain, _ in gains), sent + sum(gain for _, gain in gains))
        return {"net_rx_bytes": self._sums[0], "net_tx_bytes": self._sums[1]}

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _cpu_ticks(stat: bytes) -> dict[str, int] | None:
    fields = stat.partition(b"\n")[0].split()
    # Guest time, which follows, is part of user time.
    ticks = [whole(field) for field in fields[1:9]]
    if fields[:1] != [b"cpu"] or len(ticks) < len(_CPU_MODES):
        return None
    return {mode: value for mode, value in zip(_CPU_MODES, ticks, strict=True) if value is not None} or None


def _interfaces(data: bytes) -> tuple[int, int] | None:
    received, sent, found = 0, 0, False
    for line in data.splitlines():
        name, _, rest = line.rpartition(b":")
        fields = rest.split()
        rx, tx = (whole(fields[0]), whole(fields[8])) if len(fields) > 8 else (None, None)
        if rx is None or tx is None:
            continue
        found = True
        if name.strip() != b"lo":
            received, sent = received + rx, sent + tx
    return (received, sent) if found else None


def _line(data: bytes, name: bytes) -> int | None:
    """The first number of the line that begins with ``name``, None where there is none."""
    begin = data.find(b"\n" + name)
    if begin < 0:
        return None
    begin += 1 + len(name)
    fields = data[begin : begin + 32].split(None, 1)
    return whole(fields[0]) if fields else None


def _decimal(data: bytes) -> float | None:
    """The first number of a line."""
    try:
        value = float(data.partition(b" ")[0])
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
