"""The HTTP server: metrics, status and health, from memory only; no request touches a device.

``connections`` says who is served when there are more clients than places. A scraper whose idle connection
was closed opens another; Prometheus repeats the request by itself.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from gpuwhy.exporter.answer import TEXT, Answer, text
from gpuwhy.exporter.connections import Connections, Place, end_tls
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.page import Page
from gpuwhy.exporter.textformat import Format
from gpuwhy.exporter.users import Access
from gpuwhy.exporter.web_config import NO_SETTINGS, Settings, WebConfig, spelled

log = logging.getLogger(__name__)

Address = tuple[str, int]

_TARGET_BYTES = 4096
_HEAD_BYTES = 32 * 1024
_HEADER_LINES = 100
# Asked by whoever restarts the agent, who has no password.
_OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
_TLS_FIRST_BYTE = b"\x16"
_WORTH_GZIP_BYTES = 1024
_BACKLOG = 1024  # a burst that overflows it costs its clients a second
_SPEAK_TLS_SAID = b"this port speaks TLS; ask by https\n"
_SPEAK_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
    % (TEXT.encode(), len(_SPEAK_TLS_SAID), _SPEAK_TLS_SAID)
)
# The kinds of names that a client may be let in by, as Python's TLS calls them.
_SAN_KINDS = frozenset({"DNS", "email", "IP Address", "URI"})
_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "free that port or set http.listen to another",
    errno.EADDRNOTAVAIL: "this host does not have that address; set http.listen to one it has, or to :PORT for all",
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SAID_ONCE = frozenset({b"authorization", b"content-length", b"host", b"transfer-encoding"})
_POLICY = "Content-Security-Policy"
_SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    _POLICY: "default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ListenError(Exception):
    """The server cannot listen where it was told to; the message names the value and the remedy."""


class HttpServer:
    """Serves one ``Exposition`` and the daemon's status.

    ``status`` returns the JSON of ``/api/v1/status``. A client has ``request_s`` seconds to send its
    first request and to take an answer, in all, and may be quiet for ``idle_s`` between requests.
    ``web`` holds TLS, users and headers; None serves plain HTTP to everybody.
    """

    def __init__(
        self,
        listen: Address,
        exposition: Exposition,
        status: Callable[[], bytes],
        *,
        page: Page | None = None,
        web: WebConfig | None = None,
        max_connections: int = 128,
        max_waiting: int = 512,
        request_s: float = 10.0,
        idle_s: float = 120.0,
    ) -> None:
        self._listen = listen
        self._site = _Site(exposition, status, page or Page(exposition))
        self._limits = _Limits(max_connections, max_waiting, request_s, idle_s)
        self._settings = (lambda: NO_SETTINGS) if web is None else web.current
        self._connections: Connections | None = None

    def start(self) -> Address:
        """Listen and serve; returns the bound host and port. Raises ``ListenError``."""
        listener = _listener(self._listen)
        self._connections = _Server(listener, self._site, self._limits, self._settings).connections
        host, port = listener.getsockname()[:2]
        self._connections.start()
        return host, port

    def is_alive(self) -> bool:
        """Whether connections are accepted; False too where that has failed for a while."""
        return self._connections is not None and self._connections.is_alive()

    def stop(self) -> None:
        """Stop listening, close all connections and wait for their threads."""
        if self._connections is not None:
            self._connections.stop()
            self._connections = None


@dataclass(frozen=True, slots=True)
class _Limits:
    max_connections: int
    max_waiting: int
    request_s: float
    idle_s: float


class _Site:
    """What each path answers. To add a path, add a case to ``_get``."""

    def __init__(self, exposition: Exposition, status: Callable[[], bytes], page: Page) -> None:
        self._exposition = exposition
        self._status = status
        self._page = page

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
                answer = self._page.get(path)
                return missing if answer is None else _compressed(answer, headers)

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


def _compressed(answer: Answer, headers: Message) -> Answer:
    vary = (*answer.headers, ("Vary", "Accept-Encoding"))
    if len(answer.content) < _WORTH_GZIP_BYTES or not gzip_accepted(headers.get("Accept-Encoding", "")):
        return replace(answer, headers=vary)
    # Level 1, as for the metrics: more takes several times as long and saves little.
    content = gzip.compress(answer.content, compresslevel=1, mtime=0)
    return replace(answer, content=content, headers=(*vary, ("Content-Encoding", "gzip")))


class _Timed(io.RawIOBase):
    """A socket as a stream whose reads and writes end, all together, at ``until_s`` (monotonic)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until_s = 0.0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._hurry()
        return self._connection.recv_into(buffer)

    def write(self, content: Any) -> int:
        self._hurry()
        return self._connection.send(content)

    def _hurry(self) -> None:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)


