"""Sources slower than the readings: dcgm-exporter's thirty seconds beside NVML's one."""

from __future__ import annotations

import itertools
import random

import pytest

from gpuwhy.interval import Interval, IntervalBuilder
from gpuwhy.sample import Normaliser
from gpuwhy.source import GpuFacts, GpuReading, Part, Reading
from gpuwhy.workload import attribute

GPU = GpuFacts(0, "GPU-a")


class Host:
    """One GPU: power each second by NVML, activity each ``period_s`` by an exporter."""

    def __init__(self, period_s: float = 30.0, *, plain: bool = True) -> None:
        self.normaliser, self.builder = Normaliser(), IntervalBuilder(5.0)
        self.now_s, self.period_s, self.plain = 1000.0, period_s, plain
        self.done: list[Interval] = []

    def second(self, busy: float | None = None, span_s: float | None = None) -> None:
        """One tick; ``busy`` is what the exporter says now, of the time since it said something last."""
        self.now_s += 1.0
        parts = [Part("nvml", {"power_mw": 100e3 + self.now_s})] if self.plain else []
        if busy is not None:
            values = {"DCGM_FI_PROF_SM_ACTIVE": busy, "DCGM_FI_DEV_POWER_USAGE": 1.0}
            parts.append(
                Part("dcgm-exporter", values, span_s=span_s or self.period_s, period_s=self.period_s)
            )
        gpu = GpuReading(GPU, tuple(parts), owners=(7,) if self.plain else None)
        reading = Reading(self.now_s, self.now_s, 1.0, 1.0, (gpu,))
        for intervals in self.builder.add(reading, attribute(self.normaliser.samples(reading))):
            self.done += intervals

    def run(self, seconds: int, busy_at: dict[int, float], first: int = 1) -> None:
        for second in range(first, first + seconds):
            self.second(busy_at.get(second))


@pytest.mark.parametrize("phase", [1, 7, 15, 29, 30])
@pytest.mark.parametrize("plain", [True, False])
def test_intervals_are_twice_the_slowest_period(phase: int, plain: bool) -> None:
    """Whatever the phase, each interval of a minute is covered by what the slow source says of it."""
    host = Host(plain=plain)
    host.run(400, dict.fromkeys(range(phase, 401, 30), 0.5))
    long = [each for each in host.done if each.start_s >= 1000 + phase]
    assert len(long) >= 4
    for each in long:
        assert each.length_s == pytest.approx(60.0)
        assert each.stats["sm_active_ratio"].covered_s == pytest.approx(60.0)
        assert each.coverage == pytest.approx(1.0)
        if plain:
            assert each.stats["power_watts"].covered_s == pytest.approx(60.0)
            assert len(each.stats["power_watts"].values) == 60
            assert each.sources == {"sm_active_ratio": "dcgm-exporter", "power_watts": "nvml"}
    assert all(one.end_s == two.start_s for one, two in zip(host.done, host.done[1:], strict=False))


def test_what_a_slow_source_says_is_of_the_time_before() -> None:
    """Thirty busy seconds told at their end count in the interval in which they were."""
    host = Host()
    for second in range(1, 241):
        busy = {30: 0.0, 60: 0.0, 90: 0.0, 120: 1.0, 150: 1.0}.get(second, 0.0 if second % 30 == 0 else None)
        host.second(busy)
    means = {(each.start_s - 1000, each.end_s - 1000): each.mean("sm_active_ratio") for each in host.done}
    busy_s = sum((end - start) * (mean or 0.0) for (start, end), mean in means.items())
    assert busy_s == pytest.approx(60.0)
    assert max(mean or 0.0 for mean in means.values()) < 1.0 or (90, 150) in means


def test_power_is_read_once() -> None:
    """What both sources read is taken from the quick one alone."""
    host = Host()
    host.run(200, {30: 0.5, 60: 0.5, 90: 0.5, 120: 0.5, 150: 0.5, 180: 0.5})
    assert all(value > 50 for each in host.done for value in each.stats["power_watts"].values)


def test_quick_intervals_come_back_when_the_slow_source_is_gone() -> None:
    """A slow source that has nothing to say for long is waited for no more."""
    host = Host()
    host.run(95, {30: 0.5, 60: 0.5, 90: 0.5})
    host.run(200, {}, first=96)
    assert [each.length_s for each in host.done[-5:]] == [5.0] * 5
    assert sum(each.length_s for each in host.done) == pytest.approx(295.0, abs=5.0)


def test_period_that_was_guessed_is_forgotten() -> None:
    """An exporter is taken for a slow one until its changes tell: then intervals are short at once."""
    host = Host()
    host.run(10, {})
    host.second(0.5, span_s=1.0)  # thirty seconds, for all that is known
    host.period_s = 1.0
    for _ in range(30):
        host.second(0.5)
    assert [each.length_s for each in host.done[-4:]] == [5.0] * 4
    assert host.done[-1].end_s >= host.now_s - 5.0
    assert all(one.end_s == two.start_s for one, two in itertools.pairwise(host.done))
    host.period_s = 10.0
    host.run(100, dict.fromkeys(range(51, 150, 10), 0.5), first=42)
    assert host.done[-1].length_s == 20.0


