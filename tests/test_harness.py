"""The harness itself: goldens and the report of what was not run can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Pytest = Callable[..., subprocess.CompletedProcess[str]]

USES_PROGRAM = """
def test_rules(require_program):
    require_program("no-such-program", "install it")
"""
USES_GOLDEN = """
def test_page(golden):
    golden("page.txt", "one\\ntwo\\n")
"""


@pytest.fixture
def inner(root: Path, tmp_path: Path) -> Pytest:
    """Runs pytest with this conftest in a tree of its own that holds one test module."""

    def run(module: str, *options: str, ci: str = "") -> subprocess.CompletedProcess[str]:
        tests = tmp_path / "tests"
        tests.mkdir(exist_ok=True)
        (tmp_path / "pytest.ini").touch()
        (tests / "conftest.py").write_text((root / "tests" / "conftest.py").read_text())
        (tests / "test_it.py").write_text(module)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True, check=False
        )

    return run


def test_missing_program_is_reported_by_test_name_and_remedy(inner: Pytest) -> None:
    """A test whose program cannot be had is listed under NOT RUN with program and remedy."""
    done = inner(USES_PROGRAM)
    assert done.returncode == 0
    _, _, report = done.stdout.partition(" NOT RUN ")
    assert "test_it.py::test_rules: no-such-program cannot be found; remedy: install it" in report


def test_missing_program_fails_in_ci(inner: Pytest) -> None:
    """CI does not pass without a program that a test needs."""
    done = inner(USES_PROGRAM, ci="true")
    assert done.returncode == 1
    assert "no-such-program" in done.stdout


def test_golden_is_written_then_held(inner: Pytest, tmp_path: Path) -> None:
    """A golden must exist, is written by --update, and then fails with a diff on any difference."""
    kept = tmp_path / "tests" / "golden" / "page.txt"

    assert inner(USES_GOLDEN).returncode == 1
    assert inner(USES_GOLDEN, "--update").returncode == 0
    assert kept.read_text() == "one\ntwo\n"
    assert inner(USES_GOLDEN).returncode == 0

    kept.write_text("one\n2\n")
    done = inner(USES_GOLDEN)
    assert done.returncode == 1
    assert "-2" in done.stdout
    assert "+two" in done.stdout


def test_golden_holds_line_ends(inner: Pytest, tmp_path: Path) -> None:
    """A golden that differs in nothing but its line ends fails too."""
    kept = tmp_path / "tests" / "golden" / "page.txt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"one\r\ntwo\r\n")
    assert inner(USES_GOLDEN).returncode == 1
