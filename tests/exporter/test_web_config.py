"""The file of TLS, users and headers: read strictly, in force on the wire, replaced while running."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme

from gpuwhy.config import ConfigError
from gpuwhy.exporter import Exposition, HttpServer, Snapshot
from gpuwhy.exporter import users as users_module
from gpuwhy.exporter import web_config as module
from gpuwhy.exporter.page import CONTENT_SECURITY_POLICY
from gpuwhy.exporter.users import Access, Users
from gpuwhy.exporter.web_config import WebConfig

from ..clients import connection_threads, is_open, trusting, wait_for, write_pair  # noqa: TID252  one set of clients for all

Make = Callable[..., Any]
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"
MUTUAL = (
    "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem, "
    "client_auth_type: RequireAndVerifyClientCert}\n"
)
USERS = f"basic_auth_users: {{prom: '{HASH}'}}\n"


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Signs the certificates of server and clients."""
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA) -> Path:
    """A folder with the server's certificate and key, and the authority's certificate."""
    write_pair(tmp_path, authority.issue_cert("localhost", "127.0.0.1"))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path


@pytest.fixture
def serve(
    exposition: Exposition, full: Snapshot, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Starts a server on a free port with this text as its file; returns the port."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    exposition.publish(full)
    with ExitStack() as stack:

        def start(content: str, **limits: Any) -> int:
            server = HttpServer(
                ("127.0.0.1", 0), exposition, lambda: b"{}", web=_config(folder, content), **limits
            )
            _, port = server.start()
            stack.callback(server.stop)
            return port

        yield start


@pytest.mark.parametrize(
    "content, named",
    [
        ("rate_limit: {interval: 1s}", ["rate_limit", "built in"]),
        ("users: {a: b}", ["users", "not known", "basic_auth_users"]),
        ("tls_server_config: {cert: PEM}", ["tls_server_config.cert", "cert_file"]),
        ("tls_server_config: {key: secret}", ["tls_server_config.key", "key_file"]),
        ("tls_server_config: {client_ca: PEM}", ["tls_server_config.client_ca", "client_ca_file"]),
        ("tls_server_config: {cert_file: cert.pem}", ["tls_server_config.key_file", "PEM"]),
        (
            "tls_server_config: {cert_file: no.pem, key_file: key.pem}",
            ["cert_file", "'no.pem'", "No such file"],
        ),
        ("tls_server_config: {cert_file: ca.pem, key_file: key.pem}", ["cert_file", "'ca.pem'", "belongs"]),
        ("tls_server_config: {cert_file: cert.pem, key_file: 3}", ["key_file", "3", "quotes"]),
        ("tls_server_config: {curve_preferences: [X25519]}", ["curve_preferences", "take it out"]),
        (TLS.replace("}", ", min_version: TLS10}"), ["min_version", "'TLS10'", "TLS12"]),
        (TLS.replace("}", ", min_version: TLS13, max_version: TLS12}"), ["min_version", "max_version"]),
        (TLS.replace("}", ", cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}"), ["cipher_suites", "RC4"]),
        (
            TLS.replace("}", ", client_auth_type: RequireAnyClientCert}"),
            ["client_auth_type", "RequireAndVerify"],
        ),
        (TLS.replace("}", ", client_auth_type: RequireAndVerifyClientCert}"), ["client_ca_file"]),
        (TLS.replace("}", ", client_ca_file: ca.pem}"), ["client_auth_type", "RequireAndVerifyClientCert"]),
        (TLS.replace("}", ", client_allowed_sans: [a]}"), ["client_auth_type", "client_allowed_sans"]),
        (MUTUAL.replace("}", ", client_allowed_sans: []}"), ["client_allowed_sans", "names nobody"]),
        (MUTUAL.replace("}", ", client_allowed_sans: }"), ["client_allowed_sans", "take it out"]),
        (MUTUAL.replace("ca.pem", "key.pem"), ["client_ca_file", "'key.pem'", "authority"]),
        ("http_server_config: {gzip: true}", ["http_server_config.gzip", "not known", "headers"]),
        ("http_server_config: {http2: maybe}", ["http2", "'maybe'", "true or false"]),
        ("http_server_config: {headers: {Set-Cookie: a}}", ["headers.Set-Cookie", "X-Frame-Options"]),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb: c"}}', ["X-Frame-Options", "one line"]),
        (
            "http_server_config: {headers: {X-Frame-Options: ALLOW}}",
            ["X-Frame-Options", "'ALLOW'", "sameorigin"],
        ),
        ("basic_auth_users: {prom: secret}", ["'prom'", "htpasswd"]),
        (f"basic_auth_users: {{prom: '{HASH.replace('$04$', '$31$')}'}}", ["'prom'", "cost 31"]),
        ("basic_auth_users: [a]", ["basic_auth_users", "name: value"]),
        ("a: [", ["line 1", "YAML"]),
        ("x" * 70_000, ["larger"]),
    ],
)
def test_bad_file_names_key_value_and_remedy(folder: Path, content: str, named: list[str]) -> None:
    """What cannot be used stops the start; a password or hash is never shown."""
    with pytest.raises(ConfigError) as caught:
        _config(folder, content)
    assert all(word in str(caught.value) for word in named), str(caught.value)
    assert "secret" not in str(caught.value)


def test_missing_file_names_the_option(tmp_path: Path) -> None:
    """A path that leads nowhere is an error of the option that has it."""
    with pytest.raises(ConfigError, match=r"http\.web_config_file is .*No such file"):
        WebConfig(tmp_path / "web.yaml")


@pytest.mark.parametrize(
    "content", ["", TLS, MUTUAL, USERS, TLS + USERS, "http_server_config: {http2: true}"]
)
def test_good_file_is_read(folder: Path, content: str) -> None:
    """An empty file switches nothing on; relative paths start at the file."""
    settings = _config(folder, content).current()
    assert (settings.context is not None) == ("tls" in content)
    assert (settings.users is not None) == ("users" in content)


def test_key_that_all_can_read_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A private key open to every user of the host is said, and used."""
    (folder / "key.pem").chmod(0o644)
    _config(folder, TLS)
    assert "key.pem can be read by every user" in caplog.text


def test_tls_serves_and_plain_http_is_told(serve: Make, authority: trustme.CA) -> None:
    """Who speaks TLS is served; who does not gets 400 in plain text."""
    port = serve(TLS)
    assert _ask(port, "/metrics", trusting(authority))[0] == 200
    status, headers, content = _ask(port, "/metrics")
    assert (status, headers["Connection"], content) == (400, "close", b"this port speaks TLS; ask by https\n")


def test_tls_to_the_plain_port_is_closed(serve: Make, authority: trustme.CA) -> None:
    """A TLS hello to a server without TLS ends the connection, and the next one is served."""
    port = serve("")
    with pytest.raises(OSError):
        _ask(port, "/metrics", trusting(authority))
    assert _ask(port, "/metrics")[0] == 200


def test_client_certificate_is_asked_for(serve: Make, authority: trustme.CA) -> None:
    """The right certificate is served; none, an expired one and a stranger's are not."""
    port = serve(MUTUAL)
    past = dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)
    good = trusting(authority, authority.issue_cert("prometheus"))
    expired = authority.issue_cert("prometheus", not_before=past - dt.timedelta(1), not_after=past)
    for context in (
        trusting(authority),
        trusting(authority, expired),
        trusting(authority, trustme.CA().issue_cert("prometheus")),
    ):
        with pytest.raises(OSError):
            _ask(port, "/metrics", context)
        assert _ask(port, "/metrics", good)[0] == 200


