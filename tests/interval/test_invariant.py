"""Over any span, time adds up: nothing is lost, counted twice or negative, up to the verdicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.interval import Interval
from gpuwhy.verdict import judge
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY

CLOSE = 1e-6

percent = st.one_of(st.none(), st.sampled_from([0, 100, 104, 300, math.nan, 0xFFFFFFFF]), st.floats(0, 100))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "gpu_util_pct": percent,
        "energy_mj": st.integers(0, 10**7),
        "power_mw": st.integers(0, 800_000),
        "sm_clock_mhz": st.integers(0, 1980),
        "mem_clock_mhz": st.sampled_from([3201, 1600]),
        "event_reasons": st.sampled_from([None, 0, 1, 4, 0x40, 0x48, 0x80, 0x200]),
        "hw_thermal_ns": st.integers(0, 3 * 10**9),
        "sw_power_cap_ns": st.integers(0, 3 * 10**9),
        **dict.fromkeys(
            (
                "graphics_util",
                "sm_util",
                "any_tensor_util",
                "dram_bw_util",
                "fp64_util",
                "fp32_util",
                "fp16_util",
                "integer_util",
            ),
            percent,
        ),
    },
)
GPUS = st.dictionaries(st.sampled_from("abc"), st.one_of(VALUES, VALUES, VALUES, st.none()), max_size=3)
SPANS = st.one_of(
    st.just(1000),
    st.just(250),
    st.integers(1, 3000),
    st.sampled_from([10_000, 47_123, 86_400_000]),
)
EVENTS = st.fixed_dictionaries(
    {
        "after_ms": SPANS,
        "gpus": GPUS,
        "owners": st.sampled_from([None, (), (7,)]),
        "kind": st.sampled_from(["", "", "", "", "", "", "restart", "back", "late", "wide", "advance"]),
    }
)


def fed(host, events: Iterable[dict[str, Any]]) -> float:
    """Feeds readings with gaps, restarts, clocks that begin anew, late and overlapping ones; seconds observed."""
    observed = 0.0
    fresh = True
    for event in events:
        after, kind = event["after_ms"] / 1000, event["kind"]
        span = after + 1.5 if kind == "wide" else after
        restart = kind in {"restart", "back"}
        if kind == "late" and not fresh:
            host.read(event["gpus"], after_s=-after / 2, span_s=1.0)
            host.now_s += after / 2
            continue
        if kind == "advance":
            host.advance(host.now_s + after)
        if kind == "back" and not fresh:
            host.now_s -= 3 * after + 2
            fresh = True
        before = host.now_s
        host.read(event["gpus"], after_s=after, span_s=span, restart=restart, owners=event["owners"])
        # A clock that begins anew knows of two periods before its first reading.
        observed += min(span, 2.0) if fresh else host.now_s - before
        fresh = False
    host.finish()
    return observed


def tiles(done: list[list[Interval]]) -> None:
    """All GPUs share their borders; intervals lie end to end, or begin anew further back."""
    for gpus in done:
        assert gpus
        assert len({each.gpu.key for each in gpus}) == len(gpus)
        assert len({(each.start_s, each.end_s, each.unix_end_s) for each in gpus}) == 1
        assert all(each.start_s < each.end_s for each in gpus)
        assert all(0 <= each.covered_s <= each.length_s and 0 <= each.coverage <= 1 for each in gpus)


@settings(deadline=None, max_examples=150)
@given(st.lists(EVENTS, max_size=25), st.booleans(), st.sampled_from([1.0, 5.0, 7.3]))
def test_intervals_tile_the_time_and_keep_what_was_fed(new_host, events, hold, interval_s) -> None:
    """Whatever comes in, and however it is cut, seconds, coverage, integrals and gains come out whole."""
    events = [{**event, "gpus": event["gpus"] or {"a": None}} for event in events]
    host = new_host(hold=hold, interval_s=interval_s)
    observed = fed(host, events)
    tiles(host.done)
    assert sum(gpus[0].length_s for gpus in host.done) == pytest.approx(observed, abs=CLOSE)
    if not any(event["kind"] == "back" for event in events):
        assert all(before[0].end_s == after[0].start_s for before, after in pairwise(host.done))

    covered: dict[Any, float] = defaultdict(float)
    integral: dict[Any, float] = defaultdict(float)
    gains: dict[Any, float] = defaultdict(float)
    lowest: dict[Any, float] = {}
    highest: dict[Any, float] = {}
    for sample in host.samples:
        for name, value in sample.values.items():
            key = (sample.gpu.key, name)
            covered[key] += sample.span_s
            integral[key] += value * sample.span_s
            lowest[key] = min(value, lowest.get(key, value))
            highest[key] = max(value, highest.get(key, value))
        for name, gain in sample.gains.items():
            gains[sample.gpu.key, name] += gain
    for gpus in host.done:
        for one in gpus:
            assert one.covered_s >= max((stat.covered_s for stat in one.stats.values()), default=0.0) - CLOSE
            for name, stat in one.stats.items():
                key = (one.gpu.key, name)
                covered[key] -= stat.covered_s
                integral[key] -= stat.integral
                slack = 1e-12 * max(1.0, highest[key])
                assert lowest[key] - slack <= stat.mean <= highest[key] + slack
                assert stat.p5 <= stat.p95
            for name, gain in one.gains.items():
                gains[one.gpu.key, name] -= gain
            for share in (one.reasons or {}).values():
                assert 0 <= share <= 1 + 1e-12
    # What reaches back into an interval that is closed is lost for it; nothing is counted twice.
    assert all(left > -CLOSE for left in covered.values())
    if all(event["kind"] != "wide" for event in events):
        assert all(abs(left) < CLOSE for left in covered.values())
        assert all(abs(left) < CLOSE * max(1.0, highest[key]) for key, left in integral.items())
    assert all(abs(left) < CLOSE for left in gains.values())


@settings(deadline=None, max_examples=150)
@given(st.lists(EVENTS, min_size=3, max_size=25), st.booleans())
def test_verdict_seconds_are_observed_seconds(new_host, events, hold) -> None:
    """The sum of verdict seconds is the observed time, and so is the sum of its parts, none of them negative."""
    host = new_host(hold=hold)
    fed(host, events)
    for gpus in host.done:
        for one, verdict in zip(gpus, judge(gpus), strict=True):
            time = verdict.time
            assert time.observed == pytest.approx(one.length_s)
            assert sum(time.verdict.values()) == pytest.approx(time.observed, abs=CLOSE)
            assert set(time.verdict) <= CAUSE_BY_KEY.keys()
            assert time.verdict.get(("unknown", "no-data"), 0.0) == pytest.approx(
                one.length_s - one.covered_s, abs=CLOSE
            )
            parts = [time.useful, time.headroom, time.free, *time.lost.values()]
            assert all(part >= 0 for part in [*parts, time.measured, *time.verdict.values()])
            # Without clamping: what is not attributed may not be negative either.
            unattributed = time.observed - sum(parts)
            assert unattributed >= -CLOSE
            assert sum(parts) + time.unattributed == pytest.approx(time.observed, abs=CLOSE)
            assert time.useful + time.headroom <= time.measured + CLOSE
            assert time.measured <= one.covered_s + CLOSE
            assert 0 <= verdict.confidence <= 1
