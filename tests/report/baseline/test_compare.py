"""What is compared with what, what is said of it, and how it ends."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timezone
from typing import Any

import msgspec
import pytest

from gpuwhy.report.baseline import compare as comparing
from gpuwhy.report.baseline import formats, noise
from gpuwhy.report.baseline.compare import (
    CANNOT_TELL,
    NO_REGRESSION,
    REGRESSION,
    Comparison,
    Moved,
    compare,
    matched,
)
from gpuwhy.report.baseline.figures import FIGURES
from gpuwhy.report.baseline.types import Baseline, BaselineError, Gpu, Sample
from gpuwhy.verdict.types import TimeSplit

from . import made

HOSTILE = ["a|b\nc", "\x1b[2Jx", "\u202egpj", "<img src=x>", "[x](javascript:1)", "=1+1", "`x`"]


def window(mean: float, *, seed: int = 1, count: int = 180, sd: float = 0.02, **changes: Any) -> Gpu:
    chance = random.Random(seed)
    return made.gpu([mean + chance.gauss(0, sd) for _ in range(count)], **changes)


def figure(found: Comparison, name: str) -> Moved:
    return next(each for each in found.figures if each.name == name)


def test_a_loss_is_a_regression() -> None:
    """What was lost is said, with how much, to which cause, and what else moved with it."""
    found = compare(made.baseline(window(0.7)), made.baseline(window(0.6, seed=2)))
    assert found.outcome == REGRESSION
    assert found.headline.startswith("Regression: efficiency fell by 14.")
    assert "points more lost to starving/copy" in found.headline
    efficiency = figure(found, "efficiency")
    assert efficiency.worse is True
    assert efficiency.beyond_noise is True
    assert efficiency.change == pytest.approx(-0.1, abs=0.01)
    assert figure(found, "lost/starving/copy").worse is True
    assert figure(found, "power_watts").beyond_noise is True
    assert figure(found, "power_watts").worse is None
    assert figure(found, "sm_clock_hertz").beyond_noise is False


def test_a_gain_is_none() -> None:
    """The other way round it is no regression, and the gain is said."""
    found = compare(made.baseline(window(0.6)), made.baseline(window(0.7, seed=2)))
    assert found.outcome == NO_REGRESSION
    assert "efficiency rose by 16." in found.headline


def test_equal_loads() -> None:
    """Nothing moved; it says what would have been seen."""
    found = compare(made.baseline(window(0.6)), made.baseline(window(0.6, seed=2)))
    assert found.outcome == NO_REGRESSION
    assert "a loss of 2." in found.headline
    assert not any(each.beyond_noise for each in found.figures)


@pytest.mark.parametrize(
    ("max_loss", "outcome"), [(0.0, REGRESSION), (0.02, REGRESSION), (0.05, NO_REGRESSION)]
)
def test_what_may_be_lost(max_loss: float, outcome: str) -> None:
    """A loss of 4 % beyond noise is a regression only where less is allowed."""
    found = compare(made.baseline(window(0.6)), made.baseline(window(0.576, seed=2)), max_loss)
    assert figure(found, "efficiency").beyond_noise is True
    assert found.outcome == outcome
    assert ("are allowed" in found.headline) is (outcome == NO_REGRESSION)


@pytest.mark.parametrize("sd", [1e-6, 0.005])
def test_a_change_too_small_to_speak_of(sd: float) -> None:
    """Half a percent is no change, however quiet the load is: two runs of one job differ by as much."""
    windows = [made.baseline(window(mean, sd=sd, count=720)) for mean in (0.6, 0.597)]
    found = compare(*windows, 0.0)
    assert found.outcome == NO_REGRESSION
    assert figure(found, "efficiency").beyond_noise is False


def unmeasured(gpu: Gpu, part: float) -> Gpu:
    """The same, with a part of it measured only."""
    split = [
        sample
        if at < part * len(gpu.samples)
        else replace(sample, time=replace(sample.time, measured=0.0, useful=0.0))
        for at, sample in enumerate(gpu.samples)
    ]
    return replace(gpu, samples=tuple(split))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (window(0.6, count=50), window(0.6), "a window has 250 s, and each needs 300 s"),
        (window(0.6), window(0.6, count=1), "a window has 5 s"),
        (unmeasured(window(0.6), 0.3), window(0.6), "only 30 % of the time was measured"),
        (unmeasured(window(0.6), 0.0), unmeasured(window(0.6), 0.0), "nothing was measured"),
        (window(0.6), unmeasured(window(0.6), 0.0), "nothing was measured"),
        (window(0.001, sd=0.0), window(0.002, sd=0.0), "hardly anything was useful before"),
        (window(0.5, sd=0.5, count=62), window(0.5, sd=0.5, seed=3, count=62), "which would hide a loss"),
    ],
)
def test_what_cannot_be_told(before: Gpu, after: Gpu, words: str) -> None:
    """Too short, not measured, nothing useful, too noisy: each has its reason, and none is "no change"."""
    found = compare(made.baseline(before), made.baseline(after))
    assert found.outcome == CANNOT_TELL
    assert words in " ".join(found.reasons)
    assert found.headline.startswith("Cannot tell: ")
    assert comparing.EXIT_CODES[found.outcome] == 11


def test_few_samples_tell_nothing_however_still_they_are() -> None:
    """Five minutes of one figure that never moved are five samples: too few to promise anything."""
    still = window(0.5, count=noise.NEED - 1, sd=0.0, step_s=60.0)
    found = compare(made.baseline(still), made.baseline(still))
    assert found.outcome == CANNOT_TELL
    assert f"needs {noise.NEED} samples, and has {noise.NEED - 1}" in found.headline


def test_a_window_is_as_long_as_what_is_known_of_it() -> None:
    """Compared by the hour, seconds stay seconds."""
    long = window(0.5, count=20, step_s=3600.0)
    short = window(0.5, count=3, step_s=5.0)
    found = compare(made.baseline(long), made.baseline(short))
    assert (found.step_s, found.after.seconds) == (3600.0, 15.0)
    assert "a window has 15 s, and each needs 300 s" in found.headline


def test_a_short_window_tests_nothing() -> None:
    """Not even an obvious change is called one; it is shown with a question mark."""
    found = compare(made.baseline(window(0.9, count=20)), made.baseline(window(0.1, count=20)))
    assert {each.beyond_noise for each in found.figures} == {None}
    assert figure(found, "efficiency").change == pytest.approx(-0.8, abs=0.05)


PACES: list[tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]], str, str]] = [
    (
        {"items": [100, 101, 99]},
        {"items": [112, 113, 111]},
        NO_REGRESSION,
        "items +12.0 % (beyond noise) at the same",
    ),
    ({"items": [100, 101, 99]}, {"items": [80, 81, 79]}, REGRESSION, "items is worse by 20.0 %"),
    ({"latency": [5.0, 5.1, 4.9]}, {"latency": [7.0, 7.1, 6.9]}, REGRESSION, "latency is worse by 40.0 %"),
    (
        {"latency": [5.0, 5.1, 4.9]},
        {"latency": [4.0, 4.1, 3.9]},
        NO_REGRESSION,
        "latency \u221220.0 % (beyond noise)",
    ),
    (
        {"items": [100]},
        {"items": [80]},
        NO_REGRESSION,
        "items \u221220.0 % (not tested) at the same efficiency",
    ),
    ({"items": [100, 140, 60]}, {"items": [80, 150, 70]}, CANNOT_TELL, "noise alone moves it"),
    ({"items": [100]}, {}, NO_REGRESSION, "No regression"),
    ({"items": [0, 0, 0]}, {"items": [1, 1, 1]}, NO_REGRESSION, "No regression"),
]


@pytest.mark.parametrize(("before", "after", "outcome", "words"), PACES)
def test_progress(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], outcome: str, words: str
) -> None:
    """Work per second stands beside the efficiency; with three values on both sides it has a say."""
    found = compare(
        made.baseline(window(0.6), progress=before), made.baseline(window(0.6, seed=2), progress=after)
    )
    assert found.outcome == outcome
    assert words in found.headline


def test_gpus_are_matched() -> None:
    """By UUID, however they are numbered now; else by index and model, on the host or any; the rest is named."""
    before = [
        made.facts(0),
        made.facts(1, uuid="GPU-a"),
        made.facts(2, uuid="GPU-b", host="h1"),
        made.facts(3),
    ]
    after = [
        made.facts(5, uuid="GPU-0"),
        made.facts(1, uuid="GPU-x"),
        made.facts(2, uuid="GPU-y", host="h9"),
        made.facts(3, uuid="GPU-z", model="NVIDIA L4"),
    ]
    pairs, left_out = matched(before, after)
    assert [(one.uuid, other.uuid) for one, other in pairs] == [
        ("GPU-0", "GPU-0"),
        ("GPU-a", "GPU-x"),
        ("GPU-b", "GPU-y"),
    ]
    assert left_out == ("GPU 3 of h1 is in the first window only", "GPU 3 of h1 is in the second window only")


def test_other_gpus_cannot_be_compared() -> None:
    """Another model is another machine: the error names both."""
    with pytest.raises(BaselineError, match=r"GPU 0 \(NVIDIA H200\) before, GPU 0 \(NVIDIA L4\) after"):
        matched([made.facts(0)], [made.facts(0, uuid="GPU-x", model="NVIDIA L4")])


def test_slices_count_by_their_share() -> None:
    """A slice of a seventh moves the whole by a seventh."""
    parts = [
        window(0.8, sd=0.0, mig="1", share_ratio=6 / 7),
        window(0.1, sd=0.0, mig="2", share_ratio=1 / 7),
    ]
    found = compare(made.baseline(*parts), made.baseline(*parts))
    assert figure(found, "efficiency").before == pytest.approx((6 * 0.8 + 0.1) / 7)
    assert figure(found, "power_watts").before == pytest.approx((100 + 500 * 0.8 + 100 + 500 * 0.1) / 2)


CONDITIONS: list[tuple[dict[str, Any], dict[str, Any], str, str, str]] = [
    ({"driver": "580.10"}, {}, "driver", "575.51.03", "580.10"),
    ({"power_limit_watts": 500.0}, {}, "power limit", "700 W", "500 W"),
    ({"power_limit_watts": None}, {}, "power limit", "700 W", "not known"),
    ({"sm_clock_max_hertz": 1.7e9}, {}, "highest SM clock", "1980 MHz", "1700 MHz"),
    ({"host": "h2"}, {}, "host", "h1", "h2"),
    ({"uuid": "GPU-x"}, {}, "GPU", "GPU-0", "GPU-x"),
    ({"workloads": ("ml/other",)}, {}, "workloads", "ml/llama", "ml/other"),
    ({"sources": ("dcgm",)}, {}, "signals from", "nvml-gpm", "dcgm"),
    ({"warm_up_s": 120.0}, {}, "warm-up", "none", "2 min"),
    ({}, {"version": "0.2.0"}, "gpuwhy", "0.1.0", "0.2.0"),
    ({}, {"source": "https://x"}, "read from", "live", "Prometheus"),
    ({}, {"workload": "llama"}, "chosen workload", "all", "llama"),
]


@pytest.mark.parametrize(("of_gpu", "of_window", "name", "before", "after"), CONDITIONS)
def test_conditions_that_differ_are_listed(
    of_gpu: dict[str, Any], of_window: dict[str, Any], name: str, before: str, after: str
) -> None:
    """Each is named with both values."""
    found = compare(made.baseline(window(0.6)), made.baseline(window(0.6, seed=2, **of_gpu), **of_window))
    assert (name, before, after) in [(each.name, each.before, each.after) for each in found.conditions]


def test_windows_of_other_lengths_and_steps() -> None:
    """Minutes of the store against intervals of 5 s: compared by minutes, and said."""
    minutes = made.gpu([0.6 + 0.01 * (at % 3) for at in range(30)], 60.0)
    found = compare(made.baseline(window(0.61)), made.baseline(minutes))
    assert found.step_s == 60.0
    assert {(each.name, each.before, each.after) for each in found.conditions} == {
        ("length", "15 min", "30 min"),
        ("a sample", "5 s", "60 s"),
    }
    assert found.outcome == NO_REGRESSION


def test_equal_conditions_list_none() -> None:
    """Silence where nothing differs."""
    assert compare(made.baseline(window(0.6)), made.baseline(window(0.6, seed=2))).conditions == ()


def test_of_a_workload_no_figure_is_the_gpus() -> None:
    """Headroom, free and unattributed time are the GPU's own."""
    with_headroom = made.gpu([0.5] * 180)
    samples = [
        replace(each, time=replace(each.time, lost={}, headroom=2.5)) for each in with_headroom.samples
    ]
    gpu = replace(with_headroom, samples=tuple(samples))
    assert figure(compare(made.baseline(gpu), made.baseline(gpu)), "headroom").before == pytest.approx(0.5)
    chosen = made.baseline(gpu, workload="llama")
    assert not any(each.name == "headroom" for each in compare(chosen, chosen).figures)


