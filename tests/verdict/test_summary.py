"""Verdicts over a window: the winner, its evidence, and the document that programs read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuwhy.sample import Tenant, Workload
from gpuwhy.verdict import Evidence, TimeSplit, Verdict
from gpuwhy.verdict.summary import MOST_WORKLOADS, SCHEMA, document, summarise, total, winner
from gpuwhy.verdict.types import WorkloadVerdict
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY

from . import recordings
from .build import h200


def judged(
    name: str,
    cause: str,
    end_s: float = 5.0,
    *,
    seconds: float = 5.0,
    unseen: float = 0.0,
    confidence: float = 0.9,
    **others: Any,
) -> Verdict:
    """An interval with this verdict for ``seconds``, and ``unseen`` more without a reading."""
    by_verdict = {(name, cause): seconds}
    if unseen:
        by_verdict["unknown", "no-data"] = unseen
    time = TimeSplit(observed=seconds + unseen, verdict=by_verdict)
    known = {
        "gpu": h200(),
        "start_s": end_s - seconds - unseen,
        "end_s": end_s,
        "unix_end_s": 1e9 + end_s,
        "verdict": name,
        "cause": cause,
        "confidence": confidence,
        "evidence": (Evidence("graphics_active_ratio", end_s / 100, "busy"),),
        "time": time,
    }
    return Verdict(**{**known, **others})


def held_by(
    name: str, ratio: float = 1.0, key: tuple[str, str] = ("starving", "copy"), **others: Any
) -> WorkloadVerdict:
    """A pod of ``ml`` that had this part of an interval of 5 s."""
    workload = Workload("kubernetes", name, "ml", "research")
    known = {
        "workload": workload,
        "tenants": (Tenant(workload, run=f"{name}-0"),),
        "ratio": ratio,
        "basis": "alone",
        "verdict": key[0],
        "cause": key[1],
        "confidence": 0.8,
        "evidence": (Evidence("graphics_active_ratio", 0.2, "busy"),),
        "time": TimeSplit(
            observed=5 * ratio,
            useful=ratio,
            measured=5 * ratio,
            lost={key: 3 * ratio},
            verdict={key: 5 * ratio},
        ),
    }
    return WorkloadVerdict(**{**known, **others})


def test_the_verdict_with_most_seconds_wins() -> None:
    """It is a matter of time, not of the number of intervals."""
    verdicts = [
        judged("starving", "copy", 5, seconds=7),
        judged("healthy", "compute", 8, seconds=3),
        judged("healthy", "compute", 11, seconds=3),
    ]
    assert winner(verdicts) == ("starving", "copy")


def test_ties_go_to_the_later_one() -> None:
    """Of two equals, what came last is what goes on."""
    copy, gemm = judged("starving", "copy", 5), judged("healthy", "compute", 10)
    assert winner([copy, gemm]) == ("healthy", "compute")
    assert winner([gemm, copy]) == ("starving", "copy")
    assert winner([copy, gemm, copy, gemm]) == ("healthy", "compute")


def test_ties_between_sums_of_seconds_are_ties() -> None:
    """Three tenths are three tenths, however they add up in binary."""
    early = [judged("starving", "copy", 1, seconds=0.3)]
    late = [judged("healthy", "compute", 2 + n, seconds=0.1) for n in range(3)]
    assert winner([*early, *late])[0] == "healthy"
    assert winner([*late, *early])[0] == "starving"


def test_the_cause_is_the_verdicts_own() -> None:
    """First the verdict, then the cause with most seconds in it, though another verdict's cause has more."""
    verdicts = [
        judged("starving", "copy", 4, seconds=4),
        judged("starving", "io-wait", 7, seconds=3),
        judged("healthy", "compute", 12, seconds=5),
    ]
    assert winner(verdicts) == ("starving", "copy")
    assert winner([*verdicts[:1], judged("starving", "io-wait", 20, seconds=4), verdicts[2]]) == (
        "starving",
        "io-wait",
    )


def test_evidence_is_from_the_last_interval_with_the_winner() -> None:
    """What is shown belongs to the verdict that is shown, and is the newest of it."""
    gpu = summarise(
        [judged("starving", "copy", 5), judged("starving", "copy", 10), judged("healthy", "compute", 15)]
    )
    assert (gpu["verdict"], gpu["cause"]) == ("starving", "copy")
    assert gpu["evidence"] == [{"signal": "graphics_active_ratio", "value": 0.1, "test": "busy"}]
    mixed_causes = [judged("starving", "copy", 5, seconds=6), judged("starving", "io-wait", 10)]
    assert summarise(mixed_causes)["evidence"][0]["value"] == 0.05


def test_confidence_is_the_winners_mean_by_time() -> None:
    """Long intervals weigh more, and other verdicts do not count."""
    gpu = summarise(
        [
            judged("starving", "copy", 6, seconds=6, confidence=0.9),
            judged("starving", "io-wait", 8, seconds=2, confidence=0.5),
            judged("healthy", "compute", 10, seconds=2, confidence=0.1),
        ]
    )
    assert gpu["confidence"] == pytest.approx((6 * 0.9 + 2 * 0.5) / 8)


