"""The same verdicts through the local history and through a real Prometheus give the same report."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from prometheus_client import CollectorRegistry
from tests.live.programs import Prometheus, prometheus, running
from tests.store.made import facts, tenancy, verdict

from gpuwhy.config import Config, ReportConfig
from gpuwhy.exporter import Exposition, Format, Health, Ledger
from gpuwhy.render.recording import Recording
from gpuwhy.report.weekly import command
from gpuwhy.report.weekly.types import Group, Report
from gpuwhy.sample import Workload
from gpuwhy.source import GpuFacts
from gpuwhy.store.database import Database
from gpuwhy.store.minutes import Minutes
from gpuwhy.verdict.types import TimeSplit, Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BERLIN = ZoneInfo("Europe/Berlin")
PERIOD = "2026-03-28..2026-03-31"  # clocks go forward on the second day
START = int(datetime(2026, 3, 28, tzinfo=BERLIN).timestamp())
HOURS = 71
NOW = START + 400 * 3600.0
WEEK_BEFORE_H = 24  # of history before the same days of the week before
INTERVAL_S, SCRAPE_S = 150, 300
TRAIN = Workload("slurm", "train", owner="ann")
SERVE = Workload("kubernetes", "chat", "prod", "platform")
KINDS = (
    (("starving", "cpu-preprocess"), TRAIN),
    (("throttled", "power-brake"), TRAIN),
    (("idle", "held"), SERVE),
    (("memory-bound", "bandwidth"), SERVE),
    (("healthy", "compute"), TRAIN),
    (("idle", "free"), None),
    (("unknown", "no-data"), None),
)


@dataclass(frozen=True)
class Run:
    """One run of an agent, from hour to hour of the period; between runs nobody watches."""

    first_h: float
    last_h: float


# The week before, then a restart in mid-hour, a gap of three hours, and a night without an agent.
RUNS = (
    Run(-168.0, -168.0 + WEEK_BEFORE_H),
    Run(-3.0, 10.5),  # what is before the period is not in it
    Run(10.5, 30.0),
    Run(33.0, 50.25),
    Run(51.0, float(HOURS)),
)
SLICED = [facts(1, mig=mig, share_ratio=share) for mig, share in (("1", 3 / 7), ("2", 3 / 7), ("", 1 / 7))]
GPUS: list[tuple[GpuFacts, float]] = [
    (facts(0), -1000.0),
    *((each, -1000.0) for each in SLICED),
    (facts(2), 40.0),
]


def verdicts(run: Run) -> Iterator[list[Verdict]]:
    """What an agent judged, one interval after the other; a GPU joins in mid-week."""
    chance = random.Random(run.first_h)
    kinds = [chance.randrange(len(KINDS)) for _ in GPUS]
    for at in range(int(START + run.first_h * 3600), int(START + run.last_h * 3600), INTERVAL_S):
        found = []
        for number, (gpu, since_h) in enumerate(GPUS):
            if at < START + since_h * 3600:
                continue
            if chance.random() < 0.03:
                kinds[number] = chance.randrange(len(KINDS))
            key, workload = KINDS[kinds[number]]
            time = split(key, chance.random())
            owned = (tenancy(workload, time),) if workload else ()
            found.append(
                verdict(
                    at + INTERVAL_S,
                    INTERVAL_S,
                    gpu=gpu,
                    time=time,
                    verdict=key[0],
                    cause=key[1],
                    workloads=owned,
                )
            )
        yield found


def split(key: tuple[str, str], chance: float) -> TimeSplit:
    whole = float(INTERVAL_S)
    if key[0] == "unknown":
        return TimeSplit(whole, verdict={key: whole})
    if key == ("idle", "free"):
        return TimeSplit(whole, whole, free=whole, verdict={key: whole})
    used = whole * chance * 0.8
    if key[0] in {"healthy", "memory-bound"}:
        return TimeSplit(whole, whole, used, headroom=(whole - used) / 2, verdict={key: whole})
    return TimeSplit(whole, whole, used, lost={key: (whole - used) * 0.9}, verdict={key: whole})


def scrapes() -> Iterator[str]:
    """The counters of each run as Prometheus scraped them, every five minutes and at a run's end."""
    counted = re.compile(r"gpuwhy_(?:\w+_seconds_total|gpu_info|gpu_share_ratio)\{")
    for run in RUNS:
        ledger, exposition = Ledger(), Exposition(clock=lambda: 0.0, process=CollectorRegistry())
        start = at = int(START + run.first_h * 3600)
        last = int(START + run.last_h * 3600)
        for gpu, since_h in GPUS:
            if start >= START + since_h * 3600:
                ledger.add_gpu(gpu)
                ledger.add_workloads(gpu, [TRAIN, SERVE])
        for judged in [[], *verdicts(run)]:
            if judged:
                at += INTERVAL_S
                ledger.credit(judged, None, {}, scraped=exposition.scraped)
            if at % SCRAPE_S and at != last:
                continue
            exposition.publish(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))
            for line in exposition.scrape(Format.OPENMETRICS).decode().splitlines():
                if counted.match(line):
                    series, value = line.rsplit(" ", 1)
                    yield f'{series[:-1]},instance="h1"}} {value} {at}\n'
        # A target that is gone is marked stale at once; blocks made of text cannot say so.


