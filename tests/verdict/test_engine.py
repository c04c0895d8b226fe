"""The engine: which rule decides, how sure it is, and where the time goes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from gpuwhy.interval import Interval, Stat
from gpuwhy.verdict import Verdict, engine, judge
from gpuwhy.verdict.types import CauseKey
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY

from .build import (
    HOT_HOST,
    NO_WORK,
    QUIET_HOST,
    Edge,
    check_edge,
    each,
    facts,
    h200,
    interval,
    limits,
    readings,
    verdict,
)

MAX = 1.98e9
UNKNOWN_FACTS = facts("NVIDIA Something New", limit=700, default=700, sm_clock=MAX)
# Everything read, nothing wrong.
whole = partial(
    interval, **{**NO_WORK, **HOT_HOST}, reasons={}, sm_clock_hertz=MAX, memory_clock_hertz=3.201e9
)
gemm = partial(
    whole,
    graphics=0.98,
    sm=0.94,
    tensor=0.90,
    dram=0.16,
    reasons={"sw-power-cap": 1.0},
    sm_clock_hertz=0.73 * MAX,
    power_watts=692.0,
)
decode = partial(whole, graphics=0.99, sm=0.95, tensor=0.13, dram=0.85, power_watts=650.0)
stalled = partial(whole, graphics=0.98, sm=0.9, power_watts=500.0)
starved = partial(whole, graphics=0.2, sm=0.15, tensor=0.1, power_watts=250.0)
idle_held = partial(whole, **QUIET_HOST, graphics=0.0, sm=0.0, power_watts=125.0)
frozen = partial(whole, graphics=0.0, sm=0.0, gpu_util_ratio=0.98, power_watts=690.0)


def lost(judged: Verdict) -> dict[str, float]:
    return {"/".join(key): round(seconds, 4) for key, seconds in judged.time.lost.items()}


# --- the order of the headline


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (gemm(), "healthy/compute"),
        (decode(), "memory-bound/bandwidth"),
        (stalled(), "pseudo-peak/latency-bound"),
        (starved(), "starving/host-serial"),
        (idle_held(), "idle/held"),
        (idle_held(owners=(), power_watts=81.0), "idle/free"),
        (frozen(), "unknown/telemetry-fault"),
        (whole(graphics=0.98, sm=0.9, tensor=0.28), "unknown/mixed"),
        (gemm(reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.5 * MAX), "throttled/sw-thermal"),
    ],
)
def test_each_verdict_is_reached(one: Interval, expected: str) -> None:
    """With everything read, each verdict has a load that leads to it."""
    judged = verdict(one)
    assert "/".join(judged.key) == expected
    assert judged.evidence
    assert judged.up


def test_too_little_coverage_comes_first() -> None:
    """What was hardly seen is judged by no other rule."""
    assert verdict(frozen(coverage=0.5)).key == ("unknown", "insufficient-evidence")


def test_a_fault_of_the_telemetry_comes_before_throttling() -> None:
    """Counters that stand still say nothing of the load that is throttled."""
    one = frozen(reasons={"hw-thermal": 1.0})
    # Busy by GPU-Util only where nothing else was read, so the bit alone would not speak here anyway.
    assert verdict(one).key == ("unknown", "telemetry-fault")
    by_sm = interval(sm=0.0, gpu_util_ratio=0.98, power_watts=690.0, reasons={"hw-thermal": 1.0})
    assert verdict(by_sm).key == ("unknown", "telemetry-fault")


def test_throttling_comes_before_a_gap() -> None:
    """A GPU that is held and waits for its host has the hardware's trouble first; the gap keeps its cause."""
    judged = verdict(whole(graphics=0.55, sm=0.5, tensor=0.3, reasons={"hw-thermal": 1.0}))
    assert judged.key == ("throttled", "hw-thermal")
    assert judged.gap_cause == ("starving", "host-serial")
    assert judged.busy_verdict == ("healthy", "compute")


def test_a_gap_comes_before_the_busy_part() -> None:
    """Busy half of the time and memory-bound in it: the gap is the headline, the rest is kept."""
    judged = verdict(decode(graphics=0.5, sm=0.45, tensor=0.06, dram=0.43))
    assert judged.key == ("starving", "host-serial")
    assert judged.busy_verdict == ("memory-bound", "bandwidth")


