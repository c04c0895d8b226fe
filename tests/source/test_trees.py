"""Which processes are read, how soon they are found, and how often they are looked at."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

import pytest

from gpuwhy.sample import Normaliser, ProcessSample, Sample
from gpuwhy.source import GpuFacts, GpuReading, HostReading, Reading, trees
from gpuwhy.source.host import HostSource
from gpuwhy.workload import attribute

from .fake_host import TICKS, FakeHost, by_pid, stat_line

JOB = "0::/system.slice/docker-1.scope\n"
JOB_FOLDER = "system.slice/docker-1.scope"
MEMBERS = f"{JOB_FOLDER}/cgroup.procs"


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
        fake.process(pid, ppid=10, utime=pid % 7, io=(pid, 1))
    moved = []
    for _ in range(7):
        table = by_pid(fake.read(source, 10))
        assert all(table[pid]["utime"] in {0, pid % 7} for pid in workers)
        moved.append(sum(table[pid]["read_bytes"] == pid for pid in workers if pid % 7))
    assert moved[0] <= trees.SLEEPERS_EACH_LOOK < moved[2] < moved[-1] == sum(pid % 7 > 0 for pid in workers)


class Busy:
    """Workers that sleep until told, and a host whose CPU time is theirs and strangers'."""

    def __init__(self, fake: FakeHost, workers: int) -> None:
        self.fake = fake
        self.used = dict.fromkeys(range(1000, 1000 + workers), 0.0)
        self.strangers = 0.0
        for pid in (10, *self.used):
            fake.process(pid, ppid=1 if pid == 10 else 10)

    def work(self, cores: dict[int, float], strangers: float = 0.0, seconds: float = 1.0) -> None:
        """They use so many cores for so long; who is not named sleeps on."""
        self.strangers += strangers * seconds
        for pid, used in cores.items():
            self.used[pid] += used * seconds
            self.fake.put(f"{pid}/stat", stat_line(pid, 10, utime=round(self.used[pid] * TICKS)))
        total = round((sum(self.used.values()) + self.strangers) * TICKS)
        self.fake.host(cpu=f"cpu  {total} 0 0 80 0 0 0 0 0 0")


def rates(readings: list[HostReading]) -> list[dict[int, ProcessSample]]:
    """What the next stage makes of them."""
    normaliser = Normaliser()
    return [dict(normaliser.host(reading).processes or {}) for reading in readings]


@pytest.mark.parametrize("count", [3, 20, 33, 64])
@pytest.mark.parametrize("each", [0.03, 0.6])
def test_busy_workers_in_turn_are_as_busy_as_they_are(fake: FakeHost, count: int, each: float) -> None:
    """However often each is looked at, none counts double or not at all, and the sum is what they use."""
    busy = Busy(fake, count)
    source, readings = fake.source(), []
    for _ in range(30):
        busy.work(dict.fromkeys(busy.used, each))
        readings.append(fake.read(source, 10))
    seen = rates(readings)[10:]
    for look in seen:
        workers = [look[pid] for pid in busy.used]
        # A tick is 0.01 core over a second, less over more.
        assert all(worker.cpu_cores == pytest.approx(each, abs=0.011) for worker in workers)
    total = sum(look[pid].gained_cores or 0.0 for look in seen for pid in busy.used) / len(seen)
    assert total == pytest.approx(count * each, rel=0.06)


def test_busy_workers_are_not_all_looked_at(fake: FakeHost) -> None:
    """Of many that use a little each look reads a quarter."""
    busy = Busy(fake, 60)
    source, changed, before = fake.source(), [], dict[int, int]()
    for _ in range(12):
        busy.work(dict.fromkeys(busy.used, 0.03))
        now = {pid: record["look"] for pid, record in by_pid(fake.read(source, 10)).items() if pid != 10}
        changed.append(sum(now[pid] != before.get(pid) for pid in now))
        before = now
    assert changed[0] == 60
    assert max(changed[-6:]) <= 60 // trees.ROUND


@pytest.mark.parametrize("strangers", [0.0, 3.0])
def test_a_worker_that_wakes_up_among_hundreds_is_found_soon(fake: FakeHost, strangers: float) -> None:
    """CPU time of the host that nobody accounts for lets all be looked at within five seconds."""
    busy = Busy(fake, 160)
    source = fake.source()
    before, now = dict[int, int](), dict[int, int]()
    for _ in range(12):
        busy.work({1000: 0.02}, strangers)
        before, now = now, {pid: record["look"] for pid, record in by_pid(fake.read(source, 10)).items()}
    # Who was looked at just now has its next turn last.
    woken = max(pid for pid in now if pid > 1000 and now[pid] != before[pid])
    looks = []
    for _ in range(7):
        busy.work({woken: 1.0}, strangers)
        looks.append(fake.read(source, 10))
    hot = [(look[woken].cpu_cores or 0.0) > 0.9 for look in rates(looks)]
    assert True in hot[:6]
    assert all(hot[6:])


