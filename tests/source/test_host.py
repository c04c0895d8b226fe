"""The host source against trees of files, good and bad, and against the kernel that runs the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Normaliser, Sample
from gpuwhy.source import GpuFacts, GpuReading, HostReading, Reading
from gpuwhy.source.host import READS_PER_GAUGE, HostSource
from gpuwhy.source.kept import RETRY_AFTER
from gpuwhy.workload import attribute

from .fake_host import NET_HEAD, FakeHost, by_pid, stat_line

PRESSURE = (
    "some avg10=1.00 avg60=0.50 avg300=0.10 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
)


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


# The whole host


def test_host_values_are_the_kernels(fake: FakeHost) -> None:
    """Every value of the host comes under its raw name, as the kernel counts it."""
    fake.put("loadavg", "3.41 2.00 1.00 5/999 4242\n")
    fake.put("meminfo", "MemTotal:       100 kB\nMemFree:  7 kB\nMemAvailable:     64 kB\n")
    for name, some in (("cpu", 11), ("io", 12), ("memory", 13)):
        fake.put(f"pressure/{name}", PRESSURE.format(some, some - 10))
    fake.put(
        "net/dev",
        NET_HEAD
        + "    lo: 900 1 0 0 0 0 0 0 901 1 0 0 0 0 0 0\n  eth0:1000 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0\n",
    )
    values = dict(fake.read(fake.source()).values or {})
    assert values.pop("clock_ticks_per_s") == os.sysconf("SC_CLK_TCK")
    assert values == {
        "cpus": 2,
        "cpu_ticks": {
            "user": 10, "nice": 1, "system": 5, "idle": 80, "iowait": 3, "irq": 1, "softirq": 2, "steal": 4,
        },
        "ctxt": 4321,
        "procs_running": 3,
        "procs_blocked": 2,
        "loadavg1": 3.41,
        "mem_available_kb": 64,
        "psi_cpu_some_us": 11,
        "psi_cpu_full_us": 1,
        "psi_io_some_us": 12,
        "psi_io_full_us": 2,
        "psi_memory_some_us": 13,
        "psi_memory_full_us": 3,
        "net_rx_bytes": 1000,
        "net_tx_bytes": 50,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"cpu  1 2", b"cpu  a b c d e f g h i j\n", b"\xff\xfe\x00", b"cpu" * 4000]
)
def test_what_a_file_does_not_say_is_absent(fake: FakeHost, content: bytes) -> None:
    """Empty, cut and strange files give nothing, and never zeros."""
    for name in ("stat", "loadavg", "meminfo", "uptime", "pressure/cpu", "pressure/io", "net/dev"):
        fake.put(name, content)
    assert set(fake.read(fake.source()).values or {}) <= {"clock_ticks_per_s"}


def test_nothing_there_at_all(tmp_path: Path) -> None:
    """Without a process table processes were not read; that is no error, and not the same as none."""
    now = iter(range(100))
    source = HostSource(proc=tmp_path / "no", cgroup=tmp_path / "nor", clock=lambda: float(next(now)))
    assert source.read([42]).processes is None
    assert source.read([]).processes == ()


def test_pressure_that_is_off_is_asked_for_rarely(fake: FakeHost) -> None:
    """A kernel without pressure files is not asked at every look, but again in the end."""
    source = fake.source()
    assert "psi_io_some_us" not in (fake.read(source).values or {})
    fake.put("pressure/io", PRESSURE.format(7, 7))
    looks = [("psi_io_some_us" in (fake.read(source).values or {})) for _ in range(RETRY_AFTER + 1)]
    assert looks == [False] * RETRY_AFTER + [True]


def test_gauges_for_the_record_are_absent_between_looks(fake: FakeHost) -> None:
    """Load is looked at rarely, and never repeated as if it were new."""
    fake.put("loadavg", "1.00 1 1 1/1 1\n")
    source = fake.source()
    looks = [("loadavg1" in (fake.read(source).values or {})) for _ in range(READS_PER_GAUGE + 1)]
    assert looks == [True] + [False] * (READS_PER_GAUGE - 1) + [True]


def test_a_table_longer_than_a_page_is_read_whole(fake: FakeHost) -> None:
    """Hundreds of CPUs and interrupts stand before the counters that come last."""
    cpus = "".join(f"cpu{n} 1 1 1 1 1 1 1 1 1 1\n" for n in range(384))
    fake.put("stat", f"cpu  1 2 3 4 5 6 7 8 9 0\n{cpus}intr {'0 ' * 9000}\nctxt 77\nprocesses 5\n")
    values = fake.read(fake.source()).values or {}
    assert (values["cpus"], values["ctxt"]) == (384, 77)


def test_spans_join(fake: FakeHost) -> None:
    """A look speaks for the time since the one before, ends now, and at the same instant is the same."""
    source = fake.source()
    first = fake.read(source, after_s=0.0)
    assert first.span_s > 0
    second = fake.read(source, after_s=2.5)
    assert (second.end_s, second.span_s) == (fake.now_s, 2.5)
    assert source.read([1]) is second


# The network


def interface(received: int, sent: int, name: str = "eth0") -> str:
    return f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def test_network_of_owners_in_containers(fake: FakeHost) -> None:
    """Where owners have networks of their own, their traffic counts, each network once, and no other's."""
    fake.put("self/ns/net", "")
    fake.put("net/dev", NET_HEAD + interface(10**9, 10**9))
    for pid in (10, 11, 20):
        fake.process(pid)
    fake.put("10/ns/net", "")
    fake.put("20/ns/net", "")
    (fake.proc / "11/ns").mkdir()
    (fake.proc / "11/ns/net").hardlink_to(fake.proc / "10/ns/net")
    for pid in (10, 11):
        fake.put(f"{pid}/net/dev", NET_HEAD + interface(100, 5))
    source = fake.source()
    first = fake.read(source, 10, 11).values or {}
    assert (first["net_rx_bytes"], first["net_tx_bytes"]) == (100, 5)
    for pid in (10, 11):
        fake.put(f"{pid}/net/dev", NET_HEAD + interface(130, 6))
    fake.put("20/net/dev", NET_HEAD + interface(7000, 7000))
    joined = fake.read(source, 10, 11, 20).values or {}
    assert (joined["net_rx_bytes"], joined["net_tx_bytes"]) == (130, 6), (
        "the past of one that joins is not the span's"
    )
    fake.put("20/net/dev", NET_HEAD + interface(7010, 7000))
    assert (fake.read(source, 10, 20).values or {})["net_rx_bytes"] == 140


