"""What the kernel says of the host, as rates over the time that the counters really took."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpuwhy.source import GpuFacts, GpuReading, HostReading, Reading

TICKS = {
    "user": 1000,
    "nice": 5,
    "system": 300,
    "idle": 9000,
    "iowait": 40,
    "irq": 4,
    "softirq": 6,
    "steal": 8,
}


def ticks(**more: Any) -> dict[str, Any]:
    """The host's values with CPU ticks that many further on."""
    return {"cpu_ticks": {mode: TICKS[mode] + more.get(mode, 0) for mode in TICKS}, "cpus": 4}


def test_first_reading_says_nothing_of_counters(feed) -> None:
    """Counters that were not seen before give neither seconds nor ratios."""
    host = feed.read(host={**ticks(), "psi_io_some_us": 5, "net_rx_bytes": 7}).host
    assert (host.values, host.cpu_seconds, host.pressure_seconds) == ({}, {}, {})
    assert host.cpus == 4


def test_cpu_time_by_mode(feed) -> None:
    """Ticks become seconds by mode, the busy share of the host, and the CPUs that wait for I/O."""
    feed.read(host=ticks())
    host = feed.read(host=ticks(user=100, system=20, softirq=10, steal=10, idle=240, iowait=20)).host
    assert host.cpu_seconds == {
        "user": pytest.approx(1.0),
        "nice": 0.0,
        "system": pytest.approx(0.2),
        "idle": pytest.approx(2.4),
        "iowait": pytest.approx(0.2),
        "irq": 0.0,
        "softirq": pytest.approx(0.1),
        "steal": pytest.approx(0.1),
    }
    assert host.values["host_cpu_busy_ratio"] == pytest.approx(0.35)
    assert host.values["host_iowait_cores"] == pytest.approx(0.2)


def test_ticks_are_as_long_as_the_host_says(feed) -> None:
    """The length of a tick comes with the reading; nonsense means the usual hundredth of a second."""
    for hertz, seconds in ((1000, 0.1), (None, 1.0), (0, 1.0), (-5, 1.0), (math.nan, 1.0), ("x", 1.0)):
        feed.read(host={**ticks(), "clock_ticks_per_s": hertz}, restart=True)
        host = feed.read(host={**ticks(user=100), "clock_ticks_per_s": hertz}).host
        assert host.cpu_seconds["user"] == pytest.approx(seconds)


def test_iowait_may_fall(feed) -> None:
    """The kernel lets iowait fall: that is no fault, and says nothing of I/O meanwhile."""
    feed.read(host=ticks())
    host = feed.read(host=ticks(user=100, idle=300, iowait=-10)).host
    assert "iowait" not in host.cpu_seconds
    assert "host_iowait_cores" not in host.values
    assert host.values["host_cpu_busy_ratio"] == pytest.approx(0.25)
    assert not feed.rejected


@pytest.mark.parametrize("mode", [mode for mode in TICKS if mode != "iowait"])
def test_other_modes_may_not(feed, mode: str) -> None:
    """Any other mode that falls is rejected, and what rests on it is not said."""
    feed.read(host=ticks())
    host = feed.read(host=ticks(**{mode: -3})).host
    assert mode not in host.cpu_seconds
    assert feed.rejected == {("host_cpu_seconds", "backwards"): 1}


def test_busy_share_needs_the_modes_that_make_it(feed) -> None:
    """Where idle time was not read the host is not called busy."""
    for mode in ("idle", "user", "system"):
        some = {"cpu_ticks": {name: value for name, value in TICKS.items() if name != mode}}
        more = {"cpu_ticks": {name: value + 5 for name, value in some["cpu_ticks"].items()}}
        feed.read(host=some, restart=True)
        assert "host_cpu_busy_ratio" not in feed.read(host=more).host.values


def test_cpu_time_that_cannot_be(feed) -> None:
    """More CPU time than there are CPUs is rejected, so that it poisons no sum."""
    feed.read(host=ticks())
    host = feed.read(host=ticks(user=10**9)).host
    assert "user" not in host.cpu_seconds
    assert feed.rejected == {("host_cpu_seconds", "out-of-range"): 1}


