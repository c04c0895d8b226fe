"""What a device says, in SI units; what cannot be true is rejected and counted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpuwhy.catalog import CLOCK_REASONS
from gpuwhy.sample.signals import CLOCK_EVENT_BITS, CLOCK_EVENT_REASONS, DEVICE, SIGNALS
from gpuwhy.source import GpuFacts, GpuReading, Part, Reading

GAUGES = [signal for signal in DEVICE if signal.kind == "gauge"]
MIB = 1048576

# raw name, raw value, signal, the same in SI units
SI = [
    ("gpu_util_pct", 37, "gpu_util_ratio", 0.37),
    ("mem_util_pct", 3, "memory_util_ratio", 0.03),
    ("graphics_util", 98.5, "graphics_active_ratio", 0.985),
    ("sm_util", 12.5, "sm_active_ratio", 0.125),
    ("sm_occupancy", 6.25, "sm_occupancy_ratio", 0.0625),
    ("any_tensor_util", 91.7, "tensor_active_ratio", 0.917),
    ("dram_bw_util", 17.1, "dram_active_ratio", 0.171),
    ("fp64_util", 1.5, "fp64_active_ratio", 0.015),
    ("fp32_util", 2.5, "fp32_active_ratio", 0.025),
    ("fp16_util", 3.5, "fp16_active_ratio", 0.035),
    ("integer_util", 4.5, "int_active_ratio", 0.045),
    ("pcie_rx_mib_s", 64.0, "pcie_receive_bytes_per_second", 64 * MIB),
    ("pcie_tx_mib_s", 10.5, "pcie_transmit_bytes_per_second", 10.5 * MIB),
    ("nvlink_rx_mib_s", 200_000, "nvlink_receive_bytes_per_second", 200_000 * MIB),
    ("nvlink_tx_mib_s", 1.0, "nvlink_transmit_bytes_per_second", MIB),
    ("power_avg_mw", 687_551, "power_watts", 687.551),
    ("power_mw", 687_551, "power_watts", 687.551),
    ("power_instant_mw", 731_867, "power_instant_watts", 731.867),
    ("power_limit_mw", 700_000, "power_limit_watts", 700.0),
    ("sm_clock_mhz", 1980, "sm_clock_hertz", 1.98e9),
    ("mem_clock_mhz", 3201, "memory_clock_hertz", 3.201e9),
    ("gpu_temp_c", 56, "gpu_temperature_celsius", 56.0),
    ("mem_temp_c", -5, "memory_temperature_celsius", -5.0),
    ("memory_used_bytes", 1_704_853_504, "memory_used_bytes", 1_704_853_504.0),
    # DCGM: ratios, percent for GPU-Util, bytes per second, W, MHz, MiB (dcgm_fields.h)
    ("DCGM_FI_DEV_GPU_UTIL", 37, "gpu_util_ratio", 0.37),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", 3, "memory_util_ratio", 0.03),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.985, "graphics_active_ratio", 0.985),
    ("DCGM_FI_PROF_SM_ACTIVE", 0.125, "sm_active_ratio", 0.125),
    ("DCGM_FI_PROF_SM_OCCUPANCY", 0.0625, "sm_occupancy_ratio", 0.0625),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.917, "tensor_active_ratio", 0.917),
    ("DCGM_FI_PROF_DRAM_ACTIVE", 0.171, "dram_active_ratio", 0.171),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 0.015, "fp64_active_ratio", 0.015),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", 0.025, "fp32_active_ratio", 0.025),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", 0.035, "fp16_active_ratio", 0.035),
    ("DCGM_FI_PROF_PIPE_INT_ACTIVE", 0.045, "int_active_ratio", 0.045),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e9, "pcie_receive_bytes_per_second", 1e9),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", 2e9, "pcie_transmit_bytes_per_second", 2e9),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", 3e9, "nvlink_receive_bytes_per_second", 3e9),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", 4e9, "nvlink_transmit_bytes_per_second", 4e9),
    ("DCGM_FI_DEV_POWER_USAGE", 687.551, "power_watts", 687.551),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", 731.867, "power_instant_watts", 731.867),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700.0, "power_limit_watts", 700.0),
    ("DCGM_FI_DEV_SM_CLOCK", 1980, "sm_clock_hertz", 1.98e9),
    ("DCGM_FI_DEV_MEM_CLOCK", 3201, "memory_clock_hertz", 3.201e9),
    ("DCGM_FI_DEV_GPU_TEMP", 56, "gpu_temperature_celsius", 56.0),
    ("DCGM_FI_DEV_MEMORY_TEMP", 45, "memory_temperature_celsius", 45.0),
    ("DCGM_FI_DEV_FB_USED", 1626, "memory_used_bytes", 1626.0 * MIB),
]

# As NVML and DCGM write "no value" (nvml.h; dcgm_structs.h: blank, not found, not supported, not permissioned).
SENTINELS = [
    0xFFFFFFFF,
    0xFFFFFFFFFFFFFFFF,
    0x7FFFFFF0,
    0x7FFFFFF1,
    0x7FFFFFF2,
    0x7FFFFFF3,
    0x7FFFFFFFFFFFFFF0,
    0x7FFFFFFFFFFFFFF1,
    0x7FFFFFFFFFFFFFF2,
    0x7FFFFFFFFFFFFFF3,
    140737488355328.0,
    140737488355329.0,
    140737488355330.0,
    140737488355331.0,
]


def test_every_raw_name_is_tried() -> None:
    """The table above holds every raw name of every gauge."""
    assert {(raw, signal) for raw, _, signal, _ in SI} == {
        (raw, signal.name) for signal in GAUGES for raw, _ in signal.raw
    }


@pytest.mark.parametrize("raw, value, signal, expected", SI)
def test_gauge_arrives_in_si_units(feed, raw: str, value: float, signal: str, expected: float) -> None:
    """A raw value arrives under its signal's name, in SI units, with its source."""
    sample = feed.read({raw: value})
    assert sample.values == {signal: pytest.approx(expected, rel=1e-12)}
    assert sample.sources == {signal: "nvml"}
    assert not feed.rejected