def test_figures_have_names_of_their_own() -> None:
    """A name, and a label in its group, stands for one figure."""
    assert len({each.name for each in FIGURES}) == len(FIGURES)


def test_gaps_cost_what_they_cost() -> None:
    """Where nothing was read, that is not counted as lost or useful."""
    gpu = window(0.6, sd=0.0)
    half = replace(gpu, samples=gpu.samples[::2])
    found = compare(made.baseline(gpu), made.baseline(half))
    assert figure(found, "efficiency").change == pytest.approx(0, abs=1e-9)
    assert found.after.seconds == 450.0


def test_unknown_time_is_observed_and_not_useful() -> None:
    """An agent that ran without readings: observed, nothing measured."""
    gpu = window(0.6, sd=0.0)
    unread = [
        Sample(each.end_unix, 5.0, TimeSplit(5.0, verdict={("unknown", "no-data"): 5.0}))
        if at % 3 == 0
        else each
        for at, each in enumerate(gpu.samples)
    ]
    found = compare(made.baseline(gpu), made.baseline(replace(gpu, samples=tuple(unread))))
    assert figure(found, "efficiency").change == pytest.approx(0, abs=1e-9)
    assert figure(found, "useful").after == pytest.approx(0.4)
    assert figure(found, "verdict/unknown/no-data").after == pytest.approx(1 / 3)


