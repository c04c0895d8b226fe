"""CPU time of one look at the host, by what runs on it: ``python bench/host.py [--ticks 10] [--json]``.

Each scene starts processes of its own, makes them the GPU's owners and workers, and looks once a second
as the agent does: between looks the caches grow cold, which makes a look several times dearer than one in
a loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from gpuwhy.source.host import HostSource

# Forks, so that hundreds of processes share their memory. Those that are busy wake up 20 times a second.
LOAD = """
import os, signal, sys, threading, time
processes, threads, busy = map(int, sys.argv[1:])
def work(active):
    while True:
        time.sleep(0.05 if active else 3600)
        if active:
            sum(range(2000))
workers = []
for number in range(processes - 1):
    workers.append(os.fork())
    if workers[-1] == 0:
        work(number < busy)
for number in range(threads - 1):
    threading.Thread(target=work, args=(number < busy,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
for worker in workers:
    os.kill(worker, signal.SIGKILL)
"""


@dataclass(frozen=True)
class Scene:
    name: str
    owners: int
    processes: int = 1  # per owner, itself included
    threads: int = 1  # of the owner
    busy: int = 0  # processes per owner, and threads of it, that use CPU time


SCENES = (
    Scene("no owner", 0),
    Scene("1 owner of 10 threads", 1, threads=10, busy=2),
    Scene("1 owner, 16 busy workers", 1, processes=17, threads=20, busy=16),
    Scene("200 processes, asleep", 8, processes=25, threads=20),
    Scene("200 processes, half busy", 8, processes=25, threads=20, busy=12),
    Scene("8 owners of 100 threads", 8, threads=100, busy=4),
    Scene("1 owner of 5000 threads", 1, threads=5000, busy=8),
)


def measure(scene: Scene, ticks: int, period_s: float) -> dict[str, float | str]:
    """Milliseconds of CPU time of a look: the first, then the mean and the worst of the others."""
    sizes = [str(scene.processes), str(scene.threads), str(scene.busy)]
    loads = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(scene.owners)
    ]
    source = HostSource()
    try:
        for load in loads:
            assert load.stdout is not None
            assert load.stdout.readline() == "ready\n"
        owners = [load.pid for load in loads]
        spent: list[float] = []
        found = 0
        for _ in range(ticks + 1):
            begin = time.thread_time_ns()
            reading = source.read(owners)
            spent.append((time.thread_time_ns() - begin) / 1e6)
            found = len(reading.processes or ())
            time.sleep(period_s)
    finally:
        source.close()
        for load in loads:
            load.communicate()
    return {
        "scene": scene.name,
        "processes": found,
        "first_ms": round(spent[0], 3),
        "mean_ms": round(statistics.fmean(spent[1:]), 3),
        "worst_ms": round(max(spent[1:]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=10)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = [measure(scene, chosen.ticks, chosen.period) for scene in SCENES]
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'host':<28}{'processes':>10}{'first ms':>10}{'mean ms':>10}{'worst ms':>10}")
    for row in rows:
        print(
            f"{row['scene']:<28}{row['processes']:>10}{row['first_ms']:>10}{row['mean_ms']:>10}{row['worst_ms']:>10}"
        )


if __name__ == "__main__":
    main()
