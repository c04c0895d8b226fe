"""The test: its tables, what it promises of any numbers, and how often it alarms and finds on known loads."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwhy.report.baseline import noise
from gpuwhy.report.baseline.compare import CANNOT_TELL, NO_REGRESSION, REGRESSION, compare

from . import made


@pytest.mark.parametrize(
    ("t", "freedom", "chance"),
    [
        (12.7062, 1, 0.05),
        (63.6567, 1, 0.01),
        (2.2281, 10, 0.05),
        (3.1693, 10, 0.01),
        (2.0244, 38, 0.05),
        (1.95996, 1e7, 0.05),
        (0.0, 5, 1.0),
        (4.3027, 2, 0.05),
    ],
)
def test_chance_is_that_of_the_tables(t: float, freedom: float, chance: float) -> None:
    """Student's t as printed in any table, either way."""
    assert noise.chance(t, freedom) == pytest.approx(chance, rel=1e-3)
    assert noise.chance(-t, freedom) == noise.chance(t, freedom)


def test_holm() -> None:
    """The smallest counts for all, the next for one less, and none is smaller than the one before."""
    assert noise.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert noise.holm([0.5, 0.9]) == [1.0, 1.0]
    assert noise.holm([]) == []


def test_the_interval_is_that_of_a_t_test() -> None:
    """Values that know nothing of each other: the textbook's Welch interval (R: t.test, conf.level 0.99)."""
    before = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    after = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.0, 23.9]
    found = noise.of_values(before, after)
    assert found.p == pytest.approx(0.00838, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    mean = sum(after) / 15 - sum(before) / 15
    assert (found.low + found.high) / 2 == pytest.approx(mean)
    assert 0 < found.low < found.high


terms = st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 10)), min_size=noise.NEED, max_size=60)


@settings(deadline=None)
@given(terms, terms)
@example([(0.0, 1.0)] * noise.NEED, [*[(0.0, 1.0)] * (noise.NEED - 1), (1e-93, 1.0)])
def test_any_terms(before: list[noise.Term], after: list[noise.Term]) -> None:
    """Whatever the numbers: chances are chances, the interval holds the difference, and sides can be swapped."""
    found, turned = noise.of_terms(before, after), noise.of_terms(after, before)
    assert found.problem == turned.problem
    if found.problem:
        assert found.p is None
        assert found.low is None
        return
    assert found.p is not None
    assert found.low is not None
    assert found.high is not None
    assert turned.high is not None
    assert found.seen is not None
    assert 0 <= found.p <= 1
    step = sum(a for a, _ in after) / sum(b for _, b in after) - sum(a for a, _ in before) / sum(
        b for _, b in before
    )
    assert found.low - 1e-9 <= step <= found.high + 1e-9
    assert found.low == pytest.approx(-turned.high, abs=1e-9)
    assert found.seen >= (found.high - found.low) / 2 - 1e-9


@settings(deadline=None)
@given(terms, st.floats(0.01, 100))
def test_units_do_not_matter(before: list[noise.Term], scale: float) -> None:
    """In other units the same chance."""
    after = [(top + 0.1 * at, bottom) for at, (top, bottom) in enumerate(before)]
    found = noise.of_terms(before, after)
    scaled = noise.of_terms(*([(top * scale, bottom) for top, bottom in each] for each in (before, after)))
    assert found.problem == scaled.problem
    if found.p is not None:
        assert scaled.p == pytest.approx(found.p, rel=1e-6, abs=1e-12)


def test_few_samples_cannot_tell() -> None:
    """Under a dozen samples nothing is said."""
    few = [(0.5, 1.0)] * (noise.NEED - 1)
    assert "12 samples" in noise.of_terms(few, few).problem
    assert noise.of_terms([*few, (0.5, 1.0)], [*few, (0.5, 1.0)]).p == 1.0


def test_steps_without_a_lower_sum_are_left_out() -> None:
    """A moment in which nothing was measured says nothing."""
    chance = random.Random(1)
    known = [(chance.random(), 1.0) for _ in range(60)]
    gaps = [each for term in known for each in (term, (0.0, 0.0))]
    assert noise.of_terms(known, known) == noise.of_terms(gaps, gaps)


def test_slow_loads_cannot_be_told() -> None:
    """A wave as long as the window has no noise that could be estimated."""
    wave = [(1 + math.sin(2 * math.pi * at / 180), 1.0) for at in range(180)]
    other = [(1 + math.cos(2 * math.pi * at / 180), 1.0) for at in range(180)]
    assert "too slowly" in noise.of_terms(wave, other).problem