def test_pressure(feed) -> None:
    """Pressure totals become seconds and the share of time, at most all of it."""
    feed.read(host={"psi_cpu_some_us": 10, "psi_io_some_us": 10, "psi_memory_some_us": 10})
    host = feed.read(
        host={"psi_cpu_some_us": 500_010, "psi_io_some_us": 2_100_010, "psi_memory_some_us": 10}, after_s=2.0
    ).host
    assert host.pressure_seconds == {"cpu": pytest.approx(0.5), "io": 2.0, "memory": 0.0}
    assert host.values == {
        "host_pressure_cpu_ratio": pytest.approx(0.25),
        "host_pressure_io_ratio": 1.0,
        "host_pressure_memory_ratio": 0.0,
    }


def test_pressure_that_cannot_be(feed) -> None:
    """More pressure than time has passed, beyond a step of the counter, is rejected."""
    feed.read(host={"psi_io_some_us": 0})
    assert feed.read(host={"psi_io_some_us": 2_100_000}).host.pressure_seconds == {}
    assert feed.rejected == {("host_pressure_seconds", "out-of-range"): 1}


def test_kernel_without_pressure(feed) -> None:
    """A kernel that keeps no pressure says nothing of it, which is not zero."""
    for _ in range(2):
        host = feed.read(host={**ticks(), "psi_cpu_some_us": None}).host
    assert host.pressure_seconds == {}
    assert not [name for name in host.values if "pressure" in name]
    assert not feed.rejected


def test_network(feed) -> None:
    """Bytes become a rate in each direction."""
    feed.read(host={"net_rx_bytes": 1000, "net_tx_bytes": 10**12})
    host = feed.read(host={"net_rx_bytes": 21_000, "net_tx_bytes": 500}, after_s=2.0).host
    assert host.values == {"host_network_receive_bytes_per_second": 10_000.0}
    assert feed.rejected == {("host_network_transmit_bytes_per_second", "backwards"): 1}


def test_rate_is_over_the_time_since_the_counter_was_read(feed) -> None:
    """A reading without the host between two with it does not double the host's rates."""
    feed.read(host={**ticks(), "net_rx_bytes": 0, "psi_io_some_us": 0})
    assert feed.read().host is None
    host = feed.read(host={**ticks(iowait=20), "net_rx_bytes": 1000, "psi_io_some_us": 10**6}).host
    assert host.values["host_network_receive_bytes_per_second"] == 500.0
    assert host.values["host_pressure_io_ratio"] == pytest.approx(0.5)
    assert host.values["host_iowait_cores"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "value, shown", [(3, 3.0), (0, 0.0), (-1, None), (True, None), ("3", None), (1e9, None), (math.nan, None)]
)
def test_blocked_processes(feed, value: Any, shown: float | None) -> None:
    """A count of blocked processes that can be is shown."""
    assert feed.read(host={"procs_blocked": value}).host.values.get("host_blocked_processes") == shown


@pytest.mark.parametrize("cpus", [None, 0, -4, "4", 1e9, 10**400])
def test_cpus_that_cannot_be(feed, cpus: Any) -> None:
    """A number of CPUs that no host has was not read."""
    assert feed.read(host={"cpus": cpus}).host.cpus is None


def test_one_look_at_the_host_serves_several_readings(feed) -> None:
    """A host that is read less often than the device is not compared with itself."""
    look = HostReading(end_s=1.0, span_s=1.0, values=ticks())
    later = HostReading(end_s=2.0, span_s=1.0, values=ticks(user=100, idle=300))
    gpus = (GpuReading(GpuFacts(0, "a"), owners=()),)
    hosts = [
        feed.normaliser.samples(Reading(at, at, 0.5, 0.5, gpus, host=host))[0].host
        for at, host in ((1.0, look), (1.5, look), (2.0, later), (2.5, later))
    ]
    assert hosts[0] is hosts[1]
    assert hosts[2] is hosts[3]
    assert hosts[2].values["host_cpu_busy_ratio"] == pytest.approx(0.25)


def test_restart_forgets_the_host(feed) -> None:
    """Across a restart the host's counters, too, are not compared."""
    feed.read(host={**ticks(user=500), "net_rx_bytes": 10**9})
    host = feed.read(host={**ticks(), "net_rx_bytes": 5}, restart=True).host
    assert host.values == {}
    assert not feed.rejected
