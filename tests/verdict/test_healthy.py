"""Healthy: a pipe carries the busy time, alone or together with DRAM."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.cards import find
from gpuwhy.verdict.rules import healthy

from .build import NO_WORK, Edge, case, check_edge, each, facts, interval, key, limits, readings, times

COMPUTE = ("healthy", "compute")
OFF_TENSOR = ("healthy", "compute-off-tensor")
CONTEXT_WATTS = 0.18 * 700.0
busy = partial(interval, **{**NO_WORK, "graphics": 0.9, "sm": 0.85})
nvml = partial(interval, gpu_util_ratio=0.99, power_watts=690.0)


def profiled(one: Interval) -> object:
    return key(healthy.judge(case(one)))


def reduced(one: Interval) -> object:
    return key(healthy.judge_reduced(case(one)))


def span(share: float | None) -> float | None:
    return None if share is None else CONTEXT_WATTS + share * (700.0 - CONTEXT_WATTS)


PROFILED = [
    Edge("DENSITY", lambda v: busy(tensor=times(v, 0.9 * 0.93)), over=COMPUTE, under=None, missing=None),
    Edge(
        "TOGETHER",
        lambda v: busy(tensor=0.25 * 0.9 * 0.93, dram=None if v is None else (v - 0.25) * 0.9 * 0.92),
        over=COMPUTE,
        under=None,
        missing=None,
    ),
    Edge(
        "TOGETHER_COMPUTE",
        lambda v: busy(tensor=times(v, 0.9 * 0.93), dram=0.6 * 0.9 * 0.92),
        over=COMPUTE,
        under=None,
        missing=None,
    ),
]
REDUCED = [
    Edge("UTIL", lambda v: nvml(gpu_util_ratio=v), over=COMPUTE, under=None, missing=None),
    Edge("POWER", lambda v: nvml(power_watts=span(v)), over=COMPUTE, under=None, missing=None),
]


@each(PROFILED)
def test_limits(edge: Edge) -> None:
    """Compute decides per busy time, and with it DRAM."""
    check_edge(healthy, edge, profiled)


@each(REDUCED)
def test_limits_without_profiling(edge: Edge) -> None:
    """GPU-Util and power must both say that something works."""
    check_edge(healthy, edge, reduced)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in [*PROFILED, *REDUCED]} == limits(healthy)


@pytest.mark.parametrize(
    ("pipe", "expected"),
    [
        ("tensor", COMPUTE),
        ("fp64", OFF_TENSOR),
        ("fp32", OFF_TENSOR),
        ("fp16", OFF_TENSOR),
        ("int", OFF_TENSOR),
    ],
)
def test_each_pipe_can_be_the_one(pipe: str, expected: object) -> None:
    """Science in FP64, an FP32 burn and integer hashing are work as much as tensor cores are."""
    found = healthy.judge(case(busy(**{pipe: 0.75})))
    assert key(found) == expected
    assert readings(found) == {f"{pipe}_active_ratio": 0.75}
    # In the unit of the reading: DENSITY of the 0.9 that the engine is busy, times the pipe's peak.
    peak = {"tensor": 0.93, "fp64": 0.80, "fp32": 0.76, "fp16": 0.76, "int": 1.0}[pipe]
    assert found is not None
    assert found.evidence[0].test == f">= {0.35 * 0.9 * peak:.3g}"


@pytest.mark.parametrize("pipe", ["tensor", "fp64", "fp32", "fp16"])
def test_what_was_not_read_is_no_work(pipe: str) -> None:
    """Without the pipe that works nothing is healthy, and without any nothing is judged."""
    assert profiled(busy(**{pipe: None})) is None
    assert profiled(interval(graphics=0.9)) is None
    assert profiled(interval(graphics=0.9, int=0.9)) is None


@pytest.mark.parametrize(("integer", "expected"), [(0.44, None), (0.46, OFF_TENSOR)])
def test_integer_counts_from_half_of_the_busy_time(integer: float, expected: object) -> None:
    """Address arithmetic runs beside every kernel; only in bulk it is the work itself."""
    assert profiled(busy(int=integer)) == expected


def test_compute_with_dram_names_both() -> None:
    """Where neither alone is enough the evidence holds both."""
    found = healthy.judge(case(busy(tensor=0.25, dram=0.5)))
    assert key(found) == COMPUTE
    assert readings(found) == {"tensor_active_ratio": 0.25, "dram_active_ratio": 0.5}
    assert found is not None
    assert found.evidence[0].test == f">= {0.2 * 0.9 * 0.93:.3g}"


def test_integer_work_that_waits_for_dram_is_not_compute() -> None:
    """A sort moves keys: with DRAM busy the integer pipe is no limit."""
    assert profiled(busy(int=0.6, dram=0.6)) is None


def test_integer_work_does_not_hide_a_busier_pipe() -> None:
    """The busiest pipe over its own peak names the cause."""
    assert profiled(busy(int=0.5, tensor=0.6)) == COMPUTE


def test_short_bursts_count_by_density() -> None:
    """A GPU that is busy a tenth of the time and computes in it is healthy while it is."""
    assert profiled(busy(graphics=0.1, tensor=0.08)) == COMPUTE


def test_a_geforce_tops_at_half_of_its_tensor_counter() -> None:
    """The peak is the card's: 0.2 of the scale is 0.4 of what an RTX 4090 can show."""
    assert profiled(busy(gpu=facts("NVIDIA GeForce RTX 4090"), tensor=0.2)) == COMPUTE
    assert profiled(busy(tensor=0.2)) is None


def test_full_power_at_full_limit_is_no_matter_without_profiling() -> None:
    """Power between an idle context and the limit is what counts; a card of unknown limit is not judged."""
    assert reduced(nvml(gpu=facts("NVIDIA H200", limit=350, default=700), power_watts=345.0)) == COMPUTE
    assert reduced(nvml(gpu=facts("Something else"))) is None
    assert find("Something else").known is False


def test_without_profiling_it_is_a_guess() -> None:
    """A power virus draws as much as useful work."""
    found = healthy.judge_reduced(case(nvml()))
    assert found is not None
    assert found.ceiling <= 0.45