def test_only_allowed_names_of_client_certificates(serve: Make, authority: trustme.CA) -> None:
    """A good certificate for another name is 403."""
    port = serve(MUTUAL.replace("}", ", client_allowed_sans: [prometheus]}"))
    assert _ask(port, "/metrics", trusting(authority, authority.issue_cert("prometheus")))[0] == 200
    assert _ask(port, "/-/healthy", trusting(authority, authority.issue_cert("grafana")))[0] == 403


@pytest.mark.parametrize(
    "allowed, name",
    [
        ("2001:db8::1", "2001:db8::1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("scraper@example.com", "scraper@example.com"),
    ],
)
def test_allowed_names_of_each_kind(serve: Make, authority: trustme.CA, allowed: str, name: str) -> None:
    """Addresses, however they are written, and e-mail count as names; another of the kind does not."""
    port = serve(MUTUAL.replace("}", f", client_allowed_sans: ['{allowed}']}}"))
    other = name.replace("1", "2").replace("scraper", "other")
    assert _ask(port, "/metrics", trusting(authority, authority.issue_cert(name)))[0] == 200
    assert _ask(port, "/metrics", trusting(authority, authority.issue_cert(other)))[0] == 403


@pytest.mark.parametrize(
    "kind, let_in", [("DNS", True), ("URI", True), ("Registered ID", False), ("othername", False)]
)
def test_only_names_of_a_known_kind_let_in(
    serve: Make, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, kind: str, let_in: bool
) -> None:
    """What Python's TLS says of a kind that it cannot read is no name."""
    port = serve(MUTUAL.replace("}", ", client_allowed_sans: ['<unsupported>']}"))
    context = trusting(authority, authority.issue_cert("prometheus"))
    said = {"subjectAltName": ((kind, "<unsupported>"),)}
    monkeypatch.setattr(ssl.SSLSocket, "getpeercert", lambda *_: said)
    assert _ask(port, "/metrics", context)[0] == (200 if let_in else 403)


def test_every_path_but_health_needs_the_password(serve: Make) -> None:
    """Without credentials, or with wrong ones, every path is 401 and says how; health is open."""
    port = serve(USERS)
    for path in ("/", "/metrics", "/api/v1/status", "/nowhere"):
        for given in (
            "",
            _basic("prom", "wrong"),
            _basic("nobody", "right"),
            "Basic ?",
            "Bearer x",
            "Basic YQ==",
        ):
            status, headers, _ = _ask(port, path, Authorization=given)
            assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="gpuwhy", charset="UTF-8"')
            assert _ask(port, path, method="HEAD", Authorization=given)[0] == 401
        assert _ask(port, path, Authorization=_basic("prom", "right"))[0] in {200, 404}
    assert [_ask(port, path)[0] for path in ("/-/healthy", "/-/ready")] == [200, 200]
    assert _ask(port, "/-/../metrics")[0] == 400
    for path in ("/-/healthy/", "/-/healthy/x", "/-/", "/-/metrics"):
        assert _ask(port, path)[0] == 401


def test_password_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair, right or wrong, costs one bcrypt; an unknown name costs one too; a flood forgets no right one."""
    calls = []
    original = bcrypt.hashpw
    monkeypatch.setattr(bcrypt, "hashpw", lambda *given: (calls.append(1), original(*given))[1])
    users = Users({b"prom": HASH.encode()})
    for name, password, expected in (
        ("prom", "right", Access.GRANTED),
        ("prom", "wrong", Access.DENIED),
        ("nobody", "right", Access.DENIED),
    ):
        calls.clear()
        assert [users.check(_basic(name, password)) for _ in range(3)] == [expected] * 3
        assert len(calls) == 1
    for number in range(300):
        users.check(_basic("prom", str(number)))
    calls.clear()
    assert users.check(_basic("prom", "right")) is Access.GRANTED
    assert not calls
    users.check(_basic("prom", "0"))
    assert len(calls) == 1  # forgotten: what is remembered of wrong ones is bounded


def test_one_password_is_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the same pair gets its answer; who would wait too long for another is told so."""
    calls: list[bytes] = []
    going, go_on = threading.Event(), threading.Event()
    original = bcrypt.hashpw

    def slowly(password: bytes, hashed: bytes) -> bytes:
        calls.append(password)
        going.set()
        assert go_on.wait(10)
        return original(password, hashed)

    monkeypatch.setattr(bcrypt, "hashpw", slowly)
    users, got = Users({b"prom": HASH.encode()}), []

    def check() -> None:
        got.append(users.check(_basic("prom", "right")))

    threads = [threading.Thread(target=check) for _ in range(3)]
    threads[0].start()
    assert going.wait(10)
    monkeypatch.setattr(users_module, "_WAIT_S", 0.01)
    assert users.check(_basic("prom", "other")) is Access.BUSY
    monkeypatch.setattr(users_module, "_WAIT_S", 10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert (got, calls) == ([Access.GRANTED] * 3, [b"right"])


def test_busy_check_is_answered_with_503(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose password cannot be checked in time is neither let in nor called wrong."""
    port = serve(USERS)
    monkeypatch.setattr(users_module, "_WAIT_S", 0.01)
    with users_module._one_at_a_time:
        status, headers, _ = _ask(port, "/metrics", Authorization=_basic("prom", "right"))
    assert (status, headers["Retry-After"]) == (503, "5")


def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of a hash is right cannot be told by the time."""
    compared = []
    original = users_module.hmac.compare_digest
    monkeypatch.setattr(
        users_module.hmac, "compare_digest", lambda *given: (compared.append(given), original(*given))[1]
    )
    assert Users({b"prom": HASH.encode()}).check(_basic("prom", "right")) is Access.GRANTED
    assert compared == [(HASH.encode(), HASH.encode())]


def test_right_password_of_an_unknown_name_is_denied() -> None:
    """The decoy that unknown names are checked against lets nobody in."""
    users = Users({b"prom": HASH.encode()})
    assert users.check(_basic("nobody", "right")) is Access.DENIED
    assert users.check(_basic("prom", "right")) is Access.GRANTED


def test_old_tls_is_refused(serve: Make, authority: trustme.CA) -> None:
    """min_version and cipher_suites are in force on the wire."""
    port = serve(TLS.replace("}", ", min_version: TLS13}"))
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        _ask(port, "/metrics", old)
    assert _ask(port, "/metrics", trusting(authority))[0] == 200
    port = serve(TLS.replace("}", ", cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]}"))
    old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(OSError):
        _ask(port, "/metrics", old)


def test_certificate_that_may_be_left_out_is_verified_when_given(serve: Make, authority: trustme.CA) -> None:
    """VerifyClientCertIfGiven lets in who has none, and not who has a bad one."""
    port = serve(MUTUAL.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"))
    assert _ask(port, "/metrics", trusting(authority))[0] == 200
    with pytest.raises(OSError):
        _ask(port, "/metrics", trusting(authority, trustme.CA().issue_cert("prometheus")))


def test_security_headers_and_the_operators_own(serve: Make) -> None:
    """Every answer has them; those of the file come on top; without them no HSTS."""
    port = serve(
        "http_server_config: {headers: {Strict-Transport-Security: max-age=60, X-Frame-Options: SAMEORIGIN}}"
    )
    for path in ("/", "/metrics", "/nowhere", "/../x"):
        headers = _ask(port, path)[1]
        assert "frame-ancestors" not in headers["Content-Security-Policy"]  # it would beat X-Frame-Options
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Content-Security-Policy"] == (
            CONTENT_SECURITY_POLICY if path == "/" else "default-src 'none'"
        )
        assert (headers["Strict-Transport-Security"], headers["X-Frame-Options"]) == (
            "max-age=60",
            "SAMEORIGIN",
        )


def test_operators_policy_can_only_forbid_more(serve: Make) -> None:
    """Both policies are sent, and a browser obeys both; the page's own script stays the only one."""
    port = serve('http_server_config: {headers: {Content-Security-Policy: "default-src *"}}')
    policies = {path: _ask(port, path)[1]["Content-Security-Policy"] for path in ("/", "/metrics")}
    assert policies == {
        "/": f"{CONTENT_SECURITY_POLICY}, default-src *",
        "/metrics": "default-src 'none', default-src *",
    }


def test_certificate_is_replaced_while_running(serve: Make, folder: Path, authority: trustme.CA) -> None:
    """A handshake that begins after the change has the new pair; a connection from before is served and closed."""
    port = serve(TLS)
    before = _served_certificate(port)
    kept = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusting(authority))
    kept.connect()
    write_pair(folder, authority.issue_cert("localhost", "127.0.0.1"))
    assert _served_certificate(port) != before
    assert _ask(port, "/metrics", trusting(authority))[0] == 200
    kept.request("GET", "/-/healthy")
    answer = kept.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    kept.close()


@pytest.mark.parametrize("before", ["", TLS], ids=["plain", "TLS"])
def test_kept_connection_does_not_outlive_stricter_locks(
    serve: Make, folder: Path, authority: trustme.CA, before: str
) -> None:
    """Who came before certificates were asked for gets no answer more, and has to come again."""
    port = serve(before)
    kept = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusting(authority))
        if before
        else http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    )
    kept.request("GET", "/metrics")
    assert kept.getresponse().read()
    (folder / "web.yaml").write_text(MUTUAL)
    kept.request("GET", "/metrics")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        kept.getresponse()


