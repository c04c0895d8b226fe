"""The HTTP server: metrics, status and health, from memory only; no request touches a device.

Every connection has a thread, and there are at most ``max_connections``: a new one beyond that
closes the one that has been quiet longest, so idle or slow clients cannot keep others out. A
scraper whose idle connection was closed opens another; Prometheus repeats the request by itself.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from gpuwhy import __version__
from gpuwhy.exporter.answer import TEXT, Answer, text
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.page import Page
from gpuwhy.exporter.textformat import Format

log = logging.getLogger(__name__)

Address = tuple[str, int]

_EXAMPLES = "write HOST:PORT, [IPV6]:PORT or :PORT for all addresses, as in :9837 or 127.0.0.1:9837"


class ListenError(Exception):
    """The server cannot listen where it was told to; the message names the value and the remedy."""


def parse_listen(text: str) -> Address:
    """Host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; host "" means all addresses.

    Port 0 lets the system choose. Raises ``ListenError`` for anything else.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise ListenError(f"listen address {text!r} has no port: {_EXAMPLES}")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not bracketed and any(mark in host for mark in ":[]"):
        raise ListenError(f"listen address {text!r} has an IPv6 address without brackets: {_EXAMPLES}")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ListenError(f"listen address {text!r} has no port from 0 to 65535: {_EXAMPLES}")
    return host, int(port)


class HttpServer:
    """Serves one ``Exposition`` and the daemon's status.

    ``status`` returns the JSON of ``/api/v1/status``. A client has ``request_s`` seconds to send its
    first request and to take an answer, and may be quiet for ``idle_s`` between requests.
    """

    def __init__(
        self,
        listen: Address,
        exposition: Exposition,
        status: Callable[[], bytes],
        *,
        max_connections: int = 32,
        request_s: float = 10.0,
        idle_s: float = 120.0,
    ) -> None:
        self._listen = listen
        self._site = _Site(exposition, status)
        self._limits = _Limits(max_connections, request_s, idle_s)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Address:
        """Listen and serve; returns the bound host and port. Raises ``ListenError``."""
        self._server = _bind(self._listen, self._site, self._limits)
        self._thread = threading.Thread(target=self._server.serve_forever, name="gpuwhy-http", daemon=True)
        self._thread.start()
        host, port = self._server.socket.getsockname()[:2]
        return host, port

    def stop(self) -> None:
        """Stop listening, close all connections and wait for their threads."""
        if self._server is not None and self._thread is not None:
            self._server.wake()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None


@dataclass(frozen=True, slots=True)
class _Limits:
    max_connections: int
    request_s: float
    idle_s: float


class _Site:
    """What each path answers. To add a path, add a case to ``_get``."""

    def __init__(self, exposition: Exposition, status: Callable[[], bytes]) -> None:
        self._exposition = exposition
        self._status = status
        self._page = Page(exposition)

    def get(self, target: str, headers: Message) -> Answer:
        """The answer to a GET; whatever goes wrong is logged and answered with 500."""
        try:
            return self._get(target.partition("?")[0], headers)
        except Exception:
            log.exception("the answer to %s could not be put together", target)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the agent's log has the cause\n")

    def _get(self, path: str, headers: Message) -> Answer:
        match path:
            case "/metrics":
                return self._metrics(headers)
            case "/api/v1/status":
                return Answer(HTTPStatus.OK, "application/json", self._status())
            case "/-/healthy":
                return text(HTTPStatus.OK, "healthy\n")
            case "/-/ready":
                return self._ready()
            case _:
                missing = text(HTTPStatus.NOT_FOUND, "not found; the metrics are at /metrics\n")
                return self._page.get(path) or missing

    def _metrics(self, headers: Message) -> Answer:
        wanted = wanted_format(headers.get("Accept", ""))
        compressed = gzip_accepted(headers.get("Accept-Encoding", ""))
        content = self._exposition.scrape(wanted, compressed=compressed)
        extra: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if compressed:
            extra = (*extra, ("Content-Encoding", "gzip"))
        return Answer(HTTPStatus.OK, wanted.value, content, extra)

    def _ready(self) -> Answer:
        snapshot = self._exposition.snapshot
        if snapshot is not None and snapshot.judged:
            return text(HTTPStatus.OK, "ready\n")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: no interval has been judged yet\n")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = f"gpuwhy/{__version__}"
    sys_version = ""
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"
    # Without these two a kept connection waits 40 ms for the client's delayed ACK.
    disable_nagle_algorithm = True
    wbufsize = 65536

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.request_s)

    def do_GET(self) -> None:
        self.server.heard_from(self.connection)
        self.connection.settimeout(self.server.limits.request_s)
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body that nobody reads would be taken for the next request
        # Authentication belongs here, before anything is answered.
        self._send(self.server.site.get(self.path, self.headers))
        self.wfile.flush()
        self.server.heard_from(self.connection)
        self.connection.settimeout(self.server.limits.idle_s)

    def do_HEAD(self) -> None:
        self.do_GET()

    def __getattr__(self, name: str) -> Callable[[], None]:
        # http.server asks for do_METHOD: every other method gets the same answer.
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self.close_connection = True
        refusal = b"use GET or HEAD\n"
        self._send(Answer(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, refusal, (("Allow", "GET, HEAD"),)))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, *args: Any) -> None:
        log.debug("%s: %s", self.client_address, args)


