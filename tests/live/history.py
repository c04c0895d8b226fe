"""Two weeks of made-up clusters, played from recordings of real GPUs in virtual time, for a real Prometheus.

This is a replay, no fleet: each slot of each host loops recordings of ``tests/data/recordings`` through the
agent's own stages, ledger and exposition. Names of hosts, models and workloads, the hours of day and night,
the MIG split and the lost GPU are made up here. All of it is the same at every run, and ends at ``NOW_S``:

* the last three hours are scrapes every 30 s, with every series that the agent has;
* the 15 days before are the counters that recording rules read, every 5 minutes, each growing as fast as
  the recordings of that hour made it grow;
* recorded series are what Prometheus answers to the recording rules: hourly, and every 5 minutes of the last week.

``python -m tests.live.history --serve [PORT]`` runs a Prometheus over it until interrupted, and
``--with PYTHON SCRIPT ...`` that script beside one. What was built is kept until what makes it changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuwhy.daemon import Judged, Pipeline
from gpuwhy.exporter import Exposition, Format, Health, HostIncrements, Ledger
from gpuwhy.render.recording import Recording
from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuFacts, GpuReading, Reading
from gpuwhy.source.replay import ReplaySource
from gpuwhy.verdict import Verdict
from gpuwhy.verdict.now import Now
from gpuwhy.verdict.types import NO_DATA, TimeSplit
from gpuwhy.workload.directory import UNKNOWN

from .programs import ProgramError, Prometheus, prometheus, running

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"

NOW_S = datetime(2026, 6, 19, 12, tzinfo=timezone.utc).timestamp()  # a Friday noon
SCRAPE_S = 30
DETAIL_S = 3 * 3600  # of full scrapes
COARSE_S = 300  # between the points before them: windows of an hour, evaluated as often, start and end at one
DAYS = 15
LOOP_S = 60.0  # of each recording that is judged, and then repeated
DAY_HOURS = range(8, 20)

Mix = tuple[tuple[str, int], ...]  # recordings, and minutes of each hour that they are played


@dataclass(frozen=True)
class Slot:
    """The GPUs of one recording on a host, whose they are, and what is played on them.

    ``before`` is what was played by day until ``changed_s`` before the end. With two recordings joined by ``|`` the GPU is split
    by MIG, with an instance for each. ``lost_s`` before the end the GPU falls off the bus. ``xid`` is an error
    that the driver reports of the first GPU once an hour.
    """

    day: Mix
    night: Mix
    tenants: tuple[Tenant, ...] = ()
    before: Mix = ()
    changed_s: int = 7 * 86400
    lost_s: int = 0
    xid: int = 0

    def mix(self, at: float) -> Mix:
        """What is played in the hour of this time."""
        then = datetime.fromtimestamp(at, timezone.utc)
        if then.weekday() >= 5 or then.hour not in DAY_HOURS:
            return self.night
        return self.before if self.before and at < NOW_S - self.changed_s else self.day


@dataclass(frozen=True, eq=False)
class Host:
    """One host, scraped as ``name``."""

    name: str
    model: str
    slots: tuple[Slot, ...]
    sources: Mapping[str, bool] = field(
        default_factory=lambda: {"nvml-gpm": True, "nvml": True, "host": True}
    )
    degraded: bool = False


def _slurm(name: str, owner: str, job: str) -> tuple[Tenant, ...]:
    return (Tenant(Workload("slurm", name, "", owner), job),)


def _pod(namespace: str, name: str, owner: str, *, profile: str = "") -> tuple[Tenant, ...]:
    return (Tenant(Workload("kubernetes", name, namespace, owner), f"{name}-7d9c5b6f4-x2x9q", profile),)


_IDLE: Mix = (("idle", 60),)
_PRETRAIN = _slurm("llm-pretrain", "research", "81723")
_SERVING = {"nvml-gpm": True, "nvml": True, "host": True, "kubelet": True, "kubernetes-api": True}

HOSTS: tuple[Host, ...] = (
    Host(
        "gpu-a01",
        "NVIDIA H200",
        (
            Slot((("ddp_even", 60),), (("ddp_even", 60),), _PRETRAIN),
            Slot(
                (("train_gpt_tok_b", 45), ("train_gpt", 15)),
                (("train_gpt", 60),),
                _slurm("gpt-finetune", "nlp", "81790"),
                before=(("train_gpt", 60),),
            ),
            Slot((("jpeg_2w", 40), ("train_resnet", 20)), _IDLE, _slurm("vision-train", "vision", "81801")),
        ),
    ),
    Host(
        "gpu-a02",
        "NVIDIA H200",
        (
            Slot((("ddp_late", 60),), (("ddp_even", 60),), _PRETRAIN),
            Slot(
                (("gemm", 20), ("checkpoint", 25), ("syn_sw_thermal", 15)),
                (("gemm", 60),),
                _slurm("climate-emulator", "physics", "81655"),
                before=(("gemm", 60),),
                changed_s=6 * 3600,
            ),
            Slot(
                (("stencil64", 30), ("fp64_fma", 20), ("syn_power_brake", 10)),
                (("stencil64", 60),),
                _slurm("cfd-solver", "physics", "81660"),
                before=(("fp64_fma", 60),),
            ),
        ),
    ),
    Host(
        "gpu-b01",
        "NVIDIA H100 80GB HBM3",
        (
            Slot(
                (("decode_attn", 50), ("serve_batch", 10)),
                (("low_traffic", 60),),
                _pod("prod", "chat-serving", "platform", profile="latency"),
            ),
            Slot(
                (("two_gemm", 40), ("parked_and_starved", 20)),
                _IDLE,
                _pod("dev", "notebook-ada", "ada") + _pod("dev", "notebook-eve", "eve"),
                xid=31,
            ),
            Slot((("parked", 60),), (("parked", 60),), _pod("dev", "sandbox", "eve")),
            Slot(_IDLE, _IDLE),
        ),
        sources=_SERVING,
    ),
    Host(
        "gpu-b02",
        "NVIDIA H100 80GB HBM3",
        (
            Slot(
                (("llama_prefill|launch", 60),),
                (("llama_prefill|idle", 60),),
                _pod("prod", "embeddings", "platform") + _pod("prod", "reranker", "search"),
            ),
            Slot((("syn_sentinels", 60),), _IDLE, _pod("batch", "transcode", "media")),
            Slot(
                (("quota", 20), ("decode_threads", 40)),
                _IDLE,
                _pod("batch", "etl-features", "search"),
                lost_s=1500,
            ),
        ),
        sources=_SERVING | {"dcgm-exporter": False},
        degraded=True,
    ),
)


class _Holders:
    """A directory that gives the tenants of a slot to its GPU processes in turn."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self._tenants = tenants
        self._of: dict[int, Tenant] = {}

    def follow(self, gpus: Sequence[GpuReading]) -> None:
        for pid in sorted({pid for gpu in gpus for pid in gpu.owners or ()}):
            if self._tenants and pid not in self._of:
                self._of[pid] = self._tenants[len(self._of) % len(self._tenants)]

    def tenant(self, pid: int) -> Tenant | None:
        return self._of.get(pid, UNKNOWN)

    def granted(self, key: object) -> tuple[Tenant, ...]:
        return ()

    def holder(self, name: str) -> Tenant:
        return UNKNOWN


