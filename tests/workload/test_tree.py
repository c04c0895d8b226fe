"""Whose work it is: the owners' process trees, cut where another GPU's owner begins."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import CgroupSample, HostSample, ProcessSample, Sample
from gpuwhy.source import GpuFacts
from gpuwhy.workload import attribute

JOB = "/system.slice/docker-1.scope"


def process(pid: int, ppid: int = 1, cores: float | None = 0.0, **more: Any) -> ProcessSample:
    return ProcessSample(
        pid, ppid, more.pop("command", "python3"), more.pop("state", "S"), cpu_cores=cores, **more
    )


def host(processes: Iterable[ProcessSample] | None, **more: Any) -> HostSample:
    table = None if processes is None else {each.pid: each for each in processes}
    return HostSample(processes=table, cpus=more.pop("cpus", 16), **more)


def sample(uuid: str, owners: tuple[int, ...] | None, look: HostSample | None, mig: str = "") -> Sample:
    facts = GpuFacts(0, uuid, mig=mig)
    return Sample(facts, 0.0, 1.0, 1.8e9, 1.0, values={"sm_active_ratio": 0.5}, owners=owners, host=look)


def trees(processes: Iterable[ProcessSample], *owners: tuple[int, ...], **more: Any) -> list[Sample]:
    """The samples of GPUs owned by those pids."""
    look = host(processes, **more)
    return attribute([sample(f"GPU-{at}", pids, look) for at, pids in enumerate(owners)])


def cores(samples: list[Sample]) -> list[float | None]:
    return [each.values.get("process_tree_cpu_cores") for each in samples]


# Powers of ten say whose CPU time is in a sum.


def test_tree_is_owner_and_descendants() -> None:
    """The tree holds the owner and all that descends from it, and nobody else."""
    everyone = [
        process(10, 1, 1.0),
        process(11, 10, 10.0),
        process(12, 11, 100.0),
        process(13, 1, 1000.0),
        process(1, 0, 10_000.0),
    ]
    (one,) = trees(everyone, (10,))
    assert one.values["process_tree_cpu_cores"] == 111.0
    assert one.values["process_tree_owner_cpu_cores"] == 1.0
    assert one.values["process_tree_busiest_worker_cores"] == 100.0
    assert one.values["process_tree_busy_workers"] == 2.0
    assert one.values["sm_active_ratio"] == 0.5
    assert one.sources["process_tree_cpu_cores"] == "host"


def test_tree_is_cut_at_the_owner_of_another_gpu() -> None:
    """A child that owns another GPU, and what works for it, is judged there."""
    everyone = [process(10, 1, 1.0), process(11, 10, 10.0), process(12, 10, 100.0), process(13, 12, 1000.0)]
    assert cores(trees(everyone, (10,), (12,))) == [11.0, 1100.0]


def test_mates_of_the_cgroup_belong_to_it() -> None:
    """Processes of the owner's own cgroup work for it, wherever they descend from, with their children."""
    everyone = [
        process(10, 1, 1.0, cgroup=JOB),
        process(20, 1, 10.0, cgroup=JOB),
        process(21, 20, 100.0, cgroup="/other"),
        process(30, 1, 1000.0, cgroup="/system.slice/docker-2.scope"),
        process(31, 1, 10_000.0, cgroup=""),
    ]
    assert cores(trees(everyone, (10,))) == [111.0]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/user.slice",
        "/user.slice/user-1000.slice/",
        "/user.slice/user-1000.slice/session-4.scope",
        "/user.slice/user-1000.slice/user@1000.service",
        "/init.scope",
    ],
)
def test_a_slice_or_a_session_is_no_job(path: str) -> None:
    """What merely shares a login, a slice or the root with the owner does not work for it."""
    everyone = [process(10, 1, 1.0, cgroup=path), process(20, 1, 10.0, cgroup=path)]
    assert cores(trees(everyone, (10,), ())) == [1.0, None]


def test_workers_of_another_rank_in_the_same_cgroup_are_not_shared() -> None:
    """Two ranks of a job in one container keep their own workers; the launcher counts for both."""
    everyone = [
        process(5, 1, 1.0, cgroup=JOB),
        process(10, 5, 10.0, cgroup=JOB),
        process(11, 10, 100.0, cgroup=JOB),
        process(20, 5, 1000.0, cgroup=JOB),
        process(21, 20, 10_000.0, cgroup=JOB),
        process(22, 21, 100_000.0, cgroup=JOB),
    ]
    assert cores(trees(everyone, (10,), (20,))) == [111.0, 111_001.0]


