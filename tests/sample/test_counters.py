"""Counters become what they gained; what jumps back, wraps or leaps is rejected and counted."""

from __future__ import annotations

import pytest

from gpuwhy.sample.signals import CLOCK_EVENT_COUNTERS
from gpuwhy.source import GpuFacts, Part

REASONS = {reason: raws[0] for reason, raws in CLOCK_EVENT_COUNTERS}


def energy(feed, joules: float | None, **more) -> float | None:
    """What the energy counter gained, joules."""
    sample = feed.read({"energy_mj": None if joules is None else joules * 1000, "gpu_util_pct": 1}, **more)
    return sample.gains.get("energy_joules")


def test_first_reading_gains_nothing(feed) -> None:
    """A counter that was not seen before has a source and no gain."""
    sample = feed.read({"energy_mj": 91_224_857})
    assert sample.gains == {}
    assert sample.sources == {"energy_joules": "nvml"}


def test_gain_is_the_difference_in_si_units(feed) -> None:
    """A counter's gain is what it says now less what it said before."""
    assert [energy(feed, value) for value in (100.0, 800.5, 800.5)] == [None, 700.5, 0.0]
    assert not feed.rejected


def test_counter_that_jumps_back_is_rejected_once(feed) -> None:
    """After a fall the counter counts from where it fell to."""
    assert [energy(feed, value) for value in (1000.0, 50.0, 150.0)] == [None, None, 100.0]
    assert feed.rejected == {("energy_joules", "backwards"): 1}


def test_wrap_of_32_bits_is_a_fall(feed) -> None:
    """A 32-bit counter that wraps is rejected, never a gain of four billion."""
    assert feed.read({"energy_mj": 2**32 - 500}).gains == {}
    assert feed.read({"energy_mj": 200}).gains == {}
    assert feed.read({"energy_mj": 700}).gains == {"energy_joules": 0.5}
    assert feed.rejected == {("energy_joules", "backwards"): 1}


@pytest.mark.parametrize("leap", [1e5, 1e12, 1e300])
def test_leap_is_rejected(feed, leap: float) -> None:
    """No card draws so much: neither the leap nor the fall after it is believed."""
    assert [energy(feed, value) for value in (100.0, leap, 900.0, 1500.0)] == [None, None, None, 600.0]
    assert feed.rejected == {("energy_joules", "out-of-range"): 1, ("energy_joules", "backwards"): 1}


def test_negative_counter_is_rejected_and_forgotten(feed) -> None:
    """A counter below zero is out of range, and nothing counts from it."""
    assert [energy(feed, value) for value in (100.0, -1.0, 700.0)] == [None, None, 600.0]
    assert feed.rejected == {("energy_joules", "out-of-range"): 1}


def test_sentinel_between_two_readings_costs_nothing(feed) -> None:
    """A counter that was unreadable once gains over the whole time since it was last read."""
    assert [energy(feed, value) for value in (100.0, 4294967.295, None, 1600.0)] == [None, None, None, 1500.0]
    assert feed.rejected == {("energy_joules", "sentinel"): 1}


def test_gain_over_a_gap_is_whole(feed) -> None:
    """After a gap the first reading brings all that was counted meanwhile, and is believed."""
    energy(feed, 100.0)
    assert energy(feed, 100.0 + 3600 * 700, after_s=3600.0) == pytest.approx(3600 * 700)
    assert not feed.rejected


def test_restart_compares_nothing(feed) -> None:
    """Across a restart a counter may fall or leap without a fault."""
    assert energy(feed, 1e6) is None
    assert energy(feed, 10.0, restart=True) is None
    assert energy(feed, 20.0) == 10.0
    assert energy(feed, 1e9, restart=True) is None
    assert not feed.rejected


def test_restart_that_moves_no_time_is_one_all_the_same(feed) -> None:
    """A stale reading that marks a restart still ends the comparison."""
    energy(feed, 1e6)
    assert feed.read({"energy_mj": 10_000}, span_s=0.0, restart=True) is None
    assert energy(feed, 20.0) is None
    assert feed.rejected == {("reading", "stale"): 1}


def test_sources_count_from_zeros_of_their_own(feed) -> None:
    """When another source takes over, its counter is not compared with the first one's."""

    def gain(**energies: float) -> float | None:
        parts = [Part(name, {"energy_mj": value}) for name, value in energies.items()]
        return feed.read(None, *parts).gains.get("energy_joules")

    assert gain(dcgm=5_000_000) is None
    assert gain(dcgm=5_100_000, nvml=9_000) == 100.0
    assert gain(nvml=10_000) is None
    assert gain(nvml=12_000) == 2.0
    assert not feed.rejected


def test_gpus_count_for_themselves(feed) -> None:
    """Counters of two GPUs, and of two slices of one, do not mix."""
    for facts in (GpuFacts(0, "a"), GpuFacts(1, "b"), GpuFacts(0, "a", mig="1")):
        assert energy(feed, 100.0 + facts.index, facts=facts) is None
    assert energy(feed, 600.0, facts=GpuFacts(0, "a")) == 500.0
    assert energy(feed, 701.0, facts=GpuFacts(1, "b")) == 600.0


# --- time in clock-event reasons ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason, raw", [(reason, raw) for reason, raws in CLOCK_EVENT_COUNTERS for raw in raws]
)
def test_time_in_a_reason_is_in_seconds(feed, reason: str, raw: str) -> None:
    """The driver's nanoseconds in a reason arrive as seconds since the reading before."""
    assert feed.read({raw: 97_096_055_136}).reason_seconds == {}
    assert feed.read({raw: 97_346_055_136}).reason_seconds == {reason: pytest.approx(0.25)}
    assert feed.read({raw: 97_346_055_136}).reason_seconds == {reason: 0.0}


def test_time_in_a_reason_that_falls_or_leaps(feed) -> None:
    """A fall, and more time than has passed, are rejected; the driver's steps are not."""
    raw = REASONS["hw-thermal"]
    readings = [feed.read({raw: value}) for value in (5e9, 1e9, 1.5e9, 3.4e9, 9e9)]
    assert [sample.reason_seconds for sample in readings] == [
        {},
        {},
        {"hw-thermal": pytest.approx(0.5)},
        {"hw-thermal": pytest.approx(1.9)},
        {},
    ]
    assert feed.rejected == {
        ("clock_event_seconds", "backwards"): 1,
        ("clock_event_seconds", "out-of-range"): 1,
    }


def test_time_in_a_reason_during_a_gap_is_not_charged_to_the_reading_after_it(feed) -> None:
    """Of 10 s counted over a gap of 100 s, the 2 s that the reading speaks for get their part."""
    raw = REASONS["sw-thermal"]
    feed.read({raw: 0})
    sample = feed.read({raw: 10_000_000_000}, after_s=100.0)
    assert sample.span_s == 2.0
    assert sample.reason_seconds == {"sw-thermal": pytest.approx(0.2)}


def test_first_part_that_has_a_counter_serves_it(feed) -> None:
    """Seconds in a reason are taken from the best source that has them, and counted once."""
    raw = REASONS["hw-power-brake"]
    feed.read(None, Part("dcgm", {raw: 0}), Part("nvml", {raw: 5e8}))
    sample = feed.read(None, Part("dcgm", {raw: 5e8}), Part("nvml", {raw: 6e8}))
    assert sample.reason_seconds == {"hw-power-brake": pytest.approx(0.5)}
