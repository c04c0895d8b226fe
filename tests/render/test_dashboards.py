"""The dashboards: what every panel owes its reader, and that each query can say what is asked of it."""

from __future__ import annotations

import enum
import itertools
import json
import re
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest

from gpuwhy import render
from gpuwhy.catalog import IDENTITY, SERIES, WORKLOAD
from gpuwhy.config import RenderConfig
from gpuwhy.render.dashboards import DASHBOARDS, itself, parts, text
from gpuwhy.render.promql import Promql
from gpuwhy.render.recording import Recording
from gpuwhy.verdict import colours, vocabulary

OPTIONS = {
    "default": RenderConfig(),
    "own": RenderConfig(
        selector='cluster="a",job="gpuwhy"',
        host_label="node",
        price_per_gpu_hour=2.5,
        currency="CNY",
        runbook_url="https://wiki.example/RUNBOOK.md",
    ),
}
UIDS = ("gpuwhy-fleet", "gpuwhy-host", "gpuwhy-workloads", "gpuwhy-weekly", "gpuwhy-itself")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What Grafana itself fills in, with a value that stands for it here.
BUILT_IN = {"__rate_interval": "2m", "__interval": "30s", "__range": "86400s", "__range_s": "86400"}
PROCESS = (itself.CPU, itself.MEMORY)
SERIES_NAME = re.compile(r"[a-z]+:gpuwhy_\w+:\w+|\b(?:gpuwhy|process)_\w+")
RECORDED_WINDOW = re.compile(r"[a-z]+:gpuwhy_\w+:\w+(?:\{[^}]*\})?(\[[^]]+\])?")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)[^}]*\})")


class Rendered(NamedTuple):
    """A dashboard under some options."""

    uid: str
    options: RenderConfig
    json: dict[str, Any]

    @property
    def panels(self) -> list[dict[str, Any]]:
        """All but the headings, those of closed sections too."""
        return [
            panel
            for each in self.json["panels"]
            for panel in (each["panels"] if each["type"] == "row" else [each])
        ]

    @property
    def notes(self) -> list[dict[str, Any]]:
        """The annotations."""
        return self.json["annotations"]["list"]

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.json["templating"]["list"]}

    def filled(self, expr: str) -> str:
        """A query with all variables replaced; raises KeyError for one that is not defined."""
        values = BUILT_IN | dict.fromkeys(self.variables, "x")
        return VARIABLE.sub(lambda found: values[found[1] or found[2]], expr)


RENDERED = {
    f"{uid}-{name}": Rendered(uid, options, json.loads(text(uid, options)))
    for name, options in OPTIONS.items()
    for uid in UIDS
}
BY_UID = {uid: RENDERED[f"{uid}-default"] for uid in UIDS}
PANELS = {
    f"{key}: {panel['title']}": (rendered, panel)
    for key, rendered in RENDERED.items()
    for panel in rendered.panels
}


@pytest.fixture(params=RENDERED)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return RENDERED[request.param]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(strings, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(strings, value))


# --- the set of dashboards


def test_each_dashboard_has_its_file_and_its_line(root: Path) -> None:
    """Table, rendered files and README name the same dashboards, under uids that never change."""
    assert tuple(each.uid for each in DASHBOARDS) == UIDS
    paths = [target.path for target in render.TARGETS if target.path.startswith("dashboards/")]
    assert paths == [each.path for each in DASHBOARDS]
    readme = (root / "dashboards" / "README.md").read_text()
    listed = re.findall(r"^\| `(.+)` \| (.+) \| (.+) \|$", readme, re.MULTILINE)
    assert listed == [(Path(each.path).name, each.title, each.question) for each in DASHBOARDS]


def test_the_dashboard_is_one_that_grafana_reads_as_it_is(rendered: Rendered) -> None:
    """Schema version 39, a shared crosshair, the tag, and one data source for all."""
    board = rendered.json
    assert (board["uid"], board["schemaVersion"], board["graphTooltip"]) == (rendered.uid, 39, 1)
    assert board["tags"] == ["gpuwhy"]
    assert "gpuwhy render" in board["description"]
    assert rendered.variables["datasource"]["query"] == "prometheus"
    for panel in rendered.panels:
        assert panel["datasource"] == DATASOURCE
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
    for variable in rendered.variables.values():
        assert variable["type"] == "datasource" or variable["datasource"] == DATASOURCE
    assert "null" not in set(strings(board))


