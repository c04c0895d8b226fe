"""What processes and their cgroups did between two readings."""

from __future__ import annotations

import math
from typing import Any

import pytest

S = 10**9  # nanoseconds


def process(pid: int = 7, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "ppid": 1, "state": "S", "comm": "python3", "utime": 100, "stime": 50, **more}


def both(feed, before: dict[str, Any], after: dict[str, Any], **more: Any):
    """The second sample of one process read twice."""
    feed.read(processes=[before])
    return feed.read(processes=[after], **more).host.processes[after["pid"]]


def test_first_seen_has_no_rates(feed) -> None:
    """A process that was not seen before has a name, a state and a parent, and no rates."""
    (one,) = feed.read(
        processes=[process(ppid=3, state="D", age_s=5.5, cgroup="/a/b")]
    ).host.processes.values()
    assert (one.pid, one.ppid, one.command, one.state, one.age_s, one.cgroup) == (
        7,
        3,
        "python3",
        "D",
        5.5,
        "/a/b",
    )
    assert one.cpu_cores is one.system_cores is one.hottest_thread_cores is one.runqueue_wait is None
    assert one.read_bytes_per_second is one.write_bytes_per_second is one.thread_cores is None


def test_rates_in_si_units(feed) -> None:
    """Run time, run-queue wait and storage traffic arrive per second."""
    before = {
        "threads_run_ns": 10 * S,
        "threads_wait_ns": 1 * S,
        "busiest_thread_run_ns": 8 * S,
        "main_run_ns": 8 * S,
        "read_bytes": 1000,
        "write_bytes": 0,
    }
    after = {
        "threads_run_ns": 13 * S,
        "threads_wait_ns": 2 * S,
        "busiest_thread_run_ns": 9 * S,
        "main_run_ns": int(8.5 * S),
        "read_bytes": 5000,
        "write_bytes": 300,
    }
    one = both(feed, process(**before), process(utime=350, stime=90, **after), after_s=2.0)
    assert one.cpu_cores == pytest.approx(1.5)
    assert one.system_cores == pytest.approx(0.2)
    assert one.runqueue_wait == pytest.approx(0.5)
    assert one.hottest_thread_cores == pytest.approx(0.5)
    assert (one.read_bytes_per_second, one.write_bytes_per_second) == (2000.0, 150.0)


def test_without_schedstat_ticks_stand_in(feed) -> None:
    """Where run time is not read CPU time comes from ticks, and bounds the busiest thread from above."""
    one = both(feed, process(), process(utime=140, stime=60))
    assert one.cpu_cores == pytest.approx(0.5)
    assert one.hottest_thread_cores is None
    assert one.thread_cores == pytest.approx(0.5)
    many = both(feed, process(8), process(8, utime=400))
    assert many.cpu_cores == pytest.approx(3.0)
    assert many.thread_cores == 1.0


def test_ticks_have_the_hosts_length(feed) -> None:
    """A tick is as long as the host says."""
    feed.read(processes=[process()], host={"clock_ticks_per_s": 1000})
    one = feed.read(processes=[process(utime=600)], host={"clock_ticks_per_s": 1000}).host.processes[7]
    assert one.cpu_cores == pytest.approx(0.5)


def test_thread_that_ends_takes_its_run_time_along(feed) -> None:
    """Where the sum over threads fell, or grew less than the process did, the process's own time counts."""
    before = process(threads_run_ns=50 * S, threads_wait_ns=5 * S)
    fell = both(feed, before, process(utime=190, threads_run_ns=20 * S, threads_wait_ns=1 * S))
    assert fell.cpu_cores == pytest.approx(0.9)
    assert fell.runqueue_wait is None
    short = both(feed, process(8, threads_run_ns=50 * S), process(8, utime=390, threads_run_ns=51 * S))
    assert short.cpu_cores == pytest.approx(2.9)
    assert not feed.rejected