class _Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The request's head is not what this server takes."""

    def __init__(self, status: HTTPStatus, said: str) -> None:
        super().__init__(said)
        self.answer = text(status, said + "\n")


class _Handler(BaseHTTPRequestHandler):
    server: Any  # a _Server, which is none of socketserver's
    protocol_version = "HTTP/1.1"
    # Without this a kept connection waits 40 ms for the client's delayed ACK.
    disable_nagle_algorithm = True

    def __init__(self, place: Place, server: _Server, settings: Settings) -> None:
        self._place = place
        self._settings = settings  # those that the connection was secured by
        super().__init__(place.connection, place.address, server)  # type: ignore[arg-type]

    def setup(self) -> None:
        super().setup()
        self._timed = _Timed(self.connection)
        self._timed.until_s = time.monotonic() + self.server.limits.request_s
        self.rfile = io.BufferedReader(self._timed)
        self.wfile = io.BufferedWriter(self._timed, 65536)
        self._stranger = _is_stranger(self.connection, self._settings)

    def finish(self) -> None:
        # What could not be sent is given up: closing would try again.
        with contextlib.suppress(OSError, ValueError):
            self.wfile.flush()

    def handle_one_request(self) -> None:
        self.close_connection = True
        if not self.rfile.peek(1):  # type: ignore[attr-defined]
            return
        self._timed.until_s = min(self._timed.until_s, time.monotonic() + self.server.limits.request_s)
        # Until the request line was read: what the answer needs.
        self.command, self.request_version, self.requestline = "GET", "HTTP/1.1", ""
        try:
            line, headers = self._read_head()
            self._take(line, headers)
        except _Refused as refused:
            self.close_connection = True
            self.request_version = "HTTP/1.1"  # http.server takes a line that it cannot read for HTTP/0.9
            self._answer(refused.answer)
        if self.close_connection:
            # Closing with bytes unread resets the connection, and the client would lose the answer.
            _drain(self.connection)
        self._place.answered()
        self._timed.until_s = time.monotonic() + self.server.limits.idle_s

    def _read_head(self) -> tuple[bytes, bytes]:
        """The request line and the header lines with the empty one after them."""
        line = self.rfile.readline(_TARGET_BYTES + 1)
        if len(line) > _TARGET_BYTES:
            raise _Refused(
                HTTPStatus.REQUEST_URI_TOO_LONG, f"a request line has at most {_TARGET_BYTES} bytes"
            )
        _check_line(line)
        lines: list[bytes] = []
        said_once: set[bytes] = set()
        size = 0
        while True:
            header = self.rfile.readline(_HEAD_BYTES + 1)
            size += len(header)
            if size > _HEAD_BYTES or len(lines) > _HEADER_LINES:
                said = f"a request has at most {_HEADER_LINES} headers with {_HEAD_BYTES} bytes"
                raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, said)
            _check_line(header)
            lines.append(header)
            if header in {b"\r\n", b"\n"}:
                return line, b"".join(lines)
            name, colon, _ = header.partition(b":")
            # http.server ends the headers at a name that it does not understand, and takes the rest for a body.
            if not colon or not _TOKEN.fullmatch(name):
                raise _Refused(HTTPStatus.BAD_REQUEST, "a header is one line with a name and a colon")
            if name.lower() in _SAID_ONCE:
                if name.lower() in said_once:
                    raise _Refused(HTTPStatus.BAD_REQUEST, f"{name.decode()} is said twice")
                said_once.add(name.lower())

    def _take(self, line: bytes, headers: bytes) -> None:
        words = line.split()
        if len(words) != 3:
            raise _Refused(HTTPStatus.BAD_REQUEST, "write a method, a path and HTTP/1.1")
        self.raw_requestline = line
        stream, self.rfile = self.rfile, io.BytesIO(headers)
        try:
            understood = self.parse_request()
        finally:
            self.rfile = stream
        if not understood:
            return
        self._place.asked()
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body that nobody reads would be taken for the next request
        settings = self.server.settings()
        if settings is not self._settings:
            self.close_connection = True  # the next request comes by the new certificates
            if settings.context and (not self._settings.context or "client certificates" in settings.locks):
                return  # nobody knows whether this client would be let in; it may ask again
        self._settings = settings
        target = words[1].decode("latin-1")
        if self.command not in {"GET", "HEAD"}:
            refusal = Answer(
                HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"use GET or HEAD\n", (("Allow", "GET, HEAD"),)
            )
            self.close_connection = True
            self._answer(refusal)
            return
        _check_target(target)
        self._answer(self._kept_out(target.partition("?")[0]) or self.server.site.get(target, self.headers))

    def _kept_out(self, path: str) -> Answer | None:
        if self._stranger:
            self.close_connection = True
            return text(HTTPStatus.FORBIDDEN, "the client's certificate has none of the allowed names\n")
        users = self._settings.users
        if users is None or path in _OPEN_PATHS:
            return None
        match users.check(self.headers.get("Authorization", "")):
            case Access.GRANTED:
                return None
            case Access.BUSY:
                said = b"too many passwords are being checked; try again\n"
                return Answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, said, (("Retry-After", "5"),))
            case _:
                challenge = ("WWW-Authenticate", 'Basic realm="gpuwhy", charset="UTF-8"')
                return Answer(HTTPStatus.UNAUTHORIZED, TEXT, b"give a user and its password\n", (challenge,))

    def version_string(self) -> str:
        return "gpuwhy"  # and no version: those without a password get this too

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # What http.server says repeats what the client wrote.
        del message, explain
        status = HTTPStatus(code)
        raise _Refused(status, status.phrase.lower())

    def _answer(self, answer: Answer) -> None:
        self._timed.until_s = time.monotonic() + self.server.limits.request_s
        self._send(answer)
        self.wfile.flush()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        own = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.content))}
        headers = {**_SECURITY_HEADERS, **own, **dict(answer.headers)}
        for name, value in self._settings.headers.items():
            # A browser obeys every policy of a list, so the operator's can forbid more and allow nothing.
            headers[name] = f"{headers[name]}, {value}" if name == _POLICY else value
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  as the base class calls it
        log.debug("%s: %r", self.client_address, format % args)


