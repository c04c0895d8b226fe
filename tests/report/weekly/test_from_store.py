"""The local history, read: what the agent kept becomes the hours of a report."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.store.made import facts, tenancy, verdict, write

from gpuwhy.config import Config, ReportConfig, StoreConfig
from gpuwhy.report.weekly import command, periods, sources
from gpuwhy.report.weekly.history import History, ReportError
from gpuwhy.report.weekly.types import Report
from gpuwhy.sample import Workload
from gpuwhy.verdict.types import NO_DATA, TimeSplit, Verdict

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC).timestamp()
TRAIN = Workload("slurm", "train", owner="ann")
COPY = ("starving", "copy")
LENGTH = 600.0


def hour(
    start: float, index: int = 0, *, useful: float = 1800.0, seconds: float = 3600.0, **changes
) -> list[Verdict]:
    """An hour of one GPU as intervals of ten minutes: so much useful, the rest lost to copies."""
    parts = round(seconds / LENGTH)
    time = TimeSplit(
        LENGTH, LENGTH, useful / parts, lost={COPY: LENGTH - useful / parts}, verdict={COPY: LENGTH}
    )
    known = {"gpu": facts(index), "time": time, "workloads": (tenancy(TRAIN, time),), **changes}
    return [verdict(start + LENGTH * (number + 1), LENGTH, **known) for number in range(parts)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def config(path: Path, timezone: str = "UTC") -> Config:
    return Config(report=ReportConfig(source=f"store:{path}", timezone=timezone))


def report(path: Path, period: str, timezone: str = "UTC") -> Report:
    return command.make(config(path, timezone), period, {}, lambda done, steps: None, NOW)


def read(path: Path, period: str, zone: ZoneInfo = UTC) -> History:
    return sources.read(config(path), periods.parse(period, zone, NOW).span, {}, lambda done, steps: None)


def at(text: str, zone: ZoneInfo = UTC) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def test_an_hour_at_every_level(path: Path) -> None:
    """What is kept of one GPU and its workload stands at each level, in the hour in which it was."""
    write(path, hour(at("2026-11-24T05:00:00")))
    period = read(path, "2026-11-24..2026-11-25").period
    tables = period.tables
    [(group, sums)] = period.gpus.items()
    assert group == ("h1", "0", facts().uuid, "")
    assert sums["useful", "", ""] == pytest.approx(1800)
    expected = {
        "instance": ("h1",),
        "model": ("NVIDIA H200",),
        "fleet": (),
        "workload": ("slurm", "train", "", "ann"),
        "owner": ("ann",),
    }
    assert set(tables) == set(expected)
    for level, group in expected.items():
        row = tables[level][group]
        assert row["useful", "", ""][5] == pytest.approx(1800)
        assert sum(row["useful", "", ""]) == pytest.approx(1800)
        assert row[("lost", *COPY)][5] == pytest.approx(1800)


def test_restarts_within_an_hour_add_up(path: Path) -> None:
    """Three agents wrote parts of one hour, and ten minutes belong to nobody."""
    start = at("2026-11-24T05:00:00")
    for begin, seconds in ((0, 1200), (1200, 600), (2400, 1200)):
        write(path, hour(start + begin, useful=seconds / 2, seconds=seconds))
    made = report(path, "2026-11-24..2026-11-25")
    assert made.fleet.hours.observed == pytest.approx(3000 / 3600)
    assert made.fleet.hours.useful == pytest.approx(1500 / 3600)


def test_a_gap_and_a_gpu_that_came_later(path: Path) -> None:
    """Twenty-four hours less a gap of four, and a second GPU for the last six."""
    start = at("2026-11-24T00:00:00")
    for number in (*range(8), *range(12, 24)):
        write(path, hour(start + 3600 * number))
        if number >= 18:
            write(path, hour(start + 3600 * number, 1, useful=3600.0))
    made = report(path, "2026-11-24..2026-11-25")
    assert made.fleet.hours.observed == pytest.approx(26)
    assert made.fleet.hours.useful == pytest.approx(16)
    assert (made.gpus, made.about.hours_seen, made.about.hours_expected) == (2, 20, 24)


def test_slices_are_weighed(path: Path) -> None:
    """A slice of 3/7 that was useful for an hour counts 3/7 GPU-hours, at the level of the GPU too."""
    start = at("2026-11-24T05:00:00")
    time = TimeSplit(LENGTH, LENGTH, LENGTH, verdict={("healthy", "compute"): LENGTH})
    for mig, share in (("1", 3 / 7), ("2", 3 / 7), ("", 1 / 7)):
        write(path, hour(start, gpu=facts(mig=mig, share_ratio=share), time=time, workloads=()))
    made = report(path, "2026-11-24..2026-11-25")
    assert made.fleet.hours.useful == pytest.approx(1)
    assert sorted(round(group.hours.useful, 4) for group in made.of("gpu")) == [0.1429, 0.4286, 0.4286]
    assert made.gpus == 1


@pytest.mark.parametrize(
    ("week", "hours", "first"), [("2026-W13", 167, "2026-03-23"), ("2026-W43", 169, "2026-10-19")]
)
def test_weeks_in_which_clocks_change(path: Path, week: str, hours: int, first: str) -> None:
    """The first and the last hour of the week are in it, and those next to them are not."""
    start = at(f"{first}T00:00:00", BERLIN)
    for number in (-1, 0, hours - 1, hours):
        write(path, hour(start + 3600 * number))
    made = report(path, week, "Europe/Berlin")
    assert made.fleet.hours.observed == pytest.approx(2)
    assert made.days[0].hours.observed == pytest.approx(1)
    assert made.days[-1].hours.observed == pytest.approx(1)
    assert made.about.hours_expected == hours


def test_days_that_begin_at_half_hours(path: Path) -> None:
    """Where local hours are not those of UTC an hour kept lies in two of them, by halves."""
    start = at("2026-11-24T00:30:00", ZoneInfo("Asia/Kolkata"))  # 19:00 UTC
    write(path, hour(start - 3600))
    write(path, hour(start))
    [row] = read(path, "2026-11-24..2026-11-25", ZoneInfo("Asia/Kolkata")).period.table("instance").values()
    assert list(row["useful", "", ""])[:3] == pytest.approx([1800, 900, 0])


def test_weeks_before(path: Path) -> None:
    """They are read as sums, at every level that is compared."""
    for week, useful in enumerate((900.0, 1800.0)):
        write(path, hour(at("2026-11-24T05:00:00") - week * 7 * 86400, useful=useful))
    history = read(path, "2026-11-24..2026-11-25")
    for level in ("instance", "model", "workload", "owner", "fleet"):
        [row] = history.before[0].table(level).values()
        assert sum(row["useful", "", ""]) == pytest.approx(1800)
        assert sum(sum(values) for stream, values in row.items() if stream[0] == "lost") == pytest.approx(
            1800
        )
    assert history.before[1].tables == {}


def test_no_data_is_observed_and_nothing_else(path: Path) -> None:
    time = TimeSplit(LENGTH, verdict={NO_DATA: LENGTH})
    write(path, hour(at("2026-11-24T05:00:00"), time=time, workloads=()))
    hours = report(path, "2026-11-24..2026-11-25").fleet.hours
    assert (round(hours.observed, 6), hours.measured, round(hours.unattributed, 6)) == (1.0, 0.0, 1.0)


def test_recordings_that_were_played_in_are_named(path: Path) -> None:
    """They are not this host's own hours."""
    write(path, hour(at("2026-11-24T05:00:00")), source="replay")
    assert any("recordings that were played" in note for note in report(path, "2026-11-24..2026-11-25").notes)


