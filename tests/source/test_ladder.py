"""Which source serves what, and what happens when one fails, hangs, yields or comes back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuwhy.source import (
    Capability,
    DriverMismatchError,
    GpuFacts,
    GpuReading,
    NoGpuError,
    Part,
    Reading,
    SourceError,
)
from gpuwhy.source.ladder import GRACE_S, LOST_PERIODS, REFUSE_S, STAND_IN_S, Ladder, Rung, SourceState

SIGNAL_OF = {
    "sm_util": "sm",
    "DCGM_SM": "sm",
    "power_mw": "power",
    "DCGM_POWER": "power",
    "energy_mj": "energy",
    "DCGM_ENERGY": "energy",
}
GPU = GpuFacts(0, "GPU-a", model="NVIDIA H200")
PERIOD_S = 0.2


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A source that says what the test puts into ``gpus``; can be made to hang, refuse and fail."""

    yielding = ""

    def __init__(
        self, name: str, clock: Clock, gpus: Mapping[GpuFacts, Mapping[str, Any]] | None = None
    ) -> None:
        self.name, self.period_s, self.clock = name, PERIOD_S, clock
        self.gpus = dict(gpus or {})
        self.owners: tuple[int, ...] | None = None
        self.process_use: Mapping[int, float] | None = None
        self.device_uuids: tuple[str, ...] = ()
        self.down: set[GpuFacts] = set()
        self.part_period_s: float | None = None
        self.refuses: Exception | None = None
        self.fails: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        self.spared: Mapping[tuple[str, str], frozenset[str]] = {}
        self.starts = self.closes = self.reads = 0
        self.restarts = False
        self.threads: set[int] = set()

    def start(self) -> tuple[GpuFacts, ...]:
        self.starts += 1
        self.threads.add(threading.get_ident())
        self.free.wait()
        if self.refuses is not None:
            raise self.refuses
        return tuple(self.gpus)

    def read(self) -> Reading:
        self.reads += 1
        self.threads.add(threading.get_ident())
        self.free.wait()
        if self.fails is not None:
            raise self.fails
        gpus = tuple(
            GpuReading(
                facts,
                (Part(self.name, values, period_s=self.part_period_s),) if values else (),
                owners=self.owners,
                process_use=self.process_use,
                device_uuids=self.device_uuids,
                up=facts not in self.down,
            )
            for facts, values in self.gpus.items()
        )
        return Reading(self.clock(), 0.0, self.period_s, self.period_s, gpus, restart=self.restarts)

    def close(self) -> None:
        self.closes += 1

    def capabilities(self) -> Mapping[tuple[str, str], Mapping[str, Capability]]:
        return {
            facts.key: {raw: Capability(self.name) for raw in values} for facts, values in self.gpus.items()
        }