def test_several_owners() -> None:
    """Several owners make one tree; the hottest thread is that of the hottest of them."""
    everyone = [
        process(10, 1, 1.0, hottest_thread_cores=0.3, runqueue_wait=0.1, system_cores=0.5, age_s=50.0),
        process(20, 1, 3.0, hottest_thread_cores=0.9, runqueue_wait=0.2, system_cores=0.5, age_s=20.0),
        process(21, 20, 5.0, hottest_thread_cores=1.0, runqueue_wait=7.0, system_cores=5.0, age_s=1.0),
    ]
    values = trees(everyone, (10, 20, 10))[0].values
    assert values["process_tree_cpu_cores"] == 9.0
    assert values["process_tree_owner_cpu_cores"] == 4.0
    assert values["process_tree_owner_system_ratio"] == 0.25
    assert values["process_tree_hottest_thread_cores"] == 0.9
    assert values["process_tree_runqueue_wait_ratio"] == pytest.approx(0.3)
    assert values["process_tree_age_seconds"] == 20.0
    assert values["process_tree_cpu_ratio"] == 9.0 / 16


def test_owner_of_two_gpus_counts_for_both() -> None:
    """A process that owns two GPUs is in both trees, and so are its workers."""
    everyone = [process(10, 1, 1.0), process(11, 10, 10.0), process(20, 1, 100.0)]
    assert cores(trees(everyone, (10,), (10, 20))) == [11.0, 111.0]


def test_owner_that_descends_from_another_gpus_owner() -> None:
    """An owner below another GPU's owner has its own tree, though its parent is cut off."""
    everyone = [
        process(10, 1, 1.0, cgroup=JOB),
        process(11, 10, 10.0, cgroup=JOB),
        process(12, 11, 100.0, cgroup=JOB),
    ]
    assert cores(trees(everyone, (10,), (11,))) == [1.0, 110.0]


def test_slices_of_one_gpu_are_other_gpus() -> None:
    """The owner of another slice ends the walk like that of another GPU."""
    look = host([process(10, 1, 1.0), process(11, 10, 10.0)])
    both = [sample("GPU-a", (10,), look, mig="1"), sample("GPU-a", (11,), look, mig="2")]
    assert cores(attribute(both)) == [1.0, 10.0]


def test_owner_that_cannot_be_seen() -> None:
    """An owner in another pid namespace is in no list: the tree was not read, which is not idle."""
    (unseen,) = trees([process(10, 1, 1.0)], (999,))
    assert not [name for name in unseen.values if name.startswith("process_tree_")]
    assert unseen.family == frozenset()
    (half,) = trees([process(10, 1, 1.0)], (999, 10))
    assert half.values["process_tree_cpu_cores"] == 1.0


@pytest.mark.parametrize("owners", [None, ()])
def test_without_owners_there_is_no_tree(owners: tuple[int, ...] | None) -> None:
    """Where nobody owns the GPU, or owners were not read, the host's own signals are added only."""
    look = host([process(10, 1, 1.0)], values={"host_cpu_busy_ratio": 0.5})
    (one,) = attribute([sample("GPU-a", owners, look)])
    assert one.values == {"sm_active_ratio": 0.5, "host_cpu_busy_ratio": 0.5}
    assert one.sources == {"host_cpu_busy_ratio": "host"}
    assert one.owners == owners


def test_without_host_or_processes_nothing_is_said() -> None:
    """What was not read of the host is absent."""
    (no_host,) = attribute([sample("GPU-a", (10,), None)])
    assert no_host.values == {"sm_active_ratio": 0.5}
    (no_list,) = attribute([sample("GPU-a", (10,), host(None))])
    assert no_list.values == {"sm_active_ratio": 0.5}
    assert attribute([]) == []


def test_rates_not_read_are_absent() -> None:
    """Processes first seen have no rates: the tree says what is known, which is neither idle nor busy."""
    values = trees([process(10, 1, None, state="", age_s=None), process(11, 10, None, state="")], (10,))[
        0
    ].values
    assert values == {"sm_active_ratio": 0.5}
    values = trees([process(10, 1, None), process(11, 10, 0.75)], (10,))[0].values
    assert values["process_tree_cpu_cores"] == 0.75
    assert values["process_tree_busy_workers"] == 1.0
    assert "process_tree_owner_cpu_cores" not in values
    assert "process_tree_hottest_thread_cores" not in values


