"""Every query that is shipped, against a real Prometheus that holds a replay of two weeks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from gpuwhy.catalog import SERIES
from gpuwhy.config import RenderConfig
from gpuwhy.render import alerts
from gpuwhy.render.promql import Promql
from gpuwhy.render.recording import Recording

from .dashboards import LEFT_OVER, Dashboard, ask, labels_of_legend, load
from .history import NOW_S
from .programs import Prometheus

FOLDER = Path(__file__).parent.parent.parent / "dashboards"
DASHBOARDS = load(FOLDER)

# What is empty in the replay, by dashboard, panel and query, and why that is right.
EMPTY: Mapping[tuple[str, str, str], str] = {
    ("gpuwhy-itself", "Workloads counted as other", "A"): "no host has more workloads than are allowed",
    ("gpuwhy-itself", "Values dropped", "A"): "the agents have no fault of their own",
    ("gpuwhy-itself", "Scrapes that failed in part", "A"): "the agents have no fault of their own",
    **{
        (f"gpuwhy-{name}", "annotation Firing alerts", ""): "the replay's Prometheus evaluates no rules"
        for name in ("fleet", "host", "workloads")
    },
    (
        "gpuwhy-weekly",
        "GPU-hours a day by verdict",
        "G",
    ): "a GPU is lost in the last half hour, days end at midnight",
}

# Prometheus drops labels that are empty: the MIG instance of a whole GPU, a job's namespace.
MAY_BE_ABSENT = {"mig", "workload_namespace", "workload_owner"}
OF_PROCESSES = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
}
KNOWN = (
    {name for series in SERIES for name in series.sample_names}
    | {rule.record for rule in (*Recording().hours(), *Recording().weeks())}
    | OF_PROCESSES
    | {"up", "ALERTS"}
)


def names(expr: str) -> Iterator[str]:
    """The series that a query reads."""
    pending: list[Any] = [promql_parser.parse(expr)]
    while pending:
        node = pending.pop()
        if isinstance(node, promql_parser.VectorSelector):
            yield node.name or ""
        for field in ("expr", "lhs", "rhs", "vector_selector", "param"):
            child = getattr(node, field, None)
            if isinstance(child, promql_parser.Expr):
                pending.append(child)
        pending += getattr(node, "args", None) or []


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_every_query_has_data(dashboard: Dashboard, replayed: Prometheus) -> None:
    """Panels, variables and annotations show something, with the labels that their legends name."""
    found: dict[tuple[str, str, str], int] = {}
    wrong = []
    for variables in dashboard.variables(replayed, NOW_S):
        for target in dashboard.targets():
            where = (dashboard.uid, target.panel, target.ref)
            expr = target.filled(variables)
            if LEFT_OVER.search(expr):
                wrong.append(f"{where}: left in {expr}")
                continue
            wrong += [f"{where}: unknown series {name!r}" for name in names(expr) if name not in KNOWN]
            series = ask(replayed, target, expr, NOW_S)
            found[where] = found.get(where, 0) + len(series)
            shown = set(labels_of_legend(target.legend)) - MAY_BE_ABSENT
            for one in series if not target.table else ():
                if lacking := shown - set(one["metric"]):
                    wrong.append(f"{where}: legend names {lacking}, series has {one['metric']}")
                    break
    wrong += [f"{where}: empty" for where, count in found.items() if not count and where not in EMPTY]
    wrong += [
        f"{where}: no longer empty, or no longer there"
        for where in EMPTY
        if where[0] == dashboard.uid and found.get(where) != 0
    ]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_every_dashboard_is_asked() -> None:
    """There are dashboards, and what may be empty names panels of them."""
    assert DASHBOARDS
    assert {uid for uid, _, _ in EMPTY} <= {dashboard.uid for dashboard in DASHBOARDS}


def test_every_recording_rule_has_data(replayed: Prometheus) -> None:
    """Each rule gives series with the labels that it promises, and no value that is none."""
    wrong = []
    for rule in (*Recording().hours(), *Recording().weeks()):
        series = replayed.query(rule.expr, NOW_S)
        if not series:
            wrong.append(f"{rule.record}: empty")
        for one in series:
            labels = set(one["metric"]) - {"__name__"}
            if not set(rule.labels) - MAY_BE_ABSENT <= labels <= set(rule.labels):
                wrong.append(f"{rule.record}: {one['metric']}, expected {rule.labels}")
            if one["value"][1] in {"NaN", "+Inf", "-Inf"}:
                wrong.append(f"{rule.record}: {one}")
    assert not wrong, "\n".join(wrong)


def test_recorded_seconds_add_up(replayed: Prometheus) -> None:
    """By verdict and by use, a week's seconds of the fleet are those that were observed."""
    (observed,) = replayed.query("fleet:gpuwhy_observed_seconds:sum1w", NOW_S)
    (verdicts,) = replayed.query("sum(fleet:gpuwhy_verdict_seconds:sum1w)", NOW_S)
    assert float(verdicts["value"][1]) == pytest.approx(float(observed["value"][1]), rel=0.01)


# What the replay's alerts say at its end, by what tells them apart.
FIRING: Mapping[str, set[tuple[str, ...]]] = {
    "GpuwhyStarving": {("gpu-a02", "0"), ("gpu-b02", "0", "2")},
    "GpuwhyPseudoPeak": {("gpu-a02", "1")},
    "GpuwhyMemoryBound": {("gpu-b01", "0")},
    "GpuwhyThrottledByHardware": {("gpu-a02", "3")},
    "GpuwhyThrottled": {("gpu-a02", "2")},
    "GpuwhyGpuHeld": {("gpu-b01", "2")},
    "GpuwhyTelemetryFault": {("gpu-b02", "2")},
    "GpuwhyGpuLost": {("gpu-b02", "2")},
    "GpuwhyGpusMissing": {("gpu-b02",)},
    "GpuwhySourceDegraded": {("gpu-b02",)},
    "GpuwhyWorkloadRegression": {("climate-emulator",)},
}
TOLD_APART_BY = ("instance", "gpu", "mig", "workload")


def test_alerts_fire_on_what_is_wrong(replayed: Prometheus) -> None:
    """Evaluated at the replay's end, each alert that is rendered by default names what was made wrong there."""
    promql = Promql(RenderConfig())
    firing = {}
    for alert in alerts.rendered(RenderConfig()):
        expr = alert.expr(alert, promql)
        assert not set(names(expr)) - KNOWN, alert.name
        found = {
            tuple(one["metric"][label] for label in TOLD_APART_BY if label in one["metric"])
            for one in replayed.query(expr, NOW_S)
        }
        if found:
            firing[alert.name] = found
    assert firing == FIRING


def test_alerts_that_are_off_run(replayed: Prometheus) -> None:
    """Those that are off by default ask nothing that fails."""
    promql = Promql(RenderConfig())
    for alert in alerts.settled(RenderConfig()):
        replayed.query(alert.expr(alert, promql), NOW_S)