class Host:
    """A ladder over fakes: ``dcgm`` above ``nvml`` above ``exporter``, at the test's own pace."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.dcgm = Fake("dcgm", self.clock, {GPU: {"DCGM_SM": 0.5, "DCGM_POWER": 400.0}})
        self.nvml = Fake("nvml", self.clock, {GPU: {"sm_util": 49, "power_mw": 399e3}})
        self.nvml.owners = (42,)
        self.exporter = Fake("dcgm-exporter", self.clock)
        self.ladder: Ladder | None = None

    def up(self, *rungs: Rung, **options: Any) -> Ladder:
        rungs = rungs or (
            Rung(self.dcgm),
            Rung(self.nvml, spares=self.nvml),
            Rung(self.exporter, stand_in=True),
        )
        self.ladder = Ladder(
            rungs,
            signal_of=SIGNAL_OF,
            steady={"sm", "power"},
            needs={"sm"},
            clock=self.clock,
            wall=lambda: 1.8e9,
            period_s=PERIOD_S,
            **options,
        )
        self.ladder.start()
        return self.ladder

    def tick(self, times: int = 1) -> Reading:
        assert self.ladder is not None
        for _ in range(times):
            self.clock.now += PERIOD_S
            reading = self.ladder.read()
            # The clock stands still until whoever can come back has.
            free = [worker for worker in self.ladder._workers if worker.rung.source.free.is_set()]
            until(lambda free=free: all(worker.asked_s is None for worker in free))
        return reading

    def served(self, times: int = 1) -> dict[str, str]:
        """Which source gives each raw value of the first GPU."""
        return {raw: part.source for part in self.tick(times).gpus[0].parts for raw in part.values}


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    for source in (host.dcgm, host.nvml, host.exporter):
        source.free.set()
    if host.ladder is not None:
        host.ladder.close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# --- choosing -----------------------------------------------------------------------------------------


def test_each_signal_comes_from_the_best_source_that_has_it(host) -> None:
    """DCGM serves what it has; NVML the rest, the processes and the index; nothing comes twice."""
    del host.dcgm.gpus[GPU]
    host.dcgm.gpus[replace(GPU, index=7, driver="580.1")] = {"DCGM_SM": 0.5}
    ladder = host.up()
    reading = host.tick()
    assert [(part.source, dict(part.values)) for part in reading.gpus[0].parts] == [
        ("dcgm", {"DCGM_SM": 0.5}),
        ("nvml", {"power_mw": 399e3}),
    ]
    (gpu,) = reading.gpus
    assert (gpu.facts.index, gpu.facts.driver, gpu.owners, gpu.up) == (0, "580.1", (42,), True)
    assert ladder.name == "dcgm+nvml"
    assert not ladder.degraded


def test_what_is_no_signal_passes(host) -> None:
    """Events that come with the values are handed on from every source."""
    host.nvml.gpus[GPU] = {"xid_events": (31,)}
    host.up()
    assert host.served() == {"DCGM_SM": "dcgm", "DCGM_POWER": "dcgm", "xid_events": "nvml"}


def test_use_by_process_comes_from_the_best_source_that_has_it(host) -> None:
    """Shares are of one source and of this reading: none is carried on, none mixed."""
    host.nvml.process_use = {7: 0.0}
    host.exporter.process_use = {7: 1.0}
    host.exporter.gpus = dict(host.nvml.gpus)
    host.up(Rung(host.dcgm), Rung(host.nvml, spares=host.nvml), Rung(host.exporter))
    assert host.tick(2).gpus[0].process_use == {7: 0.0}
    host.nvml.process_use = {}
    assert host.tick(2).gpus[0].process_use == {}
    host.nvml.process_use = None
    assert host.tick(2).gpus[0].process_use == {7: 1.0}
    host.exporter.process_use = None
    assert host.tick(2).gpus[0].process_use is None


def test_devices_of_an_instance_stay_while_their_source_is_late(host) -> None:
    """Grants are by these names: a source that misses a tick does not take the GPU from its holder."""
    host.nvml.device_uuids = ("MIG-a",)
    host.up()
    assert host.tick(2).gpus[0].device_uuids == ("MIG-a",)
    host.nvml.free.clear()
    assert host.tick(2).gpus[0].device_uuids == ("MIG-a",)
    host.nvml.device_uuids = ("MIG-b", "MIG-c")
    host.nvml.free.set()
    assert host.tick(3).gpus[0].device_uuids == ("MIG-b", "MIG-c")


def test_mixed_cards(host) -> None:
    """Each GPU has its own ladder: what DCGM does not know of one costs the other nothing."""
    other = GpuFacts(1, "GPU-b")
    host.nvml.gpus[other] = {"sm_util": 10}
    host.up()
    first, second = host.tick().gpus
    assert {part.source for part in first.parts} == {"dcgm"}
    assert {part.source for part in second.parts} == {"nvml"}


def test_two_boards_never_share_an_index(host) -> None:
    """Where only a source without NVML's indices knows a GPU, it gets one of its own; slices have their board's."""
    host.dcgm.gpus = {GpuFacts(0, "GPU-b"): {"DCGM_SM": 0.1}, GpuFacts(0, "GPU-b", mig="2"): {"DCGM_SM": 0.2}}
    host.up()
    indices = {gpu.facts.key: gpu.facts.index for gpu in host.tick().gpus}
    assert indices[("GPU-b", "")] == indices[("GPU-b", "2")] != indices[("GPU-a", "")]


def test_nvml_need_not_ask_what_dcgm_serves(host) -> None:
    """The names that a better source serves are handed down, and taken back when it is lost."""
    host.up()
    host.tick()
    assert host.nvml.spared == {GPU.key: {"sm_util", "power_mw", "DCGM_SM", "DCGM_POWER"}}
    host.dcgm.gpus[GPU] = {}
    host.tick(LOST_PERIODS + 2)
    assert host.nvml.spared == {GPU.key: frozenset()}


def test_stand_in_is_asked_only_while_something_is_lacking(host) -> None:
    """An exporter is not scraped where better sources give activity, and is as soon as they do not."""
    host.up()
    host.tick(3)
    asked = host.exporter.reads
    assert "dcgm-exporter" not in host.ladder.name
    host.tick(5)
    assert host.exporter.reads == asked
    host.dcgm.gpus[GPU] = {}
    host.nvml.gpus[GPU] = {"power_mw": 1e5}
    host.exporter.gpus[GPU] = {"DCGM_SM": 0.4, "DCGM_POWER": 90.0}
    host.exporter.part_period_s = 30.0
    host.tick(LOST_PERIODS + 2)
    assert host.exporter.reads == asked  # not at once: with it, intervals are long
    host.tick(int(STAND_IN_S / PERIOD_S) + 1)
    assert host.served() == {"power_mw": "nvml", "DCGM_SM": "dcgm-exporter"}
    assert host.ladder.degraded


# --- stepping down and up -----------------------------------------------------------------------------


def test_frozen_values_step_down_and_new_ones_up(host) -> None:
    """Without news the next source takes over after a few periods; with news it is given up at once."""
    ladder = host.up()
    host.tick()
    host.dcgm.gpus[GPU] = {}
    assert host.served(LOST_PERIODS - 1) == {}
    assert host.served(2) == {"sm_util": "nvml", "power_mw": "nvml"}
    assert ladder.degraded
    host.dcgm.gpus[GPU] = {"DCGM_SM": 0.6, "DCGM_POWER": 500.0}
    assert host.served() == {"DCGM_SM": "dcgm", "DCGM_POWER": "dcgm"}
    assert not ladder.degraded


def test_only_what_was_lost_steps_down(host) -> None:
    """Profiling that is paused costs activity alone: the rest stays where it was."""
    ladder = host.up()
    host.tick()
    host.dcgm.gpus[GPU] = {"DCGM_POWER": 400.0}
    host.dcgm.yielding = "profiling is paused"
    assert host.served(LOST_PERIODS + 2) == {"DCGM_POWER": "dcgm", "sm_util": "nvml"}
    assert ladder.states()["dcgm"] == SourceState(up=True, yielding="profiling is paused")
    assert ladder.degraded


def test_hung_source_costs_only_what_it_served(host) -> None:
    """A call that hangs is said once and never joined by another; others take over; it comes back."""
    ladder = host.up()
    host.tick(2)
    host.dcgm.free.clear()
    host.tick(LOST_PERIODS + 3)
    reads = host.dcgm.reads
    assert host.served(3) == {"sm_util": "nvml", "power_mw": "nvml"}
    assert host.dcgm.reads == reads
    assert ladder.states()["dcgm"] == SourceState(up=False, reason="a call hangs")
    assert ladder.name == "nvml"
    assert ladder.degraded
    host.dcgm.free.set()
    until(lambda: ladder._workers[0].asked_s is None)
    assert host.served(2) == {"DCGM_SM": "dcgm", "DCGM_POWER": "dcgm"}
    assert ladder.states()["dcgm"].up
    assert len(host.dcgm.threads) == 1


def test_hung_driver_leaves_dcgm(host) -> None:
    """NVML that hangs costs its processes; activity goes on from the engine."""
    host.up()
    host.tick(2)
    host.nvml.free.clear()
    (gpu,) = host.tick(LOST_PERIODS + 3).gpus
    assert gpu.up
    assert gpu.owners is None
    assert {part.source for part in gpu.parts} == {"dcgm"}


def test_gpu_that_nobody_answers_for_is_down(host) -> None:
    """While all sources hang, GPUs stay in the reading and are down."""
    ladder = host.up()
    host.tick(2)
    host.dcgm.free.clear()
    host.nvml.free.clear()
    (gpu,) = host.tick(2 * LOST_PERIODS).gpus
    assert (gpu.up, gpu.parts) == (False, ())
    assert not ladder.degraded


def test_gpu_is_up_while_one_source_answers_for_it(host) -> None:
    """NVML may have lost a GPU that the engine still reads."""
    host.up()
    host.nvml.down.add(GPU)
    host.nvml.gpus[GPU] = {}
    assert host.tick(2).gpus[0].up
    host.dcgm.gpus[GPU] = {}
    host.dcgm.down.add(GPU)
    assert not host.tick().gpus[0].up


def test_lost_source_is_closed_and_tried_again_ever_later(host) -> None:
    """A source that fails is closed, opened anew after 1, 2, 4 ... seconds, and at most each minute."""
    ladder = host.up()
    host.tick(2)
    host.dcgm.fails = SourceError("connection not valid")
    host.dcgm.refuses = SourceError("nobody answers")
    assert host.served(2) == {
        "sm_util": "nvml",
        "power_mw": "nvml",
    }  # what is known to be lost is not waited for
    started = []
    for _ in range(int(200 / PERIOD_S)):
        before = host.dcgm.starts
        host.tick()
        if host.dcgm.starts > before:
            started.append(host.clock.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert gaps[:5] == pytest.approx([2, 4, 8, 16, 32], abs=1.5 * PERIOD_S)
    assert max(gaps) <= 60 + 2 * PERIOD_S
    assert host.dcgm.closes == host.dcgm.starts
    assert ladder.states()["dcgm"] == SourceState(up=False, reason="nobody answers")
    assert host.served() == {"sm_util": "nvml", "power_mw": "nvml"}
    host.dcgm.fails = host.dcgm.refuses = None
    host.tick(int(61 / PERIOD_S))
    assert ladder.states()["dcgm"].up
    assert not ladder.degraded


def test_counters_are_not_taken_over_between_two_readings_of_them(host) -> None:
    """A counter that is read seldom stays with its source: two that count in turns would count twice."""
    host.dcgm.gpus[GPU] = {"DCGM_ENERGY": 1.0}
    host.nvml.gpus[GPU] = {"energy_mj": 1.0}
    host.up()
    host.tick()
    host.dcgm.gpus[GPU] = {}
    assert host.served(int(10 / PERIOD_S)) == {}
    assert not host.ladder.degraded
    assert host.served(int(60 / PERIOD_S)) == {"energy_mj": "nvml"}


# --- starting -----------------------------------------------------------------------------------------


def test_required_source_is_had_or_refused(host) -> None:
    """A source that was asked for by name is there at the start, or its refusal is the answer."""
    host.dcgm.refuses = SourceError("no engine answers on 127.0.0.1:5555; start nv-hostengine")
    with pytest.raises(SourceError, match="start nv-hostengine"):
        host.up(Rung(host.dcgm, required=True), Rung(host.nvml, spares=host.nvml))


def test_one_source_is_enough(host) -> None:
    """Sources that are not there are no fault of the host, and are not shown."""
    host.dcgm.refuses = NoGpuError("no engine")
    host.exporter.refuses = NoGpuError("no exporter")
    ladder = host.up()
    assert host.served() == {"sm_util": "nvml", "power_mw": "nvml"}
    assert not ladder.degraded
    assert {name for name, state in ladder.states().items() if state.used} == {"nvml"}


def test_without_any_source_nvml_says_why(host) -> None:
    """NVML knows whether there is a GPU; the other sources' reasons stand behind its own."""
    for source in (host.dcgm, host.nvml, host.exporter):
        source.refuses = NoGpuError(f"no {source.name} here")
    with pytest.raises(
        NoGpuError, match=r"no nvml here\ndcgm: no dcgm here\ndcgm-exporter: no dcgm-exporter here"
    ):
        host.up()
    host.nvml.refuses = DriverMismatchError("different versions")
    with pytest.raises(DriverMismatchError):
        host.up()


