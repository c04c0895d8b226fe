"""Whose verdict it is: workloads that share a GPU, that hold one and run nothing, and what they aim at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.interval import Interval, Portion, Stat
from gpuwhy.sample import Tenant, Workload
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.engine import WORKS_PARKED_RATIO, WORKS_RATIO

from .build import HOT_HOST, QUIET_HOST, case, interval, verdict
from .test_engine import gemm

LOADER = Workload("slurm", "loader", owner="ann")
SERVER = Workload("kubernetes", "server", "serving", "serving")
ASLEEP = {**QUIET_HOST, "process_tree_hottest_thread_cores": 0.2, "process_tree_cpu_cores": 0.2}


def portion(
    workload: Workload = LOADER,
    ratio: float = 1.0,
    basis: str = "alone",
    signals: dict[str, float] | None = None,
    **tenant: Any,
) -> Portion:
    stats = {name: Stat((value,), (5.0,)) for name, value in (signals or {}).items()}
    return Portion(workload, ratio, basis, (Tenant(workload, run="r1", **tenant),), stats)


def shared(*portions: Portion, **signals: Any) -> Interval:
    """A GPU that stands still for most of the time, with one hot thread among its owners."""
    one = interval(
        graphics=0.2, sm=0.1, tensor=0.05, dram=0.05, fp64=0.0, fp32=0.0, fp16=0.0,
        sm_clock_hertz=1.98e9, **{**HOT_HOST, **signals},
    )  # fmt: skip
    return replace(one, portions=portions)


def two(
    first: dict[str, float], second: dict[str, float], basis: str = "even", ratio: float = 0.5
) -> Verdict:
    """The verdict on a GPU of two, whose process trees do this."""
    portions = (
        portion(LOADER, 1 - ratio, basis, first),
        portion(SERVER, ratio, basis, second),
    )
    return verdict(shared(*portions))


def test_alone_the_gpus_verdict_is_the_workloads() -> None:
    """One workload has the GPU's verdict, evidence and time."""
    found = verdict(shared(portion()))
    (own,) = found.workloads
    assert (own.verdict, own.cause, own.evidence) == (found.verdict, found.cause, found.evidence)
    assert own.time == found.time
    assert own.workload is LOADER


def test_what_nobody_read_is_nobodys() -> None:
    """Time without readings is the GPU's alone, and a part of the interval counts as that part."""
    one = gemm(coverage=0.8)
    found = verdict(replace(one, portions=(portion(ratio=0.5),)))
    (own,) = found.workloads
    assert found.time.verdict["unknown", "no-data"] == pytest.approx(1.0)
    assert own.time.verdict == {("healthy", "compute"): pytest.approx(2.0)}
    assert own.time.observed == pytest.approx(2.0)
    assert own.time.useful == pytest.approx(found.time.useful / 2)
    assert not verdict(replace(gemm(coverage=0.0), portions=(portion(),))).workloads


def test_both_held_up_is_starving() -> None:
    """A GPU that two workloads leave waiting starves, each with the cause of its own tree."""
    worker = {**HOT_HOST, "process_tree_busiest_worker_cores": 1.0}
    found = two(HOT_HOST, worker)
    assert found.verdict == "starving"
    assert [each.key for each in found.workloads] == [
        ("starving", "host-serial"),
        ("starving", "cpu-preprocess"),
    ]


def test_one_of_two_that_pauses_is_no_starving_gpu() -> None:
    """Where one works and wants nothing more, the gap may be its pause: the GPU's verdict is open, and both
    workloads have theirs.
    """
    found = two(HOT_HOST, ASLEEP)
    assert (found.verdict, found.cause) == ("unknown", "mixed")
    assert "loader starving/host-serial" in (found.reason or "")
    assert "serving/server idle/no-demand" in (found.reason or "")
    loader, server = found.workloads
    assert (loader.verdict, server.verdict) == ("starving", "idle")
    assert loader.time.lost.keys() == {("starving", "host-serial")}
    assert not found.time.lost


