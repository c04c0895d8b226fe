"""The running agent, with devices and kernel replaced at their edge."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.daemon import Agent, LiveFeed, Pipeline, _deadlines
from gpuwhy.sample.signals import SIGNAL_OF_RAW
from gpuwhy.source import (
    DriverMismatchError,
    GpuFacts,
    GpuReading,
    HostReading,
    NoGpuError,
    Part,
    Reading,
    SourceError,
)
from gpuwhy.source.ladder import Ladder, Rung

PERIOD_S = 0.1
FACTS = GpuFacts(
    index=0,
    uuid="GPU-a",
    model="NVIDIA H200",
    power_limit_watts=700.0,
    default_power_limit_watts=700.0,
    sm_clock_max_hertz=1.98e9,
)
BUSY = {
    "graphics_util": 98.0,
    "sm_util": 94.0,
    "any_tensor_util": 91.0,
    "dram_bw_util": 17.0,
    "fp64_util": 0.0,
    "fp32_util": 0.0,
    "fp16_util": 0.0,
}


class Device:
    """A source whose calls can be made to hang or to fail."""

    name = "nvml"
    period_s = PERIOD_S
    yielding = ""

    def __init__(self) -> None:
        self.fails: dict[str, Exception] = {}
        self.free = threading.Event()
        self.free.set()
        self.hung = threading.Event()
        self.closed = 0
        self.up = True
        self.raw: Any = dict(BUSY)
        self.plain = {"gpu_util_pct": 98, "power_mw": 690e3, "sm_clock_mhz": 1440, "event_reasons": 4}
        self.slices: tuple[str, ...] = ()
        self.profile = "1g.20gb"
        self.owners: tuple[int, ...] = (4242,)
        self._last = 0.0

    def start(self) -> tuple[GpuFacts, ...]:
        self._step("start")
        self._last = time.monotonic()
        return (FACTS,)

    def capabilities(self) -> dict[Any, Any]:
        return {}

    def read(self) -> Reading:
        self._step("read")
        now = time.monotonic()
        span, self._last = now - self._last, now
        parts = (
            Part("nvml-gpm", self.raw),
            Part("nvml", self.plain),
        )
        gpu = GpuReading(FACTS, parts=parts if self.up else (), owners=self.owners, up=self.up)
        if self.slices:
            gpu = replace(gpu, facts=replace(FACTS, split=True), parts=parts[1:], owners=())
        slices = (
            GpuReading(
                replace(FACTS, mig=mig, share_ratio=1 / 7, profile=self.profile), parts[:1], owners=(4242,)
            )
            for mig in self.slices
        )
        return Reading(now, time.time(), max(span, 1e-6), PERIOD_S, (gpu, *slices))

    def close(self) -> None:
        self.closed += 1

    def _step(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]
        if not self.free.is_set():
            self.hung.set()
        self.free.wait()


def ladder(*devices: Device) -> Ladder:
    return Ladder(
        [Rung(device) for device in devices],
        signal_of=SIGNAL_OF_RAW,
        steady={"graphics_active_ratio", "power_watts"},
        period_s=PERIOD_S,
    )


class Kernel:
    hangs = False
    junk = False

    def __init__(self) -> None:
        self._user = 0
        self._last = time.monotonic() - PERIOD_S

    def read(self, owners: Any) -> HostReading:
        while self.hangs:
            time.sleep(0.01)
        if self.junk:
            return HostReading(time.monotonic(), 1.0, {"cpu_ticks": 5}, (1, 2))  # type: ignore[arg-type]
        now = time.monotonic()
        span, self._last = now - self._last, now
        self._user += 5
        ticks = dict.fromkeys(("nice", "system", "idle", "iowait", "irq", "softirq", "steal"), 0)
        return HostReading(
            now,
            max(span, 1e-6),
            {"cpus": 2, "clock_ticks_per_s": 100, "cpu_ticks": {**ticks, "user": self._user}},
            (),
        )


class Running:
    """An agent in a thread of the test, on a free port."""

    def __init__(self, *devices: Device, env: Mapping[str, str] | None = None, store: str = "") -> None:
        flags = {"http.listen": "127.0.0.1:0", "agent.interval_seconds": 1, "store.enabled": bool(store)}
        config = configuration.load({**flags, "store.path": store or None}, env or {}, None).config
        self.kernel = Kernel()
        self.agent = Agent(
            config, lambda _, ticks: LiveFeed(ladder(*devices), self.kernel, ticks, period_s=PERIOD_S)
        )
        self.error: BaseException | None = None
        self._bound: dict[str, int] = {}
        start = self.agent._http.start

        def note() -> Any:
            address = start()
            self._bound["port"] = address[1]
            return address

        self.agent._http.start = note  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.agent.run()
        except BaseException as error:
            self.error = error

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._bound['port']}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def value(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == f"gpuwhy_{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def wait(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(KeyError, OSError):
                if condition():
                    return
            time.sleep(0.05)
        raise AssertionError("it did not happen in time")

    def stop(self) -> float:
        began = time.monotonic()
        self.agent._on_signal(signal.SIGTERM, None)
        self.thread.join(10)
        assert not self.thread.is_alive()
        return time.monotonic() - began


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.free.set()


@pytest.fixture
def running(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    made = Running(device)
    made.thread.start()
    yield made
    device.free.set()
    if made.thread.is_alive():
        made.stop()


def test_live_readings_become_verdicts(running: Running, device: Device) -> None:
    """A second of readings gives a verdict on /metrics and in the status, and the driver is closed at the end."""
    running.wait(lambda: running.value("verdict", verdict="healthy") == 1.0)
    assert running.get("/-/ready")[0] == 200
    status = json.loads(running.get("/api/v1/status")[1])
    assert [(gpu["verdict"], gpu["cause"]) for gpu in status["gpus"]] == [("healthy", "compute")]
    assert running.value("host_cpu_seconds_total", mode="user") > 0  # type: ignore[operator]
    assert running.stop() < 2
    assert running.error is None
    assert device.closed == 1


def test_expected_gpus_are_those_of_the_configuration() -> None:
    """How many GPUs there should be is exported as configured, whatever is found."""
    config = configuration.Config(agent=configuration.AgentConfig(expected_gpus=8))
    assert Agent(config)._health.frozen().expected_gpus == 8


def test_hung_driver_costs_its_readings_only(
    running: Running, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    """While a driver call hangs the time is no-data, the host goes on, and all recovers when it returns."""
    running.wait(
        lambda: (running.value("verdict_seconds_total", verdict="healthy", cause="compute") or 0) >= 1
    )
    device.free.clear()
    running.wait(
        lambda: (running.value("verdict_seconds_total", verdict="unknown", cause="no-data") or 0) >= 2
    )
    assert running.value("gpu_up") == 0.0
    assert running.value("source_up", source="nvml") == 0.0
    assert running.value("tensor_active_ratio") is None
    assert running.get("/-/healthy")[0] == 200
    before = running.value("host_cpu_seconds_total", mode="user")
    running.wait(lambda: running.value("host_cpu_seconds_total", mode="user") > before)  # type: ignore[operator]
    assert caplog.text.count("nvml does not answer: a call hangs") == 1
    device.free.set()
    running.wait(lambda: running.value("gpu_up") == 1.0 and running.value("source_up", source="nvml") == 1.0)
    healthy = running.value("verdict_seconds_total", verdict="healthy", cause="compute")
    running.wait(lambda: running.value("verdict_seconds_total", verdict="healthy", cause="compute") > healthy)  # type: ignore[operator]


def test_stops_soon_while_a_driver_call_hangs(running: Running, device: Device) -> None:
    """SIGTERM with a call in flight ends the agent within two seconds and skips the driver's shutdown."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.free.clear()
    assert device.hung.wait(5)
    assert running.stop() < 2
    assert running.error is None
    assert device.closed == 0


