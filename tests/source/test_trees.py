"""Which processes are read, how soon they are found, and how often they are looked at."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

import pytest

from gpuwhy.source import trees

from .fake_host import FakeHost, by_pid

JOB = "0::/system.slice/docker-1.scope\n"
MEMBERS = "system.slice/docker-1.scope/cgroup.procs"


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder was listed."""
    counted: Counter[str] = Counter()
    real = os.listdir

    def listdir(path: str) -> list[str]:
        counted[Path(path).name] += 1
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    return counted


def test_owners_descendants_and_mates(fake: FakeHost) -> None:
    """A tree holds all generations and who shares the job's group, and nobody else."""
    fake.process(10, cgroup=JOB)
    fake.process(11, ppid=10)
    fake.process(12, ppid=11)
    fake.process(20, cgroup=JOB)
    fake.process(21, ppid=20)
    fake.process(30)
    fake.put_cgroup(MEMBERS, "10\n20\n")
    table = by_pid(fake.read(fake.source(), 10))
    assert set(table) == {10, 11, 12, 20, 21}
    assert {pid: row["ppid"] for pid, row in table.items()} == {10: 1, 11: 10, 12: 11, 20: 1, 21: 20}


def test_only_owners_threads_are_read(fake: FakeHost) -> None:
    """A worker is known by its own counters."""
    fake.process(10)
    fake.process(11, ppid=10)
    table = by_pid(fake.read(fake.source(), 10))
    assert {"main_run_ns", "age_s", "hottest_thread_run_ns"} <= set(table[10])
    assert not {"main_run_ns", "age_s", "hottest_thread_run_ns"} & set(table[11])
    assert {"utime", "stime", "read_bytes", "start_ticks", "state", "comm", "cgroup"} <= set(table[11])


def test_processes_of_a_login_are_not_mates(fake: FakeHost) -> None:
    """What shares a session works on anything."""
    fake.process(10, cgroup="0::/user.slice/session-3.scope\n")
    fake.process(20, cgroup="0::/user.slice/session-3.scope\n")
    fake.put_cgroup("user.slice/session-3.scope/cgroup.procs", "10\n20\n")
    assert set(by_pid(fake.read(fake.source(), 10))) == {10}


def test_the_agent_is_no_mate(fake: FakeHost) -> None:
    """An agent that runs in the job's container does not count its own CPU as the job's."""
    fake.process(10, cgroup=JOB)
    fake.process(77, ppid=10, cgroup=JOB)
    fake.put_cgroup(MEMBERS, "10\n77\n")
    (fake.proc / "self").symlink_to("77")
    assert set(by_pid(fake.read(fake.source(), 10))) == {10}


def test_owner_of_another_pid_namespace(fake: FakeHost) -> None:
    """A pid that is not there is nobody: none, not unknown, and not for ever."""
    source = fake.source()
    assert fake.read(source, 4242).processes == ()
    fake.process(4242)
    assert set(by_pid(fake.read(source, 4242))) == {4242}


def test_no_owner_no_process(fake: FakeHost) -> None:
    """When the last owner has gone nobody is read any more."""
    fake.process(10)
    fake.process(11, ppid=10)
    source = fake.source()
    assert len(by_pid(fake.read(source, 10))) == 2
    assert fake.read(source).processes == ()


def test_a_process_that_vanishes_costs_itself_only(fake: FakeHost) -> None:
    """One that ends between two looks, or in the middle of one, leaves the others as they are."""
    for pid in (10, 11, 12):
        fake.process(pid, ppid=1 if pid == 10 else 10)
    source = fake.source()
    fake.read(source, 10)
    fake.remove(11)
    assert set(by_pid(fake.read(source, 10))) == {10, 12}
    fake.remove("10/task")
    fake.remove("10/io")
    assert "utime" in by_pid(fake.read(source, 10))[10]


def test_a_pid_that_is_used_again(fake: FakeHost) -> None:
    """Another start time is another process, of which nothing is known from before."""
    fake.process(10, utime=500, threads={10: (9_000_000_000, 0)}, start=500)
    source = fake.source()
    fake.read(source, 10)
    fake.process(10, utime=1, threads={10: (20_000_000, 0)}, start=900, comm=b"other")
    looks = [by_pid(fake.read(source, 10)).get(10) for _ in range(2)]
    last = looks[-1]
    assert last is not None
    assert (last["start_ticks"], last["comm"], last["hottest_thread_run_ns"]) == (900, "other", 20_000_000)
    for look in looks:
        assert look is None or (look["start_ticks"] == 900) == (look["comm"] == "other")


def test_children_of_an_owner_are_found_without_a_listing(fake: FakeHost, listings: Counter[str]) -> None:
    """What the main thread forks is read at the next look, while /proc is listed rarely."""
    for pid in range(100, 400):
        fake.process(pid)
    fake.process(10)
    source = fake.source()
    fake.read(source, 10)
    assert listings["proc"] == 1
    fake.process(11, ppid=10)
    fake.put("10/task/10/children", "11 ")
    fake.forked()
    assert set(by_pid(fake.read(source, 10))) == {10, 11}
    assert listings["proc"] == 1


