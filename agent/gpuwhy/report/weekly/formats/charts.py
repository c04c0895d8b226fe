"""Pictures as SVG inside the page: no script, no outside file, each with a title that says what it shows.

Text in them comes from the report and is escaped like all else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from markupsafe import Markup, escape

from gpuwhy.report.weekly import words
from gpuwhy.report.weekly.types import Day, HeatRow, Hours, Report, Week
from gpuwhy.verdict.vocabulary import VERDICTS

USEFUL, HEADROOM, FREE, REST = "useful", "headroom", "free", "unattributed"
# Levels of colour in the heat map, by the least share that is lost.
SHADES = (0.0, 0.1, 0.3, 0.6)
STEPS = ("under 10 %", "to 30 %", "to 60 %", "more")


@dataclass(frozen=True, slots=True)
class Band:
    """A part of observed time: its name, its style class, and its hours."""

    name: str
    style: str
    hours: float


def bands(hours: Hours, lost: Mapping[str, float]) -> list[Band]:
    """The parts that add up to observed time, in the order in which they are stacked."""
    return [
        Band(USEFUL, USEFUL, hours.useful),
        Band(HEADROOM, HEADROOM, hours.headroom or 0.0),
        *(
            Band(f"lost to {words.short(words.clean(verdict))}", style(verdict), each)
            for verdict, each in lost.items()
        ),
        Band(REST, REST, hours.unattributed),
        Band(FREE, FREE, hours.free or 0.0),
    ]


def style(verdict: str) -> str:
    return f"v-{verdict}" if verdict in VERDICTS else "v-unknown"


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; everything that is no Markup is escaped."""
    given = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), given, inner)  # noqa: S704  names are ours


def _svg(width: float, height: float, title: str, *children: Markup, **attributes: object) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
        **attributes,
    )


def total_bar(hours: Hours, lost: Mapping[str, float]) -> Markup:
    """One bar of all observed time."""
    shown = [band for band in bands(hours, lost) if band.hours > 0]
    whole = sum(band.hours for band in shown) or 1.0
    title = "Observed GPU-hours: " + ", ".join(f"{band.name} {words.hours(band.hours)}" for band in shown)
    return _svg(
        1000,
        30,
        title,
        *_pieces(shown, 1000 / whole, 30),
        preserveAspectRatio="none",
        class_="total",
    )


def _pieces(shown: Sequence[Band], scale: float, height: float) -> Iterator[Markup]:
    at = 0.0
    for band in shown:
        wide = band.hours * scale
        said = tag("title", f"{band.name}: {words.hours(band.hours)} GPU-hours")
        yield tag("rect", said, x=f"{at:.2f}", y=0, width=f"{wide:.2f}", height=height, class_=band.style)
        at += wide


