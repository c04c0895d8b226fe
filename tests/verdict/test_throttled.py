"""Throttling: each reason at its limits, and what looks like it and is none."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.case import Finding
from gpuwhy.verdict.rules import throttled

from .build import H200, NO_WORK, Edge, case, check_edge, each, facts, h200, interval, key, limits, times

FULL_LOAD = 0.73  # of the maximum clock, as measured on H200
MAX = 1.98e9
# A matrix product at the power limit.
gemm = partial(interval, **{**NO_WORK, "graphics": 0.98, "sm": 0.94, "tensor": 0.90, "dram": 0.16})
decode = partial(interval, **{**NO_WORK, "graphics": 0.99, "sm": 0.95, "tensor": 0.13, "dram": 0.85})
light = partial(interval, **{**NO_WORK, "graphics": 0.98, "sm": 0.60})


def judge(one: Interval) -> Finding | None:
    return throttled.judge(case(one))


def cause(one: Interval) -> str | None:
    found = judge(one)
    assert found is None or found.verdict == "throttled"
    return None if found is None else found.cause


def reasons(**shares: float | None) -> dict[str, float] | None:
    known = {name.replace("_", "-"): share for name, share in shares.items() if share is not None}
    return known if len(known) == len(shares) else None


def capped(**others) -> Interval:
    """At its power cap all the time, at the clock of a full load unless told otherwise."""
    return gemm(**{"reasons": {"sw-power-cap": 1.0}, "sm_clock_hertz": FULL_LOAD * MAX, **others})


EDGES = [
    Edge(
        "BUSY",
        lambda v: interval(graphics=v, reasons={"hw-thermal": 1.0}),
        over="hw-thermal",
        under=None,
        missing=None,
    ),
    Edge(
        "HARD_SHARE",
        lambda v: gemm(reasons=reasons(hw_thermal=v), samples=100),
        over="hw-thermal",
        under=None,
        missing=None,
    ),
    Edge(
        "SOFT_SHARE",
        lambda v: gemm(reasons=reasons(sw_thermal=v), sm_clock_hertz=0.7 * MAX),
        over="sw-thermal",
        under=None,
        missing=None,
    ),
    Edge(
        "SOFT_CLOCK",
        lambda v: gemm(reasons={"sw-thermal": 0.5}, sm_clock_hertz=times(v, MAX)),
        over=None,
        under="sw-thermal",
        missing=None,
    ),
    Edge(
        "SLOWDOWN_SHARE",
        lambda v: gemm(reasons=reasons(hw_slowdown=v), sm_clock_hertz=0.7 * MAX),
        over="hw-slowdown",
        under=None,
        missing=None,
    ),
    Edge(
        "CAP_SHARE",
        lambda v: capped(reasons=reasons(sw_power_cap=v), sm_clock_hertz=0.62 * MAX),
        over="power-cap",
        under=None,
        # With nothing but the clock, and that below any full load's, the reason stays open.
        missing="unreported",
    ),
    Edge(
        "CAP_CLOCK",
        lambda v: capped(sm_clock_hertz=times(v, FULL_LOAD * MAX)),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "LOW_LIMIT",
        lambda v: capped(sm_clock_hertz=0.75 * MAX, gpu=h200(limit=times(v, 700.0))),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "LOW_LIMIT_CLOCK",
        lambda v: capped(sm_clock_hertz=times(v, FULL_LOAD * MAX), gpu=h200(limit=600.0)),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "DEEP_LIMIT",
        lambda v: capped(sm_clock_hertz=MAX, power_watts=700.0, gpu=h200(limit=times(v, 700.0))),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "AT_LIMIT",
        lambda v: capped(sm_clock_hertz=MAX, power_watts=times(v, 350.0), gpu=h200(limit=350.0)),
        over="power-cap",
        under=None,
        missing=None,
    ),
    Edge(
        "HELD_CLOCK",
        lambda v: capped(sm_clock_hertz=times(v, MAX), power_watts=200.0, gpu=h200(limit=350.0)),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "LOCK_SHARE",
        lambda v: gemm(reasons=reasons(app_clocks=v), sm_clock_hertz=0.7 * MAX),
        over="clock-locked",
        under=None,
        missing=None,
    ),
    Edge(
        "FULL_LOAD",
        # 0.80 of the maximum: more than a full load holds, less than a light one should.
        lambda v: gemm(reasons={}, tensor=times(v, 0.98 * 0.93), sm_clock_hertz=0.80 * MAX),
        over=None,
        under="unreported",
        missing=None,
    ),
    Edge(
        "UNREPORTED_CLOCK",
        lambda v: gemm(reasons={}, sm_clock_hertz=times(v, FULL_LOAD * MAX)),
        over=None,
        under="unreported",
        missing=None,
    ),
    Edge(
        "BOUND_CLOCK",
        # Memory at full clock: decode under a lowered limit keeps its speed.
        lambda v: decode(
            gpu=h200(limit=400.0),
            reasons={"sw-power-cap": 1.0},
            sm_clock_hertz=times(v, MAX),
            memory_clock_hertz=3.201e9,
        ),
        over=None,
        under="power-cap",
        missing=None,
    ),
    Edge(
        "FULL_MEMORY_CLOCK",
        lambda v: decode(
            gpu=h200(limit=400.0),
            reasons={"sw-power-cap": 1.0},
            sm_clock_hertz=0.78 * MAX,
            memory_clock_hertz=times(v, 3.201e9),
        ),
        over=None,
        under="power-cap",
        missing=None,
    ),
]


@each(EDGES)
def test_limits(edge: Edge) -> None:
    """Each limit decides between a cause and none, and what was not read accuses nobody."""
    check_edge(throttled, edge, cause)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in EDGES} == limits(throttled)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("hw-thermal", "hw-thermal"),
        ("hw-power-brake", "power-brake"),
        ("sw-thermal", "sw-thermal"),
        ("hw-slowdown", "hw-slowdown"),
        ("sw-power-cap", "power-cap"),
        ("sync-boost", "sync-boost"),
        ("app-clocks", "clock-locked"),
    ],
)
def test_each_reason_reaches_its_cause(reason: str, expected: str) -> None:
    """A reason that holds all the time with the clock at half of the maximum is throttling."""
    found = judge(gemm(reasons={reason: 1.0}, sm_clock_hertz=0.5 * MAX))
    assert key(found) == ("throttled", expected)
    assert found is not None
    assert {item.signal for item in found.evidence} == {f"clock_event_ratio:{reason}", "sm_clock_hertz"}


@pytest.mark.parametrize("reason", ["gpu-idle", "display-clock", "other"])
def test_reasons_that_accuse_nobody(reason: str) -> None:
    """Idle, display and unnamed bits are no throttling, and no clock is unreported beside a reason."""
    assert judge(gemm(reasons={reason: 1.0}, sm_clock_hertz=0.5 * MAX)) is None


def test_the_hardware_speaks_first() -> None:
    """With several reasons set, the one that harms most names the cause."""
    everything = dict.fromkeys(
        (
            "app-clocks",
            "sync-boost",
            "sw-power-cap",
            "sw-thermal",
            "hw-slowdown",
            "hw-thermal",
            "hw-power-brake",
        ),
        1.0,
    )
    order = []
    while (named := cause(gemm(reasons=everything, sm_clock_hertz=0.4 * MAX))) is not None:
        order.append(named)
        del everything[
            {"power-brake": "hw-power-brake", "power-cap": "sw-power-cap", "clock-locked": "app-clocks"}.get(
                named, named
            )
        ]
        if not everything:
            break
    assert order == [
        "power-brake",
        "hw-thermal",
        "hw-slowdown",
        "sw-thermal",
        "power-cap",
        "sync-boost",
        "clock-locked",
    ]


def test_a_power_cap_at_full_load_is_healthy() -> None:
    """A bf16 matrix product on an H200 runs at 0.73 of the maximum clock under its cap: nothing is wrong."""
    assert judge(capped()) is None


@pytest.mark.parametrize("power", [100.0, 350.0, 699.0])
def test_mean_power_is_no_test(power: float) -> None:
    """Power far from the limit or at it changes nothing."""
    assert judge(capped(power_watts=power)) is None
    assert cause(capped(power_watts=power, sm_clock_hertz=0.5 * MAX)) == "power-cap"


def test_instant_power_beyond_the_limit_is_nothing() -> None:
    """Power swings over the limit between the driver's corrections."""
    assert judge(capped(power_watts=699.0, power_instant_watts=1100.0)) is None


