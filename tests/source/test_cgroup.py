"""Control groups: version 1, version 2, hybrids, and names as seen from a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwhy.source.cgroup import LIMITS_EVERY, belongs_to_one_job
from gpuwhy.source.host import GROUPS_EACH_LOOK

from .fake_host import FakeHost, by_pid

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
CONTAINER = f"{POD}/cri-containerd-{'a' * 64}.scope"


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def cgroup_of(fake: FakeHost, pid: int = 10) -> dict[str, Any]:
    reading = fake.read(fake.source(), pid)
    assert reading.cgroups is not None
    return dict(reading.cgroups[str(pid)])


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/docker-0123.scope",
        "/kubepods/burstable/pod1/0123",
        "/slurm/uid_1000/job_42/step_0",
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service",
        "/../../pod2/0123",
        "/docker/0123/",
    ],
)
def test_a_group_of_one_job(path: str) -> None:
    """Containers, steps, services and scopes hold what works on one thing."""
    assert belongs_to_one_job(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/..",
        "/../..",
        "/init.scope",
        "/user.slice",
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service",
        "/system.slice/slurmd.service",
        "/system.slice/ssh.service",
    ],
)
def test_a_group_of_many(path: str) -> None:
    """Roots, slices, logins and what starts others' work tell nothing about whose it is."""
    assert not belongs_to_one_job(path)


def test_version_2_takes_the_tightest_level(fake: FakeHost) -> None:
    """The quota that holds a process may be an ancestor's; its counters say how often it did."""
    fake.process(10, cgroup=f"0::/{CONTAINER}\n")
    fake.put_cgroup("cgroup.controllers", "cpu memory\n")
    fake.put_cgroup(f"{CONTAINER}/cpu.max", "400000 100000\n")
    fake.put_cgroup(f"{CONTAINER}/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 0\nthrottled_usec 0\n")
    fake.put_cgroup(f"{CONTAINER}/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\n")
    fake.put_cgroup(f"{POD}/cpu.max", "100000 50000\n")
    fake.put_cgroup(f"{POD}/cpu.stat", "usage_usec 6\nnr_periods 9\nnr_throttled 4\nthrottled_usec 1234\n")
    fake.put_cgroup("kubepods.slice/cpu.max", "max 100000\n")
    assert cgroup_of(fake) == {
        "path": f"/{CONTAINER}",
        "cpu_max": ["100000", "50000"],
        "usage_usec": 6,
        "nr_periods": 9,
        "nr_throttled": 4,
        "throttled_usec": 1234,
        "psi_cpu_some_us": 77,
        "own_usage_usec": 5,
        "look": 1,
    }


