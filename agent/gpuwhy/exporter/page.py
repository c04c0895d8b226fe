"""The page at ``/``: what each GPU does now and where the numbers are, for a person with a browser."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from http import HTTPStatus

from gpuwhy import __version__
from gpuwhy.exporter.answer import Answer
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.snapshot import GpuNow, Snapshot
from gpuwhy.exporter.textformat import encodable
from gpuwhy.verdict.summary import titles
from gpuwhy.verdict.types import Verdict
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY
from gpuwhy.verdict.words import human, human_test

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem;color:#1b1f24;background:#fff}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "th,td{text-align:left;vertical-align:top;padding:.3rem .8rem;border-bottom:1px solid #d0d7de}"
    "div{overflow-x:auto}"
    ".note{background:#fff8c5;padding:.5rem .8rem}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

# Model names and reasons come from drivers and recordings: nothing on the page may run or load.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_LINKS = (
    ("/metrics", "metrics, for Prometheus"),
    ("/api/v1/status", "the last five minutes with evidence and next steps, as JSON"),
    ("/-/healthy", "whether the agent lives"),
    ("/-/ready", "whether it has judged an interval"),
)


class Page:
    """The paths that a person's browser asks for."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def get(self, path: str) -> Answer | None:
        """The answer to a path, None for one that is not the page's."""
        if path != "/":
            return None
        page = render_page(self._exposition.snapshot, stale=self._exposition.stale)
        headers = (("Content-Security-Policy", CONTENT_SECURITY_POLICY), ("Referrer-Policy", "no-referrer"))
        return Answer(HTTPStatus.OK, "text/html; charset=utf-8", page, headers)


def render_page(snapshot: Snapshot | None, *, stale: bool) -> bytes:
    """The page as UTF-8 HTML that needs no other file. ``stale``: the snapshot is too old for now."""
    links = "".join(f'<li><a href="{path}">{path}</a> {about}</li>' for path, about in _LINKS)
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>gpuwhy</title>'
        f"<style>{_STYLE}</style></head><body><h1>gpuwhy {escape(__version__)}</h1>"
        "<p>Why is this GPU not doing more useful work?</p>"
        f"{_gpus(snapshot, stale)}<ul>{links}</ul></body></html>\n"
    )
    return encodable(html).encode()


def _gpus(snapshot: Snapshot | None, stale: bool) -> str:
    notes = ""
    if snapshot is not None and snapshot.replaying:
        notes += _note("Replaying a recording: these are not the GPUs of this host.")
    if snapshot is None or not snapshot.judged:
        return notes + _note("No interval has been judged yet.")
    if stale:
        return notes + _note("Readings have stopped: what the GPUs do now is not known.")
    heads = "".join(
        f"<th>{head}</th>"
        for head in ("GPU", "Model", "Workload", "Verdict", "Confidence", "Why", "Evidence")
    )
    rows = "".join(_row(gpu) for gpu in snapshot.gpus)
    return f"{notes}<div><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _row(gpu: GpuNow) -> str:
    name = f"{gpu.facts.index}, MIG {gpu.facts.mig}" if gpu.facts.mig else str(gpu.facts.index)
    model = f"{gpu.facts.model} {gpu.facts.profile}".strip()
    whose = titles(gpu.verdict.workloads) if gpu.verdict else ""
    said = ["not judged yet", "", "", ""] if gpu.verdict is None else _said(gpu.verdict)
    if gpu.up is False:
        said[0] += " (the GPU does not answer)"
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in (name, model, whose, *said))
    return f'<tr title="{escape(gpu.facts.uuid)}">{cells}</tr>'


def _said(verdict: Verdict) -> list[str]:
    cause = CAUSE_BY_KEY.get(verdict.key)
    why = verdict.reason or (cause.meaning if cause else "")
    evidence = ", ".join(
        f"{seen.signal} {human(seen.signal, seen.value)} {human_test(seen.signal, seen.test)}"
        for seen in verdict.evidence
    )
    return [f"{verdict.verdict} / {verdict.cause}", f"{verdict.confidence:.2f}", why, evidence]


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