def test_start_waits_for_better_sources_but_not_for_ever(host) -> None:
    """A source that hangs from the start is given its time; then the others begin without it."""
    host.dcgm.free.clear()
    ticking = threading.Thread(
        target=lambda: [
            setattr(host.clock, "now", host.clock.now + 0.5) or time.sleep(0.01) for _ in range(40)
        ]
    )
    ticking.start()
    began = host.clock.now
    host.up()
    ticking.join()
    assert host.clock.now - began >= GRACE_S
    assert host.served() == {"sm_util": "nvml", "power_mw": "nvml"}


def test_driver_of_another_version_ends_only_a_host_without_other_sources(host) -> None:
    """It cannot heal in this process; where another source has ever answered, that one is waited for."""
    host.exporter.refuses = NoGpuError("no exporter")
    ladder = host.up()
    host.tick()
    host.nvml.fails = host.nvml.refuses = DriverMismatchError("different versions")
    assert host.tick(3).gpus[0].parts
    host.dcgm.fails = host.dcgm.refuses = SourceError("gone")
    assert not host.tick(5 * LOST_PERIODS).gpus[0].up
    ladder.close()
    host.dcgm, host.nvml = Fake("dcgm", host.clock), Fake("nvml", host.clock, {GPU: {"sm_util": 1}})
    host.dcgm.refuses = NoGpuError("no engine")
    host.up()
    host.tick(2)
    host.nvml.fails = host.nvml.refuses = DriverMismatchError("different versions")
    with pytest.raises(DriverMismatchError):
        host.tick(5)


