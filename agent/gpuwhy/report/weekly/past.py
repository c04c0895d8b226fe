"""Against the past: since when something is worse, and whether other work ran or the same work ran worse."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

# Fewer days than these on either side are no level of their own.
LEAST_BEFORE, LEAST_AFTER = 4, 2
SHUFFLES = 499
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """Useful and measured GPU-seconds of one day or one part."""

    useful: float
    measured: float

    @property
    def efficiency(self) -> float:
        return self.useful / self.measured if self.measured else 0.0


def worse_since(days: Sequence[tuple[date, Measured]]) -> date | None:
    """The day from which efficiency is lower, None where no day stands out.

    The days are split in two where that explains most of the squared differences from the mean, weighed by
    measured time; the split counts if at most one in twenty shuffles of the same days has one as good. Days
    without measured time are left out.
    """
    known = [(day, each) for day, each in days if each.measured > 0]
    values = [(each.efficiency, each.measured) for _, each in known]
    if len(values) < LEAST_BEFORE + LEAST_AFTER:
        return None
    found, at = _best_drop(values)
    if found <= 0:
        return None
    shuffled = list(values)
    chance = random.Random(0)  # noqa: S311  the same report from the same history
    as_good = 1
    for _ in range(SHUFFLES):
        chance.shuffle(shuffled)
        as_good += _best_drop(shuffled)[0] >= found
    return known[at][0] if as_good / (SHUFFLES + 1) <= SIGNIFICANT else None


def _best_drop(values: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """How much the best split into higher, then lower explains, and where the second part begins."""
    weights = list(accumulate(weight for _, weight in values))
    sums = list(accumulate(value * weight for value, weight in values))
    best, at = 0.0, 0
    for split in range(LEAST_BEFORE, len(values) - LEAST_AFTER + 1):
        first, second = weights[split - 1], weights[-1] - weights[split - 1]
        drop = sums[split - 1] / first - (sums[-1] - sums[split - 1]) / second
        explained = drop * drop * first * second
        if drop > 0 and explained > best:
            best, at = explained, split
    return best, at


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of efficiency in two parts that add up to it.

    ``mix`` is what came from other shares of the measured time, ``rate`` from other efficiencies of the same
    parts; both as differences of ratios.
    """

    mix: float
    rate: float

    @property
    def change(self) -> float:
        return self.mix + self.rate


def shifts(now: Mapping[Name, Measured], before: Mapping[Name, Measured]) -> dict[Name, Shift]:
    """The shift of each part; their sums are those of the whole. Empty where one side has nothing measured.

    With shares w and efficiencies e, mix is (w' - w) times (mean of e and e' less mean of both wholes), and
    rate is (e' - e) times the mean of w and w'. A part that is on one side only has no change of efficiency.
    """
    totals = [
        Measured(sum(each.useful for each in side.values()), sum(each.measured for each in side.values()))
        for side in (now, before)
    ]
    if not all(total.measured > 0 for total in totals):
        return {}
    middle = (totals[0].efficiency + totals[1].efficiency) / 2
    nothing = Measured(0.0, 0.0)
    found = {}
    for name in {**now, **before}:
        new, old = now.get(name, nothing), before.get(name, nothing)
        if not new.measured and not old.measured:
            continue
        new_share, old_share = new.measured / totals[0].measured, old.measured / totals[1].measured
        new_rate = new.efficiency if new.measured else old.efficiency
        old_rate = old.efficiency if old.measured else new.efficiency
        found[name] = Shift(
            mix=(new_share - old_share) * ((new_rate + old_rate) / 2 - middle),
            rate=(new_rate - old_rate) * (new_share + old_share) / 2,
        )
    return found