def test_memory_bound_comes_before_healthy_and_that_before_pseudo_peak() -> None:
    """Both DRAM and compute high: the one nearer to its peak is the headline."""
    both = partial(whole, graphics=0.98, sm=0.95)
    assert verdict(both(tensor=0.5, dram=0.8)).key == ("memory-bound", "bandwidth")
    assert verdict(both(tensor=0.85, dram=0.8)).key == ("healthy", "compute")
    assert verdict(both(tensor=0.05, dram=0.2, power_watts=400.0)).verdict == "pseudo-peak"


EDGES = [
    Edge(
        "COVERAGE",
        lambda v: gemm(coverage=0.0 if v is None else v),
        over=("healthy", "compute"),
        under=("unknown", "insufficient-evidence"),
        missing=("unknown", "no-data"),
    ),
]


@each(EDGES)
def test_coverage(edge: Edge) -> None:
    """An interval is judged from 60 % of coverage on."""
    check_edge(engine, edge, lambda one: verdict(one).key)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the engine needs a test here."""
    assert limits(engine) == {
        "COVERAGE",
        "LEAST_CONFIDENCE",
        "UNATTRIBUTED_GAP",
        "STILL",
        "WORKS_RATIO",  # in test_workloads, as the next
        "WORKS_PARKED_RATIO",
    }


# --- confidence


@pytest.mark.parametrize(
    ("why", "one", "expected"),
    [
        ("everything was read", gemm(), 0.95),
        ("everything was read", starved(), 0.95),
        ("everything was read", idle_held(), 0.95),
        ("no host", gemm(**dict.fromkeys(HOT_HOST)), 0.70),
        ("no host, for a verdict on the host", starved(**dict.fromkeys(HOT_HOST)), 0.45),
        ("no host, for a verdict on the host", idle_held(**dict.fromkeys(HOT_HOST)), 0.45),
        (
            "no host, but nobody to ask",
            idle_held(**dict.fromkeys(HOT_HOST), owners=(), power_watts=81.0),
            0.95,
        ),
        ("no SM activity", gemm(sm=None), 0.70),
        ("no FP64 pipe", gemm(fp64=None), 0.70),
        ("no FP32 pipe", gemm(fp32=None), 0.70),
        ("no SM activity, which a gap does not need", starved(sm=None, fp64=None), 0.95),
        ("no clock", gemm(sm_clock_hertz=None), 0.45),
        ("unknown card", gemm(gpu=UNKNOWN_FACTS), 0.60),
        ("no profiling", interval(**HOT_HOST, gpu_util_ratio=0.1, power_watts=200.0), 0.45),
    ],
)
def test_ceilings(why: str, one: Interval, expected: float) -> None:
    """What was not read bounds how sure a verdict can be."""
    assert verdict(one).confidence == pytest.approx(expected), why


@pytest.mark.parametrize(("busy", "margin"), [(0.6 - 1e-9, 0.5), (0.54, 0.75), (0.48, 1.0), (0.1, 1.0)])
def test_margin_of_the_gap(busy: float, margin: float) -> None:
    """At the threshold half as sure as a fifth beyond it, in a line."""
    assert verdict(starved(graphics=busy)).confidence == pytest.approx(0.95 * margin, abs=1e-4)


@pytest.mark.parametrize(("density", "margin"), [(0.35 + 1e-9, 0.5), (0.385, 0.75), (0.42, 1.0)])
def test_margin_of_the_busy_part(density: float, margin: float) -> None:
    """The same for a limit that a reading must exceed."""
    one = gemm(graphics=1.0, tensor=0.93 * density)
    assert verdict(one).confidence == pytest.approx(0.95 * margin, abs=1e-4)


def test_the_weakest_reading_bounds_the_margin() -> None:
    """Of several tests that all had to pass, the nearest to failing counts."""
    one = gemm(reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.85 * MAX * (1 - 1e-9))
    assert verdict(one).confidence == pytest.approx(0.95 * 0.5, abs=1e-4)


@pytest.mark.parametrize(
    ("busy", "expected"),
    # The ceiling without profiling is 0.45: 0.35 is reached 11 % beyond the limit.
    [(0.59, ("unknown", "insufficient-evidence")), (0.53, ("starving", "host-serial"))],
)
def test_a_guess_is_no_verdict(busy: float, expected: CauseKey) -> None:
    """Below a confidence of 0.35 the verdict is unknown, and says what fits best."""
    judged = verdict(interval(**HOT_HOST, gpu_util_ratio=busy, power_watts=200.0))
    assert judged.key == expected
    if expected[0] == "unknown":
        assert judged.confidence == 0.0
        assert judged.reason is not None
        assert "starving/host-serial" in judged.reason
        assert judged.time.lost == {}


def test_unknown_says_why() -> None:
    """The reason names the signals that are missing, or what lies between two verdicts."""
    blind = verdict(interval(graphics=0.98, tensor=0.1, dram=0.2, power_watts=600.0, sm_clock_hertz=MAX))
    assert blind.key == ("unknown", "insufficient-evidence")
    assert blind.reason is not None
    assert "fp64_active_ratio" in blind.reason
    assert "tensor_active_ratio" not in blind.reason
    between = verdict(whole(graphics=0.98, sm=0.9, tensor=0.28))
    assert between.reason
    assert between.confidence == 0.5
    assert readings(between)["tensor_active_ratio"] == 0.28
    thin = verdict(gemm(coverage=0.5))
    assert thin.reason is not None
    assert "50%" in thin.reason


# --- hints, slices, what is missing


def test_latency_profile_expects_gaps() -> None:
    """A server that is half idle is starved where throughput is wanted, and in good order where latency is."""
    serving = starved(graphics=0.4, sm=0.35, tensor=0.3)
    assert verdict(serving).verdict == "starving"
    assert verdict(serving, profile="throughput").verdict == "starving"
    assert verdict(serving, profile="latency").verdict == "healthy"
    assert verdict(starved(graphics=0.1), profile="latency").verdict == "starving"


@pytest.mark.parametrize(("age", "expected"), [(119.0, {"warm-up"}), (121.0, set()), (None, set())])
def test_warm_up_is_flagged(age: float | None, expected: set[str]) -> None:
    """The first two minutes of a process compile and tune; the flag says so, the verdict stays."""
    judged = verdict(starved(process_tree_age_seconds=age))
    assert judged.flags == expected
    assert judged.verdict == "starving"


def test_no_reading_at_all_is_no_data() -> None:
    """Time without a device reading is the interval's, and belongs to no workload."""
    judged = verdict(gemm(coverage=0.0))
    assert judged.key == ("unknown", "no-data")
    assert judged.time.verdict == {("unknown", "no-data"): 5.0}
    assert judged.time.unattributed == 5.0
    assert judged.signals == {}
    assert judged.confidence == 0.0
    assert judged.reason