class _Connection:
    """One client: its thread, and when it last did something, on the monotonic clock."""

    __slots__ = ("quiet_since_s", "thread")

    def __init__(self, thread: threading.Thread) -> None:
        self.quiet_since_s = time.monotonic()
        self.thread = thread


class _Server(ThreadingMixIn, TCPServer):
    # Not http.server's own: that one asks DNS for the host's name before it serves, which can hang.
    # TLS belongs into get_request, without the handshake, which is the connection thread's work.
    allow_reuse_address = True
    request_queue_size = 1024  # a burst that overflows it costs its clients a second

    def __init__(self, family: int, address: Any, site: _Site, limits: _Limits) -> None:
        self.address_family = family
        self.site = site
        self.limits = limits
        self._connections: dict[socket.socket, _Connection] = {}
        self._lock = threading.Lock()  # guards _connections
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # As with other exporters, all addresses means those of IPv4 too.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="gpuwhy-http-connection",
            daemon=True,
        )
        with self._lock:
            while len(self._connections) >= self.limits.max_connections:
                self._drop(min(self._connections, key=lambda known: self._connections[known].quiet_since_s))
            self._connections[request] = _Connection(thread)
        thread.start()

    def heard_from(self, request: socket.socket) -> None:
        connection = self._connections.get(request)
        if connection is not None:
            connection.quiet_since_s = time.monotonic()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def wake(self) -> None:
        """End the wait for the next client, which else goes on for up to half a second."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            threads = [connection.thread for connection in self._connections.values()]
            for request in tuple(self._connections):
                self._drop(request)
        for thread in threads:
            thread.join(timeout=5)  # a status that never returns must not keep the agent from ending

    def handle_error(self, _request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # the client went away, or was too slow
            log.debug("connection from %s ended: %s", client_address, error)
        else:
            log.error("connection from %s failed", client_address, exc_info=error)

    def _drop(self, request: socket.socket) -> None:
        """End a connection: its thread wakes from whatever it waits for, and closes the socket."""
        del self._connections[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def _bind(listen: Address, site: _Site, limits: _Limits) -> _Server:
    host, port = listen
    try:
        if host:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            return _Server(family, address, site, limits)
        if socket.has_dualstack_ipv6():
            return _Server(socket.AF_INET6, ("::", port), site, limits)
        return _Server(socket.AF_INET, ("0.0.0.0", port), site, limits)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise ListenError(
            f"cannot listen on {shown}: {error.strerror}; free that port or set http.listen to another"
        ) from error


def wanted_format(accept: str) -> Format:
    """The format for an Accept header: text, unless OpenMetrics is asked for and not liked less."""
    openmetrics = text = 0.0
    for kind, parameters in _weighted(accept):
        if kind == "text/plain":
            text = max(text, _quality(parameters))
        # Version 1 is written; a scraper that only knows the draft before it, or the next, gets text.
        elif kind == "application/openmetrics-text" and parameters.get("version", "1").split(".")[0] == "1":
            openmetrics = max(openmetrics, _quality(parameters))
    return Format.OPENMETRICS if openmetrics > 0 and openmetrics >= text else Format.TEXT


def gzip_accepted(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    return any(name == "gzip" and _quality(parameters) > 0 for name, parameters in _weighted(accept_encoding))


def _weighted(header: str) -> list[tuple[str, dict[str, str]]]:
    entries = []
    for entry in header.split(","):
        name, *rest = entry.lower().split(";")
        pairs = (piece.partition("=") for piece in rest)
        entries.append((name.strip(), {key.strip(): value.strip(' "') for key, _, value in pairs}))
    return entries


def _quality(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
