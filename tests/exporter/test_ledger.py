"""The ledger counts each second once, shows all children from the start, and nothing that was not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy import catalog
from gpuwhy.exporter import Health, HostIncrements, Ledger
from gpuwhy.exporter.ledger import LOST_CAUSES
from gpuwhy.exporter.rows import OWED_INTERVALS
from gpuwhy.sample.signals import DEVICE
from gpuwhy.verdict.types import TimeSplit
from gpuwhy.verdict.vocabulary import CAUSES, VERDICTS

Make = Callable[..., Any]


@pytest.fixture(scope="session")
def show(read: Make) -> Make:
    """What a scrape of the ledger says now."""
    return lambda ledger, health=None: read(
        ledger.snapshot(health or Health(), taken_s=100.0, interval_s=5.0)
    )


def test_new_gpu_has_all_children_at_zero(show: Make, facts: Make) -> None:
    """Before the first interval every counter of the agent is there at 0, so that no increase is missed."""
    ledger = Ledger()
    ledger.add_gpu(facts())
    shown = show(ledger)
    assert shown.count("verdict_seconds_total") == shown.count("lost_seconds_total") == 0
    assert shown.count("reading_rejected_total") == len(DEVICE) * len(catalog.REJECTION_REASONS)
    for name in ("useful", "headroom", "free", "unattributed", "measured", "observed"):
        assert shown.get(f"{name}_seconds_total", gpu="0") == 0.0
    assert shown.get("ticks_missed_total") == 0.0


def test_a_cause_is_shown_once_it_occurs(show: Make, judge: Make) -> None:
    """At 0, until a scrape has seen that, however long it takes: no increase is missed."""
    ledger = Ledger()

    def copied() -> float | None:
        return show(ledger).get("verdict_seconds_total", verdict="starving", cause="copy")

    ledger.credit([judge()], None, {}, scraped=0)
    assert copied() == 0.0
    ledger.credit([judge()], None, {}, scraped=0)
    assert copied() == 0.0
    ledger.credit([], None, {}, scraped=2)
    assert copied() == 10.0
    assert show(ledger).count("verdict_seconds_total") == 1
    ledger.credit([judge()], None, {}, scraped=0)
    assert copied() == 15.0


def test_what_nobody_scrapes_is_not_owed_for_ever(show: Make, judge: Make) -> None:
    """A first scrape that comes late sees a total, which is no increase, and not 0 with all of it to come."""
    ledger = Ledger()
    for _ in range(OWED_INTERVALS):
        ledger.credit([judge()], None, {}, scraped=0)
    assert show(ledger).total("verdict_seconds_total") == 0.0
    ledger.credit([judge()], None, {}, scraped=0)
    assert show(ledger).total("verdict_seconds_total") == 5.0 * (OWED_INTERVALS + 1)


def test_nothing_gained_shows_nothing(show: Make, judge: Make) -> None:
    """A cause with no seconds has not occurred."""
    ledger = Ledger()
    time = TimeSplit(observed=5.0, verdict={("starving", "copy"): 5.0}, lost={("starving", "copy"): 0.0})
    ledger.credit([judge(time=time)], None, {})
    assert show(ledger).count("lost_seconds_total") == 0
    assert show(ledger).get("values_dropped_total") == 0


def test_what_can_be_lost(show: Make, judge: Make) -> None:
    """Lost seconds have the causes of starving, pseudo-peak and throttled, and idle except free."""
    ledger = Ledger()
    lost = {cause.key: 1.0 for cause in CAUSES}
    ledger.credit([judge(time=TimeSplit(observed=5.0, lost=lost))], None, {})
    shown = show(ledger)
    assert shown.count("lost_seconds_total") == len(LOST_CAUSES) == 8 + 5 + 8 + 2
    assert shown.get("lost_seconds_total", verdict="idle", cause="held") == 0.0
    assert shown.get("lost_seconds_total", verdict="idle", cause="free") is None
    assert shown.get("lost_seconds_total", verdict="memory-bound") is None
    assert shown.get("values_dropped_total") == len(CAUSES) - len(LOST_CAUSES)


def test_driver_counters_and_host_appear_once_read(show: Make, facts: Make, judge: Make) -> None:
    """A device or host counter that was never read is absent, never zero."""
    ledger = Ledger()
    ledger.add_gpu(facts())
    ledger.credit([judge(increments={}, clock_events=None)], None, {})
    absent = show(ledger)
    later = [series.name for series in catalog.SERIES if series.life in {"driver", "read"}]
    assert later
    assert not set(later) & absent.names
    ledger.credit([judge()], HostIncrements({"user": 1.0}, {"io": 0.5}), {})
    ledger.xid(judge().gpu.key, 31)
    present = show(ledger)
    assert set(later) <= present.names
    assert present.count("clock_event_seconds_total") == len(catalog.CLOCK_REASONS)
    assert present.count("host_cpu_seconds_total") == 1
    assert present.count("host_pressure_seconds_total") == 1


def test_increments_go_to_their_series(show: Make, judge: Make) -> None:
    """Each increment is summed where the catalogue says, over the intervals."""
    ledger = Ledger()
    gains = {
        "sm_active_ratio": 2.5,
        "pcie_receive_bytes_per_second": 4096.0,
        "energy_joules": 300.0,
        "process_tree_cpu_cores": 7.5,
        "process_tree_runqueue_wait_ratio": 0.5,
        "process_tree_throttled_ratio": 0.25,
    }
    for _ in range(2):
        ledger.credit([judge(increments=gains, clock_events={"hw-thermal": 1.5})], None, {})
    shown = show(ledger)
    assert shown.get("activity_seconds_total", unit="sm") == 5.0
    assert shown.get("activity_seconds_total", unit="tensor") is None
    assert shown.get("pcie_receive_bytes_total") == 8192.0
    assert shown.get("pcie_transmit_bytes_total") is None
    assert shown.get("energy_joules_total") == 600.0
    assert shown.get("process_tree_cpu_seconds_total") == 15.0
    assert shown.get("process_tree_runqueue_wait_seconds_total") == 1.0
    assert shown.get("process_tree_throttled_seconds_total") == 0.5
    assert shown.get("clock_event_seconds_total", reason="hw-thermal") == 3.0
    assert shown.get("clock_event_seconds_total", reason="gpu-idle") == 0.0


def test_xid_errors_are_counted_by_code(show: Make, facts: Make) -> None:
    """Each Xid of a known GPU counts once for its code; one of a GPU that is not known counts nowhere."""
    ledger = Ledger()
    ledger.add_gpu(facts())
    for code in (31, 79, 31):
        ledger.xid(facts().key, code)
    ledger.xid(("GPU-elsewhere", ""), 31)
    shown = show(ledger)
    assert shown.get("xid_events_total", xid="31") == 2.0
    assert shown.get("xid_events_total", xid="79") == 1.0
    assert shown.total("xid_events_total") == 3.0


seconds = st.floats(0, 100)
splits = st.builds(
    TimeSplit,
    observed=st.just(0.0),
    measured=seconds,
    useful=seconds,
    headroom=seconds,
    free=seconds,
    lost=st.dictionaries(st.sampled_from(LOST_CAUSES), seconds),
    verdict=st.dictionaries(st.sampled_from([cause.key for cause in CAUSES]), seconds),
).map(lambda split: TimeSplit(**{**_fields(split), "observed": sum(split.verdict.values())}))


def _fields(split: TimeSplit) -> dict[str, Any]:
    return {name: getattr(split, name) for name in TimeSplit.__slots__}


@given(st.lists(splits, max_size=5))
@settings(max_examples=30)
def test_verdict_seconds_add_up_to_observed(show: Make, judge: Make, times: list[TimeSplit]) -> None:
    """Over any intervals the verdict seconds equal the observed seconds, and each part equals its sum."""
    ledger = Ledger()
    for time in times:
        ledger.credit([judge(time=time)], None, {})
    ledger.credit([], None, {})
    shown = show(ledger)
    observed = sum(time.observed for time in times)
    assert shown.total("verdict_seconds_total") == pytest.approx(observed)
    assert shown.total("observed_seconds_total") == pytest.approx(observed)
    assert shown.total("lost_seconds_total") == pytest.approx(sum(sum(time.lost.values()) for time in times))
    assert shown.total("unattributed_seconds_total") == pytest.approx(
        sum(time.unattributed for time in times)
    )
    assert shown.get("values_dropped_total") == 0


def test_gauges_show_the_last_interval(show: Make, judge: Make) -> None:
    """Gauges are the last interval's means; a signal it has not read has no series."""
    ledger = Ledger()
    ledger.credit([judge()], None, {})
    ledger.credit([judge(signals={"sm_active_ratio": 0.5, "memory_temperature_celsius": 40.0})], None, {})
    shown = show(ledger)
    assert shown.get("sm_active_ratio") == 0.5
    assert shown.get("tensor_active_ratio") is None
    assert shown.get("temperature_celsius", sensor="memory") == 40.0
    assert shown.get("temperature_celsius", sensor="gpu") is None


