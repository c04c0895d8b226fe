"""Rules and dashboards as Kubernetes objects."""

from __future__ import annotations

import json

import pytest
import yaml

from gpuwhy import render
from gpuwhy.config import RenderConfig

OPTIONS = RenderConfig(kubernetes_namespace="monitoring", kubernetes_labels={"release": "kps"})


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return render.render_all(OPTIONS)


def test_the_rule_holds_all_groups_of_the_rule_files(texts: dict[str, str]) -> None:
    """One PrometheusRule says what the rule files say, in their order."""
    rule = yaml.safe_load(texts["deploy/kubernetes/prometheusrule.yaml"])
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    files = ("alerts/recording.rules.yaml", "alerts/alerts.rules.yaml")
    assert rule["spec"]["groups"] == [
        group for file in files for group in yaml.safe_load(texts[file])["groups"]
    ]
    names = [group["name"] for group in rule["spec"]["groups"]]
    assert len(set(names)) == len(names)


def test_every_dashboard_has_its_config_map(texts: dict[str, str]) -> None:
    """Each JSON file is in one ConfigMap that the sidecar selects, unchanged."""
    maps = list(yaml.safe_load_all(texts["deploy/kubernetes/dashboards.yaml"]))
    held = {name: text for each in maps for name, text in each["data"].items()}
    assert held == {
        path.removeprefix("dashboards/"): text
        for path, text in texts.items()
        if path.startswith("dashboards/")
    }
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each)) < 1_000_000, "the API server takes a mebibyte"


@pytest.mark.parametrize(
    "path", ["deploy/kubernetes/prometheusrule.yaml", "deploy/kubernetes/dashboards.yaml"]
)
def test_objects_are_where_and_named_as_asked(texts: dict[str, str], path: str) -> None:
    """Namespace and labels are the options'; without a namespace none is named."""
    for each in yaml.safe_load_all(texts[path]):
        assert each["metadata"]["namespace"] == "monitoring"
        assert each["metadata"]["labels"]["release"] == "kps"
    for each in yaml.safe_load_all(render.render_all()[path]):
        assert "namespace" not in each["metadata"]