def _check_line(line: bytes) -> None:
    if not line.endswith(b"\n"):
        raise ConnectionAbortedError  # the client went away in the middle
    if any(mark in line.removesuffix(b"\n").removesuffix(b"\r") for mark in (b"\r", b"\0")):
        raise _Refused(HTTPStatus.BAD_REQUEST, "a line has neither NUL nor a bare CR")


def _check_target(target: str) -> None:
    path = target.partition("?")[0]
    if not path.startswith("/"):
        raise _Refused(HTTPStatus.BAD_REQUEST, "ask for a path that starts with /, without a host")
    if not (target.isascii() and target.isprintable()) or any(mark in path for mark in ("%", "\\", "//")):
        raise _Refused(HTTPStatus.BAD_REQUEST, "no path here has //, a backslash or encoded characters")
    if {".", ".."} & set(path.split("/")):
        raise _Refused(HTTPStatus.BAD_REQUEST, "no path here has . or .. in it")


def _is_stranger(connection: socket.socket, settings: Settings) -> bool:
    if not settings.allowed_sans or not isinstance(connection, ssl.SSLSocket):
        return False
    names: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    # Python writes an IPv6 address in full.
    return not any(kind in _SAN_KINDS and spelled(value) in settings.allowed_sans for kind, value in names)