def test_run_time_is_finer_than_ticks(feed) -> None:
    """Within the rounding of ticks, run time is believed."""
    one = both(
        feed, process(threads_run_ns=S), process(utime=101, threads_run_ns=S + S // 100 * 0), after_s=0.25
    )
    assert one.cpu_cores == 0.0
    two = both(feed, process(8, threads_run_ns=S), process(8, threads_run_ns=S + S // 8), after_s=0.25)
    assert two.cpu_cores == pytest.approx(0.5)


def test_busiest_thread_that_ends_leaves_it_unknown(feed) -> None:
    """When the busiest thread ends, a sleeping main thread does not stand in for it."""
    before = process(threads_run_ns=60 * S, busiest_thread_run_ns=50 * S, main_run_ns=10 * S)
    one = both(
        feed,
        before,
        process(utime=195, threads_run_ns=11 * S, busiest_thread_run_ns=10 * S, main_run_ns=10 * S),
    )
    assert one.hottest_thread_cores is None
    assert one.thread_cores == pytest.approx(0.95)


def test_main_thread_stands_in_where_no_other_was_read(feed) -> None:
    """Of threads, the hottest of each reading is preferred, then the busiest so far, then the main one."""
    before = {"main_run_ns": S, "busiest_thread_run_ns": S, "hottest_thread_run_ns": S}
    after = {"main_run_ns": 1.1 * S, "busiest_thread_run_ns": 1.2 * S, "hottest_thread_run_ns": 1.3 * S}
    for pid, names, cores in ((7, list(before), 0.3), (8, list(before)[:2], 0.2), (9, list(before)[:1], 0.1)):
        one = both(
            feed,
            process(pid, **{name: before[name] for name in names}),
            process(pid, **{name: after[name] for name in names}),
        )
        assert one.hottest_thread_cores == pytest.approx(cores)


def test_one_thread_uses_one_core_at_most(feed) -> None:
    """A handover between two busiest threads does not make one of more than a core."""
    one = both(feed, process(busiest_thread_run_ns=S), process(utime=200, busiest_thread_run_ns=3 * S))
    assert one.hottest_thread_cores == 1.0


@pytest.mark.parametrize(
    "before, after",
    [
        ({"start_ticks": 100}, {"start_ticks": 900, "utime": 500}),
        ({"start_ticks": None}, {"start_ticks": 900, "utime": 500}),
        ({}, {"utime": 3, "read_bytes": 10**9, "threads_run_ns": 90 * S}),
        ({"start_ticks": math.nan}, {"start_ticks": math.nan}),
        ({"start_ticks": 10**400}, {"start_ticks": 7}),
    ],
)
def test_another_process_under_the_same_pid(feed, before: dict[str, Any], after: dict[str, Any]) -> None:
    """A pid that was taken again, by its start or by CPU time that fell, is a process first seen."""
    one = both(feed, process(read_bytes=5, threads_run_ns=S, **before), process(**after))
    assert one.cpu_cores is None
    assert one.read_bytes_per_second is None
    assert not feed.rejected


def test_it_counts_on_from_there(feed) -> None:
    """After a pid was taken again, the new process has rates from its second reading on."""
    feed.read(processes=[process(utime=900, start_ticks=1)])
    feed.read(processes=[process(utime=1, stime=0, start_ticks=2)])
    assert feed.read(processes=[process(utime=51, stime=0, start_ticks=2)]).host.processes[
        7
    ].cpu_cores == pytest.approx(0.5)
    feed.read(processes=[process(8, utime=900)])
    feed.read(processes=[process(8, utime=1, stime=0)])
    assert feed.read(processes=[process(8, utime=21, stime=0)]).host.processes[8].cpu_cores == pytest.approx(
        0.2
    )


def test_process_that_vanished_and_came_back(feed) -> None:
    """A process that one reading did not list is first seen again; one list that was not read forgets nobody."""
    feed.read(processes=[process(), process(8)])
    feed.read(processes=[process(8)])
    host = feed.read(processes=[process(utime=150), process(8, utime=200)]).host
    assert host.processes[7].cpu_cores is None
    assert host.processes[8].cpu_cores == pytest.approx(1.0)
    feed.read(host={"procs_blocked": 0})
    assert feed.read(processes=[process(utime=250)]).host.processes[7].cpu_cores == pytest.approx(0.5)


def test_processes_not_read_and_none(feed) -> None:
    """A list that was not read is none at all; an empty one says that there is no process."""
    assert feed.read(host={"procs_blocked": 0}).host.processes is None
    assert feed.read(processes=[]).host.processes == {}


def test_entries_that_are_no_process(feed) -> None:
    """Entries without a pid that can be are passed over, and odd texts are empty."""
    odd = [{"pid": pid, "comm": "x"} for pid in (None, True, "7", 0, -3, 1.5, 2**40, 10**400)]
    host = feed.read(
        processes=[*odd, {"pid": 9, "ppid": "x", "comm": 5, "state": ["D"], "age_s": -1, "cgroup": {}}]
    ).host
    (one,) = host.processes.values()
    assert (one.pid, one.ppid, one.command, one.state, one.age_s, one.cgroup) == (9, 0, "", "", None, "")


@pytest.mark.parametrize(
    "name", ["utime", "threads_run_ns", "threads_wait_ns", "main_run_ns", "read_bytes", "write_bytes"]
)
@pytest.mark.parametrize("value", [math.nan, "1", True, -1000, 2**75, 10**400, math.inf])
def test_counter_that_cannot_be(feed, name: str, value: Any) -> None:
    """A counter that cannot be gives no rate, and is rejected under the signal that it would have fed."""
    usual = {"threads_run_ns": S, "threads_wait_ns": S, "main_run_ns": S, "read_bytes": 5, "write_bytes": 5}
    one = both(feed, process(**usual), process(**{**usual, name: value}))
    rates = [one.cpu_cores, one.runqueue_wait, one.hottest_thread_cores, one.read_bytes_per_second]
    assert all(rate in {None, 0.0} for rate in rates)
    ((signal, reason),) = feed.rejected
    assert signal.startswith("process_tree_")
    assert reason in {"nan", "out-of-range"}


def test_rate_is_over_the_time_since_the_process_was_read(feed) -> None:
    """A reading without processes between two with them does not double their rates."""
    feed.read(processes=[process(threads_run_ns=0)])
    feed.read()
    one = feed.read(processes=[process(utime=200, threads_run_ns=S)]).host.processes[7]
    assert one.cpu_cores == pytest.approx(0.5)


def test_a_process_that_was_not_looked_at_holds_its_rates(feed) -> None:
    """Its rates stay as they were, over its own span, and nothing adds up twice or is lost."""
    feed.read(processes=[process(look=1, read_bytes=0)])
    one = feed.read(processes=[process(look=2, utime=150, read_bytes=600)]).host.processes[7]
    assert (one.cpu_cores, one.gained_cores, one.read_bytes_per_second) == (0.5, 0.5, 600.0)
    held = feed.read(processes=[process(look=2, utime=150, read_bytes=600)]).host.processes[7]
    assert (held.cpu_cores, held.gained_cores, held.read_bytes_per_second) == (0.5, 0.0, 0.0)
    late = feed.read(processes=[process(look=3, utime=230, read_bytes=1800)]).host.processes[7]
    assert late.cpu_cores == pytest.approx(0.4)
    assert late.gained_cores == pytest.approx(0.8)
    assert late.read_bytes_per_second == pytest.approx(1200.0)


def test_a_record_that_is_the_same_object_was_not_looked_at(feed) -> None:
    """Sources hand on what they have; a look at a process that did nothing is a look."""
    first, second = process(look=1), process(look=2, utime=150)
    feed.read(processes=[first])
    feed.read(processes=[second])
    assert feed.read(processes=[second]).host.processes[7].cpu_cores == 0.5
    assert feed.read(processes=[process(look=3, utime=150)]).host.processes[7].cpu_cores == 0.0


def test_recordings_that_count_no_looks_look_each_time(feed) -> None:
    """What older recordings say of a process is of that reading, also where nothing changed."""
    feed.read(processes=[process()])
    feed.read(processes=[process(utime=150)])
    still = feed.read(processes=[process(utime=150)]).host.processes[7]
    assert (still.cpu_cores, still.gained_cores) == (0.0, 0.0)


@pytest.mark.parametrize("look", [math.nan, "x", [], {}, -1, True, 10**400])
def test_looks_that_are_no_number(feed, look: Any) -> None:
    """Whatever a recording says there, another start is another process and nothing raises."""
    feed.read(processes=[process(look=look, start_ticks=1)])
    feed.read(processes=[process(look=look, start_ticks=1, utime=150)])
    other = feed.read(processes=[process(look=look, start_ticks=2, utime=900)]).host.processes[7]
    assert other.cpu_cores is None


# --- cgroups ------------------------------------------------------------------------------------------


def cgroup(**more: Any) -> dict[str, dict[str, Any]]:
    return {"7": {"path": "/q931", "throttled_usec": 5_000_000, "cpu_max": ["60000", "100000"], **more}}


def test_time_held_by_a_quota(feed) -> None:
    """Time that a cgroup was held arrives per second, over the time since it was read."""
    assert feed.read(processes=[process()], cgroups=cgroup()).host.cgroups[7].throttled_ratio is None
    feed.read()
    sample = feed.read(processes=[process()], cgroups=cgroup(throttled_usec=5_800_000)).host
    assert sample.cgroups[7].throttled_ratio == pytest.approx(0.4)
    assert sample.processes[7].cgroup == "/q931"


def test_held_time_that_falls_or_moves(feed) -> None:
    """A fall is rejected; the same pid in another cgroup is not compared."""
    feed.read(processes=[process()], cgroups=cgroup())
    assert (
        feed.read(processes=[process()], cgroups=cgroup(throttled_usec=1)).host.cgroups[7].throttled_ratio
        is None
    )
    assert feed.rejected == {("process_tree_throttled_ratio", "backwards"): 1}
    moved = feed.read(processes=[process()], cgroups=cgroup(path="/other", throttled_usec=900_000)).host
    assert moved.cgroups[7].throttled_ratio is None
    assert sum(feed.rejected.values()) == 1


@pytest.mark.parametrize(
    "limit, cores",
    [
        (["60000", "100000"], 0.6),
        ([200000, 100000], 2.0),
        (("max", "100000"), None),
        (["max", 100000], None),
        (["0", "100000"], None),
        (["-1", "100000"], None),
        (["60000", "0"], None),
        (["60000", "-5"], None),
        (["inf", "inf"], None),
        (["1e308", "1e-308"], None),
        (["nan", "100000"], None),
        ([10**400, 100000], None),
        (["60000"], None),
        ([1, 2, 3], None),
        ("12", None),
        (None, None),
        (5, None),
        ([None, None], None),
    ],
)
def test_quota(feed, limit: Any, cores: float | None) -> None:
    """Cores come from quota over period; "max" and nonsense are no quota."""
    assert (
        feed.read(processes=[process()], cgroups=cgroup(cpu_max=limit)).host.cgroups[7].quota_cores == cores
    )


def test_cgroups_of_what_is_no_pid(feed) -> None:
    """Keys that are no pid are passed over."""
    keys = ["x", "", "-1", "²", "7.0", "9" * 5000]
    host = feed.read(processes=[], cgroups={key: {"path": "/"} for key in keys}).host
    assert host.cgroups == {}


OWN = {"own_usage_usec": 1_000_000, "psi_cpu_some_us": 100_000, "psi_io_some_us": 200_000}


def own(feed, **more: Any) -> tuple[float | None, ...]:
    (sample,) = feed.read(processes=[process()], cgroups=cgroup(**{**OWN, **more})).host.cgroups.values()
    return sample.cpu_cores, sample.cpu_pressure_ratio, sample.io_pressure_ratio


def test_a_jobs_own_cpu_time_and_pressure(feed) -> None:
    """What the group itself used, and how long some task of it waited, come per second."""
    assert own(feed) == (None, None, None)
    told = own(feed, own_usage_usec=3_500_000, psi_cpu_some_us=400_000, psi_io_some_us=900_000)
    assert told == pytest.approx((2.5, 0.3, 0.7))
    assert not feed.rejected


def test_a_group_that_was_not_looked_at_holds_its_rates(feed) -> None:
    """Between two looks at a group it is as before, and then what it did is over the time since."""
    own(feed, look=1)
    assert own(feed, look=2, own_usage_usec=2_000_000)[0] == pytest.approx(1.0)
    assert own(feed, look=2, own_usage_usec=2_000_000)[0] == pytest.approx(1.0)
    assert own(feed, look=3, own_usage_usec=8_000_000)[0] == pytest.approx(3.0)


def test_pressure_is_never_more_than_all_the_time(feed) -> None:
    """The kernel's clock and ours differ a little; more than a step is rejected."""
    own(feed)
    assert own(feed, psi_io_some_us=1_250_000)[2] == 1.0
    assert own(feed, psi_io_some_us=9_000_000)[2] is None
    assert feed.rejected == {("process_tree_io_pressure_ratio", "out-of-range"): 1}


@pytest.mark.parametrize("path", ["/", "/user.slice", "/system.slice/slurmd.service", ""])
def test_what_others_share_is_not_the_jobs(feed, path: str) -> None:
    """Recordings tell the pressure of a login's group, too."""
    own(feed, path=path)
    assert own(feed, path=path, own_usage_usec=3_500_000) == (None, None, None)


@pytest.mark.parametrize("name", sorted(OWN))
@pytest.mark.parametrize("value", [math.nan, "1", True, -1000, 2**75, 10**400, math.inf])
def test_own_values_that_cannot_be(feed, name: str, value: Any) -> None:
    """Each costs itself and is rejected under the signal that it would have fed."""
    own(feed)
    told = own(feed, **{name: value})
    assert told[sorted(OWN).index(name)] is None
    assert sum(each is None for each in told) == 1
    ((signal, _),) = feed.rejected
    assert signal.startswith("process_tree_cpu_" if "io" not in name else "process_tree_io_")
