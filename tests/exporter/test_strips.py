"""The last hour of each GPU: bounded, in order, and handed out without what was seen before."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec

from gpuwhy.exporter.strips import CODE, DRAWN, MOST_ROWS, Strips
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


def test_an_hour_is_kept_and_no_more(judge: Make) -> None:
    """Rows older than an hour go, and there are never more than the ring holds."""
    strips = Strips()
    verdict = judge()
    for number in range(1, 131):
        strips.add([at(verdict, number, 30.0)], {})
    kept = rows(strips, verdict.gpu.key)
    assert kept[-1][1] - kept[0][1] == 3600.0
    for number in range(4000, 4000 + MOST_ROWS + 10):
        strips.add([at(verdict, number, 1.0)], {})
    assert len(rows(strips, verdict.gpu.key)) == MOST_ROWS


def test_eight_gpus_stay_below_a_mebibyte(judge: Make, facts: Make) -> None:
    """A full hour of eight GPUs with every signal read."""
    signals = {drawn.signal: 123.456 if drawn.digits != 1 else 0.98765 for drawn in DRAWN} | {
        "sm_clock_hertz": 1.98e9
    }
    made = [judge(facts(index), signals=signals) for index in range(8)]
    tracemalloc.start()
    try:
        strips = Strips()
        for number in range(1, MOST_ROWS + 1):
            strips.add([at(verdict, number) for verdict in made], {})
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(strip.rows) == MOST_ROWS for strip in strips.newer()[1].values())
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
