"""Intervals of any length and clock to minutes, with nothing lost and nothing counted twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Workload
from gpuwhy.store.minutes import LONGEST_S, Minutes, minute, observed, pieces
from gpuwhy.store.schema import SUMS
from gpuwhy.store.signals import KEPT
from gpuwhy.verdict.types import NO_DATA, TimeSplit
from gpuwhy.verdict.vocabulary import CAUSES
from gpuwhy.workload.directory import OTHER

from .made import LLAMA, MONDAY, facts, split, tenancy, verdict

PLACE = {kept.name: place for place, kept in enumerate(KEPT)}


def minutes(*verdicts, most: int = 100) -> list:
    made = Minutes(most_workloads=most)
    assert all(made.add(each) for each in verdicts)
    return made.take()


def gpus(cells) -> list:
    return [cell for cell in cells if cell.workload is None]


def level(cell, name: str):
    return cell.signals[PLACE[name]]


@pytest.mark.parametrize(
    ("end", "length", "wanted"),
    [
        (MONDAY + 60, 5, [(MONDAY, 1.0)]),  # a minute's end is its own
        (MONDAY + 62, 5, [(MONDAY, 0.6), (MONDAY + 60, 0.4)]),
        (MONDAY + 60, 60, [(MONDAY, 1.0)]),
        (MONDAY + 150, 120, [(MONDAY, 0.25), (MONDAY + 60, 0.5), (MONDAY + 120, 0.25)]),
        (MONDAY, 0, [(MONDAY - 60, 1.0)]),
        (2.0, 5, [(-60, 0.6), (0, 0.4)]),
    ],
)
def test_an_interval_is_divided_by_time(end: float, length: float, wanted: list) -> None:
    assert [(at, pytest.approx(share)) for at, share in pieces(end, length)] == wanted


@settings(deadline=None)
@given(st.floats(-1e9, 1e10), st.floats(0, 86400))
def test_shares_add_up(end: float, length: float) -> None:
    """Whatever the interval, its minutes follow each other, and their shares are parts of one."""
    found = list(pieces(end, length))
    assert math.fsum(share for _, share in found) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for _, share in found)
    starts = [at for at, _ in found]
    assert starts == list(range(starts[0], starts[-1] + 60, 60))
    assert starts[-1] == minute(end)


def test_a_minute_holds_what_was_in_it() -> None:
    """Hand-made: 5 s of one verdict, and 5 s of another of which 3 s fall into the next minute."""
    healthy = split(5.0, ("healthy", "compute"), useful=4.0, headroom=1.0, lost={})
    first, second = gpus(
        minutes(verdict(MONDAY + 58), verdict(MONDAY + 63, time=healthy, signals={"sm_active_ratio": 0.75}))
    )
    assert (first.start, second.start) == (MONDAY, MONDAY + 60)
    assert dict(zip(SUMS, first.sums, strict=True)) == {
        "useful": 1000 + 1600, "headroom": 400, "free": 0, "measured": 7000,
    }  # fmt: skip
    assert first.causes == {("starving", "copy"): (5000, 4000), ("healthy", "compute"): (2000, 0)}
    assert first.read == 7000
    assert first.energy == 1500 + 600
    assert second.causes == {("healthy", "compute"): (3000, 0)}
    # 5 s at 0.25 and 2 s at 0.75; the higher one is the 95th percentile.
    assert level(first, "sm_active_ratio") == (1250 + 1500, 0, 750)
    # Power was read in the first interval only.
    assert level(first, "power_watts") == (300 * 5 * 10, 2000, 3000)
    assert level(second, "power_watts") == (0, 3000, None)
    assert level(first, "verdict_confidence_ratio") == (5600, 0, 800)


def test_p95_is_over_time() -> None:
    """A burst of a twentieth of the minute is not its 95th percentile; a longer one is."""

    def shown(burst_s: float) -> int:
        calm = verdict(MONDAY + 60 - burst_s, 60 - burst_s, signals={"power_watts": 100.0})
        burst = verdict(MONDAY + 60, burst_s, signals={"power_watts": 700.0})
        (cell,) = gpus(minutes(calm, burst))
        return level(cell, "power_watts").p95

    assert shown(2.5) == 1000
    assert shown(3.5) == 7000


def test_time_without_readings_is_no_part_of_a_mean() -> None:
    """An interval half without readings weighs half; one wholly without has no signals at all."""
    half = split(5.0, verdict={("healthy", "compute"): 2.5, NO_DATA: 2.5}, lost={})
    none = split(5.0, verdict={NO_DATA: 5.0}, lost={}, useful=0.0, measured=0.0)
    (cell,) = gpus(
        minutes(
            verdict(MONDAY + 5, time=half, signals={"power_watts": 200.0}),
            verdict(MONDAY + 10, time=none, signals={}, increments={}),
        )
    )
    assert (cell.read, sum(both[0] for both in cell.causes.values())) == (2500, 10000)
    assert level(cell, "power_watts") == (200 * 10 * 2.5, 0, 2000)


def test_each_workload_has_a_cell() -> None:
    """Two that share a GPU have their own times, and what is beyond the most allowed goes under one name."""
    parts = [tenancy(Workload("slurm", f"job-{number}"), split(1.0)) for number in range(5)]
    cells = minutes(verdict(MONDAY + 5, workloads=tuple(parts)), most=2)
    held = {cell.workload: cell for cell in cells if cell.workload}
    assert set(held) == {parts[0].workload, parts[1].workload, OTHER}
    assert held[OTHER].causes == {("starving", "copy"): (3000, 2400)}
    assert sum(cell.observed_s for cell in cells) == 5.0


def test_facts_that_history_does_not_tell_apart_share_a_row() -> None:
    """A changed power limit is no other GPU; a changed driver or share is."""
    same = [facts(power_limit_watts=watts) for watts in (300.0, 400.0)]
    other = [facts(driver="580"), facts(mig="3", share_ratio=1 / 7)]
    assert len(gpus(minutes(*(verdict(MONDAY + 5, gpu=gpu) for gpu in (*same, *other))))) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"end_s": 999.0}, {"end_s": math.nan}, {"unix_end_s": math.nan}, {"unix_end_s": math.inf},
        {"unix_end_s": 1e30}, {"end_s": 1001.0 + LONGEST_S},
    ],
)  # fmt: skip
def test_times_of_no_clock_are_refused(changes: dict) -> None:
    made = Minutes(most_workloads=1)
    assert not made.add(replace(verdict(MONDAY), **changes))
    assert made.take() == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
def test_a_value_that_is_none_costs_itself_only(value: float) -> None:
    """What is no number spoils neither the sums nor the signals beside it."""
    bad = split(5.0, useful=value, lost={("starving", "copy"): value})
    odd = verdict(
        MONDAY + 5, time=bad, signals={"power_watts": 300.0, "sm_active_ratio": value * 1e9},
        increments={"energy_joules": value},
    )  # fmt: skip
    cell, _ = minutes(odd)
    assert dict(zip(SUMS, cell.sums, strict=True)) == {
        "useful": 0,
        "headroom": 0,
        "free": 0,
        "measured": 5000,
    }
    assert cell.causes == {("starving", "copy"): (5000, 0)}
    assert level(cell, "power_watts").p95 == 3000
    assert level(cell, "sm_active_ratio").p95 is None
    assert cell.energy is None
    assert observed([odd]) == 5.0


def test_only_the_minute_in_progress_stays() -> None:
    """Every other minute is handed on, one before the current too, where a clock was set back."""
    made = Minutes(most_workloads=1)
    for end in (MONDAY + 65, MONDAY + 5):
        made.add(verdict(end))
    assert {cell.start for cell in made.take({MONDAY + 5})} == {MONDAY + 60}
    assert {cell.start for cell in made.take()} == {MONDAY}


KEYS = [cause.key for cause in CAUSES]
SECONDS = st.floats(0, 600)
SPLITS = st.builds(
    TimeSplit,
    observed=SECONDS,
    measured=SECONDS,
    useful=SECONDS,
    headroom=SECONDS,
    free=SECONDS,
    lost=st.dictionaries(st.sampled_from(KEYS), SECONDS, max_size=4),
    verdict=st.dictionaries(st.sampled_from(KEYS), SECONDS, max_size=4),
)
VERDICTS = st.builds(
    lambda end, length, index, time, parts: verdict(
        end, length, facts(index), time=time, workloads=tuple(tenancy(LLAMA, part) for part in parts)
    ),
    st.floats(MONDAY - 7200, MONDAY + 7200),
    st.floats(0, 900),
    st.integers(0, 2),
    SPLITS,
    st.lists(SPLITS, max_size=2),
)


@settings(deadline=None)
@given(st.lists(VERDICTS, max_size=12))
def test_sums_over_minutes_are_those_of_the_intervals(verdicts: list) -> None:
    """In whatever order and however divided: each quantity of all minutes is that of all intervals."""
    made = Minutes(most_workloads=10)
    cells = []
    for each in verdicts:
        made.add(each)
        cells += made.take({each.unix_end_s})
    cells += made.take()
    for held in (False, True):
        mine = [cell for cell in cells if bool(cell.workload) is held]
        splits = [
            time for each in verdicts
            for time in ([part.time for part in each.workloads] if held else [each.time])
        ]  # fmt: skip
        tolerance = {"abs": 0.001 * (len(mine) + 1)}
        for place, name in enumerate(SUMS):
            wanted = math.fsum(getattr(time, name) for time in splits)
            assert sum(cell.sums[place] for cell in mine) / 1e3 == pytest.approx(wanted, **tolerance)
        for place, name in enumerate(("verdict", "lost")):
            for key in KEYS:
                wanted = math.fsum(getattr(time, name).get(key, 0.0) for time in splits)
                got = sum(cell.causes.get(key, (0, 0))[place] for cell in mine) / 1e3
                assert got == pytest.approx(wanted, **tolerance)