def test_close_closes_all_and_leaves_what_hangs(host) -> None:
    """Sources are closed from their own threads; a hung one is left behind."""
    ladder = host.up()
    host.tick()
    host.exporter.free.clear()
    host.dcgm.free.clear()
    host.tick()
    ladder.close()
    assert (host.nvml.closes, host.dcgm.closes) == (1, 0)


# --- MIG ----------------------------------------------------------------------------------------------


def test_slice_that_is_gone_leaves_the_reading(host) -> None:
    """An instance that no source shows any more goes; one that is late for a tick stays."""
    board = replace(GPU, split=True, share_ratio=4 / 7)
    slice_ = replace(GPU, mig="1", profile="3g.71gb", share_ratio=3 / 7)
    host.dcgm.refuses = SourceError("no engine")
    host.nvml.gpus = {board: {"power_mw": 1.0}, slice_: {"sm_util": 3}}
    host.up()
    assert [gpu.facts.mig for gpu in host.tick(2).gpus] == ["", "1"]
    del host.nvml.gpus[slice_]
    assert [gpu.facts.mig for gpu in host.tick(1).gpus] == ["", "1"]
    assert [gpu.facts.mig for gpu in host.tick(LOST_PERIODS + 1).gpus] == [""]
    host.nvml.free.clear()  # all is silent: nothing is known to be gone
    host.nvml.gpus[slice_] = {"sm_util": 3}