@pytest.mark.parametrize("signal", GAUGES, ids=lambda signal: signal.name)
def test_bounds_of_a_gauge(feed, signal) -> None:
    """On its bounds a value stands, within rounding above it is clamped, beyond it is rejected."""
    raw, scale = signal.raw[0]
    step = 1e-9
    for value in (signal.minimum, signal.maximum * (1 - step)):
        assert feed.read({raw: value / scale}).values[signal.name] == pytest.approx(value, rel=1e-12)
    most = signal.maximum * (1 + signal.rounding)
    assert feed.read({raw: most * (1 - step) / scale}).values[signal.name] <= signal.maximum
    assert not feed.rejected
    for value in (most * (1 + step), signal.minimum - 1e-6 * max(1.0, abs(signal.minimum)), 1e300):
        assert signal.name not in feed.read({raw: value / scale}).values
    assert feed.rejected == {(signal.name, "out-of-range"): 3}


@pytest.mark.parametrize(
    "value, stands",
    [(100, True), (103, True), (105, True), (105.1, False), (129, False), (150, False), (-1, False)],
)
def test_ratio_over_one(feed, value: float, stands: bool) -> None:
    """GPU-Util and pipe activity a few percent over 1 are 1; what is beyond rounding is rejected."""
    sample = feed.read({"gpu_util_pct": value, "sm_util": value})
    assert sample.values == ({"gpu_util_ratio": 1.0, "sm_active_ratio": 1.0} if stands else {})
    rejected = {("gpu_util_ratio", "out-of-range"): 1, ("sm_active_ratio", "out-of-range"): 1}
    assert feed.rejected == ({} if stands else rejected)


@pytest.mark.parametrize("value", SENTINELS)
@pytest.mark.parametrize("kind", [int, float])
def test_sentinel_is_no_value(feed, value: float, kind: type) -> None:
    """Each way to write "no value" is rejected as such for every signal, and never becomes a number."""
    raws = {raw: kind(value) for signal in DEVICE for raw, _ in signal.raw}
    sample = feed.read({**raws, "event_reasons": kind(value), "hw_thermal_ns": kind(value)})
    assert (sample.values, sample.gains, sample.reasons, sample.reason_seconds) == ({}, {}, None, {})
    assert {reason for _, reason in feed.rejected} == {"sentinel"}
    names = {signal.name for signal in DEVICE}
    assert {name for name, _ in feed.rejected} == names | {"clock_event_reasons", "clock_event_seconds"}
    assert feed.rejected["power_watts", "sentinel"] == 3


@pytest.mark.parametrize(
    "value, reason",
    [
        (math.nan, "nan"),
        (True, "nan"),
        (False, "nan"),
        ("56", "nan"),
        ("[N/A]", "nan"),
        ([1], "nan"),
        ({}, "nan"),
        (math.inf, "out-of-range"),
        (-math.inf, "out-of-range"),
        (10**400, "out-of-range"),
        (-(10**400), "out-of-range"),
    ],
)
def test_what_is_no_number_is_rejected(feed, value: Any, reason: str) -> None:
    """Anything but a finite number is rejected, in gauges, counters and masks alike."""
    sample = feed.read(
        {"gpu_temp_c": value, "energy_mj": value, "event_reasons": value, "sync_boost_ns": value}
    )
    assert (sample.values, sample.gains, sample.reasons, sample.reason_seconds) == ({}, {}, None, {})
    assert feed.rejected == {
        (name, reason): 1
        for name in ("gpu_temperature_celsius", "energy_joules", "clock_event_reasons", "clock_event_seconds")
    }


