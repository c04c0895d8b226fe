"""Hours as CSV, one figure a line: every group, every quantity, this period and what is known before it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gpuwhy.report.weekly.figures import LABELS
from gpuwhy.report.weekly.types import Group, Hours, Report
from gpuwhy.report.weekly.words import clean

_NAMES = tuple(dict.fromkeys(label for labels in LABELS.values() for label in labels))
COLUMNS = ("start", "end", "level", *_NAMES, "quantity", "verdict", "cause", "gpu_hours")
QUANTITIES = ("observed", "measured", "useful", "lost", "headroom", "free", "unattributed")
# What a spreadsheet would take for a formula, also in the full width of East Asian letters.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def text(report: Report) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    about = report.about
    for group in (report.fleet, *report.groups):
        names = [_cell(group.labels.get(label, "")) for label in _NAMES]
        for figure in _figures(group):
            writer.writerow((about.start, about.end, group.level, *names, *figure))
    for week in report.weeks:
        if week.available:
            names = [""] * len(_NAMES)
            for figure in (
                *_hours(week.hours),
                *(("lost", each, "", _number(hours)) for each, hours in week.lost.items()),
            ):
                writer.writerow((week.start, week.end, "fleet", *names, *figure))
    return out.getvalue()


def _figures(group: Group) -> Iterator[tuple[str, str, str, str]]:
    yield from _hours(group.hours)
    for headline in group.verdicts:
        yield "verdict", _cell(headline.verdict), _cell(headline.cause), _number(headline.hours)
    for loss in group.losses:
        yield "lost", _cell(loss.verdict), _cell(loss.cause), _number(loss.hours)
        if loss.confirmed is not None:
            yield "lost-confirmed", _cell(loss.verdict), _cell(loss.cause), _number(loss.confirmed)


def _hours(hours: Hours) -> Iterator[tuple[str, str, str, str]]:
    for quantity in QUANTITIES:
        value = getattr(hours, quantity)
        if value is not None:
            yield quantity, "", "", _number(value)


def _number(hours: float) -> str:
    return f"{hours:.4f}"


def _cell(name: str) -> str:
    """A name as text that no spreadsheet computes."""
    return (
        f"'{clean(name)}" if name.lstrip().startswith(_FORMULA) or name.startswith(_FORMULA) else clean(name)
    )
