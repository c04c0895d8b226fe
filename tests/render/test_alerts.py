"""Alerts: what fires, what stays quiet, what is said, and what users may change."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gpuwhy import config, render
from gpuwhy.catalog import PREFIX, SERIES
from gpuwhy.config import AlertOverride, ConfigError, RenderConfig
from gpuwhy.recorded import HOST, ROW
from gpuwhy.render import alerts, recording
from gpuwhy.render.alerts import ALERTS, INHIBITIONS, Alert
from gpuwhy.render.promql import Promql

from . import promtool_scenes as scenes
from .promtool import Piece, Scene, agent, counter, failures, gauge, gpu, series, verdict, without_texts

ALL = RenderConfig(alerts={alert.name: AlertOverride(enabled=True) for alert in ALERTS if not alert.enabled})
# Every text that an option adds or changes.
OWN = RenderConfig(
    selector='cluster="a",job=~"gpu\\\\.why|50%|`x`"',
    host_label="node",
    alerts={
        **ALL.alerts,
        "GpuwhyStarving": AlertOverride(severity="info", window_seconds=7200),
        "GpuwhyThrottledByHardware": AlertOverride(threshold=0.5, for_seconds=60),
        "GpuwhyMemoryBound": AlertOverride(enabled=False),
    },
    runbook_url="https://runbooks.example/gpuwhy/RUNBOOK.md",
    grafana_url="https://grafana.example/",
)
LIVE = RenderConfig(
    alerts={
        alert.name: AlertOverride(window_seconds=30 if alert.window_s else None, for_seconds=0)
        for alert in ALERTS
        if alert.least_window_s <= 30
    }
)
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
each_options = pytest.mark.parametrize("options", [ALL, OWN, LIVE], ids=["all", "own", "live"])


def rules(options: RenderConfig = ALL) -> dict[str, dict[str, Any]]:
    """Rendered rules by name."""
    return {rule["alert"]: rule for group in alerts.groups(options) for rule in group["rules"]}


def queries(rule: dict[str, Any]) -> list[str]:
    """What a rule's texts ask, with a value for every label."""
    forms = re.findall(r'printf "((?:[^"\\]|\\.)*)"', " ".join(rule["annotations"].values()))
    texts = [re.sub(r"\\(.)", r"\1", form) for form in forms]
    return [text.replace("%q", '"x"').replace("%%", "%") for text in texts]


# --- What fires, and what does not


def played(*, hourly: bool, options: RenderConfig = ALL) -> list[dict[str, Any]]:
    """One group of the alerts that read recorded hours, or of all others; promtool evaluates it as scenes say."""
    rules = [rule for group in alerts.groups(options) for rule in group["rules"]]
    return [
        {
            "name": "played",
            "rules": [rule for rule in rules if (rule["alert"] in scenes.BY_THE_HOUR) == hourly],
        }
    ]


def test_over_minutes(promtool: str, tmp_path: Path) -> None:
    """Doses, peers, GPUs, sources and agents: who fires from which minute on, and who never."""
    assert not failures(promtool, tmp_path, without_texts(played(hourly=False)), scenes.EVERY_MINUTE)


def test_over_days(promtool: str, tmp_path: Path) -> None:
    """What is remembered of hosts, and for how long."""
    assert not failures(promtool, tmp_path, without_texts(played(hourly=False)), scenes.LONG, "5m")


def test_over_weeks(promtool: str, tmp_path: Path) -> None:
    """Regressions against a workload's, a GPU's and a host's own week."""
    assert not failures(
        promtool, tmp_path / "asked", without_texts(played(hourly=True)), scenes.REGRESSIONS, asked=True
    )
    assert not failures(
        promtool, tmp_path / "held", without_texts(played(hourly=True)), scenes.HELD, scenes.SELDOM
    )


@each_alert
def test_it_has_scenes(alert: Alert) -> None:
    """Each alert has a scene in which it fires, not a step earlier, and a look-alike in which it never does."""
    step = 1 if alert.name not in scenes.BY_THE_HOUR else 60
    fired = [
        (scene, minute)
        for scene in scenes.SCENES
        for minute in scene.fires
        if alert.name in scene.fires[minute]
    ]
    assert fired, f"{alert.name} fires in no scene of promtool_scenes.py"
    assert any(
        alert.name not in scene.fires[earlier]
        for scene, minute in fired
        for earlier in scene.fires
        if 0 < minute - earlier <= step
    ), f"no scene looks at {alert.name} just before it fires"
    like = [scene for scene in scenes.SCENES if alert.name in scene.like]
    assert like, f"{alert.name} has no scene that only looks like it"
    for scene in like:
        first = min(scene.fires)
        assert alert.name not in scene.fires[first], f"{scene.name} is no look-alike of {alert.name}"


