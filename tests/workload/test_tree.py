"""Whose work it is: the owners' process trees, cut where another GPU's owner begins."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import CgroupSample, HostSample, ProcessSample, Sample, Tenant, Workload
from gpuwhy.source import GpuFacts
from gpuwhy.verdict.rules.idle import NOTHING
from gpuwhy.workload import attribute
from gpuwhy.workload.directory import BROKER, UNKNOWN
from gpuwhy.workload.tree import STILL

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


# --- what the cgroup tells


def in_job(*cores: float, used: float | None, more: Iterable[ProcessSample] = (), **group: Any) -> Sample:
    """An owner and its workers in one group that used so much."""
    everyone = [process(10 + at, 1 if at == 0 else 10, each, cgroup=JOB) for at, each in enumerate(cores)]
    groups = {10: CgroupSample(JOB, cpu_cores=used, **group)}
    return trees([*everyone, *more], (10,), cgroups=groups)[0]


@pytest.mark.parametrize(("used", "told"), [(None, 1.5), (0.2, 1.5), (1.55, 1.5), (1.7, 1.7), (9.0, 9.0)])
def test_cpu_time_of_processes_that_nobody_saw(used: float | None, told: float) -> None:
    """Workers that live for a blink show in their group, and only where that says clearly more."""
    values = in_job(1.0, 0.5, used=used).values
    assert values["process_tree_cpu_cores"] == pytest.approx(told)
    assert values["process_tree_cpu_ratio"] == pytest.approx(told / 16)
    assert values["process_tree_owner_cpu_cores"] == 1.0
    assert values["process_tree_busiest_worker_cores"] == 0.5


def test_a_group_that_others_share_is_not_the_trees() -> None:
    """What two GPUs' owners used together cannot be told apart."""
    ranks = [process(10, 1, 1.0, cgroup=JOB), process(20, 1, 1.0, cgroup=f"{JOB}/step_1")]
    groups = {10: CgroupSample(JOB, cpu_cores=9.0), 20: CgroupSample(f"{JOB}/step_1", cpu_cores=1.0)}
    assert cores(trees(ranks, (10,), (20,), cgroups=groups)) == [1.0, 1.0]


def test_what_is_below_a_group_counts_once() -> None:
    """CPU time of a group holds that of the groups below."""
    below = [process(30, 10, 2.0, cgroup=f"{JOB}/task_0"), process(31, 10, 4.0, cgroup=f"{JOB}0")]
    assert in_job(1.0, used=5.0, more=below).values["process_tree_cpu_cores"] == 9.0
    owners = [process(10, 1, 1.0, cgroup=JOB), process(20, 1, 1.0, cgroup=f"{JOB}/task_0")]
    groups = {10: CgroupSample(JOB, cpu_cores=5.0), 20: CgroupSample(f"{JOB}/task_0", cpu_cores=4.0)}
    (both,) = trees(owners, (10, 20), cgroups=groups)
    assert both.values["process_tree_cpu_cores"] == 5.0


def test_workers_that_are_looked_at_in_turn_are_not_missed() -> None:
    """CPU time of who was not looked at this time is no stranger's: the rates as last known say so."""
    held = [process(11 + at, 10, 0.5, cgroup=JOB, gained_cores=0.0) for at in range(4)]
    assert in_job(1.0, used=3.0, more=held).values["process_tree_cpu_cores"] == 1.0


def test_sums_take_what_came_to_light_and_the_busiest_its_own_rate() -> None:
    """A worker that is looked at every second time counts whole in the sum, and once as the busiest."""
    (now,) = trees([process(10), process(11, 10, 0.9, gained_cores=1.8)], (10,))
    (then,) = trees([process(10), process(11, 10, 0.9, gained_cores=0.0)], (10,))
    assert [each.values["process_tree_cpu_cores"] for each in (now, then)] == [1.8, 0.0]
    assert [each.values["process_tree_busiest_worker_cores"] for each in (now, then)] == [0.9, 0.9]
    assert [each.values["process_tree_busy_workers"] for each in (now, then)] == [1.0, 1.0]


def test_pressure_is_the_worst_owners() -> None:
    """The owners' own groups tell what some task of them waited for."""
    groups = {
        10: CgroupSample("/a", cpu_pressure_ratio=0.1, io_pressure_ratio=0.6),
        20: CgroupSample("/b", cpu_pressure_ratio=0.3),
    }
    values = trees([process(10), process(20)], (10, 20), cgroups=groups)[0].values
    assert values["process_tree_cpu_pressure_ratio"] == 0.3
    assert values["process_tree_io_pressure_ratio"] == 0.6
    assert "process_tree_io_pressure_ratio" not in trees([process(10)], (10,))[0].values


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