def test_slices_stay_while_all_is_silent(host) -> None:
    """A driver that hangs does not take instances apart."""
    board, slice_ = replace(GPU, split=True), replace(GPU, mig="1")
    host.dcgm.refuses = SourceError("no engine")
    host.nvml.gpus = {board: {"power_mw": 1.0}, slice_: {"sm_util": 3}}
    host.up()
    host.tick(2)
    host.nvml.free.clear()
    assert [(gpu.facts.mig, gpu.up) for gpu in host.tick(3 * LOST_PERIODS).gpus] == [
        ("", False),
        ("1", False),
    ]


def test_capabilities_by_source(host) -> None:
    """Doctor learns of each source what it gives."""
    ladder = host.up()
    ladder.capabilities()
    host.tick(2)
    assert ladder.capabilities()["nvml"][GPU.key]["sm_util"] == Capability("nvml")


def test_source_that_is_late_loses_nothing(host) -> None:
    """What comes after its tick is taken at the next one, with the source reading on: no second tick is lost."""
    host.dcgm.refuses = SourceError("no engine")
    ladder = host.up()
    host.tick(2)
    worker = ladder._workers[1]
    served = 0
    for tick in range(10):
        host.nvml.free.clear()  # slower than the ladder's patience
        host.nvml.gpus[GPU] = {"sm_util": tick, "xid_events": (tick,)}
        host.clock.now += PERIOD_S
        parts = ladder.read().gpus[0].parts
        served += any("sm_util" in part.values for part in parts)
        host.nvml.free.set()
        until(lambda: worker.asked_s is None)
    assert served >= 9


