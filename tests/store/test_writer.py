"""History under faults: the disk, the file, other programs and the clock; and that nobody waits for it."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwhy.store import Reader, StoreError, Writer, writer
from gpuwhy.store import database as database_module
from gpuwhy.store.database import Bounds, Database

from .conftest import connection
from .made import MONDAY, verdict, write

FOREVER = (0, 2**40)
BOUNDS = Bounds(35 * 86400.0, 2**30)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Trouble is tried again at once, and everything that is said is heard."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(writer, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(writer, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(database_module, "BUSY_S", 0.05)


@contextlib.contextmanager
def writing(place: Path | Callable[[], Path]) -> Iterator[Writer]:
    made = Writer(
        place if callable(place) else lambda: place, BOUNDS, host="h1", clock=lambda: MONDAY + 86400.0
    )
    made._wait_s = writer.FIRST_WAIT_S
    made.start()
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def minute(number: int, **changes) -> list:
    return [verdict(MONDAY + 60 * number + 5, **changes)]


def starts(file: Path) -> list[int]:
    with Reader(file) as history:
        return [(row.start_unix - MONDAY) // 60 for row in history.minutes(*FOREVER)]


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_a_minute_is_written_when_it_is_over(file: Path) -> None:
    """And the one in progress at the end."""
    with writing(file) as kept:
        until(lambda: kept.state().up)
        kept.credit(minute(0))
        kept.credit(minute(1))
        until(lambda: starts(file) == [0])
        assert kept.state() == writer.WriterState(up=True, dropped_s=0.0)
    assert starts(file) == [0, 1]


def test_a_clock_that_jumps_keeps_every_second(file: Path) -> None:
    with writing(file) as kept:
        for number in (5, 6, 2, 3, 2000, 6, 7):
            kept.credit(minute(number))
    with Reader(file) as history:
        seconds = {(row.start_unix - MONDAY) // 60: row.time.observed for row in history.minutes(*FOREVER)}
    assert seconds == {2: 5.0, 3: 5.0, 5: 5.0, 6: 10.0, 7: 5.0, 2000: 5.0}


def test_learnt_numbers_come_back_once(file: Path) -> None:
    """They are found when the file is opened, and handed out one time."""
    numbers = {("GPU-a", "", "context_ratio"): (0.2, 7)}
    with writing(file) as kept:
        kept.keep(numbers)
    with writing(file) as kept:
        until(lambda: kept.state().up)
        assert kept.found() == numbers
        assert kept.found() is None


def test_a_file_that_others_lock_is_waited_for(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another program's transaction costs nothing but time, and is said once; that it is kept, only when it is."""
    write(file, [])
    caplog.set_level(logging.INFO)
    with writing(file) as kept, connection(file) as other:
        until(lambda: kept.state().up)
        other.execute("BEGIN IMMEDIATE")
        for number in range(5):
            kept.credit(minute(number))
        until(lambda: not kept.state().up)
        time.sleep(0.5)
        other.execute("ROLLBACK")
        until(lambda: kept.state().up)
    assert starts(file) == [0, 1, 2, 3, 4]
    assert said(caplog, "database is locked: another program holds it") == 1
    assert said(caplog, "history: kept in") == 2
    assert kept.state().dropped_s == 0


