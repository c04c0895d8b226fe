"""Stage 7: tables to files: docs, alerts, dashboards, runbook.

To add a file, add its row to ``TARGETS``. To add a table to a file, see the module that renders it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuwhy.config import RenderConfig
from gpuwhy.render import alerts, docs, files, kubernetes, recording, runbook
from gpuwhy.render.files import Difference, NotOursError, Target


def _fixed(text: Callable[[], str]) -> Callable[[RenderConfig], str]:
    """What is the same under every option."""
    return lambda _: text()


def _dashboard(uid: str) -> Callable[[RenderConfig], str]:
    """Grafanalib is loaded only when a dashboard is rendered."""

    def text(options: RenderConfig) -> str:
        from gpuwhy.render import dashboards  # noqa: PLC0415

        return dashboards.text(uid, options)

    return text


RULES = (
    Target("alerts/recording.rules.yaml", recording.rule_file),
    Target("alerts/alerts.rules.yaml", alerts.rule_file),
)
DASHBOARDS = tuple(
    Target(f"dashboards/{uid}.json", _dashboard(uid))
    for uid in ("gpuwhy-fleet", "gpuwhy-host", "gpuwhy-workloads", "gpuwhy-weekly", "gpuwhy-itself")
)
TARGETS: tuple[Target, ...] = (
    Target("docs/configuration.md", _fixed(docs.configuration)),
    Target("docs/metrics.md", _fixed(docs.metrics)),
    Target("docs/verdicts.md", _fixed(docs.verdicts)),
    *RULES,
    Target("alerts/inhibit.yaml", alerts.inhibitions),
    Target("alerts/RUNBOOK.md", runbook.render),
    *DASHBOARDS,
    Target(
        "deploy/kubernetes/prometheusrule.yaml",
        lambda options: kubernetes.prometheus_rule(options, [target.text(options) for target in RULES]),
    ),
    Target(
        "deploy/kubernetes/dashboards.yaml",
        lambda options: kubernetes.config_maps(
            options, {target.path: target.text(options) for target in DASHBOARDS}
        ),
    ),
)
# Folders in which nothing is written by hand. docs/ is none of them.
WHOLE_FOLDERS: tuple[str, ...] = ()


def render_all(options: RenderConfig | None = None) -> dict[str, str]:
    """The text of every rendered file by its path, the same at every call.

    Raises ConfigError for options that fit no alert, and ImportError, with the remedy, without grafanalib.
    """
    return {target.path: target.text(options or RenderConfig()) for target in TARGETS}


def write(out: Path, options: RenderConfig | None = None) -> list[Path]:
    """Render below ``out``; returns the files that were not so already. Deletes nothing."""
    return files.write(render_all(options), out)


def check(out: Path, options: RenderConfig | None = None) -> list[Difference]:
    """What below ``out`` is not as rendered: changed, missing, or no longer rendered by anything."""
    return files.check(render_all(options), out, WHOLE_FOLDERS)


__all__ = ["TARGETS", "WHOLE_FOLDERS", "Difference", "NotOursError", "Target", "check", "render_all", "write"]