def test_bad_change_keeps_the_last_good_one(
    serve: Make, folder: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A half-written key is logged once and changes nothing; once mended the new pair is served."""
    port = serve(TLS)
    before = _served_certificate(port)
    (folder / "key.pem").write_text("half")
    assert [_served_certificate(port) for _ in range(3)] == [before] * 3
    assert caplog.text.count("stay in force") == 1
    write_pair(folder, authority.issue_cert("localhost", "127.0.0.1"))
    assert _served_certificate(port) != before


def _slow_reading(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Readings that say when they begin, and wait to be let go on."""
    reading, go_on = threading.Event(), threading.Event()
    original = module._Reader.read

    def slowly(reader: Any) -> Any:
        reading.set()
        assert go_on.wait(10)
        return original(reader)

    monkeypatch.setattr(module._Reader, "read", slowly)
    return reading, go_on


def test_nobody_gets_settings_from_before_once_a_change_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks while the file is read again waits for the new settings."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    monkeypatch.setattr(module, "PATIENCE_S", 10)
    config = _config(folder, "")
    reading, go_on = _slow_reading(monkeypatch)
    (folder / "web.yaml").write_text(USERS)
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(config.current())) for _ in range(3)]
    threads[0].start()
    assert reading.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert [settings.users is not None for settings in got] == [True] * 3