def test_strangers_cost_no_search_for_ever(fake: FakeHost) -> None:
    """When all were looked at in vain, what the host uses is somebody else's."""
    busy = Busy(fake, 160)
    source, looked = fake.source(), []
    before = dict[int, int]()
    for _ in range(20):
        busy.work({1000: 0.02}, strangers=3.0)
        now = {pid: record["look"] for pid, record in by_pid(fake.read(source, 10)).items()}
        looked.append(sum(now[pid] != before.get(pid) for pid in now))
        before = now
    assert max(looked[-5:]) <= 2 + trees.SLEEPERS_EACH_LOOK


def test_bytes_of_a_worker_that_falls_asleep_are_told(fake: FakeHost) -> None:
    """What was not asked for while many were busy is asked for when nothing moves any more."""
    busy = Busy(fake, 40)
    source = fake.source()
    for _ in range(9):
        busy.work(dict.fromkeys(busy.used, 0.05))
        fake.read(source, 10)
    busy.work(dict.fromkeys(busy.used, 0.05))
    for pid in busy.used:
        fake.put(f"{pid}/io", f"rchar: 1\nread_bytes: {pid}\nwrite_bytes: 0\n")
    for _ in range(16):
        table = by_pid(fake.read(source, 10))
    assert all(table[pid]["read_bytes"] == pid for pid in busy.used)


def test_thousands_of_short_lived_processes_pile_up_nowhere(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 a minute: tables, files and what a look reads stay as small as what lives at a time."""
    files = Counter[str]()
    real = os.open

    def opened(path: str, *flags: int, **more: int) -> int:
        files["look"] += 1
        return real(path, *flags, **more)

    fake.process(10, cgroup=JOB)
    fake.process(11, ppid=10, cgroup=JOB)
    monkeypatch.setattr(os, "open", opened)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    source = HostSource(proc=fake.proc, cgroup=fake.cgroup, clock=lambda: fake.now_s, kept_files=200)
    living: list[int] = []
    sizes, costs = [], []
    born = 1000
    for look in range(60):
        for pid in living:
            fake.remove(pid)
        living = list(range(born, born + 4))  # of 33 a second, those that live now
        for pid in living:
            fake.process(pid, ppid=11, cgroup=JOB)
        born += 33
        fake.put("10/task/10/children", "11 ")
        fake.put("11/task/11/children", " ".join(map(str, living)))
        fake.put_cgroup(MEMBERS, "".join(f"{pid}\n" for pid in (10, 11, *living)))
        fake.host(cpu=f"cpu  {look * 50} 0 0 80 0 0 0 0 0 0", forks=fake.forks + 33)
        files["look"] = 0
        table = by_pid(fake.read(source, 10))
        assert set(table) <= {10, 11, *living, *range(born - 66, born - 62)}
        costs.append(files["look"])
        followed = source._trees
        sizes.append(
            (
                len(followed.processes),
                len(followed._records),
                len(followed._parents),
                len(followed._names),
                len(followed._children),
                sum(map(len, (followed._fresh, followed._hot, followed._awake, followed._asleep))),
                len(list(Path("/proc/self/fd").iterdir())) - descriptors,
            )
        )
    first, last = ([max(column) for column in zip(*rows, strict=True)] for rows in (sizes[5:20], sizes[-10:]))
    assert all(now <= before for now, before in zip(last, first, strict=True)), (first, last)
    assert max(costs[-10:]) <= 60
    source.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_short_lived_processes_show_in_their_cgroup(fake: FakeHost) -> None:
    """Workers that come and go between two looks are nobody's, but the job's group has their CPU time."""
    fake.process(10, cgroup=JOB)
    fake.put_cgroup("cgroup.controllers", "cpu\n")
    source, normaliser, samples = fake.source(), Normaliser(), list[Sample]()
    for look in range(6):
        fake.put("10/stat", stat_line(10, utime=look * TICKS // 10))
        fake.put_cgroup(f"{JOB_FOLDER}/cpu.stat", f"usage_usec {look * 1_600_000}\n")
        host = fake.read(source, 10)
        gpu = GpuReading(GpuFacts(0, "GPU-a"), owners=(10,))
        whole = Reading(host.end_s, host.end_s, host.span_s, 1.0, gpus=(gpu,), host=host)
        samples += attribute(normaliser.samples(whole))
    told = [sample.values.get("process_tree_cpu_cores") for sample in samples]
    assert told[1:] == [pytest.approx(1.6)] * 5
    assert samples[-1].values["process_tree_owner_cpu_cores"] == pytest.approx(0.1)


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
