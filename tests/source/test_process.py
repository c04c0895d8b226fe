"""One process and its threads: what is read, when, and what is made of it."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuwhy.source import process as module
from gpuwhy.source.kept import RETRY_AFTER
from gpuwhy.source.process import ALL_THREADS, SEARCH_THREADS, parse_stat

from .fake_host import TICKS, FakeHost, by_pid, stat_line

SECOND = 10**9


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def owner(fake: FakeHost, source: Any, **more: Any) -> dict[str, Any]:
    return by_pid(fake.read(source, 10, **more))[10]


@pytest.mark.parametrize(
    ("comm", "told"),
    [
        (b"python3", "python3"),
        (b"tmux: server", "tmux: server"),
        (b"a) S 1 (b", "a) S 1 (b"),
        (b"((sd-pam))", "((sd-pam))"),
        (b"new\nline", "new\nline"),
        (b"\xff\xfe", "��"),
        (b"", ""),
    ],
)
def test_commands_as_people_write_them(comm: bytes, told: str) -> None:
    """Blanks, parentheses, newlines and bytes that are no text do not shift the fields behind them."""
    stat = parse_stat(stat_line(5, ppid=4, comm=comm, state="R", utime=7, stime=8, threads=3, start=99))
    assert stat == {
        "ppid": 4, "state": "R", "comm": told, "utime": 7, "stime": 8, "threads": 3, "start_ticks": 99,
    }  # fmt: skip


@pytest.mark.parametrize("length", range(0, len(stat_line(5)), 7))
def test_a_line_that_is_cut_says_nothing(length: int) -> None:
    """A short line gives no process rather than a wrong one."""
    assert parse_stat(stat_line(5)[:length]) is None


def test_process_values(fake: FakeHost) -> None:
    """An owner's values come under the names of recordings."""
    fake.process(
        10, ppid=3, comm=b"train", state="R", utime=50, stime=7, start=200 * TICKS, io=(11, 22),
        threads={10: (3 * SECOND, 5), 12: (4 * SECOND, 6)}, cgroup="0::/a.service\n",
    )  # fmt: skip
    fake.put(
        "10/status",
        "Name:\ttrain\nCpus_allowed_list:\t0-3,8\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t4\n",
    )
    told = owner(fake, fake.source())
    assert told.pop("look") > 0
    assert told == {
        "pid": 10,
        "ppid": 3,
        "state": "R",
        "comm": "train",
        "utime": 50,
        "stime": 7,
        "threads": 2,
        "start_ticks": 200 * TICKS,
        "age_s": 800.0,
        "cgroup": "/a.service",
        "read_bytes": 11,
        "write_bytes": 22,
        "vcsw": 9,
        "ivcsw": 4,
        "cpus_allowed": 5,
        "main_run_ns": 3 * SECOND,
        "main_wait_ns": 5,
        "threads_run_ns": 7 * SECOND,
        "threads_wait_ns": 11,
        "busiest_thread_run_ns": 4 * SECOND,
        "hottest_thread_run_ns": 4 * SECOND,
        "d_state_threads": 0,
    }


