"""What a fleet of 1,000 GPUs costs Prometheus: recording rules, alerts, and the queries of each dashboard.

The load is made up: hosts of 8 GPUs, one host in ten split by MIG, 200 workloads, and on each GPU four causes in
turn, with all children of all counters. A real Prometheus holds 65 minutes of it, scraped every 30 s (what is
constant, and gauges, for the last ten minutes only unless a rule looks back at it), and two weeks of recorded
series, hourly, which are the newest values of the rules times a random factor.

Rules are evaluated once each, one after the other as Prometheus does, in the time that its engine reports
(`stats`); storing the results is not in it. A dashboard's queries are those of the range that it opens with, one
after the other, from request to the last byte of the answer; a browser asks for six at a time. `CPU s` is what the
whole Prometheus used meanwhile, which a busy machine does not make longer. Peak memory is that of Prometheus,
started anew before the first query, and once more before the dashboards. Takes ten minutes, most of them to make the load.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.live import dashboards, history  # noqa: E402
from tests.live.programs import Prometheus, running  # noqa: E402

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
NEWEST_S = 10 * 60  # of series that no rule looks back at
WEEKS_S = 14 * 86400
GPUS = 8  # of a host
CAUSES_OF_A_GPU = 4
WORKLOADS, OWNERS = 200, 25
INTERVAL_S = 5.0
TARGET_RULES_S, TARGET_DASHBOARD_S = 2.0, 3.0
LOOKED_BACK_AT = re.compile(
    r"\w+_(?:total|sum|count)\{|gpuwhy_(?:gpu_info|gpu_share_ratio|gpu_up|build_info)\{"
)


class Host:
    """A made-up host: what a scrape of it has, and how fast each counter grows."""

    def __init__(self, number: int, workloads: list[Workload]) -> None:
        self.name = f"gpu-{number:03d}"
        self._random = random.Random(number)
        mig = number % 10 == 0
        self._rows = [facts for index in range(GPUS) for facts in self._gpu(index, mig=mig)]
        ledger = Ledger()
        owners = {facts.key: self._random.choice(workloads) for facts in self._rows}
        causes = {facts.key: self._random.sample(CAUSES, CAUSES_OF_A_GPU) for facts in self._rows}
        for turn in range(CAUSES_OF_A_GPU):
            end = (turn + 1) * INTERVAL_S
            verdicts = [self._judge(row, causes[row.key][turn], owners[row.key], end) for row in self._rows]
            host = HostIncrements(
                self._values(catalog.HOST_CPU_MODES), self._values(catalog.PRESSURE_RESOURCES)
            )
            ledger.credit(verdicts, host, {verdict.gpu.key: verdict for verdict in verdicts})
            ledger.tick(0.004)
        self._seconds = CAUSES_OF_A_GPU * INTERVAL_S
        health = Health(
            {facts.key: True for facts in self._rows},
            {"nvml-gpm": True, "nvml": True, "host": True},
            last_sample_unix_s=NOW_S - 1.0,
            expected_gpus=GPUS,
        )
        exposition = Exposition(clock=lambda: 0.0, process=CollectorRegistry())
        exposition.publish(ledger.snapshot(health, taken_s=0.0, interval_s=INTERVAL_S))
        self._samples = tuple(history.samples(exposition.scrape(Format.OPENMETRICS).decode(), self.name))

    def scrapes(self) -> Iterator[str]:
        """OpenMetrics with times."""
        kept = [
            (series, float(value), "_total{" in series, bool(LOOKED_BACK_AT.match(series)))
            for series, value in self._samples
        ]
        for at in range(NOW_S - RAW_S, NOW_S + 1, SCRAPE_S):
            grown = (at - NOW_S + RAW_S) / self._seconds
            for series, value, counts, looked_back_at in kept:
                if looked_back_at or at > NOW_S - NEWEST_S:
                    yield f"{series} {value * grown if counts else value:.6g} {at}\n"
            yield f'up{{job="gpuwhy",instance="{self.name}"}} 1 {at}\n'

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


def build(folder: Path, programs: history.Programs, gpus: int) -> None:
    """Two weeks of recorded series, and the last hour of scrapes."""
    workloads = [
        Workload("slurm", f"job-{number:03d}", "", f"team-{number % OWNERS:02d}")
        for number in range(WORKLOADS)
    ]

    def scraped() -> Iterator[str]:
        for number in range(-(-gpus // GPUS)):
            yield from Host(number, workloads).scrapes()
        yield "# EOF\n"

    say(f"making scrapes of {gpus} GPUs")
    history.add_blocks(folder, programs, scraped())
    chance = random.Random(7)
    for rules in history.by_depth(((NOW_S, NOW_S, 1),), ((NOW_S, NOW_S, 1),)):
        say(f"recording {len(rules)} rules")
        server = history.serving(programs, folder)
        with running(server):
            newest = [line for rule in rules for line in history.evaluated(server, *rule)]
        history.add_blocks(folder, programs, (*_over_weeks(newest, chance), "# EOF\n"))


def _over_weeks(newest: list[str], chance: random.Random) -> Iterator[str]:
    for line in newest:
        series, value, _ = line.rsplit(" ", 2)
        step = 7 * 86400 if series.partition("{")[0].endswith("1w") else 3600
        for at in range(NOW_S - WEEKS_S // step * step, NOW_S, step):
            yield f"{series} {float(value) * chance.uniform(0.8, 1.0):.6g} {at}\n"
        yield line


def engine_s(server: Prometheus, expr: str) -> float:
    """What Prometheus' engine takes for an instant query."""
    answer = server.json("/api/v1/query", query=expr, time=NOW_S, stats="all")
    return float(answer["data"]["stats"]["timings"]["execTotalTime"])


