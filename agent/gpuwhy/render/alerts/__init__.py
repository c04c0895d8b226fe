"""Alerts: the table of them, and the files that Prometheus and Alertmanager read.

An alert is one row of ``table.ALERTS``, an inhibition one row of ``inhibition.INHIBITIONS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from gpuwhy.config import RenderConfig
from gpuwhy.render.alerts import inhibition
from gpuwhy.render.alerts.alert import Alert, Threshold, settle
from gpuwhy.render.alerts.inhibition import INHIBITIONS, Inhibition
from gpuwhy.render.alerts.table import ALERTS
from gpuwhy.render.promql import Promql, duration
from gpuwhy.render.recording import as_yaml

SOURCE = "`agent/gpuwhy/render/alerts/`"
RUNBOOK = "RUNBOOK.md"


def settled(options: RenderConfig) -> tuple[Alert, ...]:
    """All alerts with what the options say is different; ``enabled`` tells which are rendered.

    Raises ConfigError for a name that is not known, and for a number that the alert cannot use.
    """
    return settle(ALERTS, options)


def rendered(options: RenderConfig) -> tuple[Alert, ...]:
    """The alerts that the options leave enabled."""
    return tuple(alert for alert in settled(options) if alert.enabled)


def rule(alert: Alert, promql: Promql) -> dict[str, Any]:
    """An alert as a rule of Prometheus."""
    options = promql.options
    annotations = {
        "summary": f"{alert.summary}.",
        "description": alert.description(alert, promql),
        "next_step": alert.next_step,
    }
    if options.runbook_url:
        annotations["runbook_url"] = f"{options.runbook_url}#{anchor(alert.name)}"
    else:
        annotations["runbook"] = f"{RUNBOOK}, {alert.name}"
    if options.grafana_url:
        annotations["dashboard_url"] = _dashboard(alert, promql)
    return {
        "alert": alert.name,
        "expr": alert.expr(alert, promql),
        **({"for": duration(alert.for_s)} if alert.for_s else {}),
        "labels": {
            **options.alert_labels,
            "severity": alert.severity,
            **({"verdict": alert.verdict} if alert.verdict else {}),
        },
        "annotations": annotations,
    }


def groups(options: RenderConfig) -> list[dict[str, Any]]:
    """A group of rules for each interval at which alerts are evaluated."""
    promql, alerts = Promql(options), rendered(options)
    return [
        {
            "name": f"gpuwhy.alerts.{every}",
            "interval": every,
            "rules": [rule(alert, promql) for alert in alerts if alert.every == every],
        }
        for every in dict.fromkeys(alert.every for alert in alerts)
    ]


def rule_file(options: RenderConfig) -> str:
    """alerts/alerts.rules.yaml"""
    return as_yaml(SOURCE, {"groups": groups(options)})


def inhibitions(options: RenderConfig) -> str:
    """alerts/inhibit.yaml: what belongs into one's own configuration of Alertmanager."""
    names = frozenset(alert.name for alert in rendered(options))
    return as_yaml(SOURCE, {"inhibit_rules": inhibition.rules(Promql(options), names)})


def anchor(heading: str) -> str:
    """Where GitHub puts a heading: lower case, spaces to hyphens, without other signs."""
    kept = (sign for sign in heading.lower().replace(" ", "-") if sign.isalnum() or sign in "-_")
    return "".join(kept)


def _dashboard(alert: Alert, promql: Promql) -> str:
    labels = alert.labels(promql)
    if alert.dashboard == "workloads":
        wanted: Iterable[tuple[str, str]] = (
            ("owner", "workload_owner"),
            ("namespace", "workload_namespace"),
            ("workload", "workload"),
        )
    else:
        wanted = (("host", promql.host), ("gpu", "gpu"))
    variables = [
        f"var-{quote(name)}={{{{ $labels.{label} | urlquery }}}}" for name, label in wanted if label in labels
    ]
    query = f"?{'&'.join(variables)}" if variables else ""
    return f"{promql.options.grafana_url.rstrip('/')}/d/gpuwhy-{alert.dashboard}{query}"


__all__ = [
    "ALERTS",
    "INHIBITIONS",
    "RUNBOOK",
    "SOURCE",
    "Alert",
    "Inhibition",
    "Threshold",
    "anchor",
    "groups",
    "inhibitions",
    "rendered",
    "rule",
    "rule_file",
    "settled",
]