def test_time_without_readings_can_win() -> None:
    """Where most of the window was not seen, the answer is no-data, and nobody's evidence stands for it."""
    verdicts = [
        judged(name, cause, 5 * n, seconds=2.5, unseen=2.5)
        for n, (name, cause) in enumerate([("healthy", "compute"), ("starving", "copy"), ("idle", "held")], 1)
    ]
    gpu = summarise(verdicts)
    assert (gpu["verdict"], gpu["cause"]) == ("unknown", "no-data")
    assert gpu["confidence"] == 0.0
    assert gpu["evidence"] == []
    assert gpu["reason"]


def test_times_add_up() -> None:
    """The sum of splits keeps every part, and what is left of each stays unattributed."""
    one = TimeSplit(5.0, 5.0, 2.0, 1.0, 0.0, {("starving", "copy"): 1.5}, {("starving", "copy"): 5.0})
    other = TimeSplit(
        5.0, 0.0, 0.0, 0.0, 2.0, {("starving", "copy"): 1.0, ("idle", "held"): 0.5}, {("idle", "held"): 5.0}
    )
    both = total([one, other])
    assert (both.observed, both.measured, both.useful, both.headroom, both.free) == (10.0, 5.0, 2.0, 1.0, 2.0)
    assert both.lost == {("starving", "copy"): 2.5, ("idle", "held"): 0.5}
    assert both.verdict == {("starving", "copy"): 5.0, ("idle", "held"): 5.0}
    assert both.unattributed == pytest.approx(2.0)
    assert total([]) == TimeSplit()


def test_flags_signals_and_workload() -> None:
    """Flags of any interval count, sources are the newest, the workload is that of the evidence."""
    gpu = summarise(
        [
            judged(
                "starving",
                "copy",
                5,
                flags=frozenset({"warm-up"}),
                sources={"sm_active_ratio": "nvml-gpm", "power_watts": "nvml"},
            ),
            judged(
                "starving",
                "copy",
                10,
                sources={"sm_active_ratio": "dcgm"},
                workloads=(held_by("trainer"),),
                owners=(4242, 5),
            ),
        ]
    )
    assert gpu["flags"] == ["warm-up"]
    assert gpu["signals"] == {"power_watts": "nvml", "sm_active_ratio": "dcgm"}
    assert gpu["workload"] == "ml/trainer"
    assert any("-i 0" in step for step in gpu["next_steps"])


def test_workloads_of_the_window_are_summed_up() -> None:
    """Each workload has an entry with its seconds, runs and verdict; the one with most time comes first."""
    again = replace(held_by("server", 0.25).tenants[0], run="server-1")
    gpu = summarise(
        [
            judged("starving", "copy", 5, workloads=(held_by("trainer"),)),
            judged(
                "starving",
                "copy",
                10,
                workloads=(
                    held_by("server", 0.25, ("idle", "no-demand"), basis="even", profile="latency", hint="x"),
                    held_by("trainer", 0.75, basis="even"),
                ),
            ),
            judged(
                "starving",
                "copy",
                15,
                workloads=(
                    held_by("server", 0.25, ("idle", "held"), tenants=(again,)),
                    held_by("trainer", 0.75),
                ),
            ),
        ]
    )
    trainer, server = gpu["workloads"]
    assert (trainer["kind"], trainer["namespace"], trainer["workload"], trainer["owner"]) == (
        "kubernetes",
        "ml",
        "trainer",
        "research",
    )
    assert trainer["observed_s"] == 12.5
    assert trainer["share_ratio"] == pytest.approx(12.5 / 15, abs=1e-4)
    assert (trainer["verdict"], trainer["cause"], trainer["shared"]) == ("starving", "copy", True)
    assert trainer["lost"] == {"starving/copy": 7.5}
    assert server["runs"] == ["server-0", "server-1"]
    # Equal seconds: the later cause goes on.
    assert (server["verdict"], server["cause"]) == ("idle", "held")
    assert server["seconds"] == {"idle": 2.5}
    assert gpu["workload"] == "ml/server, ml/trainer"


def test_a_workloads_confidence_is_the_mean_over_its_verdict() -> None:
    """By time, over the intervals with the verdict that won; others' confidence is of something else."""
    parts = [
        held_by("trainer", 1.0, confidence=0.9),
        held_by("trainer", 0.5, confidence=0.6),
        held_by("trainer", 0.5, ("idle", "held"), confidence=0.1),
    ]
    gpu = summarise(
        [judged("starving", "copy", 5 + 5 * at, workloads=(part,)) for at, part in enumerate(parts)]
    )
    assert gpu["workloads"][0]["confidence"] == pytest.approx(0.8)


