"""The server answers every client on every path, and none can keep another out."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpuwhy.exporter import Exposition, Format, HttpServer, ListenError, Snapshot
from gpuwhy.exporter import connections as connections_module
from gpuwhy.exporter.connections import NEW_S
from gpuwhy.exporter.http import gzip_accepted, wanted_format
from gpuwhy.exporter.web_config import WebConfig

from ..clients import connection_threads, is_open, wait_for  # noqa: TID252  one set of clients for all

Make = Callable[..., Any]
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=0.0.4;q=0.25,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Signs the server's certificate."""
    return trustme.CA()


@pytest.fixture
def serve(exposition: Exposition, full: Snapshot) -> Iterator[Make]:
    """Starts a server on a free port of the loopback and stops it at the end; returns its port."""
    exposition.publish(full)
    with ExitStack() as stack:

        def start(listen: tuple[str, int] = ("127.0.0.1", 0), **changes: Any) -> int:
            given = {"status": lambda: b'{"gpus":[]}', "exposition": exposition, **changes}
            server = HttpServer(listen, **given)
            _, port = server.start()
            stack.callback(server.stop)
            return port

        yield start


@pytest.fixture
def ask(serve: Make) -> Make:
    """One request to a fresh server; returns status, headers and body."""

    def request(
        path: str, method: str = "GET", body: bytes | None = None, port: int = 0, **headers: str
    ) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port or serve(), timeout=10)
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.headers), content

    return request


def test_taken_port_names_address_and_remedy(serve: Make, exposition: Exposition) -> None:
    """A port that is in use is a clear error, not a traceback of sockets."""
    port = serve()
    with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}: Address already in use; .*http\.listen"):
        HttpServer(("127.0.0.1", port), exposition, bytes).start()


def test_address_of_another_host_is_not_called_taken(exposition: Exposition) -> None:
    """An address that this host does not have is said to be that; there is no port to free."""
    with pytest.raises(
        ListenError, match=r"192\.0\.2\.1:9837: .*this host does not have that address; "
    ) as caught:
        HttpServer(("192.0.2.1", 9837), exposition, bytes).start()
    assert "free" not in str(caught.value)


def test_unknown_host_names_it(exposition: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name that has no address is the same kind of error."""

    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        ListenError, match=r"no\.such\.host:9837: Name or service not known; set http\.listen"
    ):
        HttpServer(("no.such.host", 9837), exposition, bytes).start()


def test_starting_asks_no_dns(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting on an address needs no name service, which may hang."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked for a host name"))
    assert serve()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6 that takes IPv4 as well")
@pytest.mark.parametrize("listen", ["", "::"])
def test_all_addresses_means_both_families(serve: Make, listen: str) -> None:
    """Listening on all addresses answers over IPv4 and IPv6."""
    port = serve((listen, 0))
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.request("GET", "/-/healthy")
        assert connection.getresponse().status == 200
        connection.close()


def test_metrics_in_the_format_asked_for(ask: Make, exposition: Exposition) -> None:
    """A plain client gets text, Prometheus gets OpenMetrics, compressed if it takes that."""
    status, headers, content = ask("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert content == exposition.scrape(Format.TEXT)
    assert "Content-Encoding" not in headers

    status, headers, content = ask("/metrics?x=1", Accept=PROMETHEUS_2, Accept_Encoding="deflate, gzip")
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Vary"] == "Accept, Accept-Encoding"
    assert gzip.decompress(content) == exposition.scrape(Format.OPENMETRICS)


@pytest.mark.parametrize("path", ["/api/v1/page", "/page.js", "/page.css", "/"])
def test_page_is_compressed_for_who_takes_that(ask: Make, path: str) -> None:
    """A browser gets the page's parts gzip-compressed, others as they are; caches are told."""
    _, headers, plain = ask(path)
    assert ("Content-Encoding" in headers, headers["Vary"]) == (False, "Accept-Encoding")
    _, headers, content = ask(path, Accept_Encoding="gzip, deflate, br")
    assert headers["Content-Encoding"] == "gzip"
    assert int(headers["Content-Length"]) == len(content) < len(plain)
    if path != "/api/v1/page":  # it holds the time
        assert gzip.decompress(content) == plain


@pytest.mark.parametrize(
    "accept, expected",
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        (BROWSER, Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", Format.OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.1", Format.TEXT),
        ("application/openmetrics-text;version=2.0.0", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.7", Format.TEXT),
        ("application/openmetrics-text;q=high", Format.TEXT),
        (";;q=,=;,", Format.TEXT),
    ],
)
def test_accept_header_chooses_the_format(accept: str, expected: Format) -> None:
    """OpenMetrics 1 is written for who asks for it and does not like text better, text for all others."""
    assert wanted_format(accept) is expected


@pytest.mark.parametrize(
    "header, expected",
    [("", False), ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False)],
)
def test_gzip_only_where_accepted(header: str, expected: bool) -> None:
    """A client that does not name gzip, or refuses it, gets plain bytes."""
    assert gzip_accepted(header) is expected


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/status", "/-/healthy", "/-/ready", "/nowhere"])
def test_head_is_get_without_the_body(ask: Make, path: str) -> None:
    """HEAD has the status and headers of GET, its length included, and no body."""
    status, headers, content = ask(path)
    head_status, head_headers, nothing = ask(path, "HEAD")
    assert (head_status, head_headers["Content-Length"]) == (status, str(len(content)))
    assert head_headers["Content-Type"] == headers["Content-Type"]
    assert nothing == b""


