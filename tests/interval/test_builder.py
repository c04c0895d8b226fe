"""Samples become intervals that tile the time, the same for all GPUs of a host."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from gpuwhy.interval import Interval, IntervalBuilder, Stat
from gpuwhy.sample import HostSample, ProcessSample, Sample
from gpuwhy.source import GpuFacts, Reading


def borders(closed: list[list[Interval]]) -> list[tuple[float, float]]:
    """Start and end of each interval, which all GPUs share."""
    for gpus in closed:
        assert len({(each.start_s, each.end_s, each.unix_end_s) for each in gpus}) == 1
    return [(gpus[0].start_s, gpus[0].end_s) for gpus in closed]


def by_uuid(intervals: list[Interval]) -> dict[str, Interval]:
    return {each.gpu.uuid: each for each in intervals}


# --- borders ------------------------------------------------------------------------------------------


def test_intervals_tumble_from_the_first_readings_start(host) -> None:
    """Five seconds each, from where the first reading's span begins, on the monotonic clock."""
    assert host.read(times=4) == []
    assert borders(host.read()) == [(100.0, 105.0)]
    assert borders(host.read(times=10)) == [(105.0, 110.0), (110.0, 115.0)]
    assert [gpus[0].unix_end_s for gpus in host.done] == [105 + 1.8e9, 110 + 1.8e9, 115 + 1.8e9]


def test_five_seconds_are_the_default(host) -> None:
    """An interval is five seconds long unless told otherwise."""
    host.builder = IntervalBuilder()
    host.read(times=6)
    assert borders(host.done) == [(100.0, 105.0)]


def test_full_interval_is_covered(host) -> None:
    """Five readings of a second cover an interval of five."""
    ((one,),) = host.read(times=5)
    assert (one.covered_s, one.length_s, one.coverage, one.samples) == (5.0, 5.0, 1.0, 5)
    assert one.stats["sm_active_ratio"] == Stat((0.5,) * 5, (1.0,) * 5)
    assert one.mean("sm_active_ratio") == 0.5
    assert one.mean("dram_active_ratio") is None
    assert one.sources == {"sm_active_ratio": "nvml"}
    assert (one.owners, one.up) == (frozenset(), True)


def test_quarter_second_steps_meet_the_borders(new_host) -> None:
    """Steps that no float holds exactly end intervals where they should, without slivers of samples."""
    host = new_host(start_s=0.7)
    host.read(after_s=0.1, period_s=0.1, times=503)
    assert [len(gpus) for gpus in host.done] == [1] * 10
    assert {gpus[0].samples for gpus in host.done} == {50}
    unix = new_host(start_s=1_796_032_342.9731)
    unix.read(after_s=0.25, period_s=0.25, times=203)
    assert {gpus[0].samples for gpus in unix.done} == {20}
    assert len(unix.done) == 10


def test_first_reading_reaches_back_two_periods_at_most(host) -> None:
    """What the first reading's span claims beyond two periods is no time of ours."""
    host.read(span_s=1000.0)
    host.read(times=3)
    assert borders(host.done) == [(99.0, 104.0)]
    assert host.done[0][0].coverage == 1.0


def test_interval_is_stretched_to_twice_the_period(host) -> None:
    """A source that reads every 30 s has intervals of a minute, two readings each."""
    host.read(after_s=30.0, period_s=30.0, times=4)
    assert borders(host.done) == [(100.0, 160.0), (160.0, 220.0)]
    assert [gpus[0].samples for gpus in host.done] == [2, 2]
    assert [gpus[0].coverage for gpus in host.done] == [1.0, 1.0]


def test_longer_intervals_can_be_asked_for(new_host) -> None:
    """The interval is what was asked for where that is longer than two periods."""
    host = new_host(interval_s=10.0)
    host.read(times=20)
    assert borders(host.done) == [(100.0, 110.0), (110.0, 120.0)]