def test_null_is_absent_and_no_fault(feed) -> None:
    """What was not read is absent, never zero, and nobody's fault."""
    sample = feed.read(
        {"gpu_util_pct": None, "energy_mj": None, "event_reasons": None, "hw_thermal_ns": None}
    )
    assert (sample.values, sample.gains, sample.sources) == ({}, {}, {})
    assert (sample.reasons, sample.reason_seconds) == (None, {})
    assert not feed.rejected


def test_first_part_that_has_a_signal_serves_it(feed) -> None:
    """Sources are asked best first, signal by signal; a rejected value leaves the next one its turn."""
    sample = feed.read(
        None,
        Part("dcgm", {"sm_util": 50.0, "power_mw": math.nan, "gpu_util_pct": None}),
        Part("nvml", {"sm_util": 10.0, "power_mw": 300_000, "gpu_util_pct": 80, "gpu_temp_c": 40}),
    )
    assert sample.values == {
        "sm_active_ratio": 0.5,
        "power_watts": 300.0,
        "gpu_util_ratio": 0.8,
        "gpu_temperature_celsius": 40.0,
    }
    assert sample.sources == {
        "sm_active_ratio": "dcgm",
        "power_watts": "nvml",
        "gpu_util_ratio": "nvml",
        "gpu_temperature_celsius": "nvml",
    }
    assert feed.rejected == {("power_watts", "nan"): 1}


def test_mean_power_is_preferred(feed) -> None:
    """Power averaged over a second is taken where it is read; the other name stands in where it is not."""
    assert feed.read({"power_mw": 100_000, "power_avg_mw": 200_000}).values["power_watts"] == 200.0
    assert feed.read({"power_mw": 100_000, "power_avg_mw": 0xFFFFFFFF}).values["power_watts"] == 100.0


def test_enforced_limit_comes_from_the_header_where_it_is_not_read(feed) -> None:
    """A power limit that was read wins over the one that does not change."""
    facts = GpuFacts(0, "GPU-a", power_limit_watts=650.0)
    assert feed.read({"gpu_util_pct": 1}, facts=facts).values["power_limit_watts"] == 650.0
    assert feed.read({"power_limit_mw": 500_000}, facts=facts).values["power_limit_watts"] == 500.0


def test_reading_of_which_nothing_could_be_used_is_none(feed) -> None:
    """A GPU that answers nothing but nonsense was not read in that time."""
    assert feed.read({"gpu_util_pct": math.nan, "pstate": 0}, owners=None) is None
    assert feed.read({}, owners=()) is not None
    assert feed.read({"gpu_util_pct": 0}, owners=None) is not None


def test_gpu_that_is_down_gives_no_sample(feed) -> None:
    """A GPU that no longer answers has no sample; the others have."""
    up, down = GpuReading(GpuFacts(0, "a"), owners=()), GpuReading(GpuFacts(1, "b"), owners=(), up=False)
    samples = feed.normaliser.samples(Reading(1.0, 1.0, 1.0, 1.0, (up, down)))
    assert [sample.gpu.uuid for sample in samples] == ["a"]


# --- clock events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mask, names",
    [
        (0x0, set()),
        (0x1, {"gpu-idle"}),
        (0x2, {"app-clocks"}),
        (0x4, {"sw-power-cap"}),
        (0x8, {"hw-slowdown"}),
        (0x10, {"sync-boost"}),
        (0x20, {"sw-thermal"}),
        (0x40, {"hw-thermal"}),
        (0x80, {"hw-power-brake"}),
        (0x100, {"display-clock"}),
        (0x48, {"hw-slowdown", "hw-thermal"}),
        (0x200, {"other"}),
        (0x8000000000000004, {"other", "sw-power-cap"}),
        (4.0, {"sw-power-cap"}),
    ],
)
def test_bits_of_the_clock_event_mask(feed, mask: float, names: set[str]) -> None:
    """Each bit is a reason; bits that no header names are other ones."""
    sample = feed.read({"event_reasons": mask})
    assert sample.reasons == names
    assert sample.sources["clock_event_reasons"] == "nvml"
    assert names <= set(CLOCK_EVENT_REASONS)


