"""Judged intervals to the history file, in a thread of its own.

Whoever judges only puts them into a bounded queue and never waits for the disk. What cannot be
written is kept for a while and tried again; what is too much goes, oldest first, and is counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gpuwhy.source.ladder import name_thread
from gpuwhy.store.database import Bounds, DamagedError, Database, set_aside
from gpuwhy.store.minutes import Cell, Minutes, observed
from gpuwhy.store.types import StoreError
from gpuwhy.verdict.learn import Lessons
from gpuwhy.verdict.types import Verdict

log = logging.getLogger("gpuwhy")

MOST_QUEUED = 64  # intervals that a disk which hangs may hold up
MOST_CELLS = 2000  # of minutes that could not be written
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
CLOSE_S = 1.0  # that the end of the agent waits for the last minute

_Item: TypeAlias = "Sequence[Verdict] | Lessons | None"


@dataclass(frozen=True, slots=True)
class WriterState:
    """Whether history is being kept, and the seconds of GPUs that it had to leave out so far."""

    up: bool
    dropped_s: float


class Writer:
    """Keeps history while it runs; made in one thread and fed from the same."""

    def __init__(
        self,
        place: Callable[[], Path],
        bounds: Bounds,
        *,
        host: str,
        source: str = "live",
        most_workloads: int = 100,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``place`` is asked for the file each time it is opened, and may raise StoreError."""
        self._place = place
        self._bounds = bounds
        self._host = host
        self._source = source
        self._clock = clock
        self._queue: queue.Queue[_Item] = queue.Queue(MOST_QUEUED)
        self._closing = False
        self._minutes = Minutes(most_workloads=most_workloads)
        self._cells: list[Cell] = []
        self._lessons: Lessons | None = None
        self._found: Lessons | None = None
        self._path = Path()
        self._database: Database | None = None
        self._trouble = ""
        self._wait_s = FIRST_WAIT_S
        self._again_s = 0.0  # when a file in trouble is tried again, on the monotonic clock
        self._overflowed_s = 0.0  # counted by whoever hands over
        self._dropped_s = 0.0  # counted by the thread
        self._thread = threading.Thread(target=self._run, name="gpuwhy-store", daemon=True)

    def start(self) -> None:
        """Opens the file, in the thread."""
        self._thread.start()

    def credit(self, verdicts: Sequence[Verdict]) -> None:
        """Hands over one judged interval."""
        self._put(verdicts)

    def keep(self, lessons: Lessons) -> None:
        """Hands over learnt numbers, to be found at the next start."""
        self._put(lessons)

    def found(self) -> Lessons | None:
        """The learnt numbers of before, once, when the file has been opened."""
        if self._found is None:
            return None
        found, self._found = self._found, None
        return found

    def state(self) -> WriterState:
        """How it is now. Safe from any thread."""
        return WriterState(
            up=self._database is not None and not self._trouble,
            dropped_s=self._overflowed_s + self._dropped_s,
        )

    def close(self) -> None:
        """Writes what there is and ends; a file that hangs is left behind after ``CLOSE_S``."""
        if self._thread.ident is None:
            return
        self._closing = True
        self._put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("history: its disk does not answer; the last minute is not kept")

    def _put(self, item: _Item) -> None:
        while True:
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                try:
                    oldest = self._queue.get_nowait()
                except queue.Empty:
                    continue
                if isinstance(oldest, Sequence):
                    self._overflowed_s += observed(oldest)
            else:
                return

    def _run(self) -> None:
        name_thread()
        self._guarded(self._write)
        while not self._closing or not self._queue.empty():
            try:
                item = self._queue.get(timeout=self._wait_s)
            except queue.Empty:
                item = None
            self._guarded(lambda item=item: self._take(item))  # type: ignore[misc]
        self._cells += self._minutes.take()
        self._again_s = 0.0
        self._guarded(self._write)
        if self._cells:
            seconds = sum(cell.observed_s for cell in self._cells)
            log.warning("history: %.0f GPU-seconds could not be written before the end", seconds)
        self._shut()

    def _guarded(self, step: Callable[[], None]) -> None:
        """A mistake of ours costs what was to be written, not history for good."""
        try:
            step()
        except Exception:
            log.exception("history: an error in gpuwhy; please report it")
            self._drop(len(self._cells))
            self._lessons = None

    def _take(self, item: _Item) -> None:
        if isinstance(item, Sequence):
            for verdict in item:
                if not self._minutes.add(verdict):
                    self._dropped_s += observed([verdict])
            self._cells += self._minutes.take({verdict.unix_end_s for verdict in item})
            self._drop(len(self._cells) - MOST_CELLS)
        elif item is not None:
            self._lessons = item
        self._write()

    def _drop(self, count: int) -> None:
        if count > 0:
            self._dropped_s += sum(cell.observed_s for cell in self._cells[:count])
            del self._cells[:count]

    def _write(self) -> None:
        """Writes what there is, unless a trouble is to be waited out."""
        if time.monotonic() < self._again_s:
            return
        try:
            self._write_now()
        except DamagedError as damage:
            self._set_aside(damage)

    def _write_now(self) -> None:
        """The same at once; raises DamagedError only."""
        try:
            if self._database is not None and self._database.replaced():
                log.warning("history: %s was removed or replaced; it is opened anew", self._path)
                self._shut()
            opened = self._database is None
            if self._database is None:
                self._path = self._place()
                self._database = Database(self._path, host=self._host, source=self._source)
                self._found = self._database.lessons()
            if self._cells or self._lessons:
                self._database.write(self._cells, self._lessons)
                self._cells, self._lessons = [], None
                self._database.tidy(self._bounds, self._clock())
            if opened:  # a full disk lets itself be opened, and is said to be kept only once it was written
                log.info("history: kept in %s", self._path)
        except StoreError as error:
            self._say(str(error))
        else:
            self._trouble, self._wait_s = "", FIRST_WAIT_S

    def _set_aside(self, damage: DamagedError) -> None:
        """Moves a damaged file away, and goes on in a new one."""
        self._shut()
        try:
            aside = set_aside(self._path)
            log.error(
                "history: %s is damaged (%s): it is now %s, and a new one is begun", self._path, damage, aside
            )
            self._write_now()
        except StoreError as error:
            self._say(str(error))
        except DamagedError as again:
            self._say(f"{self._path} is damaged again ({again}): look for a failing disk")

    def _say(self, trouble: str) -> None:
        """Says a trouble once, and has it tried again later."""
        self._shut()
        if trouble != self._trouble:
            log.error("history is not kept for now: %s", trouble)
        self._trouble = trouble
        self._again_s = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def _shut(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
