"""What is shown as "now": quick to follow a change, slow to flicker."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.verdict import TimeSplit, Verdict
from gpuwhy.verdict.now import Now

from .build import h200

MAIN_CAUSE = {
    "healthy": "compute",
    "starving": "copy",
    "idle": "held",
    "throttled": "sw-thermal",
    "unknown": "mixed",
}


def judged(name: str, cause: str = "", *, index: int = 0, end_s: float = 5.0) -> Verdict:
    key = (name, cause or MAIN_CAUSE[name])
    return Verdict(
        gpu=h200(index),
        start_s=end_s - 5.0,
        end_s=end_s,
        unix_end_s=1e9 + end_s,
        verdict=key[0],
        cause=key[1],
        confidence=0.9,
        evidence=(),
        time=TimeSplit(observed=5.0, verdict={key: 5.0}),
    )


def shown(*names: str) -> list[str]:
    """What is shown after each of the verdicts ("healthy" or "throttled/hw-thermal")."""
    now = Now()
    return [now.update(judged(*name.split("/"))).verdict for name in names]


def test_the_first_interval_shows_at_once() -> None:
    """There is something to show from the first interval on."""
    assert shown("starving") == ["starving"]


def test_a_change_needs_two_that_agree() -> None:
    """One odd interval changes nothing, the second of its kind does."""
    assert shown("healthy", "starving", "healthy", "starving", "starving") == [
        "healthy",
        "healthy",
        "healthy",
        "healthy",
        "starving",
    ]


def test_two_that_disagree_with_each_other_change_nothing() -> None:
    """Intervals of a transition, each of another kind, are not shown."""
    assert shown("healthy", "unknown", "idle", "starving", "starving")[:4] == ["healthy"] * 4


@pytest.mark.parametrize("cause", ["hw-thermal", "power-brake"])
def test_hardware_trouble_shows_at_once(cause: str) -> None:
    """Heat and the power brake need no second interval, to leave them does."""
    assert shown("healthy", f"throttled/{cause}", "healthy", "healthy") == [
        "healthy",
        "throttled",
        "throttled",
        "healthy",
    ]


@pytest.mark.parametrize("cause", ["sw-thermal", "power-cap", "unreported", "clock-locked"])
def test_other_throttling_waits_for_the_second_interval(cause: str) -> None:
    """Only the hardware's own slowdowns are sure at first sight."""
    assert shown("healthy", f"throttled/{cause}")[-1] == "healthy"


def test_the_newest_interval_with_the_shown_name_is_shown() -> None:
    """Cause, confidence and evidence are never older than they need be, and never another verdict's."""
    now = Now()
    now.update(judged("starving", "copy", end_s=5))
    assert now.update(judged("starving", "io-wait", end_s=10)).cause == "io-wait"
    assert now.update(judged("healthy", end_s=15)).end_s == 10
    assert now.update(judged("starving", "copy", end_s=20)).end_s == 20


def test_gpus_are_apart() -> None:
    """One GPU's change is not another's agreement."""
    now = Now()
    for index in (0, 1):
        now.update(judged("healthy", index=index))
    assert now.update(judged("starving", index=0)).verdict == "healthy"
    assert now.update(judged("starving", index=1)).verdict == "healthy"
    assert now.update(judged("starving", index=0)).verdict == "starving"


def test_a_forgotten_gpu_starts_anew() -> None:
    """A GPU that went and came back shows its first interval at once."""
    now = Now()
    now.update(judged("healthy"))
    now.update(judged("starving"))
    now.forget(h200().key)
    now.forget(h200(7).key)
    assert now.update(judged("idle")).verdict == "idle"
    assert now.update(judged("starving")).verdict == "idle"


@given(
    runs=st.lists(st.integers(2, 6), min_size=1, max_size=6),
    odd=st.sampled_from(["unknown", "idle", "throttled"]),
    at=st.sets(st.integers(0, 40), max_size=3),
)
def test_a_real_change_is_followed_once(runs: list[int], odd: str, at: set[int]) -> None:
    """A load that alternates, with single odd intervals: what is shown changes once for each real change."""
    loads = [
        name for place, length in enumerate(runs) for name in [("healthy", "starving")[place % 2]] * length
    ]
    # Odd ones only where their neighbours are not odd as well, as in the middle of a transition.
    apart = [place for place in sorted(at) if place < len(loads) and place - 1 not in at]
    seen = [odd if place in apart else name for place, name in enumerate(loads)]
    now = Now()
    display = [now.update(judged(name)).verdict for name in seen]
    changes = sum(one != other for one, other in itertools.pairwise(display))
    real = len(runs) - 1
    # The very first interval may be the odd one: then one more change leads away from it.
    assert changes <= real + (0 in apart)
    assert set(display) <= {"healthy", "starving", *([odd] if 0 in apart else [])}
