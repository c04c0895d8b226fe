"""Readings that contradict each other, and readings that only look so."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.rules import telemetry
from gpuwhy.verdict.rules.telemetry import COUNTERS

from .build import H200, PIPES, Edge, case, check_edge, each, h200, interval, key, limits, readings, verdict

ALL_ZERO = dict.fromkeys(("graphics", "sm", "dram", *PIPES), 0.0)
frozen = partial(interval, **ALL_ZERO)
CONTEXT_WATTS = 0.18 * 700.0
FAULT = ("unknown", "telemetry-fault")
# Counters that stand at what a GEMM shows, on a GPU that does nothing.
stuck = partial(
    interval,
    **{**ALL_ZERO, "graphics": 0.98, "sm": 0.94, "tensor": 0.91},
    gpu_util_ratio=0.0,
    power_watts=120.0,
)


def span(share: float | None) -> float | None:
    """Watts at a share of the span from an idle context to the limit."""
    return None if share is None else CONTEXT_WATTS + share * (700.0 - CONTEXT_WATTS)


def judged(one: Interval) -> object:
    return key(telemetry.judge(case(one)))


EDGES = [
    Edge(
        "UTIL", lambda v: frozen(gpu_util_ratio=v, power_watts=600.0), over=FAULT, under=None, missing=FAULT
    ),
    Edge(
        "POWER",
        lambda v: frozen(gpu_util_ratio=0.98, power_watts=span(v)),
        over=FAULT,
        under=None,
        missing=FAULT,
    ),
    Edge("WORKING", lambda v: stuck(tensor=v), over=FAULT, under=None, missing=None),
    Edge("NO_UTIL", lambda v: stuck(gpu_util_ratio=v), over=None, under=FAULT, missing=None),
    Edge("NO_POWER", lambda v: stuck(power_watts=span(v)), over=None, under=FAULT, missing=None),
]


@each(EDGES)
def test_limits(edge: Edge) -> None:
    """Both GPU-Util and power must say that the GPU works; one that was not read leaves it to the other."""
    check_edge(telemetry, edge, judged)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in EDGES} == limits(telemetry)


def test_counters_stuck_at_work_are_a_fault() -> None:
    """Counters that say GEMM on the power of an idle context say nothing of the workload."""
    found = telemetry.judge(case(stuck()))
    assert key(found) == FAULT
    assert found is not None
    assert found.reason
    assert readings(found) == {"tensor_active_ratio": 0.91, "gpu_util_ratio": 0.0, "power_watts": 120.0}


def test_frozen_counters_are_a_fault() -> None:
    """Counters at exactly 0 while GPU-Util and power are high say nothing of the workload."""
    found = telemetry.judge(case(frozen(gpu_util_ratio=0.98, power_watts=690.0)))
    assert key(found) == FAULT
    assert found is not None
    assert found.reason
    assert readings(found) == {"gpu_util_ratio": 0.98, "graphics_active_ratio": 0.0, "power_watts": 690.0}


@pytest.mark.parametrize("alive", COUNTERS)
def test_one_counter_that_moves_is_enough_to_trust_them(alive: str) -> None:
    """A copy reads GPU-Util near 1 with hardly any activity, but never exactly none everywhere."""
    assert judged(frozen(**{alive: 1e-4}, gpu_util_ratio=0.98, power_watts=600.0)) is None


def test_an_idle_gpu_is_no_fault() -> None:
    """A GPU that does nothing also reads exactly 0."""
    assert judged(frozen(gpu_util_ratio=0.0, power_watts=81.0)) is None


def test_gpu_util_that_is_stuck_is_no_fault_of_the_counters() -> None:
    """GPU-Util at 1 with the power of an idle card: the counters are right (a known fault of GPU-Util)."""
    assert judged(frozen(gpu_util_ratio=1.0, power_watts=120.0)) is None


def test_nothing_read_is_no_fault() -> None:
    """Absent counters contradict nobody, and neither do readings without any witness."""
    assert judged(interval(gpu_util_ratio=0.98, power_watts=690.0)) is None
    assert judged(interval(tensor=0.0, dram=0.0, gpu_util_ratio=0.98, power_watts=690.0)) is None
    assert judged(frozen()) is None


def test_a_slice_is_not_accused_by_the_whole_boards_power() -> None:
    """An idle MIG slice reads 0 while its neighbours heat the board."""
    assert judged(frozen(gpu=h200(mig="3", share_ratio=1 / 7), power_watts=600.0)) is None


def test_instant_power_will_do() -> None:
    """Cards that give no mean power give an instant one."""
    found = telemetry.judge(case(frozen(gpu_util_ratio=0.98, power_instant_watts=690.0)))
    assert list(readings(found)) == ["gpu_util_ratio", "graphics_active_ratio", "power_instant_watts"]


def test_a_fault_tells_nothing_of_the_time() -> None:
    """Readings that are wrong are measured as nothing: neither useful nor lost, and no speed of light."""
    judged_fault = verdict(frozen(gpu=H200, gpu_util_ratio=0.98, power_watts=690.0, sm_clock_hertz=1.4e9))
    assert judged_fault.key == FAULT
    assert judged_fault.speed_of_light is None
    assert judged_fault.time.measured == judged_fault.time.useful == 0.0
    assert judged_fault.time.lost == {}
    assert judged_fault.time.unattributed == pytest.approx(5.0)
