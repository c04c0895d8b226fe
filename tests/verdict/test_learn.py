"""What a GPU teaches about itself, and what it cannot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.verdict.cards import CARDS, find
from gpuwhy.verdict.engine import judge
from gpuwhy.verdict.learn import BOUNDS, LESSONS, Learner

from .build import HOT_HOST, NO_WORK, QUIET_HOST, h200, interval

CARD = find("NVIDIA H200")
KEY = h200().key
FULL = {
    **NO_WORK, **HOT_HOST, "graphics": 0.98, "sm": 0.94, "tensor": 0.91, "dram": 0.17,
    "power_watts": 690.0, "sm_clock_hertz": 1.44e9, "memory_clock_hertz": 3.2e9,
}  # fmt: skip


def taught(*intervals, times: int = LESSONS + 1) -> Learner:
    learner = Learner()
    for _ in range(times):
        judge(list(intervals), learner=learner)
    return learner


def test_nothing_is_used_before_enough_lessons() -> None:
    """One odd interval changes no number."""
    high = interval(**{**FULL, "tensor": 0.99}, reasons={"sw-power-cap": 1.0})
    assert taught(high, times=LESSONS - 1).card(KEY, CARD) == CARD
    assert taught(high, times=LESSONS).card(KEY, CARD).tensor_peak_ratio == pytest.approx(0.99)


def test_peaks_are_raised_and_never_lowered() -> None:
    """A kernel above the card's peak raises it; a worse one leaves it."""
    high = interval(**{**FULL, "tensor": 0.97}, reasons={"sw-power-cap": 1.0})
    assert taught(high).card(KEY, CARD).tensor_peak_ratio == pytest.approx(0.97)
    low = interval(**{**FULL, "tensor": 0.6}, reasons={"sw-power-cap": 1.0})
    assert taught(low).card(KEY, CARD).tensor_peak_ratio == CARD.tensor_peak_ratio


def test_context_power_is_learnt_from_a_parked_gpu() -> None:
    """A held GPU at full clock shows what a context draws; one that sleeps at a low clock does not."""
    parked = {**NO_WORK, **QUIET_HOST, "graphics": 0.0, "sm": 0.0, "power_watts": 150.0}
    awake = interval(**parked, sm_clock_hertz=1.98e9, reasons={})
    assert taught(awake).card(KEY, CARD).context_ratio == pytest.approx(150 / 700)
    assert taught(interval(**parked, sm_clock_hertz=0.3e9, reasons={})).card(KEY, CARD) == CARD


def test_full_load_clock_is_learnt_from_a_capped_gemm() -> None:
    """A better card's clock at full load is taken over."""
    good = interval(**{**FULL, "sm_clock_hertz": 1.6e9}, reasons={"sw-power-cap": 1.0})
    assert taught(good).card(KEY, CARD).full_load_clock_ratio == pytest.approx(1.6 / 1.98)


@pytest.mark.parametrize("reason", ["sw-thermal", "hw-power-brake", "hw-thermal", "hw-slowdown"])
def test_throttling_does_not_become_normal(reason: str) -> None:
    """However long a card is throttled, it stays throttled."""
    slow = interval(**{**FULL, "sm_clock_hertz": 0.8e9}, reasons={reason: 1.0, "sw-power-cap": 1.0})
    learner = taught(slow, times=100)
    assert learner.card(KEY, CARD).full_load_clock_ratio == CARD.full_load_clock_ratio
    assert judge([slow], learner=learner)[0].verdict == "throttled"


def test_lowered_limit_does_not_become_normal() -> None:
    """A card under a lowered power limit does not learn that limit's clock."""
    capped = interval(
        **{**FULL, "sm_clock_hertz": 0.9e9, "power_watts": 349.0, "power_limit_watts": 350.0},
        reasons={"sw-power-cap": 1.0},
    )
    learner = taught(capped, times=100)
    assert judge([capped], learner=learner)[0].key == ("throttled", "power-cap")


def test_gpus_learn_apart() -> None:
    """What one GPU teaches is not believed of another."""
    learner = taught(interval(**{**FULL, "tensor": 0.97}, reasons={"sw-power-cap": 1.0}))
    assert learner.card(("GPU-other", ""), CARD) == CARD


def test_what_was_learnt_can_be_taken_out_and_given_back() -> None:
    """Another learner then knows the same; where it has learnt more itself, that stays."""
    learner = taught(interval(**{**FULL, "tensor": 0.97}, reasons={"sw-power-cap": 1.0}))
    lessons = learner.lessons()
    assert lessons[(*KEY, "tensor_peak_ratio")] == (pytest.approx(0.97), LESSONS + 1)
    other = Learner()
    other.restore(lessons)
    assert other.card(KEY, CARD) == learner.card(KEY, CARD)
    other.restore({(*KEY, "tensor_peak_ratio"): (0.99, LESSONS)})
    assert other.lessons() == lessons
    other.restore({(*KEY, "tensor_peak_ratio"): (0.99, LESSONS + 2)})
    assert other.card(KEY, CARD).tensor_peak_ratio == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_peak_ratio", math.nan),
        ("tensor_peak_ratio", math.inf),
        ("tensor_peak_ratio", 1.3),
        ("tensor_peak_ratio", 0.1),
        ("context_ratio", 0.0),
        ("full_load_clock_ratio", 0.2),
        ("receive_floor_bytes_per_second", 1e12),
        ("receive_floor_bytes_per_second", -1.0),
        ("no_such_number", 0.5),
        ("known", 1.0),
    ],
)
def test_what_no_card_could_teach_is_not_taken_back(name: str, value: float) -> None:
    """A file may hold anything; a number out of every card's bounds does not get in, nor one of no lessons."""
    learner = Learner()
    learner.restore({(*KEY, name): (value, 100), (*KEY, "dram_peak_ratio"): (0.95, 0)})
    assert learner.lessons() == {}


@given(st.sampled_from(CARDS), st.dictionaries(st.sampled_from(sorted(BOUNDS)), st.floats(0, 1e9)))
def test_learnt_numbers_stay_within_bounds(card, numbers) -> None:
    """Whatever was taught, a number stays within its bounds of the card's own, and a ratio within 1."""
    learner = Learner()
    learner._learnt[KEY] = {name: (value, LESSONS) for name, value in numbers.items()}
    learnt = learner.card(KEY, card)
    for name, bound in BOUNDS.items():
        prior, value = getattr(card, name), getattr(learnt, name)
        assert bound.least * prior <= value <= bound.most * prior or value == prior
        if name.endswith("_ratio"):
            assert value <= 1.0
    assert replace(learnt, **{name: getattr(card, name) for name in BOUNDS}) == card