def test_ids_are_unique_and_do_not_depend_on_options(rendered: Rendered) -> None:
    """Panels and headings; a link to a panel leads to the same one under every configuration."""
    board = rendered.json
    ids = [each["id"] for each in (*board["panels"], *rendered.panels)]
    own = [each["id"] for each in board["panels"] if each["type"] == "row"]
    assert len(set(own) | {panel["id"] for panel in rendered.panels}) == len(own) + len(rendered.panels)
    assert all(isinstance(each, int) and each > 0 for each in ids)
    default = {panel["title"]: panel["id"] for panel in BY_UID[rendered.uid].panels}
    assert default.items() <= {panel["title"]: panel["id"] for panel in rendered.panels}.items()


def test_panels_fill_the_grid(rendered: Rendered) -> None:
    """No hole and no overlap, in closed sections too."""

    def check(panels: list[dict[str, Any]]) -> None:
        cells = [
            (x, y)
            for each in panels
            for at in [each["gridPos"]]
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        top, bottom = min(y for _, y in cells), max(y for _, y in cells)
        assert sorted(cells) == sorted(itertools.product(range(24), range(top, bottom + 1)))

    check(rendered.json["panels"])
    assert rendered.json["panels"][0]["gridPos"]["y"] == 0
    for row in rendered.json["panels"]:
        if row.get("panels"):
            check(row["panels"])


def test_few_panels_are_open(rendered: Rendered) -> None:
    """Depth is in closed sections: what is seen at once can be read at once."""
    assert len([each for each in rendered.json["panels"] if each["type"] != "row"]) <= 17


# --- panels


@pytest.mark.parametrize("key", PANELS)
def test_a_panel_says_what_it_is(key: str) -> None:
    """Title, what it shows and what to do, all series that it reads, a unit, and why it may be empty."""
    _, panel = PANELS[key]
    assert 0 < len(panel["title"]) <= 45
    words, _, source = panel["description"].partition("\n\nSource: ")
    assert len(re.findall(r"[.?](?:\s|$)", words)) >= 2, "what it shows, and what to do"
    queried = {name for target in panel["targets"] for name in SERIES_NAME.findall(target["expr"])}
    assert set(re.findall(r"`([^`]+)`", source)) == queried
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert len(defaults["noValue"]) > 5
    assert [target["refId"] for target in panel["targets"]] == list(
        "ABCDEFGHIJKLMNOP"[: len(panel["targets"])]
    )


@pytest.mark.parametrize("key", PANELS)
def test_a_scale_has_no_made_up_end(key: str) -> None:
    """Only a ratio has a greatest value that is known: 1."""
    _, panel = PANELS[key]
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults.get("max") in {None, 1}
    assert defaults.get("max") is None or defaults["unit"] == "percentunit"


@pytest.mark.parametrize("key", PANELS)
def test_a_series_is_named(key: str) -> None:
    """By labels that its query keeps; a lone figure needs no name."""
    rendered, panel = PANELS[key]
    for target in panel["targets"]:
        if target["format"] == "table":
            continue
        legend = target["legendFormat"]
        assert legend != "__auto"
        assert legend or (panel["type"] == "stat" and len(panel["targets"]) == 1)
        wanted = set(re.findall(r"\{\{(\w+)\}\}", legend))
        kept = labels(promql.parse(rendered.filled(target["expr"])), rendered.options)
        assert wanted <= kept
        # A series for each host needs the host in its name.
        if panel["type"] != "stat" and rendered.options.host_label in kept:
            assert rendered.options.host_label in wanted


@pytest.mark.parametrize("key", [key for key, (_, panel) in PANELS.items() if panel["type"] == "table"])
def test_a_column_is_there(key: str) -> None:
    """Each label column is kept by the query that it is of, each look is of a column, and so is the order."""
    rendered, panel = PANELS[key]
    steps = {each["id"]: each["options"] for each in panel["transformations"]}
    shown = steps["organize"]["renameByName"]
    by_query = [
        labels(promql.parse(rendered.filled(each["expr"])), rendered.options) for each in panel["targets"]
    ]
    for name in shown:
        assert name.startswith("Value") or any(name in kept for kept in by_query), name
    assert {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]} == set(shown.values())
    assert panel["options"]["sortBy"][0]["displayName"] in shown.values()
    # Rows join on what all queries keep, and that is what tells the rows apart.
    if len(by_query) > 1:
        key_labels = set.intersection(*by_query) & set(shown)
        assert key_labels