@dataclass(frozen=True)
class Beat:
    """One judged interval of a recording, and what was rejected in it."""

    verdicts: tuple[Verdict, ...]
    host: HostIncrements | None
    rejected: Mapping[tuple[str, str], int]

    @property
    def seconds(self) -> float:
        return self.verdicts[0].end_s - self.verdicts[0].start_s


@functools.cache
def judged(name: str, tenants: tuple[Tenant, ...]) -> tuple[Beat, ...]:
    """A minute of a recording, through the agent's stages."""
    stages = Pipeline(interval_s=5.0, directory=_Holders(tenants))
    beats, before = [], dict[tuple[str, str], int]()
    for reading in _readings(name):
        if reading.end_s > LOOP_S:
            break
        closed: Iterable[Judged] = stages.feed(replace(reading, workload=""))
        for each in closed:
            now = dict(stages.normaliser.rejected)
            gained = {key: count - before.get(key, 0) for key, count in now.items()}
            before = now
            beats.append(Beat(each.verdicts, each.host, gained))
    return tuple(beats)


def _readings(name: str) -> Iterator[Reading]:
    plays = [
        (reading for _, reading in ReplaySource([RECORDINGS / f"{one}.jsonl.gz"], loop=True).schedule())
        for one in name.split("|")
    ]
    if len(plays) == 1:
        yield from plays[0]
    else:
        for together in zip(*plays, strict=False):
            yield _split(together)


