"""The image's recipe, as far as it can be tried without building an image."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import trustme
from packaging.requirements import Requirement

import gpuwhy
from gpuwhy.exporter import Exposition, HttpServer
from gpuwhy.exporter.web_config import WebConfig

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
    named = re.findall(r"^(?:readme|license-files) = (.+)$", project, re.MULTILINE)
    for name in re.findall(r'"([^"]+)"', " ".join(named)):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", recipe, re.MULTILINE), name


def test_each_library_of_the_image_is_pinned(root: Path) -> None:
    """What gpuwhy needs there, directly or not, has one version, which all who need it allow."""
    pins = dict(
        line.split("==")
        for line in (root / FOLDER / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    wanted = _wanted(pins)
    assert {"grpcio", "jinja2", "msgspec", "urllib3"} <= wanted.keys() <= pins.keys()
    for name, bounds in wanted.items():
        assert all(bound.specifier.contains(pins[name]) for bound in bounds), (name, pins[name], bounds)


def _wanted(pins: dict[str, str]) -> dict[str, list[Requirement]]:
    """What is asked of each package, by gpuwhy and by those that are installed here in the pinned version."""
    found: dict[str, list[Requirement]] = {}
    ask = ["gpuwhy"]
    while ask:
        name = ask.pop()
        extras = ("kubernetes", "report") if name == "gpuwhy" else ("",)
        for needed in map(Requirement, requires(name) or ()):
            if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                continue
            key = needed.name.lower().replace("_", "-")
            if key not in found and version(key) == pins.get(key):
                ask.append(key)
            found.setdefault(key, []).append(needed)
    return found


def test_history_can_be_written_by_any_number(recipe: str) -> None:
    """Its own user by owner; root without capabilities, and a number that has no group, by group 0."""
    assert "install -d -m 770 -o 65532 -g 0 /var/lib/gpuwhy" in recipe


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


@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0", ""])
def test_the_host_of_the_setting_is_asked(root: Path, host: str) -> None:
    """Where the agent listens on one address alone, loopback's usual one may not answer."""
    server = HTTPServer((host, 0), _Healthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = _check(root, GPUWHY__HTTP__LISTEN=f"{host}:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_host_of_version_6_is_asked(root: Path) -> None:
    """The reason names the address that was asked."""
    assert "http://[::1]:1: " in _check(root, GPUWHY__HTTP__LISTEN="[::]:1").stderr


@pytest.mark.parametrize("newest", ["TLS13", "TLS12"])
def test_asking_for_a_client_certificate_is_alive(root: Path, tmp_path: Path, newest: str) -> None:
    """The check has no certificate, and a container that wants one is not unhealthy for that."""
    authority = trustme.CA()
    pair = authority.issue_cert("localhost")
    pair.private_key_and_cert_chain_pem.write_to_path(tmp_path / "pair.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "pair.pem").chmod(0o600)
    (tmp_path / "web.yaml").write_text(
        "tls_server_config: {cert_file: pair.pem, key_file: pair.pem, client_ca_file: ca.pem,"
        f" client_auth_type: RequireAndVerifyClientCert, max_version: {newest}}}\n"
    )
    server = HttpServer(("127.0.0.1", 0), Exposition(), lambda: b"{}", web=WebConfig(tmp_path / "web.yaml"))
    _, port = server.start()
    try:
        done = _check(root, GPUWHY__HTTP__LISTEN=f":{port}")
    finally:
        server.stop()
    assert (done.returncode, done.stderr) == (0, "")
