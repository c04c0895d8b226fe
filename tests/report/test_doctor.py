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

from gpuwhy import cli, daemon
from gpuwhy import config as configuration
from gpuwhy.catalog import RESOLVERS
from gpuwhy.report import doctor
from gpuwhy.sample import Share, Workload
from gpuwhy.sample.signals import SIGNALS
from gpuwhy.source import GpuFacts
from gpuwhy.source.ladder import SourceState

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


def examine(**flags: Any) -> doctor.Findings:
    config = configuration.load(flags, {}, None).config
    return doctor.examine(
        config,
        daemon.make_ladder(config),
        daemon.make_host(config),
        daemon.make_resolver(config),
        lambda _: None,
    )


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
    assert "NOT_SUPPORTED" in findings.refused[gpu.key]["nvml"]["event_reasons"]


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
    """Asked for a replay the doctor says what to ask instead."""
    done = CliRunner().invoke(cli.main, ["doctor", "--source", "replay:bundled"])
    assert done.exit_code == 2
    assert "gpuwhy explain --replay FILE" in done.output


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


def findings(*gpus: GpuFacts, **sources: SourceState) -> doctor.Findings:
    return doctor.Findings(
        gpus=gpus,
        cards={gpu.uuid: "H100" for gpu in gpus},
        signals={
            gpu.key: {"power_watts": "nvml"} if not gpu.mig else {"sm_active_ratio": "dcgm"} for gpu in gpus
        },
        refused={gpu.key: {"nvml": {"sm_util": "GPM: NOT_SUPPORTED"}} for gpu in gpus},
        idle=frozenset(),
        sources=sources,
        advice={name: (f"{name} could:", "DCGM_FI_PROF_SM_ACTIVE, gauge, x") for name in sources},
        readers={
            "kubelet": SourceState(up=False, reason="gpuwhy[kubernetes] is not installed"),
            "slurm": SourceState(up=True),
            "containers": SourceState(up=False, used=False, reason="not on this host"),
        },
        workloads={
            gpu.key: (Share(Workload("slurm", "pre\x1b[31mtrain", owner="ann"), 1.0, "alone"),)
            for gpu in gpus
        },
        nameless=("pods have no name here: mount the host's /var/log/pods",),
    )


def test_whose_gpus_are_and_what_keeps_them_from_a_name() -> None:
    """Each reader says how it is, each GPU whose, and what is missing comes with its remedy; names cannot colour."""
    found = findings(GpuFacts(0, "GPU-a"))
    text = printed(found, width=200)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "kubelet fails: gpuwhy[kubernetes] is not installed" in lines
    assert "slurm in use" in lines
    assert "containers not used: not on this host" in lines
    assert "held by pre\ufffd[31mtrain (slurm, alone)" in lines
    assert "pods have no name here: mount the host's /var/log/pods." in lines
    said = doctor.as_json(found)
    assert said["gpus"][0]["workloads"][0]["owner"] == "ann"
    assert said["whose"]["missing"] == ["pods have no name here: mount the host's /var/log/pods"]
    assert [each["state"] for each in said["whose"]["readers"]] == ["fails", "in use", "not used"]


def printed(found: doctor.Findings, width: int = 80) -> str:
    out = io.StringIO()
    doctor.print_findings(found, Console(file=out, width=width))
    return out.getvalue()


def test_a_process_out_of_sight_is_missed(driver: Callable[..., Any]) -> None:
    """Examined for real: the driver's pids are none of this host, which is said with the remedy."""
    driver()
    found = examine()
    assert any("pid namespace" in sentence for sentence in found.nameless)
    ((share,),) = found.workloads.values()
    assert share.workload.kind == "unknown"
    assert set(found.readers) == set(RESOLVERS)


def test_all_sources_are_named_with_their_state() -> None:
    """In use, not needed, yielding or refused: each source says which, and why; only those that answer get advice."""
    text = printed(
        findings(
            GpuFacts(0, "GPU-a"),
            dcgm=SourceState(up=False, used=False, reason="nobody answers at 127.0.0.1:5555"),
            nvml=SourceState(up=True, yielding="profiling is paused"),
            exporter=SourceState(up=True, used=False),
            proxy=SourceState(up=False, used=False, reason="said \x1b[31mno"),
        ),
        width=200,
    )
    assert "\x1b" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "dcgm not used: nobody answers at 127.0.0.1:5555" in lines
    assert "nvml in use; profiling is paused" in lines
    assert "exporter answers, and is not needed" in lines
    assert "DCGM_FI_PROF_SM_ACTIVE, gauge, x" in lines
    assert "exporter could:" in lines
    assert "dcgm could:" not in lines


def test_before_hopper_it_says_what_an_engine_would_bring(driver: Callable[..., Any]) -> None:
    """Plain NVML alone: the report names the engine that would give activity, and why it is not read."""
    driver().gpm = False
    text = " ".join(printed(examine()).split())
    assert "systemctl start nvidia-dcgm" in text
    assert "dcgm not used" in text
    assert "nvml: nvmlGpmQueryDeviceSupport" in text


def test_split_gpu_is_examined_by_row() -> None:
    """A board is asked for its clocks and power, a slice for its activity and processes, neither for the other's."""
    board, slice_ = GpuFacts(0, "GPU-a", split=True), GpuFacts(0, "GPU-a", mig="2", profile="3g.40gb")
    found = findings(board, slice_, nvml=SourceState(up=True))
    assert {need.name for need in found.needs(board)} == {"PCIe", "clock events", "clocks", "power"}
    assert {need.name for need in found.needs(slice_)} == {need.name for need in doctor.NEEDS} - {
        need.name for need in found.needs(board)
    }
    assert "MIG 2 (3g.40gb)" in printed(found)
    said = doctor.as_json(found)
    assert [gpu["mig"] for gpu in said["gpus"]] == ["", "2"]
    assert said["sources"] == [{"source": "nvml", "state": "in use", "reason": ""}]