def test_what_is_off_is_not_rendered() -> None:
    """Regressions by GPU and host are for dedicated hosts, and have to be asked for."""
    off = {alert.name for alert in ALERTS if not alert.enabled}
    assert off == {"GpuwhyGpuRegression", "GpuwhyHostRegression"}
    assert set(rules(RenderConfig())) == {alert.name for alert in ALERTS} - off


def test_the_source_is_not_later_than_what_it_silences() -> None:
    """Where one fault raises both, the one that says more comes first."""

    def earliest(name: str) -> float:
        [alert] = [alert for alert in ALERTS if alert.name == name]
        threshold = alert.threshold
        if threshold is None:
            return alert.for_s
        return alert.for_s + (threshold.value if threshold.unit == "seconds" else alert.dose_s)

    for first, second in (
        ("GpuwhyAgentAbsent", "GpuwhyAgentDown"),
        ("GpuwhyAgentAbsent", "GpuwhyAgentGone"),
        ("GpuwhyGpuLost", "GpuwhyTelemetryFault"),
        ("GpuwhyGpuLost", "GpuwhyGpusMissing"),
        ("GpuwhyGpuLost", "GpuwhyReadingsStale"),
        ("GpuwhyReadingsStale", "GpuwhyTelemetryFault"),
        ("GpuwhyThrottledByHardware", "GpuwhyThrottled"),
        ("GpuwhyThrottledByHardware", "GpuwhyGpuLagging"),
    ):
        assert earliest(first) < earliest(second), (first, second)


# --- Valid everywhere


@each_options
def test_prometheus_takes_the_rules(promtool: str, tmp_path: Path, options: RenderConfig) -> None:
    """The file passes promtool, templates and duplicates included."""
    file = tmp_path / "alerts.yaml"
    file.write_text(alerts.rule_file(options))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_options
@each_alert
def test_newer_prometheus_takes_its_queries(alert: Alert, options: RenderConfig) -> None:
    """The expression, and what the texts ask, are valid in the grammar of Prometheus 3, with known names."""
    rule = rules(options).get(alert.name)
    if rule is None:  # not rendered
        return
    known = {name for series in SERIES for name in series.sample_names}
    known |= {rule.record for rule in recording.Recording(Promql(options)).hours()}
    for query in (rule["expr"], *queries(rule)):
        promql_parser.parse(query)
        for name in re.findall(rf"[a-z:]*{PREFIX}[a-z0-9_:]+", re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)):
            assert name in known


@each_options
def test_groups_are_plain(options: RenderConfig) -> None:
    """Nothing that VictoriaMetrics or Prometheus 2.42 lacks; one group for each interval, none empty."""
    groups = alerts.groups(options)
    assert [group["interval"] for group in groups] == ["1m", "5m"]
    for group in groups:
        assert set(group) == {"name", "interval", "rules"}
        assert group["rules"]
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


# --- What is said


@each_options
@each_alert
def test_its_texts_are_whole(alert: Alert, options: RenderConfig) -> None:
    """Severity, texts, and no label in them that the alert lacks."""
    rule = rules(options).get(alert.name)
    if rule is None:
        return
    assert re.fullmatch(r"Gpuwhy([A-Z][a-z]+)+", alert.name)
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["labels"].get("verdict", "") == alert.verdict
    assert "cause" not in rule["labels"], "causes flip; they stand in the text"
    texts = rule["annotations"]
    assert {"summary", "description", "next_step"} < set(texts)
    assert not re.search(r"\d|\{", texts["summary"]), "a summary holds no number and no label"
    assert len(texts["summary"]) <= 80
    # A template may say more, in the end.
    assert texts["description"].endswith((".", ".{{ end }}"))
    for text in texts.values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(alert.labels(Promql(options)))
        assert text.count("{{") == text.count("}}")
    for label in alert.labels(Promql(options)):
        if label not in {"uuid", "workload_kind"} and (label != "uuid" or alert.name == "GpuwhyGpuLost"):
            if alert.name == "GpuwhyGpuLost" and label == "mig":
                continue  # always a whole GPU
            assert f"$labels.{label}" in texts["description"], f"{label} tells its instances apart"
    # Numbers have a unit.
    assert not re.search(r"(\$value|\.Value)(?! \| humanize)", " ".join(texts.values()))


