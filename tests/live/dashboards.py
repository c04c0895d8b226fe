"""A dashboard's queries as Grafana sends them: panels, variables, and what stands for ``$__rate_interval``."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .programs import Prometheus

SCRAPE_S = 30
POINTS = 300  # of a range, about as many as a panel has pixels to show
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
LEFT_OVER = re.compile(r"\$\w+|\$\{|\[\[")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
_LABEL_VALUES = re.compile(r"label_values\(\s*(?:(?P<match>.+),\s*)?(?P<label>\w+)\s*\)", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    panel: str
    ref: str
    expr: str
    legend: str
    instant: bool
    table: bool
    least_s: float
    range_s: float

    def step_s(self) -> float:
        """The step at which it is drawn."""
        return max(self.least_s, SCRAPE_S, self.range_s / POINTS // SCRAPE_S * SCRAPE_S)

    def filled(self, variables: Mapping[str, str]) -> str:
        """The query with everything put in that Grafana puts in."""
        step = self.step_s()
        given = {
            "__rate_interval": f"{max(step + self.least_s, 4 * self.least_s):.0f}s",
            "__interval": f"{step:.0f}s",
            "__interval_ms": f"{1000 * step:.0f}",
            "__range": f"{self.range_s:.0f}s",
            "__range_s": f"{self.range_s:.0f}",
            "__range_ms": f"{1000 * self.range_s:.0f}",
            **variables,
        }
        return substituted(self.expr, given)


def substituted(text: str, given: Mapping[str, str]) -> str:
    """Text with those variables put in that are given."""
    return _VARIABLE.sub(lambda found: given.get(found[1] or found[2], found[0]), text)


def seconds(text: str) -> float:
    """Of ``30s`` or ``now-7d``; 0 for nothing."""
    found = re.search(r"(\d+)([smhdw])$", text or "")
    return int(found[1]) * UNITS[found[2]] if found else 0.0


@dataclass(frozen=True)
class Dashboard:
    """A rendered dashboard."""

    uid: str
    content: Mapping[str, Any]

    @property
    def range_s(self) -> float:
        """The range that it opens with."""
        return seconds(self.content["time"]["from"])

    def targets(self) -> Iterator[Target]:
        """The queries of all panels, those of collapsed rows too, and of annotations."""
        for panel in panels(self.content["panels"]):
            for target in panel.get("targets", []):
                yield Target(
                    panel["title"],
                    target["refId"],
                    target["expr"],
                    target.get("legendFormat", ""),
                    bool(target.get("instant")),
                    target.get("format") == "table",
                    seconds(target.get("interval") or panel.get("interval") or "") or SCRAPE_S,
                    seconds(panel.get("timeFrom") or "") or self.range_s,
                )
        for note in self.content.get("annotations", {}).get("list", []):
            if note.get("expr"):
                least, span = float(SCRAPE_S), self.range_s
                yield Target(f"annotation {note['name']}", "", note["expr"], "", False, False, least, span)

    def variables(self, server: Prometheus, now_s: float) -> Iterator[dict[str, str]]:
        """Every choice of what cannot be All; the others are All."""
        choices: list[dict[str, str]] = [{}]
        for variable in self.content["templating"]["list"]:
            if variable["type"] == "datasource":
                continue
            choices = [
                {**known, variable["name"]: value}
                for known in choices
                for value in self._values(variable, known, server, now_s)
            ]
        yield from choices

    def _values(
        self, variable: Mapping[str, Any], known: Mapping[str, str], server: Prometheus, now_s: float
    ) -> list[str]:
        if variable["type"] == "query":
            query = substituted(variable["query"]["query"], known)
            found = _LABEL_VALUES.fullmatch(query)
            assert found, f"{variable['name']}: {query}"
            assert not LEFT_OVER.search(query), f"{variable['name']}: {query} asks for a variable after it"
            values = server.label_values(
                found["label"], found["match"] or '{__name__!=""}', now_s - self.range_s, now_s
            )
        else:
            values = [value.strip() for value in variable["query"].split(",")]
        # All, written as ".*", is a choice even where a label is empty everywhere.
        assert values or variable.get("allValue"), f"{self.uid}: variable {variable['name']} has no values"
        if variable.get("includeAll"):
            return [variable.get("allValue") or "|".join(re.escape(value) for value in values)]
        return values


def panels(given: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in given:
        yield panel
        yield from panels(panel.get("panels", []))


def load(folder: Path) -> list[Dashboard]:
    """The rendered dashboards, in the order of their files."""
    contents = [json.loads(file.read_text()) for file in sorted(folder.glob("gpuwhy-*.json"))]
    return [Dashboard(content["uid"], content) for content in contents]


def ask(server: Prometheus, target: Target, expr: str, now_s: float) -> list[dict[str, Any]]:
    """The series that a panel gets."""
    if target.instant:
        return server.query(expr, now_s)
    step = target.step_s()
    end = now_s // step * step
    return server.query_range(expr, end - target.range_s // step * step, end, step)


def labels_of_legend(legend: str) -> list[str]:
    """The labels that a legend shows."""
    return list(itertools.chain(re.findall(r"{{\s*(\w+)\s*}}", legend)))