def test_hanging_disk_costs_one_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first who waited in vain nobody waits, until that reading has ended."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, "")
    reading, go_on = _slow_reading(monkeypatch)
    (folder / "web.yaml").write_text(USERS)
    reader = threading.Thread(target=config.current)
    reader.start()
    assert reading.wait(10)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    assert config.current().users is None
    monkeypatch.setattr(module, "PATIENCE_S", 3600)
    assert config.current().users is None
    go_on.set()
    reader.join()
    assert config.current().users is not None


@pytest.mark.parametrize(
    ("contents", "gone"),
    [
        ((USERS, ""), "no users"),
        ((TLS + USERS, TLS), "no users"),
        ((TLS + USERS, USERS), "no TLS"),
        ((TLS, "# moved"), "no TLS"),
    ],
)
def test_file_that_loses_locks_while_running_opens_no_door(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    contents: tuple[str, str],
    gone: str,
) -> None:
    """An emptied or half-written file is as bad as an unreadable one; what it lacks is logged."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, contents[0])
    locks = config.current().locks
    (folder / "web.yaml").write_text(contents[1])
    assert config.current().locks == locks
    assert gone in caplog.text
    assert "restart gpuwhy if that is meant" in caplog.text


@pytest.mark.parametrize("name", ["a\\0b", "\\ud800"])
def test_odd_file_names_are_refused_and_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A name that no file can have is a problem like any other, at the start and later, until it is mended."""
    odd = f'tls_server_config: {{cert_file: "{name}", key_file: key.pem}}'
    with pytest.raises(ConfigError, match="cert_file"):
        _config(folder, odd)
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, USERS)
    (folder / "web.yaml").write_text(odd)
    assert config.current().users is not None
    (folder / "web.yaml").write_text(f"{TLS}\n{USERS}")
    assert config.current().context is not None