def told(scene: str, inputs: list[dict[str, str]], minute: int, options: RenderConfig, **said: Any) -> Scene:
    """A scene with what descriptions say; ``said`` has the labels and the description by alert."""
    fixed = {name: rule["annotations"] for name, rule in rules(options).items()}
    return Scene(
        scene,
        inputs,
        {minute: {name: [labels] for name, (labels, _) in said.items()}},
        texts={name: {**fixed[name], "description": text} for name, (_, text) in said.items()},
    )


def test_descriptions(promtool: str, tmp_path: Path) -> None:
    """Each kind of description, with labels, values, leading cause and workload filled in."""
    row, slice_, host = gpu(), gpu(mig="3"), {"instance": "a"}
    team = {**scenes.TRAIN, "workload_kind": "kubernetes", "workload_namespace": "ml"}
    told_scenes = [
        told(
            "a dose, its cause and its workload",
            [
                *agent(),
                verdict(row, "starving", "cpu-preprocess", Piece(50, 40)),
                verdict(row, "starving", "copy", Piece(50, 20)),
                series(
                    "workload_verdict_seconds_total",
                    counter(Piece(50, 60)),
                    **row,
                    **team,
                    verdict="starving",
                ),
            ],
            45,
            ALL,
            GpuwhyStarving=(
                row,
                (
                    "GPU 0 on a was starving for 45m 0s of the last 1h. Leading cause: cpu-preprocess, 30m 0s (runbook"
                    " heading starving/cpu-preprocess). Workload: ml/train of ann, 45m 0s."
                ),
            ),
        ),
        told(
            "a dose of a MIG instance without a workload",
            [*agent(), verdict(slice_, "throttled", "power-brake", Piece(3, 60))],
            2,
            ALL,
            GpuwhyThrottledByHardware=(
                slice_,
                (
                    "GPU 0 (MIG instance 3) on a was throttled for 2m 0s of the last 10m. Leading cause: power-brake,"
                    " 2m 0s (runbook heading throttled/power-brake)."
                ),
            ),
        ),
        told(
            "who holds it",
            [
                *agent(),
                verdict(row, "idle", "held", Piece(110, 60)),
                series(
                    "workload_lost_seconds_total",
                    counter(Piece(110, 60)),
                    **row,
                    **scenes.TRAIN,
                    verdict="idle",
                    cause="held",
                ),
                series(
                    "workload_lost_seconds_total",
                    counter(Piece(110, 61)),
                    **gpu(index="1"),
                    **team,
                    verdict="idle",
                    cause="held",
                ),
            ],
            108,
            ALL,
            GpuwhyGpuHeld=(
                row,
                (
                    "GPU 0 on a was held without work for 1h 48m 0s of the last 2h. Leading cause: held, 1h 48m 0s (runbook heading"
                    " idle/held). Workload: train of ann, 1h 48m 0s."
                ),
            ),
        ),
        told(
            "who lags",
            [*agent(), *scenes.team(30, 30, 3, 30)],
            65,
            ALL,
            GpuwhyGpuLagging=(
                {**gpu(index="2"), **scenes.TRAIN},
                (
                    "GPU 2 on a lags in train of ann: in the last 30m it waited for peers for 5% of its time, and half"
                    " of the workload's GPUs for 25% of theirs or more."
                ),
            ),
        ),
        told(
            "which GPU is lost, and its Xid",
            [
                *agent(),
                scenes.gpu_up(gauge((10, 1), (30, 0))),
                series("expected_gpus", "1x40", **host),
                series("xid_events_total", gauge((9, None), (30, 1)), **row, xid="79"),
            ],
            20,
            ALL,
            GpuwhyGpuLost=(row, "GPU 0 (GPU-a0) on a does not answer. Xid 79 was reported."),
            GpuwhyGpusMissing=(host, "a: 0 of 1 GPUs answer."),
        ),
        told(
            "which sources are away",
            [
                *agent()[:2],
                series("source_degraded", "1x60", **host),
                series("source_up", "0x60", **host, source="dcgm"),
                series("source_up", "1x60", **host, source="nvml"),
                series("source_yielding", "1x60", **host, source="nvml"),
            ],
            30,
            ALL,
            GpuwhySourceDegraded=(
                host,
                (
                    "On a signals have come from a lower source, or from none, for 30m. dcgm does not answer. nvml is"
                    " paused or taken by another tool."
                ),
            ),
        ),
        told(
            "agents that are down, gone and stale",
            [
                *agent("b")[:4],
                series("last_sample_timestamp_seconds", "0x40", instance="b"),
                scenes.up(gauge((10, 1), (30, 0))),
                scenes.info(gauge((10, 1), (1, None))),
                scenes.info(gauge((10, 1), (1, None)), host="c"),
            ],
            30,
            ALL,
            GpuwhyAgentDown=(
                host,
                "Prometheus gets no answer from the agent on a: why its GPUs do what they do is not known.",
            ),
            GpuwhyAgentGone=(
                {"instance": "c"},
                "The agent on c answered in the last 6h, and Prometheus no longer scrapes it.",
            ),
            GpuwhyReadingsStale=(
                {"instance": "b"},
                "The agent on b answers, and its last reading of a GPU is 30m 0s old.",
            ),
        ),
        told(
            "no agent",
            [],
            15,
            ALL,
            GpuwhyAgentAbsent=(
                {},
                "Prometheus has series of no gpuwhy agent at all: no other alert of gpuwhy can fire.",
            ),
        ),
    ]
    assert not failures(promtool, tmp_path, played(hourly=False), told_scenes)


