"""A test of one reading: outcome, margin and evidence."""

from __future__ import annotations

import pytest

from gpuwhy.verdict import Evidence
from gpuwhy.verdict.check import MISSING, Limit, at_least, below, evidence, margin, shown

LIMIT = Limit(0.5, "for this test")


@pytest.mark.parametrize(
    ("value", "passed", "sure"),
    [
        (0.5, True, 0.5),
        (0.55, True, 0.75),
        (0.6, True, 1.0),
        (9.0, True, 1.0),
        (0.4999, False, 0.0),
        (0.0, False, 0.0),
    ],
)
def test_at_least(value: float, passed: bool, sure: float) -> None:
    """At the limit it passes half sure, a fifth beyond fully; below it fails."""
    check = at_least("power_watts", value, LIMIT)
    assert bool(check) == passed
    assert check.margin == pytest.approx(sure)


@pytest.mark.parametrize(
    ("value", "passed", "sure"),
    [(0.5, False, 0.0), (0.45, True, 0.75), (0.4, True, 1.0), (0.0, True, 1.0), (0.5001, False, 0.0)],
)
def test_below(value: float, passed: bool, sure: float) -> None:
    """The limit itself is not below it."""
    check = below("power_watts", value, LIMIT)
    assert bool(check) == passed
    assert check.margin == pytest.approx(sure)


def test_what_was_not_read_passes_nothing() -> None:
    """A missing value or a missing signal is neither above nor below."""
    for test in (at_least, below):
        assert test("power_watts", None, LIMIT) is MISSING
        assert test(None, 0.5, LIMIT) is MISSING
    assert not MISSING


def test_zero_is_a_value() -> None:
    """0 was read; it is below every limit above 0, and a limit of 0 is met by it."""
    assert below("power_watts", 0.0, LIMIT)
    assert at_least("power_watts", 0.0, 0.0)
    assert not below("power_watts", 0.0, 0.0)


def test_evidence_is_signal_value_and_test() -> None:
    """What passed says by what reading against which limit; what failed is no evidence."""
    passed, failed = at_least("power_watts", 0.7, LIMIT), below("sm_clock_hertz", 0.7, LIMIT)
    assert evidence(passed, failed, MISSING) == (Evidence("power_watts", 0.7, ">= 0.5"),)


def test_shown_keeps_the_outcome() -> None:
    """Evidence in another unit changes neither outcome nor margin; without any there is none to show."""
    watts = Evidence("power_watts", 350.0, ">= 300")
    check = at_least("power_watts", 0.55, LIMIT)
    assert (shown(check, watts).passed, shown(check, watts).margin) == (check.passed, check.margin)
    assert evidence(shown(check, watts)) == (watts,)
    assert evidence(shown(check)) == ()
    assert not shown(MISSING, watts)


def test_the_margin_is_the_weakest() -> None:
    """Checks that failed or were not made do not count; none at all is no doubt."""
    near, far = at_least("a", 0.55, LIMIT), at_least("b", 9.0, LIMIT)
    assert margin(near, far, MISSING, below("c", 9.0, LIMIT)) == near.margin
    assert margin() == margin(MISSING) == 1.0
