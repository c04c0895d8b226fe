"""From recordings to Alertmanager: installed agents, a Prometheus with the rendered rules, and what wakes somebody.

One host for each fault, all at once. Windows are shortened by the options that users have, so that a verdict that
holds for half a minute counts as one that held for an hour; the agents play in real time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwhy.config import AlertOverride, RenderConfig
from gpuwhy.render import alerts
from gpuwhy.render.recording import rule_file

from ..e2e.conftest import Agent, Command, install  # noqa: F401, TID252  a fixture
from .history import RECORDINGS
from .programs import Program, Prometheus, Scrape, alertmanager, prometheus, running, wait_for

WINDOW_S = 30
INTERVAL_S = 2  # of the agents: of a window, all but two intervals are seen at any time
ARRIVE_S = 75.0
CALM_S = 5.0  # in which nothing else may come

Told = tuple[str, ...]  # an alert's name, and the index of its GPU where it is about one


@dataclass(frozen=True)
class Case:
    """A host: what is replayed on it, what wakes somebody, and what is inhibited by that.

    ``says`` stands in the description of the alert that wakes.
    """

    recording: str
    active: frozenset[Told] = frozenset()
    suppressed: frozenset[Told] = frozenset()
    says: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    killed: bool = False


def told(*each: Told) -> frozenset[Told]:
    return frozenset(each)


CASES: Mapping[str, Case] = {
    "starving": Case("jpeg_2w", told(("GpuwhyStarving", "0")), says=("cpu-preprocess", "jpeg_2w")),
    "busy-for-nothing": Case("elem_l2", told(("GpuwhyPseudoPeak", "0")), says=("latency-bound",)),
    "decoding": Case("decode_attn", told(("GpuwhyMemoryBound", "0")), says=("bandwidth", "decode_attn")),
    "braked": Case("syn_power_brake", told(("GpuwhyThrottledByHardware", "0")), says=("power-brake",)),
    "capped": Case("syn_low_cap", told(("GpuwhyThrottled", "0")), says=("power-cap",)),
    "parked": Case("parked", told(("GpuwhyGpuHeld", "0")), says=("held", "parked")),
    # The late GPU starves; that it lags, and that the other one waits for it, is the same fault.
    "late": Case(
        "ddp_late",
        told(("GpuwhyStarving", "0")),
        told(("GpuwhyGpuLagging", "0"), ("GpuwhyPseudoPeak", "1")),
        says=("host-serial",),
    ),
    "frozen": Case("syn_frozen_counters", told(("GpuwhyTelemetryFault", "0")), says=("telemetry-fault",)),
    "killed": Case("gemm", told(("GpuwhyAgentDown",)), says=("no answer",), killed=True),
    "fewer": Case(
        "gemm", told(("GpuwhyGpusMissing",)), says=("1 of 2",), env={"GPUWHY__AGENT__EXPECTED_GPUS": "2"}
    ),
    # A power cap at full load, a thermal bit on an idle GPU and readings that cannot be true wake nobody.
    "at-full-load": Case("gemm"),
    "idle-with-thermal-bit": Case("syn_idle_thermal_bit"),
    "bad-readings": Case("syn_sentinels"),
}


def options() -> RenderConfig:
    """Every alert at once and over the short window, but those that compare with the week before."""
    changed = {}
    for alert in alerts.settled(RenderConfig()):
        short = alert.window_s > 0 and alert.threshold is not None and alert.least_window_s <= WINDOW_S
        changed[alert.name] = AlertOverride(
            window_seconds=WINDOW_S if short else None,
            # Intervals at both ends of the window are seen in part.
            threshold=0.75 if alert.name == "GpuwhyGpuHeld" else None,
            # Before the first scrape there is no agent, and a busy machine misses some scrapes.
            for_seconds={"GpuwhyAgentAbsent": 10, "GpuwhyAgentDown": 5}.get(alert.name, 0),
        )
    return RenderConfig(alerts=changed, grafana_url="https://grafana.example")


def write_rules(folder: Path) -> tuple[Path, ...]:
    """The rendered rules, evaluated each second."""
    written = []
    for name, text in (("alerts", alerts.rule_file(options())), ("recording", rule_file(options()))):
        content = yaml.safe_load(text)
        for group in content["groups"]:
            group["interval"] = "1s"
        written.append(folder / f"{name}.yaml")
        written[-1].write_text(yaml.safe_dump(content))
    return tuple(written)


@dataclass(frozen=True)
class Alerted:
    """What Alertmanager knows when all has settled."""

    alerts: list[dict[str, Any]]
    server: Prometheus

    def of(self, host: str, state: str) -> list[dict[str, Any]]:
        return [
            each
            for each in self.alerts
            if each["labels"].get("instance") == host and each["status"]["state"] == state
        ]


def names(found: list[dict[str, Any]]) -> frozenset[Told]:
    return frozenset(
        (each["labels"]["alertname"], *([each["labels"]["gpu"]] if "gpu" in each["labels"] else []))
        for each in found
    )


@pytest.fixture(scope="module")
def command(install: Callable[[str], Command]) -> Command:  # noqa: F811  that fixture
    import sys

    return install(sys.executable)


@pytest.fixture(scope="module")
def alerted(
    command: Command,
    prometheus_program: str,
    alertmanager_program: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Alerted]:
    """All hosts, until each has what it should have, and some seconds more."""
    folder = tmp_path_factory.mktemp("live")
    inhibitions = yaml.safe_load(alerts.inhibitions(options()))
    route = {"receiver": "none", "group_by": ["..."], "group_wait": "0s"}
    manager = alertmanager(
        alertmanager_program, folder, {"route": route, "receivers": [{"name": "none"}], **inhibitions}
    )
    with contextlib.ExitStack() as stack:
        agents = {
            host: stack.enter_context(
                command.serve(
                    *("--source", f"replay:{RECORDINGS / case.recording}.jsonl.gz"),
                    *("--loop", "--interval", str(INTERVAL_S)),
                    **case.env,
                    STATE_DIRECTORY=str(folder / "state" / host),  # agents of one machine in one test only
                )
            )
            for host, case in CASES.items()
        }
        setup = Scrape(
            targets={host: agent.url.removeprefix("http://") for host, agent in agents.items()},
            rules=write_rules(folder),
            alertmanager=manager.url.removeprefix("http://"),
        )
        server = prometheus(prometheus_program, folder, setup)
        stack.enter_context(running(manager, server))
        kill(agents, server)
        wait_for(lambda: not unlike(manager, server), ARRIVE_S, step=0.5)
        time.sleep(CALM_S)
        yield Alerted(manager.json("/api/v2/alerts"), server)


def kill(agents: Mapping[str, Agent], server: Prometheus) -> None:
    """Ends the agents that are to be missed, once Prometheus knows them."""
    wanted = {host for host, case in CASES.items() if case.killed}
    seen = wait_for(
        lambda: (
            wanted <= {one["metric"]["instance"] for one in server.query("gpuwhy_build_info", time.time())}
        ),
        20,
    )
    assert seen, server.json("/api/v1/targets")
    for host in wanted:
        agents[host].process.kill()


def unlike(manager: Program, server: Prometheus) -> list[str]:
    """The hosts of which Alertmanager does not yet say what it should."""
    now = Alerted(manager.json("/api/v2/alerts"), server)
    return [
        host
        for host, case in CASES.items()
        if names(now.of(host, "active")) != case.active
        or names(now.of(host, "suppressed")) != case.suppressed
    ]


@pytest.mark.parametrize("host", CASES)
def test_fault_wakes_once(alerted: Alerted, host: str) -> None:
    """The right alert arrives, with its cause and where to look, and no other one does."""
    case = CASES[host]
    active = alerted.of(host, "active")
    assert names(active) == case.active
    assert names(alerted.of(host, "suppressed")) == case.suppressed
    for each in active:
        notes = each["annotations"]
        for text in case.says:
            assert text in notes["description"]
        assert host in notes["description"]
        assert notes["runbook"] == f"RUNBOOK.md, {each['labels']['alertname']}"
        assert notes["dashboard_url"].startswith("https://grafana.example/d/gpuwhy-")
        assert f"var-host={host}" in notes["dashboard_url"]


def test_texts_have_no_errors(alerted: Alerted) -> None:
    """Templates find what they ask for."""
    for each in alerted.alerts:
        for text in each["annotations"].values():
            assert "error expanding" not in text
            assert "<no value>" not in text
            assert "%!" not in text


def test_alerts_of_no_host_are_quiet(alerted: Alerted) -> None:
    """What arrived is about these hosts."""
    assert {each["labels"].get("instance") for each in alerted.alerts} <= set(CASES)


def test_rules_are_healthy(alerted: Alerted) -> None:
    """Prometheus evaluated every rule without an error."""
    groups = alerted.server.json("/api/v1/rules")["data"]["groups"]
    wrong = [
        f"{rule['name']}: {rule.get('lastError') or rule['health']}"
        for group in groups
        for rule in group["rules"]
        if rule["health"] != "ok"
    ]
    assert groups
    assert not wrong