# --- workloads


class People:
    """A directory that knows what it is told: pids by workload, and grants."""

    def __init__(self, tenants: dict[int, Tenant | None], granted: Iterable[Tenant] = ()) -> None:
        self.tenants = tenants
        self.grants = tuple(granted)

    def follow(self, gpus: Any) -> None:
        pass

    def tenant(self, pid: int) -> Tenant | None:
        return self.tenants.get(pid, UNKNOWN)

    def granted(self, key: tuple[str, str]) -> tuple[Tenant, ...]:
        return self.grants

    def holder(self, pod: str) -> Tenant:
        return Tenant(Workload("kubernetes", pod.partition("/")[2], pod.partition("/")[0]))


A, B = (Tenant(Workload("slurm", name, owner="ann"), run=f"{name}1") for name in "ab")
A2 = Tenant(A.workload, run="a2")


def shares(
    people: People,
    owners: tuple[int, ...] | None,
    processes: Iterable[ProcessSample] = (),
    **more: Any,
) -> dict[str, tuple[float, str]] | None:
    """Parts and what they rest on, by the workload's name."""
    one = replace(sample("GPU-0", owners, host(processes) if processes else None), **more)
    (found,) = attribute([one], directory=people)
    return None if found.shares is None else {
        each.workload.name: (each.ratio, each.basis) for each in found.shares
    }  # fmt: skip


def test_without_a_directory_nobody_is_named() -> None:
    assert attribute([sample("GPU-0", (10,), None)])[0].shares is None


def test_all_of_an_owners_time_is_its_workloads() -> None:
    """One workload has all, also in several processes and runs; nobody has what nobody holds."""
    assert shares(People({10: A, 11: A2}), (10, 11)) == {"a": (1.0, "alone")}
    (found,) = attribute([sample("GPU-0", (10, 11), None)], directory=People({10: A, 11: A2}))
    assert found.shares is not None
    assert found.shares[0].tenants == (A, A2)
    assert shares(People({}), ()) == {}


def test_what_is_not_known_yet_has_its_part() -> None:
    """While one of the owners is being found out it has a part of its own, which is nobody else's."""
    assert shares(People({10: A, 11: None}), (10, 11)) == {"a": (0.5, "even"), "11": (0.5, "even")}
    use = {10: 0.1, 11: 0.3}
    assert shares(People({10: A, 11: None}), (10, 11), process_use=use) == {
        "a": (0.25, "utilization"),
        "11": (pytest.approx(0.75), "utilization"),
    }
    assert shares(People({}), None) is None


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (None, {"a": (0.5, "even"), "b": (0.5, "even")}),
        ({}, {"a": (0.5, "even"), "b": (0.5, "even")}),
        ({10: 0.0, 20: 0.0}, {"a": (0.5, "even"), "b": (0.5, "even")}),
        ({10: 0.1, 11: 0.2, 20: 0.1}, {"a": (0.75, "utilization"), "b": (0.25, "utilization")}),
        ({10: 0.4, 99: 0.4}, {"a": (1.0, "utilization"), "b": (0.0, "utilization")}),
    ],
)
def test_two_have_parts_by_use_or_even_ones(use: dict[int, float] | None, expected: Any) -> None:
    """Several share by what the driver says of their processes, and evenly where it says nothing."""
    found = shares(People({10: A, 11: A2, 20: B}), (10, 11, 20), process_use=use)
    assert found == {name: (pytest.approx(ratio), basis) for name, (ratio, basis) in expected.items()}


def test_a_grant_counts_where_nobody_works() -> None:
    """A GPU without a process is its grant's, also by the word of an exporter; with one, the process's."""
    assert shares(People({10: A}, [B]), ()) == {"b": (1.0, "granted")}
    assert shares(People({10: A}, [A, B]), ()) == {"a": (0.5, "granted"), "b": (0.5, "granted")}
    assert shares(People({10: A}, [B]), (10,)) == {"a": (1.0, "alone")}
    assert shares(People({}), (), holder="ml/llama-0") == {"llama-0": (1.0, "granted")}
    assert shares(People({}), (), holder="ml/a-0,ml/b-0") == {
        "a-0": (0.5, "granted"),
        "b-0": (0.5, "granted"),
    }


