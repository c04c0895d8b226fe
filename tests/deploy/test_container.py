"""The image's recipe, as far as it can be tried without building an image."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import gpuwhy

FOLDER = Path("deploy/container")


@pytest.fixture(scope="module")
def recipe(root: Path) -> str:
    return (root / FOLDER / "Containerfile").read_text()


def test_the_version_is_the_packages(recipe: str) -> None:
    """Label and example name the version that is built."""
    assert re.findall(r'image\.version="([^"]+)"', recipe) == [gpuwhy.__version__]
    assert re.findall(r"-t gpuwhy:(\S+)", recipe) == [gpuwhy.__version__]


def test_what_is_copied_is_there_and_sent_along(root: Path, recipe: str) -> None:
    """Each path that COPY takes from the tree exists, and the ignore file lets it through."""
    ignored = (root / FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    through = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    taken = {
        path
        for line in re.findall(r"^COPY (?!--from)(.+)$", recipe, re.MULTILINE)
        for path in line.split()[:-1]
    }
    assert taken == through
    assert all((root / path).exists() for path in taken)


def test_what_the_build_needs_of_the_project_is_copied(root: Path, recipe: str) -> None:
    """Files that pyproject.toml names for the wheel are in the build stage."""
    project = (root / "pyproject.toml").read_text()
    for name in re.findall(r'^(?:readme|license-files) = \[?"([^"]+)"', project, re.MULTILINE):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", recipe, re.MULTILINE), name


def test_it_runs_as_nobody_and_asks_for_no_more_than_nvml(recipe: str) -> None:
    """A numbered user, so that Kubernetes can tell that it is not root; the driver's `utility` alone."""
    assert re.findall(r"^USER (.+)$", recipe, re.MULTILINE) == ["65532:65532"]
    assert re.search(r"NVIDIA_VISIBLE_DEVICES=all\b", recipe)
    assert re.search(r"NVIDIA_DRIVER_CAPABILITIES=utility$", recipe, re.MULTILINE)
    assert "HEALTHCHECK" in recipe


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/-/healthy" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Healthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def _check(root: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(root / FOLDER / "healthcheck.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_health_is_asked_where_the_agent_listens(root: Path, port: int) -> None:
    """The port is that of the agent's own option, and no proxy stands between."""
    done = _check(root, GPUWHY__HTTP__LISTEN=f"0.0.0.0:{port}", http_proxy="http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_listening_is_unhealthy(root: Path) -> None:
    """The reason is said for both ways of asking."""
    done = _check(root, GPUWHY__HTTP__LISTEN=":1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1: " in done.stderr
    assert "https://127.0.0.1:1: " in done.stderr