def test_what_failed_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that passes without a change of the file, as of a mount, does not keep the old settings for ever."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, "")
    original = module._Reader.read

    def fails(_: Any) -> Any:
        raise ConfigError(["no luck"])

    monkeypatch.setattr(module._Reader, "read", fails)
    (folder / "web.yaml").write_text(USERS)
    assert config.current().users is None
    monkeypatch.setattr(module._Reader, "read", original)
    assert config.current().users is None
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0)
    assert config.current().users is not None


def test_right_that_is_given_later_is_a_change(folder: Path) -> None:
    """Mode and owner are part of what is watched."""
    key = folder / "key.pem"
    before = module._fingerprint([key])
    key.chmod(0o640)
    assert module._fingerprint([key]) != before


def test_fault_of_our_own_keeps_the_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a reading raises, requests go on with the settings from before, and it is logged once."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, USERS)

    def fails(_: Any) -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(module._Reader, "read", fails)
    (folder / "web.yaml").write_text("")
    assert [config.current().users is not None for _ in range(3)] == [True] * 3
    assert caplog.text.count("was not read again") == 1


@pytest.mark.parametrize("place", ["web.yaml", "cert.pem", "key.pem"])
def test_file_that_could_hang_is_refused(folder: Path, place: str) -> None:
    """A FIFO would be waited for without end."""
    (folder / "web.yaml").write_text(TLS)
    (folder / place).unlink()
    os.mkfifo(folder / place)
    with pytest.raises(ConfigError, match="not a file"):
        WebConfig(folder / "web.yaml")