def test_stops_soon_while_the_driver_does_not_open(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while the driver initialises for ever ends the agent within two seconds."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    device.free.clear()
    made = Running(device)
    made.thread.start()
    assert device.hung.wait(5)
    assert made.stop() < 2
    assert made.error is None


def test_host_reader_that_hangs_is_no_evidence(running: Running) -> None:
    """What the host said before its reader hung is not used, and that it hangs is visible."""
    running.wait(lambda: running.value("source_up", source="host") == 1.0)
    running.kernel.hangs = True
    running.wait(lambda: running.value("source_up", source="host") == 0.0)
    before = running.value("observed_seconds_total") or 0.0
    running.wait(lambda: (running.value("observed_seconds_total") or 0.0) >= before + 2)
    status = json.loads(running.get("/api/v1/status")[1])
    assert status["gpus"][0]["verdict"] == "healthy"
    running.kernel.hangs = False
    running.wait(lambda: running.value("source_up", source="host") == 1.0)


def test_host_that_says_nonsense_costs_the_host_only(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Verdicts go on without a host whose readings cannot be used."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    running.kernel.junk = True
    before = running.value("verdict_seconds_total", verdict="healthy", cause="compute") or 0.0
    running.wait(
        lambda: (
            (running.value("verdict_seconds_total", verdict="healthy", cause="compute") or 0) >= before + 2
        )
    )
    assert caplog.text.count("Traceback") <= 2


@pytest.mark.parametrize("error", [ValueError("odd"), OSError("gone"), SourceError("not now")])
def test_read_that_fails_costs_that_reading(
    running: Running, device: Device, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A read that raises is logged once, its time is no-data, and reading goes on when it can."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.fails["read"] = error
    running.wait(lambda: running.value("source_up", source="nvml") == 0.0)
    running.wait(
        lambda: (running.value("verdict_seconds_total", verdict="unknown", cause="no-data") or 0) >= 1
    )
    assert caplog.text.count("Traceback") == (not isinstance(error, SourceError))
    assert caplog.text.count("nvml is lost") == 1
    device.fails.clear()
    running.wait(lambda: running.value("gpu_up") == 1.0)


def test_driver_that_does_not_open_is_visible(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the driver initialises for ever there is a series to alert on, and it recovers."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(daemon, "OPEN_S", 0.2)
    device.free.clear()
    made = Running(device)
    made.thread.start()
    try:
        made.wait(lambda: made.value("source_up", source="nvml") == 0.0)
        assert made.get("/-/ready")[0] == 503
        device.free.set()
        made.wait(lambda: made.value("source_up", source="nvml") == 1.0)
        made.wait(lambda: made.value("gpu_up") == 1.0)
    finally:
        device.free.set()
        made.stop()


def test_a_replay_waits_for_the_stages() -> None:
    """However fast, a replay is only so far ahead of what was taken."""
    from gpuwhy.daemon import READY_TICKS, ReplayFeed
    from gpuwhy.source.replay import BUNDLED, ReplaySource

    ticks: Any = queue.SimpleQueue()
    feed = ReplayFeed(ReplaySource([BUNDLED / "gemm.jsonl.gz"], speed=1000, loop=True), ticks)
    feed.start(lambda: False)
    time.sleep(0.5)
    assert READY_TICKS <= ticks.qsize() <= READY_TICKS + 1
    feed.stop()


def test_lost_gpu_stays_visible(running: Running, device: Device) -> None:
    """A GPU that is lost shows up 0 and no-data, and comes back."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.up = False
    running.wait(lambda: running.value("gpu_up") == 0.0)
    running.wait(
        lambda: (running.value("verdict_seconds_total", verdict="unknown", cause="no-data") or 0) >= 1
    )
    device.up = True
    running.wait(lambda: running.value("gpu_up") == 1.0)


def test_error_in_a_stage_costs_that_reading_only(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reading that makes a stage raise is logged, scrapes go on, and later readings are judged."""
    running.wait(lambda: running.value("gpu_up") == 1.0)

    def poison(*_: Any, **__: Any) -> Any:
        raise RuntimeError("poison")

    with monkeypatch.context() as patched:
        patched.setattr(daemon, "attribute", poison)
        running.wait(lambda: "poison" in caplog.text)
        assert running.get("/metrics")[0] == 200
    before = running.value("verdict_seconds_total", verdict="healthy", cause="compute") or 0.0
    running.wait(
        lambda: (running.value("verdict_seconds_total", verdict="healthy", cause="compute") or 0) > before
    )


@pytest.mark.parametrize(
    "error", [NoGpuError("no GPU"), DriverMismatchError("differs"), SourceError("other")]
)
def test_what_stops_the_source_from_opening_ends_the_agent(
    device: Device, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose source cannot open raises what it said and serves nothing."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    device.fails["start"] = error
    made = Running(device)
    made.thread.start()
    made.thread.join(5)
    assert made.error is error
    assert not made._bound


def test_mismatch_found_later_ends_the_agent(running: Running, device: Device) -> None:
    """A driver that was updated under the agent ends it with the error that says so."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.fails["read"] = DriverMismatchError("differs")
    running.thread.join(5)
    assert isinstance(running.error, DriverMismatchError)
    assert device.closed >= 1


def test_counters_are_scraped_at_zero_first(running: Running) -> None:
    """A GPU's counters are there at 0 before its first interval ends."""
    running.wait(lambda: running.value("observed_seconds_total") is not None)
    assert running.get("/-/ready")[0] == 503


def test_deadlines_are_absolute_and_count_what_was_missed() -> None:
    """A late tick does not shift the later ones, and ticks that passed meanwhile are counted."""
    stop = threading.Event()
    ticks = _deadlines(0.05, stop)
    start = time.monotonic()
    assert next(ticks) == 0
    assert next(ticks) == 0
    time.sleep(0.17)
    assert next(ticks) >= 2
    stop.set()
    elapsed = (time.monotonic() - start) / 0.05
    assert abs(elapsed - round(elapsed)) < 0.4
    assert list(ticks) == []


def test_xids_are_counted(running: Running, device: Device) -> None:
    """An Xid that a reading reports is counted by its code."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.raw = {**BUSY, "xid_events": [79]}
    running.wait(lambda: (running.value("xid_events_total", xid="79") or 0) >= 1)


def test_rejected_values_are_counted(running: Running, device: Device) -> None:
    """A value that cannot be true is counted by signal and reason."""
    running.wait(lambda: running.value("gpu_up") == 1.0)
    device.raw = {**BUSY, "sm_util": 4294967295}
    running.wait(
        lambda: (
            (running.value("reading_rejected_total", signal="sm_active_ratio", reason="sentinel") or 0) >= 1
        )
    )


def test_pipeline_is_the_same_at_any_speed() -> None:
    """Nothing in the stages looks at a clock: what counts is the readings' own time."""
    device = Device()
    device.start()
    reading = device.read()
    stages = Pipeline(interval_s=5.0)
    found = []
    for second in range(1, 22):
        found += stages.feed(
            replace(reading, end_s=float(second), span_s=1.0, period_s=1.0, unix_s=1e9 + second)
        )
    found += stages.finish()
    assert [round(verdict.end_s - verdict.start_s, 6) for judged in found for verdict in judged.verdicts][
        :4
    ] == [5.0] * 4
    assert {verdict.key for judged in found for verdict in judged.verdicts} == {("healthy", "compute")}


def test_lower_source_stands_in_for_one_that_is_lost(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That a source is lost, yields, or is stood in for can be seen and alerted on, and so that it is back."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    caplog.set_level("INFO", "gpuwhy")
    lower = Device()
    device.name, device.raw = "dcgm", {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.98}
    made = Running(device, lower)
    made.thread.start()
    try:
        made.wait(lambda: made.value("signal_source_info", signal="graphics_active_ratio") == 1.0)
        assert made.value("source_degraded") == 0.0
        assert made.value("source_yielding", source="dcgm") == 0.0
        device.yielding = "another profiler owns the counters"
        made.wait(lambda: made.value("source_yielding", source="dcgm") == 1.0)
        device.yielding = ""
        made.wait(lambda: made.value("source_yielding", source="dcgm") == 0.0)
        assert caplog.text.count("dcgm: another profiler owns the counters") == 1
        assert caplog.text.count("dcgm: profiling is back") == 1
        device.fails["read"] = SourceError("gone")
        made.wait(lambda: made.value("source_up", source="dcgm") == 0.0)
        made.wait(lambda: made.value("source_degraded") == 1.0)
        assert made.value("source_up", source="nvml") == 1.0
        assert made.value("gpu_up") == 1.0
        assert (made.value("verdict_seconds_total", verdict="unknown", cause="no-data") or 0.0) < 0.5
        device.fails.clear()
        made.wait(lambda: made.value("source_degraded") == 0.0)
        assert made.value("source_up", source="dcgm") == 1.0
    finally:
        made.stop()


def test_slices_come_and_go(running: Running, device: Device) -> None:
    """A MIG instance has rows while it is there; reconfigured, its rows end and the board's share is what is left."""
    running.wait(lambda: running.value("gpu_up", mig="") == 1.0)
    device.slices = ("1", "2")
    running.wait(lambda: running.value("verdict_seconds_total", mig="2", verdict="healthy", cause="compute"))  # type: ignore[arg-type, return-value]
    running.wait(lambda: running.value("verdict", mig="", verdict="idle") == 1.0)
    assert running.value("gpu_share_ratio", mig="1") == pytest.approx(1 / 7)
    device.slices = ("2",)
    running.wait(lambda: running.value("gpu_up", mig="1") is None)
    running.wait(lambda: running.value("verdict_seconds_total", mig="1") is None)
    before = running.value("observed_seconds_total", mig="2") or 0.0
    running.wait(lambda: (running.value("observed_seconds_total", mig="2") or 0.0) >= before + 2)
    assert running.value("gpu_up", mig="1") is None
    status = json.loads(running.get("/api/v1/status")[1])
    assert [gpu["mig"] for gpu in status["gpus"]] == ["", "2"]
    device.slices = ("1", "2")
    running.wait(lambda: running.value("gpu_up", mig="1") == 1.0)
    assert (running.value("observed_seconds_total", mig="1") or 0.0) <= 3


def test_id_of_a_slice_that_is_used_again(running: Running, device: Device) -> None:
    """Another profile under the id of an instance that was taken apart is another row, whose seconds begin at 0."""
    device.slices = ("1",)
    running.wait(lambda: (running.value("observed_seconds_total", mig="1") or 0.0) >= 3)
    device.profile = "1g.18gb"
    running.wait(lambda: (running.value("observed_seconds_total", mig="1") or 9.0) < 3)
    running.wait(lambda: running.value("gpu_info", mig="1", profile="1g.18gb") == 1.0)