def test_events_of_a_reading_that_is_overtaken_are_kept(host) -> None:
    """Of two readings between two ticks the newer counts, for the time of both; Xids are those of both."""
    host.dcgm.refuses = SourceError("no engine")
    host.nvml.gpus[GPU] = {"sm_util": 1, "xid_events": (31,)}
    ladder = host.up()
    until(lambda: ladder._workers[1].reading is not None)
    host.nvml.gpus[GPU] = {"sm_util": 2, "xid_events": (43,)}
    (gpu,) = host.tick().gpus
    assert [value for part in gpu.parts for raw, value in part.values.items() if raw == "sm_util"] == [2]
    assert sorted(x for part in gpu.parts for x in part.values.get("xid_events", ())) == [31, 43]
    assert gpu.parts[0].span_s == pytest.approx(2 * PERIOD_S)


def test_what_stands_in_is_ready_in_time(host) -> None:
    """After two readings missed the next source is told to ask again, so that it has values when it is to serve."""
    host.up()
    host.tick(3)
    host.dcgm.gpus[GPU] = {}
    host.tick(1)
    assert host.nvml.spared[GPU.key]
    host.tick(1)
    assert not host.nvml.spared[GPU.key]
    assert host.served(2) == {"sm_util": "nvml", "power_mw": "nvml"}


@pytest.mark.parametrize("source", ["dcgm", "nvml"])
def test_server_that_is_silent_from_the_start_is_refused(host, source: str) -> None:
    """An engine that does not answer is none after a while; a driver is waited for, as it may take long."""
    mine = getattr(host, source)
    mine.free.clear()
    refused: list[BaseException] = []

    def start() -> None:
        try:
            host.up(Rung(mine, "see its log", required=True, spares=mine if source == "nvml" else None))
        except SourceError as error:
            refused.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    host.clock.now += REFUSE_S / 2
    starting.join(0.3)
    assert starting.is_alive()
    host.clock.now += REFUSE_S
    starting.join(0.5)
    assert starting.is_alive() == (source == "nvml")
    mine.free.set()
    starting.join(10)
    assert [str(error) for error in refused] == (
        [] if source == "nvml" else ["dcgm does not answer: a call hangs; see its log"]
    )


def test_flapping_is_said_once_a_minute(host, caplog) -> None:
    """The same loss again and again is not a log line each time, and no return is said whose loss was not."""
    host.up()
    host.tick(2)
    for _ in range(20):
        host.dcgm.fails, host.dcgm.refuses = SourceError("gone"), SourceError("nobody answers")
        host.tick(3)
        host.dcgm.fails = host.dcgm.refuses = None
        host.tick(int(2 / PERIOD_S))
    lost = sum("dcgm is lost" in record.getMessage() for record in caplog.records)
    assert 1 <= lost <= 3


def test_library_that_calls_exit_ends_its_source_only(host) -> None:
    """Whatever a source's library does, its thread and the agent go on."""
    host.dcgm.refuses = SystemExit(7)
    host.up()
    assert host.served() == {"sm_util": "nvml", "power_mw": "nvml"}


def test_a_gpu_is_called_the_same_while_a_source_is_late(host) -> None:
    """Sources may describe a GPU differently: NVML's words stand, also in a tick in which it says nothing."""
    del host.dcgm.gpus[GPU]
    host.dcgm.gpus[replace(GPU, model="H200", driver="580.1")] = {"DCGM_SM": 0.5}
    host.up()
    host.tick(2)
    host.nvml.free.clear()
    models = {host.tick().gpus[0].facts.model for _ in range(LOST_PERIODS)}
    assert models == {"NVIDIA H200"}


def test_signal_that_nobody_gives_any_more_is_a_step_down(host) -> None:
    """As activity before Hopper without its engine: what is left is less than there was. A slice may lack it."""
    slice_ = replace(GPU, mig="1")
    for gpu in (GPU, slice_):
        host.dcgm.gpus = {gpu: {"DCGM_SM": 0.5}}
        host.nvml.gpus = {gpu: {"power_mw": 1e5}}
        ladder = host.up()
        host.tick(2)
        host.dcgm.gpus = {gpu: {}}
        host.tick(LOST_PERIODS + 2)
        assert ladder.degraded == (gpu is GPU)
        ladder.close()
        host.dcgm, host.nvml = Fake("dcgm", host.clock), Fake("nvml", host.clock)