def test_checked_passwords_outlive_a_new_certificate(
    folder: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that leaves the users alone costs no new bcrypt; one of the users forgets all."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0)
    config = _config(folder, TLS + USERS)
    before = config.current()
    write_pair(folder, authority.issue_cert("localhost"))
    after = config.current()
    assert after.context is not before.context
    assert after.users is before.users
    (folder / "web.yaml").write_text(TLS + USERS.replace("prom:", "other:"))
    assert config.current().users is not before.users


def test_new_password_counts_at_once_on_a_kept_connection(serve: Make, folder: Path) -> None:
    """A user taken out of the file is refused on a connection that was open before."""
    port = serve(USERS)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": _basic("prom", "right")}
    connection.request("GET", "/metrics", headers=headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    (folder / "web.yaml").write_text(USERS.replace("prom:", "other:"))
    connection.request("GET", "/metrics", headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert (answer.status, answer.will_close) == (401, True)


@pytest.mark.parametrize("content", ["", TLS + USERS])
def test_idle_and_slow_connections_leave_scrapes_alone(
    serve: Make, authority: trustme.CA, content: str
) -> None:
    """With 200 silent connections and 50 that drip, every scrape is answered; the others hold no thread."""
    port = serve(content, max_connections=64, request_s=60.0)
    context = trusting(authority) if content else None
    stop = threading.Event()
    with ExitStack() as stack:
        stack.callback(stop.set)
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(250)
        ]
        thread = threading.Thread(target=_drip, args=(clients[200:], stop, b"\x16" if content else b"GET"))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        for _ in range(10):
            assert _ask(port, "/metrics", context, Authorization=_basic("prom", "right"))[0] == 200
        assert wait_for(lambda: not connection_threads())
        assert all(map(is_open, clients))


def _drip(clients: list[socket.socket], stop: threading.Event, start: bytes) -> None:
    content = start
    while not stop.wait(0.05):
        for client in clients:
            try:
                client.send(content)
            except OSError:
                continue
        content = b"\x03"


def _config(folder: Path, content: str) -> WebConfig:
    (folder / "web.yaml").write_text(content)
    return WebConfig(folder / "web.yaml")


def _served_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _ask(
    port: int, path: str, context: ssl.SSLContext | None = None, method: str = "GET", **headers: str
) -> Any:
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request(method, path, headers={name: value for name, value in headers.items() if value})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()
