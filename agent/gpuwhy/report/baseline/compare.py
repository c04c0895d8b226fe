"""What moved between two windows: which GPUs are compared, under which conditions, and each figure's change.

Figures of two families are tested, each at ``noise.LEVEL`` over all of its figures together: those that decide
(efficiency, and progress with several values on both sides), and those that explain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwhy.report.baseline import noise, words
from gpuwhy.report.baseline.conditions import Condition, differing
from gpuwhy.report.baseline.figures import (
    EFFICIENCY,
    LOST,
    PROGRESS,
    VERDICT,
    Figure,
    Steps,
    in_steps,
    occurring,
    step_of,
    value,
)
from gpuwhy.report.baseline.types import Baseline, BaselineError, Gpu, Progress

SCHEMA = "gpuwhy-baseline-compare/1"
LEAST_S = 300.0  # of each window
MAX_LOSS = 0.02
RESOLUTION = 0.10  # noise that moves a figure by more than this hides too much
LEAST_MEASURED = 0.5  # of the observed time
LEAST_USEFUL = 0.01
# What is too small to speak of: two runs of one job differ by as much, and no single window can show that.
FLOOR_RATIO, FLOOR_RELATIVE = 0.005, 0.01

REGRESSION, CANNOT_TELL, NO_REGRESSION = "regression", "cannot tell", "no regression"
EXIT_CODES = {NO_REGRESSION: 0, REGRESSION: 10, CANNOT_TELL: 11}


@dataclass(frozen=True, slots=True)
class Moved:
    """One figure before and after, None = not known.

    ``change`` is after minus before; ``low`` and ``high`` its interval for this figure alone; ``relative`` is the
    change over before. ``seen`` is the size of a change that would very likely have been found. ``beyond_noise``
    counts all figures of its family together, None = it cannot be told, for the reason in ``problem``. ``worse``
    is None where neither direction is. ``decides`` says whether it has a say in the outcome.
    """

    name: str
    label: str
    group: str
    unit: str
    before: float | None
    after: float | None
    change: float | None = None
    relative: float | None = None
    low: float | None = None
    high: float | None = None
    seen: float | None = None
    p: float | None = None
    beyond_noise: bool | None = None
    worse: bool | None = None
    decides: bool = False
    problem: str = ""
    block_s: float | None = None

    @property
    def large(self) -> bool:
        """Whether it changed by enough to speak of."""
        floor = _floor(self.unit, self.decides, self.before or 0.0)
        return self.change is not None and abs(self.change) >= floor

    def share(self, number: float | None) -> float | None:
        """A change as a part of what was before."""
        return None if number is None or not self.before else number / self.before


@dataclass(frozen=True, slots=True)
class Pair:
    """One GPU and its efficiency, which is shown but not tested."""

    before: str
    after: str
    efficiency_before: float | None
    efficiency_after: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """One of the two, in words."""

    name: str
    source: str
    start_unix: float
    end_unix: float
    seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that is shown; ``reasons`` say why the outcome is what it is."""

    schema: str
    outcome: str
    reasons: tuple[str, ...]
    headline: str
    before: Window
    after: Window
    max_loss: float
    step_s: float
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    conditions: tuple[Condition, ...]
    figures: tuple[Moved, ...]
    test: str


def compare(before: Baseline, after: Baseline, max_loss: float = MAX_LOSS) -> Comparison:
    """What moved.

    Raises:
        BaselineError: no GPU of the one is any of the other.

    """
    pairs, left_out = matched(before.gpus, after.gpus)
    windows = [tuple(pair[side] for pair in pairs) for side in (0, 1)]
    step_s = step_of(windows)
    first, second = (in_steps(gpus, step_s) for gpus in windows)
    of_workload = bool(before.workload or after.workload)
    short = _too_short(first, second)
    tested = [
        _moved(figure, first, second, short)
        for figure in occurring(*windows)
        if not (figure.of_gpu and of_workload)
    ]
    figures = _once([each for each in tested if each is not None])
    deciding = [_judged(each, first, second, max_loss) if each.decides else each for each in figures]
    everything = _together([*deciding, *_progress(before.progress, after.progress, max_loss)])
    outcome, reasons = _outcome(everything, max_loss)
    return Comparison(
        schema=SCHEMA,
        outcome=outcome,
        reasons=reasons,
        headline=_headline(outcome, everything, reasons, max_loss),
        before=_window(before, first),
        after=_window(after, second),
        max_loss=max_loss,
        step_s=step_s,
        pairs=tuple(_pair(*pair) for pair in pairs),
        left_out=left_out,
        conditions=differing(
            replace(before, gpus=windows[0]), replace(after, gpus=windows[1]), first.seconds, second.seconds
        ),
        figures=tuple(everything),
        test=_test(everything),
    )