@pytest.mark.parametrize(("ratio", "expected"), [(WORKS_RATIO.value - 0.01, "starving"), (0.3, "unknown")])
def test_one_that_does_not_work_has_no_say(ratio: float, expected: str) -> None:
    """By the driver's estimate a workload that hardly uses the GPU leaves the other's verdict alone."""
    assert two(HOT_HOST, ASLEEP, "utilization", ratio).verdict == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(WORKS_PARKED_RATIO.value - 0.01, "starving"), (WORKS_PARKED_RATIO.value + 0.01, "unknown")],
)
def test_an_estimate_for_one_that_is_parked_has_to_be_large(ratio: float, expected: str) -> None:
    """The driver's estimate of a few seconds errs; a long kernel of one whose threads sleep shows clearly."""
    assert two(HOT_HOST, QUIET_HOST, "utilization", ratio).verdict == expected


def test_a_parked_one_has_no_say() -> None:
    """Without an estimate, one whose threads all sleep is not at work."""
    assert two(HOT_HOST, QUIET_HOST).verdict == "starving"


@pytest.mark.parametrize("basis", ["utilization", "even"])
def test_one_that_nobody_sees_is_not_judged_by_the_others(basis: str) -> None:
    """A workload without a process tree has no host evidence, and a GPU that it works on is not starving."""
    found = verdict(shared(portion(LOADER, 0.5, basis, HOT_HOST), portion(SERVER, 0.5, basis)))
    loader, server = found.workloads
    assert loader.key == ("starving", "host-serial")
    assert server.cause != "host-serial"
    assert found.key == ("unknown", "mixed")
    assert "loader" in (found.reason or "")
    assert "serving/server" in (found.reason or "")


def test_a_hidden_one_that_does_not_work_has_no_say() -> None:
    one = shared(portion(LOADER, 0.99, "utilization", HOT_HOST), portion(SERVER, 0.01, "utilization"))
    assert verdict(one).key == ("starving", "host-serial")


def test_a_neighbours_peers_are_not_a_workloads() -> None:
    """That somebody on this GPU works with another GPU is nothing of who shares it: no case of one has peers."""
    one = case(shared(portion(LOADER, 0.5, "even", HOT_HOST)), gemm())
    assert one.peers
    assert not one.of_portion(portion(SERVER, 0.5, "even", HOT_HOST), "unknown", "").peers


def test_work_that_fills_the_gpu_needs_no_host() -> None:
    """Two on a busy GPU have its busy verdict, whatever their hosts do."""
    one = replace(
        gemm(), portions=(portion(LOADER, 0.5, "even", HOT_HOST), portion(SERVER, 0.5, "even", ASLEEP))
    )
    found = verdict(one)
    assert {found.key, *(each.key for each in found.workloads)} == {("healthy", "compute")}


@pytest.mark.parametrize(
    ("parts", "mebibytes", "causes"),
    [
        ((0.8, 0.2), 110.0, ["launch-bound", "host-serial"]),
        ((0.5, 0.5), 200.0, ["launch-bound", "launch-bound"]),
        ((0.5, 0.5), 80.0, ["host-serial", "host-serial"]),
    ],
)
def test_launches_have_their_part_of_the_buss_traffic(
    parts: tuple[float, float], mebibytes: float, causes: list[str]
) -> None:
    """Launches of one of two are not the other's: each has its part of the bytes beside its own CPU time."""
    one = shared(
        *(
            portion(who, part, "utilization", HOT_HOST)
            for who, part in zip((LOADER, SERVER), parts, strict=True)
        ),
        pcie_receive_bytes_per_second=mebibytes * 2**20,
    )
    assert [each.cause for each in verdict(one).workloads] == causes


def test_a_copy_of_the_gpu_is_a_copy_of_both() -> None:
    """The limit of a copy is the bus's: parts of one that is above it are."""
    one = shared(
        portion(LOADER, 0.5, "even", HOT_HOST),
        portion(SERVER, 0.5, "even", HOT_HOST),
        pcie_receive_bytes_per_second=1.2e9,
    )
    one = replace(one, stats={**one.stats, "graphics_active_ratio": Stat((0.03,), (5.0,))})
    assert verdict(one).key == ("starving", "copy")
    assert {each.key for each in verdict(one).workloads} == {("starving", "copy")}


def nothing(**others: Any) -> Interval:
    """A GPU without a process that stands still."""
    known = {"graphics": 0.0, "sm": 0.0, "tensor": 0.0, "dram": 0.0, "fp64": 0.0, "fp32": 0.0, "fp16": 0.0}
    return interval(owners=(), power_watts=80.0, memory_used_bytes=0.5e9, **{**known, **others})