def test_an_interval_in_which_nothing_was_read_is_insufficient() -> None:
    """A reading that came without a single value decides nothing, on a slice as on a whole GPU."""
    for gpu in (h200(limit=None), h200(limit=None, mig="1", share_ratio=1 / 7)):
        judged = verdict(interval(gpu=gpu))
        assert judged.key == ("unknown", "insufficient-evidence")
        assert judged.evidence == ()
        assert judged.time.lost == {}


def test_busy_on_a_slice_is_sm_activity() -> None:
    """The engine's activity on a MIG slice tops below 1: SM activity says how busy it is."""
    part = h200(mig="2", share_ratio=3 / 7)
    full = whole(gpu=part, graphics=0.42, sm=0.95, tensor=0.85, dram=0.2)
    judged = verdict(full)
    assert judged.key == ("healthy", "compute")
    # S = 0.85/0.93 = 0.914, D = 0.2/0.92 = 0.217: together more than the 0.95 that it was busy.
    assert judged.time.useful == pytest.approx(5.0 * 0.95)
    waiting = verdict(whole(gpu=part, graphics=0.42, sm=0.2, tensor=0.15))
    assert waiting.key == ("starving", "host-serial")
    assert readings(waiting)["sm_active_ratio"] == 0.2


@pytest.mark.parametrize(("sm", "expected"), [(0.55, "unknown"), (0.65, "memory-bound")])
def test_a_busy_part_of_unknown_length_is_judged_where_it_is_surely_long(sm: float, expected: str) -> None:
    """Without the engine's activity, what was seen at work must fill as much as leaves no gap."""
    judged = verdict(decode(graphics=None, sm=sm, dram=None, tensor=0.05, gpu_util_ratio=0.9))
    assert judged.key == ("unknown", "insufficient-evidence")
    assert verdict(decode(graphics=None, sm=sm, dram=sm, tensor=0.05, gpu_util_ratio=0.7)).verdict == expected