@pytest.mark.parametrize("mask", [-1, 2**64 + 2**20, 1e300, 0.5])
def test_mask_that_cannot_be(feed, mask: float) -> None:
    """A mask that is negative, broken or too wide is rejected."""
    assert feed.read({"event_reasons": mask}).reasons is None
    assert feed.rejected == {("clock_event_reasons", "out-of-range"): 1}


def test_reasons_are_the_closed_vocabulary() -> None:
    """The reasons are those of the documentation, each bit once."""
    assert set(CLOCK_EVENT_REASONS) == set(CLOCK_REASONS)
    assert set(CLOCK_EVENT_REASONS) == {
        "sw-power-cap",
        "hw-slowdown",
        "sync-boost",
        "sw-thermal",
        "hw-thermal",
        "hw-power-brake",
        "app-clocks",
        "display-clock",
        "gpu-idle",
        "other",
    }
    assert sum(bit for _, bit in CLOCK_EVENT_BITS) == 0x1FF


def test_signal_names_are_unique() -> None:
    """No two rows of the signal tables share a name or a raw name."""
    raws = [raw for signal in DEVICE for raw, _ in signal.raw]
    assert len(set(raws)) == len(raws)
    assert all(signal.help for signal in SIGNALS.values())


# --- time ---------------------------------------------------------------------------------------------


def test_sample_covers_its_span(feed) -> None:
    """A sample ends when its reading does and speaks for the time since the one before."""
    feed.read()
    sample = feed.read(after_s=1.5)
    assert (sample.start_s, sample.end_s, sample.span_s) == (1001.0, 1002.5, 1.5)
    assert (sample.unix_s, sample.period_s) == (1002.5 + 1.8e9, 1.0)


def test_sample_covers_two_periods_at_most(feed) -> None:
    """Beyond twice its source's period a reading speaks for nothing: that is a gap."""
    feed.read()
    assert feed.read(after_s=2.0).span_s == 2.0
    assert feed.read(after_s=86_400.0).span_s == 2.0
    assert feed.read(after_s=86_400.0, period_s=30.0).span_s == 60.0


def test_no_second_is_spoken_for_twice(feed) -> None:
    """A span that reaches behind the reading before is cut there, after a restart too."""
    feed.read()
    assert feed.read(after_s=1.0, span_s=1.75).span_s == 1.0
    assert feed.read(after_s=0.25, span_s=1.0, restart=True).span_s == 0.25


@pytest.mark.parametrize(
    "after_s, span_s",
    [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -1.0), (1.0, math.nan), (math.nan, 1.0), (math.inf, 1.0)],
)
def test_reading_that_does_not_move_time_on(feed, after_s: float, span_s: float) -> None:
    """A reading that is late, double or timeless is rejected as stale, and the next one is not hurt."""
    feed.read()
    before = feed.now_s
    assert feed.read({"gpu_util_pct": 1}, after_s=after_s, span_s=span_s) is None
    feed.now_s = before
    assert feed.read({"gpu_util_pct": 1}, after_s=2.0).span_s == 2.0
    assert feed.rejected == {("reading", "stale"): 1}


def test_restart_may_set_the_clock_back(feed) -> None:
    """A restart is not late, however far back its clock is."""
    feed.read()
    feed.now_s = 5.0
    assert feed.read({"gpu_util_pct": 1}, restart=True).span_s == 1.0
    assert feed.read({"gpu_util_pct": 1}).span_s == 1.0
    assert not feed.rejected


# --- use by process


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.01, "out-of-range"),
        (-0.01, "out-of-range"),
        (math.nan, "nan"),
        (math.inf, "out-of-range"),
        ("0.5", "nan"),
        (True, "nan"),
        (0x7FFFFFF0, "sentinel"),
    ],
)
def test_share_that_cannot_be(feed, value, reason):
    """A share that cannot be true is left out and counted; where none is left there are none."""
    assert feed.read({"power_mw": 5}, process_use={7: value, 8: 0.25}).process_use == {8: 0.25}
    assert feed.read({"power_mw": 5}, process_use={7: value}).process_use is None
    assert feed.rejected == {("process_use", reason): 2}


def test_shares(feed):
    """Shares are handed on as ratios, zero and all included; None was not read, empty was read of nobody."""
    assert feed.read(process_use={7: 0, 8: 1.0}).process_use == {7: 0.0, 8: 1.0}
    assert feed.read(process_use={}).process_use == {}
    assert feed.read(process_use={7: None}).process_use is None
    assert feed.read().process_use is None
    assert not feed.rejected
