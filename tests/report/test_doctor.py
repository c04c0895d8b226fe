"""The examination of a host, with its driver replaced where it is loaded."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from click.testing import CliRunner
from rich.console import Console

from gpuwhy import cli
from gpuwhy import config as configuration
from gpuwhy.report import doctor
from gpuwhy.sample.signals import SIGNALS
from gpuwhy.source import SourceError

FAKE = Path(__file__).parent.parent / "source" / "fake_nvml.py"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads a fake driver with one GPU that runs a recording."""
    spec = importlib.util.spec_from_file_location("fake_nvml_for_doctor", FAKE)
    assert spec is not None
    assert spec.loader is not None
    fake = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, fake)
    spec.loader.exec_module(fake)
    monkeypatch.setattr(doctor.time, "sleep", lambda _: None)

    def load(recording: str = "gemm", **fail: Any) -> Any:
        gpu = fake.FakeGpu(recording)
        library = fake.FakeNvml([gpu])
        library.fail.update(fail)
        fake.load_into_pynvml(monkeypatch, library)
        return gpu

    return load


def examine() -> doctor.Findings:
    return doctor.examine(configuration.load({}, {}, None).config, lambda _: None)


def names(findings: doctor.Findings) -> set[str]:
    return {need.name for gpu in findings.gpus for need in findings.missing(gpu)}


def test_needs_name_signals_that_exist() -> None:
    """Each need is of known signals, and says what is lost and how to get it."""
    known = {*SIGNALS, "owners", "clock_event_reasons"}
    for need in doctor.NEEDS:
        assert set(need.signals) <= known, need.name
        assert need.without
        assert need.remedy
    assert len({need.name for need in doctor.NEEDS}) == len(doctor.NEEDS)


def test_without_gpm_profiling_is_missing(driver: Callable[..., Any]) -> None:
    """On a card whose driver has no GPM every profiling need is named, with the driver's own reason."""
    driver().gpm = False
    findings = examine()
    assert {"busy time", "SM activity", "tensor cores", "DRAM", "other pipes", "PCIe"} <= names(findings)
    assert not {"clocks", "power", "clock events"} & names(findings)
    assert not findings.complete
    out = io.StringIO()
    doctor.print_findings(findings, Console(file=out, width=80))
    text = out.getvalue()
    assert "missing" in text
    assert "GPU-Util stands in" in text
    assert max(map(len, text.splitlines())) <= 80


def test_refused_call_is_named_with_its_reason(driver: Callable[..., Any]) -> None:
    """A call that the driver refuses shows as missing, with the driver's error."""
    refused = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver(nvmlDeviceGetCurrentClocksEventReasons=refused, nvmlDeviceGetCurrentClocksThrottleReasons=refused)
    findings = examine()
    assert "clock events" in names(findings)
    (gpu,) = findings.gpus
    assert "NOT_SUPPORTED" in findings.refused[gpu.uuid]["event_reasons"]


def test_process_tree_is_not_missed_where_nothing_runs(driver: Callable[..., Any]) -> None:
    """On a free GPU nothing can be said of a process tree, and that is no lack."""
    driver("idle")
    assert not {"process tree", "run queue", "process I/O"} & names(examine())


def test_json_and_exit_code(driver: Callable[..., Any]) -> None:
    """The command exits 1 where something is missing, and its JSON says what and how to get it."""
    driver().gpm = False
    done = CliRunner().invoke(cli.main, ["doctor", "--format", "json"])
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    assert said["schema"] == "gpuwhy-doctor/1"
    (gpu,) = said["gpus"]
    assert gpu["card"] == "H200"
    assert all(lack["remedy"] for lack in gpu["missing"])


def test_replay_cannot_be_examined() -> None:
    """Asked for a replay the doctor says that it examines this host."""
    config = configuration.load({"agent.source": "replay:bundled"}, {}, None).config
    with pytest.raises(SourceError, match="examines this host"):
        doctor.examine(config, lambda _: None)


def test_without_a_driver_the_code_is_3() -> None:
    """A host without a driver is told so, with the code for it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        done = CliRunner().invoke(cli.main, ["doctor"])
        assert done.exit_code == 3
        assert "driver" in done.stderr
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this host has a GPU; remedy: run on one without")