def _drain(connection: socket.socket) -> None:
    until_s = time.monotonic() + 0.5
    # The socket's own methods, since TLS has nothing to say about bytes that nobody wants.
    with contextlib.suppress(OSError):
        end_tls(connection)
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while (left_s := until_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not socket.socket.recv(connection, 65536):
                return


class _Server:
    """Speaks TLS and HTTP on the connections that ``Connections`` gives a thread."""

    def __init__(
        self, listener: socket.socket, site: _Site, limits: _Limits, settings: Callable[[], Settings]
    ) -> None:
        self.settings = settings
        self.site = site
        self.limits = limits
        self.connections = Connections(
            listener,
            self._serve,
            _is_whole,
            places=limits.max_connections,
            waiting=limits.max_waiting,
            first_s=limits.request_s,
        )

    def _serve(self, place: Place) -> None:
        try:
            # The handshake is this thread's work: in the accepting one a slow client would stop all.
            place.connection.settimeout(self.limits.request_s)
            is_tls = place.connection.recv(1, socket.MSG_PEEK) == _TLS_FIRST_BYTE
            settings = self.settings()
            if self._secure(place, settings.context, is_tls=is_tls):
                _Handler(place, self, settings)
        except OSError as error:  # the client went away, was too slow, or has no good certificate
            log.debug("connection from %s ended: %s", place.address, error)
        except Exception:
            log.exception("connection from %s failed", place.address)

    def _secure(self, place: Place, context: ssl.SSLContext | None, *, is_tls: bool) -> bool:
        """Put TLS on it where the settings want that; False where the first byte is of the wrong protocol."""
        plain = place.connection
        if context is None:
            return not is_tls
        if not is_tls:
            plain.sendall(_SPEAK_TLS)
            _drain(plain)
            return False
        secured = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        place.connection = secured
        if place.dropped:  # perhaps while it had no socket that could be shut down
            return False
        secured.settimeout(self.limits.request_s)
        secured.do_handshake()
        return True


def _is_whole(content: bytes) -> bool:
    """Whether that is all of a request's head, or of the first record of TLS."""
    if content.startswith(_TLS_FIRST_BYTE):
        return len(content) >= 5 and len(content) >= 5 + int.from_bytes(content[3:5], "big")
    return b"\n\r\n" in content or b"\n\n" in content


def _listener(listen: Address) -> socket.socket:
    host, port = listen
    try:
        if host:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
        elif socket.has_dualstack_ipv6():
            family, address = socket.AF_INET6, ("::", port)
        else:
            family, address = socket.AF_INET, ("", port)
        # As with other exporters, all addresses means those of IPv4 too.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        # That of create_server repeats the address.
        said = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        remedy = _LISTEN_REMEDIES.get(error.errno or 0, "set http.listen to another")
        raise ListenError(f"cannot listen on {shown}: {said}; {remedy}") from error


def wanted_format(accept: str) -> Format:
    """The format for an Accept header: text, unless OpenMetrics is asked for and not liked less."""
    openmetrics = plain = 0.0
    for kind, parameters in _weighted(accept):
        if kind == "text/plain":
            plain = max(plain, _quality(parameters))
        # Version 1 is written; a scraper that only knows the draft before it, or the next, gets text.
        elif kind == "application/openmetrics-text" and parameters.get("version", "1").split(".")[0] == "1":
            openmetrics = max(openmetrics, _quality(parameters))
    return Format.OPENMETRICS if openmetrics > 0 and openmetrics >= plain else Format.TEXT


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
