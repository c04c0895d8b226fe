"""What each GPU teaches about itself: its own numbers, within bounds of its card's.

A card cannot teach itself that being throttled is normal: only undisturbed intervals count, peaks
are only ever raised, and the clock at full load may fall by a twentieth of the card's, no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from gpuwhy.interval import Interval
from gpuwhy.verdict.cards import CARDS, Card
from gpuwhy.verdict.types import Verdict
from gpuwhy.verdict.vocabulary import HEALTHY, IDLE, MEMORY_BOUND

LESSONS = 6  # intervals that must have taught a number before it is used
WEIGHT = 0.1  # of the newest interval in a mean
COVERAGE = 0.9
FULL_LOAD = 0.8  # of the pipe's peak: below it, a clock says nothing about a full load
CAPPED = 0.9
MOST_KEPT = 10_000  # numbers that are taken from a file

# By (uuid, mig, number): what was learnt, and from how many intervals.
Lessons: TypeAlias = Mapping[tuple[str, str, str], tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a learnt number may lie from the card's, as factors of it, and its highest value."""

    least: float
    most: float
    top: float = float("inf")


BOUNDS: Mapping[str, Bound] = {
    "dram_peak_ratio": Bound(1.0, 1.2, 1.0),
    "tensor_peak_ratio": Bound(1.0, 1.2, 1.0),
    "fp64_peak_ratio": Bound(1.0, 1.3, 1.0),
    "fp32_peak_ratio": Bound(1.0, 1.3, 1.0),
    "fp16_peak_ratio": Bound(1.0, 1.3, 1.0),
    "full_load_clock_ratio": Bound(0.95, 1.4, 1.0),
    "context_ratio": Bound(0.5, 1.6, 0.4),
    "receive_floor_bytes_per_second": Bound(0.0, 4.0),
}


class Learner:
    """Learns by (uuid, mig), in memory; what it learnt can be taken out and given back."""

    def __init__(self) -> None:
        self._learnt: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}

    def card(self, key: tuple[str, str], card: Card) -> Card:
        """``card`` with what its GPU has taught so far."""
        learnt = self._learnt.get(key)
        if not learnt:
            return card
        numbers = {
            name: _bounded(name, value, getattr(card, name))
            for name, (value, lessons) in learnt.items()
            if lessons >= LESSONS
        }
        return replace(card, **numbers) if numbers else card  # type: ignore[arg-type]

    def learn(self, interval: Interval, verdict: Verdict, card: Card) -> None:
        """Takes what an undisturbed interval shows; ``card`` is the GPU's row without what was learnt."""
        if interval.coverage < COVERAGE or verdict.flags or interval.gpu.split:
            return
        if verdict.verdict == IDLE and verdict.cause in {"held", "free"}:
            self._learn_idle(interval, verdict, card)
        elif verdict.verdict == MEMORY_BOUND:
            self._raise(interval, "dram", card)
        elif verdict.verdict == HEALTHY:
            for pipe in ("tensor", "fp64", "fp32", "fp16"):
                self._raise(interval, pipe, card)
            self._learn_clock(interval, card)

    def lessons(self) -> Lessons:
        """All that was learnt so far."""
        return {
            (*key, name): lesson for key, learnt in self._learnt.items() for name, lesson in learnt.items()
        }

    def restore(self, lessons: Lessons) -> None:
        """Takes back what was learnt before, where it knows less by now.

        A number that no card could have taught is left out; the others are bounded when they are used.
        """
        for (uuid, mig, name), (value, count) in list(lessons.items())[:MOST_KEPT]:
            if name in BOUNDS and _possible(name, value) and count > 0:
                learnt = self._learnt.setdefault((uuid, mig), {})
                if count > learnt.get(name, (0.0, 0))[1]:
                    learnt[name] = (value, count)

    def _learn_idle(self, interval: Interval, verdict: Verdict, card: Card) -> None:
        power, default = interval.mean("power_watts"), interval.gpu.default_power_limit_watts
        clock, top = interval.mean("sm_clock_hertz"), interval.gpu.sm_clock_max_hertz
        # Without a high clock the context sleeps too, and draws what nobody will see again under load.
        if verdict.cause == "held" and power and default and clock and top and clock >= 0.9 * top:
            self._average(interval, "context_ratio", power / default)
        received = interval.mean("pcie_receive_bytes_per_second")
        if received is not None and received <= 4 * card.receive_floor_bytes_per_second:
            self._average(interval, "receive_floor_bytes_per_second", received)

    def _learn_clock(self, interval: Interval, card: Card) -> None:
        reasons = interval.reasons or {}
        tensor, clock = interval.mean("tensor_active_ratio"), interval.mean("sm_clock_hertz")
        limit, default = interval.mean("power_limit_watts"), interval.gpu.default_power_limit_watts
        top = interval.gpu.sm_clock_max_hertz
        alone = {name for name, share in reasons.items() if share > 0} <= {"sw-power-cap"}
        if (
            tensor is not None
            and tensor >= FULL_LOAD * card.tensor_peak_ratio
            and reasons.get("sw-power-cap", 0.0) >= CAPPED
            and alone
            and clock and top and limit and default
            and limit >= 0.99 * default
        ):  # fmt: skip
            self._average(interval, "full_load_clock_ratio", clock / top)

    def _raise(self, interval: Interval, unit: str, card: Card) -> None:
        value = interval.mean(f"{unit}_active_ratio")
        if value is not None and value > getattr(card, f"{unit}_peak_ratio"):
            self._average(interval, f"{unit}_peak_ratio", value)

    def _average(self, interval: Interval, name: str, value: float) -> None:
        learnt = self._learnt.setdefault(interval.gpu.key, {})
        before, lessons = learnt.get(name, (value, 0))
        learnt[name] = (before + WEIGHT * (value - before), lessons + 1)


def _bounded(name: str, value: float, prior: float) -> float:
    bound = BOUNDS[name]
    return min(max(value, bound.least * prior), bound.most * prior, max(bound.top, prior))


def _possible(name: str, value: float) -> bool:
    """Whether it lies within the bounds of any card."""
    priors = [getattr(card, name) for card in CARDS]
    return math.isfinite(value) and _bounded(name, value, min(priors)) <= value <= _bounded(
        name, value, max(priors)
    )
