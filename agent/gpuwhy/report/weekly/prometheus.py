"""Asks whatever speaks the API of Prometheus, patiently, and says what to mend where it will not answer."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec

from gpuwhy.config import ReportConfig, pip_install
from gpuwhy.report.weekly.history import ReportError

if TYPE_CHECKING:
    import urllib3

PATIENCE = (0.5, 2.0, 5.0)  # seconds before each further try
LONGEST_URL = 4000
MOST_BYTES = 1 << 30
PARALLEL = 3

AGAIN = {408, 429, 500, 502, 503, 504}
REMEDIES = {
    400: "a part of the query is not understood there: if report.selector is set, check it; else it may be no Prometheus",
    401: "it wants to know who asks: set report.token_file to a file with a bearer token that is valid",
    403: "the token in report.token_file, or the tenant, may not read this: ask whoever runs it",
    404: "there is no query API at this address: Mimir has it under /prometheus, VictoriaMetrics clusters under "
    "/select/0/prometheus",
    413: "the answer is larger than it allows: ask for a shorter --period",
    422: "it cannot or will not answer so much at once: ask for a shorter --period, or raise its limits "
    "(query.max-samples, query.timeout, or those of the tenant)",
    429: "it limits how often it is asked: wait, or raise the limit of the tenant",
    503: "it is not ready, or took too long (query.timeout): ask again later, or for a shorter --period",
}


# Without these VictoriaMetrics moves points to multiples of the step, and fills a missing one from the one before.
# Others know neither.
_LIKE_PROMETHEUS = {"nocache": 1, "max_lookback": "5m"}


class Series(msgspec.Struct, frozen=True):
    """One series of an answer: unix time and value as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = msgspec.field(default_factory=list)
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""  # noqa: N815  the API's own name
    result: list[Series] = msgspec.field(default_factory=list)


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] | None = None


class TooMuchError(ReportError):
    """The server refuses to answer so much at once."""