def test_facts_stand_in_for_what_an_interval_has_not(show: Make, judge: Make, facts: Make) -> None:
    """Limits come from the GPU's facts unless they were read, and are absent where neither has them."""
    ledger = Ledger()
    gpu = facts(memory_total_bytes=None)
    ledger.credit([judge(gpu, signals={"power_limit_watts": 500.0})], None, {})
    shown = show(ledger)
    assert shown.get("power_limit_watts") == 500.0
    assert shown.get("sm_clock_max_hertz") == 1.98e9
    assert shown.get("memory_total_bytes") is None


def test_verdict_gauges_come_from_the_shown_verdict(show: Make, judge: Make) -> None:
    """The state shown is the one handed in as now; the seconds go to the interval's own verdict."""
    ledger = Ledger()
    shown_as = judge(verdict="healthy", cause="compute", confidence=0.9)
    ledger.credit([judge()], None, {shown_as.gpu.key: shown_as})
    ledger.credit([], None, {shown_as.gpu.key: shown_as})
    shown = show(ledger)
    assert {name: shown.get("verdict", verdict=name) for name in VERDICTS} == {
        name: float(name == "healthy") for name in VERDICTS
    }
    assert shown.get("verdict_confidence_ratio") == 0.9
    assert shown.get("verdict_seconds_total", verdict="starving", cause="copy") == 5.0
    assert shown.total("verdict_seconds_total", verdict="healthy") == 0.0


