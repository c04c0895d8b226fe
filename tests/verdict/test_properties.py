"""What holds for any readings whatever, and for recordings from which a signal was taken away."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwhy.interval import Interval
from gpuwhy.sample.signals import CLOCK_EVENT_REASONS, SIGNALS
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.case import Case
from gpuwhy.verdict.summary import summarise
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY, UNKNOWN

from . import recordings
from .build import facts, h200, interval

GPUS = (
    h200(),
    h200(mig="3", share_ratio=1 / 7),
    h200(limit=None, default=None, sm_clock=None, memory_clock=None),
    facts("Tesla T4", limit=70, default=70, sm_clock=1.59e9, pcie_generation=3, pcie_width=16),
    facts("NVIDIA GeForce RTX 4090", limit=300, default=450, sm_clock=3.105e9),
    facts("NVIDIA Something New"),
    facts(""),
)
# Values at which arithmetic goes wrong, beside likely ones.
RATIOS = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 5e-324, 1e-9, 0.002, 0.35, 0.6, 0.98, 1.0]))


def values(name: str) -> st.SearchStrategy[float]:
    """Any value that the sample stage lets pass for this signal."""
    signal = SIGNALS[name]
    if signal.maximum == 1.0:
        return RATIOS
    top = min(signal.maximum, 1e13)
    typical = [value for value in (0.0, 0.5, 1.0, 126.0, 700.0, 1e6, 1e9, 1.98e9) if value <= top]
    return st.one_of(st.floats(signal.minimum, top), st.sampled_from(typical))


READINGS = {name: values(name) for name in SIGNALS}
# Half of the time everything is there, or the rules beyond the first signals are hardly reached.
SIGNAL_VALUES = st.fixed_dictionaries({}, optional=READINGS) | st.fixed_dictionaries(READINGS)
REASONS = st.none() | st.dictionaries(st.sampled_from(CLOCK_EVENT_REASONS), st.floats(0, 1), max_size=3)


@st.composite
def any_interval(draw: st.DrawFn, index: int = 0) -> Interval:
    """Some signals with some values on some card; nothing says that they agree."""
    signals = draw(SIGNAL_VALUES)
    busy = draw(st.lists(RATIOS, min_size=1, max_size=3))
    return interval(
        replace(draw(st.sampled_from(GPUS)), index=index, uuid=f"GPU-{index}"),
        reasons=draw(REASONS),
        owners=draw(st.none() | st.sets(st.integers(1, 3), max_size=2)),
        family=draw(st.sets(st.sampled_from(["pid:1000", "pid:2000"]), max_size=1)),
        coverage=draw(st.sampled_from([0.0, 0.2, 0.6, 1.0])),
        samples=draw(st.integers(1, 20)),
        series={"graphics_active_ratio": tuple(busy)} if "graphics_active_ratio" in signals else None,
        **signals,
    )


@st.composite
def any_host(draw: st.DrawFn) -> list[Interval]:
    return [draw(any_interval(index)) for index in range(draw(st.integers(1, 3)))]


PROFILES = st.sampled_from(["unknown", "throughput", "latency"])
# Signals of evidence that stand for something computed, or for what is no signal.
COMPUTED = re.compile(
    r"coverage|processes|clock_event_ratio(:[a-z-]+)?|pcie_receive_bytes_per_(busy|cpu)_second"
    r"|busy of \d GPUs of the job|\w+ of GPU \d"
)


def check_verdict(one: Interval, judged: Verdict) -> None:
    """Fails unless the verdict keeps what every verdict promises."""
    assert judged.key in CAUSE_BY_KEY
    assert 0.0 <= judged.confidence <= 1.0
    assert judged.verdict == UNKNOWN or judged.confidence >= 0.35
    assert bool(judged.reason) == (judged.verdict == UNKNOWN)
    assert judged.speed_of_light is None or 0.0 <= judged.speed_of_light <= 1.0

    time = judged.time
    parts = [time.useful, time.headroom, time.free, *time.lost.values()]
    assert all(seconds >= 0.0 for seconds in [*parts, *time.verdict.values(), time.unattributed])
    assert sum(parts) + time.unattributed == pytest.approx(time.observed, abs=1e-6)
    assert sum(time.verdict.values()) == pytest.approx(time.observed, abs=1e-6)
    assert time.observed == pytest.approx(one.length_s)
    assert 0.0 <= time.measured <= time.observed + 1e-9
    assert time.useful + time.headroom <= time.measured + 1e-6
    assert {*time.verdict, *time.lost} <= CAUSE_BY_KEY.keys()
    # Slack of what is in order is headroom, and nobody loses a free GPU or an undecided one.
    assert not {"healthy", "memory-bound", "unknown"} & {name for name, _ in time.lost}
    assert ("idle", "free") not in time.lost
    if judged.verdict == UNKNOWN:
        assert time.lost == {}
        assert time.headroom == time.free == 0.0

    for item in judged.evidence:
        assert math.isfinite(item.value), item
        assert item.test
        if not COMPUTED.fullmatch(item.signal):
            assert item.value == one.mean(item.signal), item
    assert len({item.signal for item in judged.evidence}) == len(judged.evidence)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(host=any_host(), profile=PROFILES)
def test_any_readings_give_one_sound_verdict(host: list[Interval], profile: str) -> None:
    """Whatever was read: no exception, one headline of the vocabulary, honest evidence, time that adds up."""
    verdicts = judge(host, profile=profile)
    assert judge(host, profile=profile) == verdicts
    for one, judged in zip(host, verdicts, strict=True):
        check_verdict(one, judged)
        assert summarise([judged])["verdict"] == judged.verdict or one.coverage < 0.5


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(one=any_interval(), other=any_interval(1))
def test_a_stranger_changes_nothing(one: Interval, other: Interval) -> None:
    """A GPU of another job on the host is no evidence."""
    one = replace(one, family=frozenset({"pid:1"}), owners=None)
    other = replace(other, family=frozenset({"pid:2"}), owners=None)
    assert judge([one, other])[0] == judge([one])[0]


# --- a verdict survives the loss of any signal


NOT_SIGNALS = ("reasons", "owners", "family")  # what an interval holds beside signals


def without(one: Interval, names: Iterable[str]) -> Interval:
    """The interval as it had been without these being read."""
    lost = set(names)
    return replace(
        one,
        stats={name: stat for name, stat in one.stats.items() if name not in lost},
        reasons=None if "reasons" in lost else one.reasons,
        reason_samples=None if "reasons" in lost else one.reason_samples,
        owners=None if "owners" in lost else one.owners,
        family=frozenset() if "family" in lost else one.family,
    )


def is_confident_mistake(name: str, index: int, verdict: str, confidence: float) -> bool:
    return verdict not in {*recordings.labels(name)[index]["accept"], UNKNOWN} and confidence >= 0.5


def signals_of(closed: list[list[Interval]]) -> list[str]:
    return sorted({signal for host in closed for one in host for signal in one.stats} | set(NOT_SIGNALS))


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_verdict_survives_the_loss_of_any_signal(name: str) -> None:
    """Without any one signal a recording is judged right, less surely, or not at all: never wrong and confident."""
    closed = recordings.kept_intervals(name)
    wrong = []
    for signal in signals_of(closed):
        shortened = [[without(one, [signal]) for one in host] for host in closed]
        for index, verdicts in recordings.verdicts(shortened).items():
            gpu = summarise(verdicts)
            if is_confident_mistake(name, index, gpu["verdict"], gpu["confidence"]):
                wrong.append((signal, index, gpu["verdict"], gpu["cause"], gpu["confidence"]))
    assert wrong == []


def off_by(one: Interval, name: str, factor: float) -> Interval:
    """The interval with one signal read too high or too low, within what it can be."""
    stat = one.stats.get(name)
    if stat is None:
        return one
    wrong = tuple(min(value * factor, SIGNALS[name].maximum) for value in stat.values)
    return replace(one, stats={**one.stats, name: replace(stat, values=wrong)})


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_sure_verdict_stands_a_small_error(name: str) -> None:
    """Confidence means distance from the limits: 5 % more or less of any reading changes no verdict above 0.9."""
    flipped = []
    for host in recordings.kept_intervals(name):
        before = judge(host)
        # A power limit is a setting, exact to the watt, and a twentieth off the default one means something.
        for signal in set(signals_of([host])) - {*NOT_SIGNALS, "power_limit_watts"}:
            for factor in (0.95, 1.05):
                after = judge([off_by(one, signal, factor) for one in host])
                flipped += [
                    (signal, factor, was.key, now.key)
                    for was, now in zip(before, after, strict=True)
                    if was.confidence >= 0.9 and was.key != now.key
                ]
    assert flipped == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """``asked()`` is the set of signals that rules asked for since it was last called."""
    names: set[str] = set()
    mean = Case.mean

    def watched(case: Case, signal: str) -> float | None:
        names.add(signal)
        return mean(case, signal)

    monkeypatch.setattr(Case, "mean", watched)

    def since() -> set[str]:
        seen = set(names)
        names.clear()
        return seen

    return since


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_verdict_survives_the_loss_of_any_two_signals(name: str, asked: Callable[[], set[str]]) -> None:
    """The same for every pair, over one interval; a signal that no rule asks for changes nothing."""
    host = recordings.kept_intervals(name)[1]
    have = set(signals_of([host]))
    wrong = []

    def judge_without(*lost: str) -> set[str]:
        asked()
        wrong.extend(
            (lost, judged.gpu.index, *judged.key, judged.confidence)
            for judged in judge([without(one, lost) for one in host])
            if is_confident_mistake(name, judged.gpu.index, judged.verdict, judged.confidence)
        )
        return have & (asked() | set(NOT_SIGNALS))

    pairs = {
        frozenset({first, second})
        for first in judge_without()
        for second in judge_without(first)
        if first != second
    }
    for pair in pairs:
        judge_without(*sorted(pair))
    assert wrong == []
