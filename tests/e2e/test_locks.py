"""The locks of the installed command: TLS, client certificates and users, as a scraper meets them."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme

from ..clients import trusting, write_pair  # noqa: TID252  one set of clients for all

USAGE = 2
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users: {{prom: '{HASH}'}}\n"
MUTUAL = (
    "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem, "
    "client_auth_type: RequireAndVerifyClientCert}\n"
)
REPLAY = ("--source", "replay:bundled", "--loop", "--speed", "10")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Signs the certificates of server and clients."""
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA) -> Path:
    """A folder with a server's certificate and key, and the authority's certificate."""
    write_pair(tmp_path, authority.issue_cert("127.0.0.1"))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path


def test_password_is_wanted_for_all_but_health(installed_gpuwhy: Any, folder: Path) -> None:
    """401 without or with a wrong password, 200 with the right one; health asks for none."""
    with installed_gpuwhy.serve(*REPLAY, "--web-config-file", _write(folder, USERS)) as agent:
        assert _status(agent.url, "/-/healthy") == 200
        for path in ("/", "/metrics", "/api/v1/status", "/api/v1/page", "/page.js"):
            assert _status(agent.url, path) == 401
            assert _status(agent.url, path, password="wrong") == 401
            assert _status(agent.url, path, password="right") == 200
        code, _ = agent.stop()
    assert code == 0
    assert "right" not in "".join(agent.log)


def test_client_certificate_is_wanted(installed_gpuwhy: Any, folder: Path, authority: trustme.CA) -> None:
    """The right certificate is served; none, an expired one, another authority's and plain HTTP are not."""
    with installed_gpuwhy.serve(*REPLAY, "--web-config-file", _write(folder, MUTUAL)) as agent:
        assert agent.url.startswith("https://")
        past = dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)
        expired = authority.issue_cert("scraper", not_before=past - dt.timedelta(1), not_after=past)
        stranger = trustme.CA().issue_cert("scraper")
        for own in (None, expired, stranger):
            with pytest.raises(OSError):
                _status(agent.url, "/metrics", trusting(authority, own))
        assert _status(agent.url.replace("https", "http"), "/metrics") == 400
        assert _status(agent.url, "/metrics", trusting(authority, authority.issue_cert("scraper"))) == 200


def test_certificate_and_users_are_replaced_while_it_runs(
    installed_gpuwhy: Any, folder: Path, authority: trustme.CA
) -> None:
    """Two seconds after a change new handshakes have it, and a user that is gone is refused."""
    tls = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"
    with installed_gpuwhy.serve(*REPLAY, "--web-config-file", _write(folder, tls + USERS)) as agent:
        port = int(agent.url.rpartition(":")[2])
        before = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
        assert _status(agent.url, "/metrics", trusting(authority), "right") == 200
        write_pair(folder, authority.issue_cert("127.0.0.1"))
        _write(folder, tls + USERS.replace("prom:", "other:"))
        time.sleep(2)
        assert ssl.get_server_certificate(("127.0.0.1", port), timeout=10) != before
        assert _status(agent.url, "/metrics", trusting(authority), "right") == 401
        _write(folder, tls + "basic_auth_users: {other: plain}\n")
        time.sleep(2)
        assert _status(agent.url, "/metrics", trusting(authority), "right") == 401
        agent.stop()
    assert "stay in force" in "".join(agent.log)
    assert "plain" not in "".join(agent.log)


@pytest.mark.parametrize(
    "content, key",
    [
        ("tls_server_config: {cert_file: no.pem, key_file: key.pem}", "tls_server_config.cert_file"),
        ("basic_auth_users: {prom: plain}", "basic_auth_users.'prom'"),
        ("rate_limit: {burst: 1}", "rate_limit"),
    ],
)
def test_bad_file_ends_it_with_the_key_named(
    installed_gpuwhy: Any, folder: Path, content: str, key: str
) -> None:
    """Both the agent and the check of its configuration exit with 2 and say which key is wrong."""
    path = _write(folder, content)
    for command in (("run", *REPLAY, "--listen", "127.0.0.1:0"), ("check-config",)):
        done = installed_gpuwhy(*command, "--web-config-file", path)
        assert done.returncode == USAGE, done.stderr
        assert key in done.stderr
        assert "Traceback" not in done.stderr


def test_silent_clients_do_not_stop_a_scrape(
    installed_gpuwhy: Any, folder: Path, authority: trustme.CA
) -> None:
    """More silent connections than the agent holds, and scrapes by TLS are answered."""
    tls = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"
    with installed_gpuwhy.serve(*REPLAY, "--web-config-file", _write(folder, tls)) as agent:
        port = int(agent.url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(700)]
        try:
            for _ in range(5):
                assert _status(agent.url, "/metrics", trusting(authority)) == 200
            assert json.loads(_body(agent.url, "/api/v1/status", trusting(authority)))["gpus"] is not None
        finally:
            for client in silent:
                client.close()


def _write(folder: Path, content: str) -> str:
    (folder / "new.yaml").write_text(content)
    (folder / "new.yaml").chmod(0o600)
    return str((folder / "new.yaml").replace(folder / "web.yaml"))


def _status(url: str, path: str, context: ssl.SSLContext | None = None, password: str = "") -> int:
    return _ask(url, path, context, password)[0]


def _body(url: str, path: str, context: ssl.SSLContext) -> bytes:
    return _ask(url, path, context, "")[1]


def _ask(url: str, path: str, context: ssl.SSLContext | None, password: str) -> tuple[int, bytes]:
    port = int(url.rpartition(":")[2])
    if url.startswith("https"):
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    coded = base64.b64encode(f"prom:{password}".encode()).decode()
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {coded}"} if password else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
