"""The last hours of each GPU: bounded, in order, and handed out without what was seen before."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpuwhy.exporter.strips import CODE, DRAWN, MOST_ROWS, RECENT_S, SPAN_S, Strips
from gpuwhy.verdict.now import Now

Make = Callable[..., Any]
START = 1_800_000_000.0


def at(verdict: Any, number: int, seconds: float = 5.0, **changes: Any) -> Any:
    """The verdict as that of the interval of this number."""
    end = number * seconds
    return dataclasses.replace(verdict, start_s=end - seconds, end_s=end, unix_end_s=START + end, **changes)


def rows(strips: Strips, key: Any, serial: int = 0) -> list[list[float]]:
    return [msgspec.json.decode(row) for row in strips.newer(serial)[1][key].rows]


def test_row_holds_when_what_and_the_drawn_signals(judge: Make) -> None:
    """A row says when an interval ended, how long it was, what it was, and each drawn signal in its unit."""
    signals = {
        "sm_active_ratio": 0.1234,
        "power_watts": 412.6,
        "sm_clock_hertz": 1.98e9,
        "dram_active_ratio": math.nan,
    }
    verdict = at(judge(), 1, signals=signals)
    strips = Strips()
    strips.add([verdict], {})
    (row,) = rows(strips, verdict.gpu.key)
    assert row[:4] == [1, START + 5, 5.0, CODE["starving", "copy"]]
    named = dict(zip((drawn.signal for drawn in DRAWN), row[4:], strict=True))
    assert {name: value for name, value in named.items() if value is not None} == {
        "sm_active_ratio": 12.3,
        "power_watts": 413,
        "sm_clock_hertz": 1980,
    }


def test_only_newer_rows_are_handed_out(judge: Make, facts: Make) -> None:
    """Serials grow over all GPUs, and what was seen up to one is not sent again."""
    strips = Strips()
    one, two = judge(facts(0)), judge(facts(1))
    strips.add([at(one, 1), at(two, 1)], {})
    seen, _ = strips.newer()
    assert seen == 2
    strips.add([at(two, 2)], {})
    assert rows(strips, one.gpu.key, seen) == []
    assert [row[0] for row in rows(strips, two.gpu.key, seen)] == [3]
    assert len(rows(strips, two.gpu.key)) == 2


@pytest.mark.parametrize("seconds", [1.0, 5.0, 30.0, 60.0])
def test_four_hours_are_kept_at_any_interval(judge: Make, seconds: float) -> None:
    """Rows older than that go; the newest minutes have one for each interval, and none is lost on the way."""
    strips, verdict = Strips(), judge()
    for number in range(1, int(SPAN_S / seconds) + 700):
        strips.add([at(verdict, number, seconds)], {})
    kept = rows(strips, verdict.gpu.key)
    assert SPAN_S - 60 <= kept[-1][1] - kept[0][1] <= SPAN_S
    assert len(kept) <= MOST_ROWS
    assert sum(row[2] for row in kept) == pytest.approx(kept[-1][1] - kept[0][1] + kept[0][2])
    assert [row[2] for row in kept[-4:]] == [seconds] * 4


def test_older_rows_are_made_one(judge: Make) -> None:
    """One row of half a minute has the verdict with most seconds, and means over what was read."""
    strips = Strips()
    said = ["starving/copy"] * 2 + ["healthy/compute"] * 4
    for number, name in enumerate(said, 1):
        signals = {"sm_active_ratio": number / 10} if number != 6 else {}
        strips.add([at(judge(None, *name.split("/"), signals=signals), number)], {})
    for number in range(7, 7 + int(RECENT_S / 5)):
        strips.add([at(judge(), number)], {})
    merged = rows(strips, judge().gpu.key)[0]
    # The sixth ends with the half minute, and belongs to the next one.
    assert merged[:4] == [5, START + 25, 25.0, CODE["healthy", "compute"]]
    place = [drawn.signal for drawn in DRAWN].index("sm_active_ratio")
    assert merged[4 + place] == 30.0
    for number in (55, 56):
        strips.add([at(judge(), number)], {})
    assert rows(strips, judge().gpu.key)[1][:3] == [7, START + 35, 10.0]


def test_rows_with_a_gap_between_stay_apart(judge: Make) -> None:
    """Time that nobody watched is not drawn over."""
    strips, verdict = Strips(), judge()
    for number in (1, 4, 100):
        strips.add([at(verdict, number)], {})
    assert [row[1:3] for row in rows(strips, verdict.gpu.key)] == [
        [START + 5, 5.0],
        [START + 20, 5.0],
        [START + 500, 5.0],
    ]


def test_fast_replay_is_bounded_too(judge: Make) -> None:
    """Many intervals in little time are no more rows than any others."""
    strips, verdict = Strips(), judge()
    for number in range(1, 5000):
        strips.add([at(verdict, number, 0.1)], {})
    assert len(rows(strips, verdict.gpu.key)) <= MOST_ROWS


def test_after_a_pause_the_missing_rows_come(judge: Make) -> None:
    """Whoever has not asked for long gets what is newer, with the older of it made fewer."""
    strips, verdict = Strips(), judge()
    for number in range(1, 301):
        strips.add([at(verdict, number)], {})
    later = rows(strips, verdict.gpu.key, 100)
    assert later[0][0] > 100
    assert later[0][1] - later[0][2] <= START + 100 * 5
    assert later[-1][0] == 300


def test_eight_gpus_stay_below_a_mebibyte(judge: Make, facts: Make) -> None:
    """Four full hours of eight GPUs with every signal read, at an interval of a second."""
    signals = {drawn.signal: 123.456 if drawn.digits != 1 else 0.98765 for drawn in DRAWN} | {
        "sm_clock_hertz": 1.98e9
    }
    made = [judge(facts(index), signals=signals) for index in range(8)]
    tracemalloc.start()
    try:
        strips = Strips()
        for number in range(1, int(SPAN_S / 30) + 1):
            strips.add([at(verdict, number, 30.0) for verdict in made], {})
        for number in range(int(SPAN_S) + 1, int(SPAN_S) + 400):
            strips.add([at(verdict, number, 1.0) for verdict in made], {})
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(strip.rows) > MOST_ROWS - 10 for strip in strips.newer()[1].values())
    assert used < 2**20


def test_change_is_dated_to_its_first_interval(judge: Make) -> None:
    """What is shown follows two agreeing intervals; since when it holds is the start of the first of them."""
    strips, now = Strips(), Now()
    said = ["starving/copy"] * 3 + ["healthy/compute"] * 3
    since = []
    for number, name in enumerate(said, 1):
        verdict = at(judge(None, *name.split("/")), number)
        strips.add([verdict], {verdict.gpu.key: now.update(verdict)})
        since.append(strips.newer()[1][verdict.gpu.key].since_s - START)
    assert since == [0.0, 0.0, 0.0, 0.0, 15.0, 15.0]


def test_fast_replay_does_not_overlap(judge: Make) -> None:
    """An interval is drawn no longer than the time since the one before, as when a recording runs faster."""
    strips = Strips()
    verdict = judge()
    strips.add([at(verdict, 1)], {})
    strips.add([dataclasses.replace(at(verdict, 2), unix_end_s=START + 6)], {})
    assert [row[2] for row in rows(strips, verdict.gpu.key)] == [5.0, 1.0]


def test_forgotten_gpu_is_gone(judge: Make) -> None:
    """A GPU that was retired has no strip; one that was never seen may be forgotten too."""
    strips = Strips()
    verdict = at(judge(), 1)
    strips.add([verdict], {})
    strips.forget(verdict.gpu.key)
    strips.forget(("no", "such"))
    assert strips.newer()[1] == {}
