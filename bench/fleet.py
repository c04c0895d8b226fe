"""What a fleet of 1,000 GPUs costs Prometheus: recording rules, alerts, and the queries of each dashboard.

The load is made up: hosts of 8 GPUs, one host in ten split by MIG, 200 workloads, and on each GPU four causes in
turn, and four more that occurred before: their counters are there and stand still. As in life, the last hour is in the memory of a real Prometheus (its head):
65 minutes of all series every 30 s, and what the rules recorded every 5 minutes of them. Before it stand two weeks
of recorded series as blocks on disk, hourly, which are the newest values of the rules times a random factor. The
head is filled by remote write: what a scrape reports of itself has the time of today, and a head takes nothing that
is an hour older than its newest.

Rules are asked for as the number of their results, in the time that Prometheus' engine reports (`stats`): one after
the other for each group, and then all groups at once, each in order, as Prometheus evaluates groups in parallel;
storing the results is not in it. A dashboard's queries are those of the range that it opens with, one after the
other, from request to the answer read; a browser asks for six at a time. `CPU s` is what the whole Prometheus used
meanwhile, which a busy machine makes less longer. All is done three times; the median is shown. Memory is the peak
of Prometheus meanwhile, its head included. Takes ten minutes, half of them to make the load.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.live import dashboards, history  # noqa: E402
from tests.live.programs import Prometheus, get, running  # noqa: E402

from gpuwhy import catalog  # noqa: E402
from gpuwhy.config import RenderConfig  # noqa: E402
from gpuwhy.exporter import Exposition, Format, Health, HostIncrements, Ledger  # noqa: E402
from gpuwhy.exporter.ledger import LOST_CAUSES  # noqa: E402
from gpuwhy.render import alerts  # noqa: E402
from gpuwhy.render.promql import Promql  # noqa: E402
from gpuwhy.render.recording import Recording  # noqa: E402
from gpuwhy.sample import Tenant, Workload  # noqa: E402
from gpuwhy.source import GpuFacts  # noqa: E402
from gpuwhy.verdict.types import TimeSplit, Verdict, WorkloadVerdict  # noqa: E402
from gpuwhy.verdict.vocabulary import CAUSES  # noqa: E402

NOW_S = int(history.NOW_S)
SCRAPE_S = 30
RAW_S = 65 * 60
WEEKS_S = 14 * 86400
GPUS = 8  # of a host
CAUSES_OF_A_GPU, CAUSES_BEFORE = 4, 4  # in the hour, and in the days before it
WORKLOADS, OWNERS = 200, 25
INTERVAL_S = 5.0
TARGET_RULES_S, TARGET_DASHBOARD_S = 2.0, 3.0
RECORDED_S = 300  # between the points of what rules record
HEAD_S = 3600  # that a head looks back for what is new
ON_DISK_S = 2 * 3600  # before now; the blocks end here
REQUEST_TIMES = 13  # of each series in one request
REPEATS = 3
AT_ONCE = ", all groups at once"
SERIES = re.compile(r'(\w+)="([^"]*)"')


class Host:
    """A made-up host: what a scrape of it has, and how fast each counter grows."""

    def __init__(self, number: int, workloads: list[Workload]) -> None:
        self.name = f"gpu-{number:03d}"
        self._random = random.Random(number)
        mig = number % 10 == 0
        self._rows = [facts for index in range(GPUS) for facts in self._gpu(index, mig=mig)]
        ledger = Ledger()
        owners = {facts.key: self._random.choice(workloads) for facts in self._rows}
        turns = CAUSES_BEFORE + CAUSES_OF_A_GPU
        causes = {facts.key: self._random.sample(CAUSES, turns) for facts in self._rows}
        exposition = Exposition(clock=lambda: 0.0, process=CollectorRegistry())
        started: dict[str, float] = {}
        for turn in range(turns):
            end = (turn + 1) * INTERVAL_S
            verdicts = [self._judge(row, causes[row.key][turn], owners[row.key], end) for row in self._rows]
            host = HostIncrements(
                self._values(catalog.HOST_CPU_MODES), self._values(catalog.PRESSURE_RESOURCES)
            )
            ledger.credit(verdicts, host, {verdict.gpu.key: verdict for verdict in verdicts})
            ledger.tick(0.004)
            if turn == CAUSES_BEFORE - 1:
                started = self._scrape(ledger, exposition)
        self._seconds = CAUSES_OF_A_GPU * INTERVAL_S
        self._samples = tuple(
            self._sample(series, started.get(series, 0.0), value)
            for series, value in self._scrape(ledger, exposition).items()
        )

    def scrapes(self, stretch: Stretch) -> Iterator[bytes]:
        """What remote write sends of these times."""
        grown = [(at - NOW_S + RAW_S) / self._seconds for at in stretch.times]
        always = [1.0] * len(grown)
        for labels, start, gain in self._samples:
            yield stretch.series(labels, [start + gain * times for times in grown])
        up = {"__name__": "up", "job": "gpuwhy", "instance": self.name}
        yield stretch.series(encoded(up), always)

    def _scrape(self, ledger: Ledger, exposition: Exposition) -> dict[str, float]:
        ledger.credit([], None, {})  # what was only just shown at 0 counts with the next interval
        health = Health(
            {facts.key: True for facts in self._rows},
            {"nvml-gpm": True, "nvml": True, "host": True},
            last_sample_unix_s=NOW_S - 1.0,
            expected_gpus=GPUS,
        )
        exposition.publish(ledger.snapshot(health, taken_s=0.0, interval_s=INTERVAL_S))
        text = exposition.scrape(Format.OPENMETRICS).decode()
        return {series: float(value) for series, value in history.samples(text, self.name)}

    @staticmethod
    def _sample(series: str, start: float, value: float) -> tuple[bytes, float, float]:
        """The series, where it stands at the start, and what it gains in the time of the turns."""
        name, _, labels = series.partition("{")
        own = encoded({"__name__": name, **dict(SERIES.findall(labels))})
        return (own, start, value - start) if name.endswith("_total") else (own, value, 0.0)

    def _gpu(self, index: int, *, mig: bool) -> Iterator[GpuFacts]:
        whole = GpuFacts(
            index=index,
            uuid=f"GPU-{self._random.getrandbits(32):08x}-1111-2222-3333-444455556666",
            model=self._random.choice(("NVIDIA H200", "NVIDIA H100 80GB HBM3")),
            pci_bus_id=f"00000000:{index:02X}:00.0",
            compute_capability="9.0",
            driver="575.51.03",
            power_limit_watts=700.0,
            sm_clock_max_hertz=1.98e9,
            memory_total_bytes=150754820096.0,
            split=mig,
            share_ratio=1 / 7 if mig else 1.0,
        )
        yield whole
        for number in (1, 2) if mig else ():
            yield GpuFacts(index, whole.uuid, str(number), whole.model, profile="3g.71gb", share_ratio=3 / 7)

    def _judge(self, facts: GpuFacts, cause, workload: Workload, end_s: float) -> Verdict:
        useful = self._random.random() * INTERVAL_S
        lost = {cause.key: INTERVAL_S - useful} if cause.key in LOST_CAUSES else {}
        split = TimeSplit(INTERVAL_S, INTERVAL_S, useful, lost=lost, verdict={cause.key: INTERVAL_S})
        sure = (cause.verdict, cause.name, 0.9)
        held = WorkloadVerdict(
            workload, (Tenant(workload, "1"),), 1.0, "alone", *sure, evidence=(), time=split
        )
        signals = _fields("signal", "fact")
        return Verdict(
            facts,
            end_s - INTERVAL_S,
            end_s,
            NOW_S,
            *sure,
            evidence=(),
            time=split,
            workloads=(held,),
            speed_of_light=useful / INTERVAL_S,
            signals=self._values(signals),
            sources=dict.fromkeys(signals, "nvml-gpm"),
            increments=self._values(_fields("increment")),
            clock_events=self._values(catalog.CLOCK_REASONS),
        )

    def _values(self, names: tuple[str, ...]) -> dict[str, float]:
        return {name: self._random.random() for name in names}


def _fields(*origins: str) -> tuple[str, ...]:
    return tuple(field for series in catalog.SERIES if series.origin in origins for _, field in series.fields)


def encoded(labels: Mapping[str, str]) -> bytes:
    """Labels of a series, in remote write's protobuf."""
    pairs = (
        b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(value.encode())
        for name, value in sorted(labels.items())
        if value
    )
    return b"".join(b"\x0a" + _sized(pair) for pair in pairs)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _varint(rest) if rest else bytes((low,))


