"""A comparison, or one baseline, for people and programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from itertools import groupby
from pathlib import Path

import msgspec

from gpuwhy.report.baseline import kept, words
from gpuwhy.report.baseline.compare import Comparison, Moved, Window
from gpuwhy.report.baseline.conditions import CONDITIONS
from gpuwhy.report.baseline.figures import MAIN, PROGRESS, in_steps, occurring, step_of, value
from gpuwhy.report.baseline.types import Baseline, BaselineError
from gpuwhy.report.weekly.formats.markdown import escaped
from gpuwhy.report.weekly.words import short

WIDTH = 80
HEAD = ("", "before", "after", "change", "±", "noise")
LONGEST = 31  # of a first column's name, with its indent


def comparison(found: Comparison, form: str, zone: tzinfo) -> str:
    """A comparison in one of the formats "text", "json" and "markdown"."""
    if form == "json":
        return as_json(found)
    return as_markdown(found, zone) if form == "markdown" else as_text(found, zone)


def as_json(comparison: Comparison) -> str:
    """``gpuwhy-baseline-compare/1``: everything, in base units."""
    return json.dumps(msgspec.to_builtins(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_text(comparison: Comparison, zone: tzinfo) -> str:
    """For 80 columns, without colour."""
    lines = [*_wrapped(comparison.headline), ""]
    for what, window in (("before", comparison.before), ("after", comparison.after)):
        lines += _wrapped(f"{what:<7}{_window(window, zone)}", 7)
        if window.note:
            lines += _wrapped(" " * 7 + window.note, 7)
    lines += _wrapped(f"{'GPUs':<7}{_gpus(comparison)}", 7)
    if comparison.conditions:
        lines += ["", "Conditions that differ: what moved may be due to them"]
        first = max(len(each.name) for each in comparison.conditions)
        for condition in comparison.conditions:
            line = f"  {condition.name:<{first}}  {condition.before} -> {condition.after}"
            lines += _wrapped(line, first + 4)
    rows: list[tuple[str, ...]] = [HEAD]
    for group, figures in groupby(comparison.figures, key=lambda each: each.group):
        if group != MAIN:
            rows.append((group, *[""] * 5))
        rows += [_cells(figure, "" if group == MAIN else "  ") for figure in figures]
    lines += ["", *_table(rows)]
    if len(comparison.pairs) > 1:
        each_gpu = [("efficiency by GPU, not tested", "before", "after")]
        each_gpu += [
            (f"  {pair.before}", words.percent(pair.efficiency_before), words.percent(pair.efficiency_after))
            for pair in comparison.pairs
        ]
        lines += ["", *_table(each_gpu)]
    lines += ["", *_notes(comparison.figures), *_wrapped(comparison.test)]
    return "\n".join(words.clean(line).rstrip() for line in lines) + "\n"


def as_markdown(comparison: Comparison, zone: tzinfo) -> str:
    """For wikis and pull requests."""
    lines = [f"**{_md(comparison.headline)}**", ""]
    for what, window in (("before", comparison.before), ("after", comparison.after)):
        note = f" ({_md(window.note)})" if window.note else ""
        lines.append(f"- {what}: {_md(_window(window, zone))}{note}")
    lines.append(f"- GPUs: {_md(_gpus(comparison))}")
    if comparison.conditions:
        lines += ["", "Conditions that differ: what moved may be due to them", ""]
        rows = [(each.name, each.before, each.after) for each in comparison.conditions]
        lines += _pipes([("condition", "before", "after"), *rows], "lll")
    for group, figures in groupby(comparison.figures, key=lambda each: each.group):
        lines += ["", *_pipes([(group, *HEAD[1:]), *(_cells(figure, "") for figure in figures)], "lrrrrl")]
    if len(comparison.pairs) > 1:
        rows = [
            (pair.before, words.percent(pair.efficiency_before), words.percent(pair.efficiency_after))
            for pair in comparison.pairs
        ]
        lines += ["", *_pipes([("efficiency by GPU, not tested", "before", "after"), *rows], "lrr")]
    lines += ["", *(f"{_md(line)}  " for line in _reasons(comparison.figures)), comparison.test]
    return "\n".join(lines) + "\n"


def shown(baseline: Baseline, zone: tzinfo) -> str:
    """One baseline: its conditions, and its figures over the whole window."""
    steps = in_steps(baseline.gpus, step_of([baseline.gpus]))
    window = Window(
        baseline.name, baseline.source, baseline.start_unix, baseline.end_unix, steps.seconds, baseline.note
    )
    lines = _wrapped(_window(window, zone))
    if baseline.note:
        lines += _wrapped(baseline.note)
    known = [("samples", f"{len(steps.moments)} of {words.seconds(baseline.step_s)}")]
    known += [(name, text(baseline)) for name, text in CONDITIONS]
    first = max(len(name) for name, _ in known)
    lines.append("")
    for name, text in known:
        lines += _wrapped(f"{name:<{first}}  {text or words.NOT_KNOWN}", first + 2)
    rows: list[tuple[str, ...]] = []
    for group, figures in groupby(occurring(baseline.gpus), key=lambda each: each.group):
        found = [(figure, value(steps.terms(figure))) for figure in figures]
        listed = [
            (figure, number) for figure, number in found if number is not None and number >= figure.shown_from
        ]
        if listed and group != MAIN:
            rows.append((group, ""))
        indent = "" if group == MAIN else "  "
        rows += [(indent + figure.label, words.level(figure.unit, number)) for figure, number in listed]
    if baseline.progress:
        rows.append((PROGRESS, ""))
    for each in baseline.progress:
        values = ", ".join(words.level("", number) for number in each.values)
        rows.append((f"  {each.name}", values))
    lines += ["", *_table(rows)]
    return "\n".join(words.clean(line).rstrip() for line in lines) + "\n"


def listing(files: Mapping[str, Path], zone: tzinfo) -> str:
    """Those that are kept, a line each; one that cannot be read says so in its own."""
    rows = [("name", "taken", "", "of")]
    for name, path in files.items():
        try:
            found = kept.load(path)
        except BaselineError as error:
            rows.append((name, "", "", str(error)))
            continue
        models = ", ".join(dict.fromkeys(gpu.model for gpu in found.gpus if gpu.model)) or "unknown model"
        about = f"{len(found.gpus)} x {models}" + (f": {found.note}" if found.note else "")
        length = words.seconds(found.end_unix - found.start_unix)
        rows.append((name, words.moment(found.start_unix, zone)[:16], length, about))
    if not files:
        return "none yet: gpuwhy baseline save NAME\n"
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = (
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]))
        for row in rows
    )
    return "".join(words.clean(line).rstrip() + "\n" for line in lines)


def _window(window: Window, zone: tzinfo) -> str:
    begin, end = (words.moment(unix, zone) for unix in (window.start_unix, window.end_unix))
    name = f"{window.name}, " if window.name else ""
    return f"{name}{begin} to {end} ({words.seconds(window.seconds)}, {words.source(window.source)})"


def _gpus(comparison: Comparison) -> str:
    names = [
        pair.before if pair.before == pair.after else f"{pair.before} with {pair.after}"
        for pair in comparison.pairs
    ]
    more = len(names) - 8
    said = ", ".join(names[:8]) + (f" and {more} more" if more > 0 else "")
    return "; ".join([said, *comparison.left_out])


def _cells(moved: Moved, indent: str) -> tuple[str, ...]:
    """A row: the change in percent of what was before, or of ratios in points, and half its interval."""
    label = short(f"{indent}{moved.label}", LONGEST)
    before, after = (words.level(moved.unit, each) for each in (moved.before, moved.after))
    relative = (moved.unit != "ratio" or moved.decides) and bool(moved.before)
    change = half = ""
    if moved.change is not None:
        part = (moved.share(moved.change) or 0.0) if relative else moved.change
        change = words.signed_percent(part) if relative else _difference(moved, part)
    if moved.low is not None and moved.high is not None and not moved.problem:
        size = (moved.high - moved.low) / 2
        half = f"± {100 * ((moved.share(size) or 0.0) if relative else size):.1f}"
    return (label, before, after, change, half, _verdict(moved))


def _difference(moved: Moved, number: float) -> str:
    if moved.unit == "ratio":
        return words.signed(number, lambda size: f"{100 * size:.1f} pts")
    return words.signed(number, lambda size: words.level(moved.unit, size))


def _verdict(moved: Moved) -> str:
    if moved.beyond_noise is None:
        return "?"
    if not moved.beyond_noise:
        beside = moved.low is not None and moved.high is not None and (moved.low > 0 or moved.high < 0)
        return "maybe" if beside and moved.large else "within"
    return {None: "moved", True: "WORSE", False: "better"}[moved.worse]


def _reasons(figures: Iterable[Moved]) -> list[str]:
    """Why some could not be told, each reason once."""
    found: dict[str, list[str]] = {}
    for each in figures:
        if each.problem:
            found.setdefault(each.problem, []).append(each.label.strip())
    return [
        f"? {', '.join(names) if len(names) < 4 else f'{len(names)} figures'}: {problem}"
        for problem, names in found.items()
    ]


def _notes(figures: Iterable[Moved]) -> list[str]:
    reasons = [line for reason in _reasons(figures) for line in _wrapped(reason, 2)]
    return [*reasons, ""] if reasons else []


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        words.clean(text), WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the last of six too, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in {0, 5} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _md(text: str) -> str:
    return escaped(words.clean(text))


def _pipes(rows: Sequence[tuple[str, ...]], align: str) -> list[str]:
    marks = {"l": "---", "r": "---:"}
    head, *body = ["| " + " | ".join(_md(cell.strip()) for cell in row) + " |" for row in rows]
    return [head, "|" + "|".join(marks[each] for each in align) + "|", *body]