@pytest.mark.parametrize("reason", ["hw-thermal", "hw-power-brake"])
def test_one_sample_of_a_hardware_slowdown_is_nothing(reason: str) -> None:
    """A bit flashes at changes of the performance state: one sample proves nothing, however long it stands for."""
    at_1_hz = gemm(reasons={reason: 0.2}, samples=5, reason_samples={reason: 1}, sm_clock_hertz=1.9e9)
    assert judge(at_1_hz) is None
    alone = gemm(reasons={reason: 1.0}, samples=1, reason_samples={reason: 1}, sm_clock_hertz=1.9e9)
    assert judge(alone) is None
    twice = gemm(reasons={reason: 0.4}, samples=5, reason_samples={reason: 2}, sm_clock_hertz=1.9e9)
    assert judge(twice) is not None


def test_the_drivers_own_count_needs_no_sample() -> None:
    """Time in a reason that fell between the samples counts by its share."""
    between = gemm(reasons={"hw-thermal": 0.3}, reason_samples={}, sm_clock_hertz=1.9e9)
    assert cause(between) == "hw-thermal"


@pytest.mark.parametrize("busy", [0.0, 0.3, 0.49])
def test_an_idle_gpu_is_not_throttled(busy: float) -> None:
    """A thermal bit and a low clock on a GPU that does little harm nobody."""
    assert judge(interval(graphics=busy, reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.345e9)) is None


