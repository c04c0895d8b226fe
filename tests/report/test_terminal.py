"""What people read in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gpuwhy import config as configuration
from gpuwhy.daemon import explain_recording
from gpuwhy.report.terminal import COLOURS, print_document
from gpuwhy.verdict.vocabulary import VERDICTS
from gpuwhy.verdict.words import human

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


@pytest.mark.parametrize("name", ["ddp_straggler", "syn_sw_thermal", "syn_frozen_counters", "idle"])
def test_text(golden: Callable[[str, str], None], name: str) -> None:
    """The text of a recording, in 80 columns, without colour."""
    document = explain_recording(RECORDINGS / f"{name}.jsonl.gz", configuration.load({}, {}, None).config)
    document["source"] = f"replay:{name}.jsonl.gz"
    out = io.StringIO()
    print_document(document, Console(file=out, width=80, highlight=False))
    text = out.getvalue()
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80
    golden(f"explain/{name}.txt", text)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "name", sorted(file.name.removesuffix(".jsonl.gz") for file in RECORDINGS.glob("*.gz"))
)
def test_nothing_is_cut(name: str, width: int) -> None:
    """At any usual width every name and number is whole."""
    document = explain_recording(RECORDINGS / f"{name}.jsonl.gz", configuration.load({}, {}, None).config)
    document["source"] = name
    out = io.StringIO()
    print_document(document, Console(file=out, width=width, highlight=False))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= width
    for gpu in document["gpus"]:
        assert f"{gpu['verdict']} / {gpu['cause']}" in out.getvalue()


def test_every_verdict_has_a_colour() -> None:
    """A verdict without a colour would not be printed."""
    assert set(COLOURS) == set(VERDICTS)
    assert len(set(COLOURS.values())) == len(COLOURS)


@pytest.mark.parametrize(
    ("signal", "value", "text"),
    [
        ("sm_clock_hertz", 1.98e9, "1980 MHz"),
        ("power_watts", 691.2, "691.2 W"),
        ("pcie_receive_bytes_per_second", 5.9e9, "5.9 GB/s"),
        ("memory_used_bytes", 512.0, "512 B"),
        ("process_tree_hottest_thread_cores", 0.99, "0.99 cores"),
        ("sm_active_ratio", 0.5, "0.5"),
        ("sm_active_ratio", 6.25e-05, "0.0001"),
        ("process_tree_hottest_thread_cores", 4.9e-05, "0 cores"),
    ],
)
def test_values_have_units(signal: str, value: float, text: str) -> None:
    """A value is shown in the unit that its signal's name says."""
    assert human(signal, value) == text


def explained(*workloads: dict[str, object]) -> str:
    """The first lines about a GPU that these workloads hold."""
    document = explain_recording(RECORDINGS / "idle.jsonl.gz", configuration.load({}, {}, None).config)
    known: dict[str, object] = {
        "kind": "kubernetes",
        "workload": "llama",
        "namespace": "serving",
        "owner": "serving",
        "runs": ["llama-0"],
        "share_ratio": 1.0,
        "basis": "alone",
        "profile": "unknown",
        "profile_from": "",
        "verdict": "idle",
        "cause": "held",
    }
    document["gpus"][0]["workloads"] = [{**known, **each} for each in workloads]
    out = io.StringIO()
    print_document(document, Console(file=out, width=200, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize(
    ("workload", "line"),
    [
        ({}, "  serving/llama  (kubernetes, llama-0)"),
        (
            {"kind": "slurm", "namespace": "", "owner": "ann", "runs": ["4_1", "4_2", "4_3"]},
            "  llama  (slurm, 4_1 and 2 more, of ann)",
        ),
        ({"basis": "granted"}, "  serving/llama  (kubernetes, llama-0, granted, no process)"),
        (
            {"profile": "latency", "profile_from": "pod label gpuwhy/profile"},
            "  serving/llama  (kubernetes, llama-0, latency by pod label gpuwhy/profile)",
        ),
        ({"workload": "a\x1b[31mb\u202e", "runs": []}, "  serving/a\ufffd[31mb\ufffd  (kubernetes)"),
    ],
)
def test_the_workload_is_named(workload: dict[str, object], line: str) -> None:
    """Its name, kind, run and owner stand below the GPU, and nothing that a terminal would obey."""
    assert line in explained(workload).splitlines()


def test_those_who_share_have_their_verdicts() -> None:
    """Each of several has its part and verdict; of very many, the first."""
    text = explained(*({"workload": f"w{at}", "runs": [], "share_ratio": 0.1} for at in range(10)))
    assert "  serving/w0  (kubernetes)  10% of the time: idle / held" in text.splitlines()
    assert "  and 2 more" in text
    assert "w8" not in text