def test_unknown_speed_of_light_is_absent(show: Make, judge: Make) -> None:
    """A speed of light that was not computed has no series."""
    ledger = Ledger()
    ledger.credit([judge(speed_of_light=None)], None, {})
    assert show(ledger).get("speed_of_light_ratio") is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, None, "12", 10**400])
def test_bad_gain_is_dropped_and_counted(show: Make, judge: Make, bad: Any) -> None:
    """A gain that is no finite, positive number costs itself alone and never poisons a total."""
    ledger = Ledger()
    time = TimeSplit(observed=5.0, verdict={("starving", "copy"): bad})
    ledger.credit([judge(time=time, increments={"energy_joules": bad})], None, {})
    ledger.credit([judge(increments={"energy_joules": 8.0})], None, {})
    ledger.credit([], None, {})
    shown = show(ledger)
    assert shown.get("energy_joules_total") == 8.0
    assert shown.get("verdict_seconds_total", verdict="starving", cause="copy") == 5.0
    assert shown.get("observed_seconds_total") == 10.0
    assert shown.get("values_dropped_total") == 2


def test_words_outside_the_vocabulary_are_dropped_and_counted(show: Make, judge: Make) -> None:
    """Label values are a closed set: what is not in it makes no series."""
    ledger = Ledger()
    time = TimeSplit(lost={("healthy", "compute"): 1.0}, verdict={("odd", "cause"): 5.0})
    host = HostIncrements({"turbo": 1.0}, {"gpu": 1.0})
    ledger.credit([judge(time=time, clock_events={"odd": 1.0})], host, {})
    ledger.reject("sm_active_ratio", "odd")
    shown = show(ledger)
    assert shown.get("values_dropped_total") == 6
    assert shown.count("verdict_seconds_total") == 0
    assert shown.count("host_cpu_seconds_total") == 0
    assert shown.count("clock_event_seconds_total") == len(catalog.CLOCK_REASONS)


def test_rejections_are_counted(show: Make) -> None:
    """Rejected readings are counted by signal and reason, those of a signal new to the table too."""
    ledger = Ledger()
    ledger.reject("power_watts", "sentinel", 3)
    ledger.reject("power_watts", "sentinel")
    ledger.reject("new_signal", "stale")
    shown = show(ledger)
    assert shown.get("reading_rejected_total", signal="power_watts", reason="sentinel") == 4
    assert shown.get("reading_rejected_total", signal="new_signal", reason="stale") == 1
    assert shown.get("reading_rejected_total", signal="new_signal", reason="nan") == 0


def test_ticks_are_counted(show: Make) -> None:
    """Tick durations are summed and counted, missed ticks counted apart."""
    ledger = Ledger()
    ledger.tick(0.5)
    ledger.tick(0.25, missed=2)
    ledger.tick(math.nan)
    shown = show(ledger)
    assert shown.get("tick_duration_seconds_count") == 2
    assert shown.get("tick_duration_seconds_sum") == 0.75
    assert shown.get("ticks_missed_total") == 2
    assert shown.get("values_dropped_total") == 1


