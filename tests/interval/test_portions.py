"""Samples' shares to workloads' portions of an interval."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.interval import Interval, IntervalBuilder
from gpuwhy.interval.builder import MOST_PORTIONS
from gpuwhy.sample import Sample, Share, Tenant, Workload
from gpuwhy.source import GpuFacts, GpuReading, Reading
from gpuwhy.workload.directory import BROKER, OTHER, PENDING, UNKNOWN

GPU = GpuFacts(0, "GPU-0")
A, B = Workload("slurm", "a"), Workload("slurm", "b")


def share(workload: Workload, ratio: float = 1.0, basis: str = "alone", **values: float) -> Share:
    return Share(workload, ratio, basis, (Tenant(workload, run=f"{workload.name}1"),), values)


def interval(*samples: tuple[Share, ...] | None, name_of: Any = lambda _: None) -> Interval:
    """The interval of five seconds in which each second has these shares."""
    builder = IntervalBuilder(5.0, name_of=name_of)
    done: list[list[Interval]] = []
    for at, shares in enumerate(samples):
        end = 101.0 + at
        one = Sample(GPU, end - 1, end, end, 1.0, {"sm_active_ratio": 0.5}, owners=(1,), shares=shares)
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


def test_seconds_without_a_list_follow_the_others() -> None:
    """Where the list of processes was not read for a moment, it is as likely whoever had the rest; where it
    was not for most of the time, that is nobody's.
    """
    (portion,) = interval(None, None, *[(share(A),)] * 3).portions
    assert portion.ratio == pytest.approx(1.0)
    (portion,) = interval(*[None] * 4, (share(A),)).portions
    assert portion.ratio == pytest.approx(0.2)
    assert interval(*[None] * 5).portions == ()


def test_who_was_being_found_out_is_named_at_the_end() -> None:
    """A process that had no name when it was seen has one when its interval closes, or is unknown."""
    early = (Share(Workload(PENDING, "10"), 0.5, "even", (UNKNOWN,)), share(B, 0.5, "even"))
    late = (share(A, 0.5, "even"), share(B, 0.5, "even"))
    known = {10: Tenant(A, run="a1")}
    portions = interval(early, early, *[late] * 3, name_of=known.get).portions
    assert {each.workload: each.ratio for each in portions} == {
        A: pytest.approx(0.5),
        B: pytest.approx(0.5),
    }
    assert portions[0].tenants == (Tenant(A, run="a1"),)
    portions = interval(*[early] * 5).portions
    assert {each.workload: each.ratio for each in portions} == {
        UNKNOWN.workload: pytest.approx(0.5),
        B: pytest.approx(0.5),
    }


def test_who_stays_out_of_sight_is_whom_the_gpu_was_granted_to() -> None:
    """A pid that nobody ever sees is what it was taken for at the time."""
    granted = Tenant(A, run="a1")
    early = (Share(Workload(PENDING, "10"), 1.0, "alone", (granted,)),)
    (portion,) = interval(*[early] * 5, name_of=lambda _: UNKNOWN).portions
    assert (portion.workload, portion.tenants) == (A, (granted,))


def test_a_broker_that_was_being_found_out_leaves_its_part() -> None:
    """What turns out to hold a context for others has no time; they have all of it."""
    early = (Share(Workload(PENDING, "10"), 0.5, "even", (UNKNOWN,)), share(B, 0.5, "even"))
    (portion,) = interval(*[early] * 5, name_of=lambda _: BROKER).portions
    assert (portion.workload, portion.ratio) == (B, pytest.approx(1.0))
    assert interval(*[early[:1]] * 5, name_of=lambda _: BROKER).portions == ()


def test_very_many_are_other() -> None:
    """No more than so many have portions of their own, those with most of the time."""
    crowd = tuple(share(Workload("process", str(at)), 1 / 200, "even") for at in range(200))
    portions = interval(*[crowd] * 5).portions
    assert len(portions) == MOST_PORTIONS
    assert portions[-1].workload == OTHER
    assert sum(each.ratio for each in portions) == pytest.approx(1.0)


def test_values_have_their_seconds() -> None:
    """A workload's own signals are means over the time that it shared."""
    shared = (share(A, 0.25, "utilization", cores=1.0), share(B, 0.75, "utilization", cores=3.0))
    later = (share(A, 0.25, "utilization", cores=2.0), share(B, 0.75, "utilization"))
    a, b = interval(*[shared] * 3, *[later] * 2).portions
    assert (a.ratio, b.ratio, a.basis) == (pytest.approx(0.25), pytest.approx(0.75), "utilization")
    assert a.stats["cores"].mean == pytest.approx(1.4)
    assert b.stats["cores"].covered_s == pytest.approx(3.0)


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