def test_an_empty_history(path: Path) -> None:
    """A file without rows gives the report that says so."""
    write(path, [])
    made = report(path, "last-week")
    assert made.empty
    assert made.headline == "No data for week 2026-W48."


def test_what_cannot_be_read_is_named(path: Path) -> None:
    """A missing file, and one that is no history, with the store's own remedy."""
    with pytest.raises(ReportError, match=str(path)):
        report(path, "last-week")
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(ReportError, match=str(path)):
        report(path, "last-week")
    other = path.with_name("other.db")
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(ReportError, match=str(other)):
        report(other, "last-week")


def test_the_store_of_this_host_is_found(path: Path) -> None:
    """Without a path the agent's own file is read, and where there is none a fleet is thought of."""
    write(path, hour(at("2026-11-24T05:00:00")))
    given = Config(store=StoreConfig(path=str(path)), report=ReportConfig(timezone="UTC"))
    made = command.make(given, "last-week", {}, lambda done, steps: None, NOW)
    assert made.about.source == f"local history of h1 ({path})"
    given = Config(store=StoreConfig(path=str(path.with_name("none.db"))))
    with pytest.raises(ReportError, match="for a fleet, give --source the address of its Prometheus"):
        command.make(given, "last-week", {}, lambda done, steps: None, NOW)
