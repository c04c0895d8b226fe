"""Every dependency is explained, and none is loaded where it is not needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Commands, rendering and reports may take their time to load; what runs all day on a host may not.
KEPT_OUT = ("rich", "httpx", "grafanalib", "matplotlib", "click", "jinja2", "urllib3", "grpc")
ALL_DAY = ("config", "catalog", "source", "sample", "workload", "interval", "verdict", "exporter", "store")

LOAD = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(f"gpuwhy.{name}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"gpuwhy.{name}."):
        importlib.import_module(found.name)
print(*sys.modules, sep="\\n")
"""


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group().lower()


def _declared(root: Path) -> set[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    requirements = [each for group in groups for each in group if isinstance(each, str)]
    return {_name(each) for each in requirements} - {"gpuwhy"}


def test_every_dependency_has_its_reason(root: Path) -> None:
    """Each dependency of pyproject.toml has one line in docs/dependencies.md, and each line a dependency."""
    explained = re.findall(
        r"^- `([^`]+)`: \S", (root / "docs" / "dependencies.md").read_text(), flags=re.MULTILINE
    )
    names = [name.lower() for name in explained]
    assert sorted(names) == sorted(_declared(root))


def test_what_runs_all_day_loads_no_tool_of_people() -> None:
    """Importing every stage from source to exporter loads none of the libraries for commands and reports."""
    done = subprocess.run([sys.executable, "-c", LOAD, *ALL_DAY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "msgspec" in loaded
    assert not loaded & set(KEPT_OUT)
