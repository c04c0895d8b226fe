"""What it costs to know whose the GPUs are: ``python bench/whose.py [--json]``.

Finding out runs beside the tick, in a thread of its own: CPU of its first round and of later ones, for real
processes of this host. What sharing adds to a tick: the same samples with one workload on each of 8 GPUs
and with four. Memory with a kubelet: resident size before and after it was asked, with 500 pods.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil

from gpuwhy.config import load
from gpuwhy.daemon import make_resolver
from gpuwhy.sample import HostSample, ProcessSample, Sample, Tenant, Workload
from gpuwhy.source import GpuFacts, GpuReading
from gpuwhy.source.kubernetes import Kubelet
from gpuwhy.workload import attribute

OWNERS = 200
PODS = 500
SLEEPERS = """
import os, signal, sys
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
else:
    print("ready", flush=True)
signal.pause()
"""
KUBELET = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.source import fake_kubelet as fake
pods = [
    fake.pod("ml", f"train-{at}", fake.container("main", ("nvidia.com/gpu", [f"GPU-{at}"])))
    for at in range(int(sys.argv[3]))
]
fake.FakeKubelet(Path(sys.argv[1]), fake.listed(*pods)).start()
print("ready", flush=True)
time.sleep(600)
"""


def rounds() -> dict[str, float]:
    """Milliseconds of CPU of the resolver's first round and of the median later one."""
    host = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS, str(OWNERS)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert host.stdout is not None
        host.stdout.readline()
        pids = [host.pid, *(child.pid for child in psutil.Process(host.pid).children())]
        resolver = make_resolver(load({}, {}, None).config)
        resolver.follow([GpuReading(GpuFacts(0, "GPU-0"), owners=tuple(pids))])
        spent = []
        for _ in range(11):
            began = time.process_time()
            resolver.look()
            spent.append((time.process_time() - began) * 1e3)
            time.sleep(0.2)
        return {"owners": len(pids), "first ms": spent[0], "later ms": statistics.median(spent[1:])}
    finally:
        os.killpg(host.pid, 15)
        host.wait()


def sharing() -> dict[str, float]:
    """Milliseconds of CPU to attribute a tick of 8 GPUs with four owners each, alone and shared by four."""
    processes = {
        100 * gpu + owner: ProcessSample(100 * gpu + owner, 1, "python3", "S", cpu_cores=0.5)
        for gpu in range(8)
        for owner in range(4)
    }
    host = HostSample(processes=processes, cpus=64)
    samples = [
        Sample(
            GpuFacts(gpu, f"GPU-{gpu}"), 0.0, 1.0, 1.0, 1.0, {"sm_active_ratio": 0.5},
            owners=tuple(100 * gpu + owner for owner in range(4)), host=host,
        )
        for gpu in range(8)
    ]  # fmt: skip

    def directory(apart: int) -> SimpleNamespace:
        people = [Tenant(Workload("process", str(at))) for at in range(4)]
        return SimpleNamespace(tenant=lambda pid: people[pid % apart], granted=lambda _: ())

    row = {}
    for name, apart in (("alone ms", 1), ("shared by 4 ms", 4)):
        spent = []
        for _ in range(200):
            began = time.process_time()
            attribute([replace(sample) for sample in samples], directory=directory(apart))
            spent.append((time.process_time() - began) * 1e3)
        row[name] = statistics.median(spent)
    return row


def kubelet() -> dict[str, float]:
    """MiB that asking a kubelet with 500 pods adds, and milliseconds of CPU of a later answer."""
    with tempfile.TemporaryDirectory(prefix="gpuwhy-") as folder:
        socket = Path(folder, "kubelet.sock")
        root = str(Path(__file__).parents[1])
        server = subprocess.Popen(
            [sys.executable, "-c", KUBELET, str(socket), root, str(PODS)], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            before = psutil.Process().memory_info().rss
            reader = Kubelet(socket)
            grants = reader.read()
            began = time.process_time()
            for _ in range(20):
                reader.read()
            spent = (time.process_time() - began) / 20 * 1e3
            added = (psutil.Process().memory_info().rss - before) / 2**20
            return {"pods": len(grants), "added MiB": added, "answer ms": spent}
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = {"kubelet": kubelet(), "rounds": rounds(), "sharing": sharing()}
    if arguments.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(f"{name:8}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
