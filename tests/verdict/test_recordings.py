"""Verdicts on labelled recordings, with all signals and with some taken away, and on loads that change."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from gpuwhy.render.docs import DERIVED
from gpuwhy.sample import SIGNALS
from gpuwhy.verdict import Verdict
from gpuwhy.verdict.now import Now
from gpuwhy.verdict.summary import summarise

from . import recordings

each_mode = pytest.mark.parametrize("mode", recordings.MODES)


@functools.cache
def judged(mode: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Each recorded GPU's summary by recording and index."""
    poorer = recordings.MODES[mode]
    return {
        (name, index): summarise(verdicts)
        for name in recordings.NAMES
        for index, verdicts in recordings.verdicts(
            recordings.kept_intervals(name)
            if mode == "full"
            else recordings.intervals(poorer(recordings.rows(name)))
        ).items()
    }


def right(name: str, index: int, gpu: dict[str, Any]) -> bool:
    return gpu["verdict"] in recordings.labels(name)[index]["accept"]


def wrong_cause(name: str, index: int, gpu: dict[str, Any]) -> bool:
    """Whether the verdict is the label's own and the cause none of those that count as right."""
    label = recordings.labels(name)[index]
    causes = label["accept_causes"]
    return bool(causes) and gpu["verdict"] == label["verdict"] and gpu["cause"] not in causes


@each_mode
def test_golden(mode: str, golden: Callable[[str, str], None]) -> None:
    """What is said of each recording, how surely, and how much of the time is useful and lost."""
    lines = []
    for (name, index), gpu in judged(mode).items():
        told = f"{gpu['verdict']}/{gpu['cause']} {gpu['confidence']:.2f}"
        measured = f"useful {gpu['useful_s']:.1f}" if gpu["measured_s"] else "useful -"
        lost = " ".join(
            f"{key} {seconds:.1f}" for key, seconds in sorted(gpu["lost"].items()) if seconds >= 0.05
        )
        lines.append(f"{name} {index}: {told}; {measured} of {gpu['observed_s']:.1f}; lost {lost or '-'}\n")
    golden(f"verdicts/{mode}.txt", "".join(lines))


@each_mode
def test_no_recording_is_confidently_wrong(mode: str) -> None:
    """Whatever is missing: right, less sure, or unknown."""
    wrong = [
        (key, gpu["verdict"], gpu["cause"], gpu["confidence"])
        for key, gpu in judged(mode).items()
        if not right(*key, gpu) and gpu["verdict"] != "unknown" and gpu["confidence"] >= 0.5
    ]
    assert wrong == []


@pytest.mark.parametrize("mode", ["full", "1hz"])
def test_every_recording_is_judged_right(mode: str) -> None:
    """With all signals, at four rows a second and at one, verdicts and causes are those of the labels."""
    assert [(key, gpu["verdict"]) for key, gpu in judged(mode).items() if not right(*key, gpu)] == []
    assert [(key, gpu["cause"]) for key, gpu in judged(mode).items() if wrong_cause(*key, gpu)] == []


@pytest.mark.parametrize(("mode", "share"), [("no-host", 0.8), ("nvml-only", 0.6), ("stock-exporter", 0.8)])
def test_most_recordings_are_judged_right_with_less(mode: str, share: float) -> None:
    """Poorer signals cost some verdicts and not the use of the agent."""
    got = judged(mode)
    assert sum(right(*key, gpu) for key, gpu in got.items()) / len(got) >= share


NAMES_OF_MODES = {
    "full": "everything",
    "1hz": "everything, once a second",
    "no-host": "without the host",
    "stock-exporter": "what a stock dcgm-exporter serves",
    "nvml-only": "NVML without profiling counters",
}


def test_the_readme_tells_how_often_it_is_right(shown: Callable[[str, str, str], None]) -> None:
    """The README's table of right verdicts is that of this run."""
    rows = [
        "| signals read | right | `unknown` instead | wrong, confidence below 0.5 | wrong, 0.5 or more |",
        "|---|---|---|---|---|",
    ]
    for mode, name in NAMES_OF_MODES.items():
        got = judged(mode)
        good = sum(right(*key, gpu) for key, gpu in got.items())
        asked = sum(gpu["verdict"] == "unknown" and not right(*key, gpu) for key, gpu in got.items())
        bad = sum(
            gpu["verdict"] != "unknown" and not right(*key, gpu) and gpu["confidence"] >= 0.5
            for key, gpu in got.items()
        )
        guessed = len(got) - good - asked - bad
        rows.append(f"| {name} | {good} of {len(got)} | {asked} | {guessed} | {bad} |")
    assert set(NAMES_OF_MODES) == set(recordings.MODES)
    shown("README.md", "accuracy", "\n".join([*rows, ""]))


