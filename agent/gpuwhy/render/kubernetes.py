"""Rules and dashboards as Kubernetes objects: for the Prometheus operator, and for the sidecar of Grafana's chart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from gpuwhy.config import RenderConfig
from gpuwhy.render.files import notice
from gpuwhy.render.recording import as_yaml

# What the sidecar of Grafana's Helm chart looks for unless told otherwise.
_SIDECAR = {"grafana_dashboard": "1"}
_FOLDER = {"grafana_folder": "gpuwhy"}


def prometheus_rule(options: RenderConfig, rule_files: Iterable[str]) -> str:
    """One ``PrometheusRule`` with the groups of these rule files, in their order."""
    groups = [group for text in rule_files for group in yaml.safe_load(text)["groups"]]
    return as_yaml(
        "the tables of rules in `agent/gpuwhy/render/`",
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": _metadata(options, "gpuwhy"),
            "spec": {"groups": groups},
        },
    )


def config_maps(options: RenderConfig, dashboards: Mapping[str, str]) -> str:
    """A ``ConfigMap`` for each dashboard, by the path of its JSON file."""
    maps = (_config_map(options, PurePosixPath(path), text) for path, text in dashboards.items())
    return f"# {notice('`agent/gpuwhy/render/dashboards/`')}\n" + "---\n".join(maps)


def _config_map(options: RenderConfig, path: PurePosixPath, text: str) -> str:
    head = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(options, path.stem, _SIDECAR) | {"annotations": _FOLDER},
    }
    # PyYAML would quote the JSON onto one line, and take a second for it.
    return f"{yaml.safe_dump(head, sort_keys=False)}data:\n  {path.name}: |\n{textwrap.indent(text, '    ')}"


def _metadata(options: RenderConfig, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    own = {"app.kubernetes.io/name": "gpuwhy", **(labels or {}), **options.kubernetes_labels}
    namespace = {"namespace": options.kubernetes_namespace} if options.kubernetes_namespace else {}
    return {"name": name, **namespace, "labels": own}
