"""Scrapes are answered whatever a snapshot holds, and say nothing about now that is not known."""

from __future__ import annotations

import dataclasses
import gzip
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuwhy import catalog
from gpuwhy.catalog import SERIES, SERIES_BY_NAME
from gpuwhy.exporter import Exposition, Format, Snapshot
from gpuwhy.exporter.exposition import WANTED_S
from gpuwhy.exporter.snapshot import Family

Make = Callable[..., Any]
POWER = SERIES_BY_NAME["gpuwhy_power_watts"]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Collections:
    """Process metrics that count how often they are collected: once per rendering."""

    def __init__(self) -> None:
        self.count = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> list[Any]:
        self.count += 1
        return []


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def renderings() -> Collections:
    return Collections()


@pytest.fixture
def counted(clock: Clock, renderings: Collections) -> Exposition:
    """An exposition whose renderings are counted."""
    exposition = Exposition(clock=clock, process=renderings.registry)
    renderings.count = 0
    return exposition


def power(*samples: tuple[str, Any]) -> Family:
    return Family(POWER, tuple((f'gpuwhy_power_watts{{gpu="{gpu}"}}', value) for gpu, value in samples))


def test_before_the_first_snapshot(exposition: Exposition, read_bytes: Make) -> None:
    """Before anything was judged a scrape still names the build."""
    assert exposition.snapshot is None
    assert read_bytes(exposition.scrape(Format.TEXT)).get("build_info") == 1.0
    assert exposition.scrape(Format.OPENMETRICS).endswith(b"# EOF\n")


def test_process_metrics_are_appended(full: Snapshot, read_bytes: Make) -> None:
    """The agent's own process is shown with the usual process metrics."""
    exposition = Exposition(clock=lambda: 100.0)
    exposition.publish(full)
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= read_bytes(
        exposition.scrape(Format.TEXT)
    ).names
    assert exposition.scrape(Format.OPENMETRICS).count(b"# EOF\n") == 1


@pytest.mark.parametrize("wanted", Format)
def test_compressed_is_the_same(exposition: Exposition, full: Snapshot, wanted: Format) -> None:
    """The gzip answer unpacks to the plain one and is smaller."""
    exposition.publish(full)
    compressed = exposition.scrape(wanted, compressed=True)
    assert gzip.decompress(compressed) == exposition.scrape(wanted)
    assert len(compressed) < len(exposition.scrape(wanted)) / 4


def test_same_snapshot_is_rendered_once(counted: Exposition, renderings: Collections, full: Snapshot) -> None:
    """A second scrape of the same snapshot gets the same bytes, without rendering."""
    counted.publish(full)
    first = counted.scrape(Format.TEXT)
    assert counted.scrape(Format.TEXT) is first
    assert renderings.count == 1


def test_stale_snapshot_says_nothing_about_now(
    counted: Exposition, clock: Clock, full: Snapshot, read_bytes: Make
) -> None:
    """After three intervals without a snapshot what speaks of now goes, and the agent's own series stay."""
    counted.publish(full)
    clock.now_s = 115.0
    fresh = read_bytes(counted.scrape(Format.TEXT))
    clock.now_s = 115.1
    stale = read_bytes(counted.scrape(Format.TEXT))
    assert counted.stale
    gone = {name for series in SERIES if series.life in {"now", "driver"} for name in series.sample_names}
    assert gone <= fresh.names
    assert stale.names == fresh.names - gone
    assert {"gpuwhy_gpu_up", "gpuwhy_source_up", "gpuwhy_verdict_seconds_total"} <= stale.names
    assert not {"gpuwhy_verdict", "gpuwhy_power_watts", "gpuwhy_energy_joules_total"} & stale.names
    counted.publish(dataclasses.replace(full, taken_s=115.1))
    assert read_bytes(counted.scrape(Format.TEXT)).names == fresh.names


def test_process_metrics_go_on_without_snapshots(
    counted: Exposition, renderings: Collections, clock: Clock, full: Snapshot
) -> None:
    """When snapshots stop, a scrape is rendered anew after two intervals, so that process metrics live."""
    counted.publish(full)
    for clock.now_s in (200.0, 209.0, 210.0):
        counted.scrape(Format.TEXT)
    assert renderings.count == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "1", 10**400, object()])
def test_bad_value_costs_its_sample(
    exposition: Exposition, full: Snapshot, read_bytes: Make, bad: Any
) -> None:
    """A value that is no finite number is left out and counted; its neighbours stay."""
    exposition.publish(dataclasses.replace(full, families=(power(("0", bad), ("1", 300.0)),), dropped=5))
    shown = read_bytes(exposition.scrape(Format.TEXT))
    exposition.scrape(Format.OPENMETRICS)
    assert shown.count("power_watts") == 1
    assert shown.get("power_watts", gpu="1") == 300.0
    assert shown.get("values_dropped_total") == 6


def test_family_without_a_good_value_has_no_header(exposition: Exposition, full: Snapshot) -> None:
    """HELP and TYPE are not written for a family of which nothing is left."""
    exposition.publish(dataclasses.replace(full, families=(power(("0", math.nan)),)))
    assert b"gpuwhy_power_watts" not in exposition.scrape(Format.TEXT)