def test_head_sends_no_body(serve: Make) -> None:
    """After the headers of a HEAD nothing follows on the wire."""
    with socket.create_connection(("127.0.0.1", serve()), timeout=10) as client:
        client.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", ["/-/healthy", "/nowhere", "//"])
def test_version_is_not_said_to_everybody(ask: Make, path: str) -> None:
    """The header that comes before any password has the name alone."""
    assert ask(path)[1]["Server"] == "gpuwhy"


def test_unknown_path_says_where_the_metrics_are(ask: Make) -> None:
    """A wrong path is 404 with a short text, which does not repeat what was asked."""
    status, headers, content = ask("/<script>")
    assert (status, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert content == b"not found; the metrics are at /metrics\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(ask: Make, method: str) -> None:
    """Nothing can be changed over HTTP: any other method is 405 and names those there are."""
    status, headers, content = ask("/metrics", method, b"x=1")
    assert (status, headers["Allow"], content) == (405, "GET, HEAD", b"use GET or HEAD\n")
    assert headers["Connection"] == "close"


@pytest.mark.parametrize("how", [b"Content-Length: 38", b"Transfer-Encoding: chunked"])
def test_body_of_a_get_is_not_taken_for_a_request(serve: Make, how: bytes) -> None:
    """A GET with a body is answered once and its connection closed."""
    with socket.create_connection(("127.0.0.1", serve()), timeout=10) as client:
        inner = b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"
        client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % how + inner)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"healthy\n")


def test_garbage_is_answered_with_short_text(serve: Make) -> None:
    """A request that is none gets 400 as text, and the server goes on."""
    port = serve()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"\x03\x01<b> / nonsense\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"<b>" not in answer
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_head, status",
    [
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET http://other/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET //metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /%2e%2e/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /-/../metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /./metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /a\\b HTTP/1.1\r\n\r\n", 400),
        (b"GET /\0 HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /a\rX: y HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: no name\r\n\r\n", 400),
        # Shapes that another server may read otherwise, with a second request where some see a body.
        (
            b"GET /-/healthy HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 37\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            400,
        ),
        (b"GET /-/healthy HTTP/1.1\r\nFoo bar: x\r\nContent-Length: 37\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /-/healthy HTTP/1.1\r\nF\xe9: x\r\nContent-Length: 37\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /-/healthy HTTP/1.1\r\nContent-Length : 37\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /-/healthy HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization: Basic eA==\r\nauthorization: Basic eQ==\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/x\r\n\r\n", 400),
    ],
)
def test_tricks_and_oversize_are_refused(serve: Make, request_head: bytes, status: int) -> None:
    """What is too long or not plain is refused with its status and one line of text, and the connection closed."""
    with socket.create_connection(("127.0.0.1", serve()), timeout=10) as client:
        client.sendall(request_head)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert body.count(b"\n") == 1
    assert b"HTTP/1.1 " not in body, "one answer"


