"""A slow reader costs nobody but itself: what it said last stands, hangs and failures are said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuwhy.source import SourceError
from gpuwhy.workload import refreshed
from gpuwhy.workload.refreshed import HANGS_S, KEPT_S, Refreshed


class Slow:
    """A reader that does what it is told."""

    name = "kubelet"
    trouble = ""

    def __init__(self) -> None:
        self.here = True
        self.answer: Any = "table"
        self.free = threading.Event()
        self.free.set()
        self.asked = 0

    def present(self) -> bool:
        return self.here

    def read(self) -> Any:
        self.asked += 1
        self.free.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.free.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(slow: Slow, clock: Clock) -> Refreshed:
    return Refreshed(slow, "nothing", clock=clock)


def test_what_was_read_stands(kept: Refreshed, slow: Slow) -> None:
    assert (kept.value, kept.state().used) == ("nothing", False)
    kept.refresh()
    assert (kept.value, kept.state().up, kept.state().used) == ("table", True, True)


def test_what_was_never_here_is_no_fault(
    kept: Refreshed, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """A host without a kubelet is told nothing."""
    slow.here = False
    for _ in range(3):
        kept.refresh()
    assert (kept.value, kept.state().used, kept.state().up) == ("nothing", False, False)
    assert not caplog.text


def test_what_goes_is_missed_for_a_while(kept: Refreshed, slow: Slow, clock: Clock) -> None:
    """A kubelet that restarts takes its socket along: what it said stands, and that it is gone is seen. One
    that stays away is not this host's any more.
    """
    kept.refresh()
    slow.here = False
    clock.now_s += KEPT_S
    kept.refresh()
    assert (kept.value, kept.state().used, kept.state().up) == ("table", True, False)
    assert "gone" in kept.state().reason
    clock.now_s += 1
    kept.refresh()
    assert (kept.value, kept.state().used) == ("nothing", False)


def test_a_failure_is_said_once_and_forgotten_late(
    kept: Refreshed, slow: Slow, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What was said stands over a restart; the reason is logged once, the return too."""
    kept.refresh()
    slow.answer = SourceError("socket: refused; is the kubelet up?")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now_s += KEPT_S / 3
            kept.refresh()
        assert kept.value == "table"
        assert kept.state().reason == "socket: refused; is the kubelet up?"
        assert caplog.text.count("refused") == 1
        clock.now_s += 1
        kept.refresh()
        assert kept.value == "nothing"
        slow.answer = "again"
        kept.refresh()
    assert (kept.value, kept.state().up) == ("again", True)
    assert caplog.text.count("answers again") == 1


def test_what_a_table_lacks_is_said_once(
    kept: Refreshed, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that answers and lacks something is up, with its reason."""
    slow.trouble = "scontrol: no answer; jobs are named by their environment"
    kept.refresh()
    kept.refresh()
    assert (kept.state().up, kept.state().reason) == (True, slow.trouble)
    assert caplog.text.count("no answer") == 1


def test_a_fault_of_ours_is_a_failure(kept: Refreshed, slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    slow.answer = ZeroDivisionError("oops")
    kept.refresh()
    assert not kept.state().up
    assert "please report" in caplog.text


def test_one_that_hangs_is_said_to(kept: Refreshed, slow: Slow, clock: Clock) -> None:
    """While a read hangs, what it said before stands, and after half a minute it is down."""
    kept.refresh()
    slow.free.clear()
    kept.start()
    while slow.asked < 2:
        pass
    assert kept.state().up
    clock.now_s += HANGS_S + 1
    assert not kept.state().up
    assert "has not answered for 31 s" in kept.state().reason
    assert kept.value == "table"
    clock.now_s += KEPT_S
    assert kept.value == "nothing"
    slow.free.set()
    kept.stop()
    kept.join(5)


def test_it_reads_again_when_hastened(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """News make it read at once, though no oftener than allowed."""
    monkeypatch.setattr(refreshed, "LEAST_S", 0.05)
    kept = Refreshed(slow, "nothing")
    kept.start()
    _until(lambda: kept.value == "table")
    slow.answer = "more"
    kept.hasten()
    _until(lambda: kept.value == "more")
    kept.stop()
    kept.join(5)
    assert slow.asked == 2


def test_the_same_again_is_no_news(kept: Refreshed, slow: Slow) -> None:
    """Whoever holds the table sees by it that nothing has changed."""
    slow.answer = {"a": 1}
    kept.refresh()
    before = kept.value
    slow.answer = {"a": 1}
    kept.refresh()
    assert kept.value is before
    slow.answer = {"a": 2}
    kept.refresh()
    assert kept.value is not before


def test_it_does_not_spin(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is hastened, there is a pause between two reads."""
    monkeypatch.setattr(refreshed, "LEAST_S", 0.2)
    kept = Refreshed(slow, "nothing")
    kept.start()
    _until(lambda: slow.asked == 1)
    for _ in range(20):
        kept.hasten()
        threading.Event().wait(0.01)
    assert slow.asked <= 2
    kept.stop()
    kept.join(5)


def test_what_programs_say_is_one_line_of_the_log(
    kept: Refreshed, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a second line nor a colour can be forged, and no reason fills the log."""
    slow.answer = SourceError("scontrol: \x1b[31mno\nWARNING forged " + "x" * 9000)
    kept.refresh()
    slow.answer, slow.trouble = "table", "a\nb"
    kept.refresh()
    assert all(
        "\x1b" not in record.getMessage() and "\n" not in record.getMessage() for record in caplog.records
    )
    assert max(len(record.getMessage()) for record in caplog.records) < 600


def _until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")