def test_without_a_quota_nothing_was_throttled_and_nothing_is_said(fake: FakeHost) -> None:
    """Counters of a group without quota are not read."""
    fake.process(10, cgroup="0::/a.service\n")
    fake.put_cgroup("a.service/cpu.max", "max 100000\n")
    fake.put_cgroup("a.service/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    assert cgroup_of(fake) == {"path": "/a.service", "cpu_max": ["max", "100000"]}


def test_a_quota_that_is_set_later_is_seen(fake: FakeHost) -> None:
    """Quotas are looked at again, not at every look."""
    fake.process(10, cgroup="0::/a.service\n")
    fake.put_cgroup("a.service/cpu.max", "max 100000\n")
    fake.put_cgroup("a.service/cpu.stat", "nr_periods 3\n")
    source = fake.source()
    fake.read(source, 10)
    fake.put_cgroup("a.service/cpu.max", "50000 100000\n")
    looks = [(fake.read(source, 10).cgroups or {})["10"].get("nr_periods") for _ in range(LIMITS_EVERY)]
    assert looks == [None] * (LIMITS_EVERY - 1) + [3]


def test_version_1(fake: FakeHost) -> None:
    """Quota and throttled time of version 1 come under the names and units of version 2."""
    fake.process(10, cgroup="4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab\n")
    fake.put_cgroup("cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "150000\n")
    fake.put_cgroup("cpu,cpuacct/docker/ab/cpu.cfs_period_us", "100000\n")
    fake.put_cgroup(
        "cpu,cpuacct/docker/ab/cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_time 5000000\n"
    )
    fake.put_cgroup("cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n")
    fake.put_cgroup("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n")
    assert cgroup_of(fake) == {
        "path": "/docker/ab",
        "cpu_max": ["150000", "100000"],
        "nr_periods": 10,
        "nr_throttled": 2,
        "throttled_usec": 5000,
    }


def test_hybrid_finds_pressure_beside_version_1(fake: FakeHost) -> None:
    """Where systemd keeps version 2 beside, the quota is version 1's and the pressure version 2's."""
    fake.process(10, cgroup="3:cpu,cpuacct:/system.slice/a.service\n0::/system.slice/a.service\n")
    fake.put_cgroup("cpu/system.slice/a.service/cpu.cfs_quota_us", "-1\n")
    fake.put_cgroup("cpu/system.slice/a.service/cpu.cfs_period_us", "100000\n")
    fake.put_cgroup("unified/system.slice/a.service/cpu.pressure", "some avg10=0 total=5\n")
    assert cgroup_of(fake) == {
        "path": "/system.slice/a.service",
        "cpu_max": ["max", "100000"],
        "psi_cpu_some_us": 5,
        "look": 1,
    }


def test_the_hosts_pressure_is_not_the_jobs(fake: FakeHost) -> None:
    """A job that only version 1 knows has no pressure of its own at the root of version 2."""
    fake.process(10, cgroup="3:memory:/jobs/1\n0::/\n")
    fake.put_cgroup("unified/cpu.pressure", "some avg10=0 total=5\n")
    assert cgroup_of(fake) == {"path": "/jobs/1"}


def test_a_batch_job_is_told_by_the_controllers_that_know_it(fake: FakeHost) -> None:
    """Jobs of a daemon that shares its own group in most hierarchies are apart in the deepest one."""
    shared = "8:cpu,cpuacct:/system.slice/slurmd.service\n1:name=systemd:/system.slice/slurmd.service\n"
    for pid, job in ((10, 1), (11, 1), (12, 2)):
        fake.process(
            pid, cgroup=f"{shared}5:memory:/slurm/uid_0/job_{job}/step_0\n0::/system.slice/slurmd.service\n"
        )
    fake.put_cgroup("memory/slurm/uid_0/job_1/step_0/cgroup.procs", "10\n11\n")
    table = by_pid(fake.read(fake.source(), 10))
    assert set(table) == {10, 11}
    assert table[10]["cgroup"] == "/slurm/uid_0/job_1/step_0"


def test_a_path_seen_from_a_private_namespace(fake: FakeHost) -> None:
    """The group is found below the host's mount, and told from another of the same name by its members."""
    fake.process(10, cgroup="0::/../../pod2/0123\n")
    fake.put_cgroup("kubepods/besteffort/pod2/0123/cgroup.procs", "99\n")
    fake.put_cgroup("kubepods/besteffort/pod2/0123/cpu.max", "1000 100000\n")
    fake.put_cgroup("kubepods/burstable/pod2/0123/cgroup.procs", "10\n110\n")
    fake.put_cgroup("kubepods/burstable/pod2/0123/cpu.max", "200000 100000\n")
    fake.put_cgroup("kubepods/burstable/pod2/0123/cpu.stat", "nr_periods 1\n")
    cgroup = cgroup_of(fake)
    assert cgroup == {"path": "/../../pod2/0123", "cpu_max": ["200000", "100000"], "nr_periods": 1}


def test_the_reader_in_the_jobs_own_container(fake: FakeHost) -> None:
    """From within a container the root is its own group, with its quota."""
    fake.process(10, cgroup="0::/\n")
    fake.put_cgroup("cgroup.controllers", "cpu\n")
    fake.put_cgroup("cpu.max", "300000 100000\n")
    fake.put_cgroup("cpu.stat", "nr_periods 6\nnr_throttled 1\nthrottled_usec 2\n")
    cgroup = cgroup_of(fake)
    assert cgroup["cpu_max"] == ["300000", "100000"]
    assert cgroup["nr_throttled"] == 1


def test_a_group_that_cannot_be_found(fake: FakeHost) -> None:
    """Without the host's mount only the name is known."""
    fake.process(10, cgroup="0::/../elsewhere/ab\n")
    assert cgroup_of(fake) == {"path": "/../elsewhere/ab"}


def test_owners_of_one_group_get_one_look(fake: FakeHost) -> None:
    """Counters of a group are the same for all owners in it."""
    for pid in (10, 11):
        fake.process(pid, cgroup="0::/a.service\n")
    fake.put_cgroup("a.service/cpu.max", "100 100\n")
    fake.put_cgroup("a.service/cpu.stat", "nr_periods 6\n")
    cgroups = fake.read(fake.source(), 10, 11).cgroups or {}
    assert cgroups["10"] == cgroups["11"]
    assert set(cgroups) == {"10", "11"}


# What a job's group says of itself

OWN = ("own_usage_usec", "psi_cpu_some_us", "psi_io_some_us")


def own_of(fake: FakeHost) -> dict[str, Any]:
    return {name: value for name, value in cgroup_of(fake).items() if name in OWN}


def test_own_cpu_time_and_pressure(fake: FakeHost) -> None:
    """A job's group tells its own CPU time and what it waits for, with or without a quota."""
    fake.process(10, cgroup=f"0::/{CONTAINER}\n")
    fake.put_cgroup("cgroup.controllers", "cpu io\n")
    fake.put_cgroup(f"{CONTAINER}/cpu.stat", "usage_usec 900\nuser_usec 800\nsystem_usec 100\n")
    fake.put_cgroup(f"{CONTAINER}/io.pressure", "some avg10=0.00 total=44\nfull avg10=0.00 total=33\n")
    fake.put_cgroup(f"{CONTAINER}/cpu.pressure", "some avg10=0.00 total=55\n")
    fake.put_cgroup(f"{POD}/cpu.max", "100000 50000\n")
    fake.put_cgroup(f"{POD}/cpu.stat", "usage_usec 7000\n")
    assert own_of(fake) == {"own_usage_usec": 900, "psi_cpu_some_us": 55, "psi_io_some_us": 44}
    assert cgroup_of(fake)["usage_usec"] == 7000


def test_own_cpu_time_of_version_1(fake: FakeHost) -> None:
    """Version 1 counts nanoseconds, in a file of its own."""
    fake.process(10, cgroup="4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab\n")
    fake.put_cgroup("cpu,cpuacct/docker/ab/cpuacct.usage", "7000999\n")
    assert own_of(fake) == {"own_usage_usec": 7000}


@pytest.mark.parametrize(
    "lines",
    [
        "0::/user.slice/user-1.slice/session-3.scope\n",
        "0::/system.slice/slurmd.service\n",
        "0::/user.slice\n",
    ],
)
def test_a_group_of_many_says_nothing_of_the_job(fake: FakeHost, lines: str) -> None:
    """CPU time and I/O of a login, a spawner or a slice are not the owner's."""
    fake.process(10, cgroup=lines)
    fake.put_cgroup("cgroup.controllers", "cpu io\n")
    path = lines[4:].strip()
    fake.put_cgroup(f"{path}/cpu.stat", "usage_usec 900\n")
    fake.put_cgroup(f"{path}/io.pressure", "some avg10=0.00 total=44\n")
    assert own_of(fake) == {}


def test_a_job_that_other_controllers_know_has_no_cpu_time_of_its_own(fake: FakeHost) -> None:
    """Where all jobs are one service's for the CPU controller, its time is all jobs'."""
    fake.process(10, cgroup="5:memory:/slurm/uid_0/job_1\n3:cpuacct:/slurmd\n0::/slurmd\n")
    fake.put_cgroup("memory/slurm/uid_0/job_1/cgroup.procs", "10\n")
    fake.put_cgroup("cpuacct/slurmd/cpuacct.usage", "7000999\n")
    fake.put_cgroup("unified/slurmd/io.pressure", "some total=3\n")
    assert own_of(fake) == {}


def test_of_many_groups_some_are_asked_each_time(fake: FakeHost) -> None:
    """Each group's turn comes; between, it says that it was not looked at."""
    pids = range(10, 10 + 2 * GROUPS_EACH_LOOK)
    fake.put_cgroup("cgroup.controllers", "cpu\n")
    for pid in pids:
        fake.process(pid, cgroup=f"0::/job{pid}.service\n")
        fake.put_cgroup(f"job{pid}.service/cpu.stat", "usage_usec 1\n")
    source = fake.source()
    fake.read(source, *pids)
    for look in range(2, 8):
        for pid in pids:
            fake.put_cgroup(f"job{pid}.service/cpu.stat", f"usage_usec {look}\n")
        before = fake.read(source, *pids).cgroups or {}
    cgroups = fake.read(source, *pids).cgroups or {}
    asked = [pid for pid in map(str, pids) if cgroups[pid]["look"] != before[pid]["look"]]
    assert len(asked) == GROUPS_EACH_LOOK
    assert {cgroup["own_usage_usec"] for cgroup in cgroups.values()} <= {6, 7}
    assert {cgroup["look"] for cgroup in cgroups.values()} == {4, 5} or len(
        {cgroup["look"] for cgroup in cgroups.values()}
    ) == 1


@pytest.mark.parametrize("data", ["", "usage_usec\n", "usage_usec -5\n", "usage 5\n", "nr_periods 7\n", "x"])
def test_own_cpu_time_that_is_none(fake: FakeHost, data: str) -> None:
    """What does not say it is absent."""
    fake.process(10, cgroup="0::/a.service\n")
    fake.put_cgroup("cgroup.controllers", "cpu\n")
    fake.put_cgroup("a.service/cpu.stat", data)
    assert own_of(fake) == {}