def test_period_that_changes_changes_the_next_interval(host) -> None:
    """When another source takes over, the interval in the making keeps its length, the next has the new one."""
    host.read(times=6)
    host.read(after_s=30.0, period_s=30.0, times=3)
    host.read(times=80)
    assert borders(host.done)[:3] == [(100.0, 105.0), (105.0, 110.0), (110.0, 170.0)]
    assert host.done[2][0].coverage == 1.0
    assert borders(host.done)[-1][1] - borders(host.done)[-1][0] == 5.0


def test_gpus_of_a_host_share_their_borders(host) -> None:
    """Every GPU has an interval at each border, also one that is down or came late."""
    host.read({"a": {"sm_util": 50}}, times=3)
    host.read({"a": {"sm_util": 50}, "b": {"sm_util": 10}}, times=4)
    host.read({"a": None, "b": {"sm_util": 10}}, times=3)
    assert borders(host.done) == [(100.0, 105.0), (105.0, 110.0)]
    first, second = (by_uuid(gpus) for gpus in host.done)
    assert (first["a"].covered_s, first["b"].covered_s) == (5.0, 2.0)
    assert (second["a"].covered_s, second["b"].covered_s) == (2.0, 5.0)
    assert (first["a"].up, second["a"].up, second["b"].up) == (True, False, True)
    assert second["b"].coverage == 1.0
    assert second["a"].coverage == pytest.approx(0.4)


def test_gpu_that_readings_no_longer_hold(host) -> None:
    """A GPU that vanished without a restart is down, and its time is observed all the same."""
    host.read({"a": {"sm_util": 50}, "b": {"sm_util": 10}}, times=5)
    host.read({"a": {"sm_util": 50}}, times=5)
    one = by_uuid(host.done[1])["b"]
    assert (one.covered_s, one.length_s, one.up) == (0.0, 5.0, False)


# --- what falls into an interval ------------------------------------------------------------------------


def test_sample_across_a_border_is_split(host) -> None:
    """Seconds and gains of a sample go to both sides by their share; its values count on both."""
    host.read({"a": {"sm_util": 0, "energy_mj": 0}}, times=1)
    host.read({"a": {"sm_util": 0, "energy_mj": 0}}, after_s=1.6, times=2)
    host.read({"a": {"sm_util": 100, "energy_mj": 1_000_000}}, after_s=2.0)
    host.read({"a": {"sm_util": 0, "energy_mj": 1_000_000}}, after_s=1.9, times=2)
    (first,), (second,) = host.done
    assert first.gains["energy_joules"] == pytest.approx(400.0)
    assert second.gains["energy_joules"] == pytest.approx(600.0)
    assert first.stats["sm_active_ratio"].integral == pytest.approx(0.8)
    assert second.stats["sm_active_ratio"].integral == pytest.approx(1.2)
    assert first.mean("sm_active_ratio") == pytest.approx(0.8 / 5)
    assert (first.samples, second.samples) == (4, 3)
    assert (first.covered_s, second.covered_s) == (pytest.approx(5.0), pytest.approx(5.0))


def test_mean_is_weighted_by_time(host) -> None:
    """A value counts for as long as it held."""
    host.read({"a": {"sm_util": 0}})
    host.read({"a": {"sm_util": 100}}, after_s=2.0)
    ((one,),) = host.read({"a": {"sm_util": 0}}, after_s=2.0)
    assert one.mean("sm_active_ratio") == pytest.approx(0.4)
    assert one.stats["sm_active_ratio"].weights == (1.0, 2.0, 2.0)


def test_signal_that_is_read_at_times_has_its_own_time(host) -> None:
    """A mean is over the time in which the signal was read, not over the interval."""
    for values in ({"sm_util": 80}, {"sm_util": None}, {}, {"sm_util": math.nan}, {"sm_util": 40}):
        host.read({"a": values})
    ((one,),) = host.done
    assert one.mean("sm_active_ratio") == pytest.approx(0.6)
    assert one.stats["sm_active_ratio"].covered_s == 2.0
    assert one.covered_s == 2.0  # that its processes were listed is no reading of the device