def test_lost_gpu_keeps_its_counters_and_loses_the_drivers(show: Make, judge: Make, facts: Make) -> None:
    """After three intervals without data the driver's counters go, ``gpu_up`` says 0, the agent's count on."""
    ledger = Ledger()
    gone = judge(
        facts(),
        "unknown",
        "no-data",
        up=False,
        signals={},
        sources={},
        increments={},
        clock_events=None,
        time=TimeSplit(observed=5.0, verdict={("unknown", "no-data"): 5.0}),
    )
    ledger.credit([judge(), judge(facts(1))], None, {})
    for _ in range(2):
        ledger.credit([gone, judge(facts(1))], None, {})
    assert show(ledger).get("energy_joules_total", gpu="0") is not None
    ledger.credit([gone, judge(facts(1))], None, {gone.gpu.key: gone})
    shown = show(ledger, Health(gpu_up={gone.gpu.key: False}))
    assert shown.get("energy_joules_total", gpu="0") is None
    assert shown.get("clock_event_seconds_total", gpu="0", reason="other") is None
    assert shown.get("memory_total_bytes", gpu="0") is None
    assert shown.get("energy_joules_total", gpu="1") is not None
    assert shown.get("gpu_up", gpu="0") == 0.0
    assert shown.get("verdict", gpu="0", verdict="unknown") == 1.0
    assert shown.get("verdict_seconds_total", gpu="0", cause="no-data") == 15.0
    assert shown.get("verdict_seconds_total", gpu="0", cause="copy") == 5.0


def test_retired_row_is_gone(show: Make, judge: Make, facts: Make) -> None:
    """A retired row has no series; when it comes back it starts at 0."""
    ledger = Ledger()
    slice_ = facts(mig="3", profile="1g.18gb", share_ratio=1 / 7)
    ledger.credit([judge(facts()), judge(slice_)], None, {})
    shown = show(ledger)
    assert shown.get("gpu_share_ratio", mig="3") == pytest.approx(1 / 7)
    assert shown.get("gpu_info", mig="3", profile="1g.18gb") == 1.0
    ledger.retire_gpu(slice_.key)
    ledger.retire_gpu(slice_.key)
    assert show(ledger).count("observed_seconds_total") == 1
    ledger.add_gpu(slice_)
    assert show(ledger).get("observed_seconds_total", mig="3") == 0.0


def test_renumbered_gpu_keeps_its_row(show: Make, judge: Make, facts: Make) -> None:
    """The index label is bound to the UUID for the life of the process."""
    ledger = Ledger()
    ledger.credit([judge(facts(0))], None, {})
    ledger.credit([judge(facts(4, uuid=facts(0).uuid))], None, {})
    shown = show(ledger)
    assert shown.get("observed_seconds_total", gpu="0") == 10.0
    assert shown.count("observed_seconds_total") == 1


def test_health_is_shown_as_given(show: Make, facts: Make, judge: Make) -> None:
    """Sources and their state come from the daemon; what it does not know has no series."""
    ledger = Ledger()
    ledger.credit([judge()], None, {})
    health = Health({}, {"dcgm": False, "nvml-gpm": True}, degraded=True, source_yielding={"dcgm": True})
    shown = show(ledger, health)
    assert shown.get("source_yielding", source="dcgm") == 1.0
    assert shown.get("source_up", source="dcgm") == 0.0
    assert shown.get("source_up", source="nvml-gpm") == 1.0
    assert shown.count("source_info") == 2
    assert shown.get("source_degraded") == 1.0
    assert shown.get("gpu_up") is None
    assert shown.get("last_sample_timestamp_seconds") is None
    assert shown.get("expected_gpus") is None
    assert show(ledger, Health(expected_gpus=8)).get("expected_gpus") == 8.0
    assert shown.get("store_up") is None
    assert shown.get("store_dropped_seconds_total") is None
    kept = show(ledger, Health(store_up=False, store_dropped_s=60.0))
    assert (kept.get("store_up"), kept.get("store_dropped_seconds_total")) == (0.0, 60.0)
    assert shown.get("signal_source_info", signal="sm_active_ratio", source="nvml-gpm") == 1.0


def test_snapshot_does_not_change(judge: Make, health: Health, read: Make) -> None:
    """What is credited after a snapshot was taken does not reach it."""
    ledger = Ledger()
    ledger.credit([judge()], None, {})
    before = ledger.snapshot(health, taken_s=100.0, interval_s=5.0)
    ledger.credit([judge()], None, {})
    assert read(before).get("observed_seconds_total") == 5.0
    assert before.judged == 1
