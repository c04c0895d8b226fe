"""Under which conditions a window was taken: a row each. A comparison across them says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuwhy.report.baseline import words
from gpuwhy.report.baseline.types import Baseline, Gpu

MOST_NAMED = 4
UNKNOWN = "not known"
SAME_LENGTH = 0.10


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that is not the same on both sides, in words."""

    name: str
    before: str
    after: str


def _joined(values: Iterable[str]) -> str:
    found = list(dict.fromkeys(value for value in values if value))
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_gpus(text: Callable[[Gpu], str]) -> Callable[[Baseline], str]:
    return lambda baseline: _joined(text(gpu) for gpu in baseline.gpus)


# What each is called, and what it is in words, "" = not known.
CONDITIONS: tuple[tuple[str, Callable[[Baseline], str]], ...] = (
    ("host", _of_gpus(lambda gpu: gpu.host)),
    ("model", _of_gpus(lambda gpu: gpu.model)),
    ("GPU", _of_gpus(lambda gpu: gpu.uuid)),
    ("MIG profile", _of_gpus(lambda gpu: gpu.profile)),
    ("driver", _of_gpus(lambda gpu: gpu.driver)),
    ("gpuwhy", lambda baseline: baseline.version),
    ("power limit", _of_gpus(lambda gpu: words.power_limit(gpu.power_limit_watts))),
    ("highest SM clock", _of_gpus(lambda gpu: words.clock(gpu.sm_clock_max_hertz))),
    (
        "workloads",
        lambda baseline: _joined(sorted({name for gpu in baseline.gpus for name in gpu.workloads})),
    ),
    ("chosen workload", lambda baseline: baseline.workload or "all"),
    ("read from", lambda baseline: words.source(baseline.source)),
    (
        "signals from",
        lambda baseline: _joined(sorted({name for gpu in baseline.gpus for name in gpu.sources})),
    ),
    ("warm-up", words.warm_up),
)


def differing(before: Baseline, after: Baseline, before_s: float, after_s: float) -> tuple[Condition, ...]:
    """The conditions that differ, or are known on one side only; ``before_s`` and ``after_s`` are the lengths."""
    found = [
        Condition(name, first or UNKNOWN, second or UNKNOWN)
        for name, text in CONDITIONS
        if (first := text(before)) != (second := text(after))
    ]
    if abs(before_s - after_s) > SAME_LENGTH * max(before_s, after_s):
        found.append(Condition("length", words.seconds(before_s), words.seconds(after_s)))
    steps = [each.step_s for each in (before, after)]
    if abs(steps[0] - steps[1]) > SAME_LENGTH * max(steps):
        found.append(Condition("a sample", *map(words.seconds, steps)))
    return tuple(found)