def test_correlation_widens_the_interval() -> None:
    """The same values in another order: those that hang together say less."""
    chance = random.Random(5)
    runs = [each for each in [chance.gauss(0, 1) for _ in range(60)] for _ in range(8)]
    mixed = runs[:]
    chance.shuffle(mixed)
    hanging = noise.of_terms([(each, 1.0) for each in runs], [(each, 1.0) for each in reversed(runs)])
    free = noise.of_terms([(each, 1.0) for each in mixed], [(each, 1.0) for each in reversed(mixed)])
    assert hanging.high is not None
    assert free.high is not None
    assert hanging.high > 2 * free.high
    assert hanging.block is not None
    assert hanging.block >= 24


def test_neighbouring_blocks_that_are_alike_widen_it() -> None:
    """By (1 + r) / (1 - r), r being their correlation plus its bias; never narrower than without."""
    alike = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    turns = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    correlation = 3 / 6 + 1 / 6
    assert noise._widening([alike, alike]) == pytest.approx((1 + correlation) / (1 - correlation))
    assert noise._widening([turns, turns]) == 1.0


def test_the_widening_is_in_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wandering load has a wider interval than its blocks alone would give."""
    chance = random.Random(2)
    windows = [[(part, 1.0) for part in made.wandering(chance, 360, 5.0)] for _ in range(2)]
    whole = noise.of_terms(*windows)
    monkeypatch.setattr(noise, "_widening", lambda _: 1.0)
    narrow = noise.of_terms(*windows)
    assert whole.high is not None
    assert narrow.high is not None
    assert whole.low is not None
    assert narrow.low is not None
    assert whole.high - whole.low > narrow.high - narrow.low


def test_a_common_trend_is_no_noise() -> None:
    """Two windows that decline alike differ by little; the decline does not hide a loss."""
    chance = random.Random(3)
    first, second = (
        [(0.6 * loss * (1 - 0.2 * at / 180) + chance.gauss(0, 0.01), 1.0) for at in range(180)]
        for loss in (1.0, 0.95)
    )
    found = noise.of_terms(first, second)
    assert found.high is not None
    assert found.high < 0


# Windows at which bench/baseline.py finds nine of ten losses of 5 %, in minutes.
KINDS = {
    "steady": 5,
    "noisy": 15,
    "checkpoints": 15,
    "wandering": 60,
    "drifting": 5,
    "train_gpt": 5,
    "train_resnet": 5,
    "ddp_straggler": 15,
    "llama_prefill": 5,
    "quota": 15,
}
PAIRS = 20  # of each kind: 200 in all


def pair(kind: str, number: int, minutes: float, loss: float) -> str:
    chance = random.Random(f"{kind} {number}")
    step_s = max(5.0, minutes / 12)
    windows = []
    for part in (0.0, loss):
        if kind in made.LOADS:
            window = made.built(made.LOADS[kind], chance, minutes * 60, loss=part, step_s=step_s)
        else:
            window = made.recorded(kind, chance, minutes * 60, loss=part, step_s=step_s)
        windows.append(made.baseline(window))
    return compare(*windows).outcome


@pytest.mark.parametrize("kind", KINDS)
def test_identical_loads_seldom_alarm(kind: str) -> None:
    """Of 20 pairs of each kind, 200 in all, one at most (5 %) is called a regression; nearly all are told."""
    outcomes = [pair(kind, number, 15, 0.0) for number in range(PAIRS)]
    assert outcomes.count(REGRESSION) <= 1
    assert outcomes.count(CANNOT_TELL) <= 5
    assert len(KINDS) * PAIRS == 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_5_percent_is_found(kind: str) -> None:
    """Nine of ten, at the window that this kind of load needs."""
    outcomes = [pair(kind, number, KINDS[kind], 0.05) for number in range(PAIRS)]
    assert outcomes.count(REGRESSION) >= 0.9 * PAIRS


def test_noise_that_hides_too_much_is_said() -> None:
    """Bursts in a short window: it cannot tell, rather than say that nothing moved."""
    outcomes = {pair("bursty", number, 5, 0.0) for number in range(10)}
    assert CANNOT_TELL in outcomes
    assert REGRESSION not in outcomes
    assert NO_REGRESSION not in outcomes
