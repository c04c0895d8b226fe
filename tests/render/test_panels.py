"""Boards in our own words, and the JSON that Grafana gets."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gpuwhy.render.panels import (
    Bars,
    Board,
    Column,
    Line,
    Lines,
    Note,
    Number,
    Panel,
    Query,
    Section,
    Shown,
    Table,
    Timeline,
    Variable,
    grafana,
    to_board,
)
from gpuwhy.verdict import colours

WORDS = {"about": "What it shows.", "advice": "What to do.", "empty": "nothing there", "unit": "watt"}
POWER = Query("sum by (gpu, mig) (gpuwhy_power_watts)", "GPU {{gpu}} MIG {{mig}}")


def lines(title: str = "Power", **given: Any) -> Lines:
    return Lines(title=title, **{**WORDS, "queries": (POWER,), **given})


def board(*sections: Section, **given: Any) -> dict[str, Any]:
    contents = Board(since="1h", refresh="", sections=sections, **given)
    return grafana(contents, uid="gpuwhy-x", title="X", description="Why?")


def drawn(panel: Panel) -> dict[str, Any]:
    [only] = board(Section("", (Line(8, (panel,)),)))["panels"]
    return only


def places(panels: list[dict[str, Any]]) -> list[tuple[str, int, int, int, int]]:
    return [(each["title"], *(each["gridPos"][key] for key in "xywh")) for each in panels]


def test_lines_follow_each_other_and_share_the_width() -> None:
    """Widths that are not given share what is left; a heading takes one row."""
    made = board(
        Section("", (Line(4, (lines("a"), lines("b", width=8), lines("c"))), Line(6, (lines("d"),)))),
        Section("More", (Line(5, (lines("e"), lines("f"))),)),
    )
    assert places(made["panels"]) == [
        ("a", 0, 0, 8, 4),
        ("b", 8, 0, 8, 4),
        ("c", 16, 0, 8, 4),
        ("d", 0, 4, 24, 6),
        ("More", 0, 10, 24, 1),
        ("e", 0, 11, 12, 5),
        ("f", 12, 11, 12, 5),
    ]


def test_a_closed_section_holds_its_panels() -> None:
    """They lie inside the heading, below it, and take no room from what follows."""
    made = board(
        Section("Closed", (Line(5, (lines("a"),)),), closed=True),
        Section("Open", (Line(5, (lines("b"),)),)),
    )
    closed, opened, b = made["panels"]
    assert closed["collapsed"] is True
    assert places(closed["panels"]) == [("a", 0, 1, 24, 5)]
    assert places([closed, opened, b]) == [("Closed", 0, 0, 24, 1), ("Open", 0, 1, 24, 1), ("b", 0, 2, 24, 5)]


@pytest.mark.parametrize("widths", [(8, 8), (20, 8), (5, 0, 0), (24, 0)])
def test_a_line_that_does_not_fill_the_grid_is_refused(widths: tuple[int, ...]) -> None:
    """Holes and overlaps are named by the panels that make them."""
    panels = tuple(lines(f"panel {index}", width=width) for index, width in enumerate(widths))
    with pytest.raises(ValueError, match="panel 0, panel 1"):
        board(Section("", (Line(8, panels),)))


def test_an_id_is_the_titles_alone() -> None:
    """Links to a panel hold its id: it stays when panels come and go."""
    assert drawn(lines())["id"] == drawn(lines(unit="watt", stacked=True))["id"] == 312037
    with pytest.raises(ValueError, match="two panels have one id"):
        board(Section("", (Line(8, (lines(), lines())),)))


def test_a_description_names_the_series() -> None:
    """What it shows, what to do, and every series of its queries once."""
    panel = lines(
        queries=(
            POWER,
            Query("gpuwhy_power_watts / gpuwhy_power_limit_watts", "a"),
            Query("fleet:gpuwhy_lost_seconds:increase1h + process_cpu_seconds_total", "b"),
        )
    )
    assert drawn(panel)["description"] == (
        "What it shows. What to do.\n\nSource: `gpuwhy_power_watts`, `gpuwhy_power_limit_watts`, "
        "`fleet:gpuwhy_lost_seconds:increase1h`, `process_cpu_seconds_total`."
    )


def test_lines_are_what_grafana_expects() -> None:
    """The whole of a chart: a change of shape is looked at once, here."""
    panel = drawn(
        lines(
            stacked=True,
            colours={"GPU 0": "#112233"},
            queries=(
                POWER,
                Query("max (gpuwhy_power_limit_watts)", "limit", "dashed"),
                Query("x", "out", "mirrored"),
            ),
        )
    )
    assert panel["type"] == "timeseries"
    assert panel["interval"] == "30s"
    assert panel["targets"][0] == {
        "refId": "A",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "editorMode": "code",
        "expr": POWER.expr,
        "format": "time_series",
        "instant": False,
        "range": True,
        "legendFormat": "GPU {{gpu}} MIG {{mig}}",
    }
    assert panel["transformations"] == [
        {"id": "renameByRegex", "options": {"regex": "/ MIG (?=$| )/", "renamePattern": ""}}
    ]
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["custom"]["stacking"] == {"mode": "normal", "group": "A"}
    assert (defaults["unit"], defaults["noValue"], defaults["min"]) == ("watt", "nothing there", 0)
    matchers = [each["matcher"] for each in panel["fieldConfig"]["overrides"]]
    assert matchers == [
        {"id": "byName", "options": "GPU 0"},
        {"id": "byFrameRefID", "options": "B"},
        {"id": "byFrameRefID", "options": "C"},
    ]
    assert {"id": "custom.transform", "value": "negative-Y"} in panel["fieldConfig"]["overrides"][2][
        "properties"
    ]
    assert panel["options"]["legend"]["showLegend"] is True


def test_a_figure_is_read_at_the_end_of_the_range() -> None:
    """It is plain unless it is told from where on a colour is sure."""
    figure = drawn(Number(title="N", **WORDS, queries=(Query("gpuwhy_power_watts", ""),)))
    [target] = figure["targets"]
    assert (target["instant"], target["range"]) == (True, False)
    steps = figure["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps == [{"value": None, "color": "text"}]
    assert figure["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
    sure = ((None, colours.GOOD), (1, colours.BAD))
    coloured = drawn(Number(title="N", **WORDS, queries=(Query("gpuwhy_power_watts", ""),), steps=sure))
    assert coloured["fieldConfig"]["defaults"]["thresholds"]["steps"] == [
        {"value": None, "color": colours.GOOD},
        {"value": 1, "color": colours.BAD},
    ]


def test_bars_have_the_modern_shape() -> None:
    """grafanalib's field options are gone, and so are its 80 of 100."""
    panel = drawn(Bars(title="B", **WORDS, queries=(POWER,), colours={"a": "#112233"}))
    assert "fieldOptions" not in panel["options"]
    assert panel["options"]["reduceOptions"] == {"calcs": ["lastNotNull"], "fields": "", "values": False}
    assert panel["options"]["valueMode"] == "text"  # dark shades cannot be read as text
    assert "max" not in panel["fieldConfig"]["defaults"]
    assert "thresholds" not in panel["fieldConfig"]["defaults"]
    assert [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]] == ["a"]