@dataclass(frozen=True)
class Taken:
    """Seconds of each query by its name, and CPU seconds of Prometheus for all of them."""

    seconds: dict[str, float]
    cpu_s: float


def taken(server: Prometheus, queries: Iterator[tuple[str, float]]) -> Taken:
    before = cpu_s(server)
    seconds = dict(queries)
    return Taken(seconds, cpu_s(server) - before)


def cpu_s(server: Prometheus) -> float:
    assert server.process is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


def peak_mib(server: Prometheus) -> float:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def measure_rules(server: Prometheus) -> dict[str, Taken]:
    recording, promql, settled = Recording(), Promql(RenderConfig()), alerts.settled(RenderConfig())
    on, off = ([each for each in settled if each.enabled is wanted] for wanted in (True, False))
    groups = {
        "recording rules, hours": [(rule.record, rule.expr) for rule in recording.hours()],
        "recording rules, weeks": [(rule.record, rule.expr) for rule in recording.weeks()],
        "alert rules": [(each.name, each.expr(each, promql)) for each in on],
        "alert rules, off unless asked": [(each.name, each.expr(each, promql)) for each in off],
    }
    return {
        name: taken(server, ((rule, engine_s(server, expr)) for rule, expr in group))
        for name, group in groups.items()
    }


def asked(server: Prometheus, board: dashboards.Dashboard) -> Iterator[tuple[str, float]]:
    """Each query of a dashboard, with its seconds, for the first choice of what cannot be All."""
    variables = next(board.variables(server, NOW_S))
    for target in board.targets():
        began = time.perf_counter()
        dashboards.ask(server, target, target.filled(variables), NOW_S)
        yield f"{target.panel} {target.ref}", time.perf_counter() - began


def show(result: dict) -> None:
    print(f"{result['gpus']} GPUs, {result['series']} series now")
    for part in ("rules", "dashboards"):
        print(f"{part:30}{'number':>8}{'all s':>9}{'CPU s':>9}{'longest s':>11}")
        for name, took in result[part].items():
            longest = max(took["seconds"], key=took["seconds"].get)
            print(
                f"{name:30}{len(took['seconds']):8}{sum(took['seconds'].values()):9.2f}{took['cpu_s']:9.2f}"
                f"{took['seconds'][longest]:11.2f}  {longest}"
            )
        print(f"peak memory of Prometheus: {result['peak_mib'][part]:.0f} MiB")
    evaluation = sum(
        sum(took["seconds"].values()) for name, took in result["rules"].items() if "recording" in name
    )
    print(f"target: one evaluation of the recording rules <= {TARGET_RULES_S} s; here {evaluation:.2f} s")
    worst = max(sum(took["seconds"].values()) for took in result["dashboards"].values())
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
        result: dict = {"gpus": arguments.gpus, "peak_mib": {}}
        server = history.serving(programs, folder)
        with running(server):
            result["series"] = len(server.query('{__name__=~".+"}', NOW_S))
        with running(server):
            result["rules"] = {name: asdict(took) for name, took in measure_rules(server).items()}
            result["peak_mib"]["rules"] = peak_mib(server)
        with running(server):
            result["dashboards"] = {
                board.uid: asdict(taken(server, asked(server, board)))
                for board in dashboards.load(ROOT / "dashboards")
            }
            result["peak_mib"]["dashboards"] = peak_mib(server)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