def test_thread_is_bounded_by_its_process() -> None:
    """Where threads were not read the owner's CPU time stands in for its hottest thread, up to a core."""
    for used, hottest in ((0.3, 0.3), (4.0, 1.0)):
        (one,) = trees([process(10, 1, used)], (10,))
        assert one.values["process_tree_hottest_thread_cores"] == hottest


def test_system_share_of_next_to_nothing_is_not_said() -> None:
    """The system share of an owner that uses no CPU is not zero, it does not exist."""
    for used, system, share in ((0.0, 0.0, None), (0.01, 0.01, None), (0.5, 0.25, 0.5), (0.5, 0.6, 1.0)):
        (one,) = trees([process(10, 1, used, system_cores=system)], (10,))
        assert one.values.get("process_tree_owner_system_ratio") == share


def test_blocked_is_anyone_of_the_tree() -> None:
    """One process in uninterruptible sleep blocks the tree; one elsewhere does not."""
    blocked = process(11, 10, state="D")
    assert trees([process(10), blocked], (10,))[0].values["process_tree_blocked_ratio"] == 1.0
    other = process(12, 1, state="D")
    assert trees([process(10), other], (10,))[0].values["process_tree_blocked_ratio"] == 0.0


def test_storage_traffic_is_the_trees() -> None:
    """Reads and writes add up over the tree."""
    everyone = [
        process(10, 1, read_bytes_per_second=1.0),
        process(11, 10, read_bytes_per_second=10.0, write_bytes_per_second=5.0),
        process(12, 1, read_bytes_per_second=100.0, write_bytes_per_second=100.0),
    ]
    values = trees(everyone, (10,))[0].values
    assert values["process_tree_read_bytes_per_second"] == 11.0
    assert values["process_tree_write_bytes_per_second"] == 5.0


@pytest.mark.parametrize(
    "quotas, cpus, allowed",
    [
        ({}, 16, 16.0),
        ({10: 0.5}, 16, 0.5),
        ({10: 64.0}, 16, 16.0),
        ({10: 2.0, 20: 3.0}, 16, 5.0),
        ({10: 2.0, 20: None}, 16, 16.0),
        ({10: 2.0}, None, 2.0),
        ({}, None, None),
    ],
)
def test_cores_that_the_tree_may_use(
    quotas: dict[int, float | None], cpus: int | None, allowed: float | None
) -> None:
    """A quota bounds the tree, two add up, one without a quota may use the whole host."""
    pids = tuple(quotas) or (10,)
    everyone = [process(pid, 1, 1.0, cgroup=f"/job{pid}") for pid in pids]
    groups = {pid: CgroupSample(f"/job{pid}", quota) for pid, quota in quotas.items()}
    (one,) = trees(everyone, pids, cgroups=groups, cpus=cpus)
    ratio = one.values.get("process_tree_cpu_ratio")
    assert ratio == (None if allowed is None else len(pids) / allowed)


@pytest.mark.parametrize(
    ("pinned", "allowed"), [((4.0,), 4.0), ((4.0, 4.0), 8.0), ((4.0, None), 16.0), ((16.0, 16.0), 16.0)]
)
def test_affinity_bounds_the_tree(pinned: tuple[float | None, ...], allowed: float) -> None:
    """Owners pinned to few CPUs fill them; one that may run anywhere may use the whole host."""
    pids = tuple(range(10, 10 + len(pinned)))
    processes = [process(pid, cores=1.0, cpus_allowed=cpus) for pid, cpus in zip(pids, pinned, strict=True)]
    (seen,) = trees(processes, pids, cpus=16)
    assert seen.values["process_tree_cpu_ratio"] == pytest.approx(len(pids) / allowed)


def test_owner_of_a_lost_gpu_does_not_work_for_the_others() -> None:
    """A rank whose GPU is lost still cuts the tree of the rank that it descends from."""
    processes = [process(10, cores=0.2), process(11, 10, cores=1.0)]
    look = host(processes, cpus=16)
    here = sample("GPU-a", (10,), look)
    (alone,) = attribute([here])
    (cut,) = attribute([here], {("GPU-b", ""): (11,)})
    assert alone.values["process_tree_busiest_worker_cores"] == 1.0
    assert "process_tree_busiest_worker_cores" not in cut.values
    assert cut.values["process_tree_cpu_cores"] == pytest.approx(0.2)


