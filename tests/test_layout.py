"""The tree and the wheel hold what they promise, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# In the order of the data's path.
STAGES = ("source", "sample", "workload", "interval", "verdict", "exporter", "store", "report", "render")
MODULES = ("cli", "daemon", "config", "catalog", "recorded")
FOLDERS = ("alerts", "dashboards", "deploy")

# Written in parts so that this file does not match itself.
FOREIGN = re.compile(
    "|".join(
        [
            re.escape("../" + "shared"),
            "/work/" + "(?:main|shared)",
            "/ro" + r"ot/[\w.]",
            "(?:pypi|pythonhosted|debian|npmjs)" + r"\.org/",
        ]
    )
)
GENERATED = {".git", ".venv", ".venv-run", ".venvs", ".tools", "dist", "build", ".hypothesis"}


def tree_files(root: Path) -> list[Path]:
    """The files that belong to the tree: tracked, or not ignored; all but made ones where git cannot say."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        files = [root / name for name in listing.stdout.decode().split("\0") if name]
    else:
        files = [
            file
            for file in root.rglob("*")
            if not GENERATED & set(file.relative_to(root).parts)
            and "cache" not in str(file.relative_to(root))
        ]
    return [file for file in files if file.is_file()]


@pytest.mark.parametrize("stage", STAGES)
def test_stage_exists_and_says_what_it_is(root: Path, stage: str) -> None:
    """Each stage of the data's path is a package whose docstring says what it does."""
    package = root / "agent" / "gpuwhy" / stage / "__init__.py"
    assert package.is_file(), f"{package.relative_to(root)} is missing"
    assert ast.get_docstring(ast.parse(package.read_text())), f"{package.relative_to(root)} has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_module_exists(root: Path, module: str) -> None:
    """The modules that stand beside the stages are there."""
    assert (root / "agent" / "gpuwhy" / f"{module}.py").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_says_what_makes_it(root: Path, folder: str) -> None:
    """A folder of rendered or shipped files has a README that names its source."""
    assert (root / folder / "README.md").is_file()


def test_map_names_every_stage_in_order(root: Path) -> None:
    """agent/README.md leads through all stages along the data's path."""
    lines = (root / "agent" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)`", lines, flags=re.MULTILINE)
    assert [row for row in rows if row in STAGES] == list(STAGES)
    assert set(MODULES) <= set(rows)


def test_map_points_at_what_exists(root: Path) -> None:
    """Every path that agent/README.md names is there."""
    text = (root / "agent" / "README.md").read_text()
    named = set(re.findall(r"`((?:agent|alerts|dashboards|deploy|docs|tests|tools|bench)/[\w./-]*)`", text))
    missing = sorted(path for path in named if not (root / path).exists())
    assert not missing, f"agent/README.md names {missing}"


def test_every_rule_has_its_test(root: Path) -> None:
    """The test of a rule is found by the rule's name."""
    rules = root / "agent" / "gpuwhy" / "verdict" / "rules"
    wanted = [f"test_{file.stem}.py" for file in sorted(rules.glob("*.py")) if not file.stem.startswith("_")]
    missing = [name for name in wanted if not (root / "tests" / "verdict" / name).is_file()]
    assert not missing, f"tests/verdict/ lacks {missing}"


def test_nothing_names_a_machine(root: Path) -> None:
    """No file holds a path of somebody's machine or the host of a package registry."""
    found = []
    for file in tree_files(root):
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(root)}: {match.group()}" for match in FOREIGN.finditer(text)]
    assert not found


def test_import_contract_holds(root: Path) -> None:
    """A stage imports only from the stages before it."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_wheel_holds_the_package_and_nothing_else(wheel: Path, root: Path) -> None:
    """The wheel adds one name to an environment, typed, licensed, with its recordings."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gpuwhy"}
    assert "gpuwhy/py.typed" in names
    assert any(re.fullmatch(r"gpuwhy-[^/]+\.dist-info/licenses/LICENSE", name) for name in names)
    bundled = {
        f"gpuwhy/recordings/{file.name}" for file in (root / "agent/gpuwhy/recordings").glob("*.jsonl*")
    }
    assert bundled
    assert bundled <= set(names)