@dataclass(frozen=True, slots=True)
class _Plot:
    """A vertical axis from 0 to a round number, and where it is drawn."""

    left: float
    right: float
    top: float
    height: float
    ceiling: float
    step: float

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.ceiling)

    def lines(self, form: Callable[[float], str]) -> Iterator[Markup]:
        for number in range(round(self.ceiling / self.step) + 1):
            y = self.y(number * self.step)
            yield tag("line", x1=self.left, x2=self.right, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
            said = form(number * self.step)
            yield tag("text", said, x=self.left - 5, y=f"{y + 3.5:.1f}", text_anchor="end", class_="dim")


WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440.0, 230.0, 38.0, 12.0, 34.0


def _plot(most: float, right: float = WIDTH) -> _Plot:
    """An axis that has room for the largest value."""
    power = 10.0 ** math.floor(math.log10(most)) if most > 0 else 1.0
    ceiling, lines = next(
        (power * times, lines)
        for times, lines in (
            (1, 2),
            (1.5, 3),
            (2, 2),
            (3, 3),
            (4, 2),
            (5, 5),
            (6, 3),
            (8, 4),
            (10, 2),
            (15, 3),
        )
        if power * times >= most * 0.999
    )
    return _Plot(LEFT, right, TOP, HEIGHT - TOP - BOTTOM, ceiling, ceiling / lines)


def days(report: Report) -> Markup:
    """A stacked bar for each day."""
    plot = _plot(max((day.hours.observed for day in report.days), default=0.0))
    parts = list(plot.lines(lambda value: f"{value:,g}"))
    slot = (WIDTH - LEFT) / max(1, len(report.days))
    every = -(-len(report.days) // 8)
    for number, day in enumerate(report.days):
        x = LEFT + slot * (number + 0.14)
        parts += _bar(day, plot, x, slot * 0.72)
        if number % every == 0:
            at = date.fromisoformat(day.date)
            middle = f"{x + slot * 0.36:.2f}"
            parts.append(tag("text", f"{at:%a}", x=middle, y=HEIGHT - 18, text_anchor="middle"))
            said = f"{at.day} {at:%b}"
            parts.append(tag("text", said, x=middle, y=HEIGHT - 5, text_anchor="middle", class_="dim"))
    return _svg(WIDTH, HEIGHT, "GPU-hours of each day, stacked by where they went", *parts, class_="chart")


def _bar(day: Day, plot: _Plot, x: float, width: float) -> Iterator[Markup]:
    below = 0.0
    for band in bands(day.hours, day.lost):
        if band.hours > 0:
            top, bottom = plot.y(below + band.hours), plot.y(below)
            said = f"{day.date}, {band.name}: {words.hours(band.hours)} GPU-hours"
            yield tag(
                "rect",
                tag("title", said),
                x=f"{x:.2f}",
                y=f"{top:.2f}",
                width=f"{width:.2f}",
                height=f"{bottom - top:.2f}",
                class_=band.style,
            )
            below += band.hours


def slope(report: Report) -> Markup | None:
    """Lost share of observed time by verdict, week over week; None without a week to compare with."""
    weeks = [week for week in reversed(report.weeks) if week.available]
    if not weeks or not report.fleet.hours.observed:
        return None
    columns = [
        *((_short_name(week), _shares(week.lost, week.hours.observed)) for week in weeks),
        ("now", _shares(lost_by_verdict(report), report.fleet.hours.observed)),
    ]
    verdicts = list(dict.fromkeys(verdict for _, shares in columns for verdict in shares))
    plot = _plot(
        100 * max((share for _, shares in columns for share in shares.values()), default=0.0), WIDTH - 128
    )
    parts = list(plot.lines(lambda value: f"{value:g} %"))
    across = (plot.right - LEFT) / (len(columns) - 1)
    for number, (name, _) in enumerate(columns):
        anchor = "start" if not number else "end" if number == len(columns) - 1 else "middle"
        x = f"{LEFT + number * across:.1f}"
        parts.append(tag("text", name, x=x, y=HEIGHT - 18, text_anchor=anchor))
    ends: dict[str, float] = {}
    for verdict in verdicts:
        shares = [each.get(verdict, 0.0) for _, each in columns]
        places = [(LEFT + number * across, plot.y(100 * share)) for number, share in enumerate(shares)]
        said = f"{words.clean(verdict)}: {words.percent(shares[-2])} in the last week that counts, {words.percent(shares[-1])} now"
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(tag("polyline", tag("title", said), points=line, class_=f"line {style(verdict)}"))
        parts += [
            tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3.2, class_=style(verdict)) for x, y in places
        ]
        ends[verdict] = places[-1][1]
    for verdict, y in _apart(ends, 14, TOP, plot.y(0) + 4):
        said = f"{words.short(words.clean(verdict), 12)} {words.percent(columns[-1][1].get(verdict, 0.0))}"
        parts.append(tag("text", said, x=plot.right + 9, y=f"{y + 4:.1f}"))
    title = "Share of observed time that was lost, by verdict, in the weeks before and now"
    return _svg(WIDTH, HEIGHT, title, *parts, class_="chart")


def _shares(lost: Mapping[str, float], observed: float) -> dict[str, float]:
    return {verdict: hours / observed for verdict, hours in lost.items()} if observed else {}


def _short_name(week: Week) -> str:
    start = date.fromisoformat(week.start[:10])
    return f"{start.day} {start:%b}"


def lost_by_verdict(report: Report) -> dict[str, float]:
    lost: dict[str, float] = {}
    for loss in report.fleet.losses:
        lost[loss.verdict] = lost.get(loss.verdict, 0.0) + loss.hours
    return {verdict: lost[verdict] for verdict in dict.fromkeys((*VERDICTS, *lost)) if verdict in lost}


def fleet_bands(report: Report) -> list[Band]:
    """The parts of the whole period that are there."""
    return [band for band in bands(report.fleet.hours, lost_by_verdict(report)) if band.hours > 0]


def fleet_bar(report: Report) -> Markup:
    return total_bar(report.fleet.hours, lost_by_verdict(report))


def _apart(
    wanted: Mapping[str, float], least: float, top: float, bottom: float
) -> Iterable[tuple[str, float]]:
    """Places for labels that do not overlap, as near as can be to where they are wanted."""
    names = sorted(wanted, key=lambda name: wanted[name])
    places: list[float] = []
    for name in names:
        places.append(max(wanted[name], places[-1] + least if places else top))
    limit = bottom
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - least
    return zip(names, places, strict=True)


def heat(row: HeatRow) -> Markup:
    """One host's hours as cells: hue by the verdict that lost most, strength by how much was lost."""
    cells: dict[str, list[str]] = {}
    for hour, (verdict, lost) in enumerate(zip(row.verdicts, row.lost, strict=True)):
        if lost is None:
            kind = "unseen"
        elif lost <= 0.005:
            continue
        else:
            kind = f"{style(verdict)} s{sum(lost >= least for least in SHADES)}"
        cells.setdefault(kind, []).append(f"M{hour} 0h1v1h-1z")
    seen = [lost for lost in row.lost if lost is not None]
    title = f"{words.clean(row.host)}: nothing observed"
    if seen:
        title = f"{words.clean(row.host)}: {words.percent(sum(seen) / len(seen))} lost in the mean hour"
    return _svg(
        max(1, len(row.lost)),
        1,
        title,
        *(tag("path", d="".join(places), class_=kind) for kind, places in cells.items()),
        preserveAspectRatio="none",
        class_="cells",
    )


def commands(sentence: str) -> Markup:
    """A sentence whose commands stand in backticks."""
    return Markup("").join(
        tag("code", part) if number % 2 else escape(part) for number, part in enumerate(sentence.split("`"))
    )


def axis(report: Report) -> list[tuple[str, int]]:
    """Days below the heat map, and how many hours wide each is."""
    return [(f"{date.fromisoformat(day.date):%a} {day.date[8:]}", day.hours_expected) for day in report.days]