class Stretch:
    """Some times, and what remote write sends of series that have a value at each."""

    def __init__(self, times: Sequence[int]) -> None:
        self.times = times
        behind = [b"\x10" + _varint(at * 1000) for at in times]
        # A sample is a message of its size, its value as a double, and its time.
        self._parts: list[Any] = [
            part for end in behind for part in (b"\x12" + _varint(9 + len(end)) + b"\x09", 0.0, end)
        ]
        self._pack = struct.Struct("<" + "".join(f"3sd{len(end)}s" for end in behind)).pack

    def series(self, labels: bytes, values: Sequence[float]) -> bytes:
        self._parts[1::3] = values
        return b"\x0a" + _sized(labels + self._pack(*self._parts))


def write(server: Prometheus, series: Iterable[bytes]) -> None:
    """Puts series into the head; raises RuntimeError with Prometheus' own words if it refuses."""
    message = b"".join(series)
    if not message:
        return
    # Snappy, as one literal: nothing is won by compressing for loopback.
    body = _varint(len(message)) + b"\xfc" + struct.pack("<I", len(message) - 1) + message
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    refused = get(f"{server.url}/api/v1/write", data=body, headers=headers)
    if refused:
        raise RuntimeError(f"remote write: {refused.decode(errors='replace')}")