def test_a_grant_without_a_list_of_processes_says_whose_it_is_alone() -> None:
    """Where nobody lists processes, a grant does not say that nothing runs."""
    assert shares(People({}), None, holder="ml/llama-0") == {"llama-0": (1.0, "alone")}
    assert shares(People({}, [B]), None) == {"b": (1.0, "alone")}
    assert shares(People({}, [A, B]), None) == {"a": (0.5, "even"), "b": (0.5, "even")}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"graphics_active_ratio": 0.0}, {"b": (1.0, "granted")}),
        ({"graphics_active_ratio": 0.01, "gpu_util_ratio": 0.0}, {"a": (1.0, "alone")}),
        ({"gpu_util_ratio": 0.0}, {"b": (1.0, "granted")}),
        ({}, {"a": (1.0, "alone")}),
    ],
)
def test_who_only_holds_a_context_does_not_keep_others_off(values: dict[str, float], expected: Any) -> None:
    """A monitor's context on a GPU that was given to a job, and on which nothing runs, leaves it the job's."""
    assert shares(People({10: A}, [B]), (10,), values=values) == expected


def test_a_process_out_of_sight_is_its_grants() -> None:
    """Owners in another pid namespace are the pod's that was granted the GPU, if there is one."""
    assert shares(People({10: UNKNOWN}, [B]), (10,)) == {"b": (1.0, "alone")}
    assert shares(People({10: UNKNOWN}), (10,)) == {"unknown": (1.0, "alone")}
    both = {"a": (0.5, "even"), "b": (0.5, "even")}
    assert shares(People({10: UNKNOWN, 11: A}, [B]), (10, 11)) == both
    assert shares(People({10: UNKNOWN, 11: A}, [A, B]), (10, 11)) == both
    assert shares(People({10: UNKNOWN, 11: A}, [A]), (10, 11)) == {"a": (1.0, "alone")}
    assert shares(People({10: UNKNOWN}, [A, B]), (10,)) == {"unknown": (1.0, "alone")}


def test_who_is_being_found_out_may_be_out_of_sight() -> None:
    """Until it is known, the share holds whom the GPU was granted to, for the case that nobody ever sees it."""
    for granted, expected in (([B], B), ([A, B], UNKNOWN), ([], UNKNOWN)):
        one = sample("GPU-0", (10,), None)
        (found,) = attribute([one], directory=People({10: None}, granted))
        (share,) = found.shares or ()
        assert share.workload == Workload("pending", "10")
        assert share.tenants == (expected,)


def test_a_broker_has_no_part() -> None:
    """The MPS server beside its clients is none of them; alone it holds the GPU for nobody."""
    assert shares(People({10: BROKER, 11: A}), (10, 11)) == {"a": (1.0, "alone")}
    assert shares(People({10: BROKER}), (10,)) == {}
    assert shares(People({10: BROKER}, [B]), (10,)) == {"b": (1.0, "granted")}


def test_a_board_that_is_split_is_nobodys() -> None:
    one = replace(sample("GPU-0", (), None), gpu=GpuFacts(0, "GPU-0", split=True))
    assert attribute([one], directory=People({}, [B]))[0].shares == ()


def test_those_who_share_have_trees_of_their_own() -> None:
    """Where two share a GPU, each one's tree has its own processes and none of the other's."""
    everyone = [
        process(10, 1, 1.0),
        process(11, 10, 10.0),
        process(20, 10, 100.0),
        process(21, 20, 1000.0),
    ]
    one = sample("GPU-0", (10, 20), host(everyone))
    (found,) = attribute([one], directory=People({10: A, 20: B}))
    assert found.values["process_tree_cpu_cores"] == 1111.0
    assert [share.values["process_tree_cpu_cores"] for share in found.shares or ()] == [11.0, 1100.0]
    (alone,) = attribute([one], directory=People({10: A, 20: A}))
    (own,) = alone.shares or ()
    assert own.values["process_tree_cpu_cores"] == 1111.0
    (half,) = attribute([one], directory=People({10: A, 20: UNKNOWN}))
    assert [share.values.get("process_tree_cpu_cores") for share in half.shares or ()] == [11.0, 1100.0]


def test_still_is_what_the_rules_call_nothing() -> None:
    """The stage before the verdict may not import it, and must not have another number."""
    assert NOTHING.value == STILL


def test_a_slow_sources_sample_names_nobody() -> None:
    """Beside the sample that has the processes, one without would count the time twice."""
    quick = sample("GPU-0", (10,), None)
    slow = replace(quick, owners=None)
    found = attribute([quick, slow], directory=People({10: A}, [B]))
    assert [each.shares is None for each in found] == [False, True]
