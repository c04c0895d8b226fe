"""A reader that may be slow, in a thread of its own: whoever asks gets what it said last, at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from gpuwhy.source import SourceError
from gpuwhy.source.ladder import SourceState, name_thread
from gpuwhy.workload.label import clean

log = logging.getLogger("gpuwhy")

EVERY_S = 15.0
LEAST_S = 2.0  # between two reads, whoever asks for one at once
KEPT_S = 300.0  # what was said before: a kubelet that is updated comes back within minutes
LONGEST_REASON = 500  # programs and servers say what they like
HANGS_S = 30.0  # longer than any reader may take


class Reader(Protocol):
    """Reads one table of this host."""

    @property
    def name(self) -> str:
        """One of ``catalog.RESOLVERS``."""

    def present(self) -> bool:
        """Whether there is anything of its kind on this host."""

    @property
    def trouble(self) -> str:
        """What its table lacks, though it answers; "" = nothing."""

    def read(self) -> Any:
        """The table. Raises SourceError with what was tried and the remedy."""


class Refreshed:
    """Reads at every ``EVERY_S``, and at once after ``hasten``.

    ``value`` is what was read last, ``empty`` before that, where there is nothing to read, and when it has
    failed, or hung, for ``KEPT_S``.
    """

    def __init__(self, reader: Reader, empty: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = reader.name
        self._value = empty
        self._reader = reader
        self._empty = empty
        self._clock = clock
        self._state = SourceState(up=False, used=False, reason="not read yet")
        self._began_s: float | None = None
        self._read_s = clock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def value(self) -> Any:
        return self._value if self._clock() - self._read_s <= KEPT_S else self._empty

    def state(self) -> SourceState:
        """How it is; ``used`` is whether there is anything of its kind on this host."""
        began = self._began_s
        if began is not None and self._clock() - began > HANGS_S:
            return SourceState(up=False, reason=f"has not answered for {self._clock() - began:.0f} s")
        return self._state

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"gpuwhy-{self.name}"[:15], daemon=True)
        self._thread.start()

    def hasten(self) -> None:
        """Something new came up that it may know of."""
        self._wake.set()

    def stop(self) -> None:
        """Tells it to end."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Waits for its end no longer than that: a reader may hang."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def refresh(self) -> None:
        """Reads now, in the caller's thread."""
        self._began_s = self._clock()
        try:
            if not self._reader.present():
                self._absent()
                return
            table = self._reader.read()
            self._put(table, SourceState(up=True, reason=clean(self._reader.trouble, LONGEST_REASON)))
        except SourceError as error:
            self._failed(clean(str(error), LONGEST_REASON))
        except Exception as error:
            log.exception("%s could not be read; please report it", self.name)
            self._failed(clean(str(error), LONGEST_REASON) or type(error).__name__)
        finally:
            self._began_s = None

    def _put(self, value: Any, state: SourceState) -> None:
        if state.up and self._state.used and not self._state.up:
            log.info("%s answers again", self.name)
        if state.up and state.reason and state.reason != self._state.reason:
            log.warning("%s: %s", self.name, state.reason)
        if value != self._value:  # whoever holds the old one sees that nothing is new
            self._value = value
        self._state, self._read_s = state, self._clock()

    def _absent(self) -> None:
        # A kubelet that starts again takes its socket away for a moment.
        if self._state.used and self._clock() - self._read_s <= KEPT_S:
            self._failed("it was on this host, and is gone")
        else:
            self._put(self._empty, SourceState(up=False, used=False, reason="not found here"))

    def _failed(self, why: str) -> None:
        if self._state.reason != why:
            log.warning("%s: %s", self.name, why)
        self._state = SourceState(up=False, reason=why)

    def _run(self) -> None:
        name_thread()
        while not self._stopping.is_set():
            self._wake.clear()
            if self._stopping.is_set():  # it may have been told to just before
                return
            self.refresh()
            began = self._clock()
            self._wake.wait(EVERY_S)
            while not self._stopping.is_set() and (left := began + LEAST_S - self._clock()) > 0:
                time.sleep(min(left, 0.1))
