"""The command as a user gets it: from the wheel, on every Python that it promises."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
NO_GPU = 3
USAGE = 2


def find_python(version: str) -> str | None:
    """A Python of this version that can make environments, on PATH or kept by a version manager."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    on_path = shutil.which(f"python{version}")
    for python in [*([on_path] if on_path else []), *map(str, kept)]:
        # Run, not only found: a version manager's shim may stand for a version that is not active.
        if (
            subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode
            == 0
        ):
            return python
    return None


def total(exposition: str, name: str) -> float:
    """The sum of one metric over all its series."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == name
    )


def explain(command: Any, recording: Path) -> dict[str, Any]:
    done = command("explain", "--replay", str(recording), "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", PYTHONS)
def test_quick_round_on_every_python(version: str, install: Callable[[str], Any]) -> None:
    """On each promised Python the wheel installs, explains, checks its configuration, serves, and ends."""
    python = find_python(version)
    if python is None:
        pytest.skip(
            f"no Python {version} with venv here; remedy: install it, or leave it to a machine that has it"
        )
    gpuwhy = install(python)

    recording = min(gpuwhy.recordings.glob("*.jsonl.gz"))
    assert explain(gpuwhy, recording)["schema"] == "gpuwhy-explain/1"
    checked = gpuwhy("check-config")
    assert checked.returncode == 0, checked.stderr
    with gpuwhy.serve("--source", f"replay:{recording}", "--loop", "--speed", "10") as agent:
        agent.wait_for("/metrics", lambda text: total(text, "gpuwhy_observed_seconds_total") > 0)
        code, seconds = agent.stop()
    assert code == 0, "".join(agent.log)
    assert seconds < 2


def test_explain_accounts_for_all_observed_time(installed_gpuwhy: Any) -> None:
    """In what explain says of a recording, the seconds by verdict add up to what was observed."""
    for recording in sorted(installed_gpuwhy.recordings.glob("*.jsonl.gz"))[::12]:
        said = explain(installed_gpuwhy, recording)
        assert said["gpus"], recording.name
        for gpu in said["gpus"]:
            assert sum(gpu["seconds"].values()) == pytest.approx(said["observed_s"], abs=0.01), recording.name
            assert max(gpu["seconds"], key=gpu["seconds"].get) == gpu["verdict"], recording.name


def test_seconds_by_verdict_add_up_to_observed(agent: Any) -> None:
    """In any scrape the seconds by verdict equal the observed seconds."""
    text = agent.wait_for("/metrics", lambda text: total(text, "gpuwhy_observed_seconds_total") > 60)
    assert total(text, "gpuwhy_verdict_seconds_total") == pytest.approx(
        total(text, "gpuwhy_observed_seconds_total"), abs=0.01
    )


def test_counters_never_fall(agent: Any) -> None:
    """Over the seams of a looped replay no counter series goes back."""
    first = agent.wait_for("/metrics", lambda text: total(text, "gpuwhy_observed_seconds_total") > 0)
    start = total(first, "gpuwhy_observed_seconds_total")
    later = agent.wait_for("/metrics", lambda text: total(text, "gpuwhy_observed_seconds_total") > start + 60)

    def counters(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            if family.type == "counter"
            for sample in family.samples
            if sample.name.endswith("_total")
        }

    before, after = counters(first), counters(later)
    fell = [key for key, value in before.items() if after.get(key, value) < value]
    assert not fell


def test_scrape_passes_promtool(agent: Any, promtool: str) -> None:
    """The text format is what Prometheus reads, and names and units follow its rules."""
    text = agent.wait_for("/metrics", lambda text: total(text, "gpuwhy_observed_seconds_total") > 0)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_replay_says_that_it_is_one(agent: Any) -> None:
    """Nobody can take a replay for this host: metrics, page and status name it."""
    metrics = agent.wait_for("/metrics", lambda text: "gpuwhy_source_info" in text)
    sources = {
        sample.labels["source"]
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "gpuwhy_source_info"
    }
    assert any(source.startswith("replay") for source in sources), sources
    assert "replay" in agent.get("/").lower()
    assert "replay" in json.loads(agent.get("/api/v1/status"))["source"]


def test_health_and_readiness(agent: Any) -> None:
    """The agent is healthy once it listens and ready once it has judged something."""
    assert agent.get("/-/healthy")
    agent.wait_for("/-/ready", lambda _: True)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_soon_and_cleanly(installed_gpuwhy: Any, by: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end the agent with code 0 within two seconds, however early they come."""
    for delay in (0, 0, 0, 0, 0.001, 0.003, 0.01, 1):
        with installed_gpuwhy.serve("--source", "replay:bundled", "--loop") as agent:
            time.sleep(delay)
            code, seconds = agent.stop(by)
        assert code == 0, "".join(agent.log)
        assert seconds < 2


def test_ctrl_c_while_it_loads_leaves_no_traceback(installed_gpuwhy: Any, tmp_path: Path) -> None:
    shadow = tmp_path / "click.py"  # the first of what the command loads
    shadow.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = installed_gpuwhy("--version", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this host has a GPU; run it on one without")
def test_no_gpu_is_its_own_code_and_names_the_replay(installed_gpuwhy: Any) -> None:
    """Without a GPU the agent invents nothing: it exits with 3 and says how to see a replay."""
    done = installed_gpuwhy("run", "--listen", "127.0.0.1:0")
    assert done.returncode == NO_GPU, done.stderr
    assert "replay:bundled" in done.stderr


def test_unknown_option_is_a_usage_error_that_names_it(installed_gpuwhy: Any) -> None:
    """A misspelt key of the environment stops the start, named, without a traceback."""
    done = installed_gpuwhy("check-config", GPUWHY__AGENT__NO_SUCH_KEY="1")
    assert done.returncode == USAGE
    assert "no_such_key" in done.stderr.lower()
    assert "Traceback" not in done.stderr
