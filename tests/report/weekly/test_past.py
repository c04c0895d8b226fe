"""Since when, and mix against rate."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.report.weekly.past import Measured, Shift, shifts, worse_since

FIRST = date(2026, 10, 26)


def days(efficiencies: list[float], noise: float = 0.0, seed: int = 1) -> list[tuple[date, Measured]]:
    chance = random.Random(seed)
    return [
        (FIRST + timedelta(days=number), Measured(100.0 * (each + chance.gauss(0, noise)), 100.0))
        for number, each in enumerate(efficiencies)
    ]


@pytest.mark.parametrize("at", [5, 14, 28, 33])
def test_a_drop_is_dated(at: int) -> None:
    """The first worse day is found through noise, also near either end."""
    assert worse_since(days([0.6] * at + [0.4] * (35 - at), noise=0.02)) == FIRST + timedelta(days=at)


def test_what_is_no_drop() -> None:
    """Better is not worse, too few days are too few, and days of one value have no change."""
    assert worse_since(days([0.4] * 20 + [0.6] * 15)) is None
    assert worse_since(days([0.6, 0.6, 0.6, 0.4, 0.4])) is None
    assert worse_since(days([0.5] * 35)) is None
    assert worse_since([]) is None


def test_days_without_measured_time_are_no_days() -> None:
    """A weekend that nobody measured is neither better nor worse."""
    known = days([0.6] * 14 + [0.4] * 14)
    known[5:7] = [(day, Measured(0.0, 0.0)) for day, _ in known[5:7]]
    assert worse_since(known) == FIRST + timedelta(days=14)


def test_noise_is_seldom_called_a_change() -> None:
    """Of histories without a change about one in twenty is dated."""
    found = [worse_since(days([0.5] * 35, noise=0.05, seed=seed)) for seed in range(100)]
    assert sum(each is not None for each in found) <= 10


def test_mix_and_rate_by_hand() -> None:
    """Halves of 80 % and 20 % that become a quarter and three quarters, while the second rises to 30 %."""
    before = {"a": Measured(40.0, 50.0), "b": Measured(10.0, 50.0)}
    now = {"a": Measured(20.0, 25.0), "b": Measured(22.5, 75.0)}
    found = shifts(now, before)
    # From 0.5 to 0.425; means 0.8 and 0.25 less the mean of both wholes 0.4625.
    assert found["a"].mix == pytest.approx(-0.25 * (0.8 - 0.4625))
    assert found["a"].rate == 0
    assert found["b"].mix == pytest.approx(0.25 * (0.25 - 0.4625))
    assert found["b"].rate == pytest.approx(0.1 * 0.625)
    assert sum(each.change for each in found.values()) == pytest.approx(0.425 - 0.5)


def test_a_part_of_one_side_is_mix_alone() -> None:
    """What came or went cannot have become worse."""
    found = shifts({"new": Measured(1.0, 10.0)}, {"old": Measured(9.0, 10.0)})
    assert all(each.rate == 0 for each in found.values())
    assert sum(each.change for each in found.values()) == pytest.approx(0.1 - 0.9)


def test_one_side_without_measured_time_explains_nothing() -> None:
    """There is no efficiency to compare with."""
    assert shifts({"a": Measured(1.0, 10.0)}, {}) == {}
    assert shifts({}, {"a": Measured(0.0, 0.0)}) == {}


PARTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.floats(0, 1), st.floats(0, 1e6)).map(lambda pair: Measured(pair[0] * pair[1], pair[1])),
)


@given(PARTS, PARTS)
def test_mix_and_rate_add_up(now: dict[str, Measured], before: dict[str, Measured]) -> None:
    """Whatever the parts, mix + rate is the change of the whole."""
    found = shifts(now, before)
    if found:
        whole = [
            sum(each.useful for each in side.values()) / sum(each.measured for each in side.values())
            for side in (now, before)
        ]
        assert sum(each.change for each in found.values()) == pytest.approx(whole[0] - whole[1], abs=1e-6)
        assert all(isinstance(each, Shift) for each in found.values())