def _split(readings: Sequence[Reading]) -> Reading:
    """One GPU split by MIG, with an instance for what was recorded on each of several whole ones."""
    first = readings[0]
    whole = first.gpus[0].facts
    rest = 1.0 - len(readings) * 3 / 7
    # A board has power and clocks and no activity, an instance activity and memory.
    boards = tuple(part for part in first.gpus[0].parts if part.source == "nvml")
    rows = [
        replace(first.gpus[0], facts=replace(whole, split=True, share_ratio=rest), parts=boards, owners=())
    ]
    for number, reading in enumerate(readings, 1):
        (gpu,) = reading.gpus
        facts = replace(
            whole,
            mig=str(number),
            profile="3g.40gb",
            share_ratio=3 / 7,
            power_limit_watts=None,
            default_power_limit_watts=None,
            sm_clock_max_hertz=None,
            memory_clock_max_hertz=None,
            memory_total_bytes=40e9,
        )
        activity = tuple(part for part in gpu.parts if part.source == "nvml-gpm")
        rows.append(replace(gpu, facts=facts, parts=activity))
    return replace(first, gpus=tuple(rows))


class _Played:
    """A slot while it is played: which interval comes next."""

    def __init__(self, slot: Slot, facts: Mapping[tuple[str, str], GpuFacts], start_s: float) -> None:
        self.xid = slot.xid
        self._slot = slot
        self._facts = facts
        self._at = start_s
        self._played: dict[str, int] = {}

    def until(self, at: float) -> Iterator[tuple[float, Beat]]:
        """The intervals that end up to this time, with their ends."""
        while True:
            name = _playing(self._slot.mix(self._at), self._at)
            beats = judged(name, self._slot.tenants)
            number = self._played.get(name, 0)
            beat = beats[number % len(beats)]
            if self._at + beat.seconds > at:
                return
            self._at += beat.seconds
            self._played[name] = number + 1
            yield self._at, _placed(beat, self._facts, self._at, lost=self.lost(self._at))

    def lost(self, at: float) -> bool:
        """Whether its GPU is lost by then."""
        return bool(self._slot.lost_s) and at > NOW_S - self._slot.lost_s


def _playing(mix: Mix, at: float) -> str:
    minute = at % 3600 / 60
    for name, minutes in mix:
        if minute < minutes:
            return name
        minute -= minutes
    raise AssertionError(f"{mix} does not fill an hour")


def _placed(beat: Beat, facts: Mapping[tuple[str, str], GpuFacts], at: float, *, lost: bool) -> Beat:
    """The interval as one of a host's own GPUs that ended at this time."""
    verdicts = []
    for verdict in beat.verdicts:
        gpu = facts[verdict.gpu.key]
        seconds = verdict.end_s - verdict.start_s
        if lost:
            split = TimeSplit(observed=seconds, verdict={NO_DATA: seconds})
            verdicts.append(
                Verdict(
                    gpu, at - seconds, at, at, *NO_DATA, confidence=0.95, evidence=(), time=split, up=False
                )
            )
        else:
            verdicts.append(replace(verdict, gpu=gpu, start_s=at - seconds, end_s=at, unix_end_s=at))
    return replace(beat, verdicts=tuple(verdicts))


@functools.cache
def _facts(host: Host) -> list[dict[tuple[str, str], GpuFacts]]:
    """The GPUs of each slot, by the recording's own identity of them."""
    placed, index = [], 0
    for slot in host.slots:
        rows: dict[tuple[str, str], GpuFacts] = {}
        boards: dict[str, int] = {}
        for name, _ in (*slot.day, *slot.night, *slot.before):
            for position, gpu in enumerate(_boards(name, slot.tenants)):
                boards.setdefault(gpu.uuid, index + position)
            for verdict in judged(name, slot.tenants)[0].verdicts:
                number = boards[verdict.gpu.uuid]
                rows[verdict.gpu.key] = replace(
                    verdict.gpu,
                    index=number,
                    uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host.name}/{number}')}",
                    model=host.model,
                    driver="575.51.03",
                    pci_bus_id=f"00000000:{0x18 + number:02X}:00.0",
                )
        index = 1 + max(boards.values())
        placed.append(rows)
    return placed