def test_a_timeline_maps_numbers_to_states() -> None:
    panel = drawn(Timeline(title="T", **WORDS, queries=(POWER,), texts={"1": Shown("starving", "#112233")}))
    assert panel["fieldConfig"]["defaults"]["mappings"] == [
        {"type": "value", "options": {"1": {"index": 0, "text": "starving", "color": "#112233"}}}
    ]


def test_the_columns_of_a_table_join() -> None:
    """Columns stand in their order under their titles, whichever query or label they come from; nothing else
    is left, and the worst is first.
    """
    table = drawn(
        Table(
            title="T",
            **WORDS,
            worst="Power",
            columns=(
                Column(
                    title="Host",
                    label="instance",
                    link=to_board("Open", "gpuwhy-host", host="${__value.text}"),
                ),
                Column(title="Power", expr="a", unit="watt", bar=True),
                Column(title="Cause", label="leading", expr="b", texts={"x": Shown("X", "#112233")}),
                Column(title="Limit", expr="c", unit="watt", decimals=1, width=90),
            ),
        )
    )
    assert [(each["refId"], each["expr"], each["format"]) for each in table["targets"]] == [
        ("A", "a", "table"),
        ("B", "b", "table"),
        ("C", "c", "table"),
    ]
    merge, kept, organised, ranked = table["transformations"]
    assert merge["id"] == "merge"
    # Where no other query finds anything, Grafana may leave out the letter of the first.
    names = ["instance", "Value", "Value #A", "leading", "Value #C"]
    titles = ["Host", "Power", "Power", "Cause", "Limit"]
    assert kept["options"]["include"]["names"] == names
    assert organised["options"]["renameByName"] == dict(zip(names, titles, strict=True))
    assert organised["options"]["indexByName"] == {name: index for index, name in enumerate(names)}
    assert ranked["options"]["sort"] == [{"field": "Power", "desc": True}]
    assert table["fieldConfig"]["defaults"]["custom"] == {
        "align": "auto",
        "filterable": False,
        "cellOptions": {"type": "auto"},
        "inspect": False,
    }
    looks = {
        each["matcher"]["options"]: {found["id"]: found["value"] for found in each["properties"]}
        for each in table["fieldConfig"]["overrides"]
    }
    assert looks["Host"]["links"][0]["url"] == (
        "/d/gpuwhy-host?${__url_time_range}&${datasource:queryparam}&var-host=${__value.text:percentencode}"
    )
    # What stands for nothing would go into links: an empty label stays empty.
    assert {title: look["noValue"] for title, look in looks.items()} == {
        "Host": "",
        "Power": "-",
        "Cause": "-",
        "Limit": "-",
    }
    assert looks["Power"]["custom.cellOptions"]["type"] == "gauge"
    assert looks["Power"]["fieldMinMax"] is True  # as long as its own column's greatest, not another's
    assert looks["Cause"]["custom.cellOptions"]["type"] == "color-background"
    assert looks["Limit"] == {"unit": "watt", "noValue": "-", "decimals": 1, "custom.width": 90}