def shown_pair() -> tuple[Baseline, Baseline]:
    before = made.baseline(
        window(0.7, sd=0.03),
        window(0.5, sd=0.05, seed=4, index=1, uuid="GPU-1"),
        progress={"items_per_second": [1234.0], "latency_seconds": [0.052, 0.05, 0.055]},
        note="v1, batch 32",
    )
    after = made.baseline(
        window(0.62, sd=0.03, seed=2, driver="580.10", power_limit_watts=500.0),
        window(0.5, sd=0.05, seed=3, index=1, uuid="GPU-1", driver="580.10"),
        name="",
        progress={"items_per_second": [1100.0], "latency_seconds": [0.061, 0.06, 0.063]},
    )
    return before, after


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("markdown", "md"), ("json", "json")])
def test_formats(golden: Callable[[str, str], None], form: str, ending: str) -> None:
    """A regression of one of two GPUs under another driver and limit, as it is shown."""
    text = formats.comparison(compare(*shown_pair()), form, timezone.utc)
    if form == "text":
        assert max(map(len, text.splitlines())) <= 80
        assert not any(line.endswith(" ") for line in text.splitlines())
    golden(f"baseline/compare.{ending}", text)


def test_the_docs_show_it(shown: Callable[[str, str, str], None]) -> None:
    """The example in the docs is what is printed."""
    shown(
        "docs/baselines.md", "example", f"```\n{formats.as_text(compare(*shown_pair()), timezone.utc)}```\n"
    )


