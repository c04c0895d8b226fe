"""The case: busy time as it is known, densities, and power and clocks against what the card can do."""

from __future__ import annotations

import pytest

from gpuwhy.source import GpuFacts
from gpuwhy.verdict import Evidence
from gpuwhy.verdict import case as module

from .build import NO_WORK, case, facts, h200, interval, limits

SLICE = h200(mig="5", share_ratio=2 / 7)


@pytest.mark.parametrize(
    ("signals", "low", "high", "exact"),
    [
        # The engine's own activity is busy time, whatever GPU-Util says.
        ({"graphics": 0.3, "sm": 0.2, "gpu_util_ratio": 0.98}, 0.3, 0.3, True),
        ({"graphics": 0.0, "gpu_util_ratio": 0.98}, 0.0, 0.0, True),
        # Without it SM activity or a busier unit is less than it, and GPU-Util more.
        ({"sm": 0.2, "gpu_util_ratio": 0.98}, 0.2, 0.98, False),
        ({"sm": 0.2, "dram": 0.3, "gpu_util_ratio": 0.98}, 0.3, 0.98, False),
        ({"tensor": 0.4}, 0.4, 1.0, False),
        ({"gpu_util_ratio": 0.3}, 0.0, 0.3, False),
        # GPU-Util that says less than what was seen at work is wrong.
        ({"sm": 0.5, "gpu_util_ratio": 0.3}, 0.5, 0.5, False),
        ({}, 0.0, 1.0, False),
    ],
)
def test_busy_time(signals: dict[str, float], low: float, high: float, exact: bool) -> None:
    """Busy time is read, or bounded by what was read; what was not read bounds nothing."""
    one = case(interval(**signals))
    assert (one.busy_low, one.busy_high) == pytest.approx((low, high))
    assert (one.busy_read is not None) == exact
    for name, bound in ((one.low_signal, low), (one.high_signal, high)):
        assert name is None or one.mean(name) == pytest.approx(bound)


@pytest.mark.parametrize(
    ("signals", "low", "high", "exact"),
    [
        ({"graphics": 0.2, "sm": 0.9}, 0.9, 0.9, True),
        ({"sm": 0.0}, 0.0, 0.0, True),
        # The engine's activity may be a share of the whole GPU, of which this slice is two sevenths.
        ({"graphics": 0.2}, 0.2, 0.7, False),
        ({"graphics": 0.5}, 0.5, 1.0, False),
        ({}, 0.0, 1.0, False),
    ],
)
def test_busy_time_of_a_slice(signals: dict[str, float], low: float, high: float, exact: bool) -> None:
    """On a MIG slice SM activity is busy time."""
    one = case(interval(SLICE, **signals))
    assert (one.busy_low, one.busy_high) == pytest.approx((low, high))
    assert (one.busy_read is not None) == exact


def test_only_a_reading_is_evidence() -> None:
    """What was not read is no evidence, neither as a value nor as its absence."""
    one = case(interval(sm=0.25))
    assert one.evidence("sm_active_ratio", "busy") == (Evidence("sm_active_ratio", 0.25, "busy"),)
    assert one.evidence("dram_active_ratio", "busy") == one.evidence(None, "busy") == ()


def test_densities_bracket_the_truth() -> None:
    """Per busy time, a value is at least what the longest and at most what the shortest busy time make it."""
    one = case(interval(sm=0.5, gpu_util_ratio=1.0))
    assert one.density(0.2) == pytest.approx(0.2)
    assert one.density_at_most(0.2) == pytest.approx(0.4)
    exact = case(interval(graphics=0.5))
    assert exact.density(0.2) == exact.density_at_most(0.2) == pytest.approx(0.4)
    for nothing in (case(interval(graphics=0.0)), case(interval())):
        assert nothing.density_at_most(0.2) is None
    assert case(interval(graphics=0.0)).density(0.2) is None
    assert one.density(None) is one.density_at_most(None) is None


def test_compute_is_the_busiest_pipe_over_its_own_peak() -> None:
    """0.6 of FP32 is nearer to its peak than 0.7 of the tensor cores to theirs."""
    one = case(interval(graphics=1.0, **{**NO_WORK, "tensor": 0.7, "fp32": 0.6}))
    assert one.busiest_pipe == "fp32"
    assert one.compute == pytest.approx(0.6 / 0.76)
    assert case(interval(graphics=1.0)).compute is None