def _once(figures: Sequence[Moved]) -> list[Moved]:
    """A verdict that has one cause only is the same figure as that cause: the cause stands for both."""
    causes = Counter(each.name.split("/")[1] for each in figures if _is_cause(each))
    found = []
    for each in figures:
        if _is_cause(each) and causes[each.name.split("/")[1]] == 1:
            found.append(replace(each, label=each.name.removeprefix("verdict/")))
        elif _is_cause(each) or causes[each.name.removeprefix("verdict/")] != 1:
            found.append(each)
    return found


def _is_cause(moved: Moved) -> bool:
    return moved.group == VERDICT and moved.name.count("/") == 2


def matched(before: Sequence[Gpu], after: Sequence[Gpu]) -> tuple[list[tuple[Gpu, Gpu]], tuple[str, ...]]:
    """GPUs that are compared: the same by UUID, else of one index and model on the same host, or on any.

    Raises:
        BaselineError: there are none.

    """
    left, right = list(before), list(after)
    pairs: list[tuple[Gpu, Gpu]] = []
    keys: tuple[Callable[[Gpu], tuple[object, ...]], ...] = (
        lambda gpu: (gpu.uuid, gpu.mig),
        lambda gpu: (gpu.host, gpu.index, gpu.mig, gpu.model, gpu.profile),
        lambda gpu: (gpu.index, gpu.mig, gpu.model, gpu.profile),
    )
    for key in keys:
        for gpu in tuple(left):
            other = next((each for each in right if key(each) == key(gpu)), None)
            if other is not None:
                pairs.append((gpu, other))
                left.remove(gpu)
                right.remove(other)
    if not pairs:
        raise BaselineError(
            f"no GPU of the one is one of the other by UUID, or by index and model: {_those(before)} before, "
            f"{_those(after)} after"
        )
    pairs.sort(key=lambda pair: (pair[0].host, pair[0].index, pair[0].mig))
    missing = (
        *(f"{_full(gpu)} is in the first window only" for gpu in left),
        *(f"{_full(gpu)} is in the second window only" for gpu in right),
    )
    return pairs, missing


def _those(gpus: Iterable[Gpu]) -> str:
    models = dict.fromkeys(f"{gpu.title} ({gpu.model or 'unknown model'})" for gpu in gpus)
    return ", ".join(list(models)[:4]) + (" and more" if len(models) > 4 else "")


def _full(gpu: Gpu) -> str:
    return f"{gpu.title} of {gpu.host}" if gpu.host else gpu.title


def _pair(before: Gpu, after: Gpu) -> Pair:
    values = [value(in_steps([gpu], 3600.0).terms(EFFICIENCY)) for gpu in (before, after)]
    return Pair(_full(before), _full(after), *values)


def _window(baseline: Baseline, steps: Steps) -> Window:
    return Window(
        baseline.name,
        baseline.source,
        round(baseline.start_unix, 3),
        round(baseline.end_unix, 3),
        round(steps.seconds, 3),
        baseline.note,
    )


def _too_short(first: Steps, second: Steps) -> str:
    shorter = min(first.seconds, second.seconds)
    # A window that is cut by a step is as long as it was asked for.
    if shorter + min(first.step_s, 30.0) < LEAST_S:
        return f"a window has {shorter:.0f} s, and each needs {LEAST_S:.0f} s, better 900 s"
    return ""


def _moved(figure: Figure, first: Steps, second: Steps, short: str) -> Moved | None:
    before, after = first.terms(figure), second.terms(figure)
    values = value(before), value(after)
    if max(values[0] or 0.0, values[1] or 0.0) < figure.shown_from or values == (None, None):
        return None
    moved = Moved(figure.name, figure.label, figure.group, figure.unit, *values, decides=figure is EFFICIENCY)
    if values[0] is None or values[1] is None:
        return replace(moved, problem="it is not known in both windows")
    found = noise.Difference(problem=short)
    if not short:
        found = _still(figure, before, after) or noise.of_terms(before, after)
    return _with(moved, found, figure.higher_is_better, first.step_s)