@pytest.mark.parametrize("key", PANELS)
def test_a_rate_has_enough_scrapes(key: str) -> None:
    """With a least step of 30 s the rate interval holds two scrapes of a minute; what is recorded every five
    minutes is read over ten, or over full hours.
    """
    _, panel = PANELS[key]
    for target in panel["targets"]:
        if "$__rate_interval" in target["expr"]:
            assert panel["interval"] == "30s"
            assert target["range"]
        for window in RECORDED_WINDOW.findall(target["expr"]):
            assert window in {"[10m]", "[$__range:1h]", "[23h59m:1h]", "[7d:1h]"}


RECORDED_HOURS = re.compile(
    r":(?:increase|sum|ratio|delta)\w+(?:\{[^}]*\})?\[(?:\$__range:1h|7d:1h|23h59m:1h)\]|:\w+1w\b"
)


@pytest.mark.parametrize("key", PANELS)
def test_an_empty_panel_says_when_recorded_values_come(key: str) -> None:
    """Sums of full hours at the next full hour after the rules were loaded, charts of each moment soon; what is
    compared with a week before, when there is one. Figures say the rest in their description.
    """
    _, panel = PANELS[key]
    exprs = " ".join(target["expr"] for target in panel["targets"])
    words = empty = panel["fieldConfig"]["defaults"]["noValue"]
    if ":gpuwhy_" not in exprs:
        assert "full hour" not in words
        return
    if panel["type"] == "stat":
        assert len(empty) <= 30, "a figure is as wide as its text"
        words += panel["description"]
    if panel["type"] == "stat" and ("offset 7d" in exprs or ":delta1w" in exprs):
        assert "week before" in empty
    elif RECORDED_HOURS.search(exprs):
        assert "next full hour" in empty
        assert "next full hour after" in words
        assert "alerts/recording.rules.yaml" in words
    else:
        assert "ten minutes after" in words
        assert "alerts/recording.rules.yaml" in words


# --- annotations


def test_firing_alerts_are_marked(rendered: Rendered) -> None:
    """Where GPUs or workloads are shown over time. The mark has a switch, and names only labels that are there."""
    expected = 1 if rendered.uid in {"gpuwhy-fleet", "gpuwhy-host", "gpuwhy-workloads"} else 0
    assert len(rendered.notes) == expected
    for note in rendered.notes:
        assert (note["enable"], note["hide"]) == (True, False)
        assert note["datasource"] == note["target"]["datasource"] == DATASOURCE
        assert note["target"]["expr"] == note["expr"]
        # Grafana puts the name of a label that is missing.
        assert (note["titleFormat"], note["textFormat"]) == ("{{alertname}}", "{{where}}")
        for node in walk(promql.parse(rendered.filled(note["expr"]))):
            if isinstance(node, promql.VectorSelector) and node.name == "ALERTS":
                assert {'alertname=~"Gpuwhy.+"', 'alertstate="firing"'} <= set(
                    re.findall(r'\w+=~?"[^"]*"', str(node))
                )


