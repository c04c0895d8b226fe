"""Boards, panels and queries in our own words, and what grafanalib makes of them.

The only module that imports grafanalib. To add a kind of panel, add a subclass of ``Panel`` here and, where
grafanalib writes it in a shape that Grafana has left behind, its mend to ``modern.py``.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from gpuwhy.config import pip_install

try:
    from grafanalib import _gen, core
except ImportError as error:
    raise ImportError(
        f"dashboards need grafanalib: {pip_install('grafanalib')}", name="grafanalib"
    ) from error

from gpuwhy.render.modern import modernise
from gpuwhy.verdict import colours

WIDTH = 24
# Twice a scrape interval of a minute then fits into $__rate_interval, which is four of these or more.
EVERY_SCRAPE = "30s"
# The legend of a row that is no MIG instance ends in an empty name.
_NO_MIG = {"id": "renameByRegex", "options": {"regex": "/ MIG (?=$| )/", "renamePattern": ""}}
_SERIES = re.compile(r"[a-z]+:gpuwhy_\w+:\w+|\bgpuwhy_\w+|\bprocess_\w+_(?:bytes|total)\b")


@dataclass(frozen=True, slots=True)
class Link:
    """Where a click leads."""

    title: str
    url: str


def to_board(title: str, uid: str, **variables: str) -> Link:
    """A link to another dashboard that keeps time and data source, and selects what ``variables`` say in
    Grafana's words, such as ``${__data.fields.Host}``.
    """
    chosen = "".join(f"&var-{name}={value[:-1]}:percentencode}}" for name, value in variables.items())
    return Link(title, f"/d/{quote(uid)}?${{__url_time_range}}&${{datasource:queryparam}}{chosen}")


@dataclass(frozen=True, slots=True)
class Query:
    """A query over the range; ``legend`` names labels in double braces.

    ``dashed`` is for what limits the others, ``mirrored`` for what goes the other way, below zero.
    """

    expr: str
    legend: str
    look: Literal["plain", "dashed", "mirrored"] = "plain"


@dataclass(frozen=True, slots=True)
class Shown:
    """What stands for a value: a text, a colour."""

    text: str
    colour: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel(ABC):
    """What every panel has. ``about`` says what it shows, ``advice`` what to do with it, both in sentences;
    the description adds the series that it reads. ``empty`` says why nothing may be shown.

    ``unit`` is Grafana's name of it; ``every`` the least step. A ``width`` of 0 is a share of what is left.
    """

    INSTANT: ClassVar[bool] = False  # whether it is read at the end of the range only

    title: str
    about: str
    advice: str
    empty: str
    unit: str
    queries: tuple[Query, ...] = ()
    decimals: int | None = None
    width: int = 0
    every: str = EVERY_SCRAPE
    colours: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    @property
    def exprs(self) -> tuple[str, ...]:
        return tuple(query.expr for query in self.queries)

    @property
    def number(self) -> int:
        """The panel's id, which stays when others come and go: links to one panel hold it."""
        return zlib.crc32(self.title.encode()) % 1_000_000 + 1

    @property
    def description(self) -> str:
        names = dict.fromkeys(name for expr in self.exprs for name in _SERIES.findall(expr))
        return f"{self.about} {self.advice}\n\nSource: {', '.join(f'`{name}`' for name in names)}."

    @abstractmethod
    def draw(self) -> core.Panel:
        """The panel as grafanalib has it, without a place."""

    def _panel(self, kind: type[core.Panel], more: dict[str, Any], **given: Any) -> core.Panel:
        defaults = {
            "unit": self.unit,
            "noValue": self.empty,
            "decimals": self.decimals,
            "links": [_link(link) for link in self.links],
        }
        config = {"defaults": defaults | more.pop("defaults", {})}
        if "overrides" in more:
            config["overrides"] = more.pop("overrides")
        return kind(
            title=self.title,
            description=self.description,
            id=self.number,
            interval=self.every,
            targets=list(self._targets()),
            extraJson={"fieldConfig": config, **more},
            **given,
        )

    def _targets(self) -> Iterator[core.Target]:
        for letter, query in zip(ascii_uppercase, self.queries, strict=False):
            yield core.Target(expr=query.expr, legendFormat=query.legend, refId=letter, instant=self.INSTANT)

    def _transformations(self) -> list[dict[str, Any]]:
        return [_NO_MIG] if any("{{mig}}" in query.legend for query in self.queries) else []

    def _overrides(self) -> list[dict[str, Any]]:
        named = [_override("byName", name, color=_fixed(colour)) for name, colour in self.colours.items()]
        return named + [
            _override("byFrameRefID", letter, **_LOOKS[query.look])
            for letter, query in zip(ascii_uppercase, self.queries, strict=False)
            if query.look != "plain"
        ]