def test_owners_add_up(host) -> None:
    """Every pid that had a context is an owner; not read is not none."""
    for owners in ((1,), (1, 2), (), None, (3,)):
        host.read({"a": {"sm_util": 1}}, owners=owners)
    assert host.done[0][0].owners == {1, 2, 3}
    host.read(owners=None, times=5)
    assert host.done[1][0].owners is None
    host.read(owners=(), times=5)
    assert host.done[2][0].owners == frozenset()


def test_gpu_that_answers_nothing_is_not_covered(host) -> None:
    """Readings of which nothing could be used are no coverage."""
    host.read({"a": {"sm_util": 50}, "b": {"sm_util": math.nan}}, owners=None, times=5)
    one = by_uuid(host.done[0])
    assert (one["a"].covered_s, one["b"].covered_s) == (5.0, 0.0)
    assert (one["b"].samples, one["b"].stats, one["b"].reasons) == (0, {}, None)


# --- clock events -------------------------------------------------------------------------------------


def test_reasons_are_shares_of_the_time_they_were_read_in(host) -> None:
    """A reason's share is over the readings that had a mask."""
    for mask in (0x4, 0x44, None, 0, 0):
        host.read({"a": {"event_reasons": mask, "sm_util": 1}})
    one = host.done[0][0]
    assert one.reasons == {"hw-thermal": 0.25, "sw-power-cap": 0.5}
    assert one.reason_samples == {"hw-thermal": 1, "sw-power-cap": 2}


def test_reasons_not_read(host) -> None:
    """No mask and no counter is not the same as no reason."""
    host.read(times=5)
    assert (host.done[0][0].reasons, host.done[0][0].reason_samples) == (None, None)
    host.read({"a": {"event_reasons": 0}}, times=5)
    assert (host.done[1][0].reasons, host.done[1][0].reason_samples) == ({}, {})


def test_driver_counters_see_between_readings(host) -> None:
    """Where the driver counted more time in a reason than the masks show, its count stands."""
    for at in range(6):
        host.read(
            {"a": {"event_reasons": 0x4 if at == 1 else 0, "hw_thermal_ns": at * 10**8, "sw_power_cap_ns": 0}}
        )
    one = host.done[0][0]
    assert one.reasons == {"hw-thermal": pytest.approx(0.1), "sw-power-cap": 0.2}
    assert one.reason_samples == {"sw-power-cap": 1}


def test_counters_alone_say_nothing_of_what_they_do_not_count(host) -> None:
    """Where masks were not read, samples with a reason cannot be counted."""
    for at in range(6):
        host.read({"a": {"hw_thermal_ns": at * 5 * 10**8, "sm_util": 1}})
    one = host.done[0][0]
    assert one.reasons == {"hw-thermal": pytest.approx(0.5)}
    assert one.reason_samples is None


def test_counted_share_is_over_the_time_that_was_counted(host) -> None:
    """Readings without the counter do not thin its share out."""
    for value in (0, 10**9, None, None, None):
        host.read({"a": {"sw_thermal_ns": value, "event_reasons": 0}})
    assert host.done[0][0].reasons == {"sw-thermal": 1.0}


def test_counted_time_is_split_at_a_border(host) -> None:
    """The driver's seconds in a reason go to both sides of a border by their share."""
    values = [0, 0, 0, 0, 0, 10**9, 10**9, 10**9, 10**9, 10**9, 10**9]
    host.read({"a": {"sync_boost_ns": 0}}, after_s=0.5)
    for value in values:
        host.read({"a": {"sync_boost_ns": value}})
    shares = [gpus[0].reasons["sync-boost"] * 5 for gpus in host.done]
    assert shares[0] == pytest.approx(0.0)
    host = type(host)()
    host.read({"a": {"sync_boost_ns": 0}}, times=4)
    host.read({"a": {"sync_boost_ns": 0}}, after_s=0.5)
    host.read({"a": {"sync_boost_ns": 10**9}})
    host.read({"a": {"sync_boost_ns": 10**9}}, times=5)
    shares = [gpus[0].reasons["sync-boost"] for gpus in host.done]
    assert shares == [pytest.approx(0.5 / 4), pytest.approx(0.5 / 5)]


