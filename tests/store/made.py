"""History made by hand: verdicts of GPUs at known times, and files that hold them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuwhy.sample import Workload
from gpuwhy.source import GpuFacts
from gpuwhy.store.database import Database
from gpuwhy.store.minutes import Minutes
from gpuwhy.store.signals import CONFIDENCE, KEPT
from gpuwhy.verdict.types import TimeSplit, Verdict, WorkloadVerdict
from gpuwhy.verdict.vocabulary import CAUSES

MONDAY = 1_796_515_200  # 2026-12-06T00:00:00Z plus a day: a Monday, and the start of an hour
LLAMA = Workload("kubernetes", "llama", "ml", "research")
LOSING = [cause.key for cause in CAUSES if cause.verdict in {"starving", "throttled", "pseudo-peak"}]


def facts(index: int = 0, **changes: Any) -> GpuFacts:
    known: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444455556666",
        "model": "NVIDIA H200",
        "driver": "575.51.03",
    }
    return GpuFacts(**{**known, **changes})


def split(seconds: float = 5.0, key: tuple[str, str] = ("starving", "copy"), **changes: Any) -> TimeSplit:
    """Seconds with one headline: a fifth useful, the rest lost to it."""
    known: dict[str, Any] = {
        "observed": seconds,
        "measured": seconds,
        "useful": seconds / 5,
        "lost": {key: 4 * seconds / 5},
        "verdict": {key: seconds},
    }
    return TimeSplit(**{**known, **changes})


def tenancy(workload: Workload = LLAMA, time: TimeSplit | None = None, ratio: float = 1.0) -> WorkloadVerdict:
    return WorkloadVerdict(workload, (), ratio, "alone", "starving", "copy", 0.8, (), time or split())


def verdict(end_unix_s: float, length_s: float = 5.0, gpu: GpuFacts | None = None, **changes: Any) -> Verdict:
    """One interval that ends at a time, ``starving/copy`` unless its time says otherwise."""
    time = changes.pop("time", None) or split(length_s)
    known: dict[str, Any] = {
        "gpu": gpu or facts(),
        "start_s": 1000.0,
        "end_s": 1000.0 + length_s,
        "unix_end_s": end_unix_s,
        "verdict": "starving",
        "cause": "copy",
        "confidence": 0.8,
        "evidence": (),
        "time": time,
        "signals": {"sm_active_ratio": 0.25, "power_watts": 300.0},
        "increments": {"energy_joules": 300.0 * length_s},
        "workloads": (tenancy(time=time),),
    }
    return Verdict(**{**known, **changes})


def write(
    path: Path,
    verdicts: Iterable[Verdict],
    *,
    host: str = "h1",
    source: str = "live",
    most_workloads: int = 100,
) -> None:
    """Adds verdicts to a history file, as the agent's thread does."""
    database = Database(path, host=host, source=source)
    try:
        minutes = Minutes(most_workloads=most_workloads)
        for each in verdicts:
            assert minutes.add(each)
            database.write(minutes.take({each.unix_end_s}))
        database.write(minutes.take())
    finally:
        database.close()


def host(gpus: int, minutes: int, *, start_unix: int = MONDAY, seed: int = 7) -> Iterator[list[Verdict]]:
    """A host of busy GPUs with every signal read, an interval of 5 s after the other.

    Each GPU changes its verdict now and then, loses time to two causes, and has one workload.
    """
    chance = random.Random(seed)
    names = [Workload("slurm", f"train-{number}", owner=f"user{number % 3}") for number in range(gpus)]
    levels = [[0.05 + 0.9 * chance.random() for _ in KEPT] for _ in range(gpus)]
    causes = [chance.sample(LOSING, 2) for _ in range(gpus)]
    for interval in range(minutes * 12):
        verdicts = []
        for index in range(gpus):
            if chance.random() < 0.01:
                causes[index] = chance.sample(LOSING, 2)
                levels[index] = [0.05 + 0.9 * chance.random() for _ in KEPT]
            main, beside = causes[index]
            useful = 2 * chance.random()
            time = split(
                5.0, main, useful=useful, lost={main: 2.5 - useful, beside: 1.0}, headroom=0.5, measured=5.0
            )
            signals = {
                kept.name: level * (0.95 + 0.1 * chance.random()) * _scale(kept.name)
                for kept, level in zip(KEPT, levels[index], strict=True)
            }
            signals.pop(CONFIDENCE)
            verdicts.append(
                verdict(
                    start_unix + 5 * (interval + 1),
                    gpu=facts(index),
                    time=time,
                    signals=signals,
                    workloads=(tenancy(names[index], time),),
                )
            )
        yield verdicts


def _scale(name: str) -> float:
    """The order of what a large card says."""
    for part, scale in (
        ("bytes_per", 5e10),
        ("bytes", 1.4e11),
        ("hertz", 2e9),
        ("watts", 700.0),
        ("celsius", 80.0),
    ):
        if part in name:
            return scale
    return 32.0 if name.endswith("tree_cpu_cores") else 1.0