MARKED = {
    "gpuwhy-fleet": {"x   ", "y   ", " x x x", " x z x"},
    "gpuwhy-host": {"x GPU x", "x   "},
    "gpuwhy-workloads": {"y GPU 0", " x x x"},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("uid", MARKED)
def test_marks_are_of_the_selection(uid: str, name: str, promtool: str, tmp_path: Path) -> None:
    """Of the chosen host and its GPUs, or of the chosen workload and the GPUs that it holds; firing, and ours."""
    rendered = RENDERED[f"{uid}-{name}"]
    host = rendered.options.host_label
    of_x = 'workload_kind="k",workload="x",workload_namespace="x",workload_owner="x"'
    alerts = (
        f'alertname="GpuwhyStarving",alertstate="firing",{host}="x",gpu="x",uuid="u",mig="1"',
        f'alertname="GpuwhyStarving",alertstate="firing",{host}="y",gpu="0",uuid="v"',
        f'alertname="GpuwhyStarving",alertstate="firing",{host}="y",gpu="1",uuid="w"',
        f'alertname="GpuwhyStarving",alertstate="pending",{host}="x",gpu="x",uuid="p"',
        f'alertname="GpuwhyGpusMissing",alertstate="firing",{host}="x"',
        f'alertname="GpuwhyWorkloadRegression",alertstate="firing",{of_x}',
        'alertname="GpuwhyWorkloadRegression",alertstate="firing",'
        + of_x.replace('namespace="x"', 'namespace="z"'),
        f'alertname="NodeDown",alertstate="firing",{host}="x",gpu="x"',
    )
    held = f'cluster="a",job="gpuwhy",{host}="y",gpu="0",uuid="v",{of_x}'
    plan = {
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    *({"series": f"ALERTS{{{each}}}", "values": "1x10"} for each in alerts),
                    {"series": f"gpuwhy_workload_share_ratio{{{held}}}", "values": "1x10"},
                ],
                "promql_expr_test": [
                    {
                        "expr": f"group by (where) ({rendered.filled(note['expr'])})",
                        "eval_time": "5m",
                        "exp_samples": [
                            {"labels": f'{{where="{where}"}}', "value": 1} for where in MARKED[uid]
                        ],
                    }
                    for note in rendered.notes
                ],
            }
        ]
    }
    asked(promtool, tmp_path, plan)


def asked(promtool: str, folder: Path, plan: dict[str, Any]) -> None:
    """Fails with promtool's words where an answer is another."""
    (folder / "tests.yaml").write_text(json.dumps(plan))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- queries


@pytest.mark.parametrize("key", PANELS)
def test_a_query_is_valid_and_of_known_series(key: str) -> None:
    """In the grammar of Prometheus 3, once its variables are filled in; with the user's matchers and host label."""
    rendered, panel = PANELS[key]
    known = {name for series in SERIES for name in series.sample_names} | set(PROCESS)
    known |= set(RECORDED[rendered.options.host_label])
    for target in panel["targets"]:
        for node in walk(promql.parse(rendered.filled(target["expr"]))):
            if isinstance(node, promql.VectorSelector):
                assert node.name in known, node.name
                matchers = str(node)
                assert ":" in node.name or rendered.options.selector.partition(",")[0] in matchers
        if rendered.options.host_label != "instance":
            assert "instance" not in re.sub(r"on \(job, instance\)|\binstance:", "", target["expr"])


def test_variables_are_used_and_defined(rendered: Rendered) -> None:
    """Each is used by a query, directly or by another's; its values are of an always present series."""
    texts = [target["expr"] for panel in rendered.panels for target in panel["targets"]]
    texts += [note["expr"] for note in rendered.notes]
    queries = [each["query"]["query"] for each in rendered.variables.values() if each["type"] == "query"]
    used = {found[1] or found[2] for each in (*texts, *queries) for found in VARIABLE.finditer(each)}
    assert used - set(BUILT_IN) == set(rendered.variables) - {"datasource"}
    always = {"gpuwhy_gpu_info", "gpuwhy_build_info", "gpuwhy_workload_measured_seconds_total"}
    for query in queries:
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
        selector = promql.parse(rendered.filled(series))
        assert selector.name in always
        assert rendered.options.selector in series
        assert label in labels(selector, rendered.options)


def test_every_selection_is_honoured(rendered: Rendered) -> None:
    """On a dashboard about hosts or workloads no query forgets the selection."""
    wanted = {
        "gpuwhy-host": ("$host",),
        "gpuwhy-workloads": ("$owner", "$namespace", "$workload"),
        "gpuwhy-itself": ("$host",),
    }.get(rendered.uid, ())
    for panel in rendered.panels:
        for target in panel["targets"]:
            assert all(name in target["expr"] for name in wanted), panel["title"]
    for note in rendered.notes:
        assert all(name in note["expr"] for name in wanted), note["name"]