def test_share_is_never_more_than_all(host) -> None:
    """A step of the driver's counter does not make more than all of the time."""
    for value in (0, 19 * 10**8, 38 * 10**8, 57 * 10**8, 76 * 10**8):
        host.read({"a": {"hw_power_brake_ns": value}})
    assert host.done[0][0].reasons == {"hw-power-brake": 1.0}


# --- gaps ---------------------------------------------------------------------------------------------


def test_reading_longer_than_two_periods_leaves_a_gap(host) -> None:
    """A late reading speaks for two periods; the time before is not covered."""
    host.read(times=1)
    ((one,),) = host.read(after_s=4.0)
    assert (one.covered_s, one.coverage, one.samples) == (3.0, pytest.approx(0.6), 2)


def test_long_gap_is_one_interval(host) -> None:
    """A gap of any length is one interval of no data between two that touch it, on the usual borders."""
    host.read(times=7)
    day = host.read(after_s=86_400.0)
    assert borders(day) == [(105.0, 110.0), (110.0, 86_505.0)]
    assert [gpus[0].covered_s for gpus in day] == [2.0, 0.0]
    assert day[1][0].samples == 0
    ((last,),) = host.read(times=3)
    assert (last.start_s, last.end_s, last.covered_s) == (86_505.0, 86_510.0, 5.0)


def test_gap_of_two_intervals(host) -> None:
    """A gap that leaves one whole interval empty keeps it at its length."""
    host.read(times=5)
    closed = host.read(after_s=9.0)
    assert borders(closed) == [(105.0, 110.0)]
    assert closed[0][0].covered_s == 0.0
    assert borders(host.read(times=1)) == [(110.0, 115.0)]


def test_gap_of_years_costs_nothing(host) -> None:
    """However long a gap is, it is found in a step."""
    host.read()
    tracemalloc.start()
    try:
        host.read(after_s=3e9)
        assert tracemalloc.get_traced_memory()[1] < 1e5
    finally:
        tracemalloc.stop()
    assert len(host.done) <= 3
    assert sum(gpus[0].length_s for gpus in host.done) == pytest.approx(3e9, abs=6)


def test_time_goes_on_without_readings(host) -> None:
    """Time that passes with no reading is closed as intervals without data."""
    assert host.advance(1000.0) == []
    host.read(times=6)
    assert host.advance(111.9) == []
    closed = host.advance(112.0)
    assert borders(closed) == [(105.0, 110.0)]
    assert closed[0][0].covered_s == 1.0
    assert host.advance(112.0) == []
    assert borders(host.advance(140.0)) == [(110.0, 115.0), (115.0, 135.0)]
    assert all(gpus[0].covered_s == 0 for gpus in host.done[2:])
    assert host.done[-1][0].unix_end_s == 135.0 + 1.8e9


def test_slow_source_is_waited_for(host) -> None:
    """Nothing is closed before a source's next reading would be twice its period late."""
    host.read(after_s=30.0, period_s=30.0)
    assert host.advance(219.9, period_s=30.0) == []
    assert borders(host.advance(220.0, period_s=30.0)) == [(100.0, 160.0)]


def test_reading_that_comes_after_all_loses_nothing(host) -> None:
    """What closes for want of readings never holds time that the next one still speaks for."""
    host.read(times=5)
    host.advance(119.9)
    host.now_s = 120.0
    host.read(after_s=0.0, span_s=15.0)
    host.finish()
    assert sum(gpus[0].covered_s for gpus in host.done) == pytest.approx(7.0)
    assert sum(gpus[0].length_s for gpus in host.done) == pytest.approx(20.0)