def test_network_survives_an_interface_that_goes(fake: FakeHost) -> None:
    """Bytes that go with their interface are no traffic backwards."""
    fake.put("net/dev", NET_HEAD + interface(100, 100) + interface(900, 900, "veth1"))
    source = fake.source()
    fake.read(source)
    fake.put("net/dev", NET_HEAD + interface(110, 100))
    assert (fake.read(source).values or {})["net_rx_bytes"] == 1000
    fake.put("net/dev", NET_HEAD + interface(130, 100))
    assert (fake.read(source).values or {})["net_rx_bytes"] == 1020


# Whatever the files hold


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_content_raises(data: st.DataObject) -> None:
    """Whatever the files hold, a look is a look, and the next stage can take it."""
    line = stat_line(10, utime=3)
    plausible = st.sampled_from(
        [
            line,
            line[:30],
            line.replace(b"500", b"9" * 30),
            line.replace(b" S ", b" D "),
            b"0 0 0\n",
            b"5 6 7\n",
            b"11:cpu,cpuacct:/a/b\n0::/../../x\n",
            b"0::/\x00/" + b"y" * 300,
            b"0::/[*]/?\n1:name=systemd:/user.slice\n",
            b"max 100000\n",
            b"5 0\n",
            b"99999999999999999999 1\n",
            b"some total=1\nfull total=\n",
            b"a: 1 2 3 4 5 6 7 8 9 10\n",
            b"10 11 12\n",
            b"0-3,8,9-2\n",
            b"nr_throttled 5\nthrottled_time 7 8\nnr_periods -4\n",
        ]
    )
    content = plausible | st.binary(max_size=200)
    names = ["stat", "uptime", "loadavg", "meminfo", "net/dev", "pressure/cpu", "sys/kernel/pid_max"]
    for pid in (10, 11):
        names += [f"{pid}/{name}" for name in ("stat", "io", "status", "cgroup", "task/10/children")]
        names += [f"{pid}/task/{tid}/{name}" for tid in (pid, 12) for name in ("stat", "schedstat", "wchan")]
    groups = [
        "cpu.max",
        "cpu.stat",
        "cgroup.procs",
        "cpu.pressure",
        "cpu/a/b/cpu.cfs_quota_us",
        "a/b/cpu.max",
    ]
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeHost(Path(folder))
        fake.process(10)
        fake.process(11, ppid=10)
        source, normaliser = fake.source(), Normaliser()
        for _ in range(3):
            for name in data.draw(st.lists(st.sampled_from(names), max_size=8)):
                fake.put(name, data.draw(content))
            for name in data.draw(st.lists(st.sampled_from(groups), max_size=3)):
                fake.put_cgroup(name, data.draw(content))
            if data.draw(st.booleans()):
                fake.forked()
            reading = fake.read(source, 10, 11, 12)
            normaliser.host(reading)
        source.close()


# The kernel that runs the tests


@contextlib.contextmanager
def child(code: str) -> Iterator[int]:
    """A Python process that has said that it is ready; ended with its own children when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.stdout.close()
        process.wait()


def until(source: HostSource, pid: int, enough: Callable[[HostReading], bool]) -> HostReading:
    """Looks until there is enough to see: how long that takes is not what is tested."""
    end = time.monotonic() + 60
    while not enough(reading := source.read([pid])):
        assert time.monotonic() < end, reading
        time.sleep(0.05)
    return reading


BURNING = """
import threading, time
def burn():
    while True:
        pass