class Client:
    """One address that is asked. Threads may share it.

    Follows no redirect: it would take token and tenant to an address that nobody named.
    """

    def __init__(self, options: ReportConfig, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._url = options.source.rstrip("/")
        self._sleep = sleep
        self._headers = _headers(options)
        self._pool = _pool(options)
        self.warnings: dict[str, None] = {}

    def range(self, query: str, start: int, end: int, step: int) -> list[Series]:
        """A matrix. Raises ReportError."""
        return self._ask("query_range", {"query": query, "start": start, "end": end, "step": step})

    def instant(self, query: str, at: int | None = None) -> list[Series]:
        """A vector, now or at that time. Raises ReportError."""
        return self._ask("query", {"query": query} if at is None else {"query": query, "time": at})

    def _ask(self, what: str, parameters: Mapping[str, object]) -> list[Series]:
        body = urlencode({name: str(value) for name, value in {**parameters, **_LIKE_PROMETHEUS}.items()})
        for wait in (*PATIENCE, None):
            try:
                status, content = self._once(what, body)
            except _Later as error:
                status, problem = 0, str(error)
            else:
                answer, problem = _decoded(status, content)
                if answer is not None:
                    self.warnings |= dict.fromkeys(answer.warnings or ())
                    return answer.data.result if answer.data else []
            if wait is None or (status and status != 200 and status not in AGAIN):
                raise self._error(status, problem)
            self._sleep(wait)
        raise AssertionError

    def _once(self, what: str, body: str) -> tuple[int, bytes]:
        import urllib3.exceptions as errors  # noqa: PLC0415

        url = f"{self._url}/api/v1/{what}"
        try:
            if len(body) < LONGEST_URL:
                answer = self._pool.request(
                    "GET", f"{url}?{body}", headers=self._headers, preload_content=False
                )
            else:
                form = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
                answer = self._pool.request("POST", url, body=body, headers=form, preload_content=False)
            content = self._content(answer)
        except errors.SSLError as error:
            raise self._tls(error) from error
        except errors.MaxRetryError as error:
            if isinstance(error.reason, errors.SSLError):
                raise self._tls(error.reason) from error
            raise _Later(_plain(error.reason)) from error
        except errors.HTTPError as error:
            raise _Later(_plain(error)) from error
        if 300 <= answer.status < 400:
            target = urlsplit(answer.headers.get("Location", ""))
            raise ReportError(
                f"{self._url} redirects ({answer.status}) to {target.scheme}://{target.netloc}{target.path}"[
                    :200
                ]
                + ": give --source the address that answers itself; if that is a page to log in, set "
                "report.token_file"
            )
        return answer.status, content

    def _content(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """All of it, within the time and the size that one answer may have."""
        deadline = time.monotonic() + self._options.timeout_seconds
        content = bytearray()
        try:
            # Not stream(), which waits for a whole piece: an answer may come in drops.
            while piece := answer.read1(1 << 18, decode_content=True):
                content += piece
                self._check(len(content), deadline)
        except BaseException:
            answer.close()
            raise
        answer.release_conn()
        return bytes(content)

    def _check(self, size: int, deadline: float) -> None:
        if size > MOST_BYTES:
            raise TooMuchError(f"{self._url} answers with more than {MOST_BYTES >> 20} MiB: {REMEDIES[413]}")
        if time.monotonic() > deadline:
            raise _Later(f"the answer took more than {self._options.timeout_seconds:g} s")

    def _tls(self, error: Exception) -> ReportError:
        return ReportError(
            f"{self._url}: the https connection is refused ({_plain(error)}): set report.ca_file to the "
            "certificates that have signed the server's, and use the name that its certificate has"
        )

    def _error(self, status: int, problem: str) -> ReportError:
        if not status:
            return ReportError(
                f"{self._url} cannot be read ({problem}): check the address, that it runs, and what lies between; "
                f"report.timeout_seconds is {self._options.timeout_seconds:g}"
            )
        if status == 200:
            return ReportError(
                f"{self._url} answers with something else than the API of Prometheus ({problem}): "
                f"{REMEDIES[404]}"
            )
        wants_tenant = "org id" in problem.lower() or "tenant" in problem.lower()
        remedy = (
            "set report.tenant to the tenant's name"
            if wants_tenant and not self._options.tenant
            else REMEDIES.get(status, "see its log")
        )
        kind = TooMuchError if status in {413, 422} else ReportError
        return kind(f"{self._url} answers {status} ({problem}): {remedy}")


class _Later(Exception):  # noqa: N818
    """What may go better the next time."""


def _headers(options: ReportConfig) -> dict[str, str]:
    # Not compressed: that would take a server several times as long as the answer itself.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "gpuwhy"}
    if options.tenant:
        headers["X-Scope-OrgID"] = options.tenant
    if options.token_file:
        try:
            token = Path(options.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ReportError(
                f"report.token_file {options.token_file} cannot be read "
                f"({error.strerror if isinstance(error, OSError) else 'it is no text'}): name a file with the token"
            ) from error
        if not token.isprintable() or not token:
            raise ReportError(f"report.token_file {options.token_file} holds no token in one line")
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _pool(options: ReportConfig) -> urllib3.PoolManager:
    try:
        import urllib3  # noqa: PLC0415  reports from a Prometheus alone need it
    except ImportError as error:
        raise ReportError(f"reading a Prometheus needs urllib3: {pip_install('urllib3')}") from error
    context = ssl.create_default_context()
    # Python 3.13 is strict by default; certificates of one's own often lack a key identifier.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if options.ca_file:
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ReportError(
                f"report.ca_file {options.ca_file} cannot be used ({_plain(error)}): name a file of PEM certificates"
            ) from error
    return urllib3.PoolManager(
        maxsize=PARALLEL,
        retries=urllib3.Retry(0, redirect=False, raise_on_redirect=False),
        timeout=urllib3.Timeout(options.timeout_seconds),
        ssl_context=context,
    )


def _decoded(status: int, content: bytes) -> tuple[_Answer | None, str]:
    """The answer where it is one, else what was said instead."""
    try:
        answer = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = content[:200].decode("utf-8", "replace").strip()
        return None, _plain(text or "an empty answer") if status != 200 else _plain(error)
    if status == 200 and answer.status == "success":
        return answer, ""
    return None, _plain(answer.error or answer.status)


_DECODER = msgspec.json.Decoder(_Answer)


def _plain(said: object) -> str:
    """In one short line, without what a terminal would obey."""
    text = re.sub(r"^\w*Connection(?:Pool)?\(.*?\): ", "", " ".join(str(said).split()))
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def in_halves(
    client: Client, query: str, hours: tuple[int, int], step: int, least: int = 24
) -> Iterable[Series]:
    """The series at each step after the first time up to the second; in smaller parts where that is too much.

    A series may come in several parts.
    """
    start, end = hours
    try:
        yield from client.range(query, start + step, end, step)
    except TooMuchError:
        steps = (end - start) // step
        if steps <= least:
            raise
        middle = start + steps // 2 * step
        yield from in_halves(client, query, (start, middle), step, least)
        yield from in_halves(client, query, (middle, end), step, least)
