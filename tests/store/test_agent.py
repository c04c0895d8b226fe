"""The whole agent with its history: what is exported and what is kept are the same seconds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gpuwhy import config as configuration
from gpuwhy.daemon import Agent, ReplayFeed, make_store
from gpuwhy.exporter import Health
from gpuwhy.source.replay import BUNDLED, ReplaySource
from gpuwhy.store import Reader
from gpuwhy.store.database import Database

from ..test_daemon import Device, Running  # noqa: TID252  tests are no installed package

FOREVER = (0, 2**40)


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def configured(source: str, **flags: Any) -> configuration.Config:
    known = {"agent.source": source, "http.listen": "127.0.0.1:0"}
    return configuration.load({**known, **flags}, {}, None, default_path=Path("/nonexistent")).config


def counted(agent: Agent, stem: str) -> dict[str, float]:
    """The agent's counters by their labels."""
    snapshot = agent._ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0)
    (family,) = [each for each in snapshot.families if each.series.name == f"gpuwhy_{stem}"]
    return {prefix: value for prefix, value in family.samples if value}


def test_a_replay_is_kept_where_a_file_is_named(file: Path) -> None:
    """Every second that was counted by verdict, cause and workload is in the file, which says that it is a replay."""
    config = configured("replay:bundled", **{"agent.replay_speed": 40, "store.path": str(file)})
    agents = []
    for _ in range(2):
        agents.append(Agent(config))
        agents[-1].run()
        agents[-1]._ledger.credit([], None, {})  # what nobody has scraped yet
        agents[-1]._publish()
    with Reader(file) as history:
        rows, held = list(history.minutes(*FOREVER)), list(history.workload_minutes(*FOREVER))
        assert {row.gpu.source for row in rows} == {"replay"}
        assert {row.gpu.index for row in rows} == set(range(8))
    for times, prefix in (([row.time for row in rows], ""), ([row.time for row in held], "workload_")):
        for stem in ("useful", "measured"):
            wanted = sum(sum(counted(agent, f"{prefix}{stem}_seconds_total").values()) for agent in agents)
            assert sum(getattr(time, stem) for time in times) == pytest.approx(wanted, abs=0.1)
        for stem in ("verdict", "lost"):
            wanted = sum(sum(counted(agent, f"{prefix}{stem}_seconds_total").values()) for agent in agents)
            assert sum(sum(getattr(time, stem).values()) for time in times) == pytest.approx(wanted, abs=0.2)
    assert sum(row.time.observed for row in rows) > 100


def test_a_replay_is_not_this_hosts_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a file of its own it leaves nothing behind, nor does an agent whose history is switched off."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert make_store(configured("replay:bundled")) is None
    assert make_store(configured("nvml", **{"store.enabled": False})) is None
    assert make_store(configured("nvml")) is not None
    Agent(configured("replay:bundled", **{"agent.replay_speed": 1000})).run()
    assert list(tmp_path.iterdir()) == []


def test_a_live_agent_says_how_its_history_is(file: Path) -> None:
    """Kept: 1. Its file in another's hands: 0, and the agent goes on. In the end all of it is in the file."""
    running = Running(Device(), store=str(file))
    other: Database | None = Database(file, host="other", source="live")
    running.thread.start()
    try:
        running.wait(lambda: running.value("verdict", verdict="healthy") == 1.0)
        assert running.value("store_up") == 0.0
        assert other is not None
        other.close()
        running.wait(lambda: running.value("store_up") == 1.0)
        assert running.value("store_dropped_seconds_total") == 0.0
    finally:
        assert running.stop() < 2
    assert running.error is None
    observed = sum(counted(running.agent, "observed_seconds_total").values())
    with Reader(file) as history:
        rows = list(history.minutes(*FOREVER))
    assert sum(row.time.observed for row in rows) == pytest.approx(observed, abs=0.05)
    assert rows[0].gpu.source == "live"
    assert rows[0].signals["tensor_active_ratio"].mean == pytest.approx(0.91, abs=0.01)


def test_an_agent_without_a_place_for_history_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("in the way")
    running = Running(Device(), store=str(tmp_path / "state" / "history.db"))
    running.thread.start()
    try:
        running.wait(lambda: running.value("verdict", verdict="healthy") == 1.0)
        assert running.value("store_up") == 0.0
        status = json.loads(running.get("/api/v1/status")[1])
        assert status["gpus"][0]["verdict"] == "healthy"
    finally:
        assert running.stop() < 2
    assert caplog.text.count("history is not kept for now") == 1


def live(file: Path, recording: str) -> Agent:
    """An agent that takes a recording for this host."""
    source = ReplaySource([BUNDLED / recording], speed=40)
    return Agent(configured("auto", **{"store.path": str(file)}), lambda _, ticks: ReplayFeed(source, ticks))


def test_what_was_learnt_is_known_after_a_restart(file: Path) -> None:
    """By the same GPU only; and a recording that is played as one teaches nothing."""
    first = live(file, "parked.jsonl.gz")
    first.run()
    (stages,) = first._pipelines.values()
    taught = stages.learner.lessons()
    assert {name for _, _, name in taught} >= {"context_ratio"}
    second = live(file, "gemm.jsonl.gz")
    second.run()
    (stages,) = second._pipelines.values()
    assert taught.items() <= stages.learner.lessons().items()
    played = Agent(configured("replay:bundled", **{"agent.replay_speed": 1000, "store.path": str(file)}))
    played.run()
    database = Database(file, host="h1", source="live")
    assert database.lessons() == stages.learner.lessons()
    database.close()