def test_failing_family_costs_itself(
    exposition: Exposition, full: Snapshot, read_bytes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A family that cannot be rendered is left out, counted, and logged once."""
    broken = Family(POWER, (("gpuwhy_power_watts\ud800", 1.0),))
    for second in (1.0, 2.0):
        exposition.publish(dataclasses.replace(full, taken_s=second, families=(broken, *full.families)))
        shown = read_bytes(exposition.scrape(Format.TEXT))
    assert shown.get("observed_seconds_total", gpu="0") == 5.0
    assert shown.get("exposition_errors_total") == 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_failing_snapshot_is_answered_by_the_last_good_one(
    exposition: Exposition, full: Snapshot, read_bytes: Make
) -> None:
    """A snapshot that cannot be read at all leaves the last good one in place, with one error counted."""
    exposition.publish(full)
    good = read_bytes(exposition.scrape(Format.TEXT)).values
    exposition.publish(dataclasses.replace(full, families=None))
    exposition.scrape(Format.OPENMETRICS)
    shown = read_bytes(exposition.scrape(Format.TEXT))
    errors = ("gpuwhy_exposition_errors_total", frozenset())
    assert shown.values == {**good, errors: 1.0}


def test_failing_process_metrics_cost_themselves(full: Snapshot, read_bytes: Make) -> None:
    """Process metrics that cannot be read are left out and counted."""

    class Broken:
        def collect(self) -> Iterator[Any]:
            raise UnboundLocalError("max_fds")

    registry = CollectorRegistry()
    registry.register(Broken())
    exposition = Exposition(clock=lambda: 100.0, process=registry)
    exposition.publish(full)
    shown = read_bytes(exposition.scrape(Format.TEXT))
    assert shown.get("exposition_errors_total") == 1
    assert shown.get("observed_seconds_total", gpu="0") == 5.0


def test_only_formats_asked_for_lately_are_rendered_ahead(
    counted: Exposition, renderings: Collections, clock: Clock, full: Snapshot
) -> None:
    """Rendering ahead makes what was asked for in the last five minutes, and nothing else."""

    def rendered_ahead() -> int:
        renderings.count = 0
        counted.publish(dataclasses.replace(full, taken_s=clock.now_s))
        counted._render_wanted()
        return renderings.count

    assert rendered_ahead() == 0
    counted.scrape(Format.TEXT)
    assert rendered_ahead() == 1
    counted.scrape(Format.OPENMETRICS, compressed=True)
    assert rendered_ahead() == 2
    clock.now_s += WANTED_S
    counted.scrape(Format.TEXT)
    clock.now_s += 1
    assert rendered_ahead() == 1
    renderings.count = 0
    counted.scrape(Format.TEXT)
    assert renderings.count == 0


def test_thread_renders_ahead_until_stopped(
    counted: Exposition, renderings: Collections, full: Snapshot
) -> None:
    """Between start and stop a published snapshot is rendered without a scrape; no thread is left."""
    counted.scrape(Format.TEXT)
    renderings.count = 0
    counted.start()
    counted.publish(full)
    until = time.monotonic() + 10
    while not renderings.count and time.monotonic() < until:
        time.sleep(0.01)
    assert renderings.count == 1
    counted.stop()
    counted.stop()
    assert "gpuwhy-render" not in {thread.name for thread in threading.enumerate()}
    assert counted.scrape(Format.TEXT)


def test_scrapes_and_snapshots_at_once(judge: Make, health: Any, read_bytes: Make) -> None:
    """Scrapes from several threads while snapshots change are each of one snapshot, and only go forward."""
    from gpuwhy.exporter import Ledger

    ledger = Ledger()
    exposition = Exposition(process=CollectorRegistry())
    exposition.start()
    done = threading.Event()
    seen: list[list[float]] = []

    def scrape() -> None:
        mine: list[float] = []
        seen.append(mine)
        while not done.is_set():
            shown = read_bytes(exposition.scrape(Format.TEXT))
            observed = shown.get("observed_seconds_total", gpu="0")
            assert shown.get("measured_seconds_total", gpu="0") == observed
            mine.append(observed)

    ledger.add_gpu(judge().gpu)
    exposition.publish(ledger.snapshot(health, taken_s=time.monotonic(), interval_s=5.0))
    threads = [threading.Thread(target=scrape) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        ledger.credit([judge()], None, {})
        exposition.publish(ledger.snapshot(health, taken_s=time.monotonic(), interval_s=5.0))
        time.sleep(0.002)
    done.set()
    for thread in threads:
        thread.join()
    exposition.stop()
    assert all(mine == sorted(mine) for mine in seen)
    assert max(max(mine) for mine in seen) > 0


def test_catalogue_knows_what_is_no_longer_true(full: Snapshot) -> None:
    """The rows that go when readings are stale are the driver's counters and what speaks of now."""
    drivers = {series.name for series in SERIES if series.life == "driver"}
    assert drivers == {
        "gpuwhy_clock_event_seconds_total",
        "gpuwhy_energy_joules_total",
        "gpuwhy_pcie_receive_bytes_total",
        "gpuwhy_pcie_transmit_bytes_total",
        "gpuwhy_nvlink_receive_bytes_total",
        "gpuwhy_nvlink_transmit_bytes_total",
    }
    now = [series for series in catalog.SERIES if series.life == "now"]
    assert {series.kind for series in now} == {"gauge", "info"}