def _still(
    figure: Figure, before: Sequence[noise.Term], after: Sequence[noise.Term]
) -> noise.Difference | None:
    """No difference, where all of both windows is within what is too small to speak of; else None.

    Also None for so few samples that nothing is said of them.
    """
    if min(len(before), len(after)) < noise.NEED:
        return None
    ratios = [top / bottom for top, bottom in (*before, *after)]
    spread = max(ratios) - min(ratios)
    if spread >= _floor(figure.unit, figure is EFFICIENCY, min(ratios)):
        return None
    return noise.Difference(low=-spread, high=spread, p=1.0, seen=spread)


def _with(moved: Moved, found: noise.Difference, higher_is_better: bool | None, step_s: float) -> Moved:
    if moved.before is None or moved.after is None:
        return moved
    change = moved.after - moved.before
    return replace(
        moved,
        change=change,
        relative=moved.share(change),
        low=found.low,
        high=found.high,
        seen=found.seen,
        p=found.p,
        worse=None if higher_is_better is None or not change else (change < 0) == higher_is_better,
        problem=found.problem,
        block_s=None if found.block is None else found.block * step_s,
    )


def _judged(moved: Moved, first: Steps, second: Steps, max_loss: float) -> Moved:
    """The same; or with the reason why the efficiency cannot be told."""
    if moved.before is None or moved.after is None:
        return replace(moved, problem="nothing was measured: signals that useful time needs were not read")
    measured = min(_measured(each) for each in (first, second))
    if measured < LEAST_MEASURED:
        problem = f"only {words.percent(measured, 0)} of the time was measured, and it needs {words.percent(LEAST_MEASURED, 0)}"
    elif moved.before < LEAST_USEFUL:
        problem = "hardly anything was useful before, so there is nothing to compare with"
    else:
        problem = moved.problem or _hidden(moved, max_loss)
    return replace(moved, problem=problem)


def _measured(steps: Steps) -> float:
    samples = [(sample, share) for moment in steps.moments for sample, share in moment]
    observed = sum(sample.time.observed * share for sample, share in samples)
    return sum(sample.time.measured * share for sample, share in samples) / observed if observed else 0.0


def _hidden(moved: Moved, max_loss: float) -> str:
    """Why noise hides too much, "" where it does not."""
    if moved.low is None or moved.high is None:
        return ""
    half = moved.share((moved.high - moved.low) / 2)
    most = max(RESOLUTION, max_loss)
    # What is beyond noise all the same has been found.
    if half is None or half <= most or moved.low > 0 or moved.high < 0:
        return ""
    return f"noise alone moves it by {words.percent(half, 0)}, which would hide a loss"


def _progress(before: Sequence[Progress], after: Sequence[Progress], max_loss: float) -> Iterator[Moved]:
    ends = {each.name: each for each in after}
    begins = {each.name: each for each in before}
    for name in dict.fromkeys((*begins, *ends)):
        first, last = begins.get(name), ends.get(name)
        moved = Moved(
            f"progress/{name}",
            name,
            PROGRESS,
            "",
            first.mean if first else None,
            last.mean if last else None,
        )
        if first is None or last is None:
            yield replace(moved, problem="it is not given on both sides")
            continue
        found = noise.of_values(first.values, last.values)
        result = _with(moved, found, first.higher_is_better, 0.0)
        yield replace(result, decides=not found.problem, problem=found.problem or _hidden(result, max_loss))


def _together(figures: Sequence[Moved]) -> list[Moved]:
    """The same, with what each says beside the others of its family."""
    result = list(figures)
    for decides in (True, False):
        places = [at for at, each in enumerate(result) if each.decides is decides and each.p is not None]
        adjusted = noise.holm([result[at].p or 0.0 for at in places])
        for at, p in zip(places, adjusted, strict=True):
            each = result[at]
            beyond = p < noise.LEVEL and each.large
            result[at] = replace(each, p=p, beyond_noise=None if each.problem else beyond)
    return result


def _floor(unit: str, decides: bool, before: float) -> float:
    """The least change that is spoken of."""
    return FLOOR_RATIO if unit == "ratio" and not decides else FLOOR_RELATIVE * before


