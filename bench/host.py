"""CPU time of one look at the host, by what runs on it: ``python bench/host.py [--ticks 10] [--json] [SCENE ...]``.

Each scene starts processes of its own, takes them for GPU owners and their workers, and looks once a second
as the agent does: meanwhile the caches grow cold, which makes a look several times dearer than in a loop.
The reference in the same run is a bare loop of as many reads of open files, equally cold; beside it stands
what the next stage takes to make rates of a look.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpuwhy.sample import Normaliser
from gpuwhy.source.host import HostSource

# Forks, so that hundreds of processes share their memory. Those that are busy use a hundredth of a core,
# which is what it takes to change what the kernel prints.
LOAD = """
import os, signal, sys, threading, time
processes, threads, busy, short = map(int, sys.argv[1:])
def work(active):
    while True:
        time.sleep(0.1 if active else 3600)
        if active:
            sum(range(60000))
workers = []
for number in range(processes - 1):
    workers.append(os.fork())
    if workers[-1] == 0:
        work(number < busy)
for number in range(threads - 1):
    threading.Thread(target=work, args=(number < busy,), daemon=True).start()
def fork():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork() == 0:
            time.sleep(0.1)
            os._exit(0)
        time.sleep(1 / short)
if short:
    workers.append(os.fork())
    if workers[-1] == 0:
        fork()
print("ready", flush=True)
sys.stdin.read()
for worker in workers:
    os.kill(worker, signal.SIGKILL)
"""

SETTLE = 4  # looks until it is known who sleeps
PERIOD_S = 1.0


@dataclass(frozen=True)
class Scene:
    name: str
    owners: int
    processes: int = 1  # per owner, itself included
    threads: int = 1  # of the owner
    busy: int = 0  # processes per owner, and threads of it, that use CPU time
    short: int = 0  # processes per owner that are started in a second, and live for a tenth of it


SCENES = (
    Scene("no owner", 0),
    Scene("1 owner of 10 threads", 1, threads=10, busy=2),
    Scene("1 owner, 16 busy workers", 1, processes=17, threads=20, busy=16),
    Scene("200 processes, asleep", 8, processes=25, threads=20),
    Scene("200 processes, 32 busy", 8, processes=25, threads=20, busy=4),
    Scene("200 processes, 64 busy", 8, processes=25, threads=20, busy=8),
    Scene("2,000 short-lived a minute", 1, processes=17, threads=20, busy=4, short=33),
    Scene("8 owners of 60 threads", 8, threads=60, busy=4),
    Scene("8 owners of 200 threads", 8, threads=200, busy=4),
    Scene("1 owner of 5000 threads", 1, threads=5000, busy=8),
)


def counted(source: HostSource, owners: list[int]) -> int:
    """How many files one look reads."""
    calls = 0
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal calls
        calls += offset == 0
        return real(fd, size, offset)

    os.pread = pread
    try:
        source.read(owners)
    finally:
        os.pread = real
    return calls


def bare(pids: list[int], reads: int) -> float:
    """Milliseconds of CPU time of as many reads of open files of these processes, and nothing else."""
    living = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists()]
    files = [os.open(f"/proc/{pid}/stat", os.O_RDONLY) for pid in living or [os.getpid()]]
    spent = []
    for _ in range(3):
        time.sleep(PERIOD_S)
        begin = time.thread_time_ns()
        for at in range(reads):
            os.pread(files[at % len(files)], 4096, 0)
        spent.append((time.thread_time_ns() - begin) / 1e6)
    for file in files:
        os.close(file)
    return statistics.fmean(spent)


def measure(scene: Scene, ticks: int) -> dict[str, float | str]:
    """CPU time of a look: the first, and of those that count the mean and the worst."""
    sizes = [str(scene.processes), str(scene.threads), str(scene.busy), str(scene.short)]
    loads = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(scene.owners)
    ]
    source, normaliser = HostSource(), Normaliser()
    try:
        for load in loads:
            assert load.stdout is not None
            assert load.stdout.readline() == "ready\n"
        owners = [load.pid for load in loads]
        spent: list[float] = []
        made: list[float] = []
        for _ in range(SETTLE + ticks):
            begin = time.thread_time_ns()
            reading = source.read(owners)
            read = time.thread_time_ns()
            normaliser.host(reading)
            made.append((time.thread_time_ns() - read) / 1e6)
            spent.append((read - begin) / 1e6)
            time.sleep(PERIOD_S)
        reads = counted(source, owners)
        pids = [process["pid"] for process in reading.processes or ()]
        return {
            "host": scene.name,
            "processes": len(pids),
            "first ms": round(spent[0], 2),
            "mean ms": round(statistics.fmean(spent[SETTLE:]), 2),
            "median ms": round(statistics.median(spent[SETTLE:]), 2),
            "worst ms": round(max(spent[SETTLE:]), 2),
            "rates ms": round(statistics.median(made[SETTLE:]), 2),
            "files": reads,
            "bare ms": round(bare(pids, reads), 2),
        }
    finally:
        source.close()
        for load in loads:
            load.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=10, help="looks that count (default %(default)s)")
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help="parts of names; all unless told")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    wanted = [
        scene
        for scene in SCENES
        if not arguments.scenes or any(part in scene.name for part in arguments.scenes)
    ]
    rows = [measure(scene, arguments.ticks) for scene in wanted]
    if not rows:
        parser.error(f"no such scene; there are: {', '.join(scene.name for scene in SCENES)}")
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'host':<28}" + "".join(f"{name:>11}" for name in rows[0] if name != "host"))
    for row in rows:
        print(f"{row['host']:<28}" + "".join(f"{value:>11}" for name, value in row.items() if name != "host"))


if __name__ == "__main__":
    main()
