"""What the page shows, as JSON for its script and as a table for browsers without."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from gpuwhy import __version__
from gpuwhy.exporter.snapshot import GpuNow, Health, Snapshot
from gpuwhy.exporter.strips import DRAWN, SPAN_S, Strip, Strips
from gpuwhy.sample.signals import DEVICE, PROCESS_TREE
from gpuwhy.sample.signals import HOST as HOST_SIGNALS
from gpuwhy.source.kubernetes_api import node_name
from gpuwhy.verdict.playbook import PLAY_BY_KEY, next_steps
from gpuwhy.verdict.summary import titles
from gpuwhy.verdict.types import Verdict, WorkloadVerdict
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY, CAUSES
from gpuwhy.verdict.words import human, human_test
from gpuwhy.workload.label import clean

_MEANING = {row.name: row.help for row in (*DEVICE, *HOST_SIGNALS, *PROCESS_TREE)}
_TITLE = {drawn.signal: drawn.title for drawn in DRAWN}
_UNIT = re.compile(r"_(ratio|cores|hertz|watts|celsius|seconds|bytes|bytes_per_second)$")
MOST_LETTERS = 200
MOST_WORKLOADS = 16
HOST = (
    ("host_cpu_busy_ratio", "CPU busy", 100.0, "{:.0f} %"),
    ("host_iowait_cores", "waiting for I/O", 1.0, "{:.1f} cores"),
    ("host_pressure_cpu_ratio", "CPU pressure", 100.0, "{:.1f} %"),
    ("host_pressure_io_ratio", "I/O pressure", 100.0, "{:.1f} %"),
    ("host_pressure_memory_ratio", "memory pressure", 100.0, "{:.1f} %"),
    ("process_tree_hottest_thread_cores", "hottest thread", 1.0, "{:.2f} cores"),
)


def _plain(text: str) -> str:
    """Without what a browser would obey, such as a change of the writing direction."""
    return clean(text, MOST_LETTERS)


def document(snapshot: Snapshot | None, strips: Strips, serial: int, *, stale: bool) -> dict[str, Any]:
    """What the script draws, with the rows after ``serial``; 0 asks for all of them."""
    newest, rings = strips.newer(serial)
    health = Health() if snapshot is None else snapshot.health
    gpus = () if snapshot is None or not snapshot.judged else snapshot.gpus
    if rings.keys() - {gpu.facts.key for gpu in gpus}:
        newest = serial  # a GPU that is not published yet: its rows are asked for again
    return {
        "run": strips.run,
        "serial": newest,
        "whole": serial == 0,
        "host": _plain(node_name(os.environ)),
        "version": __version__,
        "now": round(time.time(), 1),
        "span_s": SPAN_S,
        "interval_s": 5.0 if snapshot is None else snapshot.interval_s,
        "judged": 0 if snapshot is None else snapshot.judged,
        "stale": stale,
        "replaying": snapshot is not None and snapshot.replaying,
        "degraded": health.degraded,
        "last_reading": health.last_sample_unix_s,
        "sources": [
            {"name": _plain(name), "up": up, "yielding": health.source_yielding.get(name, False)}
            for name, up in health.source_up.items()
        ],
        "host_values": _host(rings),
        "causes": [[cause.verdict, cause.name] for cause in CAUSES],
        "drawn": [[drawn.title, drawn.unit] for drawn in DRAWN],
        "gpus": [_gpu(gpu, rings.get(gpu.facts.key)) for gpu in gpus],
    }


def _host(rings: Mapping[Any, Strip]) -> list[tuple[str, str]]:
    """The highest of what the newest intervals say: of one host for all its GPUs the same, but for its threads."""
    shown = []
    for signal, title, scale, form in HOST:
        values = [ring.latest.signals[signal] for ring in rings.values() if signal in ring.latest.signals]
        shown.append((title, form.format(max(values) * scale) if values else "not read"))
    return shown


def _gpu(gpu: GpuNow, strip: Strip | None) -> dict[str, Any]:
    latest = None if strip is None else strip.latest
    read = {} if latest is None else latest.sources
    missing = [] if latest is None else [row.name for row in DEVICE if row.name not in latest.signals]
    return {
        "id": ascii(gpu.facts.key),
        "name": _name(gpu),
        "model": _model(gpu),
        "uuid": _plain(gpu.facts.uuid),
        "up": gpu.up,
        "since": None if strip is None else round(strip.since_s, 1),
        "now": None if gpu.verdict is None else _judged(gpu.verdict),
        "limits": [drawn.number(getattr(gpu.facts, drawn.limit)) if drawn.limit else None for drawn in DRAWN],
        "sources": sorted({_plain(source) for source in read.values()}),
        "missing": missing,
        "rows": () if strip is None else strip.rows,
    }


def _judged(verdict: Verdict) -> dict[str, Any]:
    play = PLAY_BY_KEY.get(verdict.key)
    pid = verdict.owners[0] if verdict.owners else None
    return {
        "verdict": _plain(verdict.verdict),
        "cause": _plain(verdict.cause),
        "why": _why(verdict),
        "confidence": round(verdict.confidence, 2),
        "evidence": [
            (
                _plain(seen.signal),
                human(seen.signal, seen.value),
                _plain(human_test(seen.signal, seen.test)),
                _MEANING.get(seen.signal, ""),
                _plain(_label(seen.signal)),
            )
            for seen in verdict.evidence
        ],
        "steps": next_steps(*verdict.key, gpu_index=verdict.gpu.index, pid=pid) if play else (),
        "normal": play.when_normal if play else "",
        "flags": sorted(map(_plain, verdict.flags)),
        "title": _plain(titles(verdict.workloads)),
        "workloads": [_workload(each) for each in verdict.workloads[:MOST_WORKLOADS]],
        "more": max(0, len(verdict.workloads) - MOST_WORKLOADS),
    }


def _label(signal: str) -> str:
    """What a signal is called in a line of few words: as it is drawn, else its name without the unit."""
    name, of, peer = signal.partition(" of ")
    base, _, which = name.partition(":")
    title = _TITLE.get(base) or _UNIT.sub("", base).replace("_", " ")
    return f"{title} {which}".strip() + of + peer


def _workload(each: WorkloadVerdict) -> dict[str, Any]:
    return {
        "title": _plain(each.workload.title),
        "kind": _plain(each.workload.kind),
        "owner": _plain(each.workload.owner),
        "verdict": _plain(each.verdict),
        "cause": _plain(each.cause),
        "share": round(each.ratio, 3),
    }


def _name(gpu: GpuNow) -> str:
    return f"GPU {gpu.facts.index}" + (f" MIG {_plain(gpu.facts.mig)}" if gpu.facts.mig else "")


def _model(gpu: GpuNow) -> str:
    return _plain(f"{gpu.facts.model} {gpu.facts.profile}")


def _why(verdict: Verdict) -> str:
    cause = CAUSE_BY_KEY.get(verdict.key)
    return _plain(verdict.reason or "") or (cause.meaning if cause else "")


def first_view(html: str, snapshot: Snapshot | None, *, stale: bool) -> bytes:
    """The page as UTF-8 HTML: a table of the verdicts now. ``stale``: the snapshot is too old for now."""
    parts = {
        "HOST": escape(_plain(node_name(os.environ))),
        "VERSION": escape(__version__),
        "GPUS": _table(snapshot, stale),
    }
    for name, text in parts.items():
        html = html.replace(f"<!--{name}-->", text)
    return html.encode()


def _table(snapshot: Snapshot | None, stale: bool) -> str:
    notes = ""
    if snapshot is not None and snapshot.replaying:
        notes += _note("Replaying a recording: these are not the GPUs of this host.")
    if snapshot is None or not snapshot.judged:
        return notes + _note("No interval has been judged yet.")
    if stale:
        return notes + _note("Readings have stopped: what the GPUs do now is not known.")
    heads = "".join(
        f'<th scope="col">{head}</th>'
        for head in ("GPU", "Model", "Workload", "Verdict", "Confidence", "Why", "Evidence", "Next steps")
    )
    rows = "".join(_row(gpu) for gpu in snapshot.gpus)
    return f'{notes}<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(gpu: GpuNow) -> str:
    whose = _plain(titles(gpu.verdict.workloads)) if gpu.verdict else ""
    said = ["not judged yet", "", "", "", ""] if gpu.verdict is None else _said(_judged(gpu.verdict))
    if gpu.up is False:
        said[0] += " (the GPU does not answer)"
    cells = "".join(f"<td><bdi>{escape(cell)}</bdi></td>" for cell in (_name(gpu), _model(gpu), whose, *said))
    return f'<tr title="{escape(_plain(gpu.facts.uuid))}">{cells}</tr>'


def _said(now: dict[str, Any]) -> list[str]:
    evidence = ", ".join(f"{label} {value} {test}" for _, value, test, _, label in now["evidence"])
    named = f"{now['verdict']} / {now['cause']}"
    return [named, f"{now['confidence']:.2f}", now["why"], evidence, " ".join(now["steps"])]


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