def add_blocks(promtool: str, folder: Path, lines: Iterable[str]) -> None:
    text = folder / "samples.om"
    with text.open("w") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=1000h", "--quiet"]
    done = subprocess.run([*command, text, folder / "data"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def record(server: Prometheus, names: list[str]) -> Iterator[str]:
    """What the rules make of the hours, as they would have at each full hour."""
    rules = {rule.record: rule.expr for rule in Recording().hours()}
    for name in names:
        for first_h, last_h in ((-168, -168 + WEEK_BEFORE_H), (-3, HOURS)):
            start, end = START + first_h * 3600 + 3600, START + last_h * 3600
            # At half hours too, for calendars whose hours begin there.
            for series in server.query_range(rules[name], start, end, 1800):
                labels = ",".join(
                    f'{label}="{value}"' for label, value in series["metric"].items() if label != "__name__"
                )
                yield from (f"{name}{{{labels}}} {value} {at}\n" for at, value in series["values"])


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, promtool: str, require_program: Callable[[str, str], str]
) -> Iterator[Prometheus]:
    """A Prometheus that scraped those agents and recorded their hours."""
    folder = tmp_path_factory.mktemp("prometheus")
    program = require_program("prometheus", "`make test` fetches it where apt-get works, or put it on PATH")
    add_blocks(promtool, folder, in_families(scrapes()))
    names = [rule.record for rule in Recording().hours() if "efficiency" not in rule.record]
    # Levels that sum up others come after those.
    steps = [[], [], []]
    for name in names:
        level = name.partition(":")[0]
        steps[{"gpu": 0, "workload": 1, "instance": 1, "model": 1}.get(level, 2)].append(name)
    for step in steps:
        recorder = prometheus(program, folder)
        with running(recorder):
            lines = list(record(recorder, step))
        add_blocks(promtool, folder, lines)
    reader = prometheus(program, folder)
    with running(reader):
        yield reader


def in_families(lines: Iterable[str]) -> Iterator[str]:
    """OpenMetrics wants the samples of a series together."""
    by_series: dict[str, list[str]] = {}
    for line in lines:
        by_series.setdefault(line.rsplit("} ", 1)[0], []).append(line)
    for series in sorted(by_series):
        yield from by_series[series]


@pytest.fixture(scope="module")
def reports(server: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """The period from the local history, and from Prometheus."""
    path = tmp_path_factory.mktemp("store") / "history.db"
    keep(path)
    made = []
    for source in (f"store:{path}", server.url):
        config = Config(report=ReportConfig(source=source, timezone="Europe/Berlin"))
        made.append(command.make(config, PERIOD, {}, lambda done, steps: None, NOW))
    return made[0], made[1]


def keep(path: Path) -> None:
    """The local history of those runs."""
    database = Database(path, host="h1", source="live")
    for run in RUNS:
        minutes = Minutes(most_workloads=100)
        for judged in verdicts(run):
            assert all(minutes.add(each) for each in judged)
        database.write(minutes.take())
    database.close()


QUANTITIES = ("observed", "measured", "useful", "lost", "headroom", "free", "unattributed")


def figures(group: Group) -> dict[str, float | None]:
    return {quantity: getattr(group.hours, quantity) for quantity in QUANTITIES} | {
        f"{loss.verdict}/{loss.cause}": loss.hours for loss in group.losses
    }


def close(one: Group, other: Group, ratio: float) -> None:
    left, right = figures(one), figures(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        # So much of what was observed: a small part may differ by more of itself.
        assert value == right[name] or right[name] == pytest.approx(value, abs=ratio * one.hours.observed), (
            name,
            one.labels,
        )


def test_the_fleet_agrees(reports: tuple[Report, Report]) -> None:
    """Within 0.1 %, through restarts, gaps, a GPU that came, slices and a change of clocks."""
    store, fleet = reports
    assert store.about.hours_expected == fleet.about.hours_expected == HOURS
    assert store.fleet.hours.observed > 150
    close(store.fleet, fleet.fleet, 0.001)


@pytest.mark.parametrize(
    ("level", "ratio"), [("gpu", 0.001), ("instance", 0.001), ("model", 0.001), ("workload", 0.01)]
)
def test_groups_agree(reports: tuple[Report, Report], level: str, ratio: float) -> None:
    """GPUs, hosts and models within 0.1 %; a workload's first interval with a cause is not counted there."""
    groups = [{tuple(group.labels.values()): group for group in report.of(level)} for report in reports]
    assert groups[0].keys() == groups[1].keys()
    for labels, group in groups[0].items():
        close(group, groups[1][labels], ratio)


def test_days_and_weeks_before_agree(reports: tuple[Report, Report]) -> None:
    """Each day, of 24 and 23 hours, and the same days of the week before, of which a part was seen."""
    store, fleet = reports
    assert [day.hours_expected for day in fleet.days] == [24, 23, 24]
    for one, other in zip(store.days, fleet.days, strict=True):
        assert other.hours.observed == pytest.approx(one.hours.observed, rel=0.002)
        assert other.hours.useful == pytest.approx(one.hours.useful, rel=0.005)
    assert [week.hours_seen for week in fleet.weeks] == [week.hours_seen for week in store.weeks]
    assert fleet.weeks[0].hours.useful == pytest.approx(store.weeks[0].hours.useful, rel=0.001)


def test_hours_that_begin_at_half_hours(server: Prometheus) -> None:
    """Where local hours are not those of UTC, single GPUs still add up to the fleet, hour for hour."""
    config = Config(report=ReportConfig(source=server.url, timezone="Asia/Kolkata"))
    made = command.make(config, "2026-03-28..2026-03-31", {}, lambda done, steps: None, NOW)
    assert made.about.hours_expected == 72
    assert made.fleet.hours.observed > 100
    for quantity in ("observed", "useful", "lost"):
        sums = sum(getattr(group.hours, quantity) for group in made.of("gpu"))
        assert sums == pytest.approx(getattr(made.fleet.hours, quantity), rel=1e-6)


def test_the_same_is_said(reports: tuple[Report, Report]) -> None:
    """The sentence and the ranks are the same."""
    store, fleet = reports
    number = re.compile(r"\d+\.\d+")
    assert number.sub("N", fleet.headline) == number.sub("N", store.headline)
    # A cause that first occurs after a run's last scrape but one is never seen to count.
    said, kept = ([float(each) for each in number.findall(one.headline)] for one in (fleet, store))
    assert said == pytest.approx(kept, abs=0.15)
    assert [(fix.level, fix.labels, fix.loss.cause) for fix in fleet.fixes] == [
        (fix.level, fix.labels, fix.loss.cause) for fix in store.fixes
    ]
