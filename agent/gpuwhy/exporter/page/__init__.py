"""The status page: what each GPU does now and why, and its last hours, for a person with a browser.

``/`` is a table that needs no script. The script beside it asks for ``/api/v1/page`` each interval and draws
the page anew; with ``/RUN/SERIAL`` behind it only the rows come that are newer.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files

import msgspec

from gpuwhy.exporter.answer import Answer
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.page.view import document, first_view
from gpuwhy.exporter.strips import Strips
from gpuwhy.verdict import colours

API = "/api/v1/page"

# Names come from drivers, pods and recordings: nothing may run or load but what comes with the agent.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'"
)
# Nothing of frames: a browser would take it before the X-Frame-Options that an operator may set.
_HEADERS = (("Content-Security-Policy", CONTENT_SECURITY_POLICY),)


def _file(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _style() -> bytes:
    each = (
        f".is-{name}{{--tone:{colour};--ink:{colours.ink(colour)}}}"
        for name, colour in colours.VERDICTS.items()
    )
    return "\n".join([_file("page.css"), *each, ""]).encode()


class Page:
    """The paths that a person's browser asks for. No answer touches a device."""

    def __init__(self, exposition: Exposition, strips: Strips | None = None) -> None:
        self._exposition = exposition
        self._strips = Strips() if strips is None else strips
        self._html = _file("page.html")
        self._assets = {
            "/page.css": ("text/css; charset=utf-8", _style()),
            "/page.js": ("text/javascript; charset=utf-8", _file("page.js").encode()),
        }

    def get(self, path: str) -> Answer | None:
        """The answer to a path without its query, None for one that is not the page's."""
        if path == "/":
            view = first_view(self._html, self._exposition.snapshot, stale=self._exposition.stale)
            return Answer(HTTPStatus.OK, "text/html; charset=utf-8", view, _HEADERS)
        if path in self._assets:
            return Answer(HTTPStatus.OK, *self._assets[path], _HEADERS)
        if path == API or path.startswith(f"{API}/"):
            return self._json(path.removeprefix(API))
        return None

    def _json(self, seen: str) -> Answer | None:
        serial = 0
        if seen:
            run, _, number = seen[1:].partition("/")
            if not (number.isascii() and number.isdigit() and len(number) < 20):
                return None
            serial = int(number) if run == self._strips.run else 0
        shown = document(self._exposition.snapshot, self._strips, serial, stale=self._exposition.stale)
        return Answer(HTTPStatus.OK, "application/json", msgspec.json.encode(shown), _HEADERS)
