"""Memory-bound: DRAM near its practical peak per busy time, and leading."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.rules import memory_bound

from .build import NO_WORK, Edge, case, check_edge, each, facts, interval, key, limits, readings, times

BOUND = ("memory-bound", "bandwidth")
decode = partial(interval, **{**NO_WORK, "graphics": 0.98, "sm": 0.9, "tensor": 0.07, "dram": 0.86})
nvml = partial(interval, gpu_util_ratio=0.99, memory_util_ratio=0.97, power_watts=300.0)


def profiled(one: Interval) -> object:
    return key(memory_bound.judge(case(one)))


def reduced(one: Interval) -> object:
    return key(memory_bound.judge_reduced(case(one)))


PROFILED = [
    Edge("DENSITY", lambda v: decode(dram=times(v, 0.98 * 0.92)), over=BOUND, under=None, missing=None),
]
REDUCED = [
    Edge("UTIL", lambda v: nvml(gpu_util_ratio=v), over=BOUND, under=None, missing=None),
    Edge("MEMORY_UTIL", lambda v: nvml(memory_util_ratio=v), over=BOUND, under=None, missing=None),
]


@each(PROFILED)
def test_limits(edge: Edge) -> None:
    """DRAM decides per busy time; without it nothing is memory-bound."""
    check_edge(memory_bound, edge, profiled)


@each(REDUCED)
def test_limits_without_profiling(edge: Edge) -> None:
    """NVML's two utilisations must both be high."""
    check_edge(memory_bound, edge, reduced)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in [*PROFILED, *REDUCED]} == limits(memory_bound)


def test_evidence_is_what_was_read() -> None:
    """The test stands in the unit of the reading: DRAM activity over the interval, not a density."""
    found = memory_bound.judge(case(decode(graphics=0.5, dram=0.43)))
    assert found is not None
    assert readings(found) == {"dram_active_ratio": 0.43, "tensor_active_ratio": 0.07}
    assert found.evidence[0].test == f">= {0.65 * 0.5 * 0.92:.3g}"


@pytest.mark.parametrize(("tensor", "expected"), [(0.79, BOUND), (0.82, None)])
def test_dram_must_lead(tensor: float, expected: object) -> None:
    """Both over their peaks: what is nearer to its own is the limit."""
    assert profiled(decode(dram=0.80, tensor=tensor)) == expected


def test_the_peak_is_the_cards() -> None:
    """0.55 is out of reach on HBM and well used on GDDR."""
    assert profiled(decode(gpu=facts("NVIDIA L4"), graphics=0.98, dram=0.55)) == BOUND
    assert profiled(decode(graphics=0.98, dram=0.55)) is None


def test_pipes_that_were_not_read_do_not_excuse_dram() -> None:
    """DRAM at its peak is the limit, whatever pipes there are to read."""
    assert profiled(interval(graphics=0.98, dram=0.9)) == BOUND
    assert readings(memory_bound.judge(case(interval(graphics=0.98, dram=0.9)))) == {"dram_active_ratio": 0.9}


def test_without_profiling_it_is_a_guess() -> None:
    """Memory that is touched all the time may be touched in tiny pieces."""
    found = memory_bound.judge_reduced(case(nvml()))
    assert found is not None
    assert found.ceiling <= 0.45