def test_quota_that_two_owners_share_counts_once() -> None:
    """Two owners in one cgroup share its quota."""
    everyone = [process(10, 1, 1.0, cgroup=JOB), process(20, 1, 1.0, cgroup=JOB)]
    groups = {pid: CgroupSample(JOB, 2.0) for pid in (10, 20)}
    (one,) = trees(everyone, (10, 20), cgroups=groups)
    assert one.values["process_tree_cpu_ratio"] == 1.0


def test_time_held_by_a_quota_is_the_worst_owners() -> None:
    """The owner that a quota holds most counts; other processes' quotas do not."""
    groups = {
        10: CgroupSample("/a", 1.0, 0.1),
        20: CgroupSample("/b", 1.0, 0.4),
        11: CgroupSample("/c", 1.0, 0.9),
    }
    (one,) = trees([process(10), process(20), process(11, 10)], (10, 20), cgroups=groups)
    assert one.values["process_tree_throttled_ratio"] == 0.4
    (unknown,) = trees([process(10)], (10,), cgroups={10: CgroupSample("/a", 1.0, None)})
    assert "process_tree_throttled_ratio" not in unknown.values


# --- families -----------------------------------------------------------------------------------------


def related(first: tuple[int, ...], second: tuple[int, ...], everyone: list[ProcessSample]) -> bool:
    one, other = trees(everyone, first, second)
    return bool(one.family & other.family)


def test_ranks_of_one_launcher_are_a_family() -> None:
    """GPUs whose owners descend from the same process work on one job, also where it was not listed."""
    ranks = [process(10, 5), process(11, 10), process(20, 5)]
    assert related((10,), (20,), ranks)
    assert related((11,), (20,), [process(5, 1), *ranks])


def test_mates_are_a_family() -> None:
    """Owners in one container are a family, whatever they descend from."""
    assert related((10,), (20,), [process(10, 1, cgroup=JOB), process(20, 1, cgroup=JOB)])
    shared = "/user.slice/user-0.slice/session-1.scope"
    assert not related((10,), (20,), [process(10, 1, cgroup=shared), process(20, 1, cgroup=shared)])


def test_owner_of_both_is_a_family() -> None:
    """Two GPUs of one process are a family; two processes under init are none."""
    assert related((10,), (10,), [process(10)])
    assert not related((10,), (20,), [process(10), process(20)])
    assert not related((10,), (), [process(10)])


# --- tables that lie ----------------------------------------------------------------------------------


def test_deep_tree() -> None:
    """A chain longer than Python may recurse is walked."""
    chain = [process(pid, pid - 1, 1.0) for pid in range(10, 10 + 3 * sys.getrecursionlimit())]
    first, last = trees(chain, (10,), (chain[-1].pid,))
    assert first.values["process_tree_cpu_cores"] == len(chain) - 1
    assert last.values["process_tree_cpu_cores"] == 1.0
    assert first.family & last.family


@pytest.mark.parametrize("parents", [{10: 10}, {10: 11, 11: 10}, {10: 12, 11: 10, 12: 11}, {10: 0, 11: -5}])
def test_cycle_ends(parents: dict[int, int]) -> None:
    """A table in which processes are their own ancestors is walked once."""
    everyone = [process(pid, ppid, 1.0, cgroup=JOB) for pid, ppid in parents.items()]
    (one,) = trees(everyone, (10,))
    assert one.values["process_tree_cpu_cores"] == len(parents)


PIDS = st.integers(1, 8)


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        PIDS, st.tuples(st.integers(0, 9), st.sampled_from(["", JOB, "/b", "/c.slice"])), max_size=8
    ),
    st.lists(st.lists(PIDS, max_size=3).map(tuple), min_size=1, max_size=3),
)
def test_any_table_ends_and_splits_fairly(
    table: dict[int, tuple[int, str]], owners: list[tuple[int, ...]]
) -> None:
    """Whatever the table, each process counts at most once in a tree, and none in one that it owns no part of
    while it owns another."""
    everyone = [process(pid, ppid, float(10**pid), cgroup=path) for pid, (ppid, path) in table.items()]
    for each, pids in zip(trees(everyone, *owners), owners, strict=True):
        total = each.values.get("process_tree_cpu_cores", 0.0)
        digits = f"{int(total):010d}"
        assert set(digits) <= {"0", "1"}
        members = {9 - at for at, digit in enumerate(digits) if digit == "1"}
        seen = {pid for pid in pids if pid in table}
        assert seen <= members or not seen
        others = {pid for other in owners for pid in other if pid not in pids}
        assert not members & others