def test_descriptions_of_regressions(promtool: str, tmp_path: Path) -> None:
    """Efficiency now and before, and what most of the loss is charged to."""
    scene = told(
        "regressions",
        [
            *scenes.past("workload", (170, 0.5, 0), (12, 0.25, 0), **scenes.TRAIN),
            *scenes.past("gpu", (170, 0.5, 0), (12, 0.25, 0), gpus=1, **gpu()),
            *scenes.past("instance", (170, 0.5, 0), (12, 0.25, 0), instance="a"),
        ],
        60 * 181,
        ALL,
        **{
            name: (
                labels,
                (
                    f"{who} made use of 25% of the GPU time that it wanted in the last 6h, 49.26% in the seven days"
                    f" before. Most of what it lost: starving/copy, {lost} of GPU time."
                ),
            )
            for name, who, labels, lost in (
                ("GpuwhyWorkloadRegression", "train of ann", scenes.TRAIN, "6h 0m 0s"),
                ("GpuwhyGpuRegression", "GPU 0 on a", gpu(), "1h 30m 0s"),
                ("GpuwhyHostRegression", "a", {"instance": "a"}, "6h 0m 0s"),
            )
        },
    )
    scene = Scene(scene.name, scene.inputs, scene.fires, interval="1h", texts=scene.texts)
    assert not failures(promtool, tmp_path, played(hourly=True), [scene], scenes.SELDOM)


# --- What users may change


def test_own_labels_and_matchers(promtool: str, tmp_path: Path) -> None:
    """Hosts by another label, one cluster of two, and a pattern that the template language might trip over."""
    mine = {"cluster": "a", "job": "gpu.why"}

    def there(row: dict[str, str], **more: str) -> dict[str, str]:
        return {
            "node": row["instance"],
            **{name: each for name, each in row.items() if name != "instance"},
            **more,
        }

    def host(name: str, **target: str) -> list[dict[str, str]]:
        return [
            {**each, "series": each["series"].replace('instance="', 'node="')}
            for each in agent(name, **target)
        ]

    fires = there(gpu("n1"))
    gone = gauge((10, 1), (1, None))
    scene = told(
        "one cluster of two",
        [
            *host("n1", **mine),
            verdict(there(gpu("n1"), **mine), "starving", "copy", Piece(125, 60)),
            # A host of that name is scraped in the other cluster.
            series("build_info", gone, node="n2", **mine, version="1", python="3"),
            series("up", "1x125", node="n2", cluster="b", job="gpu.why"),
            verdict(there(gpu("n1", "1"), cluster="b", job="gpu.why"), "starving", "copy", Piece(125, 60)),
            verdict(there(gpu("n1", "2"), cluster="a", job="other"), "starving", "copy", Piece(125, 60)),
        ],
        90,
        OWN,
        GpuwhyStarving=(
            fires,
            (
                "GPU 0 on n1 was starving for 1h 30m 0s of the last 2h. Leading cause: copy, 1h 30m 0s"
                " (https://runbooks.example/gpuwhy/RUNBOOK.md#starvingcopy)."
            ),
        ),
        GpuwhyAgentGone=(
            {"node": "n2"},
            "The agent on n2 answered in the last 6h, and Prometheus no longer scrapes it.",
        ),
    )
    links = {
        "GpuwhyStarving": "https://grafana.example/d/gpuwhy-host?var-host=n1&var-gpu=0",
        "GpuwhyAgentGone": "https://grafana.example/d/gpuwhy-itself?var-host=n2",
    }
    texts = {
        name: {
            **text,
            "runbook_url": f"https://runbooks.example/gpuwhy/RUNBOOK.md#{name.lower()}",
            "dashboard_url": links[name],
        }
        for name, text in scene.texts.items()
    }
    gone_from_25 = {"GpuwhyAgentGone": [{"node": "n2"}]}
    scene = Scene(scene.name, scene.inputs, {89: gone_from_25, **scene.fires}, texts=texts)
    assert not failures(promtool, tmp_path, played(hourly=False, options=OWN), [scene])
    assert rules(OWN)["GpuwhyStarving"]["labels"]["severity"] == "info"
    assert rules(OWN)["GpuwhyThrottledByHardware"]["for"] == "1m"
    assert rules(OWN)["GpuwhyThrottledByHardware"]["expr"].endswith(">= 300")
    assert "GpuwhyMemoryBound" not in rules(OWN)