def test_a_table_of_one_query_needs_no_join() -> None:
    """Grafana then names the values without a letter."""
    table = drawn(
        Table(
            title="T",
            **WORDS,
            worst="P",
            columns=(Column(title="GPU", label="gpu"), Column(title="P", expr="a")),
        )
    )
    assert [each["id"] for each in table["transformations"]] == ["filterFieldsByName", "organize", "sortBy"]
    assert table["transformations"][1]["options"]["renameByName"] == {"gpu": "GPU", "Value": "P"}


def test_variables() -> None:
    """The data source comes first; several of a label may be chosen, and all stands for empty values too."""
    chosen = Variable(name="owner", title="Owner", series="gpuwhy_gpu_info", label="workload_owner")
    one = Variable(name="host", title="Host", series="gpuwhy_gpu_info", label="instance", several=False)
    source, owner, host = board(Section("", (Line(8, (lines(),)),)), variables=(chosen, one))["templating"][
        "list"
    ]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert owner["query"]["query"] == owner["definition"] == "label_values(gpuwhy_gpu_info, workload_owner)"
    assert (owner["multi"], owner["includeAll"], owner["allValue"]) == (True, True, ".*")
    assert (host["multi"], host["includeAll"]) == (False, False)
    assert "allValue" not in host


def test_notes() -> None:
    """As all versions read them: the query by itself, and as a target. Each has its switch."""
    note = Note(
        name="Alerts", expr="ALERTS", title="{{alertname}}", text="{{where}}", tags=("severity", "mig")
    )
    made = board(Section("", (Line(8, (lines(),)),)), notes=(note,))
    source = {"type": "prometheus", "uid": "${datasource}"}
    target = {"refId": "Anno", "expr": "ALERTS", "interval": "60s", "range": True, "instant": False}
    assert made["annotations"]["list"] == [
        {
            "name": "Alerts",
            "enable": True,
            "hide": False,
            "iconColor": colours.BAD,
            "expr": "ALERTS",
            "step": "60s",
            "titleFormat": "{{alertname}}",
            "textFormat": "{{where}}",
            "tagKeys": "severity,mig",
            "datasource": source,
            "target": {**target, "datasource": source},
        }
    ]


def test_nothing_old_is_left() -> None:
    """Of grafanalib's shapes none that later versions migrated away, and no null but the first threshold's."""
    made = board(Section("", (Line(8, (lines(),)),)))
    old = {"rows", "style", "hideControls", "sharedCrosshair", "gnetId", "__inputs", "inputs"}
    assert not old & set(made)
    assert made["schemaVersion"] == 39
    [panel] = made["panels"]
    assert set(panel) == {
        "id",
        "type",
        "title",
        "description",
        "gridPos",
        "interval",
        "transformations",
        "fieldConfig",
        "options",
        "datasource",
        "targets",
    }

    def nulls(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(nulls, value.values()))
        return any(map(nulls, value)) if isinstance(value, list) else value is None

    assert not nulls(made)


def test_without_grafanalib_the_rest_renders_and_dashboards_say_what_to_install() -> None:
    """The extra is optional: importing the stage needs it not, nor do alerts and docs."""
    script = """
import sys
sys.modules["grafanalib"] = None
from gpuwhy import render
from gpuwhy.config import RenderConfig
for target in render.TARGETS:
    if target.path.endswith(".json"):
        try:
            target.text(RenderConfig())
        except ImportError as error:
            assert str(error).endswith("-m pip install grafanalib"), error
            assert error.name == "grafanalib"
        else:
            raise AssertionError(target.path)
    elif target.path.startswith("docs/"):
        assert target.text(RenderConfig())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