def _boards(name: str, tenants: tuple[Tenant, ...]) -> list[GpuFacts]:
    return [verdict.gpu for verdict in judged(name, tenants)[0].verdicts if not verdict.gpu.mig]


class _Process:
    """The agent's own process, as prometheus_client would show it."""

    def __init__(self) -> None:
        self.at = self.began = NOW_S - DETAIL_S

    def collect(self) -> Iterator[Any]:
        cpu = CounterMetricFamily("process_cpu_seconds", "CPU time.")
        cpu.add_metric([], 0.021 * (self.at - self.began))
        yield cpu
        for name, value in (
            ("process_resident_memory_bytes", 78.5 * 2**20),
            ("process_virtual_memory_bytes", 402.0 * 2**20),
            ("process_start_time_seconds", self.began),
            ("process_open_fds", 31.0),
        ):
            yield GaugeMetricFamily(name, "Of the process.", value)


class Agent:
    """The agent of one host in virtual time."""

    def __init__(self, host: Host, start_s: float) -> None:
        facts = _facts(host)
        self._host = host
        self._slots = [_Played(slot, rows, start_s) for slot, rows in zip(host.slots, facts, strict=True)]
        self._rows = facts
        self._ledger, self._now, self._shown = Ledger(), Now(), dict[tuple[str, str], Verdict]()
        self._process = _Process()
        registry = CollectorRegistry()
        registry.register(self._process)
        self._exposition = Exposition(clock=lambda: self._process.at, process=registry)
        for rows, slot in zip(facts, host.slots, strict=True):
            for gpu in rows.values():
                self._ledger.add_gpu(gpu)
            for beat in (judged(name, slot.tenants)[0] for name, _ in slot.mix(start_s)):
                for verdict in beat.verdicts:
                    held = [each.workload for each in verdict.workloads]
                    self._ledger.add_workloads(rows[verdict.gpu.key], held)

    def scrape(self, at: float) -> str:
        """What a scrape at this time gets, in OpenMetrics."""
        for number, slot in enumerate(self._slots):
            for _, beat in slot.until(at):
                self._shown |= {each.gpu.key: self._now.update(each) for each in beat.verdicts}
                # Slots were recorded on hosts of their own: the first one's stands for this host.
                self._ledger.credit(beat.verdicts, None if number else beat.host, self._shown)
                for key, count in beat.rejected.items():
                    self._ledger.reject(*key, count)
            if slot.xid and at % 3600 == 0:
                self._ledger.xid(next(iter(self._rows[number].values())).key, slot.xid)
        for second in range(SCRAPE_S):
            self._ledger.tick(0.0041, missed=int(second == 0 and at % 1200 == 0))
        self._process.at = at
        self._exposition.publish(self._ledger.snapshot(self._health(at), taken_s=at, interval_s=5.0))
        return self._exposition.scrape(Format.OPENMETRICS).decode()

    def _health(self, at: float) -> Health:
        up = {
            gpu.key: not slot.lost(at)
            for slot, rows in zip(self._slots, self._rows, strict=True)
            for gpu in rows.values()
        }
        return Health(
            up,
            dict(self._host.sources),
            degraded=self._host.degraded,
            last_sample_unix_s=at - 0.4,
            source_yielding=dict.fromkeys(self._host.sources, False),
            expected_gpus=sum(1 for _, mig in up if not mig),
        )


def samples(text: str, host: str) -> Iterator[tuple[str, str]]:
    """Series and value of each line of a scrape, under the labels that Prometheus adds."""
    for line in text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, labels = series.partition("{")
            added = f'job="gpuwhy",instance="{host}"'
            yield f"{name}{{{added},{labels}" if labels else f"{name}{{{added}}}", value


def detail() -> Iterator[str]:
    """Scrapes of the last hours, in OpenMetrics with times."""
    start = NOW_S - DETAIL_S
    agents = [(host, Agent(host, start)) for host in HOSTS]
    for host, agent in agents:
        for at in range(int(start), int(NOW_S) + 1, SCRAPE_S):
            for series, value in samples(agent.scrape(at), host.name):
                yield f"{series} {value} {at}\n"
            yield f'up{{job="gpuwhy",instance="{host.name}"}} 1 {at}\n'
    yield "# EOF\n"


# What recording rules read.
_COUNTED = re.compile(
    r"gpuwhy_(?:workload_)?(?:verdict|lost|useful|headroom|free|measured|observed)_seconds_total"
)
_CONSTANT = re.compile(r"gpuwhy_(?:gpu_info|gpu_share_ratio|build_info)\b")