def test_a_gpu_of_which_nothing_says_that_it_works_is_not_throttled() -> None:
    """Where neither engine activity nor GPU-Util was read, a bit and a low clock may be those of an idle GPU."""
    assert judge(interval(reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.345e9)) is None
    assert judge(interval(sm=0.001, reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.345e9)) is None
    assert cause(interval(sm=0.6, reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.9e9)) == "sw-thermal"


def test_clocks_that_rest_between_bursts_are_not_unreported() -> None:
    """A mean clock that is low because the GPU idles half of the time has a reason: it idles."""
    bursts = gemm(graphics=0.55, tensor=0.02, reasons={"gpu-idle": 0.45}, sm_clock_hertz=0.6 * MAX)
    assert judge(bursts) is None


def test_unreported_needs_reasons_that_were_read_and_are_none() -> None:
    """A reason that does hold, even one that is no throttling here, explains the clock."""
    assert cause(gemm(reasons={}, sm_clock_hertz=0.45 * MAX)) == "unreported"
    assert judge(gemm(reasons={"sw-power-cap": 0.06}, sm_clock_hertz=0.45 * MAX)) is None


def test_without_reasons_the_clock_alone_convinces_little() -> None:
    """A clock below that of any full load is named, at the confidence of a guess; above it, it is normal."""
    found = judge(gemm(sm_clock_hertz=0.45 * MAX))
    assert key(found) == ("throttled", "unreported")
    assert found is not None
    assert found.ceiling <= 0.45
    assert judge(gemm(sm_clock_hertz=FULL_LOAD * MAX)) is None
    # A light load below the maximum is no case without reasons: some reason may be set.
    assert judge(light(sm_clock_hertz=0.7 * MAX)) is None


def test_a_light_load_runs_at_the_maximum() -> None:
    """What draws little power has no reason to be below the maximum clock."""
    assert cause(light(reasons={}, sm_clock_hertz=0.85 * MAX)) == "unreported"
    assert judge(light(reasons={}, sm_clock_hertz=0.95 * MAX)) is None


def test_a_load_is_light_only_if_every_pipe_was_seen() -> None:
    """Without the FP32 and FP64 pipes a power-limited FP32 burn looks like an empty GPU."""
    seen = {"graphics": 0.98, "sm": 0.94, "tensor": 0.0, "dram": 0.1}
    assert judge(interval(**seen, reasons={}, sm_clock_hertz=0.75 * MAX)) is None


@pytest.mark.parametrize(
    ("model", "maximum", "clock"),
    [("NVIDIA RTX 6000 Ada Generation", 3.105e9, 2.55e9), ("NVIDIA RTX A6000", 2.1e9, 1.8e9)],
)
def test_cards_that_never_reach_their_maximum(model: str, maximum: float, clock: float) -> None:
    """Boost clocks of cards for desks stay below NVML's maximum without any limit at work."""
    gpu = facts(model, limit=300, default=300, sm_clock=maximum)
    assert judge(light(gpu=gpu, reasons={}, sm_clock_hertz=clock)) is None
    assert cause(light(gpu=gpu, reasons={}, sm_clock_hertz=0.6 * maximum)) == "unreported"