def test_states_give_way_to_shares_beyond_six_hours() -> None:
    """The timeline's query has an end; the shares read counters and have none."""
    panels = {panel["title"]: panel for panel in BY_UID["gpuwhy-host"].panels}
    [target] = panels["Verdicts"]["targets"]
    assert panels["Verdicts"]["type"] == "state-timeline"
    assert target["expr"].endswith("and on () (vector($__range_s) <= 21600)")
    assert "six hours" in panels["Verdicts"]["fieldConfig"]["defaults"]["noValue"]
    for target in panels["Share of time by verdict"]["targets"]:
        assert "gpuwhy_verdict_seconds_total" in target["expr"]
        assert "$__range" not in target["expr"]


def test_money_is_there_with_a_price_only() -> None:
    """And then in the user's currency, computed with the user's price."""
    plain, priced = (json.dumps(RENDERED[f"gpuwhy-weekly-{name}"].json) for name in ("default", "own"))
    assert "currency" not in plain
    assert priced.count("* 2.5") >= 5
    assert "currency:CN" in priced
    assert "CNY" in priced
    for uid in UIDS[:3]:
        assert "currency" not in text(uid, OPTIONS["own"])


def test_hours_are_full_hours_whenever_they_are_read(promtool: str, tmp_path: Path) -> None:
    """A day has 24 of them, at a full hour too; what lost nothing lost 0; the leading cause is the greatest."""
    observed, lost, useful = (
        f"fleet:gpuwhy_{stem}_seconds:increase1h" for stem in ("observed", "lost", "useful")
    )

    def constant(series: str, value: float) -> dict[str, str]:
        return {"series": series, "values": f"{value}x720"}

    def day(stem: str, *matchers: str, **given: Any) -> str:
        return parts.hours("fleet", stem, *matchers, window="1d:1h", **given)

    expected = {
        day("observed"): {"{}": 48},
        parts.or_zero(day("lost", 'cause="copy"'), day("observed")): {"{}": 6},
        parts.or_zero(day("lost", 'cause="held"'), day("observed")): {"{}": 0},
        parts.ratio(day("useful"), day("observed")): {"{}": 0.5},
        # The last of the parts is what the others leave of the observed.
        parts.split(partial(parts.hours, window="1d:1h"), unread="none").queries[-1].expr: {"{}": 15},
        parts.ratio(day("headroom"), day("observed")): {"{}": 0},
        parts.leading(f"sum by (verdict, cause) ({lost})", ()): {
            '{verdict="starving",cause="copy",leading="starving/copy"}': 900
        },
        parts.change("vector(-0.04)", 0.1): {"{}": 0},
        parts.change("vector(1.26)", 0.1): {"{}": 1.3},
    }
    plan = {
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "5m",
                "input_series": [
                    constant(observed, 7200),
                    constant(useful, 3600),
                    constant(f'{lost}{{verdict="starving",cause="copy"}}', 900),
                    constant(f'{lost}{{verdict="starving",cause="io-wait"}}', 450),
                ],
                "promql_expr_test": [
                    {
                        "expr": expr,
                        "eval_time": at,
                        "exp_samples": [
                            {"labels": names, "value": value} for names, value in samples.items()
                        ],
                    }
                    for expr, samples in expected.items()
                    for at in ("48h", "48h17m")
                ],
            }
        ],
    }
    asked(promtool, tmp_path, plan)


def test_the_power_of_a_gpu_counts_once(promtool: str, tmp_path: Path) -> None:
    """Also where its MIG instances tell the power and energy of the whole."""
    [power, _] = next(
        panel["targets"] for panel in BY_UID["gpuwhy-fleet"].panels if panel["title"] == "Power of all GPUs"
    )
    [energy] = next(panel["targets"] for panel in BY_UID["gpuwhy-host"].panels if panel["title"] == "Energy")
    rows = ('instance="x",gpu="x",mig=""', 'instance="x",gpu="x",mig="1"', 'instance="y",gpu="0"')
    plan = {
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    *(
                        {"series": f"gpuwhy_power_watts{{{row}}}", "values": f"{value}x2000"}
                        for row, value in zip(rows, (300, 300, 200), strict=True)
                    ),
                    *(
                        {"series": f"gpuwhy_energy_joules_total{{{row}}}", "values": "0+60000x2000"}
                        for row in rows
                    ),
                ],
                "promql_expr_test": [
                    {
                        "expr": BY_UID[uid].filled(expr),
                        "eval_time": "30h",
                        "exp_samples": [{"labels": "{}", "value": value}],
                    }
                    for uid, expr, value in (
                        ("gpuwhy-fleet", power["expr"], 500),
                        ("gpuwhy-host", energy["expr"], 24),
                    )
                ],
            }
        ]
    }
    asked(promtool, tmp_path, plan)


