"""The test: what one window may differ from another by chance, where neighbouring moments hang together.

A figure is a ratio of two sums over the window (useful over measured seconds, watts times seconds over seconds).
1. What each moment adds to the ratio beyond its share is a residual; a trend that both windows have in common
   (a warm-up, a leak) is taken out of them.
2. How long neighbouring residuals hang together is their correlation time: one step, plus two for each lag's
   autocorrelation, up to the first lag that is not beyond chance. A window that does not hold ``NEED`` of these
   times says too little of itself: it cannot be told.
3. Each window is cut into equal blocks, from 6 to 20 and each at least four correlation times long if six of
   those fit. The blocks' spread gives the error of the ratio, widened by what correlation is left between
   neighbouring blocks, with its bias at few blocks added.
4. Welch's t on the two ratios. The degrees of freedom are those of blocks that were independent.

How often that alarms for nothing, and what it finds, is measured by ``bench/baseline.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul

LEVEL = 0.01  # chance of an alarm for nothing, over all figures of a family together
POWER = 0.9  # with which a loss "would have been seen"
NEED = 12
CHANCE = 1.64  # standard errors that an autocorrelation of no meaning seldom exceeds
LEAST_BLOCKS, MOST_BLOCKS, BLOCK_TIMES = 6, 20, 4
MOST_CORRELATION = 0.8
LEAST_VALUES = 3  # of a figure that is measured from outside

Term = tuple[float, float]  # what one moment adds to the upper and the lower sum


@dataclass(frozen=True, slots=True)
class Difference:
    """After minus before, with its interval at ``1 - LEVEL`` for this figure alone.

    ``p`` is the chance of so large a difference between equal loads; ``seen`` the difference that would have been
    found with probability ``POWER``. ``block_s`` is in steps. All are None where ``problem`` says why it cannot
    be told.
    """

    low: float | None = None
    high: float | None = None
    p: float | None = None
    seen: float | None = None
    block: float | None = None
    problem: str = ""


def of_terms(before: Sequence[Term], after: Sequence[Term]) -> Difference:
    """The difference of two ratios of sums, each given moment by moment, at equal steps."""
    first, second = _residuals(before), _residuals(after)
    if min(len(first), len(second)) < NEED:
        return Difference(problem=f"it needs {NEED} samples, and has {min(len(first), len(second))}")
    _straighten(first, second)
    least = min(len(first), len(second))
    correlated = _correlation_time(first, second, least / NEED)
    if least < NEED * correlated:
        return Difference(problem="it changes too slowly for windows of this length")
    blocks = [_blocks(each, correlated) for each in (first, second)]
    widening = _widening(blocks)
    errors = []
    for each in blocks:
        count = len(each)
        variance = sum(map(mul, each, each)) / (count - 1) / count * widening
        errors.append((variance, max(2.0, count / widening - 1)))
    step = _ratio(after) - _ratio(before)
    return _welch(step, *errors, block=max(len(first) / len(blocks[0]), len(second) / len(blocks[1])))


def of_values(before: Sequence[float], after: Sequence[float]) -> Difference:
    """The difference of two means of values that know nothing of each other."""
    if min(len(before), len(after)) < LEAST_VALUES:
        return Difference(problem=f"it needs {LEAST_VALUES} values on both sides")
    means, errors = [], []
    for values in (before, after):
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        means.append(mean)
        errors.append((variance, len(values) - 1.0))
    return _welch(means[1] - means[0], *errors)


def holm(chances: Sequence[float]) -> list[float]:
    """The same chances, each as it counts beside the others (Holm's step-down correction)."""
    adjusted = [0.0] * len(chances)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[index]))
        adjusted[index] = highest
    return adjusted


def _ratio(terms: Sequence[Term]) -> float:
    return sum(top for top, _ in terms) / sum(bottom for _, bottom in terms)


def _residuals(terms: Sequence[Term]) -> list[float]:
    used = [(top, bottom) for top, bottom in terms if bottom > 0]
    if not used:
        return []
    ratio = _ratio(used)
    mean = sum(bottom for _, bottom in used) / len(used)
    return [(top - ratio * bottom) / mean for top, bottom in used]


def _straighten(first: list[float], second: list[float]) -> None:
    """Takes the trend that both have in common out of both."""
    upper = lower = 0.0
    for each in (first, second):
        middle = (len(each) - 1) / 2
        upper += sum((place - middle) * value for place, value in enumerate(each))
        lower += sum((place - middle) ** 2 for place in range(len(each)))
    slope = upper / lower
    for each in (first, second):
        middle = (len(each) - 1) / 2
        each[:] = [value - slope * (place - middle) for place, value in enumerate(each)]


def _correlation_time(first: list[float], second: list[float], enough: float) -> float:
    """In steps; what is more than ``enough`` is not looked at closer."""
    whole = sum(map(mul, first, first)) + sum(map(mul, second, second))
    if whole <= 0:
        return 1.0
    chance = CHANCE / math.sqrt(len(first) + len(second))
    time = 1.0
    for lag in range(1, min(len(first), len(second)) // 2):
        correlation = sum(sum(map(mul, each, each[lag:])) for each in (first, second)) / whole
        if correlation <= chance or time > enough:
            break
        time += 2 * correlation
    return time


def _blocks(residuals: list[float], correlated: float) -> list[float]:
    """Means of blocks of equal length, as nearly as whole steps allow."""
    length = len(residuals)
    count = max(LEAST_BLOCKS, min(MOST_BLOCKS, int(length / (BLOCK_TIMES * correlated))))
    edges = [number * length // count for number in range(count + 1)]
    return [sum(residuals[begin:end]) / (end - begin) for begin, end in pairwise(edges)]


def _widening(blocks: Sequence[Sequence[float]]) -> float:
    """By what correlation between neighbouring blocks makes the variance of their mean larger."""
    whole = sum(sum(map(mul, each, each)) for each in blocks)
    if whole <= 0:
        return 1.0
    correlation = sum(sum(map(mul, each, each[1:])) for each in blocks) / whole
    bias = len(blocks) / sum(map(len, blocks))
    correlation = min(MOST_CORRELATION, max(0.0, correlation + bias))
    return (1 + correlation) / (1 - correlation)


def _welch(
    step: float, before: tuple[float, float], after: tuple[float, float], *, block: float | None = None
) -> Difference:
    variance = before[0] + after[0]
    if variance <= 0:
        return Difference(step, step, 0.0 if step else 1.0, 0.0, block)
    # By shares of the variance, since the square of a small one is 0.
    freedom = 1 / ((before[0] / variance) ** 2 / before[1] + (after[0] / variance) ** 2 / after[1])
    error = math.sqrt(variance)
    half = _quantile(LEVEL, freedom) * error
    seen = half + _quantile(2 * (1 - POWER), freedom) * error
    return Difference(step - half, step + half, chance(step / error, freedom), seen, block)


def chance(t: float, freedom: float) -> float:
    """How likely Student's t is at least so far from 0, either way."""
    return _beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _quantile(level: float, freedom: float) -> float:
    """The t whose ``chance`` is the level."""
    low, high = 0.0, 1.0
    while chance(high, freedom) > level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, freedom) > level else (low, middle)
    return high


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if not 0 < x < 1:
        return max(0.0, min(1.0, x))
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(logarithm)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Its continued fraction, by Lentz's method; it needs some tens of steps."""
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            upper, lower = 1 + term / upper, 1 / (1 + term * lower)
            value *= upper * lower
        if abs(upper * lower - 1) < 1e-13:
            break
    return value
