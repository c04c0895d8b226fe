"""Sources other than NVML, through the installed command."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ..source.fake_exporter import STOCK, FakeExporter  # noqa: TID252  one fake for all tests
from ..source.fake_nvml import FakeGpu  # noqa: TID252

URL = "GPUWHY__AGENT__EXPORTER_URL"
FAILED, USAGE = 1, 2


def value(agent: Any, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(agent.get("/metrics")):
        for sample in family.samples:
            if sample.name == f"gpuwhy_{name}" and labels.items() <= sample.labels.items():
                return sample.value
    return None


def until(condition: Any, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


def test_exporter_alone(installed_gpuwhy: Any) -> None:
    """Without a driver, what a dcgm-exporter serves is judged, and that it ends is seen."""
    gpu = FakeGpu("gemm")
    exporter = FakeExporter([gpu], time.monotonic, holders={0: "ml/llm-0"})
    with (
        exporter.served() as url,
        installed_gpuwhy.serve("--source", "dcgm-exporter", **{URL: url}) as agent,
    ):
        until(lambda: value(agent, "verdict", uuid=gpu.uuid, verdict="healthy") == 1.0)
        assert value(agent, "source_up", source="dcgm-exporter") == 1.0
        assert value(agent, "source_up", source="nvml") is None
        assert value(agent, "signal_source_info", signal="dram_active_ratio", source="dcgm-exporter") == 1.0
        (said,) = json.loads(agent.get("/api/v1/status"))["gpus"]
        assert said["workload"] == "ml/llm"
        assert said["workloads"][0]["runs"] == ["llm-0"]
        assert value(agent, "workload_info", workload="llm", workload_namespace="ml", run="llm-0") == 1.0


def test_exporter_that_ends_is_seen(installed_gpuwhy: Any) -> None:
    """A source that is lost has its series, and the agent goes on."""
    with FakeExporter([FakeGpu("gemm")], time.monotonic).served() as url:
        serving = installed_gpuwhy.serve("--source", "dcgm-exporter", **{URL: url})
        agent = serving.__enter__()
        until(lambda: value(agent, "gpu_up") == 1.0)
    try:
        until(lambda: value(agent, "source_up", source="dcgm-exporter") == 0.0)
        until(lambda: value(agent, "gpu_up") == 0.0)
    finally:
        serving.__exit__(None, None, None)


def test_doctor_names_the_lines_to_add(installed_gpuwhy: Any) -> None:
    """A stock counters file lacks SM activity: the doctor says so and gives the line."""
    with FakeExporter([FakeGpu("gemm")], time.monotonic, counters=STOCK).served() as url:
        done = installed_gpuwhy("doctor", "--source", "dcgm-exporter", "--format", "json", **{URL: url})
    assert done.returncode == FAILED, done.stderr
    said = json.loads(done.stdout)
    assert any(line.startswith("DCGM_FI_PROF_SM_ACTIVE, gauge") for line in said["advice"]["dcgm-exporter"])
    assert {each["source"]: each["state"] for each in said["sources"]} == {
        "nvml": "not used",
        "dcgm-exporter": "in use",
    }
    missing = {each["what"] for each in said["gpus"][0]["missing"]}
    assert {"SM activity", "other pipes"} <= missing
    assert not {"busy time", "DRAM", "power"} & missing


@pytest.mark.parametrize(
    ("source", "names"),
    [("dcgm", "127.0.0.1:5999"), ("dcgm-exporter", "http://127.0.0.1:5999/metrics")],
)
def test_source_that_is_not_there(installed_gpuwhy: Any, source: str, names: str) -> None:
    """A source that was asked for by name is refused with what was tried; that is no host without a GPU."""
    where = {"GPUWHY__AGENT__DCGM_ADDRESS": "127.0.0.1:5999", URL: "http://127.0.0.1:5999/metrics"}
    done = installed_gpuwhy("run", "--listen", "127.0.0.1:0", "--source", source, **where)
    assert done.returncode == FAILED, done.stderr
    assert names in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_without_anything_all_sources_are_named(installed_gpuwhy: Any) -> None:
    """A host with nothing to read is told so with the code for it, and what was tried."""
    done = installed_gpuwhy("explain")
    if done.returncode == 0:
        pytest.skip("this host has a GPU; remedy: run on one without")
    assert done.returncode == 3
    assert all(name in done.stderr for name in ("dcgm", "dcgm-exporter", "NVIDIA"))


@pytest.mark.parametrize(("interval_s", "said"), [(1.0, False), (30.0, True)])
def test_explain_says_when_it_watches_too_short(installed_gpuwhy: Any, interval_s: float, said: bool) -> None:
    """A source whose values are new each half minute cannot answer within seconds: how long it takes is said."""
    with FakeExporter([FakeGpu("gemm")], time.monotonic, interval_s=interval_s).served() as url:
        done = installed_gpuwhy("explain", "--source", "dcgm-exporter", "--seconds", "10", **{URL: url})
    assert done.returncode == 0, done.stderr
    assert ("dcgm-exporter has new values each 30 s only" in done.stderr) == said
    assert ("healthy / compute" in done.stdout) != said