def test_mates_are_found_without_a_listing(fake: FakeHost, listings: Counter[str]) -> None:
    """Who joins the job's group is read at the next look."""
    for pid in range(100, 400):
        fake.process(pid)
    fake.process(10, cgroup=JOB)
    fake.put_cgroup(MEMBERS, "10\n")
    source = fake.source()
    fake.read(source, 10)
    fake.process(20, cgroup=JOB)
    fake.put_cgroup(MEMBERS, "10\n20\n")
    fake.forked()
    assert set(by_pid(fake.read(source, 10))) == {10, 20}
    assert listings["proc"] == 1


def test_grandchildren_are_found_by_the_next_listing(fake: FakeHost, listings: Counter[str]) -> None:
    """Where the kernel lists no children a listing finds them; nobody lists while nobody forks."""
    for pid in range(100, 400):
        fake.process(pid)
    fake.process(10)
    source = fake.source()
    for _ in range(20):
        fake.read(source, 10)
    assert listings["proc"] == 1
    fake.process(11, ppid=10)
    fake.process(12, ppid=11)
    fake.forked()
    looks = 0
    while set(by_pid(fake.read(source, 10))) != {10, 11, 12}:
        looks += 1
        assert looks < 20
    assert listings["proc"] == 2


def test_an_owner_that_comes_later_brings_its_tree(fake: FakeHost) -> None:
    """What an owner started before it was one is found though nobody forks; the last one's tree goes."""
    fake.process(10)
    fake.process(11, ppid=10)
    fake.process(12, ppid=11)
    fake.process(20)
    source = fake.source()
    assert set(by_pid(fake.read(source, 20))) == {20}
    for _ in range(3):
        table = by_pid(fake.read(source, 10))
    assert set(table) == {10, 11, 12}


def test_a_worker_may_become_an_owner_and_back(fake: FakeHost) -> None:
    """Who opens a context is read as an owner from then on, and no longer than it has one."""
    fake.process(10)
    fake.process(11, ppid=10)
    source = fake.source()
    for owners, expected in (((10,), {10}), ((10, 11), {10, 11}), ((10,), {10})):
        for _ in range(3):
            table = by_pid(fake.read(source, *owners))
        assert {pid for pid, row in table.items() if "main_run_ns" in row} == expected
        assert set(table) == {10, 11}


def test_sleepers_are_looked_at_in_turn_and_lose_nothing(fake: FakeHost) -> None:
    """Of hundreds that sleep, each is looked at within a round; what it did meanwhile is there then."""
    fake.process(10)
    workers = range(1000, 1000 + 5 * trees.SLEEPERS_EACH_LOOK)
    for pid in workers:
        fake.process(pid, ppid=10)
    source = fake.source()
    for _ in range(3):
        assert len(by_pid(fake.read(source, 10))) == 1 + len(workers)
    for pid in workers:
        fake.process(pid, ppid=10, utime=pid, io=(pid, 1))
    moved = []
    for _ in range(7):
        table = by_pid(fake.read(source, 10))
        assert all(table[pid]["utime"] in {0, pid} for pid in workers)
        moved.append(sum(table[pid]["utime"] == pid for pid in workers))
    assert moved[0] <= trees.SLEEPERS_EACH_LOOK < moved[2] < moved[-1] == len(workers)
    assert all(table[pid]["read_bytes"] == pid for pid in workers)


def test_a_blocked_worker_is_looked_at_each_time(fake: FakeHost) -> None:
    """One in uninterruptible sleep uses no CPU time, and is no sleeper."""
    fake.process(10)
    for pid in range(1000, 1100):
        fake.process(pid, ppid=10, state="D" if pid == 1050 else "S")
    source = fake.source()
    for _ in range(4):
        fake.read(source, 10)
    fake.process(1050, ppid=10, state="S")
    assert by_pid(fake.read(source, 10))[1050]["state"] == "S"


def test_more_processes_than_are_read(
    fake: FakeHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree beyond the bound is cut, which is said once; who is read stays, so that counters go on."""
    monkeypatch.setattr(trees, "MOST_PROCESSES", 20)
    fake.process(10, cgroup=JOB)
    fake.put_cgroup(MEMBERS, "10\n")
    for pid in range(1000, 1050):
        fake.process(pid, ppid=10)
    source = fake.source()
    with caplog.at_level(logging.WARNING, "gpuwhy"):
        first = set(by_pid(fake.read(source, 10)))
        fake.process(2000, ppid=10, cgroup=JOB)
        fake.process(10, cgroup=JOB)
        fake.put_cgroup(MEMBERS, "10\n2000\n")
        fake.put("10/task/10/children", "1000 2000 ")
        for _ in range(10):
            fake.forked()
            assert set(by_pid(fake.read(source, 10))) == first
    assert 10 in first
    assert len(first) == 20
    assert len(caplog.records) == 1


def test_pids_are_learnt_anew_after_the_kernel_went_through_all(fake: FakeHost) -> None:
    """A pid that another process has by now is not kept under its old parent."""
    fake.process(10)
    fake.process(11, ppid=1)
    source = fake.source()
    fake.read(source, 10)
    fake.process(11, ppid=10, start=999)
    fake.host(forks=fake.forks + 32768)
    for _ in range(3):
        table = by_pid(fake.read(source, 10))
    assert set(table) == {10, 11}
