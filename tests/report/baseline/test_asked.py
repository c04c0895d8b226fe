"""Windows and progress figures as they are written on the command line."""

from __future__ import annotations

from datetime import timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuwhy.report.baseline import asked
from gpuwhy.report.baseline.types import AskedError, Choice

UTC = timezone.utc
NOW = 1_700_003_600.0


@pytest.mark.parametrize(
    ("begin", "end", "last", "window"),
    [
        ("", "", "", None),
        ("", "", "15m", (NOW - 900, NOW)),
        ("", "", "1.5h", (NOW - 5400, NOW)),
        ("1700000000", "1700000900", "", (1_700_000_000, 1_700_000_900)),
        ("2023-11-14T22:13:20", "", "", (1_700_000_000, NOW)),
        ("2023-11-14T22:13:20Z", "2023-11-14T23:28:20+01:00", "", (1_700_000_000, 1_700_000_900)),
        ("1700000000", "1800000000", "", (1_700_000_000, NOW)),
    ],
)
def test_windows(begin: str, end: str, last: str, window: tuple[float, float] | None) -> None:
    """Times with and without an offset, unix seconds, lengths; nothing lies in the future."""
    assert asked.window(begin, end, last, UTC, NOW) == window


def test_times_are_of_the_zone() -> None:
    """A time without an offset is the zone's own."""
    assert asked.moment("--from", "2023-11-14T23:13:20", ZoneInfo("Europe/Berlin")) == 1_700_000_000


@pytest.mark.parametrize(
    ("begin", "end", "last", "words"),
    [
        ("", "", "15", "15m"),
        ("", "", "0m", "15m"),
        ("", "", "-5m", "15m"),
        ("1700000000", "", "5m", "--last ends now"),
        ("", "1700000000", "", "--from"),
        ("yesterday", "", "", "2026-11-30T14:00"),
        ("1700000900", "1700000000", "", "not before"),
        ("1800000000", "", "", "not before now"),
        ("99999-01-01", "", "", "is no time"),
    ],
)
def test_what_is_no_window(begin: str, end: str, last: str, words: str) -> None:
    """The error says what can be written."""
    with pytest.raises(AskedError, match=words):
        asked.window(begin, end, last, UTC, NOW)


@pytest.mark.parametrize(
    ("text", "name", "values", "higher"),
    [
        ("items_per_second=1234", "items_per_second", (1234.0,), True),
        ("p99_latency_seconds=0.052,0.050,0.055", "p99_latency_seconds", (0.052, 0.05, 0.055), False),
        ("p99_ms=5", "p99_ms", (5.0,), False),
        ("loss=2.5", "loss", (2.5,), False),
        ("batch=3:better=lower", "batch", (3.0,), False),
        ("time_seconds=3:better=higher", "time_seconds", (3.0,), True),
        ("tokens.per-second=1e4", "tokens.per-second", (1e4,), True),
    ],
)
def test_progress(text: str, name: str, values: tuple[float, ...], higher: bool) -> None:
    """One value or several; which way is better is said, or goes by the name."""
    (found,) = asked.progress([text])
    assert (found.name, found.values, found.higher_is_better) == (name, values, higher)


@pytest.mark.parametrize(
    "text",
    [
        "items",
        "items=",
        "=3",
        "items=a",
        "items=1,,2",
        "items=nan",
        "items=inf",
        "items=-1",
        "a=1:better=more",
    ],
)
def test_what_is_no_progress(text: str) -> None:
    """The error shows how it is written."""
    with pytest.raises(AskedError, match="NAME=VALUE"):
        asked.progress([text])


def test_progress_is_given_once() -> None:
    """Two of one name are a mistake."""
    with pytest.raises(AskedError, match="twice"):
        asked.progress(["a=1", "a=2"])


def flags(**given: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "seconds": None,
        "last": "",
        "begin": "",
        "end": "",
        "replay": None,
        "gpus": (),
        "hosts": (),
        "workload": "",
        "progress": (),
    }
    return {**known, **given}


def test_one_window() -> None:
    """Live, history and a recording exclude each other; a source of history needs a window."""
    assert asked.parse(flags(seconds=60.0), UTC, NOW, history=False).seconds == 60.0
    assert asked.parse(flags(last="5m"), UTC, NOW, history=True).span == (NOW - 300, NOW)
    with pytest.raises(AskedError, match="one window"):
        asked.parse(flags(seconds=60.0, last="5m"), UTC, NOW, history=False)
    with pytest.raises(AskedError, match="--source is history"):
        asked.parse(flags(), UTC, NOW, history=True)


@pytest.mark.parametrize(
    ("choice", "takes"),
    [
        (Choice(), True),
        (Choice(gpus=("0",)), True),
        (Choice(gpus=("GPU-0",)), True),
        (Choice(gpus=("1", "GPU-1")), False),
        (Choice(hosts=("h1", "h2")), True),
        (Choice(hosts=("h3",)), False),
    ],
)
def test_choice(choice: Choice, takes: bool) -> None:
    """By index or UUID, and by host."""
    assert choice.takes("h1", 0, "GPU-0") is takes


def test_choice_of_a_workload() -> None:
    """By its name, with or without its namespace."""
    assert Choice(workload="llama").is_of("llama", "ml")
    assert Choice(workload="ml/llama").is_of("llama", "ml")
    assert not Choice(workload="ml/llama").is_of("llama", "prod")