@pytest.mark.parametrize(
    ("model", "watts", "maximum", "base"),
    [
        ("Tesla V100-SXM2-16GB", 300, 1.53e9, 1.29e9),
        ("Tesla T4", 70, 1.59e9, 0.585e9),
        ("NVIDIA A10", 150, 1.695e9, 0.885e9),
        ("NVIDIA A100-SXM4-80GB", 400, 1.41e9, 1.095e9),
        ("NVIDIA A100 80GB PCIe", 300, 1.41e9, 1.065e9),
        ("NVIDIA L4", 72, 2.04e9, 0.795e9),
        ("NVIDIA L40S", 350, 2.52e9, 1.11e9),
    ],
)
def test_no_card_is_throttled_at_its_base_clock(
    model: str, watts: float, maximum: float, base: float
) -> None:
    """The vendor promises the base clock at the default limit: a cap that holds it there is as sold."""
    gpu = facts(model, limit=watts, default=watts, sm_clock=maximum)
    assert judge(capped(gpu=gpu, sm_clock_hertz=base)) is None
    assert cause(capped(gpu=gpu, sm_clock_hertz=0.8 * base)) == "power-cap"


def test_an_unknown_card_convinces_little() -> None:
    """What a card of no row should clock at full load is a guess."""
    gpu = facts("NVIDIA Something New", limit=300, default=300, sm_clock=2e9)
    for reason in ({"sw-power-cap": 1.0}, {}):
        found = judge(gemm(gpu=gpu, reasons=reason, sm_clock_hertz=0.5e9))
        assert found is not None
        assert found.ceiling <= 0.45
    assert judge(gemm(gpu=gpu, sm_clock_hertz=0.5e9)) is None


def test_a_default_limit_that_was_not_read_is_not_taken_from_the_table() -> None:
    """A row holds cards of several limits: an A100-PCIE-40GB has 250 W where its row says 300."""
    gpu = facts("NVIDIA A100-PCIE-40GB", limit=250, sm_clock=1.41e9)
    assert judge(capped(gpu=gpu, sm_clock_hertz=0.78 * 1.41e9)) is None


def test_a_deep_limit_shows_where_the_clock_does_not() -> None:
    """At 500 of 1400 W nothing runs at full speed, whatever clock is reported; that is no proof either."""
    gpu = facts("NVIDIA GB300", limit=500, default=1400, sm_clock=2.07e9)
    found = judge(capped(gpu=gpu, sm_clock_hertz=2.07e9, power_watts=498.0))
    assert key(found) == ("throttled", "power-cap")
    assert found is not None
    assert found.ceiling <= 0.6


@pytest.mark.parametrize("memory_clock", [3.201e9, None])
def test_memory_bound_work_under_a_cap_keeps_its_speed(memory_clock: float | None) -> None:
    """Decode below a lowered limit with the memory at full clock is bound by memory, not by the cap."""
    under_cap = decode(
        gpu=h200(limit=400.0),
        reasons={"sw-power-cap": 1.0},
        sm_clock_hertz=0.7 * MAX,
        memory_clock_hertz=memory_clock,
    )
    assert judge(under_cap) is None


def test_memory_bound_by_nvml_alone_also_stands_against_a_cap() -> None:
    """Where only NVML was read, memory that is touched all the time speaks for decode."""
    nvml = partial(
        interval,
        gpu=h200(limit=400.0),
        reasons={"sw-power-cap": 1.0},
        sm_clock_hertz=0.7 * MAX,
        gpu_util_ratio=0.99,
        power_watts=399.0,
    )
    assert judge(nvml(memory_util_ratio=0.97)) is None
    assert cause(nvml(memory_util_ratio=0.30)) == "power-cap"


def test_a_clock_of_zero_is_a_reading() -> None:
    """No reading makes the rule fail."""
    assert cause(gemm(gpu=H200, reasons={}, sm_clock_hertz=0.0)) == "unreported"