def coarse() -> Iterator[str]:
    """The counters of the days before the detail, in OpenMetrics with times."""
    start, end = int(NOW_S) - DAYS * 86400, int(NOW_S) - DETAIL_S
    for host in HOSTS:
        chance = random.Random(host.name)
        totals: dict[str, float] = {}
        for hour in range(start, end, 3600):
            pace: dict[str, float] = {}
            constants: dict[str, str] = {}
            for number, slot in enumerate(host.slots):
                work = chance.uniform(0.7, 1.0)
                for part, mix in ((work, slot.mix(hour)), (1.0 - work, slot.night)):
                    for name, minutes in mix:
                        gains, fixed = _gains(host, number, name)
                        constants |= fixed
                        for series, gain in gains.items():
                            pace[series] = pace.get(series, 0.0) + gain * part * minutes / 60
            # One more just before the detail, where agents start again: what is between is lost.
            points = [*range(hour, hour + 3600, COARSE_S), *([end - SCRAPE_S] if hour + 3600 == end else [])]
            for at, until in pairwise((*points, hour + 3600)):
                yield from (f"{series} {value} {at}\n" for series, value in constants.items())
                yield from (
                    f"{series} {totals.setdefault(series, 0.0):.6f} {at}\n" for series in pace | totals
                )
                for series, gain in pace.items():
                    totals[series] += gain * (until - at)
    yield "# EOF\n"


@functools.cache
def _gains(host: Host, number: int, name: str) -> tuple[dict[str, float], dict[str, str]]:
    """What the counters of a slot gain in a second of a recording, and what is constant."""
    slot, rows = host.slots[number], _facts(host)[number]
    ledger, exposition = Ledger(), Exposition(clock=lambda: 0.0, process=CollectorRegistry())
    seconds = 0.0
    for beat in judged(name, slot.tenants):
        seconds += beat.seconds
        ledger.credit(_placed(beat, rows, seconds, lost=False).verdicts, None, {})
    exposition.publish(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))
    scraped = dict(samples(exposition.scrape(Format.OPENMETRICS).decode(), host.name))
    gains = {
        series: float(value) / seconds
        for series, value in scraped.items()
        if _COUNTED.match(series) and float(value)
    }
    return gains, {series: value for series, value in scraped.items() if _CONSTANT.match(series)}


@dataclass(frozen=True)
class Programs:
    """Where the outside programs are."""

    promtool: str
    prometheus: str


_STAGES = ("source", "sample", "workload", "interval", "verdict", "exporter")
_MODULES = ("catalog", "daemon", "recorded", "render/promql", "render/recording")


def kept(root: Path, programs: Programs) -> Path:
    """The history of this tree as a folder below ``.tools``, built if what makes it has changed."""
    package = root / "agent" / "gpuwhy"
    makers = [file for stage in _STAGES for file in (package / stage).rglob("*.py")]
    makers += [package / f"{name}.py" for name in _MODULES] + [Path(__file__), *RECORDINGS.glob("*.gz")]
    digest = hashlib.sha256()
    for file in sorted(makers):
        digest.update(file.read_bytes())
    folder = root / ".tools" / "history" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits, and finds it there
        if not folder.is_dir():
            for other in filter(Path.is_dir, folder.parent.iterdir()):
                shutil.rmtree(other)
            print("replaying two weeks, which takes a minute", file=sys.stderr)
            made = folder.with_suffix(".new")
            build(made, programs)
            made.rename(folder)
    return folder


def build(folder: Path, programs: Programs) -> None:
    """Writes all of it into ``folder/data``, which must not be there yet."""
    add_blocks(folder, programs, coarse())
    add_blocks(folder, programs, detail())
    for rules in by_depth():
        server = serving(programs, folder)
        with running(server):
            lines = [line for name, expr, times in rules for line in evaluated(server, name, expr, times)]
        add_blocks(folder, programs, (*lines, "# EOF\n"))


def serving(programs: Programs, folder: Path, *, port: int = 0) -> Prometheus:
    """A Prometheus over what was built there, not yet started."""
    # Rules that run leave a mark where a series ends, blocks made of text have none: a point must not reach the next.
    return prometheus(programs.prometheus, folder, flags=["--query.lookback-delta=299s"], port=port)


