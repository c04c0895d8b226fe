"""The dashboards: one module for each, and its row here.

To add one, write its module, add its row to ``DASHBOARDS``, its file to ``TARGETS`` and its line to
dashboards/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from gpuwhy.config import RenderConfig
from gpuwhy.render.dashboards import fleet, host, itself, parts, weekly, workloads
from gpuwhy.render.files import notice
from gpuwhy.render.panels import Board, Link, grafana
from gpuwhy.render.promql import Promql


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: its uid, which never changes, its title, and the question that it answers."""

    uid: str
    title: str
    question: str
    build: Callable[[Promql], Board]

    @property
    def path(self) -> str:
        return f"dashboards/{self.uid}.json"


DASHBOARDS = (
    Dashboard(parts.FLEET, "Fleet", "Where do my GPU-hours go?", fleet.build),
    Dashboard(parts.HOST, "Host and GPU", "Why is this GPU not doing more useful work?", host.build),
    Dashboard(parts.WORKLOADS, "Workloads", "Which workloads lose GPU-hours, and to what?", workloads.build),
    Dashboard(
        parts.WEEKLY,
        "Weekly efficiency review",
        "What did the last seven days cost, what changed, and what should be mended first?",
        weekly.build,
    ),
    Dashboard(parts.ITSELF, "gpuwhy itself", "Can I believe the other dashboards?", itself.build),
)
BY_UID = {dashboard.uid: dashboard for dashboard in DASHBOARDS}


def text(uid: str, options: RenderConfig) -> str:
    """A dashboard's JSON under the options; raises KeyError for a uid that is not in the table."""
    dashboard = BY_UID[uid]
    others = [Link(each.title, f"/d/{each.uid}") for each in DASHBOARDS if each is not dashboard]
    runbook = [Link("Runbook", options.runbook_url)] if options.runbook_url else []
    drawn = grafana(
        dashboard.build(Promql(options)),
        uid=uid,
        title=f"gpuwhy / {dashboard.title}" if "gpuwhy" not in dashboard.title else dashboard.title,
        description=f"{dashboard.question} {notice('`agent/gpuwhy/render/dashboards/`')}",
        links=[*others, *runbook],
    )
    return json.dumps(drawn, indent=2, ensure_ascii=False) + "\n"