def test_of_very_many_the_first_are_named() -> None:
    crowd = tuple(held_by(f"w{at:03}", 0.001) for at in range(100))
    gpu = summarise([judged("starving", "copy", 5, workloads=crowd)])
    assert gpu["workload"] == "ml/w000, ml/w001, ml/w002, ml/w003, 96 more"
    assert len(gpu["workloads"]) == MOST_WORKLOADS


def test_next_steps_name_the_process() -> None:
    """A command that needs a process has its id where one is known."""
    steps = summarise([judged("starving", "host-serial", owners=(4242,))])["next_steps"]
    assert any("4242" in step for step in steps)


GPU_KEYS: dict[str, type | tuple[type, ...]] = {
    "index": int,
    "uuid": str,
    "mig": str,
    "model": str,
    "workload": str,
    "workloads": list,
    "verdict": str,
    "cause": str,
    "confidence": float,
    "seconds": dict,
    "causes": dict,
    "observed_s": float,
    "measured_s": float,
    "useful_s": float,
    "headroom_s": float,
    "free_s": float,
    "unattributed_s": float,
    "lost": dict,
    "flags": list,
    "reason": (str, type(None)),
    "evidence": list,
    "next_steps": list,
    "means": dict,
    "signals": dict,
}


WORKLOAD_KEYS: dict[str, type] = {
    "kind": str,
    "workload": str,
    "namespace": str,
    "owner": str,
    "runs": list,
    "share_ratio": float,
    "basis": str,
    "shared": bool,
    "profile": str,
    "profile_from": str,
    "verdict": str,
    "cause": str,
    "confidence": float,
    "seconds": dict,
    "lost": dict,
    "observed_s": float,
    "measured_s": float,
    "useful_s": float,
    "evidence": list,
}


@pytest.mark.parametrize("name", ["ddp_straggler", "syn_frozen_counters", "idle", "gap45"])
def test_the_document_keeps_its_schema(name: str) -> None:
    """Every key is there with its type, values are plain JSON, and parts add up to what was observed."""
    by_gpu = recordings.verdicts(recordings.kept_intervals(name))
    made = document("replay:x", 15.0, list(by_gpu.values()))
    read = json.loads(json.dumps(made, allow_nan=False))
    assert read == made
    assert made["schema"] == SCHEMA == "gpuwhy-explain/1"
    assert set(made) == {"schema", "source", "window_s", "observed_s", "gpus"}
    assert made["window_s"] == 15.0
    assert made["observed_s"] == max(gpu["observed_s"] for gpu in made["gpus"])
    assert [gpu["index"] for gpu in made["gpus"]] == sorted(by_gpu)
    for gpu in made["gpus"]:
        assert set(gpu) == set(GPU_KEYS)
        for key, kind in GPU_KEYS.items():
            assert isinstance(gpu[key], kind), key
        assert (gpu["verdict"], gpu["cause"]) in CAUSE_BY_KEY
        assert {tuple(each.split("/")) for each in [*gpu["causes"], *gpu["lost"]]} <= CAUSE_BY_KEY.keys()
        assert all(set(item) == {"signal", "value", "test"} for item in gpu["evidence"])
        assert all(isinstance(step, str) and step for step in gpu["next_steps"])
        assert sum(gpu["seconds"].values()) == pytest.approx(gpu["observed_s"], abs=0.01)
        assert sum(gpu["causes"].values()) == pytest.approx(gpu["observed_s"], abs=0.01)
        parts = (
            gpu["useful_s"]
            + gpu["headroom_s"]
            + gpu["free_s"]
            + gpu["unattributed_s"]
            + sum(gpu["lost"].values())
        )
        assert parts == pytest.approx(gpu["observed_s"], abs=0.01)
        for each in gpu["workloads"]:
            assert set(each) == set(WORKLOAD_KEYS)
            assert all(isinstance(each[key], kind) for key, kind in WORKLOAD_KEYS.items())
            assert (each["kind"], each["workload"]) == ("replay", gpu["workload"])
            assert sum(each["seconds"].values()) == pytest.approx(each["observed_s"], abs=0.01)
            assert each["observed_s"] <= gpu["observed_s"] + 0.01
        assert gpu["means"].keys() <= gpu["signals"].keys() | {"power_limit_watts"}


def test_a_gpu_without_verdicts_is_left_out() -> None:
    """Nothing is said of a GPU of which no interval has ended; without any, the document is empty."""
    made = document("nvml", 5.0, [[], [judged("idle", "held")]])
    assert len(made["gpus"]) == 1
    assert document("nvml", 0.0, []) == {
        "schema": SCHEMA,
        "source": "nvml",
        "window_s": 0.0,
        "observed_s": 0.0,
        "gpus": [],
    }


def test_identity_is_the_gpus() -> None:
    """Index, UUID and slice come from the GPU that was judged."""
    gpu = summarise([replace(judged("idle", "held"), gpu=h200(3, mig="7", share_ratio=1 / 7))])
    assert (gpu["index"], gpu["uuid"], gpu["mig"], gpu["model"]) == (3, "GPU-3", "7", "NVIDIA H200")