def test_an_unknown_card_is_judged_with_care() -> None:
    """A card of no row is judged by common numbers, and never surer than 0.6."""
    for load in (gemm, decode, starved, idle_held):
        assert verdict(load(gpu=UNKNOWN_FACTS)).confidence <= 0.60


def test_a_gpu_that_is_lost_is_not_up() -> None:
    """The verdict carries on whether the GPU answers."""
    assert verdict(replace(gemm(), up=False)).up is False


def test_gpus_of_a_host_are_judged_together_and_stay_apart() -> None:
    """One verdict per interval in the same order; peers are evidence, not company."""
    judged = judge([gemm(gpu=h200(0)), starved(gpu=h200(1)), idle_held(gpu=h200(2))])
    assert [one.gpu.index for one in judged] == [0, 1, 2]
    assert [one.verdict for one in judged] == ["healthy", "starving", "idle"]
    assert judge([]) == []


def test_overrides_reach_the_rules() -> None:
    """Numbers from the configuration take the place of the card's."""
    one = decode(graphics=1.0, dram=0.55)
    assert verdict(one).verdict == "unknown"
    assert verdict(one, cards={"h200": {"dram_peak_ratio": 0.8}}).verdict == "memory-bound"


def test_a_busy_gpu_with_no_process_in_the_list_blames_nobody_by_name() -> None:
    """Somebody works unseen: there is a gap, and no tree to ask."""
    judged = verdict(starved(owners=()))
    assert judged.key == ("starving", "undetermined")
    assert verdict(gemm(owners=())).verdict == "healthy"


def test_what_the_verdict_carries_on() -> None:
    """Means, sources, increments and clock events are the interval's own."""
    judged = verdict(gemm(coverage=0.8, reasons={"sw-power-cap": 0.5}, owners=(7, 3)))
    assert judged.signals["tensor_active_ratio"] == pytest.approx(0.9)
    assert judged.sources["tensor_active_ratio"] == "test"
    assert judged.increments["tensor_active_ratio"] == pytest.approx(0.9 * 4.0)
    assert judged.clock_events == {"sw-power-cap": pytest.approx(0.5 * 4.0)}
    assert judged.owners == (3, 7)
    assert verdict(gemm(reasons=None)).clock_events is None


# --- where the time goes: 5 s, practical peaks of H200 tensor 0.93, DRAM 0.92, FP32 0.76

