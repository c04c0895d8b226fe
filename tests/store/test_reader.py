"""History read back: beside a running agent, from a copy, and what is said where it cannot be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpuwhy.sample import Workload
from gpuwhy.store import Reader, Span, StoreError, reader
from gpuwhy.store.database import Database
from gpuwhy.store.minutes import Minutes
from gpuwhy.verdict.types import NO_DATA

from .conftest import connection
from .made import LLAMA, MONDAY, facts, host, split, tenancy, verdict, write

FOREVER = (0, 2**40)


def test_rows_are_those_that_start_in_the_time_asked_for(file: Path) -> None:
    """The end is not in it; oldest first, and by GPU."""
    write(
        file, [verdict(MONDAY + 3600 * hour + 5, gpu=facts(index)) for hour in (2, 0, 1) for index in (1, 0)]
    )
    with Reader(file) as history:
        found = [(row.start_unix, row.gpu.index) for row in history.hours(MONDAY, MONDAY + 7200)]
        assert sorted(found) == [(MONDAY + 3600 * hour, index) for hour in (0, 1) for index in (0, 1)]
        assert [start for start, _ in found] == sorted(start for start, _ in found)
        assert list(history.minutes(MONDAY + 1, MONDAY + 3600)) == []
        assert list(history.hours(MONDAY + 7200, MONDAY)) == []


def test_it_reads_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the pieces and the gaps, each row comes once."""
    write(file, [verdict(MONDAY + 60 * number + 5) for number in (0, 1, 2, 50, 51, 100_000)])
    with Reader(file) as history:
        whole = list(history.minutes(*FOREVER))
        for size in (1, 2, 3, 51):
            monkeypatch.setattr(reader, "CHUNK_ROWS", size)
            assert list(history.minutes(*FOREVER)) == whole
        assert len(whole) == len(list(history.workload_minutes(*FOREVER))) == 6


def test_span_and_facts(file: Path) -> None:
    write(file, [])
    with Reader(file) as history:
        assert history.span() is None
        assert history.facts() == ()
    write(file, [verdict(MONDAY + 3665, gpu=facts(1)), verdict(MONDAY + 9000)])
    with connection(file) as other:
        other.execute(f"DELETE FROM minute WHERE start < {MONDAY + 7200}")
    with Reader(file) as history:
        assert history.span() == Span(MONDAY + 3600, MONDAY + 8940, MONDAY + 9000)
        assert [each.index for each in history.facts()] == [0, 1]
    with connection(file) as other:
        other.execute("DELETE FROM minute")
    with Reader(file) as history:
        assert history.span() == Span(MONDAY + 3600, MONDAY + 10800, MONDAY + 10800)


def test_a_workloads_part_is_of_what_was_read(file: Path) -> None:
    """Half the readings of a minute that had readings for half of it; and none where nothing was read."""
    time = split(60.0, verdict={("starving", "copy"): 30.0, NO_DATA: 30.0})
    part = tenancy(LLAMA, split(15.0))
    none = split(60.0, verdict={NO_DATA: 60.0}, useful=0.0, lost={}, measured=0.0)
    zero = tenancy(Workload("slurm", "x"), split(0.0))
    write(
        file,
        [
            verdict(MONDAY + 60, 60.0, time=time, workloads=(part,)),
            verdict(MONDAY + 120, 60.0, time=none, workloads=(zero,)),
        ],
    )
    with Reader(file) as history:
        assert [(row.workload.name, row.ratio) for row in history.workload_minutes(*FOREVER)] == [
            ("llama", 0.5),
            ("x", 0.0),
        ]


def test_it_reads_while_an_agent_writes(file: Path) -> None:
    """What was committed is seen, also by an iterator that was begun before; and the writer is not held up."""
    database = Database(file, host="h1", source="live")
    minutes = Minutes(most_workloads=1)

    def add(number: int) -> None:
        minutes.add(verdict(MONDAY + 60 * number + 5))
        database.write(minutes.take())

    add(0)
    with Reader(file) as history:
        rows = history.minutes(*FOREVER)
        assert next(rows).start_unix == MONDAY
        for number in range(1, 400):
            add(number)
        assert len(list(history.minutes(*FOREVER))) == 400
        assert len(list(rows)) == 400 - reader.CHUNK_ROWS
    database.close()


def test_a_copy_can_be_read(file: Path, tmp_path: Path) -> None:
    """Of a file that was closed, and of one that is open where its log is copied with it."""
    database = Database(file, host="h1", source="live")
    minutes = Minutes(most_workloads=1)
    minutes.add(verdict(MONDAY + 5))
    database.write(minutes.take())
    for side in ("", "-wal"):
        shutil.copy(f"{file}{side}", tmp_path / f"copy # of 100%{side}")
    database.close()
    shutil.copy(file, tmp_path / "closed")
    for name in ("copy # of 100%", "closed"):
        with Reader(tmp_path / name) as history:
            assert len(list(history.hours(*FOREVER))) == 1


NOBODY = 65534


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user; remedy: run this test as root"
)
def test_another_user_can_read_it(file: Path) -> None:
    """In a folder that it may not write to: after a good end, and while the agent runs; but no secret file."""

    def alone(path: Path) -> str:
        # A new process would have to reach the interpreter, which may lie where others may not look.
        read, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write_end, 1)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                with Reader(path) as history:
                    text = str(len(list(history.hours(*FOREVER))))
            except StoreError as error:
                text = str(error)
            os.write(1, text.encode())
            os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        with os.fdopen(read) as stream:
            return stream.read()

    write(file, [verdict(MONDAY + 5)])
    for folder in (file.parent, *file.parents[1:4]):
        folder.chmod(0o755)
    assert alone(file) == "1"
    database = Database(file, host="h1", source="live")
    minutes = Minutes(most_workloads=1)
    minutes.add(verdict(MONDAY + 3605))
    database.write(minutes.take())
    assert alone(file) == "2"
    database.close()
    file.chmod(0o600)
    assert "let this user read it" in alone(file)


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"absent\.db does not exist: let the agent run for a while"):
        Reader(tmp_path / "absent.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="holds nothing yet"):
        Reader(tmp_path / "empty.db")
    with pytest.raises(StoreError, match=f"{tmp_path} is a folder: name the file in it"):
        Reader(tmp_path)


def test_what_others_hold_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a program has to itself cannot be read meanwhile."""
    write(file, [verdict(MONDAY + 5)])
    monkeypatch.setattr(reader, "BUSY_S", 0.05)
    with connection(file) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked: another program holds it"):
            list(Reader(file).hours(*FOREVER))


def test_a_month_of_hours_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Each of 35 days' hours of 8 GPUs is there, with its signals and its workload."""
    file = tmp_path / "history.db"
    write(
        file,
        (
            each
            for hour in range(0, 35 * 24, 5)
            for each in next(host(8, 1, start_unix=MONDAY + 3600 * hour, seed=hour))
        ),
    )
    with Reader(file) as history:
        hours, held = list(history.hours(*FOREVER)), list(history.workload_hours(*FOREVER))
    assert len(hours) == len(held) == 8 * 168
    assert all(len(row.signals) == len(hours[0].signals) for row in hours)
    assert {row.workload.name for row in held} == {f"train-{index}" for index in range(8)}