# --- links


def test_links_lead_to_the_others_and_keep_time_and_selection(rendered: Rendered) -> None:
    """Those at the top: every other dashboard, and the runbook where there is one."""
    boards = [each for each in rendered.json["links"] if each["url"].startswith("/")]
    assert [each["url"] for each in boards] == [f"/d/{uid}" for uid in UIDS if uid != rendered.uid]
    assert all(each["keepTime"] and each["includeVars"] for each in boards)
    outside = [each["url"] for each in rendered.json["links"] if each not in boards]
    assert outside == ([rendered.options.runbook_url] if rendered.options.runbook_url else [])


def test_data_links_keep_time_and_data_source_and_select_what_is_there(rendered: Rendered) -> None:
    """Each leads to a dashboard with the variables that it sets, from columns that the table has."""
    count = 0
    for panel in rendered.panels:
        columns = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
        looks = {
            each["matcher"]["options"]: {found["id"]: found["value"] for found in each["properties"]}
            for each in panel["fieldConfig"]["overrides"]
        }
        for override in panel["fieldConfig"]["overrides"]:
            for link in next((each["value"] for each in override["properties"] if each["id"] == "links"), ()):
                url = link["url"]
                if url.startswith("http"):
                    assert url == "https://wiki.example/RUNBOOK.md#${__value.raw}"
                    continue
                count += 1
                uid, query = re.fullmatch(r"/d/([\w-]+)\?(.+)", url).groups()
                assert query.startswith("${__url_time_range}&${datasource:queryparam}&var-")
                for name, column in re.findall(r"var-(\w+)=\$\{__data\.fields\.(\w+):percentencode\}", query):
                    assert name in BY_UID[uid].variables
                    assert column in columns
                    # What stands for an empty label would go into the link.
                    assert looks[column]["noValue"] == ""
                if "var-workload=" in query:  # names are the same in several namespaces
                    assert re.findall(r"var-(\w+)", query) == ["owner", "namespace", "workload"]
    assert count >= {"gpuwhy-weekly": 3}.get(rendered.uid, 1)


# --- colours


def test_a_verdict_has_one_colour(rendered: Rendered) -> None:
    """Wherever a verdict or a cause is named, by an override or a mapping."""
    fixed = colours.VERDICTS | colours.CAUSES
    seen = set()
    for panel in rendered.panels:
        config = panel["fieldConfig"]
        for override in config["overrides"]:
            properties = {each["id"]: each["value"] for each in override["properties"]}
            if (name := override["matcher"]["options"]) in fixed:
                assert properties["color"] == {"mode": "fixed", "fixedColor": fixed[name]}
                seen.add(name)
            for shown in mapped(properties.get("mappings", [])):
                assert shown.get("color") == fixed.get(shown["text"], shown.get("color"))
                seen |= {shown["text"]} & set(fixed)
        for shown in mapped(config["defaults"].get("mappings", [])):
            assert shown["color"] == fixed[shown["text"]]
    assert seen or rendered.uid == "gpuwhy-itself"


