"""The agent on a real GPU: are its verdicts right, and what does it cost. Needs torch with CUDA.

    python bench/gpu.py live              judge workloads with the running agent, scraped from /metrics
    python bench/gpu.py share             jobs that share the GPU, or hold it and run nothing: parts and verdicts
    python bench/gpu.py scrapes FILE      workloads in turn, every scrape kept with its time (for bench/alerts.py)
    python bench/gpu.py change            how soon a change of load shows in the counters
    python bench/gpu.py cost              CPU and memory beside a bare loop of the same driver calls
    python bench/gpu.py pair              GEMM rate and kernel latency with the agent on and off

`cost` and `pair` measure `nvitop-exporter` the same way where it is installed. All print a table, and
JSON with --json. Figures are of one run: ratios, not promises.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import workloads

LIVE = ("idle", "held", "gemm", "copy_kernel", "starved", "tiny_kernels", "pinned_copy", "fp64_loop")
SCRAPED = ("gemm", "one_block", "copy_kernel", "starved", "tiny_kernels", "held", "gemm")
SETTLE_S = 10.0
SERIES = re.compile(r"^gpuwhy_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)


class Agent:
    """The installed agent on a free port, as a user starts it."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuwhy", "run", "--listen", "127.0.0.1:0", *arguments],
            stderr=self._log, start_new_session=True, env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.pid = self.process.pid
        for _ in range(300):
            found = re.search(r"listening on (\S+)", Path(self._log.name).read_text())
            if found:
                self.url = found[1]
                return
            time.sleep(0.1)
        raise SystemExit(f"the agent did not start: {Path(self._log.name).read_text()}")

    def scrape(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def seconds(self, name: str = "verdict_seconds_total", gpu: int = 0) -> dict[str, float]:
        """A counter's children by verdict/cause."""
        found = {}
        for series, labels, value in SERIES.findall(self.scrape()):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if series == name and pairs.get("gpu") == str(gpu):
                found[f"{pairs.get('verdict')}/{pairs.get('cause')}"] = float(value)
        return found

    def workloads(self, name: str = "workload_verdict_seconds_total") -> dict[tuple[str, str], float]:
        """A counter of workloads by (workload, verdict or verdict/cause)."""
        found = {}
        for series, labels, value in SERIES.findall(self.scrape()):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if series == name:
                key = "/".join(pairs[label] for label in ("verdict", "cause") if label in pairs)
                found[pairs["workload"], key] = float(value)
        return found

    def now(self, gpu: int = 0) -> str:
        for series, labels, value in SERIES.findall(self.scrape()):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if series == "verdict" and pairs.get("gpu") == str(gpu) and float(value) == 1:
                return pairs["verdict"]
        return ""

    def stop(self) -> float:
        """Seconds from SIGTERM to the end."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(30)
        return time.monotonic() - began

    def log(self) -> str:
        return Path(self._log.name).read_text()


@contextlib.contextmanager
def running(name: str, seconds: float) -> Iterator[None]:
    process = workloads.start(name, seconds) if name else None
    try:
        yield
    finally:
        if process is not None:
            workloads.end(process)


def live(seconds: float) -> list[dict]:
    agent = Agent()
    rows = []
    for name in LIVE:
        with running(name, SETTLE_S + seconds + 30):
            time.sleep(SETTLE_S)
            before = agent.seconds()
            time.sleep(seconds)
            after = agent.seconds()
        gained = {
            key: after[key] - before.get(key, 0.0)
            for key in after
            if after[key] - before.get(key, 0.0) > 0.01
        }
        best = max(gained, key=gained.get, default="nothing")
        verdict, accept, cause, causes = workloads.WORKLOADS[name].labels[0]
        right = best.split("/")[0] in accept and (not causes or best.split("/")[1] in causes)
        rows.append({
            "workload": name, "wanted": f"{verdict}/{cause}", "got": best, "right": right,
            "share": round(gained.get(best, 0.0) / max(0.01, sum(gained.values())), 3),
        })  # fmt: skip
        print(rows[-1], flush=True)
    stopped = agent.stop()
    print(f"SIGTERM to end: {stopped:.2f} s; log:\n{agent.log()[-1500:]}")
    return rows


def scrapes(seconds: float, path: Path, names: list[str]) -> list[dict]:
    """Scrapes each second into a file of (Unix time, text), one JSON line each; the rows say what ran when."""
    rows = []
    agent = Agent()
    with path.open("w") as file:
        for name in names:
            rows.append({"workload": name, "from": time.time()})
            with running(name, seconds + 30):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    began = time.monotonic()
                    file.write(json.dumps([time.time(), agent.scrape()]) + "\n")
                    time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
            rows[-1]["to"] = time.time()
            print(rows[-1], flush=True)
        file.write(json.dumps(rows) + "\n")
    agent.stop()
    return rows


# Jobs on one GPU at a time, each a workload, and what is to be said of it (None = anything).
SHARED: tuple[tuple[tuple[str, str | None], ...], ...] = (
    (("gemm", "healthy"),),
    (("gemm", "healthy"), ("held", None)),
    (("gemm", "healthy"), ("gemm", "healthy")),
    (("starved", "starving"), ("held", "idle")),
    (("starved", "starving"), ("little_demand", "idle")),  # the GPU's verdict is open: unknown/mixed
    (("tiny_kernels", "starving"), ("starved", "starving")),
    (("", "idle"),),
)


def share(seconds: float) -> list[dict]:
    """Each scene's jobs, told apart as Slurm's are by their environment; "" is granted and runs nothing."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(env={"GPUWHY__WORKLOADS__SLURM_JOB_FOLDER": folder})
        for at, scene in enumerate(SHARED):
            jobs = [f"{at}-{place}-{name or 'nothing'}" for place, (name, _) in enumerate(scene)]
            processes = []
            for number, (job, (name, _)) in enumerate(zip(jobs, scene, strict=True)):
                told = {"SLURM_JOB_ID": str(1000 + 10 * at + number), "SLURM_JOB_NAME": job}
                if name:
                    processes.append(workloads.start(name, SETTLE_S + seconds + 60, told))
                else:
                    Path(folder, "0").write_text(f"{told['SLURM_JOB_ID']}\n")
            time.sleep(SETTLE_S if processes else 20 + SETTLE_S)
            before, gpu_before = agent.workloads(), agent.seconds()
            time.sleep(seconds)
            after, gpu_after = agent.workloads(), agent.seconds()
            lost = agent.workloads("workload_lost_seconds_total")
            gpu = {
                key: round(gained, 1)
                for key in gpu_after
                if (gained := gpu_after[key] - gpu_before.get(key, 0)) > 0.01
            }
            for process in processes:
                workloads.end(process)
            Path(folder, "0").unlink(missing_ok=True)
            gains = {key: after[key] - before.get(key, 0.0) for key in after}
            total = sum(gains.values()) or 1.0
            for job, (name, wanted) in zip(jobs, scene, strict=True):
                # A job that only the folder names has no name.
                named = job if name else "unnamed"
                own = {key[1]: gained for key, gained in gains.items() if key[0] == named and gained > 0.01}
                best = max(own, key=own.get, default="nothing")
                rows.append({
                    "job": job, "wanted": wanted, "got": best, "right": wanted in {None, best},
                    "share": round(sum(own.values()) / total, 3),
                    "lost": {key[1]: round(value, 1) for key, value in lost.items() if key[0] == named},
                    "gpu": gpu,
                })  # fmt: skip
                print(rows[-1], flush=True)
            time.sleep(3)
        agent.stop()
        print(agent.log()[-1500:])
    return rows


def phases(path: str) -> None:
    """GEMM, nothing, GEMM, vector adds; writes when each began."""
    log = Path(path).open("a", buffering=1)  # noqa: SIM115
    for name, run in (
        ("gemm", workloads.gemm),
        ("held", workloads.held),
        ("gemm", workloads.gemm),
        ("copy_kernel", workloads.copy_kernel),
    ):
        log.write(f"{name} {time.monotonic()}\n")
        run(25.0)


def change() -> list[dict]:
    agent = Agent()
    with tempfile.NamedTemporaryFile("r") as log:
        process = subprocess.Popen([sys.executable, __file__, "phases", log.name])
        seen: list[tuple[float, dict, str]] = []
        while process.poll() is None:
            seen.append((time.monotonic(), agent.seconds(), agent.now()))
            time.sleep(0.5)
        began = [
            (line.split()[0], float(line.split()[1])) for line in Path(log.name).read_text().splitlines()
        ]
    agent.stop()
    rows = []
    for position, (name, start_s) in enumerate(began):
        stop_s = began[position + 1][1] if position + 1 < len(began) else seen[-1][0]
        verdict = workloads.WORKLOADS[name].labels[0][0]
        base = max((row for row in seen if row[0] <= start_s), default=seen[0])
        first = next(
            (
                at
                for at, seconds, _ in seen
                if at > start_s
                and any(
                    key.startswith(verdict) and seconds[key] > base[1].get(key, 0) + 0.5 for key in seconds
                )
            ),
            None,
        )
        shown = [now for at, _, now in seen if start_s < at <= stop_s]
        changes = sum(one != other for one, other in pairwise(shown))
        rows.append({
            "load": name, "verdict": verdict, "seconds_to_counter": None if first is None else round(first - start_s, 1),
            "changes_of_now": changes, "last_now": shown[-1] if shown else "",
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


# --- cost ------------------------------------------------------------------------------------------


def bare_loop(seconds: float) -> None:
    """The driver calls of one GPU at the agent's cadence, and nothing else."""
    import pynvml as nv

    nv.nvmlInit()
    device = nv.nvmlDeviceGetHandleByIndex(0)
    from gpuwhy.source import nvml

    metrics = nv.c_nvmlGpmMetricsGet_t()
    metrics.version = nv.NVML_GPM_METRICS_GET_VERSION
    metrics.numMetrics = len(nvml.METRICS)
    for position, (_, number) in enumerate(nvml.METRICS):
        metrics.metrics[position].metricId = number
    samples = [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]
    nv.nvmlGpmSampleGet(device, samples[0])
    start = time.monotonic()
    tick = 0
    while time.monotonic() < start + seconds:
        tick += 1
        time.sleep(max(0.0, start + tick - time.monotonic()))
        samples.reverse()
        nv.nvmlGpmSampleGet(device, samples[0])
        metrics.sample1, metrics.sample2 = samples[1], samples[0]
        nv.nvmlGpmMetricsGet(metrics)
        nv.nvmlDeviceGetUtilizationRates(device)
        nv.nvmlDeviceGetPowerUsage(device)
        nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_SM)
        nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_MEM)
        nv.nvmlDeviceGetTemperature(device, nv.NVML_TEMPERATURE_GPU)
        nv.nvmlDeviceGetCurrentClocksEventReasons(device)
        nv.nvmlDeviceGetFieldValues(device, [185, 186, 74, 76, 269])
        if tick % 3 == 0:
            nv.nvmlDeviceGetComputeRunningProcesses(device)
        if tick % 5 == 0:
            nv.nvmlDeviceGetPerformanceState(device)
            nv.nvmlDeviceGetEnforcedPowerLimit(device)
            nv.nvmlDeviceGetMemoryInfo(device)
            nv.nvmlDeviceGetFieldValues(device, [82])
        if tick % 10 == 0:
            nv.nvmlDeviceGetTotalEnergyConsumption(device)
            nv.nvmlDeviceGetFieldValues(device, [270, 271])


def cpu_ns(pid: int) -> dict[str, int]:
    """CPU time of each thread of a process, by thread name."""
    found: dict[str, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            found[name] = found.get(name, 0) + int((task / "schedstat").read_text().split()[0])
    return found


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measured(pid: int, seconds: float, poll: Callable[[], object] | None = None) -> dict:
    before, began = cpu_ns(pid), time.monotonic()
    while time.monotonic() < began + seconds:
        if poll is not None:
            poll()
        time.sleep(1.0)
    took = time.monotonic() - began
    after = cpu_ns(pid)
    threads = {name: round((after[name] - before.get(name, 0)) / took / 1e7, 3) for name in after}
    return {
        "cpu_percent": round(sum(threads.values()), 3),
        "threads": threads,
        "resident_mib": round(resident_mib(pid), 1),
    }


def nvitop() -> subprocess.Popen | None:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", "19838", "--interval", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None


def scrape_nvitop() -> bytes:
    with urllib.request.urlopen("http://127.0.0.1:19838/metrics", timeout=5) as answer:
        return answer.read()


def cost(seconds: float) -> list[dict]:
    rows = []
    for load in ("", "gemm"):
        with running(load, 4 * seconds + 60):
            time.sleep(SETTLE_S if load else 1.0)
            bare = subprocess.Popen([sys.executable, __file__, "bare", "--seconds", str(seconds + 20)])
            time.sleep(5)
            rows.append({"what": "bare loop", "load": load or "idle", **measured(bare.pid, seconds)})
            bare.terminate()
            bare.wait()
            agent = Agent()
            time.sleep(8)
            rows.append(
                {"what": "gpuwhy", "load": load or "idle", **measured(agent.pid, seconds, agent.scrape)}
            )
            agent.stop()
            other = nvitop()
            if other is not None:
                time.sleep(8)
                if other.poll() is None:
                    with contextlib.suppress(OSError):
                        rows.append(
                            {
                                "what": "nvitop-exporter",
                                "load": load or "idle",
                                **measured(other.pid, seconds, scrape_nvitop),
                            }
                        )
                other.terminate()
                other.wait()
        for row in rows[-3:]:
            print(row, flush=True)
    return rows


# --- effect on the GPU's work ------------------------------------------------------------------------


def slot(torch, a, b, x, seconds: float) -> tuple[float, float]:
    """(TFLOP/s of GEMM, microseconds of a small kernel with its synchronisation), half the time each."""
    end, done = time.monotonic() + seconds / 2, 0
    torch.cuda.synchronize()
    began = time.monotonic()
    while time.monotonic() < end:
        for _ in range(50):
            torch.mm(a, b)
        torch.cuda.synchronize()
        done += 50
    rate = done * 2 * a.shape[0] ** 3 / (time.monotonic() - began) / 1e12
    times = []
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end:
        start = time.perf_counter_ns()
        x.add_(1.0)
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - start)
    return rate, statistics.median(times) / 1e3


def spread(name: str, ratios: list[float]) -> dict:
    """The median of on over off, and the range that 95 of 100 resampled medians fall in."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        f"{name}_on_over_off": round(statistics.median(ratios), 5),
        f"{name}_95": [round(medians[50], 4), round(medians[-51], 4)],
    }


def pair(pairs: int, seconds: float) -> list[dict]:
    """Many short pairs rather than few long ones: a card that warms up or a noisy host favours neither side."""
    torch, a, b = workloads.matrices()
    x = torch.zeros(256, device="cuda")
    slot(torch, a, b, x, 8.0)
    rows = []
    agent = Agent()
    candidates: list[tuple[str, int]] = [("gpuwhy", agent.pid)]
    other = nvitop()
    time.sleep(8)
    if other is not None and other.poll() is None:
        candidates.append(("nvitop-exporter", other.pid))
    for _, pid in candidates:
        os.kill(pid, signal.SIGSTOP)
    for name, pid in candidates:
        rates, latencies = [], []
        for number in range(pairs):
            figures = {}
            for on in (True, False) if number % 2 == 0 else (False, True):
                os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
                figures[on] = slot(torch, a, b, x, seconds)
            rates.append(figures[True][0] / figures[False][0])
            latencies.append(figures[True][1] / figures[False][1])
            os.kill(pid, signal.SIGSTOP)
        rows.append({"what": name, "pairs": pairs, **spread("gemm", rates), **spread("latency", latencies)})
        print(rows[-1], flush=True)
    for _, pid in candidates:
        os.kill(pid, signal.SIGCONT)
    agent.stop()
    if other is not None:
        other.terminate()
    return rows


def card() -> str:
    import pynvml as nv

    try:
        nv.nvmlInit()
        return f"{nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(0))}, driver {nv.nvmlSystemGetDriverVersion()}"
    except (nv.NVMLError, ctypes.ArgumentError) as error:
        raise SystemExit(f"needs a GPU: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["live", "share", "scrapes", "change", "cost", "pair", "bare", "phases"]
    )
    parser.add_argument("path", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--workloads", default=",".join(SCRAPED), help="of scrapes, joined by commas")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    arguments = parser.parse_args()
    if arguments.what == "bare":
        bare_loop(arguments.seconds)
        return
    if arguments.what == "phases":
        phases(arguments.path)
        return
    print(f"# {card()}, {time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}", flush=True)
    runs: dict[str, Callable[[], list[dict]]] = {
        "live": lambda: live(arguments.seconds),
        "share": lambda: share(arguments.seconds),
        "scrapes": lambda: scrapes(arguments.seconds, Path(arguments.path), arguments.workloads.split(",")),
        "change": change,
        "cost": lambda: cost(arguments.seconds),
        "pair": lambda: pair(arguments.pairs, arguments.seconds),
    }
    rows = runs[arguments.what]()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
