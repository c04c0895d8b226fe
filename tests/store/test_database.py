"""The history file: what adds up in it, how it grows old, and what it does not touch."""

from __future__ import annotations

import math
import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Workload
from gpuwhy.store import Reader, StoreError, schema
from gpuwhy.store.database import CORRUPT_KEPT, Bounds, DamagedError, Database, set_aside
from gpuwhy.store.minutes import Minutes
from gpuwhy.store.signals import KEPT, Kept
from gpuwhy.verdict.summary import total

from .conftest import connection
from .made import LLAMA, MONDAY, facts, host, split, tenancy, verdict, write

FOREVER = (0, 2**40)
DAY = 86400.0
WEEK_MIB = 30
VERSION_1 = Path(__file__).with_name("version1.sql")


def opened(file: Path) -> Database:
    return Database(file, host="h1", source="live")


def rows(file: Path, name: str = "minutes") -> list:
    with Reader(file) as history:
        return list(getattr(history, name)(*FOREVER))


def test_restarts_within_a_minute_add_up(file: Path) -> None:
    """Two agents, one after the other in the same minute, leave one row with the time of both."""
    write(file, [verdict(MONDAY + 10)])
    write(file, [verdict(MONDAY + 30, signals={"power_watts": 600.0})])
    for name, length in (("minutes", 60), ("hours", 3600)):
        (row,) = rows(file, name)
        assert (row.start_unix, row.length_s, row.gpu.key) == (MONDAY, length, facts().key)
        assert row.time == split(10.0)
        assert row.energy_joules == 3000.0
        power, sm = row.signals["power_watts"], row.signals["sm_active_ratio"]
        assert (power.mean, power.p95) == (pytest.approx(450.0), pytest.approx(600.0))
        assert (sm.mean, sm.p95) == (pytest.approx(0.25), pytest.approx(0.25))
    (held,) = rows(file, "workload_hours")
    assert (held.workload, held.time, held.ratio) == (LLAMA, split(10.0), 1.0)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.lists(
            st.builds(
                lambda end, length, index, key: verdict(end, length, facts(index), time=split(length, key)),
                st.floats(MONDAY - 4000, MONDAY + 4000),
                st.floats(0, 400),
                st.integers(0, 1),
                st.sampled_from([("starving", "copy"), ("healthy", "compute"), ("unknown", "no-data")]),
            ),
            max_size=6,
        ),
        max_size=4,
    )
)
def test_every_second_of_every_run_is_in_the_file(tmp_path_factory, runs: list) -> None:
    """Agents one after the other, whatever their clocks: rows hold what was judged, by minute and by hour."""
    file = tmp_path_factory.mktemp("runs") / "history.db"
    for run in runs:
        write(file, run)
    if not runs:
        return
    wanted = total(each.time for run in runs for each in run)
    for name in ("minutes", "hours", "workload_minutes", "workload_hours"):
        found = rows(file, name)
        got = total(row.time for row in found)
        tolerance = {"abs": 0.001 * (1 + 10 * sum(map(len, runs)))}
        assert got.observed == pytest.approx(wanted.observed, **tolerance)
        assert got.useful == pytest.approx(wanted.useful, **tolerance)
        for mine, theirs in ((got.verdict, wanted.verdict), (got.lost, wanted.lost)):
            for key, seconds in theirs.items():
                assert mine.get(key, 0.0) == pytest.approx(seconds, **tolerance)


def test_energy_that_was_not_read_is_absent(file: Path) -> None:
    """Not zero; and once read, what was read counts."""
    write(file, [verdict(MONDAY + 5, increments={})])
    assert rows(file)[0].energy_joules is None
    write(file, [verdict(MONDAY + 10)])
    write(file, [verdict(MONDAY + 15, increments={})])
    assert rows(file)[0].energy_joules == 1500.0


def test_a_clock_that_jumps_loses_nothing(file: Path) -> None:
    """Set back over an hour, and forward again over a day: every second is somewhere, none is overwritten."""
    times = [MONDAY + 5, MONDAY + 10, MONDAY - 3590, MONDAY - 3585, MONDAY + 5, MONDAY + 86400, MONDAY + 10]
    write(file, [verdict(each) for each in times])
    found = {row.start_unix: row.time.observed for row in rows(file)}
    assert found == {MONDAY: 20.0, MONDAY - 3600: 10.0, MONDAY + 86340: 5.0}


