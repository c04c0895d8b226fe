"""The figures that are compared: each a ratio of two sums over samples. One row each.

Time is weighed by a row's share of its GPU, so that MIG slices count as what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpuwhy.catalog import ACTIVITY_UNITS
from gpuwhy.report.baseline.noise import Term
from gpuwhy.report.baseline.types import Gpu, Sample
from gpuwhy.verdict.vocabulary import CAUSES, VERDICTS

MOST_STEPS = 720  # that a window is looked at in

_Part: TypeAlias = Callable[[Sample], "float | None"]

# Groups, in the order that they are shown.
MAIN, LOST, VERDICT, ACTIVITY, CARD = "work", "lost to", "verdict", "activity", "card"
PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class Figure:
    """``upper`` over ``lower``, each summed over samples; None = the sample says nothing of it.

    ``unit`` is "ratio", or a base unit. ``higher_is_better`` is None where neither is. ``shown_from`` is what
    either window has to have of it to be listed. ``of_gpu`` figures are not those of a workload that was chosen.
    """

    name: str
    label: str
    group: str
    unit: str
    upper: _Part
    lower: _Part
    higher_is_better: bool | None = None
    shown_from: float = 0.0
    of_gpu: bool = False
    weighed: bool = True


def _observed(sample: Sample) -> float:
    return sample.time.observed


def _signal(
    name: str, label: str, group: str, unit: str, *, shown_from: float = 0.0, weighed: bool = True
) -> Figure:
    def upper(sample: Sample) -> float | None:
        value = sample.signals.get(name)
        return None if value is None else value * sample.seconds

    def lower(sample: Sample) -> float | None:
        return sample.seconds if name in sample.signals else None

    return Figure(name, label, group, unit, upper, lower, shown_from=shown_from, weighed=weighed)


def _lost(verdict: str, cause: str) -> Figure:
    return Figure(
        f"lost/{verdict}/{cause}",
        f"{verdict}/{cause}",
        LOST,
        "ratio",
        lambda sample: sample.time.lost.get((verdict, cause), 0.0),
        _observed,
        higher_is_better=False,
        shown_from=SHOWN,
    )


def _verdict(verdict: str) -> Figure:
    return Figure(
        f"verdict/{verdict}",
        verdict,
        VERDICT,
        "ratio",
        lambda sample: sum(seconds for key, seconds in sample.time.verdict.items() if key[0] == verdict),
        _observed,
        shown_from=SHOWN,
    )


def _cause(verdict: str, cause: str) -> Figure:
    return Figure(
        f"verdict/{verdict}/{cause}",
        f"  {cause}",
        VERDICT,
        "ratio",
        lambda sample: sample.time.verdict.get((verdict, cause), 0.0),
        _observed,
        shown_from=SHOWN,
    )


def _of_verdict(verdict: str) -> Iterator[Figure]:
    yield _verdict(verdict)
    yield from (_cause(*cause.key) for cause in CAUSES if cause.verdict == verdict)


SHOWN = 0.001
EFFICIENCY = Figure(
    "efficiency",
    "efficiency",
    MAIN,
    "ratio",
    lambda sample: sample.time.useful,
    lambda sample: sample.time.measured,
    higher_is_better=True,
)
FIGURES: tuple[Figure, ...] = (
    EFFICIENCY,
    Figure(
        "useful", "useful", MAIN, "ratio", lambda sample: sample.time.useful, _observed, higher_is_better=True
    ),
    Figure(
        "lost",
        "lost",
        MAIN,
        "ratio",
        lambda sample: sum(sample.time.lost.values()),
        _observed,
        higher_is_better=False,
    ),
    Figure(
        "headroom",
        "headroom",
        MAIN,
        "ratio",
        lambda sample: sample.time.headroom,
        _observed,
        shown_from=SHOWN,
        of_gpu=True,
    ),
    Figure(
        "free",
        "free",
        MAIN,
        "ratio",
        lambda sample: sample.time.free,
        _observed,
        shown_from=SHOWN,
        of_gpu=True,
    ),
    Figure(
        "unattributed",
        "not attributed",
        MAIN,
        "ratio",
        lambda sample: sample.time.unattributed,
        _observed,
        shown_from=SHOWN,
        of_gpu=True,
    ),
    *(_lost(*cause.key) for cause in CAUSES),
    *(figure for verdict in VERDICTS for figure in _of_verdict(verdict)),
    _signal("verdict_confidence_ratio", "confidence", VERDICT, "ratio"),
    *(_signal(f"{unit}_active_ratio", unit, ACTIVITY, "ratio", shown_from=0.005) for unit in ACTIVITY_UNITS),
    _signal("gpu_util_ratio", "GPU-Util", ACTIVITY, "ratio", shown_from=0.005),
    _signal("power_watts", "power", CARD, "watts", weighed=False),
    Figure(
        "energy_joules_per_second",
        "energy per second",
        CARD,
        "joules per second",
        lambda sample: sample.energy_joules,
        lambda sample: None if sample.energy_joules is None else sample.seconds,
        weighed=False,
    ),
    _signal("sm_clock_hertz", "SM clock", CARD, "hertz", weighed=False),
    _signal("gpu_temperature_celsius", "temperature", CARD, "celsius", weighed=False),
)


def occurring(*windows: Sequence[Gpu]) -> tuple[Figure, ...]:
    """The figures, but no verdicts and losses that none of the windows has."""
    times = [sample.time for gpus in windows for gpu in gpus for sample in gpu.samples]
    names = {f"lost/{verdict}/{cause}" for time in times for verdict, cause in time.lost}
    for verdict, cause in {key for time in times for key in time.verdict}:
        names |= {f"verdict/{verdict}", f"verdict/{verdict}/{cause}"}
    return tuple(each for each in FIGURES if "/" not in each.name or each.name in names)


@dataclass(frozen=True, slots=True)
class Steps:
    """A window in steps of equal length: the samples of all its GPUs by step, with each one's weight."""

    step_s: float
    moments: tuple[tuple[tuple[Sample, float], ...], ...]
    seconds: float  # how long the window is, as far as anything is known of it

    def terms(self, figure: Figure) -> list[Term]:
        """The figure step by step; steps that say nothing of it are left out."""
        found = []
        for moment in self.moments:
            top = bottom = 0.0
            for sample, share in moment:
                upper, lower = figure.upper(sample), figure.lower(sample)
                if upper is not None and lower is not None:
                    weight = share if figure.weighed else 1.0
                    top, bottom = top + weight * upper, bottom + weight * lower
            if bottom > 0:
                found.append((top, bottom))
        return found


