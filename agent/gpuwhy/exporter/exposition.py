"""Renders the latest snapshot for scrapes; a scrape reads bytes that are already there."""

from __future__ import annotations

import gzip
import logging
import math
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from gpuwhy import __version__
from gpuwhy.catalog import PREFIX, SERIES_BY_NAME, Series
from gpuwhy.exporter.snapshot import Family, Snapshot
from gpuwhy.exporter.textformat import Format, family_header, format_value, sample_prefix

log = logging.getLogger(__name__)

WANTED_S = 300.0  # a format asked for within this time is rendered ahead of the next scrape
_END = {Format.TEXT: b"", Format.OPENMETRICS: b"# EOF\n"}
_openmetrics_latest: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest


@dataclass(frozen=True, slots=True)
class _Body:
    """The sample lines of one snapshot, the same in every format."""

    snapshot: Snapshot
    blocks: tuple[tuple[Series, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Page:
    """One answer: rendered from ``snapshot`` at ``rendered_s``; ``stale`` left out what speaks of now."""

    snapshot: Snapshot | None
    stale: bool
    rendered_s: float
    content: bytes


class Exposition:
    """Holds the latest snapshot and answers scrapes from it, in text 0.0.4 and OpenMetrics 1.0.

    ``publish`` only swaps a reference, so the sampling thread never waits for a rendering. Between
    ``start`` and ``stop`` a thread renders each snapshot in the formats asked for in the last five
    minutes; without it, or in another format, the first scrape renders. Safe from any thread.

    Nothing that is in a snapshot makes a scrape fail: a bad value costs its sample, a failing
    family costs that family, and a snapshot that cannot be read is answered by the last good one.
    ``clock`` is the monotonic clock of ``Snapshot.taken_s``; ``process`` holds the collectors of
    the agent's own process.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, process: CollectorRegistry | None = None
    ) -> None:
        self._clock = clock
        if process is None:
            process = CollectorRegistry()
            ProcessCollector(registry=process)
        self._process = process
        self._latest: Snapshot | None = None
        self._scraped = 0
        self._asked = {(wanted, compressed): -math.inf for wanted in Format for compressed in (False, True)}
        self._published = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards what follows
        self._tried: Snapshot | None = None
        self._body: _Body | None = None
        self._pages: dict[tuple[Format, bool], _Page] = {}
        self._complaints: set[str] = set()
        self._dropped = 0
        self._errors = 0

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot, None before the first."""
        return self._latest

    @property
    def stale(self) -> bool:
        """Whether the latest snapshot is too old to speak about now."""
        return self._latest is not None and self._latest.stale(self._clock())

    @property
    def scraped(self) -> int:
        """``Snapshot.judged`` of the newest snapshot that a scrape was answered from, 0 before the first."""
        return self._scraped

    def publish(self, snapshot: Snapshot) -> None:
        """Answer scrapes from this snapshot from now on."""
        self._latest = snapshot
        self._published.set()

    def scrape(self, wanted: Format, *, compressed: bool = False) -> bytes:
        """The exposition, gzip-compressed if asked for."""
        now_s = self._clock()
        self._asked[wanted, compressed] = now_s
        page = self._pages.get((wanted, compressed))
        if page is None or not self._current(page, now_s):
            with self._lock:
                self._render(wanted, compressed)
                page = self._pages[wanted, compressed]
        if page.snapshot is not None:
            self._scraped = max(self._scraped, page.snapshot.judged)
        return page.content

    def start(self) -> None:
        """Render ahead of scrapes from now on."""
        self._stopping = False
        self._thread = threading.Thread(target=self._render_ahead, name="gpuwhy-render", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop rendering ahead; scrapes are still answered."""
        if self._thread is not None:
            self._stopping = True
            self._published.set()
            self._thread.join()
            self._thread = None

    def _render_ahead(self) -> None:
        while not self._stopping:
            self._published.wait()
            self._published.clear()
            self._render_wanted()

    def _render_wanted(self) -> None:
        oldest_s = self._clock() - WANTED_S
        for variant, asked_s in self._asked.items():
            if asked_s >= oldest_s:
                with self._lock:
                    self._render(*variant)

    def _current(self, page: _Page, now_s: float) -> bool:
        snapshot = self._latest
        if snapshot is None or page.snapshot is not snapshot:
            return False
        # The process metrics go on while the snapshots have stopped coming.
        return page.stale == snapshot.stale(now_s) and now_s - page.rendered_s < 2 * snapshot.interval_s

    def _render(self, wanted: Format, compressed: bool) -> bytes:
        snapshot = self._latest
        now_s = self._clock()
        page = self._pages.get((wanted, compressed))
        if page is not None and self._current(page, now_s):
            return page.content
        if compressed:
            # Level 1: the default takes ten times as long to save a few kilobytes.
            content = gzip.compress(self._render(wanted, compressed=False), compresslevel=1, mtime=0)
        else:
            content = self._plain(snapshot, wanted, now_s)
        stale = snapshot is not None and snapshot.stale(now_s)
        self._pages[wanted, compressed] = _Page(snapshot, stale, now_s, content)
        return content

    def _plain(self, snapshot: Snapshot | None, wanted: Format, now_s: float) -> bytes:
        if snapshot is not None and snapshot is not self._tried:
            self._tried = snapshot
            try:
                self._body = self._read(snapshot)
            except Exception:
                if self._count_error("snapshot"):
                    log.exception("a snapshot could not be rendered; the last good one is served")
        parts: list[bytes] = []
        if self._body is not None:
            stale = self._body.snapshot.stale(now_s)
            for series, block in self._body.blocks:
                if not (stale and series.life in {"now", "driver"}):
                    parts += (_HEADERS[series.name][wanted], block)
        process = self._process_metrics(wanted)
        for stem, prefix, value in self._own():
            line = f"{prefix} {format_value(value)}\n".encode()
            parts += (_HEADERS[PREFIX + stem][wanted], line)
        return b"".join((*parts, process, _END[wanted]))

    def _read(self, snapshot: Snapshot) -> _Body:
        blocks = []
        for family in snapshot.families:
            try:
                block = self._block(family)
            except Exception:
                if self._count_error(family.series.name):
                    log.exception("%s could not be rendered and is left out", family.series.name)
                continue
            if block:
                blocks.append((family.series, block))
        return _Body(snapshot, tuple(blocks))

    def _block(self, family: Family) -> bytes:
        lines = []
        for prefix, value in family.samples:
            try:
                finite = math.isfinite(value)
            except (TypeError, ValueError, OverflowError):
                finite = False
            if finite:
                lines.append(f"{prefix} {format_value(value)}\n")
            else:
                self._dropped += 1
        return "".join(lines).encode()

    def _process_metrics(self, wanted: Format) -> bytes:
        try:
            if wanted is Format.OPENMETRICS:
                return _openmetrics_latest(self._process).removesuffix(_END[wanted])
            return prometheus_client.generate_latest(self._process)
        except Exception:
            if self._count_error("process"):
                log.exception("the agent's own process metrics could not be read and are left out")
            return b""

    def _count_error(self, piece: str) -> bool:
        """Whether it is this piece's first error: it would fill the log with every interval."""
        self._errors += 1
        first = piece not in self._complaints
        self._complaints.add(piece)
        return first

    def _own(self) -> tuple[tuple[str, str, float], ...]:
        dropped = self._dropped + (self._body.snapshot.dropped if self._body is not None else 0)
        return (
            ("values_dropped_total", f"{PREFIX}values_dropped_total", dropped),
            ("exposition_errors_total", f"{PREFIX}exposition_errors_total", self._errors),
            ("build_info", _BUILD, 1.0),
        )


_HEADERS = {
    name: {wanted: family_header(series, wanted).encode() for wanted in Format}
    for name, series in SERIES_BY_NAME.items()
}
_BUILD = sample_prefix(f"{PREFIX}build_info", {"version": __version__, "python": platform.python_version()})
