"""What every test may ask for: goldens, the wheel, outside programs. Tests that were not run are named at the end."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path("tests", "golden")
PROGRAMS = Path(".tools", "bin")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite tests/golden from what the code does now")


@pytest.fixture(scope="session")
def root(pytestconfig: pytest.Config) -> Path:
    """The top of the source tree."""
    return pytestconfig.rootpath


@pytest.fixture
def golden(root: Path, pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """``golden(path, text)`` holds text equal, byte for byte, to ``tests/golden/<path>``."""

    def check(path: str, text: str) -> None:
        file = root / GOLDEN / path
        if pytestconfig.getoption("--update"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
            return
        if not file.exists():
            pytest.fail(f"{GOLDEN / path} does not exist; `make golden` writes it", pytrace=False)
        kept = file.read_bytes().decode()
        if kept != text:
            diff = difflib.unified_diff(
                kept.splitlines(keepends=True), text.splitlines(keepends=True), f"{GOLDEN / path}", "this run"
            )
            pytest.fail(f"`make golden` rewrites it; review the diff\n{''.join(diff)}", pytrace=False)

    return check


@pytest.fixture
def shown(root: Path, pytestconfig: pytest.Config) -> Callable[[str, str, str], None]:
    """``shown(path, name, text)`` holds a marked block of a hand-written page equal to text."""

    def check(path: str, name: str, text: str) -> None:
        page = root / path
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = page.read_text().partition(start)
        kept, found, after = rest.partition(end)
        assert found, f"{path} has no block {name!r}"
        if pytestconfig.getoption("--update"):
            page.write_text(f"{before}{start}{text}{end}{after}")
            return
        if kept != text:
            diff = difflib.unified_diff(
                kept.splitlines(keepends=True), text.splitlines(keepends=True), path, "this run"
            )
            pytest.fail(f"`make golden` rewrites it; review the diff\n{''.join(diff)}", pytrace=False)

    return check


@pytest.fixture(scope="session")
def require_program(root: Path) -> Callable[[str, str], str]:
    """``require_program(name, remedy)`` is the path of an outside program.

    Without the program the test is not run, and says so by name; in CI it fails.
    """

    def find(name: str, remedy: str) -> str:
        path = shutil.which(
            name, path=os.pathsep.join([str(root / PROGRAMS), os.environ.get("PATH", os.defpath)])
        )
        if path is not None:
            return path
        reason = f"{name} cannot be found; remedy: {remedy}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"not run: {reason}", pytrace=False)
        pytest.skip(reason)

    return find


@pytest.fixture(scope="session")
def promtool(require_program: Callable[[str, str], str]) -> str:
    """Path of promtool."""
    return require_program("promtool", "`make test` fetches it where apt-get works, or put it on PATH")


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built once per run."""
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(root)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the wheel cannot be built:\n{done.stderr}"
    return next(out.glob("*.whl"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("NOT RUN")
    for report in skipped:
        # A skip carries (file, line, "Skipped: reason").
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