threading.Thread(target=burn, daemon=True).start()
print("ready", flush=True)
time.sleep(3600)
"""


def test_thread_that_burns_cpu() -> None:
    """The thread that works is told from the main one, which sleeps, through all stages."""
    source, normaliser, samples = HostSource(), Normaliser(), list[Sample]()

    def gained(reading: HostReading) -> bool:
        gpu = GpuReading(GpuFacts(0, "GPU-a"), owners=(pid,))
        whole = Reading(reading.end_s, time.time(), reading.span_s, 1.0, gpus=(gpu,), host=reading)
        samples.extend(attribute(normaliser.samples(whole)))
        now = by_pid(reading)[pid]
        return bool(now["hottest_thread_run_ns"] - first["hottest_thread_run_ns"] > 5e8)

    with child(BURNING) as pid:
        first = by_pid(source.read([pid]))[pid]
        last = by_pid(until(source, pid, gained))[pid]
    source.close()
    hottest = last["hottest_thread_run_ns"] - first["hottest_thread_run_ns"]
    assert hottest > 5 * (last["main_run_ns"] - first["main_run_ns"])
    assert hottest <= last["threads_run_ns"] - first["threads_run_ns"]
    assert last["threads"] == 2
    assert last["threads_wait_ns"] >= first["threads_wait_ns"]
    assert last["start_ticks"] == first["start_ticks"]
    assert 0 < last["cpus_allowed"] <= os.cpu_count()
    assert last["age_s"] > first["age_s"]
    ratios = [sample.values.get("process_tree_hottest_thread_cores") for sample in samples[1:]]
    assert all(ratio is not None and 0 <= ratio <= 1 for ratio in ratios)
    assert max(ratios) > 0.05


def test_child_that_sleeps() -> None:
    """A parked process is there, in state S, and gains next to nothing."""
    source = HostSource()
    with child("import time; print('ready', flush=True); time.sleep(3600)") as pid:
        first = by_pid(until(source, pid, lambda look: by_pid(look)[pid]["state"] == "S"))[pid]
        for _ in range(5):
            time.sleep(0.02)
            last = by_pid(source.read([pid]))[pid]
    source.close()
    assert last["hottest_thread_run_ns"] - first["hottest_thread_run_ns"] < 5e7
    assert (last["comm"], last["threads"]) == (first["comm"], 1)


READING = """
import os, sys
with open(sys.executable, "rb") as file:
    print("ready", flush=True)
    while True:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        file.read()
"""


def test_child_that_reads_files() -> None:
    """Bytes from storage are counted where the kernel tells, and never fall."""
    source = HostSource()
    with child(READING) as pid:
        looks = [by_pid(source.read([pid]))[pid]]
        for _ in range(10):
            time.sleep(0.05)
            looks.append(by_pid(source.read([pid]))[pid])
    source.close()
    if "read_bytes" not in looks[0]:
        pytest.skip("/proc/PID/io may not be read here; remedy: run the tests as the user who starts them")
    for name in ("read_bytes", "write_bytes"):
        counts = [look[name] for look in looks]
        assert counts == sorted(counts)
        assert counts[0] >= 0


def test_worker_that_is_started_later_is_found() -> None:
    """What an owner forks is in the reading soon, and out of it when it has ended."""
    code = """
import subprocess, sys, time
print("ready", flush=True)
time.sleep(0.3)
worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1)"])
worker.wait()
time.sleep(3600)
"""
    source = HostSource()

    def workers(reading: HostReading) -> set[int]:
        return {each for each, process in by_pid(reading).items() if process["ppid"] == pid}

    with child(code) as pid:
        found = workers(until(source, pid, lambda reading: bool(workers(reading))))
        gone = until(source, pid, lambda reading: not workers(reading))
    source.close()
    assert len(found) == 1
    assert pid in by_pid(gone)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_descriptors_do_not_pile_up() -> None:
    """Over hundreds of looks at processes that come and go the number of open files stays, and all are given back."""
    code = """
import subprocess, sys, threading, time
print("ready", flush=True)
while True:
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(3)]
    [thread.start() for thread in threads]
    subprocess.run(["true"])
    [thread.join() for thread in threads]
"""
    before = open_files()
    source = HostSource()
    counts = []
    with child(code) as pid:
        within = open_files() - before
        for look in range(500):
            source.read([pid])
            time.sleep(0.002)
            if look >= 50:
                counts.append(open_files())
        # A reading may meet a few more or fewer workers; what piles up would be in the hundreds.
        assert max(counts[-100:]) <= max(counts[:100]) + 12
        source.close()
        assert open_files() - before == within