@pytest.mark.parametrize(
    ("integer", "dram", "expected"), [(0.51, 0.54, "int"), (0.49, 0.54, "tensor"), (0.51, 0.56, "tensor")]
)
def test_integer_is_work_only_in_bulk_and_away_from_dram(integer: float, dram: float, expected: str) -> None:
    """The two limits of the case: from half of the busy time, and where DRAM does not explain it."""
    work = {**NO_WORK, "int": integer, "dram": dram * 0.92, "tensor": 0.1}
    assert case(interval(graphics=1.0, **work)).busiest_pipe == expected


def test_every_limit_is_tested() -> None:
    """A limit that is added to the case needs a test here."""
    assert limits(module) == {"INTEGER_FROM", "STALLED_BY_DRAM"}


@pytest.mark.parametrize("unread", ["graphics", "tensor", "fp64", "fp32", "fp16", "dram"])
def test_measured_needs_everything(unread: str) -> None:
    """Useful time is told only where nothing could have worked unseen."""
    everything = {**NO_WORK, "graphics": 0.9}
    assert case(interval(**everything)).measured
    assert not case(interval(**{**everything, unread: None})).measured


@pytest.mark.parametrize(
    ("gpu", "watts", "expected"),
    [
        # Idle with a context is 0.18 of 700 W; the span ends at the enforced limit.
        (h200(), 126.0, 0.0),
        (h200(), 413.0, 0.5),
        (h200(), 700.0, 1.0),
        (h200(), 80.0, 0.0),
        (h200(limit=350.0), 238.0, 0.5),
        # Limits that were not read are those of the card's row; an unknown card has none.
        (h200(limit=None, default=None), 413.0, 0.5),
        (facts("Something else"), 413.0, None),
        # A limit below an idle context leaves no span, and a slice's power is the whole board's.
        (h200(limit=100.0), 90.0, None),
        (SLICE, 413.0, None),
    ],
)
def test_power_between_idle_and_limit(gpu: GpuFacts, watts: float, expected: float | None) -> None:
    """Power counts from an idle context to the limit."""
    ratio = case(interval(gpu, power_watts=watts)).power_ratio
    assert ratio == (None if expected is None else pytest.approx(expected))


def test_power_is_the_mean_where_it_was_read() -> None:
    """Instant power stands in for the mean."""
    both = case(interval(power_watts=413.0, power_instant_watts=900.0))
    assert (both.power_signal, both.power_ratio) == ("power_watts", pytest.approx(0.5))
    assert case(interval(power_instant_watts=413.0)).power_ratio == pytest.approx(0.5)
    assert case(interval()).power_ratio is None


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (h200(), 0.5),
        (h200(sm_clock=None), 0.5),
        (facts("Something else"), None),
        (facts("Something else", sm_clock=0.99e9), 1.0),
    ],
)
def test_clock_against_its_maximum(gpu: GpuFacts, expected: float | None) -> None:
    """NVML's maximum, or the row's where that was not read; an unknown card has none."""
    assert case(interval(gpu, sm_clock_hertz=0.99e9)).clock_ratio == expected
    assert case(interval(gpu)).clock_ratio is None


def test_limits_are_compared_as_read() -> None:
    """Enforced over default; without the default from NVML nothing is said."""
    assert case(interval(h200(limit=350.0))).limit_ratio == 0.5
    assert case(interval(h200(limit=350.0, default=None))).limit_ratio is None
    assert case(interval(h200(limit=None))).limit_ratio is None


def test_reasons_not_read_are_not_zero() -> None:
    """A reason that was looked for and not seen is 0, one that was not looked for is not known."""
    assert case(interval(reasons={})).reason("hw-thermal") == 0.0
    assert case(interval(reasons=None)).reason("hw-thermal") is None


def test_family_is_who_works_on_the_same_job() -> None:
    """GPUs are of one job where their families meet."""
    mine = interval(h200(0), family=("pid:1", "pid:2"))
    mate, stranger = interval(h200(1), family=("pid:2",)), interval(h200(2), family=("pid:3",))
    assert [peer.interval.gpu.index for peer in case(mine, mate, stranger).family_peers] == [1]
    alone = interval(h200(0), owners=())
    assert case(alone, interval(h200(1), owners=())).family_peers == []