def test_late_and_double_readings_add_nothing(host) -> None:
    """A reading that does not move time on changes neither borders nor coverage."""
    host.read(times=3)
    host.read(after_s=0.0, span_s=1.0)
    host.read(after_s=-1.5, span_s=1.0)
    host.now_s = 103.0
    host.read(times=2)
    assert borders(host.done) == [(100.0, 105.0)]
    assert host.done[0][0].covered_s == 5.0
    for at in (math.nan, math.inf, -math.inf):
        assert host.builder.add(Reading(at, at, 1.0, 1.0, ()), []) == []
    assert borders(host.read(times=5)) == [(105.0, 110.0)]


# --- the end, and restarts ------------------------------------------------------------------------------


def test_nothing_to_finish(host) -> None:
    """A host that was never read has no interval."""
    assert host.finish() == []
    assert host.finish() == []


@pytest.mark.parametrize("hold", [False, True])
def test_every_second_comes_out(new_host, hold: bool) -> None:
    """However long the tail is, all that was observed is in some interval."""
    for count in range(1, 18):
        host = new_host(hold=hold)
        host.read(times=count)
        host.finish()
        assert sum(gpus[0].length_s for gpus in host.done) == pytest.approx(count)
        assert sum(gpus[0].covered_s for gpus in host.done) == pytest.approx(count)
        assert host.finish() == []


@pytest.mark.parametrize(
    "count, held, plain",
    [
        (2, [(100, 102)], [(100, 102)]),
        (4, [(100, 104)], [(100, 104)]),
        (5, [(100, 105)], [(100, 105)]),
        (7, [(100, 107)], [(100, 105), (105, 107)]),
        (8, [(100, 105), (105, 108)], [(100, 105), (105, 108)]),
        (12, [(100, 105), (105, 112)], [(100, 105), (105, 110), (110, 112)]),
    ],
)
def test_short_tail_joins_the_interval_before_it(new_host, count: int, held: list, plain: list) -> None:
    """With ``hold`` a tail of less than half an interval joins the one before; without, it stands alone."""
    for hold, expected in ((True, held), (False, plain)):
        host = new_host(hold=hold)
        host.read({"a": {"sm_util": 50, "event_reasons": 4, "energy_mj": 0}}, times=count)
        host.finish()
        assert borders(host.done) == expected
        last = host.done[-1][0]
        assert last.covered_s == last.length_s == last.samples == last.reason_samples["sw-power-cap"]
        assert last.reasons == {"sw-power-cap": 1.0}
        assert last.stats["sm_active_ratio"].covered_s == last.length_s


def test_held_interval_comes_with_the_next(new_host) -> None:
    """With ``hold`` an interval is handed on when the next is whole."""
    host = new_host(hold=True)
    assert host.read(times=9) == []
    assert borders(host.read()) == [(100.0, 105.0)]
    assert borders(host.finish()) == [(105.0, 110.0)]


def test_gpu_of_the_tail_alone_is_joined_too(new_host) -> None:
    """A GPU that came in the tail is in the joined interval with the little that is known of it."""
    host = new_host(hold=True)
    host.read(times=5)
    host.read({"a": {"sm_util": 1}, "b": {"sm_util": 2}})
    host.finish()
    ((one, other),) = host.done
    assert (one.covered_s, other.covered_s, other.length_s) == (6.0, 1.0, 6.0)


def test_restart_ends_an_interval_early(host) -> None:
    """No interval mixes two runs: a restart closes the one in the making where the last reading ended."""
    host.read(times=7)
    assert borders(host.read({"a": {"sm_util": 1}}, restart=True)) == [(105.0, 107.0)]
    host.read({"a": {"sm_util": 1}}, times=4)
    assert borders(host.done) == [(100.0, 105.0), (105.0, 107.0), (107.0, 112.0)]
    assert host.done[-1][0].mean("sm_active_ratio") == pytest.approx(0.01)


