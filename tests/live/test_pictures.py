"""The renderer of pictures knows what the dashboards are made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .dashboards import load, panels


def test_every_panel_type_can_be_drawn(root: Path) -> None:
    """Each type of panel has its adapter."""
    adapters = set(re.findall(r"\['([\w-]+)', \w", (root / "tools/grafana-render/panels.tsx").read_text()))
    used = {panel["type"] for board in load(root / "dashboards") for panel in panels(board.content["panels"])}
    assert used - {"row"} <= adapters


def test_components_are_pinned(root: Path) -> None:
    """Pictures are the same next year: each package has one version, held by its hash and no address."""
    folder = root / "tools/grafana-render"
    asked = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in asked.values())
    assert locked[""]["dependencies"] == asked
    for name, package in locked.items():
        assert not name or package["integrity"], name
        assert "resolved" not in package, name
