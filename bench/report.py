"""What `gpuwhy report` costs: a fleet's week from a real Prometheus, and a host's from its local history.

    .venv/bin/python bench/report.py [--gpus 1000] [--every 3600] [--keep FOLDER] [--only prometheus|store]

The fleet is made up: hosts of eight GPUs whose recorded series hold what rules would have written in five weeks,
a point every ``--every`` seconds in the week that is reported (rules write one every 300; that takes minutes and
gigabytes to prepare) and every hour in the weeks before. Shares are exported by the agents at that pace too. The
host's history is five weeks of eight GPUs as the agent keeps it. Each report is made in a process of its own, three
times, in the format html; printed are seconds and peak memory of each, and for Prometheus what it used itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.live.programs import prometheus, running
from tests.store.made import facts, split, verdict

from gpuwhy.store.database import Database
from gpuwhy.store.minutes import Minutes

ROOT = Path(__file__).parent.parent
END = 1_796_515_200 // 604_800 * 604_800 + 4 * 86400  # a Monday in UTC
WEEK = 7 * 86400
NOW = END + 9 * 3600
HEADLINES = (
    ("healthy", "compute"),
    ("memory-bound", "bandwidth"),
    ("idle", "free"),
    ("idle", "held"),
    ("idle", "no-demand"),
    ("starving", "cpu-preprocess"),
    ("starving", "host-serial"),
    ("starving", "io-wait"),
    ("pseudo-peak", "latency-bound"),
    ("pseudo-peak", "spin-wait"),
    ("throttled", "sw-thermal"),
    ("unknown", "no-data"),
)
LOST = [
    key
    for key in HEADLINES
    if key[0] in {"starving", "pseudo-peak", "throttled"} or key[1] in {"held", "no-demand"}
]
PLAIN = {"observed": 1.0, "measured": 0.97, "useful": 0.45, "headroom": 0.05, "free": 0.2}
MAKE = """
import json, resource, sys, time
from gpuwhy.config import Config, ReportConfig
from gpuwhy.report.weekly import command, formats
began = time.perf_counter()
config = Config(report=ReportConfig(source=sys.argv[1], timezone="UTC"))
report = command.make(config, "last-week", {}, lambda done, steps: None, float(sys.argv[2]))
made = time.perf_counter()
size = len(formats.text(report, "html"))
print(json.dumps({"made": made - began, "page": time.perf_counter() - made, "bytes": size,
    "cpu": time.process_time(), "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "headline": report.headline}))
"""


def series(gpus: int) -> Iterator[tuple[str, dict[str, str], float, bool]]:
    """Name, labels, size and whether the weeks before have it."""
    hosts = [f"host-{number:04d}" for number in range(gpus // 8)]
    chance = random.Random(5)

    def of(
        level: str, labels: dict[str, str], size: float, past: bool, causes: int
    ) -> Iterator[tuple[str, dict[str, str], float, bool]]:
        plain = PLAIN if level not in {"workload", "owner"} else ("measured", "useful")
        for stem in plain:
            yield f"{level}:gpuwhy_{stem}_seconds:increase1h", labels, size * PLAIN[stem], past
        for lost, cause in chance.sample(LOST, min(causes, len(LOST))):
            named = {**labels, "verdict": lost, "cause": cause}
            yield f"{level}:gpuwhy_lost_seconds:increase1h", named, size / 20, past
        if level == "gpu":
            return
        headlines = chance.sample(HEADLINES, min(causes + 3, len(HEADLINES)))
        if level in {"workload", "owner"}:
            for name in sorted({headline for headline, _ in headlines}):
                yield (
                    f"{level}:gpuwhy_verdict_seconds:increase1h",
                    {**labels, "verdict": name},
                    size / 4,
                    past,
                )
        else:
            for name, cause in headlines:
                named = {**labels, "verdict": name, "cause": cause}
                yield f"{level}:gpuwhy_verdict_seconds:increase1h", named, size / 8, past

    for host in hosts:
        for number in range(8):
            row = {"instance": host, "gpu": str(number), "uuid": f"GPU-{host}-{number}", "mig": ""}
            yield from of("gpu", row, 3600.0, False, 4)
            yield "gpuwhy_gpu_share_ratio", row, 1.0, False
        yield from of("instance", {"instance": host}, 8 * 3600.0, True, 8)
    for model in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"):
        yield from of("model", {"model": model}, gpus * 1200.0, True, 9)
    yield from of("fleet", {}, gpus * 3600.0, True, 9)
    for number in range(gpus // 2):
        owner = f"team-{number % 40}"
        workload = {
            "workload_kind": "slurm",
            "workload": f"train-{number}",
            "workload_namespace": "",
            "workload_owner": owner,
        }
        yield from of("workload", workload, 2 * 3600.0, True, 2)
        if number < 40:
            yield from of("owner", {"workload_owner": owner}, gpus * 90.0, True, 6)


def lines(gpus: int, every: int) -> Iterator[str]:
    """All of it in OpenMetrics, sorted by series."""
    chance = random.Random(7)
    for name, labels, size, past in sorted(series(gpus), key=lambda each: each[0]):
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        times = [
            *(range(END - 5 * WEEK, END - WEEK, 3600) if past else ()),
            *range(END - WEEK, END + 1, every),
        ]
        for at in times:
            value = size if name.endswith("ratio") else size * (0.6 + 0.4 * chance.random())
            yield f"{name}{{{text}}} {value:.3f} {at}\n"
    yield "# EOF\n"


def found(program: str) -> str:
    path = shutil.which(program, path=f"{ROOT / '.tools/bin'}{os.pathsep}{os.environ['PATH']}")
    return path or sys.exit(f"{program} is not here: `make programs` fetches it, or put it on PATH")


def fill(folder: Path, texts: Iterable[str]) -> None:
    promtool = found("promtool")
    text = folder / "samples.om"
    with text.open("w") as file:
        file.writelines(texts)
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=1000h", "--quiet"]
    subprocess.run([*command, text, folder / "data"], check=True)
    text.unlink()


def reports(source: str) -> None:
    """Three reports, each in a process of its own."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", MAKE, source, str(NOW)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        said = json.loads(done.stdout)
        print(
            f"  {said['made'] + said['page']:.2f} s (figures {said['made']:.2f}, page {said['page']:.2f} for "
            f"{said['bytes'] / 1024:.0f} KiB; {said['cpu']:.2f} of CPU), {said['mib']:.0f} MiB"
        )
    print(f"  {said['headline']}")


def of_a_fleet(folder: Path, gpus: int, every: int) -> None:
    if not (folder / "data").exists():
        began = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder, lines(gpus, every))
        print(f"prepared in {time.perf_counter() - began:.0f} s")
    program = found("prometheus")
    server = prometheus(str(program), folder)
    with running(server):
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        print(f"{gpus} GPUs, five weeks, a point every {every} s in the last, from Prometheus (target 10 s):")
        cpu = sum(process.cpu_times()[:2])
        reports(server.url)
        used = (sum(process.cpu_times()[:2]) - cpu) / 3
        print(
            f"  Prometheus itself: {used:.2f} s of CPU each, {process.memory_info().rss / 2**20:.0f} MiB after it"
        )


def of_a_host(folder: Path) -> None:
    path = folder / "history.db"
    database = Database(path, host="h1", source="live")
    chance = random.Random(3)
    for start in range(END - 5 * WEEK, END, 86400):
        minutes = Minutes(most_workloads=100)
        for at in range(start, start + 86400, 300):
            for number in range(8):
                key = LOST[chance.randrange(len(LOST))]
                minutes.add(verdict(at + 300, 300.0, gpu=facts(number), time=split(300.0, key)))
        database.write(minutes.take())
    database.close()
    print(
        f"eight GPUs, five weeks, from local history of {path.stat().st_size / 2**20:.0f} MiB (target 2 s):"
    )
    reports(f"store:{path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--every", type=int, default=3600)
    parser.add_argument("--keep", type=Path, help="folder to keep what was prepared in, and to take it from")
    parser.add_argument("--only", choices=["prometheus", "store"])
    given = parser.parse_args()
    print(f"{os.cpu_count()} CPUs under a load of {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as temporary:
        if given.only != "store":
            of_a_fleet(given.keep or Path(temporary) / "prometheus", given.gpus, given.every)
        if given.only != "prometheus":
            of_a_host(Path(temporary))
    print(f"peak of this script {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