def step_of(windows: Iterable[Sequence[Gpu]]) -> float:
    """The step that windows can be compared by: the longest sample that is usual in one, or more if they are long."""
    longest = 1.0
    for gpus in windows:
        lengths = sorted(sample.seconds for gpu in gpus for sample in gpu.samples)
        ends = [sample.end_unix for gpu in gpus for sample in gpu.samples]
        longest = max(longest, lengths[len(lengths) // 2], (max(ends) - min(ends)) / MOST_STEPS)
    return longest


def in_steps(gpus: Sequence[Gpu], step_s: float) -> Steps:
    """The samples of all GPUs, by the step in which their middle lies."""
    last = max(gpu.samples[-1].end_unix for gpu in gpus)
    moments: dict[int, list[tuple[Sample, float]]] = {}
    for gpu in gpus:
        for sample in gpu.samples:
            # From the end on, so that the interval in which sampling began is the one that is cut short.
            back = math.floor((last - sample.end_unix + sample.seconds / 2) / step_s)
            moments.setdefault(-back, []).append((sample, gpu.share_ratio))
    # Of the GPU that most is known of: a step may hold less than its length.
    seconds = max(sum(sample.seconds for sample in gpu.samples) for gpu in gpus)
    return Steps(step_s, tuple(tuple(moments[place]) for place in sorted(moments)), seconds)


def value(terms: Sequence[Term]) -> float | None:
    """The figure over the whole window, None where nothing is known of it."""
    bottom = sum(lower for _, lower in terms)
    return sum(upper for upper, _ in terms) / bottom if bottom > 0 else None
