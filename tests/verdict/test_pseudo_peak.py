"""Pseudo-peak: busy by the engine without work for pipes or DRAM, and its causes."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.rules import pseudo_peak

from .build import NO_WORK, Edge, case, check_edge, each, facts, h200, interval, key, limits, readings, times

CONTEXT_WATTS = 0.18 * 700.0
SPAN = 700.0 - CONTEXT_WATTS
# All SMs resident, drawing power, neither pipes nor DRAM at work: a small kernel inside the L2 cache.
resident = partial(interval, **{**NO_WORK, "graphics": 0.98, "sm": 0.6, "power_watts": 377.0})
nvml = partial(interval, gpu_util_ratio=1.0, power_watts=140.0)


def cause(one: Interval, *peers: Interval) -> str | None:
    found = pseudo_peak.judge(case(one, *peers))
    assert found is None or found.verdict == "pseudo-peak"
    return None if found is None else found.cause


def reduced(one: Interval) -> object:
    return key(pseudo_peak.judge_reduced(case(one)))


def watts(share: float | None) -> float | None:
    return None if share is None else CONTEXT_WATTS + share * SPAN


def ranks(busy: float | None, tensor: float | None = 0.06, **late: float | None) -> tuple[Interval, Interval]:
    """A GPU that spins in a collective, and one of the same job that does the same work in its own time."""
    rank = partial(interval, **{**NO_WORK, "dram": 0.05, "power_watts": 220.0}, family=("pid:1000",))
    waiting = rank(gpu=h200(0), graphics=0.9, sm=0.8, tensor=0.06)
    return waiting, rank(gpu=h200(1), **{"graphics": busy, "sm": busy, "tensor": tensor, **late})


BUSY_PART = [
    Edge(
        "COMPUTE",
        lambda v: resident(tensor=times(v, 0.98 * 0.93)),
        over=None,
        under="latency-bound",
        # A pipe that was not read may be the one that draws the power.
        missing=None,
    ),
    Edge(
        "DRAM", lambda v: resident(dram=times(v, 0.98 * 0.92)), over=None, under="latency-bound", missing=None
    ),
    Edge(
        "LINK",
        lambda v: resident(nvlink_transmit_bytes_per_second=times(v, 450e9)),
        over="communication",
        under="latency-bound",
        missing="latency-bound",
    ),
    Edge(
        "FEW_SMS",
        lambda v: resident(sm=times(v, 0.98)),
        over="latency-bound",
        under="few-sms",
        missing="undetermined",
    ),
    Edge(
        "SPIN_POWER",
        lambda v: resident(sm=0.9, power_watts=watts(times(v, 0.9))),
        over="latency-bound",
        under="spin-wait",
        missing="undetermined",
    ),
    Edge(
        "SPIN_SM",
        lambda v: resident(sm=v, power_watts=130.0),
        over="spin-wait",
        under="latency-bound",
        missing="undetermined",
    ),
    Edge(
        "BLIND_POWER",
        lambda v: resident(fp64=None, fp32=None, power_watts=watts(v), sm=0.2),
        over=None,
        under="few-sms",
        missing=None,
    ),
]
REDUCED = [
    Edge(
        "REDUCED_UTIL",
        lambda v: nvml(gpu_util_ratio=v),
        over=("pseudo-peak", "spin-wait"),
        under=None,
        missing=None,
    ),
    Edge(
        "REDUCED_POWER",
        lambda v: nvml(power_watts=watts(v)),
        over=None,
        under=("pseudo-peak", "spin-wait"),
        missing=None,
    ),
    Edge(
        "REDUCED_MEMORY_UTIL",
        lambda v: nvml(memory_util_ratio=v),
        over=None,
        under=("pseudo-peak", "spin-wait"),
        missing=("pseudo-peak", "spin-wait"),
    ),
]
PEERS = [
    Edge(
        "PEER_BUSY",
        lambda v: ranks(times(v, 0.9)),
        over="latency-bound",
        under="spin-wait",
        missing="latency-bound",
    ),
]


@each(BUSY_PART)
def test_limits(edge: Edge) -> None:
    """Each limit decides between two causes, or between pseudo-peak and none."""
    check_edge(pseudo_peak, edge, cause)


@each(REDUCED)
def test_limits_without_profiling(edge: Edge) -> None:
    """Always resident and hardly any power: both must have been read."""
    check_edge(pseudo_peak, edge, reduced)


@each(PEERS)
def test_limits_of_peers(edge: Edge) -> None:
    """A peer that is less than half as busy with the same work is waited for."""
    check_edge(pseudo_peak, edge, lambda pair: cause(*pair))


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in [*BUSY_PART, *REDUCED, *PEERS]} == limits(pseudo_peak)


def test_causes_in_their_order() -> None:
    """A busy link comes before a late peer, that before few SMs, that before low power, and stalls come last."""
    waiting, late = ranks(0.2)
    assert cause(waiting, late) == "spin-wait"
    link = {"nvlink_receive_bytes_per_second": 300e9}
    rank = partial(
        interval, **{**NO_WORK, "dram": 0.05, "tensor": 0.06, "power_watts": 128.0}, family=("pid:1000",)
    )
    assert cause(rank(graphics=1.0, sm=0.2, **link), late) == "communication"
    assert cause(rank(graphics=1.0, sm=0.2), late) == "spin-wait"
    assert cause(rank(graphics=1.0, sm=0.2)) == "few-sms"
    assert cause(rank(graphics=1.0, sm=0.9)) == "spin-wait"
    assert cause(rank(graphics=1.0, sm=0.9, power_watts=500.0)) == "latency-bound"


@pytest.mark.parametrize(
    ("signal", "rate", "expected"),
    [
        ("nvlink_receive", 200e9, "communication"),
        ("nvlink_transmit", 200e9, "communication"),
        ("pcie_receive", 20e9, "communication"),
        ("pcie_transmit", 20e9, "communication"),
        ("nvlink_receive", 20e9, "latency-bound"),
        ("pcie_receive", 2e9, "latency-bound"),
    ],
)
def test_any_link_in_either_direction(signal: str, rate: float, expected: str) -> None:
    """A collective may run over NVLink or PCIe; control traffic is none."""
    assert cause(resident(**{f"{signal}_bytes_per_second": rate})) == expected


def test_pcie_peak_follows_the_link_that_was_found() -> None:
    """A card in a slot of generation 3 with 8 lanes is full at what a 5.0 x16 hardly notices."""
    slow = h200(pcie_generation=3, pcie_width=8)
    # 0.3 of 8 lanes of 0.8 GB/s.
    assert cause(resident(gpu=slow, pcie_receive_bytes_per_second=1.95e9)) == "communication"
    assert cause(resident(gpu=slow, pcie_receive_bytes_per_second=1.89e9)) == "latency-bound"
    # 0.3 of 16 lanes of 3.2 GB/s.
    assert cause(resident(pcie_receive_bytes_per_second=15.5e9)) == "communication"
    assert cause(resident(pcie_receive_bytes_per_second=15.2e9)) == "latency-bound"
    for unread in ("pcie_generation", "pcie_width"):
        # 0.3 of the row's 56 GB/s.
        gpu = h200(**{unread: None})
        assert cause(resident(gpu=gpu, pcie_receive_bytes_per_second=17e9)) == "communication"
        assert cause(resident(gpu=gpu, pcie_receive_bytes_per_second=16.5e9)) == "latency-bound"


def test_the_late_peer_is_named() -> None:
    """The evidence says which GPU to look at."""
    assert readings(pseudo_peak.judge(case(*ranks(0.2))))["graphics_active_ratio of GPU 1"] == 0.2


@pytest.mark.parametrize(
    ("what", "late"),
    [
        ("other work", {"tensor": 0.03}),
        ("more DRAM", {"dram": 0.09}),
        ("nothing", {"tensor": 0.0, "dram": 0.0}),
        ("what was not read", {"tensor": None}),
    ],
)
def test_a_peer_with_other_work_is_not_waited_for(what: str, late: dict[str, float | None]) -> None:
    """Ranks of one job do the same work, or the lesser one is just another process."""
    assert cause(*ranks(0.2, **late)) == "latency-bound", what


@pytest.mark.parametrize(("tensor", "expected"), [(0.049, "spin-wait"), (0.047, "latency-bound")])
def test_the_same_work_is_the_same_within_a_fifth(tensor: float, expected: str) -> None:
    """Ranks are seldom equal to the percent: a fifth of the greater one is the same."""
    assert cause(*ranks(0.2, tensor=tensor)) == expected


def test_a_stranger_is_not_waited_for() -> None:
    """GPUs of another job do not explain this one."""
    waiting, late = ranks(0.2)
    stranger = interval(
        gpu=h200(1), family=("pid:7",), **{**NO_WORK, "graphics": 0.2, "tensor": 0.06, "dram": 0.05}
    )
    assert cause(waiting, stranger) == "latency-bound"
    assert cause(waiting, stranger, late) == "spin-wait"


@pytest.mark.parametrize("pipe", ["tensor", "fp64", "fp32", "fp16"])
def test_a_pipe_that_was_not_read_may_be_the_one_that_works(pipe: str) -> None:
    """Power that one unseen pipe could draw leaves it open; without such power nothing is hidden."""
    assert cause(resident(**{pipe: None}, power_watts=315.0)) is None
    assert cause(resident(**{pipe: None}, power_watts=130.0)) == "spin-wait"


@pytest.mark.parametrize("missing", ["dram", "graphics"])
def test_without_dram_or_busy_time_nothing_is_concluded(missing: str) -> None:
    """DRAM may carry the load, and a short busy time may be dense."""
    assert cause(resident(**{missing: None}, tensor=0.2)) is None


def test_busy_time_that_is_only_bounded_must_convince_at_its_shortest() -> None:
    """With SM activity 0.65 and GPU-Util 1, tensor activity of 0.18 may be 0.18 or 0.28 of the busy time."""
    bounded = partial(resident, graphics=None, gpu_util_ratio=1.0, sm=0.65)
    assert cause(bounded(tensor=0.18)) is None
    assert cause(bounded(tensor=0.10)) == "latency-bound"


def test_low_power_alone_proves_nothing() -> None:
    """Decode on an H200 draws 137 to 300 of 700 W: with DRAM at work it is never pseudo-peak."""
    assert cause(resident(dram=0.62, power_watts=137.0)) is None
    assert reduced(nvml(power_watts=137.0, memory_util_ratio=0.95)) is None


def test_a_slice_is_not_judged_by_the_whole_boards_power() -> None:
    """On a MIG slice power tells nothing, and its SMs are always all that are seen."""
    part = h200(mig="1", share_ratio=1 / 7)
    assert cause(resident(gpu=part, sm=0.9, power_watts=130.0)) == "undetermined"


def test_without_profiling_it_is_a_guess() -> None:
    """GPU-Util and power cannot tell a spinning kernel from one that is bound by latency."""
    found = pseudo_peak.judge_reduced(case(nvml()))
    assert found is not None
    assert found.ceiling <= 0.45
    assert reduced(nvml(gpu=facts("Something else"))) is None


def test_evidence_is_what_was_read() -> None:
    """Values are the signals' own means, tests are in their unit."""
    found = pseudo_peak.judge(case(resident(sm=0.3)))
    assert found is not None
    assert readings(found) == {
        "graphics_active_ratio": 0.98,
        "tensor_active_ratio": 0.0,
        "dram_active_ratio": 0.0,
        "sm_active_ratio": 0.3,
    }
    # COMPUTE and DRAM times busy times peak, and FEW_SMS times busy.
    limits_in_their_unit = [0.25 * 0.98 * 0.93, 0.55 * 0.98 * 0.92, 0.4 * 0.98]
    assert [item.test for item in found.evidence] == [
        "busy",
        *(f"< {limit:.3g}" for limit in limits_in_their_unit),
    ]