def test_hours_are_the_sums_of_their_minutes(file: Path) -> None:
    """To the millisecond, for GPUs and workloads, whatever was written; a peak is the highest of them."""
    write(file, [each for verdicts in host(2, 150, start_unix=MONDAY + 1800) for each in verdicts])
    for name in ("", "workload_"):
        by_hour: dict = {}
        for row in rows(file, f"{name}minutes"):
            by_hour.setdefault((row.start_unix // 3600, row.gpu.key), []).append(row)
        hours = rows(file, f"{name}hours")
        assert len(hours) == len(by_hour) == 6
        for hour in hours:
            minutes = by_hour[hour.start_unix // 3600, hour.gpu.key]
            summed = total(row.time for row in minutes)
            assert summed.verdict == pytest.approx(hour.time.verdict)
            assert summed.lost == pytest.approx(hour.time.lost)
            assert summed.useful == pytest.approx(hour.time.useful)
            if not name:
                for signal, level in hour.signals.items():
                    assert level.p95 == max(row.signals[signal].p95 for row in minutes)
                    assert level.mean == pytest.approx(
                        math.fsum(row.signals[signal].mean for row in minutes) / len(minutes)
                    )


def test_another_driver_or_slice_is_another_row(file: Path) -> None:
    """Facts of before stay with the time they were true for; an index that changes does too."""
    slices = [
        facts(mig="3", profile="1g.18gb", share_ratio=1 / 7),
        facts(mig="3", profile="2g.35gb", share_ratio=2 / 7),
    ]
    write(file, [verdict(MONDAY + 5, gpu=gpu) for gpu in (facts(), facts(driver="580"), *slices)])
    shown = [(row.gpu.driver, row.gpu.mig, row.gpu.profile, row.gpu.share_ratio) for row in rows(file)]
    assert shown == [
        ("575.51.03", "", "", 1.0), ("580", "", "", 1.0),
        ("575.51.03", "3", "1g.18gb", 1 / 7), ("575.51.03", "3", "2g.35gb", 2 / 7),
    ]  # fmt: skip


def test_learnt_numbers_are_found_again(file: Path) -> None:
    """The newest of each stay."""
    database = opened(file)
    assert database.lessons() == {}
    database.write([], {("GPU-a", "", "context_ratio"): (0.2, 7), ("GPU-b", "", "context_ratio"): (0.1, 1)})
    database.write([], {("GPU-a", "", "context_ratio"): (0.3, 8)})
    database.close()
    database = opened(file)
    assert database.lessons() == {
        ("GPU-a", "", "context_ratio"): (0.3, 8),
        ("GPU-b", "", "context_ratio"): (0.1, 1),
    }
    database.close()


@pytest.mark.timeout(300)
def test_a_week_of_8_gpus_is_small(tmp_path: Path) -> None:
    """The share of half a day in 30 MiB for a week, with every signal read, two causes a minute and workloads."""
    file = tmp_path / "history.db"
    write(file, [each for verdicts in host(8, 720) for each in verdicts])
    assert file.stat().st_size <= WEEK_MIB * 2**20 * 720 / 10080
    assert len(rows(file, "minutes")) == 8 * 720


def hours_of(count: int) -> list:
    return [verdict(MONDAY + 3600 * hour + 60 * minute + 5) for hour in range(count) for minute in (0, 30)]


def tidied(file: Path, bounds: Bounds, now: float, steps: int) -> None:
    database = opened(file)
    for _ in range(steps):
        database.tidy(bounds, now)
    database.close()


def test_what_is_too_old_goes(file: Path) -> None:
    """Rows go an hour at a time once the whole hour is older than it may be; then there is nothing more to do."""
    write(file, hours_of(10))
    now = MONDAY + 10 * 3600
    tidied(file, Bounds(5 * 3600.0, 2**40), now, 1)
    assert len(rows(file, "hours")) == 9
    tidied(file, Bounds(5 * 3600.0, 2**40), now, 50)
    assert [row.start_unix for row in rows(file, "hours")] == [MONDAY + 3600 * hour for hour in range(5, 10)]
    assert len(rows(file, "minutes")) == len(rows(file, "workload_minutes")) == 10


def test_a_wrong_clock_costs_an_hour_a_step(file: Path) -> None:
    """A clock that is years ahead for a while, and one that is years behind, do not empty the file."""
    write(file, hours_of(10))
    bounds = Bounds(35 * DAY, 2**40)
    tidied(file, bounds, MONDAY + 4000 * DAY, 2)
    assert len(rows(file, "hours")) == 8
    tidied(file, bounds, 0.0, 50)
    assert len(rows(file, "hours")) == 8


def test_what_is_too_much_goes_minutes_first(tmp_path: Path, query) -> None:
    """The file shrinks to its bound: by the oldest minutes, while their hours stay; and in the end by hours too."""
    file = tmp_path / "history.db"
    write(file, [each for verdicts in host(8, 300) for each in verdicts])
    whole = file.stat().st_size
    tidied(file, Bounds(35 * DAY, whole // 2), MONDAY, 60)
    assert file.stat().st_size <= whole // 2
    assert len(rows(file, "hours")) == 8 * 5
    kept = rows(file, "minutes")
    assert 0 < len(kept) < 8 * 300
    assert kept[-1].start_unix == MONDAY + 299 * 60
    assert query(file, "PRAGMA integrity_check") == [("ok",)]
    tidied(file, Bounds(35 * DAY, 1), MONDAY, 60)
    assert rows(file, "hours") == rows(file, "minutes") == []
    assert file.stat().st_size < whole // 10


def test_names_go_with_their_rows(file: Path, query) -> None:
    """Workloads and GPUs that have no rows any more are forgotten, others are not."""
    old, new = Workload("slurm", "old"), Workload("slurm", "new")
    write(file, [verdict(MONDAY + 5, gpu=facts(1), workloads=(tenancy(old), tenancy(new)))])
    write(file, [verdict(MONDAY + 7205, workloads=(tenancy(new),))])
    tidied(file, Bounds(3600.0, 2**40), MONDAY + 3 * 3600, 5)
    assert query(file, "SELECT name FROM workload") == [("new",)]
    assert [each.index for each in Reader(file).facts()] == [0]


def test_facts_say_when_they_were_seen(file: Path) -> None:
    write(file, [verdict(MONDAY + 5), verdict(MONDAY + 7205), verdict(MONDAY - 5)])
    (seen,) = Reader(file).facts()
    assert (seen.first_unix, seen.last_unix) == (MONDAY - 3600, MONDAY + 7200)
    assert (seen.host, seen.source, seen.index) == ("h1", "live", 0)


def test_two_agents_do_not_share_a_file(file: Path) -> None:
    """The second one is told so, and may have the file when the first has let go of it."""
    first = opened(file)
    with pytest.raises(StoreError, match=r"in use by another agent: stop it, or give this one a store\.path"):
        opened(file)
    first.close()
    opened(file).close()


def test_a_write_is_all_or_nothing(file: Path) -> None:
    """A cell that cannot be written takes those of the same minute with it, and the file stays as it was."""
    minutes = Minutes(most_workloads=1)
    minutes.add(verdict(MONDAY + 5))
    cells = minutes.take()
    database = opened(file)
    with pytest.raises(OverflowError):
        database.write(
            [*cells, cells[0].__class__(2**70, *[getattr(cells[0], name) for name in cells[0].__slots__[1:]])]
        )
    database.write(cells)
    database.close()
    assert [row.time.observed for row in rows(file)] == [5.0]


@pytest.mark.parametrize(
    "name", ["half \ud800 of a pair", "x" * 5000, "nul \0 within", "'; DROP TABLE hour; --"]
)
def test_any_name_can_be_kept(file: Path, name: str) -> None:
    write(file, [verdict(MONDAY + 5, gpu=facts(model=name), workloads=(tenancy(Workload("process", name)),))])
    wanted = name.encode("utf-8", "replace").decode()
    assert rows(file, "workload_hours")[0].workload.name == wanted
    assert rows(file)[0].gpu.model == wanted


def test_a_file_of_version_1_is_read_and_gone_on_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version's file, as text, gives what was put in, and takes more."""
    file.parent.mkdir()
    with connection(file) as database:
        database.executescript(VERSION_1.read_text())
    before = rows(file, "hours")
    assert [(row.start_unix, row.time, row.energy_joules) for row in before] == [
        (MONDAY, split(10.0), 3000.0)
    ]
    assert before[0].signals["power_watts"].mean == pytest.approx(450.0)
    write(file, [verdict(MONDAY + 55)])
    assert rows(file, "hours")[0].time == split(15.0)


def later(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE learnt ADD COLUMN note TEXT")
    database.execute("UPDATE gpu SET model = 'renamed ' || model")


def failing(database: sqlite3.Connection) -> None:
    later(database)
    raise sqlite3.OperationalError("database or disk is full")


def test_an_older_file_is_migrated(file: Path, monkeypatch: pytest.MonkeyPatch, query) -> None:
    """One more version: the reader sees it at once without touching the file, the agent brings the file to it."""
    write(file, [verdict(MONDAY + 5)])
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, later))
    content = file.read_bytes()
    assert rows(file)[0].gpu.model == "renamed NVIDIA H200"
    assert file.read_bytes() == content
    assert query(file, "PRAGMA user_version") == [(1,)]
    opened(file).close()
    assert query(file, "PRAGMA user_version") == [(2,)]
    assert rows(file)[0].gpu.model == "renamed NVIDIA H200"


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch, query
) -> None:
    write(file, [verdict(MONDAY + 5)])
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, failing))
        with pytest.raises(StoreError, match="disk is full"):
            opened(file)
    assert query(file, "PRAGMA user_version") == [(1,)]
    assert rows(file)[0].gpu.model == "NVIDIA H200"


def test_a_signal_that_is_new_gets_its_columns(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of before have not read it; a row that was begun before weighs only what was read since."""
    write(file, [verdict(MONDAY + 5, signals={"fan_ratio": 0.5})])
    for module in ("schema", "minutes", "database", "reader"):
        monkeypatch.setattr(f"gpuwhy.store.{module}.KEPT", (*KEPT, Kept("fan_ratio", 1e-3)))
    assert "fan_ratio" not in rows(file)[0].signals
    from gpuwhy.store import database

    monkeypatch.setattr(database, "_ADD_GPU", database._add_gpu())
    write(file, [verdict(MONDAY + 15, 10.0, signals={"fan_ratio": 0.25})])
    assert rows(file)[0].signals["fan_ratio"].mean == pytest.approx(0.25)
    assert rows(file)[0].time.observed == 15.0


def test_what_is_not_ours_stays_as_it_is(tmp_path: Path) -> None:
    """A newer gpuwhy's file, and another program's database, are named and not touched."""
    newer, other = tmp_path / "newer.db", tmp_path / "other.db"
    write(newer, [verdict(MONDAY + 5)])
    with connection(newer) as database:
        database.execute("PRAGMA user_version = 99")
    with connection(other) as database:
        database.execute("CREATE TABLE mine(x)")
    for file, said in ((newer, "newer gpuwhy .version 99"), (other, "another program's database")):
        before = file.read_bytes()
        with pytest.raises(StoreError, match=said) as caught:
            opened(file)
        assert str(file) in str(caught.value)
        assert file.read_bytes() == before
        with pytest.raises(StoreError, match=f"{file}"):
            Reader(file)


def garbled(content: bytes, how: str) -> bytes:
    chance = random.Random(3)
    middle = len(content) // 2
    return {
        "text": b"this is no database\n" * 500,
        "header": b"\xff" * 100 + content[100:],
        "half": content[:middle],
        "middle": content[: middle - 4096] + chance.randbytes(8192) + content[middle + 4096 :],
        "zeros": b"\0" * len(content),
    }[how]


@pytest.mark.parametrize("how", ["text", "header", "half", "middle", "zeros"])
def test_a_damaged_file_is_noticed_when_it_is_opened(file: Path, how: str) -> None:
    """By whoever writes, and by whoever reads, at the latest when the rows are read."""
    write(file, [each for verdicts in host(4, 60) for each in verdicts])
    file.write_bytes(garbled(file.read_bytes(), how))
    with pytest.raises(DamagedError):
        opened(file)
    with pytest.raises(StoreError, match=f"{file}"):
        rows(file)


def test_a_damaged_file_is_kept_for_a_while(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is renamed with its log; of several, the newest few stay."""
    file.parent.mkdir()
    for number in range(CORRUPT_KEPT + 2):
        file.write_text(f"{number}")
        Path(f"{file}-wal").write_text("log")
        monkeypatch.setattr("time.strftime", lambda *_, number=number: f"2026120{number}T000000Z")
        aside = set_aside(file)
        assert aside.read_text() == f"{number}"
        assert not file.exists()
    names = sorted(each.name for each in file.parent.iterdir())
    assert names == [
        "history.db.corrupt-20261202T000000Z", "history.db.corrupt-20261202T000000Z-wal",
        "history.db.corrupt-20261203T000000Z", "history.db.corrupt-20261203T000000Z-wal",
    ]  # fmt: skip


def test_freed_room_is_given_back_by_the_file_system(file: Path, query) -> None:
    """The mode that this needs is set when a file is begun, since it cannot be set later."""
    write(file, [verdict(MONDAY + 5)])
    assert query(file, "PRAGMA auto_vacuum") == [(2,)]
    assert query(file, "PRAGMA journal_mode") == [("wal",)]