_LOOKS: dict[str, dict[str, Any]] = {
    "dashed": {
        "color": {"mode": "fixed", "fixedColor": colours.NEUTRAL},
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.fillOpacity": 0,
        "custom.stacking": {"mode": "none", "group": "A"},
    },
    "mirrored": {"custom.transform": "negative-Y"},
}


def _fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def _link(link: Link) -> dict[str, Any]:
    return {"title": link.title, "url": link.url, "targetBlank": link.url.startswith("http")}


def _override(matcher: str, option: str, **properties: Any) -> dict[str, Any]:
    return {
        "matcher": {"id": matcher, "options": option},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def _mappings(texts: Mapping[str, Shown]) -> list[dict[str, Any]]:
    options = {
        value: {"index": index, "text": shown.text} | ({"color": shown.colour} if shown.colour else {})
        for index, (value, shown) in enumerate(texts.items())
    }
    return [{"type": "value", "options": options}] if options else []


def _steps(steps: Iterable[tuple[float | None, str]]) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Panel):
    """Values over time: lines, or where ``stacked`` areas or ``bars`` that add up."""

    stacked: bool = False
    bars: bool = False
    beside: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    means: bool = False
    latest: bool = False

    def draw(self) -> core.Panel:
        calcs = [name for name, asked in (("lastNotNull", self.latest), ("mean", self.means)) if asked]
        legend = {"showLegend": True, "calcs": calcs}
        return self._panel(
            core.TimeSeries,
            {
                "defaults": {"min": self.minimum, "max": self.maximum},
                "options": {"legend": legend},
            },
            drawStyle="bars" if self.bars else "line",
            fillOpacity=80 if self.stacked else 0,
            lineWidth=0 if self.bars else 1,
            barAlignment=-1 if self.bars else 0,
            stacking={"mode": "normal" if self.stacked else "none", "group": "A"},
            showPoints="never",
            legendDisplayMode="table" if calcs else "list",
            legendPlacement="right" if self.beside else "bottom",
            tooltipMode="multi",
            tooltipSort="none" if self.stacked else "desc",
            overrides=self._overrides(),
            transformations=self._transformations(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Panel):
    """One figure, or one for each query, at the end of the range.

    ``steps`` colours values from a number on, where a colour's meaning is sure; else the figure is plain.
    """

    INSTANT: ClassVar[bool] = True

    steps: tuple[tuple[float | None, str], ...] = ()

    def draw(self) -> core.Panel:
        several = len(self.queries) > 1
        return self._panel(
            core.Stat,
            {
                "defaults": {"thresholds": _steps(self.steps or ((None, "text"),))},
                "options": {"text": {"titleSize": 14, "valueSize": 28}} if several else {},
            },
            color={"mode": "thresholds"},
            colorMode="value",
            graphMode="none",
            alignment="center" if several else "auto",
            orientation="auto",
            textMode="value_and_name" if several else "value",
            reduceCalc="lastNotNull",
            noValue=self.empty,
            overrides=self._overrides(),
            transformations=self._transformations(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Panel):
    """One bar for each series at the end of the range, in the order of the results."""

    INSTANT: ClassVar[bool] = True

    maximum: float | None = None

    def draw(self) -> core.Panel:
        defaults = {"min": 0, "max": self.maximum, "color": _fixed(colours.NEUTRAL)}
        return self._panel(
            core.BarGauge,
            {
                "defaults": defaults,
                "overrides": self._overrides(),
                "options": {"text": {"titleSize": 13, "valueSize": 16}},
            },
            displayMode="basic",
            orientation="horizontal",
            calc="lastNotNull",
            format=self.unit,
            min=0,
            max=self.maximum,
            thresholds=[],
            transformations=self._transformations(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Panel):
    """States over time, a band for each series; ``texts`` says what a value stands for."""

    texts: Mapping[str, Shown]

    def draw(self) -> core.Panel:
        return self._panel(
            core.StateTimeline,
            {
                "defaults": {
                    "mappings": _mappings(self.texts),
                    "thresholds": _steps(((None, colours.NEUTRAL),)),
                },
                "options": {"legend": {"showLegend": True}},
            },
            fillOpacity=85,
            showValue="never",
            transformations=self._transformations(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: the values of the query ``expr``, or of ``label`` in its results, or in all where it has none.

    ``width`` is in pixels, 0 for what is left. A ``bar`` is as long as the value is near the column's
    greatest. ``texts`` says what stands for a value.
    """

    title: str
    label: str = ""
    expr: str = ""
    unit: str = "string"
    decimals: int | None = None
    width: int = 0
    bar: bool = False
    maximum: float | None = None
    texts: Mapping[str, Shown] = field(default_factory=dict)
    link: Link | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Panel):
    """Rows at the end of the range; the results of several columns join where the labels that they share agree.

    ``worst`` is the title of the column that is sorted by, greatest first.
    """

    columns: tuple[Column, ...]
    worst: str
    unit: str = "string"
    ascending: bool = False

    @property
    def exprs(self) -> tuple[str, ...]:
        return tuple(column.expr for column in self.columns if column.expr)

    def draw(self) -> core.Panel:
        fields = dict(self._fields())
        order = {name: index for index, name in enumerate(fields)}
        joining = [{"id": "merge", "options": {}}] if len(self.exprs) > 1 else []
        return self._panel(
            core.Table,
            {"options": {"cellHeight": "sm"}},
            sortBy=[core.TableSortByField(displayName=self.worst, desc=not self.ascending)],
            overrides=[_override("byName", column.title, **_cell(column)) for column in self.columns],
            transformations=[
                *joining,
                {"id": "filterFieldsByName", "options": {"include": {"names": list(fields)}}},
                {"id": "organize", "options": {"indexByName": order, "renameByName": fields}},
                {"id": "sortBy", "options": {"sort": [{"field": self.worst, "desc": not self.ascending}]}},
            ],
        )

    def _fields(self) -> Iterator[tuple[str, str]]:
        """Names in the results, and the titles they get. Values are named by the letter of their query; a lone
        query's are not, nor may be the first's where no other finds anything.
        """
        letters = iter(ascii_uppercase)
        for column in self.columns:
            letter = next(letters) if column.expr else ""
            if letter == "A" and not column.label:
                yield "Value", column.title
            if column.label or len(self.exprs) > 1:
                yield column.label or f"Value #{letter}", column.title

    def _targets(self) -> Iterator[core.Target]:
        for letter, expr in zip(ascii_uppercase, self.exprs, strict=False):
            yield core.Target(expr=expr, refId=letter, instant=True, format="table")


def _cell(column: Column) -> dict[str, Any]:
    # What stands for an empty label goes into links as well, and has to stay empty there.
    plain = column.label and not column.expr
    look: dict[str, Any] = {"unit": column.unit, "noValue": "" if plain else "-"}
    if column.decimals is not None:
        look["decimals"] = column.decimals
    if column.width:
        look["custom.width"] = column.width
    if column.bar:
        look["custom.cellOptions"] = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        look |= {"min": 0, "fieldMinMax": True, "color": _fixed(colours.NEUTRAL)}
    if column.maximum is not None:
        look["max"] = column.maximum
    if column.texts:
        look |= {"mappings": _mappings(column.texts), "custom.align": "left"}
    if any(shown.colour for shown in column.texts.values()):
        look |= {
            "custom.cellOptions": {"type": "color-background", "mode": "basic"},
            "color": _fixed("transparent"),
        }
    if column.link:
        look["links"] = [_link(column.link)]
    return look


# --- boards


@dataclass(frozen=True, slots=True)
class Line:
    """Panels side by side, of one height; widths of 0 share what the others leave."""

    height: int
    panels: tuple[Panel, ...]

    def widths(self) -> list[int]:
        """Raises ValueError where they do not fill the grid."""
        asked = [panel.width for panel in self.panels]
        if free := asked.count(0):
            share = (WIDTH - sum(asked)) // free
            asked = [width or share for width in asked]
        if sum(asked) != WIDTH or min(asked) < 1:
            titles = ", ".join(panel.title for panel in self.panels)
            raise ValueError(f"{titles}: widths {asked} do not add up to {WIDTH}")
        return asked


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a heading, "" for none; a closed one shows them on a click."""

    title: str
    lines: tuple[Line, ...]
    closed: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for line in self.lines for panel in line.panels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A selection at the top: the values of ``label`` in ``series``."""

    name: str
    title: str
    series: str
    label: str
    several: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A mark on all charts for as long as ``expr`` is above 0. It has a switch, with its ``name``, at the top.

    ``title`` and ``text`` name labels in double braces; Grafana puts the name of one that is missing. ``tags``
    are labels whose values are shown where they are there.
    """

    name: str
    expr: str
    title: str
    text: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The contents of a dashboard. ``since`` is how far it looks back, ``refresh`` "" for never."""

    since: str
    refresh: str
    variables: tuple[Variable, ...] = ()
    notes: tuple[Note, ...] = ()
    sections: tuple[Section, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for section in self.sections for panel in section.panels)


def grafana(
    board: Board, *, uid: str, title: str, description: str, links: Iterable[Link] = ()
) -> dict[str, Any]:
    """The dashboard as Grafana 10 to 13 read it. Raises ValueError where two panels have one id."""
    numbers = [panel.number for panel in board.panels]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{uid}: two panels have one id; give them titles that differ")
    drawn = core.Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=["gpuwhy"],
        timezone="browser",
        time=core.Time(f"now-{board.since}", "now"),
        refresh=board.refresh,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        templating=core.Templating(list=list(_variables(board.variables))),
        annotations=core.Annotations(list=[_annotation(note) for note in board.notes]),
        links=[_board_link(link) for link in links],
        panels=list(_placed(board.sections)),
    )
    return modernise(json.loads(json.dumps(drawn.to_json_data(), cls=_gen.DashboardEncoder)))


def _annotation(note: Note) -> dict[str, Any]:
    return {
        "name": note.name,
        "enable": True,
        "hide": False,
        "iconColor": colours.BAD,
        # Versions differ in whether they ask for this or for the target that is made of it.
        "expr": note.expr,
        "step": "60s",
        "titleFormat": note.title,
        "textFormat": note.text,
        "tagKeys": ",".join(note.tags),
    }


def _board_link(link: Link) -> core.DashboardLink:
    outside = link.url.startswith("http")
    return core.DashboardLink(
        type="link",
        title=link.title,
        uri=link.url,
        icon="doc" if outside else "dashboard",
        keepTime=not outside,
        includeVars=not outside,
        targetBlank=outside,
    )


def _variables(variables: Iterable[Variable]) -> Iterator[core.Template]:
    yield core.Template(name="datasource", label="Data source", type="datasource", query="prometheus")
    for each in variables:
        yield core.Template(
            name=each.name,
            label=each.title,
            query=f"label_values({each.series}, {each.label})",
            refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
            sort=core.SORT_NUMERIC_ASC if each.label == "gpu" else core.SORT_ALPHA_ASC,
            multi=each.several,
            includeAll=each.several,
            allValue=".*" if each.several else None,
        )


def _placed(sections: Iterable[Section]) -> Iterator[core.Panel]:
    """Panels with their places: each line under the one before, closed sections below their headings."""
    y = 0
    for section in sections:
        row = None
        if section.title:
            number = zlib.crc32(f"section {section.title}".encode()) % 1_000_000 + 1
            row = core.RowPanel(title=section.title, collapsed=section.closed, id=number)
            row.gridPos = core.GridPos(h=1, w=WIDTH, x=0, y=y)
            yield row
            y += 1
        inside = row.panels if row and section.closed else None
        below = y
        for line in section.lines:
            x = 0
            for panel, width in zip(line.panels, line.widths(), strict=True):
                drawn = panel.draw()
                drawn.gridPos = core.GridPos(h=line.height, w=width, x=x, y=below)
                x += width
                if inside is None:
                    yield drawn
                else:
                    inside.append(drawn)
            below += line.height
        # What is closed takes no room until it is opened; Grafana then moves the rest down.
        y = y if section.closed else below
