"""Series of workloads: born at 0, bounded, gone after their time, and never broken by a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.catalog import SERIES, WORKLOAD, WORKLOAD_KINDS
from gpuwhy.exporter import Health, Ledger
from gpuwhy.exporter.workloads import MOST_RUNS
from gpuwhy.sample import Tenant, Workload
from gpuwhy.verdict.types import TimeSplit
from gpuwhy.verdict.vocabulary import VERDICTS
from gpuwhy.workload.directory import OTHER

Make = Callable[..., Any]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(most_workloads=3, retention_s=60.0)


@pytest.fixture
def seen(ledger: Ledger, read: Make) -> Make:
    """What a scrape of the ledger says now."""
    return lambda: read(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))


@pytest.fixture
def credit(ledger: Ledger, judge: Make, facts: Make) -> Make:
    def go(*workloads: Any, end_s: float = 100.0, gpu: int = 0) -> None:
        verdict = judge(facts(gpu), workloads=workloads, start_s=end_s - 5, end_s=end_s)
        ledger.credit([verdict], None, {})

    return go


def test_born_at_zero(ledger: Ledger, seen: Make, facts: Make) -> None:
    """A workload that was seen has all its verdicts at 0 before its first interval; causes come as they occur."""
    ledger.add_gpu(facts(0))
    llama = Workload("kubernetes", "llama", "ml", "research")
    assert ledger.add_workloads(facts(0), [llama])
    assert not ledger.add_workloads(facts(0), [llama])
    scrape = seen()
    labels = {
        "gpu": "0",
        "workload_kind": "kubernetes",
        "workload": "llama",
        "workload_namespace": "ml",
        "workload_owner": "research",
    }
    for verdict in VERDICTS:
        assert scrape.get("workload_verdict_seconds_total", verdict=verdict, **labels) == 0
    assert scrape.get("workload_useful_seconds_total", **labels) == 0
    assert scrape.get("workload_measured_seconds_total", **labels) == 0
    assert scrape.count("workload_lost_seconds_total") == 0
    assert scrape.count("workload_share_ratio") == scrape.count("workload_info") == 0
    assert scrape.get("workloads_overflowed_total") == 0


def test_seconds_add_up(credit: Make, seen: Make, tenancy: Make) -> None:
    """Each interval adds its seconds; share and runs are those of the last one."""
    credit(tenancy())
    again = replace(tenancy().tenants[0], run="llama-1")
    credit(tenancy(ratio=0.25, tenants=(again, tenancy().tenants[0]), profile="latency"), end_s=105.0)
    scrape = seen()
    assert scrape.get("workload_verdict_seconds_total", verdict="starving") == 10
    assert scrape.get("workload_lost_seconds_total", verdict="starving", cause="copy") == 7
    assert scrape.get("workload_useful_seconds_total") == 2
    assert scrape.get("workload_measured_seconds_total") == 10
    assert scrape.get("workload_share_ratio") == 0.25
    assert scrape.get("workload_info", run="llama-0", profile="latency") == 1
    assert scrape.get("workload_info", run="llama-1") == 1
    credit(end_s=110.0)
    scrape = seen()
    assert scrape.count("workload_share_ratio") == scrape.count("workload_info") == 0
    assert scrape.get("workload_verdict_seconds_total", verdict="starving") == 10
    assert scrape.get("workload_lost_seconds_total", verdict="starving", cause="copy") == 7


def test_a_new_cause_is_shown_at_zero_first(credit: Make, seen: Make, tenancy: Make) -> None:
    """Prometheus counts from the first value that it sees; what was lost before is added with the next interval."""
    credit(tenancy())
    assert seen().get("workload_lost_seconds_total", verdict="starving", cause="copy") == 0
    credit(end_s=105.0)
    assert seen().get("workload_lost_seconds_total", verdict="starving", cause="copy") == 3.5


def named(tenancy: Make, name: str) -> Any:
    workload = Workload("process", name)
    return tenancy(workload=workload, tenants=(Tenant(workload),))


def test_no_more_workloads_than_allowed(credit: Make, seen: Make, tenancy: Make) -> None:
    """What comes when all places are taken is other; it counts once, however long it stays, and on all GPUs."""
    credit(*(named(tenancy, name) for name in "abcde"))
    credit(*(named(tenancy, name) for name in "abcd"), end_s=105.0)
    scrape = seen()
    kept = {dict(labels)["workload"] for name, labels in scrape.values if "workload_verdict" in name}
    assert kept == {"a", "b", "c", "other"}
    assert scrape.total("workload_verdict_seconds_total", workload="other", workload_kind="other") == 15
    assert scrape.get("workloads_overflowed_total") == 2
    # Intervals close late beside a slow source: one who is seen at each reading came but once.
    credit(*(named(tenancy, name) for name in "abcde"), end_s=110.0)
    assert seen().get("workloads_overflowed_total") == 2


def test_one_who_left_keeps_nobody_out(credit: Make, seen: Make, tenancy: Make) -> None:
    """The place of whoever has had no time for longest goes to who comes."""
    credit(*(named(tenancy, name) for name in "abc"))
    credit(*(named(tenancy, name) for name in "bc"), end_s=105.0)
    credit(named(tenancy, "d"), named(tenancy, "b"), end_s=110.0)
    scrape = seen()
    assert {dict(labels)["workload"] for name, labels in scrape.values if "workload_verdict" in name} == set(
        "bcd"
    )
    assert scrape.get("workloads_overflowed_total") == 0
    assert scrape.get("workload_useful_seconds_total", workload="d") == 1


@pytest.mark.parametrize("order", ["nab", "anb", "abn"])
def test_one_who_runs_keeps_its_place(credit: Make, seen: Make, tenancy: Make, order: str) -> None:
    """Wherever in the list a newcomer stands, whoever has time in the same interval is not erased for it."""
    credit(*(named(tenancy, name) for name in "abc"))
    for at in range(3):
        credit(*(named(tenancy, name) for name in f"{order}c"), end_s=105.0 + 5 * at)
    scrape = seen()
    for name in "abc":
        assert scrape.get("workload_useful_seconds_total", workload=name) == 4
    assert scrape.count("workload_useful_seconds_total", workload="n") == 0


def test_who_was_refused_once_stays_when_it_has_a_place(credit: Make, seen: Make, tenancy: Make) -> None:
    """That it was refused is forgotten, and not the workload with it."""
    credit(*(named(tenancy, name) for name in "abcd"))
    for at in range(20):
        credit(named(tenancy, "d"), end_s=105.0 + 5 * at)
    assert seen().get("workload_useful_seconds_total", workload="d") == 20


def test_names_that_flood_keep_nobody_out_for_long(credit: Make, seen: Make, tenancy: Make) -> None:
    """Whoever takes all places with names that last for one interval loses them with the next."""
    credit(*(named(tenancy, name) for name in "xyz"), end_s=100.0)
    for at in range(3):
        credit(named(tenancy, "victim"), end_s=105.0 + 5 * at)
    assert seen().get("workload_useful_seconds_total", workload="victim") == 3


def test_an_ended_one_leaves_after_its_time(credit: Make, seen: Make, tenancy: Make) -> None:
    """Its series go once it has had no time for so long, its place is free, and it begins at 0 again."""
    credit(*(named(tenancy, name) for name in "abc"))
    for end_s in (130.0, 160.0):
        credit(named(tenancy, "a"), end_s=end_s)
    assert seen().count("workload_useful_seconds_total") == 3
    credit(named(tenancy, "a"), end_s=161.0)
    assert seen().count("workload_useful_seconds_total") == 1
    credit(named(tenancy, "d"), named(tenancy, "b"), end_s=165.0)
    scrape = seen()
    assert scrape.get("workload_useful_seconds_total", workload="b") == 1
    assert scrape.get("workload_useful_seconds_total", workload="d") == 1
    assert scrape.count("workload_useful_seconds_total", workload="other") == 0


def test_an_interval_without_a_gpu_changes_nothing(ledger: Ledger, seen: Make, facts: Make) -> None:
    ledger.add_workloads(facts(0), [Workload("process", "young")])
    ledger.credit([], None, {})
    assert seen().count("workload_useful_seconds_total", workload="young") == 1


def test_a_renumbered_gpu_keeps_its_number(
    ledger: Ledger, seen: Make, facts: Make, judge: Make, tenancy: Make
) -> None:
    """What was bound to the UUID when it was first seen is on all of its series."""
    uuid = facts(1).uuid
    ledger.credit([judge(facts(1), workloads=(named(tenancy, "a"),))], None, {})
    ledger.credit([judge(facts(0, uuid=uuid), workloads=(named(tenancy, "b"),))], None, {})
    ledger.add_workloads(facts(0, uuid=uuid), [Workload("process", "c")])
    gpus = {dict(labels)["gpu"] for name, labels in seen().values if "workload_" in name and labels}
    assert gpus == {"1"}


def test_runs_are_forgotten(ledger: Ledger, credit: Make, seen: Make, tenancy: Make) -> None:
    """A workload of very many runs, one after the other, keeps none of them."""
    import sys

    workload = tenancy().workload

    def size() -> int:
        rows = ledger._workloads._rows.values()
        return sum(
            sys.getsizeof(row._prefixes) + len(row._prefixes) for each in rows for row in each.values()
        )

    credit(tenancy())
    seen()
    before = size()
    for at in range(50):
        credit(tenancy(tenants=(Tenant(workload, run=f"run-{at}"),)), end_s=105.0 + at)
        assert seen().get("workload_info", run=f"run-{at}") == 1
    assert size() <= before + 16


def test_one_that_was_shown_and_never_had_time_leaves_too(
    ledger: Ledger, credit: Make, seen: Make, tenancy: Make, facts: Make
) -> None:
    ledger.add_workloads(facts(0), [Workload("process", "brief")])
    credit(named(tenancy, "a"))
    assert seen().count("workload_useful_seconds_total", workload="brief") == 1
    credit(named(tenancy, "a"), end_s=161.0)
    assert seen().count("workload_useful_seconds_total", workload="brief") == 0


def test_a_gpu_that_is_taken_apart_takes_its_workloads_along(
    ledger: Ledger, credit: Make, seen: Make, tenancy: Make, facts: Make
) -> None:
    credit(tenancy())
    ledger.retire_gpu(facts(0).key)
    assert seen().count("workload_useful_seconds_total") == 0


def test_runs_are_bounded(credit: Make, seen: Make, tenancy: Make) -> None:
    workload = tenancy().workload
    credit(tenancy(tenants=tuple(Tenant(workload, run=str(at)) for at in range(MOST_RUNS + 20))))
    assert seen().count("workload_info") == MOST_RUNS


def test_what_has_no_place_in_the_vocabulary_is_dropped(credit: Make, seen: Make, tenancy: Make) -> None:
    """A verdict that does not exist and a value that is no number cost themselves only, and are counted."""
    time = TimeSplit(
        observed=5.0, useful=float("nan"), lost={("no", "such"): 1.0}, verdict={("no", "x"): 5.0}
    )
    credit(tenancy(time=time))
    scrape = seen()
    assert scrape.get("workload_useful_seconds_total") == 0
    assert scrape.get("values_dropped_total") == 3


@given(names=st.tuples(*[st.text(max_size=20)] * 4))
def test_no_name_breaks_the_scrape(
    judge: Make, tenancy: Make, read: Make, names: tuple[str, str, str, str]
) -> None:
    """Whatever a workload is called, the exposition can be parsed and says it back, surrogates aside."""
    name, namespace, owner, run = names
    workload = Workload("process", name, namespace, owner)
    ledger = Ledger()
    ledger.credit(
        [judge(workloads=(tenancy(workload=workload, tenants=(Tenant(workload, run=run),)),))], None, {}
    )
    scrape = read(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))
    assert scrape.get("workload_info", workload_kind="process") == 1
    found = next(dict(labels) for metric, labels in scrape.values if metric == "gpuwhy_workload_info")
    shown = [text.encode("utf-8", "replace").decode() for text in (name, namespace, owner, run)]
    if not any("\ud800" <= letter <= "\udfff" for text in names for letter in text):
        assert [found[label] for label in (*WORKLOAD[1:], "run")] == shown


def test_kinds_are_a_closed_list() -> None:
    assert OTHER.kind in WORKLOAD_KINDS
    assert {series.labels[3:7] for series in SERIES if series.origin == "workload"} == {WORKLOAD}