def test_evidence_can_be_looked_up() -> None:
    """Every signal that evidence names is told of in docs/verdicts.md."""
    known = {*SIGNALS, *(row.name.partition(":")[0] for row in DERIVED), "clock_event_ratio"}
    for mode in recordings.MODES:
        for gpu in judged(mode).values():
            for item in gpu["evidence"]:
                name = re.sub(r" of GPU \d+$|:.*$", "", item["signal"])
                assert name in known or name.startswith("busy of"), item


def test_a_verdict_depends_little_on_where_intervals_begin() -> None:
    """Intervals of other lengths cut a steady load elsewhere and judge it alike."""
    for name in ("gemm", "jpeg_16w", "sort", "serve_batch", "tiny_graph"):
        for length in (2.0, 3.5, 10.0):
            by_gpu = recordings.verdicts(recordings.intervals(recordings.rows(name), length))
            for index, verdicts in by_gpu.items():
                assert right(name, index, summarise(verdicts)), (name, length)


# --- loads that change in mid-recording


CHANGES = [
    ("idle", "gemm"),
    ("gemm", "jpeg_2w"),
    ("launch", "decode_attn"),
    ("gemm", "syn_sw_thermal"),
    ("train_gpt", "parked"),
    ("spinwait", "train_gpt"),
    ("disk", "stream_add"),
]
each_change = pytest.mark.parametrize(("before", "after"), CHANGES, ids=lambda name: name)


@functools.cache
def changed(before: str, after: str) -> list[Verdict]:
    spliced = recordings.splice(recordings.rows(before), recordings.rows(after))
    (verdicts,) = recordings.verdicts(recordings.intervals(spliced)).values()
    return verdicts


def accepted(name: str) -> set[str]:
    return set(recordings.labels(name)[0]["accept"])


def seconds(name: str) -> float:
    """How long a recording is."""
    header, *rows = recordings.rows(name)
    return float(rows[-1]["mono"] - rows[0]["mono"] + header["period_s"])


@each_change
def test_seconds_follow_a_change_of_load(before: str, after: str) -> None:
    """Each part's seconds go to its own verdict, but for the interval in which the load changed."""
    by_verdict: dict[str, float] = {}
    for verdict in changed(before, after):
        for (name, _), amount in verdict.time.verdict.items():
            by_verdict[name] = by_verdict.get(name, 0.0) + amount
    assert sum(by_verdict.values()) == pytest.approx(seconds(before) + seconds(after), abs=0.3)
    for name in (before, after):
        got = sum(amount for verdict, amount in by_verdict.items() if verdict in accepted(name))
        assert got == pytest.approx(seconds(name), abs=7.5), (name, by_verdict)


@each_change
def test_now_follows_a_change_of_load_once(before: str, after: str) -> None:
    """What is shown changes once, at most 15 s after the load did, and not before it."""
    now = Now()
    shown = [now.update(verdict) for verdict in changed(before, after)]
    names = [verdict.verdict for verdict in shown]
    assert names[0] in accepted(before)
    assert names[-1] in accepted(after)
    assert sum(one != other for one, other in itertools.pairwise(names)) == 1
    turn = next(place for place, name in enumerate(names) if name in accepted(after))
    start = changed(before, after)[0].start_s
    assert seconds(before) <= changed(before, after)[turn].end_s - start <= seconds(before) + 15.0


@pytest.mark.parametrize(
    ("before", "after", "longer"),
    [("gemm", "jpeg_2w", 0), ("gemm", "jpeg_2w", 1), ("train_gpt", "parked", 0), ("train_gpt", "parked", 1)],
)
def test_the_longer_part_wins(before: str, after: str, longer: int) -> None:
    """Over a window with two loads the verdict is that of the one that held for longer."""
    parts = [recordings.rows(before), recordings.rows(after)]
    shorter = parts[1 - longer]
    # A third of the recording, from its beginning: the header and its first rows.
    del shorter[1 + (len(shorter) - 1) // 3 :]
    (verdicts,) = recordings.verdicts(recordings.intervals(recordings.splice(*parts))).values()
    assert summarise(verdicts)["verdict"] in accepted((before, after)[longer])


def test_a_change_back_and_forth_is_followed() -> None:
    """A load that comes back is seen again."""
    there = recordings.splice(recordings.rows("gemm"), recordings.rows("parked"))
    (verdicts,) = recordings.verdicts(
        recordings.intervals(recordings.splice(there, recordings.rows("gemm")))
    ).values()
    now = Now()
    names = [name for name, _ in itertools.groupby(now.update(verdict).verdict for verdict in verdicts)]
    assert names == ["healthy", "idle", "healthy"]