def test_shown(golden: Callable[[str, str], None]) -> None:
    """One baseline, as ``baseline show`` prints it."""
    golden("baseline/show.txt", formats.shown(shown_pair()[0], timezone.utc))


def test_json_schema(golden: Callable[[str, str], None]) -> None:
    """The JSON is of ``gpuwhy-baseline-compare/1``: a change of its schema is a change of that."""
    golden("baseline/compare-schema.json", json.dumps(msgspec.json.schema(Comparison), indent=2) + "\n")
    text = formats.as_json(compare(*shown_pair()))
    assert msgspec.json.decode(text, type=Comparison) == compare(*shown_pair())
    json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str) -> None:
    """Nothing from pods, drivers or notes gets out of its place."""
    before = made.baseline(
        window(0.6, host=name, model=name, driver=name, workloads=(name,)), name=name, note=name
    )
    after = made.baseline(window(0.6, host=name, model=name, driver=name + "x", workloads=(name + "x",)))
    found = compare(before, after)
    text, markdown = (formats.comparison(found, form, timezone.utc) for form in ("text", "markdown"))
    for letter in ("\x1b", "\u202e"):
        assert letter not in text + markdown + formats.shown(before, timezone.utc)
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") in {4, 7}
    assert "<img" not in markdown.replace("\\<", "")


def test_wide_numbers_fit() -> None:
    """The longest cause and the largest changes stay within 80 columns."""
    chance = random.Random(1)
    longest = ("unknown", "insufficient-evidence")
    gpus = []
    for scale in (1.0, 1e-3):
        samples = []
        for at in range(180):
            each = made.sample(
                made.START + 5 * (at + 1), scale * chance.random(), lost=("starving", "host-contention")
            )
            samples.append(
                replace(each, time=replace(each.time, verdict={longest: 3.0, ("unknown", "mixed"): 2.0}))
            )
        gpus.append(made.facts(samples=tuple(samples)))
    for pair in (gpus, gpus[::-1]):
        text = formats.comparison(compare(*map(made.baseline, pair)), "text", timezone.utc)
        assert max(map(len, text.splitlines())) <= 80, text
