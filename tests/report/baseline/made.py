"""Windows made for tests: long recordings of pieces of the bundled ones, and loads whose truth is known."""

from __future__ import annotations

import functools
import gzip
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gpuwhy import daemon
from gpuwhy.report.baseline.from_verdicts import Collector
from gpuwhy.report.baseline.types import Baseline, Choice, Gpu, Progress, Sample
from gpuwhy.source.replay import load
from gpuwhy.verdict.summary import total
from gpuwhy.verdict.types import TimeSplit

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
START = 1_699_999_200.0  # 2023-11-14T22:00:00Z

Load: TypeAlias = Callable[[random.Random, int, float], list[float]]


def looped(
    path: Path,
    names: Sequence[str],
    seconds: float,
    *,
    seed: int = 1,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Path:
    """Writes a recording of that length: pieces of several seconds of these recordings, which have one GPU layout.

    Each piece begins anew (its clock goes back), so that counters need not fit. ``change`` alters the header.
    """
    chance = random.Random(seed)
    recorded = []
    for name in names:
        with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt") as file:
            header, *rows = [json.loads(line) for line in file]
        recorded.append((header, rows))
    header = dict(recorded[0][0])
    change(header)
    now = START
    with gzip.open(path, "wt", compresslevel=1) as out:
        out.write(json.dumps(header) + "\n")
        while now < START + seconds:
            rows = chance.choice(recorded)[1]
            first = chance.randrange(0, len(rows) // 3)
            piece = rows[first : first + chance.randrange(len(rows) // 2, len(rows))]
            for row in piece:
                length = row["mono"] - piece[0]["mono"]
                out.write(json.dumps({**row, "mono": 100.0 + length, "t": now + length}) + "\n")
            now += piece[-1]["mono"] - piece[0]["mono"]
    return path


def facts(index: int = 0, **changes: Any) -> Gpu:
    known: dict[str, Any] = {
        "host": "h1",
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "NVIDIA H200",
        "driver": "575.51.03",
        "power_limit_watts": 700.0,
        "sm_clock_max_hertz": 1.98e9,
        "sources": ("nvml-gpm",),
        "workloads": ("ml/llama",),
    }
    return Gpu(**{**known, **changes})


def sample(
    end_unix: float, useful: float, seconds: float = 5.0, *, lost: tuple[str, str] = ("starving", "copy")
) -> Sample:
    """An interval of which this part is useful, and the rest lost to one cause."""
    useful = min(1.0, max(0.0, useful))
    headline = ("healthy", "compute") if useful > 0.5 else lost
    return Sample(
        end_unix=end_unix,
        seconds=seconds,
        time=TimeSplit(
            observed=seconds,
            measured=seconds,
            useful=useful * seconds,
            lost={lost: (1 - useful) * seconds},
            verdict={headline: seconds},
        ),
        energy_joules=(100 + 500 * useful) * seconds,
        signals={
            "graphics_active_ratio": useful,
            "tensor_active_ratio": 0.8 * useful,
            "power_watts": 100 + 500 * useful,
            "sm_clock_hertz": 1.5e9,
            "verdict_confidence_ratio": 0.9,
        },
    )


def gpu(useful: Iterable[float], step_s: float = 5.0, *, start: float = START, **changes: Any) -> Gpu:
    """A GPU with such samples, one after the other."""
    samples = tuple(sample(start + step_s * (at + 1), part, step_s) for at, part in enumerate(useful))
    return facts(**{"samples": samples, **changes})


def baseline(
    *gpus: Gpu, name: str = "first", progress: Mapping[str, Sequence[float]] | None = None, **changes: Any
) -> Baseline:
    known: dict[str, Any] = {
        "name": name,
        "source": "live",
        "saved_unix": START + 1000.0,
        "version": "0.1.0",
        "gpus": gpus,
        "progress": tuple(
            Progress(key, tuple(values), "latency" not in key) for key, values in (progress or {}).items()
        ),
    }
    return Baseline(**{**known, **changes})


def steady(chance: random.Random, count: int, step_s: float) -> list[float]:
    """A GEMM loop: a few percent of noise."""
    return [0.6 + chance.gauss(0, 0.02) for _ in range(count)]


def noisy(chance: random.Random, count: int, step_s: float) -> list[float]:
    """Batches of mixed sizes: each interval a tenth up or down."""
    return [0.5 + chance.gauss(0, 0.05) for _ in range(count)]


def bursty(chance: random.Random, count: int, step_s: float) -> list[float]:
    """Requests in bursts: busy for 4 s and waiting for 1, in the mean."""
    found, busy, left = [], chance.random() < 0.8, 0.0
    for _ in range(count):
        useful, rest = 0.0, step_s
        while rest > 0:
            if left <= 0:
                busy = not busy
                left = chance.expovariate(1 / (4 if busy else 1))
            part = min(rest, left)
            useful += 0.8 * part * busy
            rest, left = rest - part, left - part
        found.append(useful / step_s)
    return found


def checkpoints(chance: random.Random, count: int, step_s: float) -> list[float]:
    """Training that stops for 5 s each minute or so, at another phase each time."""
    phase = 61.7 * chance.random()
    tenths = [[(phase + step_s * (at + part / 10)) % 61.7 > 5 for part in range(10)] for at in range(count)]
    return [0.7 * sum(each) / 10 + chance.gauss(0, 0.01) for each in tenths]


def wandering(chance: random.Random, count: int, step_s: float) -> list[float]:
    """Sequence lengths that come in shoals: a random walk around 0.6 that forgets itself within a minute."""
    keeps, now, found = math.exp(-step_s / 30), chance.gauss(0, 0.03), []
    for _ in range(count):
        found.append(0.6 + now)
        now = keeps * now + chance.gauss(0, 0.03 * math.sqrt(1 - keeps * keeps))
    return found


def drifting(chance: random.Random, count: int, step_s: float) -> list[float]:
    """A load that loses a tenth over the window, each time: caches fill, memory fragments."""
    return [0.6 * (1 - 0.1 * at / count) + chance.gauss(0, 0.03) for at in range(count)]


LOADS: dict[str, Load] = {
    each.__name__: each for each in (steady, noisy, bursty, checkpoints, wandering, drifting)
}


def built(
    source: Load, chance: random.Random, seconds: float, *, loss: float = 0.0, step_s: float = 5.0
) -> Gpu:
    """A window of that load, with a part of its useful time lost."""
    return gpu([(1 - loss) * part for part in source(chance, round(seconds / step_s), step_s)], step_s)


@functools.cache
def seconds_of(name: str) -> tuple[Sample, ...]:
    """A bundled recording judged second by second: its first GPU."""
    stages = daemon.Pipeline(interval_s=1.0)
    collector = Collector("h1", Choice())
    for reading in load(RECORDINGS / f"{name}.jsonl.gz").readings():
        for judged in stages.feed(reading):
            collector.add(judged.verdicts)
    return min(collector.gpus(), key=lambda each: each.index).samples


def recorded(
    name: str, chance: random.Random, seconds: float, *, loss: float = 0.0, step_s: float = 5.0
) -> Gpu:
    """A window of pieces of a recording, each of some seconds, joined at random (a block bootstrap of it).

    Pieces are of 2 to 8 s; a loss takes that part of every second's useful time.
    """
    known = seconds_of(name)
    line: list[Sample] = []
    while len(line) < seconds + 2 * step_s:
        length = chance.randint(2, 8)
        first = chance.randrange(max(1, len(known) - length + 1))
        line += known[first : first + length]
    samples, now, place = [], START, 0
    while now < START + seconds:
        group: list[Sample] = []
        while sum(each.seconds for each in group) < step_s - 0.01:
            group.append(line[place])
            place += 1
        now += sum(each.seconds for each in group)
        samples.append(_joined(group, now, loss))
    return facts(samples=tuple(samples))


def _joined(group: Sequence[Sample], end: float, loss: float) -> Sample:
    time = total(each.time for each in group)
    gone = loss * time.useful
    lost = {**time.lost, ("starving", "copy"): time.lost.get(("starving", "copy"), 0.0) + gone}
    seconds = sum(each.seconds for each in group)
    names = frozenset.intersection(*(frozenset(each.signals) for each in group))
    return Sample(
        end,
        seconds,
        replace(time, useful=time.useful - gone, lost=lost),
        sum(each.energy_joules or 0.0 for each in group),
        {name: sum(each.signals[name] * each.seconds for each in group) / seconds for name in names},
    )