def test_finish_gives_what_was_waited_for() -> None:
    """The end of a source closes the intervals that are held open, and loses no second."""
    host = Host()
    host.run(130, {30: 0.5, 60: 0.5, 90: 0.5, 120: 0.5})
    for intervals in host.builder.finish():
        host.done += intervals
    assert sum(each.length_s for each in host.done) == pytest.approx(130.0)
    assert sum(each.stats["power_watts"].covered_s for each in host.done) == pytest.approx(130.0)


def test_slice_that_was_taken_apart_leaves() -> None:
    """A MIG instance that is gone is in the interval in which it went, and in no later one."""
    normaliser, builder = Normaliser(), IntervalBuilder(5.0)
    board, slice_ = GpuFacts(0, "GPU-a", split=True), GpuFacts(0, "GPU-a", mig="1")
    rows = []
    for second in range(1, 21):
        gpus = [GpuReading(board, (Part("nvml", {"power_mw": 1e5}),))]
        if second <= 8:
            gpus.append(GpuReading(slice_, (Part("nvml-gpm", {"sm_util": 50}),)))
        reading = Reading(float(second), float(second), 1.0, 1.0, tuple(gpus))
        rows += [
            [(each.gpu.mig, each.end_s) for each in intervals]
            for intervals in builder.add(reading, normaliser.samples(reading))
        ]
    assert rows == [[("", 5.0), ("1", 5.0)], [("", 10.0), ("1", 10.0)], [("", 15.0)], [("", 20.0)]]


@pytest.mark.parametrize("period_s", [5.0, 10.0, 30.0])
@pytest.mark.parametrize("plain", [True, False])
def test_periods_are_measured_and_jitter(period_s: float, plain: bool) -> None:
    """No two changes of an exporter are as far apart to the millisecond: nothing depends on that they are."""
    chance = random.Random(7)
    host = Host(period_s, plain=plain)
    next_s = 3.0
    for second in range(1, 1200):
        if second < next_s:
            host.second()
            continue
        host.period_s = period_s + chance.uniform(-0.005, 0.005)
        host.second(0.5, span_s=period_s + chance.uniform(-0.005, 0.005))
        next_s += period_s
    settled = [each for each in host.done if each.start_s > 1000 + 4 * period_s]
    assert {round(each.length_s, 1) for each in settled} == {2 * period_s}
    assert min(each.coverage for each in settled) > 0.95
    assert min(each.stats["sm_active_ratio"].covered_s / each.length_s for each in settled) > 0.95


def test_slices_are_there_from_first_to_last() -> None:
    """Where intervals close late, a MIG instance is in those of its own time, whatever there is by then."""
    normaliser, builder = Normaliser(), IntervalBuilder(5.0)
    board = GpuFacts(0, "GPU-a", split=True)
    observed: dict[str, float] = {}
    first: dict[str, float] = {}
    for second in range(1, 601):
        mig = "1" if second <= 285 else "2"
        values = {"DCGM_FI_PROF_SM_ACTIVE": 0.5} if second % 30 == 0 else {}
        parts = (Part("dcgm-exporter", values, span_s=30.0, period_s=30.0),) if values else ()
        gpus = (
            GpuReading(board, (Part("nvml", {"power_mw": 1e5}),)),
            GpuReading(GpuFacts(0, "GPU-a", mig=mig), parts),
        )
        reading = Reading(float(second), float(second), 1.0, 1.0, gpus)
        for intervals in builder.add(reading, normaliser.samples(reading)):
            for each in intervals:
                observed[each.gpu.mig] = observed.get(each.gpu.mig, 0.0) + each.length_s
                first.setdefault(each.gpu.mig, each.end_s)
    assert first["2"] > 285  # in no interval that had ended before it came, though that closed later
    assert observed["1"] == pytest.approx(285, abs=65)
    assert observed["2"] == pytest.approx(315, abs=65)
    assert observed["1"] + observed["2"] <= observed[""] + 65


def test_counter_is_counted_by_one_source_at_a_time() -> None:
    """When another source takes a counter over, and when the first one has it again, nothing counts twice."""
    normaliser = Normaliser()
    gained = 0.0
    for second in range(1, 31):
        # Both count the same energy, 100 J a second, from zeros of their own.
        source, raw = (
            ("nvml", "energy_mj") if 10 < second <= 20 else ("dcgm", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
        )
        part = Part(source, {raw: second * 100e3 + (5e6 if source == "nvml" else 0.0)})
        reading = Reading(float(second), float(second), 1.0, 1.0, (GpuReading(GPU, (part,)),))
        gained += sum(sample.gains.get("energy_joules", 0.0) for sample in normaliser.samples(reading))
    assert gained == pytest.approx(100 * (29 - 2))
    assert not normaliser.rejected