def test_dripping_client_is_dropped(serve: Make) -> None:
    """A head that comes byte by byte has the same time in all as one that does not come."""
    port = serve(request_s=0.4)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.settimeout(0.05)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                client.send(b"G")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("still open")


def test_dripping_second_request_is_dropped(serve: Make, caplog: pytest.LogCaptureFixture) -> None:
    """On a kept connection too a head that comes byte by byte has its time in all, and is no error of ours."""
    with _connect(serve(request_s=0.4)) as client:
        assert _healthy(client)
        client.settimeout(0.05)
        until = time.monotonic() + 10
        closed = False
        while not closed and time.monotonic() < until:
            try:
                client.send(b"G")
                closed = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
    assert closed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_status_is_what_the_daemon_says(ask: Make) -> None:
    """The status is the daemon's JSON, not to be cached."""
    status, headers, content = ask("/api/v1/status")
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (
        200,
        "application/json",
        "no-store",
    )
    assert json.loads(content) == {"gpus": []}


def test_failing_status_is_500_and_logged(serve: Make, ask: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A status that cannot be made is 500 without details for the client; the log has them."""

    def fail() -> bytes:
        raise RuntimeError("secret detail")

    status, _, content = ask("/api/v1/status", port=serve(status=fail))
    assert status == 500
    assert b"secret" not in content
    assert "secret detail" in caplog.text


def test_ready_after_the_first_interval(serve: Make, ask: Make, full: Snapshot) -> None:
    """Healthy while the process lives; ready once an interval was judged, and 503 says why until then."""
    starting = Exposition()
    port = serve(exposition=starting)
    assert ask("/-/healthy", port=port)[0] == 200
    status, _, content = ask("/-/ready", port=port)
    assert (status, content) == (503, b"not ready: no interval has been judged yet\n")
    starting.publish(dataclasses.replace(full, judged=0))
    assert ask("/-/ready", port=port)[0] == 503
    starting.publish(full)
    assert ask("/-/ready", port=port)[0] == 200


def test_kept_connection_is_not_held_up_by_delayed_acks(exposition: Exposition) -> None:
    """What is written on a connection that stays open is sent at once, and does not wait for the client's ACK."""
    server = HttpServer(("127.0.0.1", 0), exposition, bytes)
    _, port = server.start()
    try:
        with _connect(port) as client:
            assert _healthy(client)
            assert server._connections is not None
            (place,) = server._connections._places
            assert place.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        server.stop()


def test_longest_quiet_connection_is_closed_first(serve: Make) -> None:
    """At the limit a new connection closes the one quiet longest, not one that was just heard from."""
    port = serve(max_connections=2)
    with ExitStack() as stack:
        scraper, idle = (stack.enter_context(_connect(port)) for _ in range(2))
        assert _healthy(scraper)
        assert _healthy(idle)
        time.sleep(0.1)
        assert _healthy(scraper)
        assert _healthy(stack.enter_context(_connect(port)))
        assert _is_closed(idle)
        assert _healthy(scraper)


def test_places_of_those_that_never_asked_go_first(
    serve: Make, authority: trustme.CA, tmp_path: Path
) -> None:
    """A client that stops in the handshake makes room before one that is quiet after its answer."""
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "pair.pem")
    (tmp_path / "web.yaml").write_text("tls_server_config: {cert_file: pair.pem, key_file: pair.pem}")
    port = serve(max_connections=2, web=WebConfig(tmp_path / "web.yaml"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with ExitStack() as stack:
        scraper = stack.enter_context(context.wrap_socket(_connect(port), server_hostname="127.0.0.1"))
        assert _healthy(scraper)
        half = stack.enter_context(_connect(port))
        half.sendall(_client_hello())
        assert half.recv(1)  # it has its place
        time.sleep(NEW_S + 0.05)
        assert _healthy(stack.enter_context(context.wrap_socket(_connect(port), server_hostname="127.0.0.1")))
        assert _is_closed(half)
        assert _healthy(scraper)


def test_silent_and_slow_connections_get_no_thread(serve: Make) -> None:
    """Until a request is whole it costs no thread; the oldest go when the waiting room is full."""
    port = serve(max_waiting=4)
    with ExitStack() as stack:
        first, *rest = (stack.enter_context(_connect(port)) for _ in range(4))
        for client in (first, *rest):
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n")
        assert _healthy(stack.enter_context(_connect(port)))
        assert connection_threads() == 1
        silent = stack.enter_context(_connect(port))
        assert _is_closed(first)
        for client in rest:
            client.sendall(b"\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert _healthy(silent)


def test_one_address_cannot_fill_the_waiting_room(serve: Make) -> None:
    """When it is full, the address with most connections loses one, not the oldest of all."""
    port = serve(max_waiting=4)
    with ExitStack() as stack:
        patient = stack.enter_context(_connect(port))
        crowd = [stack.enter_context(_connect(port, "127.0.0.2")) for _ in range(20)]
        assert all(map(_is_closed, crowd[:17]))
        assert _healthy(patient)


def test_one_address_loses_its_places_to_others(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds more than half of the places has no moment's grace against another address."""
    monkeypatch.setattr(connections_module, "NEW_S", 60.0)
    port = serve(max_connections=4)
    with ExitStack() as stack:
        other = stack.enter_context(_connect(port))
        crowd = [stack.enter_context(_connect(port, "127.0.0.2")) for _ in range(4)]
        assert all(map(_healthy, crowd))
        assert _healthy(other)
        assert sum(map(is_open, crowd)) == 3


def test_full_file_table_costs_the_oldest_silent_one(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file descriptor for a new connection the oldest silent one gives way."""
    port = serve()
    real, failures = socket.socket.accept, [OSError(24, "Too many open files")]

    def accept(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return real(listener)

    with _connect(port) as silent:
        assert _healthy_elsewhere(port)
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert _healthy_elsewhere(port)
        assert _is_closed(silent)
    with _connect(port) as kept:
        assert _healthy(kept)
        failures.extend([OSError(24, "Too many open files")] * 20)
        assert _healthy_elsewhere(port)
        assert _is_closed(kept), "one that waits for nothing gives way too"


def test_silent_client_is_dropped(serve: Make) -> None:
    """A connection on which nothing is asked is closed after the time for a request."""
    port = serve(request_s=0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /metr")
        assert _is_closed(client)


def test_kept_connection_may_be_idle_longer(serve: Make) -> None:
    """After an answer a connection may be quiet for longer than the time for a request, but not for ever."""
    port = serve(request_s=0.2, idle_s=1.0)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        for _ in range(2):
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"healthy" in client.recv(65536)
            time.sleep(0.5)
        assert client.recv(1) == b""


def test_client_that_does_not_read_is_dropped(serve: Make, ask: Make) -> None:
    """A client that takes no answer ends by its own time limit, and others are served meanwhile."""
    port = serve(request_s=0.5, status=lambda: b"x" * 50_000_000)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ask("/-/healthy", port=port)[0] == 200
        assert wait_for(lambda: connection_threads() == 0)


def test_stop_ends_every_thread(exposition: Exposition) -> None:
    """Stopping closes open connections and leaves no thread; the port is free again."""
    server = HttpServer(("127.0.0.1", 0), exposition, bytes)
    host, port = server.start()
    with socket.create_connection((host, port), timeout=10) as client:
        client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
        client.recv(65536)
        server.stop()
        assert client.recv(1) == b""
    server.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpuwhy-http")]
    again = HttpServer((host, port), exposition, bytes)
    again.start()
    again.stop()


def _connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def _healthy(client: socket.socket) -> bool:
    client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n")
    return client.recv(65536).startswith(b"HTTP/1.1 200 ")


def _healthy_elsewhere(port: int) -> bool:
    with _connect(port) as client:
        return _healthy(client)


def _is_closed(client: socket.socket) -> bool:
    """Waits for the server's end of it."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()