def test_a_gpu_given_to_a_job_that_runs_nothing_is_held() -> None:
    """No process and no grant is free; with a grant it is that job's idle time, lost and not free."""
    assert verdict(nothing()).key == ("idle", "free")
    found = verdict(replace(nothing(), portions=(portion(SERVER, 1.0, "granted"),)))
    assert found.key == ("idle", "held")
    assert found.confidence > 0.8
    assert any("granted to kubernetes serving/server" in seen.test for seen in found.evidence)
    assert found.time.free == 0
    (own,) = found.workloads
    assert own.time.lost == {("idle", "held"): pytest.approx(5.0)}


def test_a_grant_says_nothing_of_a_gpu_that_works() -> None:
    """With work on it, a granted GPU is judged by that."""
    busy = replace(gemm(), portions=(portion(SERVER, 1.0, "granted"),), owners=None)
    assert verdict(busy).key == ("healthy", "compute")


@pytest.mark.parametrize(
    ("tenants", "host", "profile", "hint"),
    [
        ([{}], "latency", "latency", ""),
        ([{"profile": "throughput", "hint": "pod label"}], "latency", "throughput", "pod label"),
        ([{"profile": "latency", "hint": "Slurm comment"}], "unknown", "latency", "Slurm comment"),
        ([{"profile": "latency", "hint": "a"}, {"profile": "latency", "hint": "b"}], "unknown", "latency", "a"),
        ([{"profile": "latency", "hint": "a"}, {}], "unknown", "unknown", ""),
        ([{"profile": "latency", "hint": "a"}, {"profile": "throughput", "hint": "b"}], "unknown", "unknown", ""),
    ],
)  # fmt: skip
def test_the_workloads_profile_is_what_it_is_judged_by(
    tenants: list[dict[str, str]], host: str, profile: str, hint: str
) -> None:
    """What all runs of the GPU's workloads say alike goes before the host's profile; its origin is evidence."""
    runs = tuple(Tenant(LOADER, run=str(at), **said) for at, said in enumerate(tenants))
    # A gap of 0.55 is one for throughput and none for latency.
    one = shared(replace(portion(), tenants=runs))
    (found,) = judge([one], profile=host)
    (own,) = found.workloads
    assert (own.profile, own.hint) == (profile, hint)
    said = next(seen.test for seen in found.evidence if seen.signal == "graphics_active_ratio")
    assert ("latency profile" in said) == (profile == "latency")
    if profile == "latency":
        assert said == f"< 0.3 (latency profile by {hint or 'agent.profile'})"


def test_each_of_two_has_its_own_profile() -> None:
    """A server that aims at latency does not starve at a gap that a training job beside it would."""
    one = replace(
        shared(
            portion(LOADER, 0.5, "even", HOT_HOST),
            portion(SERVER, 0.5, "even", HOT_HOST, profile="latency", hint="pod label"),
        ),
        stats={**shared().stats, "graphics_active_ratio": Stat((0.5,), (5.0,))},
    )
    loader, server = verdict(one).workloads
    assert loader.verdict == "starving"
    assert server.verdict != "starving"


@given(
    ratios=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    busy=st.floats(0.0, 1.0),
    hot=st.floats(0.0, 1.0),
)
def test_parts_never_exceed_the_gpu(ratios: list[float], busy: float, hot: float) -> None:
    """However a GPU is shared, its workloads' seconds add up to no more than its own, and to no less than
    what was read where their parts add up to all of it.
    """
    whole = sum(ratios) or 1.0
    portions = [
        portion(
            Workload("process", str(at)),
            ratio / whole,
            "even",
            {**QUIET_HOST, "process_tree_hottest_thread_cores": hot},
        )
        for at, ratio in enumerate(ratios)
    ]
    one = replace(
        interval(graphics=busy, sm=busy, tensor=busy / 2, dram=busy / 3, fp64=0.0, fp32=0.0, fp16=0.0),
        portions=tuple(portions),
    )
    found = verdict(one)
    seconds = sum(sum(each.time.verdict.values()) for each in found.workloads)
    assert seconds == pytest.approx(5.0 * sum(each.ratio for each in portions))
    assert sum(each.time.useful for each in found.workloads) <= found.time.useful + 1e-9
    for each in found.workloads:
        parts = each.time.useful + each.time.headroom + each.time.free + sum(each.time.lost.values())
        assert parts <= each.time.observed + 1e-9