TIMES = {
    # S = 0.93/0.93 = 1 beyond the engine's 0.98: all of it is useful.
    "compute at its peak": (gemm(tensor=0.93), {"useful": 5.0}),
    # S = 0.465/0.93 = 0.5, D = 0.184/0.92 = 0.2: used = 0.7, busy 0.9, gap 0.1.
    "healthy with headroom": (
        gemm(graphics=0.9, tensor=0.465, dram=0.184),
        {"useful": 3.5, "headroom": 1.0, "starving/host-serial": 0.5},
    ),
    # D = 0.736/0.92 = 0.8, S = 0.093/0.93 = 0.1: used = 0.9 of busy 0.96; a gap of 0.04 is nobody's.
    "memory-bound": (
        decode(graphics=0.96, tensor=0.093, dram=0.736),
        {"useful": 4.5, "headroom": 0.3, "unattributed": 0.2},
    ),
    # S = 0.0465/0.93 = 0.05, D = 0.046/0.92 = 0.05: used 0.1 of busy 1.
    "pseudo-peak": (
        stalled(graphics=1.0, tensor=0.0465, dram=0.046),
        {"useful": 0.5, "pseudo-peak/latency-bound": 4.5},
    ),
    # S = 0.186/0.93 = 0.2 of busy 0.3: healthy while it works, and 0.7 of gap.
    "starving": (
        starved(graphics=0.3, tensor=0.186),
        {"useful": 1.0, "headroom": 0.5, "starving/host-serial": 3.5},
    ),
    # Below 0.05 of busy time there is no busy part: slack goes to the gap.
    "hardly busy": (
        starved(graphics=0.04, tensor=0.0093),
        {"useful": 0.05, "starving/host-serial": 4.95},
    ),
    "held": (idle_held(), {"idle/held": 5.0}),
    # S = 0.0093/0.93 = 0.01 of busy 0.04.
    "no demand": (
        idle_held(graphics=0.04, tensor=0.0093, process_tree_hottest_thread_cores=0.2),
        {"useful": 0.05, "idle/no-demand": 4.95},
    ),
    "free": (idle_held(owners=(), power_watts=81.0), {"free": 5.0}),
    # Clock 0.365 of the maximum where a full load holds 0.73: half the speed, half of the use is lost.
    "throttled, full load": (
        gemm(graphics=1.0, tensor=0.744, dram=0.184, reasons={"hw-thermal": 1.0}, sm_clock_hertz=0.365 * MAX),
        # S = 0.8, D = 0.2: used = 1.
        {"useful": 2.5, "throttled/hw-thermal": 2.5},
    ),
    # A light load should hold the maximum: at 0.75 of it a quarter of its use is lost.
    "throttled, light load": (
        stalled(
            graphics=1.0, tensor=0.0465, dram=0.046, reasons={"hw-thermal": 1.0}, sm_clock_hertz=0.75 * MAX
        ),
        {"useful": 0.375, "throttled/hw-thermal": 0.125, "pseudo-peak/latency-bound": 4.5},
    ),
    # DRAM leads: the memory clock tells the speed, here 0.9 of its maximum.
    "throttled, memory leads": (
        decode(
            graphics=1.0,
            tensor=0.0,
            dram=0.736,
            reasons={"hw-thermal": 1.0},
            sm_clock_hertz=0.4 * MAX,
            memory_clock_hertz=0.9 * 3.201e9,
        ),
        # D = 0.8: used 0.8.
        {"useful": 3.6, "throttled/hw-thermal": 0.4, "headroom": 1.0},
    ),
    "throttled, clock not read": (
        gemm(graphics=1.0, tensor=0.93, dram=0.0, reasons={"hw-thermal": 1.0}, sm_clock_hertz=None),
        {"useful": 5.0},
    ),
    # Throttled with a gap of 0.4: each part goes to its own cause. S = 0.279/0.93 = 0.3, k = 0.5.
    "throttled with a gap": (
        whole(graphics=0.6, sm=0.5, tensor=0.279, reasons={"hw-thermal": 1.0}, sm_clock_hertz=0.365 * MAX),
        {
            "useful": 0.75,
            "throttled/hw-thermal": 0.75,
            "headroom": 1.5,
            "starving/host-serial": 2.0,
        },
    ),
    # S = 0.279/0.93 = 0.3 of busy 1: between two verdicts. It is useful as far as it goes, and loses nothing.
    "mixed": (whole(graphics=1.0, sm=0.9, tensor=0.279), {"useful": 1.5, "unattributed": 3.5}),
    "fault": (frozen(), {"unattributed": 5.0}),
}


@pytest.mark.parametrize("name", TIMES)
def test_where_the_time_goes(name: str) -> None:
    """The split of the time follows the formula, by numbers computed by hand."""
    one, expected = TIMES[name]
    judged = verdict(one)
    time = judged.time
    parts = {
        "useful": time.useful,
        "headroom": time.headroom,
        "free": time.free,
        "unattributed": time.unattributed,
        **{"/".join(key): seconds for key, seconds in time.lost.items()},
    }
    assert {key: seconds for key, seconds in parts.items() if seconds > 1e-9} == pytest.approx(expected)
    assert time.observed == 5.0
    assert time.measured == (0.0 if name == "fault" else 5.0)


@pytest.mark.parametrize("unread", ["graphics", "dram", "tensor", "fp64", "fp32", "fp16"])
def test_measured_needs_six_signals(unread: str) -> None:
    """Without any of the six, useful time cannot be told."""
    judged = verdict(starved(**{unread: None}, gpu_util_ratio=0.2))
    assert judged.time.measured == judged.time.useful == judged.time.headroom == 0.0
    assert judged.speed_of_light is None


def test_time_that_was_not_measured_charges_the_gap_only() -> None:
    """GPU-Util of 0.2 leaves 0.8 that surely was a gap; the rest is nobody's."""
    judged = verdict(interval(**HOT_HOST, gpu_util_ratio=0.2, power_watts=250.0))
    assert lost(judged) == {"starving/host-serial": 4.0}
    assert judged.time.unattributed == pytest.approx(1.0)
    free = verdict(interval(owners=(), gpu_util_ratio=0.0, power_watts=80.0))
    assert free.time.free == pytest.approx(5.0)
    assert free.time.lost == {}


