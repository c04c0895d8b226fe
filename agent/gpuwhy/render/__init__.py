"""Stage 7: tables to files: docs, alerts, dashboards, runbook.

To add a file, add its row to ``TARGETS``. To add a table to a file, see the module that renders it.
"""

from __future__ import annotations

from pathlib import Path

from gpuwhy.render import docs, files, recording
from gpuwhy.render.files import Difference, Target

TARGETS: tuple[Target, ...] = (
    Target("docs/configuration.md", docs.configuration),
    Target("docs/metrics.md", docs.metrics),
    Target("docs/verdicts.md", docs.verdicts),
    Target("alerts/recording.rules.yaml", recording.rule_file),
)
# Folders in which nothing is written by hand. docs/ is none of them.
WHOLE_FOLDERS: tuple[str, ...] = ()


def render_all() -> dict[str, str]:
    """The text of every rendered file by its path, the same at every call."""
    return {target.path: target.text() for target in TARGETS}


def write(out: Path) -> list[Path]:
    """Render below ``out``; returns the files that were not so already. Deletes nothing."""
    return files.write(render_all(), out)


def check(out: Path) -> list[Difference]:
    """What below ``out`` is not as rendered: changed, missing, or no longer rendered by anything."""
    return files.check(render_all(), out, WHOLE_FOLDERS)


__all__ = ["TARGETS", "WHOLE_FOLDERS", "Difference", "Target", "check", "render_all", "write"]