@contextlib.contextmanager
def served(programs: Programs, folder: Path, *, port: int = 0) -> Iterator[Prometheus]:
    """A running Prometheus over a copy of what was built there, so that several can be at once."""
    with tempfile.TemporaryDirectory(prefix="gpuwhy-history-") as copy:
        shutil.copytree(folder / "data", Path(copy, "data"))
        server = serving(programs, Path(copy), port=port)
        with running(server):
            yield server


def add_blocks(folder: Path, programs: Programs, lines: Iterable[str]) -> None:
    """Puts samples, in OpenMetrics with times, into ``folder/data``; the last line is ``# EOF``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "samples.om"
    with text.open("w") as file:
        file.writelines(lines)
    command = [programs.promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=1000h"]
    done = subprocess.run(
        [*command, "--quiet", text, folder / "data"], capture_output=True, text=True, check=False
    )
    text.unlink()
    if done.returncode:
        raise RuntimeError(f"promtool could not make blocks:\n{done.stdout}{done.stderr}")


Times = tuple[tuple[float, float, float], ...]  # start, end and step of each stretch
_HOURS: Times = (
    (NOW_S - (DAYS * 24 - 1) * 3600, NOW_S - 7 * 86400 - 3600, 3600),
    (NOW_S - 7 * 86400, NOW_S, 300),
)
_WEEKS: Times = (
    (NOW_S - 7 * 86400 - 1800, NOW_S - 7 * 86400, 300),  # what this week is compared with
    (NOW_S - 86400, NOW_S - 3600, 3600),
    (NOW_S - 3300, NOW_S, 300),
)


def by_depth(hours: Times = _HOURS, weeks: Times = _WEEKS) -> list[list[tuple[str, str, Times]]]:
    """Recording rules with when to evaluate them, in steps that read only what the steps before recorded."""
    recording = Recording()
    rules = [(each.record, each.expr, hours) for each in recording.hours()]
    rules += [(each.record, each.expr, weeks) for each in recording.weeks()]
    names = re.compile(
        "|".join(re.escape(name) for name, _, _ in sorted(rules, key=lambda rule: -len(rule[0])))
    )
    depth: dict[str, int] = {}
    for name, expr, _ in rules:
        depth[name] = 1 + max((depth[read] for read in names.findall(expr)), default=-1)
    return [[rule for rule in rules if depth[rule[0]] == step] for step in range(1 + max(depth.values()))]


def evaluated(server: Prometheus, record: str, expr: str, times: Times) -> Iterator[str]:
    """The samples that a rule records, in OpenMetrics."""
    series: dict[str, list[str]] = {}
    for start, end, step in times:
        for found in server.query_range(expr, start, end, step):
            labels = ",".join(f'{name}="{value}"' for name, value in found["metric"].items())
            lines = series.setdefault(f"{record}{{{labels}}}", [])
            lines += [f"{value} {at}" for at, value in found["values"]]
    for name, lines in series.items():
        yield from (f"{name} {line}\n" for line in lines)


def find_programs(root: Path) -> Programs:
    """Those of ``.tools/bin`` or PATH; raises ProgramError that names what is missing and the remedy."""
    where = f"{root / '.tools' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = {name: shutil.which(name, path=where) for name in ("promtool", "prometheus")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise ProgramError(
            f"{', '.join(missing)} cannot be found; remedy: `make programs`, or put it on PATH"
        )
    return Programs(**{name: str(path) for name, path in found.items()})


def main(arguments: Sequence[str]) -> int:
    """Builds the history where it is not there yet, and runs a Prometheus over it."""
    root = Path(__file__).parent.parent.parent
    programs = find_programs(root)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    match arguments:
        case ["--serve", *port]:
            with (
                contextlib.suppress(KeyboardInterrupt),
                served(programs, kept(root, programs), port=int(port[0]) if port else 0) as server,
            ):
                print(f"{server.url} holds {DAYS} days up to {NOW_S:.0f} (Unix time)", flush=True)
                signal.pause()
        case ["--with", *command] if len(command) > 1:
            with served(programs, kept(root, programs)) as server:
                given = ["--prometheus", server.url, "--now", f"{NOW_S:.0f}"]
                # Behind the program's own name and script, as its first options.
                return subprocess.run([*command[:2], *given, *command[2:]], check=False).returncode
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