def mapped(mappings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in mappings:
        yield from each["options"].values()


def test_verdicts_stack_in_one_order(rendered: Rendered) -> None:
    """That of the vocabulary, one query for each."""
    for panel in rendered.panels:
        found = [re.findall(r'verdict="([\w-]+)"', target["expr"]) for target in panel["targets"]]
        names = [each[0] for each in found if len(set(each)) == 1]
        if len(names) > 2 and panel["type"] != "table":
            assert names == [verdict for verdict in vocabulary.VERDICTS if verdict in names]


def test_green_and_red_are_for_what_is_sure(rendered: Rendered) -> None:
    """Efficiency has no traffic light: what is good depends on the load."""
    for panel in rendered.panels:
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        if len(steps) > 1:
            assert rendered.uid == "gpuwhy-itself"
            assert panel["fieldConfig"]["defaults"]["unit"] == "short"


# Machado, Oliveira and Fernandes, 2009: what is seen without the cones for red, and without those for green.
SIGHT = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
Channels = tuple[float, float, float]


def linear(colour: str) -> Channels:
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return red, green, blue


def through(matrix: tuple[Channels, ...], channels: Channels) -> Channels:
    one, two, three = (sum(a * b for a, b in zip(row, channels, strict=True)) for row in matrix)
    return one, two, three


def lab(channels: Channels) -> Channels:
    """CIE L*a*b* of linear sRGB, in which a difference of 2 is just seen side by side."""
    xyz = (
        (0.4124564, 0.3575761, 0.1804375),
        (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    )
    white = (0.95047, 1.0, 1.08883)
    x, y, z = (
        share ** (1 / 3) if share > 0.008856 else 7.787 * share + 16 / 116
        for share in (max(0.0, each) / full for each, full in zip(through(xyz, channels), white, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, two: str, sight: str) -> float:
    seen = (lab(through(SIGHT[sight], linear(each))) for each in (one, two))
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


def contrast(one: str, two: str) -> float:
    """As WCAG defines it: 3 is asked of what carries meaning in a chart."""
    light = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(each), strict=True)) for each in (one, two)
    )
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
def test_verdicts_can_be_told_apart(sight: str) -> None:
    """By people without the cones for red or green, too."""
    assert set(colours.VERDICTS) == set(vocabulary.VERDICTS)
    for (one, first), (two, second) in itertools.combinations(colours.VERDICTS.items(), 2):
        assert apart(first, second, sight) >= 15, f"{one} and {two}"


def test_colours_stand_out_from_dark_and_light() -> None:
    """From the background of Grafana's dark panels; and where they are blocks, from white."""
    for name, colour in colours.VERDICTS.items():
        assert contrast(colour, "#181B1F") >= 3, name
        assert contrast(colour, "#FFFFFF") >= 1.5, name
    for name, colour in colours.CAUSES.items():
        assert contrast(colour, "#181B1F") >= 1.9, name


def test_text_on_a_colour_can_be_read() -> None:
    """The text that Grafana's tables pick: near-black where the colour is brighter than 180 of 255, else near-white."""
    for name, colour in (colours.VERDICTS | colours.CAUSES).items():
        red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
        text_colour = "#202226" if 0.299 * red + 0.587 * green + 0.114 * blue > 180 else "#F7F8FA"
        assert contrast(colour, text_colour) >= 3.5, name


def test_causes_are_shades_of_their_verdict() -> None:
    """In the same direction of colour as the verdict, and each a little lighter than the one before."""
    assert set(colours.CAUSES) == {"/".join(cause.key) for cause in vocabulary.CAUSES}
    for verdict, colour in colours.VERDICTS.items():
        _, *hue = lab(linear(colour))
        shades = list(colours.of(verdict).values())
        for shade in shades:
            _, *own = lab(linear(shade))
            along = sum(a * b for a, b in zip(hue, own, strict=True))
            across = abs(hue[0] * own[1] - hue[1] * own[0])
            assert along > 0
            assert across <= 0.5 * along
        for one, two in itertools.pairwise(shades):
            assert apart(one, two, "all cones") >= 3
            assert lab(linear(two))[0] > lab(linear(one))[0]


# --- Grafana's own types


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")  # this is the older model
def test_grafanas_own_types_read_it(rendered: Rendered) -> None:
    """They keep every key and value when they write it back, and each value is of the type that is asked for."""
    plugins = pytest.importorskip(
        "grafana_foundation_sdk.cog.plugins", reason="grafana-foundation-sdk needs Python 3.11 or later"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    read = Dashboard.from_json(rendered.json)
    assert [*lost(rendered.json, json.loads(JSONEncoder().encode(read)))] == []
    assert [*mistyped(read, Dashboard, "dashboard")] == []


def mistyped(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Values that are not what the annotations of Grafana's types ask for, by their path."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in {Any, object} and hasattr(value, "to_json"):  # a panel's own options
        hint = type(value)
    if hint in {Any, object} or path.endswith(".transformations"):  # these are left as they are
        return
    if origin in {typing.Union, types.UnionType}:
        fitting = [each for each in arguments if isinstance(each, type) and isinstance(value, each)]
        choices = fitting or [each for each in arguments if each is not type(None)]
        yield from min((list(mistyped(value, each, path)) for each in choices), key=len)
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{path}: {value!r} is none of {arguments}"
    elif origin is list and isinstance(value, list):
        for index, each in enumerate(value):
            yield from mistyped(each, arguments[0], f"{path}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for name, each in value.items():
            yield from mistyped(each, arguments[1], f"{path}.{name}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in {each.value for each in hint}:
            yield f"{path}: {value!r} is none of {hint.__name__}"
    elif hint is float:
        if not isinstance(value, int | float):
            yield f"{path}: {value!r} is no number"
    elif not isinstance(value, origin or hint):
        yield f"{path}: {value!r} is no {hint}"
    else:
        for name, each in typing.get_type_hints(type(value)).items() if hasattr(value, "to_json") else ():
            yield from mistyped(getattr(value, name), each, f"{path}.{name}")


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What is not there any more, or is another value, by its path."""
    if isinstance(before, dict):
        for name, value in before.items():
            if not isinstance(after, dict) or name not in after:
                yield f"{path}.{name}"
            else:
                yield from lost(value, after[name], f"{path}.{name}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(after) != len(before):
            yield path
        else:
            for index, (one, two) in enumerate(zip(before, after, strict=True)):
                yield from lost(one, two, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


# --- which labels the results of a query have


RECORDED = {
    options.host_label: {rule.record: set(rule.labels) for rule in (*recording.hours(), *recording.weeks())}
    for options in OPTIONS.values()
    for recording in [Recording(Promql(options))]
}


def labels(node: Any, options: RenderConfig) -> set[str]:
    """As far as the text tells: what an aggregation keeps, a join adds, a function writes."""
    match node:
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            return labels(node.expr, options)
        case promql.MatrixSelector():
            return labels(node.vector_selector, options)
        case promql.VectorSelector():
            return of_series(node.name, options)
        case promql.NumberLiteral() | promql.StringLiteral():
            return set()
        case promql.Call():
            return of_call(node, options)
        case promql.AggregateExpr():
            inner = labels(node.expr, options)
            kept = set(node.modifier.labels) if node.modifier else set()
            assert kept <= inner, f"{kept - inner} of {node}"
            return inner if str(node).startswith(("topk", "bottomk")) else kept
        case promql.BinaryExpr():
            return of_binary(node, options)
    raise AssertionError(type(node))


def of_series(name: str, options: RenderConfig) -> set[str]:
    if name == "ALERTS":
        return {"alertname", "severity", "verdict", *IDENTITY, *WORKLOAD, options.host_label}
    if name in PROCESS:
        return {"job", "instance", options.host_label}
    for series in SERIES:
        if name in series.sample_names:
            return {*series.labels, options.host_label, "instance", "job"}
    return RECORDED[options.host_label][name]


def of_call(node: Any, options: RenderConfig) -> set[str]:
    name = re.match(r"\w+", str(node))[0]
    vectors = [argument for argument in node.args if not isinstance(argument, promql.StringLiteral)]
    found = set().union(*(labels(each, options) for each in vectors))
    if name == "label_join":
        target, _, *sources = (each.val for each in node.args if isinstance(each, promql.StringLiteral))
        assert set(sources) <= found
        return found | {target}
    return set() if name in {"vector", "time"} else found


def of_binary(node: Any, options: RenderConfig) -> set[str]:
    left, right = labels(node.lhs, options), labels(node.rhs, options)
    operator = " or " in str(node) and not node.modifier and left and right and left == right
    if operator:
        return left
    if not left or not right:
        return left | right
    if node.modifier and node.modifier.matching:
        on = set(node.modifier.matching.labels)
        assert on <= left, f"{on - left} of {node}"
        assert on <= right, f"{on - right} of {node}"
        return left | set(node.modifier.group_labels or ())
    assert left == right, f"{left ^ right} of {node}"
    return left


def walk(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if isinstance(child, promql.Expr):
            yield from walk(child)
    for child in getattr(node, "args", None) or ():
        yield from walk(child)