def test_time_before_a_restart_that_nobody_read_is_no_data(host) -> None:
    """The agent ran while a source was lost: that time is observed, and not covered."""
    host.read(times=5)
    host.read(after_s=8.0, span_s=1.0, restart=True)
    host.finish()
    assert borders(host.done) == [(100.0, 105.0), (105.0, 110.0), (110.0, 113.0)]
    assert [gpus[0].covered_s for gpus in host.done] == [5.0, 0.0, 1.0]


def test_gpu_that_a_restart_took_away_keeps_what_it_had(host) -> None:
    """When a new run lacks a GPU, what was read of it until then comes out, and no more."""
    host.read({"a": {"sm_util": 1}, "b": {"sm_util": 2}}, times=7)
    host.read({"a": {"sm_util": 1}}, restart=True)
    host.read({"a": {"sm_util": 1}}, times=8)
    host.finish()
    covered = dict.fromkeys("ab", 0.0)
    for gpus in host.done:
        for one in gpus:
            covered[one.gpu.uuid] += one.covered_s
    assert covered == {"a": 16.0, "b": 7.0}
    assert [len(gpus) for gpus in host.done] == [2, 2, 1, 1]


@pytest.mark.parametrize("hold", [False, True])
def test_clock_that_begins_anew(new_host, hold: bool) -> None:
    """When the host itself started again, intervals go on from its new clock; nothing is lost or counted twice."""
    host = new_host(hold=hold)
    host.read(times=8)
    host.now_s = 3.0
    host.read(restart=True)
    host.read(times=5)
    host.finish()
    ends = [(3.0, 9.0)] if hold else [(3.0, 8.0), (8.0, 9.0)]
    assert borders(host.done) == [(100.0, 105.0), (105.0, 108.0), *ends]
    assert sum(gpus[0].length_s for gpus in host.done) == pytest.approx(14.0)
    assert sum(gpus[0].covered_s for gpus in host.done) == pytest.approx(14.0)
    assert host.done[-1][0].end_s == 9.0


def test_builder_lets_go_of_processes(host) -> None:
    """What waits for its interval's end holds no process table."""
    one = Sample(
        GpuFacts(0, "a"),
        0.0,
        1.0,
        1.0,
        1.0,
        {},
        host=HostSample(processes={1: ProcessSample(1, 0, "x", "S")}),
    )
    host.builder.add(Reading(1.0, 1.0, 1.0, 1.0, ()), [one])
    pieces = host.builder._pending
    assert [piece.sample.host for piece in pieces] == [None]


# --- features -----------------------------------------------------------------------------------------


def test_quantiles_are_weighted_by_time() -> None:
    """A value that held for long weighs more than one that flashed."""
    stat = Stat((1.0, 0.0, 0.5), (0.1, 9.0, 0.9))
    assert (stat.p5, stat.quantile(0.5), stat.p95) == (0.0, 0.0, 0.5)
    assert (stat.quantile(0.0), stat.quantile(1.0)) == (0.0, 1.0)
    assert Stat((1.0, 0.0), (0.5, 0.5)).quantile(0.5) == 0.0
    assert stat.covered_s == pytest.approx(10.0)
    assert stat.integral == pytest.approx(0.55)
    assert stat.mean == pytest.approx(0.055)
    assert Stat((0.3,), (0.1,)).p5 == 0.3


def test_interval_without_length_has_no_coverage() -> None:
    """Coverage of nothing is none."""
    assert Interval(GpuFacts(0, "a"), 1.0, 1.0, 1.0, 0.0, 0).coverage == 0.0


def test_coverage_is_of_time_not_of_signals(host) -> None:
    """Two signals that are read at the same time cover it once."""
    for at in range(5):
        host.read({"a": {"sm_util": 80, "dram_bw_util": 10} if at < 2 else {}})
    assert host.done[0][0].covered_s == 2.0