def test_the_hottest_thread_may_change(fake: FakeHost) -> None:
    """The counter grows by what the hottest thread of each look ran, whoever had most before."""
    fake.process(10, threads={10: (9 * SECOND, 0), 11: (SECOND, 0)})
    source = fake.source()
    before = owner(fake, source)
    fake.thread(10, 11, SECOND + SECOND // 2)
    now = owner(fake, source)
    assert now["hottest_thread_run_ns"] - before["hottest_thread_run_ns"] == SECOND // 2
    assert now["busiest_thread_run_ns"] == before["busiest_thread_run_ns"]
    fake.thread(10, 10, 9 * SECOND + SECOND // 4)
    fake.thread(10, 11, SECOND + SECOND // 2 + 1)
    last = owner(fake, source)
    assert last["hottest_thread_run_ns"] - now["hottest_thread_run_ns"] == SECOND // 4
    assert last["threads_run_ns"] - now["threads_run_ns"] == SECOND // 4 + 1


def test_threads_that_come_and_go(fake: FakeHost) -> None:
    """A new thread's time counts from its start, and one that ends takes nothing back."""
    fake.process(10, threads={10: (SECOND, 0), 11: (5 * SECOND, 70)})
    source = fake.source()
    first = owner(fake, source)
    fake.remove("10/task/11")
    fake.process(10, threads={10: (SECOND, 0), 12: (SECOND // 5, 8)})
    looks = [owner(fake, source) for _ in range(3)]
    for name in ("threads_run_ns", "threads_wait_ns", "hottest_thread_run_ns", "busiest_thread_run_ns"):
        counts = [look[name] for look in [first, *looks]]
        assert counts == sorted(counts), name
    assert looks[-1]["threads_run_ns"] - first["threads_run_ns"] == SECOND // 5
    assert looks[-1]["threads_wait_ns"] - first["threads_wait_ns"] == 8


def test_accounting_that_is_off_is_absent(fake: FakeHost) -> None:
    """Zeros of a kernel that does not account are no times; the hottest thread is told by its ticks."""
    fake.process(10, threads={10: (2 * SECOND, 0), 11: (SECOND, 0)})
    for tid in (10, 11):
        fake.put(f"10/task/{tid}/schedstat", "0 0 0\n")
    source = fake.source()
    first = owner(fake, source)
    fake.put("10/task/11/stat", stat_line(11, utime=TICKS + TICKS // 2))
    last = owner(fake, source)
    assert not {"main_run_ns", "main_wait_ns", "threads_wait_ns"} & (first.keys() | last.keys())
    assert last["hottest_thread_run_ns"] - first["hottest_thread_run_ns"] == SECOND // 2


@pytest.mark.parametrize("missing", ["10/io", "10/status", "10/cgroup", "10/task"])
def test_a_part_that_may_not_be_read_is_absent(fake: FakeHost, missing: str) -> None:
    """Each file costs its own values only."""
    fake.process(10, cgroup="0::/a.service\n", io=(1, 2))
    fake.put(
        "10/status", "x\nCpus_allowed_list:\t0\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t4\n"
    )
    whole = set(owner(fake, fake.source()))
    fake.remove(missing)
    cost = {
        "10/io": {"read_bytes", "write_bytes"},
        "10/status": {"vcsw", "ivcsw", "cpus_allowed"},
        "10/cgroup": {"cgroup"},
        "10/task": {
            "main_run_ns", "main_wait_ns", "threads_run_ns", "threads_wait_ns",
            "busiest_thread_run_ns", "hottest_thread_run_ns", "d_state_threads",
        },
    }  # fmt: skip
    assert set(owner(fake, fake.source())) == whole - cost[missing]


def test_a_refusal_is_remembered(fake: FakeHost) -> None:
    """Bytes read that were denied are not asked for at each look, but again in the end."""
    fake.process(10, io=None)
    source = fake.source()
    told = []
    for look in range(RETRY_AFTER + 2):
        told.append("read_bytes" in owner(fake, source))
        fake.process(10, utime=look + 1)
    assert told == [False] * (RETRY_AFTER + 1) + [True]


def test_a_zombie(fake: FakeHost) -> None:
    """An owner that has ended and waits for its parent is there as such."""
    fake.process(10, state="Z", io=None)
    assert owner(fake, fake.source())["state"] == "Z"


def test_a_kernel_thread_does_no_harm(fake: FakeHost) -> None:
    """Kernel threads have parents and no more; nobody takes them for workers."""
    fake.put("2/stat", stat_line(2, ppid=0, comm=b"kthreadd"))
    fake.put("3/stat", stat_line(3, ppid=2, comm=b"kworker/0:1H-kblockd"))
    fake.process(10)
    assert set(by_pid(fake.read(fake.source(), 10))) == {10}


@pytest.mark.parametrize(
    ("wchan", "blocked"),
    [
        ("folio_wait_bit_common", True),
        ("rpc_wait_bit_killable", True),
        ("request_wait_answer", True),
        ("submit_bio_wait", True),
        ("vm_mmap_pgoff", False),
        ("__vm_munmap", False),
        ("lock_mm_and_find_vma", False),
        ("do_user_addr_fault", False),
        ("os_acquire_semaphore", False),
        ("uvm_ioctl", False),
        ("0", False),
        ("", False),
    ],
)
def test_a_blocked_thread_is_told_from_one_at_a_lock(fake: FakeHost, wchan: str, *, blocked: bool) -> None:
    """Allocation in many threads puts them into the same state as reading does: only the latter counts."""
    fake.process(10, threads={10: (SECOND, 0), 11: (SECOND, 0)})
    source = fake.source()
    owner(fake, source)
    fake.thread(10, 11, SECOND + 1000, state="D", wchan=wchan)
    for _ in range(2):
        look = owner(fake, source)
        assert look["d_state_threads"] == 1
        assert ("blocked_threads" in look) is blocked
    fake.thread(10, 11, SECOND + 1000)
    assert owner(fake, source)["d_state_threads"] == 0


class Opened:
    """Which files were opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        real = os.open

        def opened(path: str, *flags: int, **more: int) -> int:
            self.paths.append(str(path))
            return real(path, *flags, **more)

        monkeypatch.setattr(os, "open", opened)


def crowd(fake: FakeHost, count: int) -> None:
    """A process of many threads that have run a little."""
    fake.process(10, threads=dict.fromkeys(range(10, 10 + count), (SECOND // 100, 0)))


def work(fake: FakeHost, tid: int, count: int, run: int) -> None:
    """One thread of the crowd has run so long, which the process's own time shows."""
    fake.thread(10, tid, SECOND // 100 + run)
    fake.put("10/stat", stat_line(10, utime=run * TICKS // SECOND, threads=count))


def test_thousands_of_threads_cost_little(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest a look at a crowd of threads reads a few of them."""
    crowd(fake, 800)
    source = fake.source()
    owner(fake, source)
    opened = Opened(monkeypatch)
    look = owner(fake, source)
    assert len(opened.paths) < 40
    assert "threads_run_ns" not in look, "not all were read"


def test_one_of_many_that_wakes_up_is_found_by_the_processs_time(fake: FakeHost) -> None:
    """A thread that was asleep is found at the look at which the process's CPU time shows it."""
    crowd(fake, SEARCH_THREADS)
    source = fake.source()
    first = owner(fake, source)
    for second in range(1, 6):
        work(fake, 73, SEARCH_THREADS, second * SECOND * 8 // 10)
        last = owner(fake, source)
        gained = last["hottest_thread_run_ns"] - first["hottest_thread_run_ns"]
        assert gained == pytest.approx(second * SECOND * 0.8, rel=0.01)


def test_busy_threads_of_many_are_read_each_time(fake: FakeHost) -> None:
    """Of any number the busy thread is found in the end, and then followed."""
    count = ALL_THREADS + 4 * SEARCH_THREADS
    crowd(fake, count)
    source = fake.source()
    owner(fake, source)
    seen = []
    for second in range(1, 16):
        work(fake, 10 + count - 1, count, second * SECOND // 2)
        seen.append(owner(fake, source)["hottest_thread_run_ns"])
    steps = [now - before for before, now in pairwise(seen)]
    assert steps[-8:] == [SECOND // 2] * 8


def test_what_many_looks_gained_is_not_one_looks(fake: FakeHost) -> None:
    """A thread that is read in turn did what it did since its own last look."""
    count = ALL_THREADS + 8
    crowd(fake, count)
    source = fake.source()
    last = first = owner(fake, source)
    for second in range(1, count):
        for tid in range(11, 10 + count):
            fake.thread(10, tid, SECOND // 100 + second * SECOND // 1000)
        before, last = last, owner(fake, source)
        assert last["hottest_thread_run_ns"] - before["hottest_thread_run_ns"] <= SECOND // 1000 + 1
    assert last["hottest_thread_run_ns"] > first["hottest_thread_run_ns"]


def test_status_is_looked_at_rarely(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dearest file of a process holds what hardly ever changes."""
    fake.process(10)
    fake.put("10/status", "x\nCpus_allowed_list:\t0-1\n")
    source = fake.source()
    opened = Opened(monkeypatch)
    looks = [owner(fake, source) for _ in range(module.LOOKS_PER_STATUS)]
    assert sum(path.endswith("/status") for path in opened.paths) == 1
    assert {look["cpus_allowed"] for look in looks} == {2}


def quiet(fake: FakeHost, count: int, looks: int) -> tuple[Any, list[dict[str, Any]]]:
    """An owner whose second thread uses and waits for little, and its looks."""
    tids = range(10, 10 + count)
    fake.process(10, threads=dict.fromkeys(tids, (SECOND, 0)))
    source = fake.source()
    seen = []
    for look in range(looks):
        fake.thread(10, 11, SECOND + look * SECOND // 25, look * SECOND // 5)
        fake.put("10/stat", stat_line(10, utime=TICKS + look * TICKS // 25, threads=count))
        seen.append(owner(fake, source))
    return source, seen


@pytest.mark.parametrize("count", [4, ALL_THREADS + 4])
def test_threads_of_a_quiet_owner_are_read_now_and_then(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What they did is told evenly, and all of it."""
    source, seen = quiet(fake, count, 24)
    for name, each in (("hottest_thread_run_ns", SECOND // 25), ("threads_wait_ns", SECOND // 5)):
        counts = [look[name] for look in seen]
        steps = [now - before for before, now in pairwise(counts)]
        assert sum(steps[-8:]) == pytest.approx(8 * each, rel=0.01), name
        assert max(steps[-8:]) <= 1.5 * each, name
    opened = Opened(monkeypatch)
    for look in range(24, 24 + 2 * module.LOOKS_PER_QUIET):
        fake.put("10/stat", stat_line(10, utime=TICKS + look * TICKS // 25, threads=count))
        owner(fake, source)
    assert sum(path.endswith("/11/schedstat") for path in opened.paths) == 2


def test_a_quiet_owner_that_gets_hot_is_read_at_once(fake: FakeHost) -> None:
    """A thread at work is told at the look at which its process's time shows it."""
    source, seen = quiet(fake, 4, 24)
    for look in range(1, 4):
        fake.thread(10, 12, SECOND + look * SECOND)
        fake.put("10/stat", stat_line(10, utime=2 * TICKS + look * TICKS, threads=4))
        seen.append(owner(fake, source))
    steps = [now["hottest_thread_run_ns"] - before["hottest_thread_run_ns"] for before, now in pairwise(seen)]
    assert sum(steps[-3:]) == pytest.approx(3 * SECOND, rel=0.1)
    assert steps[-1] == pytest.approx(SECOND, rel=0.01)


def test_a_quiet_owner_that_is_blocked_now_and_then_is_read_each_time(fake: FakeHost) -> None:
    """Else a thread that waits for storage now and then would be seen far too rarely."""
    source, _ = quiet(fake, 4, 24)
    seen = []
    for look in range(30):
        state = "S" if look % 5 else "D"
        fake.thread(10, 11, 2 * SECOND + look * 1000, state=state, wchan="folio_wait_bit_common")
        fake.put("10/stat", stat_line(10, utime=3 * TICKS + look, threads=4))
        seen.append("blocked_threads" in owner(fake, source))
    assert sum(seen[-20:]) == 4


def test_less_busy_threads_of_many_are_read_in_turn(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of threads that use a few percent each, a look reads a third; their sums lose nothing."""
    count = ALL_THREADS + 8
    tids = range(10, 10 + count)
    fake.process(10, threads=dict.fromkeys(tids, (SECOND, 0)))
    source, seen, read = fake.source(), [], []
    opened = Opened(monkeypatch)
    for look in range(30):
        for tid in tids[1:13]:
            used = look * SECOND // (25 if tid == 11 else 50)
            fake.thread(10, tid, SECOND + used, look * SECOND // 1000)
        fake.put("10/stat", stat_line(10, utime=26 * look * TICKS // 100, threads=count))
        opened.paths.clear()
        seen.append(owner(fake, source))
        read.append(sum(path.endswith("/schedstat") for path in opened.paths))
    assert max(read[-12:]) <= 12 // module.ROUND + module.TURN_THREADS
    waited = seen[-1]["threads_wait_ns"] - seen[-13]["threads_wait_ns"]
    assert waited == pytest.approx(12 * 12 * SECOND // 1000, rel=0.1)
    hottest = [
        now["hottest_thread_run_ns"] - before["hottest_thread_run_ns"] for before, now in pairwise(seen)
    ]
    assert hottest[-12:] == [pytest.approx(SECOND // 25, rel=0.01)] * 12