def test_a_throttled_gpu_that_was_not_measured_loses_the_gap_only() -> None:
    """Nobody knows how much use a low clock cost where use is not known."""
    judged = verdict(
        interval(**HOT_HOST, gpu_util_ratio=0.9, reasons={"hw-thermal": 1.0}, sm_clock_hertz=0.4 * MAX)
    )
    assert judged.verdict == "throttled"
    assert lost(judged) == {"starving/host-serial": 0.5}


@pytest.mark.parametrize(("gap", "charged"), [(0.051, True), (0.049, False)])
def test_a_small_gap_is_nobodys(gap: float, charged: bool) -> None:
    """Below 0.05 a gap is in the nature of launching kernels."""
    judged = verdict(gemm(graphics=1 - gap, tensor=0.5, dram=0.0))
    assert bool(judged.time.lost) == charged
    assert (judged.gap_cause is not None) == charged


@pytest.mark.parametrize(("busy", "headroom"), [(0.051, True), (0.049, False)])
def test_what_hardly_works_has_no_busy_part(busy: float, headroom: bool) -> None:
    """Below 0.05 of busy time the slack belongs to the gap."""
    judged = verdict(starved(graphics=busy, tensor=0.4 * busy))
    assert (judged.time.headroom > 0) == headroom
    assert (judged.busy_verdict is not None) == headroom


def test_unknown_loses_nothing() -> None:
    """Where the evidence does not decide nobody is accused, and what was measured stays useful."""
    # No host: the ceiling of 0.45 and the edge of the gap leave less than 0.35.
    judged = verdict(whole(**dict.fromkeys(HOT_HOST), graphics=0.59, sm=0.5, tensor=0.465))
    assert judged.key == ("unknown", "insufficient-evidence")
    assert lost(judged) == {}
    assert judged.time.headroom == 0.0
    assert judged.time.measured == 5.0
    assert judged.time.useful == pytest.approx(2.5)
    assert judged.time.unattributed == pytest.approx(2.5)


def test_a_fault_is_measured_as_nothing_however_it_is_called() -> None:
    """Frozen counters in a thin interval are as wrong as in a full one."""
    judged = verdict(frozen(coverage=0.5))
    assert judged.time.measured == judged.time.useful == 0.0


def test_seconds_that_were_not_covered_are_no_data() -> None:
    """The headline gets what was seen, the rest of the interval is no-data."""
    judged = verdict(gemm(coverage=0.8))
    assert judged.time.verdict == pytest.approx({("healthy", "compute"): 4.0, ("unknown", "no-data"): 1.0})
    assert judged.time.observed == 5.0
    assert judged.time.measured == pytest.approx(4.0)
    assert verdict(gemm()).time.verdict == {("healthy", "compute"): 5.0}
    thin = verdict(gemm(coverage=0.5))
    assert thin.time.verdict == pytest.approx(
        {("unknown", "insufficient-evidence"): 2.5, ("unknown", "no-data"): 2.5}
    )


def test_speed_of_light_is_the_busier_of_compute_and_dram() -> None:
    """Each over its practical peak, and never beyond 1."""
    assert verdict(decode(tensor=0.093, dram=0.736)).speed_of_light == pytest.approx(0.8)
    assert verdict(gemm(tensor=0.465)).speed_of_light == pytest.approx(0.5)
    assert verdict(gemm(tensor=0.98)).speed_of_light == 1.0


def test_every_key_is_in_the_vocabulary() -> None:
    """Headline, gap cause, busy verdict and charged seconds use the closed vocabulary."""
    for one, _ in TIMES.values():
        judged = verdict(one)
        keys = {judged.key, *judged.time.verdict, *judged.time.lost}
        keys |= {key for key in (judged.gap_cause, judged.busy_verdict) if key is not None}
        assert keys <= CAUSE_BY_KEY.keys()


def test_what_says_busy_must_have_been_read() -> None:
    """A second of activity is no verdict on five, however long power and clocks were read."""
    whole = gemm()
    stats = {**whole.stats, "graphics_active_ratio": Stat((0.99,), (1.0,))}
    judged = verdict(replace(whole, stats=stats))
    assert judged.key == ("unknown", "insufficient-evidence")
    assert "cover 20%" in (judged.reason or "")
    assert judged.time.measured <= 1.0
    assert judged.time.useful <= 1.0