def serving(programs: history.Programs, folder: Path) -> Prometheus:
    server = history.serving(programs, folder)
    server.command.append("--web.enable-remote-write-receiver")
    return server


def build(folder: Path, programs: history.Programs, gpus: int) -> None:
    """Fills the head with the last hour, and blocks with two weeks of recorded series before it."""
    workloads = [
        Workload("slurm", f"job-{number:03d}", "", f"team-{number % OWNERS:02d}")
        for number in range(WORKLOADS)
    ]
    chance = random.Random(7)
    steps = history.by_depth(((NOW_S, NOW_S, 1),), ((NOW_S, NOW_S, 1),))
    hours, weeks = (
        [[rule for rule in step if rule[0].endswith("1w") is weekly] for step in steps]
        for weekly in (False, True)
    )
    server = serving(programs, folder)
    with running(server):
        say(f"making scrapes of {gpus} GPUs")
        hosts = [Host(number, workloads) for number in range(-(-gpus // GPUS))]
        times = range(NOW_S - RAW_S, NOW_S + 1, SCRAPE_S)
        for first in range(0, len(times), REQUEST_TIMES):
            stretch = Stretch(times[first : first + REQUEST_TIMES])
            for host in hosts:
                write(server, host.scrapes(stretch))
        say("recording hours")
        newest = [each for step in hours for each in record(server, step, chance)]
    say("making blocks of two weeks of them")
    history.add_blocks(folder, programs, (*_over_weeks(newest, chance), "# EOF\n"))
    with running(server):
        say("recording weeks")
        for step in weeks:
            record(server, step, chance)


Recorded = tuple[dict[str, str], float]  # labels and value


def record(
    server: Prometheus, step: list[tuple[str, str, history.Times]], chance: random.Random
) -> list[Recorded]:
    """Evaluates rules now, and puts what they recorded in the last hour into the head."""
    newest = [
        ({**found["metric"], "__name__": name}, float(found["value"][1]))
        for name, expr, _ in step
        for found in server.query(expr, NOW_S)
    ]
    stretch = Stretch(range(NOW_S - HEAD_S, NOW_S + 1, RECORDED_S))
    before = len(stretch.times) - 1
    write(
        server,
        (
            stretch.series(
                encoded(labels), [*(value * chance.uniform(0.8, 1.0) for _ in range(before)), value]
            )
            for labels, value in newest
        ),
    )
    return newest


def _over_weeks(newest: list[Recorded], chance: random.Random) -> Iterator[str]:
    for labels, value in newest:
        named = ",".join(f'{name}="{text}"' for name, text in labels.items() if name != "__name__")
        series = f"{labels['__name__']}{{{named}}}"
        for at in range(NOW_S - WEEKS_S, NOW_S - ON_DISK_S + 1, 3600):
            yield f"{series} {value * chance.uniform(0.8, 1.0):.6g} {at}\n"


def engine_s(server: Prometheus, expr: str) -> float:
    """What Prometheus' engine takes for an instant query; of its results only their number is sent."""
    answer = server.json("/api/v1/query", query=f"count({expr})", time=NOW_S, stats="true")
    return float(answer["data"]["stats"]["timings"]["execTotalTime"])


@dataclass(frozen=True)
class Taken:
    """Seconds of each query by its name, of all of them, and CPU seconds of Prometheus meanwhile."""

    seconds: dict[str, float]
    all_s: float
    cpu_s: float


def taken(server: Prometheus, queries: Callable[[], Iterator[tuple[str, float]]]) -> Taken:
    """The median of three times that these are asked one after the other."""

    def once() -> Taken:
        before = cpu_s(server)
        seconds = dict(queries())
        return Taken(seconds, sum(seconds.values()), cpu_s(server) - before)

    return _median(once)


def at_once(server: Prometheus, groups: Mapping[str, Mapping[str, str]]) -> Taken:
    """The median of three times that all groups are asked beside each other; seconds are those of groups."""

    def group_s(rules: Mapping[str, str]) -> float:
        began = time.perf_counter()
        for expr in rules.values():
            engine_s(server, expr)
        return time.perf_counter() - began

    def once() -> Taken:
        before = cpu_s(server)
        with ThreadPoolExecutor(len(groups)) as pool:
            began = time.perf_counter()
            seconds = dict(zip(groups, pool.map(group_s, groups.values()), strict=True))
            wall_s = time.perf_counter() - began
        return Taken(seconds, wall_s, cpu_s(server) - before)

    return _median(once)


def _median(once: Callable[[], Taken]) -> Taken:
    return sorted((once() for _ in range(REPEATS)), key=lambda took: took.all_s)[REPEATS // 2]


def cpu_s(server: Prometheus) -> float:
    assert server.process is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


def forget_peak(server: Prometheus) -> None:
    """From here on, peak memory is that of what is asked."""
    assert server.process is not None
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def peak_mib(server: Prometheus) -> float:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def measure_rules(server: Prometheus) -> dict[str, Taken]:
    """Each group, and all recording rules and all alerts at once."""
    recording, promql = Recording(), Promql(RenderConfig())
    kinds = {"recording rules": recording.groups(), "alert rules": alerts.groups(RenderConfig())}
    off = {each.name: each.expr(each, promql) for each in alerts.settled(RenderConfig()) if not each.enabled}
    result: dict[str, Taken] = {}
    for kind, rendered in kinds.items():
        groups = {
            group["name"]: {rule.get("record") or rule["alert"]: rule["expr"] for rule in group["rules"]}
            for group in rendered
        }
        for name, rules in groups.items():
            result[name] = taken(server, lambda rules=rules: _engine(server, rules))
        result[f"{kind}{AT_ONCE}"] = at_once(server, groups)
    result["alerts off unless asked"] = taken(server, lambda: _engine(server, off))
    return result


def _engine(server: Prometheus, rules: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    return ((name, engine_s(server, expr)) for name, expr in rules.items())


def asked(server: Prometheus, board: dashboards.Dashboard) -> Iterator[tuple[str, float]]:
    """Each query of a dashboard, with its seconds, for the first choice of what cannot be All."""
    variables = next(board.variables(server, NOW_S))
    for target in board.targets():
        began = time.perf_counter()
        dashboards.ask(server, target, target.filled(variables), NOW_S)
        yield f"{target.panel} {target.ref}", time.perf_counter() - began


def show(result: dict[str, Any]) -> None:
    load = ", ".join(f"{load:.1f}" for load in result["load"])
    print(f"{result['gpus']} GPUs, {result['series']} series now; load average before and after: {load}")
    for part in ("rules", "dashboards"):
        print(f"{part:34}{'number':>8}{'all s':>9}{'CPU s':>9}{'longest s':>11}")
        for name, took in result[part].items():
            longest = max(took["seconds"], key=took["seconds"].get)
            print(
                f"{name:34}{len(took['seconds']):8}{took['all_s']:9.2f}{took['cpu_s']:9.2f}"
                f"{took['seconds'][longest]:11.2f}  {longest}"
            )
        print(f"peak memory of Prometheus: {result['peak_mib'][part]:.0f} MiB")
    evaluation = result["rules"][f"recording rules{AT_ONCE}"]["all_s"]
    print(f"target: one evaluation of the recording rules <= {TARGET_RULES_S} s; here {evaluation:.2f} s")
    worst = max(took["all_s"] for took in result["dashboards"].values())
    print(f"target: the queries of a dashboard <= {TARGET_DASHBOARD_S} s; here {worst:.2f} s at most")


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1000, metavar="N", help="GPUs (default %(default)s)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep what was made here, and use it again"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    programs = history.find_programs(ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if not (folder / "data").is_dir():
            build(folder, programs, arguments.gpus)
        result: dict[str, Any] = {"gpus": arguments.gpus, "peak_mib": {}}
        server = serving(programs, folder)
        with running(server):
            say("measuring")
            result["series"] = int(server.query('count({__name__=~".+"})', NOW_S)[0]["value"][1])
            result["load"] = [os.getloadavg()[0]]
            forget_peak(server)
            result["rules"] = {name: asdict(took) for name, took in measure_rules(server).items()}
            result["peak_mib"]["rules"] = peak_mib(server)
            forget_peak(server)
            result["dashboards"] = {
                board.uid: asdict(taken(server, lambda board=board: asked(server, board)))
                for board in dashboards.load(ROOT / "dashboards")
            }
            result["peak_mib"]["dashboards"] = peak_mib(server)
            result["load"].append(os.getloadavg()[0])
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