@each_alert
def test_links(alert: Alert) -> None:
    """Runbook by its heading, dashboard by what the alert is about; without addresses, the heading's name."""
    texts = rules(OWN).get(alert.name, {}).get("annotations")
    if texts is not None:
        assert texts["runbook_url"].endswith(f"/RUNBOOK.md#{alert.name.lower()}")
        assert texts["dashboard_url"].startswith(f"https://grafana.example/d/gpuwhy-{alert.dashboard}")
        assert ("var-gpu=" in texts["dashboard_url"]) == (ROW in alert.by)
        assert ("var-host=" in texts["dashboard_url"]) == (ROW in alert.by or HOST in alert.by)
        assert ("var-workload=" in texts["dashboard_url"]) == (alert.dashboard == "workloads")
        assert "runbook" not in texts
    plain = rules()[alert.name]["annotations"]
    assert plain["runbook"] == f"RUNBOOK.md, {alert.name}"
    assert not {"runbook_url", "dashboard_url"} & set(plain)


def test_a_dose_follows_its_window() -> None:
    """With the window alone changed, the claim stays possible: the share of it is what counts."""
    for alert in alerts.settled(LIVE):
        if alert.threshold and alert.threshold.unit == "ratio" and alert.window_s == 30:
            assert 0 < alert.dose_s < 30, alert.name
    [alert] = [alert for alert in alerts.settled(OWN) if alert.name == "GpuwhyStarving"]
    assert alert.dose_s == 0.75 * 7200
    assert alert.fires == "The verdict was `starving`, by any cause, for 90m or more of the last 2h."


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"GpuwhyStarvin": AlertOverride()},
            "render.alerts.GpuwhyStarvin is not known: write GpuwhyStarving, or remove it",
        ),
        (
            {"x": AlertOverride()},
            f"render.alerts.x is not known: use any of {', '.join(alert.name for alert in ALERTS)}, or remove it",
        ),
        (
            {"GpuwhyAgentAbsent": AlertOverride(threshold=1, window_seconds=60)},
            (
                "render.alerts.GpuwhyAgentAbsent.threshold is set, and that alert compares with none: remove it\n"
                "render.alerts.GpuwhyAgentAbsent.window_seconds is set, and that alert looks at now only: remove it"
            ),
        ),
        (
            {"GpuwhyStarving": AlertOverride(threshold=2700)},
            (
                "render.alerts.GpuwhyStarving.threshold is 2700, the share of the window that the verdict has to hold for:"
                " set it between 0.01 and 0.95"
            ),
        ),
        (
            {"GpuwhyStarving": AlertOverride(threshold=0)},
            (
                "render.alerts.GpuwhyStarving.threshold is 0, the share of the window that the verdict has to hold for:"
                " set it between 0.01 and 0.95"
            ),
        ),
        (
            {"GpuwhyWorkloadRegression": AlertOverride(window_seconds=600)},
            "render.alerts.GpuwhyWorkloadRegression.window_seconds is 600, which has no data: set it to 7200 or more",
        ),
    ],
)
def test_what_fits_no_alert_is_said(given: dict[str, AlertOverride], problem: str) -> None:
    """An override that would be lost, or make an alert that always or never fires, stops rendering."""
    with pytest.raises(ConfigError) as raised:
        alerts.settled(RenderConfig(alerts=given))
    assert str(raised.value) == problem
    with pytest.raises(ConfigError):
        render.render_all(RenderConfig(alerts=given))