def test_another_agents_file_is_waited_for(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Database(file, host="h2", source="live")
    with writing(file) as kept:
        kept.credit(minute(0))
        until(lambda: said(caplog, "in use by another agent"))
        assert not kept.state().up
        first.close()
        until(lambda: kept.state().up)
    assert starts(file) == [0]


def test_a_folder_that_cannot_be_made_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While there is none the agent goes on; when there is one, what was kept in memory is written."""
    folder = tmp_path / "state"
    folder.write_text("in the way")
    with writing(folder / "history.db") as kept:
        for number in range(3):
            kept.credit(minute(number))
        until(lambda: said(caplog, "history is not kept for now"))
        folder.unlink()
        until(lambda: kept.state().up)
    assert starts(folder / "history.db") == [0, 1, 2]
    assert said(caplog, "history is not kept for now") == 1
    assert said(caplog, "store.path") == 1


def test_no_place_at_all_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def nowhere() -> Path:
        raise StoreError("no folder for history")

    with writing(nowhere) as kept:
        kept.credit(minute(0))
        time.sleep(0.3)
    assert said(caplog, "no folder for history") == 1
    assert said(caplog, "5 GPU-seconds could not be written before the end") == 1


def test_a_newer_file_is_left_alone(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(file, minute(0))
    with connection(file) as other:
        other.execute("PRAGMA user_version = 99")
    content = file.read_bytes()
    with writing(file) as kept:
        kept.credit(minute(1))
        until(lambda: said(caplog, "newer gpuwhy"))
        assert not kept.state().up
    assert file.read_bytes() == content
    assert [each.name for each in file.parent.iterdir() if "corrupt" in each.name] == []


def test_a_damaged_file_is_set_aside(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that was read after it is lost, and what it held can still be looked at."""
    file.parent.mkdir()
    file.write_bytes(b"no database" * 1000)
    with writing(file) as kept:
        kept.credit(minute(0))
        until(lambda: kept.state().up)
    assert starts(file) == [0]
    (aside,) = file.parent.glob("history.db.corrupt-*")
    assert aside.read_bytes() == b"no database" * 1000
    assert (
        said(caplog, f"is damaged (file is not a database): it is now {aside}, and a new one is begun") == 1
    )


def test_damage_under_a_running_agent_is_set_aside(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written because of it goes into the new file."""
    write(file, minute(0))
    real, hits = Database.write, []

    def damaged(self: Database, *arguments: object) -> None:
        if not hits:
            hits.append(1)
            # As large as it was, and of no use.
            size = file.stat().st_size
            with file.open("r+b") as stream:
                stream.write(b"\xaa" * size)
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.execute("PRAGMA shrink_memory")
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", damaged)
    with writing(file) as kept:
        until(lambda: kept.state().up)
        kept.credit(minute(1))
        kept.credit(minute(2))
    assert starts(file) == [1, 2]
    assert len(list(file.parent.glob("history.db.corrupt-*"))) == 1
    assert said(caplog, "is damaged") == 1


@pytest.mark.parametrize("how", ["unlink", "replace"])
def test_a_file_that_is_removed_is_begun_anew(file: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where another file was put in its place, which is then gone on with."""
    other = file.with_name("other.db")
    write(other, minute(100))
    with writing(file) as kept:
        kept.credit(minute(0))
        kept.credit(minute(1))
        until(lambda: kept.state().up and starts(file) == [0])
        if how == "unlink":
            file.unlink()
        else:
            other.rename(file)
        kept.credit(minute(2))
    assert starts(file) == {"unlink": [1, 2], "replace": [1, 2, 100]}[how]
    assert said(caplog, "was removed or replaced") == 1


def test_what_is_too_much_to_keep_goes_and_is_counted(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a trouble that lasts, the newest minutes stay in memory; the others are counted in seconds of GPUs."""
    monkeypatch.setattr(writer, "MOST_CELLS", 6)
    file.parent.mkdir()
    blocked = file.parent / "history.db.lock"
    blocked.mkdir()
    with writing(file) as kept:
        for number in range(11):
            kept.credit(minute(number))
        until(lambda: kept.state().dropped_s == 7 * 5.0)
        blocked.rmdir()
        until(lambda: kept.state().up)
    assert starts(file) == [7, 8, 9, 10]
    assert kept.state().dropped_s == 35.0


def test_a_disk_that_hangs_holds_nobody_up(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Intervals are handed over at once while a write hangs; the oldest go; the end does not wait for long."""
    free, hung = threading.Event(), threading.Event()
    real = Database.write

    def hang(self: Database, *arguments: object) -> None:
        hung.set()
        assert free.wait(60)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", hang)
    monkeypatch.setattr(writer, "CLOSE_S", 0.2)
    with writing(file) as kept:
        kept.credit(minute(0))
        kept.credit(minute(1))
        assert hung.wait(20)
        for number in range(2, 2 + writer.MOST_QUEUED + 10):
            kept.credit(minute(number))
        assert kept.state().dropped_s == 10 * 5.0
    assert said(caplog, "its disk does not answer") == 1
    free.set()
    kept._thread.join(30)
    assert starts(file) == [0, 1, *range(13, 2 + writer.MOST_QUEUED + 10)]


def test_a_mistake_costs_its_interval_only(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Something that no stage should hand over is logged, and history goes on."""
    with writing(file) as kept:
        kept.credit([None])  # type: ignore[list-item]
        kept.credit(minute(1))
    assert starts(file) == [1]
    assert said(caplog, "an error in gpuwhy") == 1


def test_a_verdict_without_a_time_is_counted(file: Path) -> None:
    with writing(file) as kept:
        kept.credit(minute(0, end_s=float("nan")))
        kept.credit(minute(1))
    assert kept.state().dropped_s == 5.0
    assert starts(file) == [1]


def test_one_that_was_never_started_can_be_closed(file: Path) -> None:
    Writer(lambda: file, BOUNDS, host="h1").close()
    assert not file.exists()


def script(body: str, file: Path) -> subprocess.Popen[str]:
    """Another process that keeps history in a file; what it prints can be waited for."""
    head = f"""
import sys, time, resource, signal
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from made import MONDAY, host, verdict
from gpuwhy.store import writer
from gpuwhy.store.writer import Bounds, Writer
writer.FIRST_WAIT_S = writer.LONGEST_WAIT_S = 0.02
kept = Writer(lambda: Path({str(file)!r}), Bounds(1e9, 2**40), host="h1", clock=lambda: MONDAY)
kept._wait_s = 0.02
"""
    return subprocess.Popen(
        [sys.executable, "-c", head + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_killed_agent_loses_the_minute_in_progress_at_most(file: Path, query) -> None:
    """Killed while it writes as fast as it can, three times over: all that was written is there, and whole."""
    written = -1
    for _ in range(3):
        body = f"""
kept.start()
for number, verdicts in enumerate(host(4, 100000, start_unix=MONDAY + 60 * {written + 1})):
    kept.credit(verdicts)
    while kept._queue.qsize():
        time.sleep(0.0005)
    if number % 12 == 0 and number:
        while kept._cells or kept._queue.qsize():
            time.sleep(0.0005)
        print({written + 1} + number // 12 - 1, flush=True)
"""
        process = script(body, file)
        assert process.stdout is not None
        for _ in range(5):
            written = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert query(file, "PRAGMA integrity_check") == [("ok",)]
        with Reader(file) as history:
            found: dict[int, float] = {}
            for row in history.minutes(*FOREVER):
                at = (row.start_unix - MONDAY) // 60
                found[at] = found.get(at, 0.0) + row.time.observed
        # The interval that ends a minute is only handed over when the next begins, so it may be short of one.
        assert all(found[at] == pytest.approx(240.0, abs=21) for at in range(written))
        written = max(found)


def test_a_full_disk_is_survived(file: Path) -> None:
    """A file that may not grow, as on a full disk: it is said, minutes wait, and are written when there is room."""
    body = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
kept.start()
made = host(4, 60)
for _ in range(12 * 10):
    kept.credit(next(made))
    time.sleep(0.002)
while kept._queue.qsize():
    time.sleep(0.01)
assert kept.state().up
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, hard))
for verdicts in made:
    kept.credit(verdicts)
    time.sleep(0.002)
while kept._queue.qsize():
    time.sleep(0.01)
print(kept.state().up, kept.state().dropped_s, len(kept._cells) > 100, kept._trouble, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
while not kept.state().up:
    time.sleep(0.01)
kept.close()
print(kept.state())
"""
    out, err = script(body, file).communicate(timeout=100)
    first, last = out.splitlines()
    assert first.startswith("False 0.0 True "), err
    assert "look for a full file system" in first or "make room on its file system" in first
    assert last == "WriterState(up=False, dropped_s=0.0)"
    assert "Traceback" not in err
    with Reader(file) as history:
        rows = list(history.minutes(*FOREVER))
    assert sum(row.time.observed for row in rows) == pytest.approx(4 * 3600.0)