def _outcome(figures: Sequence[Moved], max_loss: float) -> tuple[str, tuple[str, ...]]:
    deciding = [each for each in figures if each.decides]
    lost = [
        each for each in deciding if each.beyond_noise and each.worse and abs(each.relative or 0.0) > max_loss
    ]
    if lost:
        return REGRESSION, tuple(
            f"{_plain(each)} is worse by {words.percent(abs(each.relative or 0.0))}" for each in lost
        )
    if not any(each.name == EFFICIENCY.name for each in deciding):
        return CANNOT_TELL, ("efficiency: nothing was measured in either window",)
    untold = tuple(f"{_plain(each)}: {each.problem}" for each in deciding if each.problem)
    return (CANNOT_TELL, untold) if untold else (NO_REGRESSION, ())


def _plain(moved: Moved) -> str:
    return moved.name.removeprefix("progress/")


def _headline(outcome: str, figures: Sequence[Moved], reasons: Sequence[str], max_loss: float) -> str:
    """The comparison in a sentence or two."""
    efficiency = next((each for each in figures if each.name == EFFICIENCY.name), None)
    said = []
    if outcome == CANNOT_TELL:
        said.append(f"Cannot tell: {'; '.join(reasons)}.")
    elif efficiency is not None and efficiency.beyond_noise and efficiency.relative is not None:
        lost = bool(efficiency.worse)
        allowed = outcome == NO_REGRESSION and lost
        said.append(
            f"{outcome.capitalize()}: efficiency {'fell' if lost else 'rose'} by "
            f"{words.percent(abs(efficiency.relative))}{_where(figures, lost=lost)}"
            f"{f', of which {words.percent(max_loss)} are allowed' if allowed else ''}."
        )
    elif outcome == REGRESSION:
        said.append(f"Regression: {'; '.join(reasons)}.")
    else:
        said.append(f"No regression beyond noise{_found(efficiency, max_loss)}.")
    said += [
        f"{each.label} {words.signed_percent(each.relative)}{_beside(each, efficiency)}."
        for each in figures
        if each.group == PROGRESS and each.relative is not None
    ]
    return " ".join(said)


def _found(efficiency: Moved | None, max_loss: float) -> str:
    """Which loss would have been reported, nine times of ten."""
    if efficiency is None or None in {efficiency.seen, efficiency.low, efficiency.high}:
        return ""
    half = ((efficiency.high or 0.0) - (efficiency.low or 0.0)) / 2
    seen = efficiency.share(efficiency.seen) or 0.0
    least = max(seen, max_loss + seen - (efficiency.share(half) or 0.0))
    return f"; a loss of {words.percent(least)} would have been found"


def _where(figures: Sequence[Moved], *, lost: bool) -> str:
    """What most of the useful time went to, or came from."""
    causes = {each.label: each.change or 0.0 for each in figures if each.group == LOST and each.beyond_noise}
    sign = 1 if lost else -1
    most = max(causes, key=lambda label: sign * causes[label], default="")
    if not most or sign * causes[most] <= 0:
        return ""
    return f", with {words.points(abs(causes[most])).lstrip('+')} {'more' if lost else 'less'} lost to {most}"


def _beside(progress: Moved, efficiency: Moved | None) -> str:
    """How a progress figure stands beside the efficiency."""
    untold = "cannot tell" if progress.decides else "not tested"
    said = {None: untold, True: "beyond noise", False: "within noise"}[progress.beyond_noise]
    if efficiency is None or efficiency.problem or efficiency.relative is None:
        return f" ({said})"
    if not efficiency.beyond_noise:
        return f" ({said}) at the same efficiency"
    return f" ({said}) with efficiency {words.signed_percent(efficiency.relative)}"


def _test(figures: Sequence[Moved]) -> str:
    """How it was tested, in words."""
    blocks = sorted({f"{each.block_s:.0f}" for each in figures if each.block_s is not None}, key=float)
    length = f" of {' to '.join(dict.fromkeys((blocks[0], blocks[-1])))} s" if blocks else ""
    others = sum(each.p is not None and not each.decides for each in figures)
    return (
        f"Each window is cut into 6 to 20 blocks{length}, longer than the load's own correlation time; Welch's t of "
        "the blocks, its error widened by what correlation is left. Efficiency is useful over measured time. \u00b1 is the "
        "99 % interval of a figure alone (maybe: beyond that). Beyond noise is at 1 % for the figures that decide "
        f"together, and for the {others} others together (Holm), from {words.percent(FLOOR_RELATIVE, 0)} or "
        f"{100 * FLOOR_RATIO:.1f} points on."
    )
