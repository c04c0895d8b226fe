"""grafanalib's dashboards as Grafana 10 to 13 write them.

grafanalib stopped at the shapes of Grafana 8 and names schema version 12, so that Grafana would run every
migration there is. Here its JSON gets the shapes of schema version 39, which these versions read as they are,
and loses what they no longer know.
"""

from __future__ import annotations

from typing import Any

SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# What is kept, in the order in which it is written; the rest is of older versions.
_DASHBOARD = ("title", "description", "uid", "tags", "links", "time", "refresh", "timezone", "graphTooltip")
_PANEL = (
    "id",
    "type",
    "title",
    "description",
    "gridPos",
    "interval",
    "transformations",
    "fieldConfig",
    "options",
)
_ROW = ("id", "type", "title", "gridPos", "collapsed")
_VARIABLE = ("name", "label", "type", "query", "refresh", "sort", "multi", "includeAll", "allValue")


def modernise(old: dict[str, Any]) -> dict[str, Any]:
    """The dashboard in its modern shape; ``old`` is plain JSON data."""
    return {
        **_kept(old, _DASHBOARD),
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "timepicker": {},
        "annotations": {"list": [_annotation(each) for each in old["annotations"]["list"]]},
        "templating": {"list": [_variable(each) for each in old["templating"]["list"]]},
        "panels": [_panel(each) for each in old["panels"]],
    }


def _kept(old: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: old[name] for name in names if old.get(name) is not None}


def _annotation(old: dict[str, Any]) -> dict[str, Any]:
    target = {"refId": "Anno", "expr": old["expr"], "interval": old["step"], "range": True, "instant": False}
    return {**old, "datasource": DATASOURCE, "target": {**target, "datasource": DATASOURCE}}


def _variable(old: dict[str, Any]) -> dict[str, Any]:
    new = _kept(old, _VARIABLE) | {"current": {}, "hide": 0}
    if old["type"] != "query":
        return {name: value for name, value in new.items() if name not in {"sort", "allValue"}} | {
            "options": []
        }
    return new | {
        "datasource": DATASOURCE,
        "definition": old["query"],
        "query": {"query": old["query"], "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "options": [],
        "regex": "",
    }


def _panel(old: dict[str, Any]) -> dict[str, Any]:
    if old["type"] == "row":
        return _kept(old, _ROW) | {"panels": [_panel(each) for each in old["panels"]]}
    if old["type"] in _SHAPES:
        _SHAPES[old["type"]](old)
    new = _kept(old, _PANEL) | {
        "datasource": DATASOURCE,
        "targets": [_target(each) for each in old["targets"]],
    }
    config = new["fieldConfig"]
    config["defaults"] = _pruned(config["defaults"])
    config["overrides"] = config.get("overrides", [])
    return new


def _pruned(old: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing. The null of the first threshold says that it has no lower end."""
    return {
        name: _pruned(value) if isinstance(value, dict) else value
        for name, value in old.items()
        if value not in (None, [], {})
    }


def _target(old: dict[str, Any]) -> dict[str, Any]:
    legend = {} if old["format"] == "table" else {"legendFormat": old["legendFormat"]}
    return {
        "refId": old["refId"],
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": old["expr"],
        "format": old["format"],
        "instant": old["instant"],
        "range": not old["instant"],
        **legend,
    }


def _time_series(panel: dict[str, Any]) -> None:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    custom["scaleDistribution"] = {"type": custom["scaleDistribution"]["type"]}
    del panel["fieldConfig"]["defaults"]["thresholds"]


def _bar_gauge(panel: dict[str, Any]) -> None:
    old = panel["options"]
    panel["options"] = {
        "displayMode": old["displayMode"],
        "orientation": old["orientation"],
        "reduceOptions": {"calcs": old["fieldOptions"]["calcs"], "fields": "", "values": False},
        "showUnfilled": True,
        "valueMode": "text",
        "namePlacement": "auto",
        "sizing": "manual",
        "minVizHeight": 16,
        "maxVizHeight": 40,
        "minVizWidth": 8,
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
        "text": old["text"],
    }
    del panel["fieldConfig"]["defaults"]["thresholds"]


def _stat(panel: dict[str, Any]) -> None:
    panel["options"] |= {"wideLayout": True, "showPercentChange": False}


def _state_timeline(panel: dict[str, Any]) -> None:
    panel["options"]["tooltip"]["sort"] = "none"


def _table(panel: dict[str, Any]) -> None:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    custom["cellOptions"] = {"type": custom.pop("displayMode")}
    custom["inspect"] = False
    del panel["fieldConfig"]["defaults"]["thresholds"]


_SHAPES = {
    "timeseries": _time_series,
    "bargauge": _bar_gauge,
    "stat": _stat,
    "state-timeline": _state_timeline,
    "table": _table,
}
