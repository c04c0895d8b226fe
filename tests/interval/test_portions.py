"""Samples' shares to workloads' portions of an interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.interval import Interval, IntervalBuilder
from gpuwhy.sample import Sample, Share, Tenant, Workload
from gpuwhy.source import GpuFacts, GpuReading, Reading

GPU = GpuFacts(0, "GPU-0")
A, B = Workload("slurm", "a"), Workload("slurm", "b")


def share(workload: Workload, ratio: float = 1.0, basis: str = "alone", **values: float) -> Share:
    return Share(workload, ratio, basis, (Tenant(workload, run=f"{workload.name}1"),), values)


def interval(*samples: tuple[Share, ...] | None, owners: tuple[int, ...] | None = (1,)) -> Interval:
    """The interval of five seconds in which each second has these shares."""
    builder = IntervalBuilder(5.0)
    done: list[list[Interval]] = []
    for at, shares in enumerate(samples):
        end = 101.0 + at
        one = Sample(
            GPU, end - 1, end, end, 1.0, {"sm_active_ratio": 0.5}, owners=owners, shares=shares
        )  # fmt: skip
        done += builder.add(Reading(end, end, 1.0, 1.0, (GpuReading(GPU),)), [one])
    ((only,),) = done
    return only


def test_one_all_the_time() -> None:
    (portion,) = interval(*[(share(A),)] * 5).portions
    assert (portion.workload, portion.ratio, portion.basis) == (A, pytest.approx(1.0), "alone")
    assert portion.tenants == (Tenant(A, run="a1"),)


def test_one_after_the_other() -> None:
    """Who had the GPU for two of five seconds has two fifths, and who left no more than its time."""
    portions = interval((share(A),), (share(A),), (), (share(B),), (share(B),)).portions
    assert {each.workload: each.ratio for each in portions} == {
        A: pytest.approx(0.4),
        B: pytest.approx(0.4),
    }


def test_seconds_without_a_name_follow_the_others() -> None:
    """Where the first second's owner was not known yet, it is as likely whoever had the rest."""
    (portion,) = interval(None, *[(share(A),)] * 4).portions
    assert portion.ratio == pytest.approx(1.0)
    assert interval(*[None] * 5).portions == ()


def test_values_have_their_seconds() -> None:
    """A workload's own signals are means over the time that it shared."""
    shared = (share(A, 0.25, "utilization", cores=1.0), share(B, 0.75, "utilization", cores=3.0))
    later = (share(A, 0.25, "utilization", cores=2.0), share(B, 0.75, "utilization"))
    a, b = interval(*[shared] * 3, *[later] * 2).portions
    assert (a.ratio, b.ratio, a.basis) == (pytest.approx(0.25), pytest.approx(0.75), "utilization")
    assert a.stats["cores"].mean == pytest.approx(1.4)
    assert b.stats["cores"].covered_s == pytest.approx(3.0)


def test_a_slow_source_does_not_count_twice() -> None:
    """Samples without a process list lie beside those that have one, and do not name anyone then."""
    builder = IntervalBuilder(5.0)
    done: list[list[Interval]] = []
    for at in range(5):
        end = 101.0 + at
        quick = Sample(GPU, end - 1, end, end, 1.0, {"a": 1.0}, owners=(1,), shares=(share(A),))
        slow = replace(quick, owners=None, shares=(share(B, basis="granted"),))
        done += builder.add(Reading(end, end, 1.0, 1.0, (GpuReading(GPU),)), [quick, slow])
    assert [portion.workload for portion in done[0][0].portions] == [A]


@given(
    st.lists(
        st.none() | st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 1.0)), max_size=3),
        min_size=5,
        max_size=5,
    )
)
def test_portions_add_up_to_at_most_the_interval(rows: list[list[tuple[str, float]] | None]) -> None:
    """Whoever comes and goes, the portions are parts of one GPU."""
    seconds: list[tuple[Share, ...] | None] = []
    for row in rows:
        total = sum(ratio for _, ratio in row or ()) or 1.0
        seconds.append(
            None
            if row is None
            else tuple(share(Workload("process", name), ratio / total, "even") for name, ratio in row)
        )
    portions = interval(*seconds).portions
    assert sum(each.ratio for each in portions) <= 1 + 1e-9
    assert all(0 <= each.ratio <= 1 for each in portions)
