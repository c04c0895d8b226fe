"""The report as one page: nothing is fetched, no script runs, and it can be mailed, printed and read on a phone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from gpuwhy.config import pip_install
from gpuwhy.report.terminal import COLOURS
from gpuwhy.report.weekly import words
from gpuwhy.report.weekly.history import ReportError
from gpuwhy.report.weekly.types import About, Report

MOST_GROUPS = 15
IN_FULL = 5  # of what to fix: with evidence and steps
TABLES = (
    ("workload", "Workloads"),
    ("owner", "Owners"),
    ("instance", "Hosts"),
    ("model", "Models"),
    ("gpu", "GPUs"),
)


def text(report: Report) -> str:
    """The page. Raises ReportError where the extra that it needs is not installed."""
    try:
        import jinja2  # noqa: PLC0415  it comes with the extra

        from gpuwhy.report.weekly.formats import charts  # noqa: PLC0415  and so does what this needs
    except ImportError as error:
        raise ReportError(f"the page needs jinja2: {pip_install('jinja2')}") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpuwhy.report.weekly", "formats"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    filters: dict[str, Callable[..., object]] = {
        "hours": words.hours,
        "percent": words.percent,
        "points": words.points,
        "money": lambda value: words.money(value, report.about.currency),
        "clean": words.clean,
        "short": lambda name: words.short(words.clean(name)),
        "folded": lambda hosts: words.clean(words.folded(hosts)),
        "commands": charts.commands,
    }
    environment.filters.update(filters)
    return environment.get_template("page.html.j2").render(
        r=report,
        about=report.about,
        when=when(report.about),
        size=words.size(report),
        charts=charts,
        colours=COLOURS,
        name=words.name,
        level_names=words.LEVEL_NAMES,
        share=words.share,
        difference=words.difference,
        explained=words.explained,
        rest=words.rest,
        tables=[(level, title, report.of(level)) for level, title in TABLES],
        most=MOST_GROUPS,
        in_full=IN_FULL,
    )


def when(about: About) -> str:
    """The period in words; an end at midnight is the day before."""
    start, end = datetime.fromisoformat(about.start), datetime.fromisoformat(about.end)
    if (start.hour, start.minute, end.hour, end.minute) == (0, 0, 0, 0):
        last = end - timedelta(days=1)
        return _day(start) if last.date() == start.date() else f"{_day(start)} to {_day(last)}"
    return f"{_day(start)} {start:%H:%M} to {_day(end)} {end:%H:%M}"


def _day(at: datetime) -> str:
    return f"{at:%a} {at.day} {at:%b} {at.year}"