# --- One fault wakes once


@pytest.mark.parametrize("row", INHIBITIONS, ids=lambda row: f"{row.source}-{'-'.join(row.equal) or 'all'}")
def test_inhibitions_fit_their_alerts(row: alerts.Inhibition) -> None:
    """Known names; equal labels that both have, since Alertmanager takes those that both lack as equal."""
    by_name = {alert.name: alert for alert in ALERTS}
    promql = Promql()
    equal = set(row.labels(promql)) - {"cluster"}
    assert row.why.endswith(".")
    assert row.source not in row.targets
    for name in (row.source, *row.targets):
        assert equal <= set(by_name[name].labels(promql)), name


def test_no_alert_is_silenced_in_a_circle() -> None:
    """Of any alerts that fire together one is left."""
    silences: dict[str, set[str]] = {}
    for row in INHIBITIONS:
        silences.setdefault(row.source, set()).update(row.targets)

    def reached(name: str, seen: frozenset[str]) -> None:
        assert name not in seen, f"{name} silences itself over {sorted(seen)}"
        for target in silences.get(name, ()):
            reached(target, seen | {name})

    for name in silences:
        reached(name, frozenset())


def test_every_warning_that_pages_is_heard() -> None:
    """A page is silenced by another page only, or by a host that is no longer there."""
    severity = {alert.name: alert.severity for alert in ALERTS}
    for row in INHIBITIONS:
        for target in row.targets:
            if severity[target] == "critical":
                assert severity[row.source] == "critical" or row.source == "GpuwhyAgentGone", (
                    row.source,
                    target,
                )


@each_options
def test_alertmanager_takes_the_inhibitions(
    require_program: Callable[[str, str], str], tmp_path: Path, options: RenderConfig
) -> None:
    """Inside a minimal configuration, with the host label of the options, and no alert that is not rendered."""
    amtool = require_program("amtool", "`make test` fetches it where apt-get works, or put it on PATH")
    text = alerts.inhibitions(options)
    file = tmp_path / "alertmanager.yml"
    file.write_text(f"route: {{receiver: nobody}}\nreceivers: [{{name: nobody}}]\n{text}")
    done = subprocess.run([amtool, "check-config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    inhibit = yaml.safe_load(text)["inhibit_rules"]
    assert f"{len(inhibit)} inhibit rules" in done.stdout
    assert set(re.findall(r"Gpuwhy\w+", text)) <= set(rules(options))
    assert {label for rule in inhibit for label in rule["equal"]} == {
        options.host_label,
        "gpu",
        "uuid",
        "mig",
        "cluster",
    }


def test_the_page_shows_the_inhibitions(shown: Callable[[str, str, str], None]) -> None:
    """docs/alerts.md has a line for each."""
    lines = ["| fires | same | silent | why |", "| --- | --- | --- | --- |"]
    for row in INHIBITIONS:
        equal = ", ".join(
            "host" if label == HOST else "GPU" if label in {ROW, "uuid"} else label for label in row.equal
        )
        equal = {"": "all", "host, GPU": "GPU"}.get(equal, equal)
        targets = ", ".join(target.removeprefix("Gpuwhy") for target in row.targets)
        lines.append(f"| {row.source.removeprefix('Gpuwhy')} | {equal} | {targets} | {row.why} |")
    shown("docs/alerts.md", "inhibitions", "\n".join(lines) + "\n")


def test_the_pages_examples_are_right(root: Path, tmp_path: Path) -> None:
    """What docs/alerts.md shows of configurations loads, and fits the alerts."""
    page = (root / "docs/alerts.md").read_text()
    examples = [
        text
        for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
        if "agent:" in text or "render:" in text
    ]
    assert len(examples) == 2
    for number, text in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        loaded = config.load({}, {}, file).config
        alerts.settled(loaded.render)
    assert set(re.findall(r"`(Gpuwhy\w+)`", page)) <= {alert.name for alert in ALERTS}
