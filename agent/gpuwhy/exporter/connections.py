"""Who gets a thread: connections wait for their first message and take one of a bounded number of places.

One thread accepts and never waits for a client. A connection costs a file descriptor and no thread until its
first message is whole; then it takes a place, which is a thread of its own. When the waiting room is full, the
address that has most there loses its oldest. When the places are full, one that has lost its right to its place
makes room: first those that never completed a request, then those quiet longest. An address that holds more than
half of the places loses them to others at once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

# How long a full house leaves alone a connection that asks nothing, and one that is being answered.
NEW_S, ANSWERED_S = 0.25, 1.0
MESSAGE_BYTES = 4096  # of a first message that are looked at; a longer one is as good as whole
_AT_ONCE = 16  # so that nobody waits long for a look
_NO_FILES_S = 0.05  # to wait when the process has no file descriptor left
_POLL_S = 5.0  # so that a round ends now and then where nobody comes
_ALIVE_S = 15.0
_FAILED_S, _MOST_FAILED_S = 0.05, 1.0  # the pause after a round that failed, twice as long each time
_SAY_AGAIN_S = 60.0


@dataclass(eq=False)
class Place:
    """One connection with its thread; ``serve`` may put a TLS connection in for the one it got."""

    connection: socket.socket
    address: Any
    origin: bytes
    _changed: Callable[[], None]
    quiet_since_s: float = field(default_factory=time.monotonic)
    keeps_s: float = NEW_S
    has_asked: bool = False
    dropped: bool = False
    thread: threading.Thread | None = None

    def asked(self) -> None:
        """A whole request came and is being answered."""
        self.quiet_since_s, self.keeps_s, self.has_asked = time.monotonic(), ANSWERED_S, True

    def answered(self) -> None:
        """The answer is done; what comes next is up to the client."""
        self.quiet_since_s, self.keeps_s = time.monotonic(), NEW_S
        self._changed()

    def drop(self) -> None:
        """End the connection: its thread wakes from whatever it waits for."""
        self.dropped = True
        with contextlib.suppress(OSError):
            # Not TLS's own, which would pull its state from under the thread that reads.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A connection without a thread, and until when its first message has to be whole."""

    connection: socket.socket
    address: Any
    origin: bytes
    until_s: float


class Connections:
    """Accepts on ``listener`` and runs ``serve`` for each connection that asks, in at most ``places`` threads.

    At most ``places + waiting`` connections are open. ``first_s`` is the time for the first message, and
    ``is_whole`` says of its bytes so far whether that is all of it. The connection is closed when ``serve`` returns.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[Place], None],
        is_whole: Callable[[bytes], bool],
        *,
        places: int,
        waiting: int,
        first_s: float,
    ) -> None:
        self._listener = listener
        self._serve, self._is_whole = serve, is_whole
        self._most_places, self._most_waiting, self._first_s = places, waiting, first_s
        self._places: set[Place] = set()
        self._lock = threading.Lock()  # guards _places
        self._quiet: dict[int, _Waiting] = {}  # by file descriptor; oldest first, as is _ready
        self._ready: list[_Waiting] = []
        self._origins: Counter[bytes] = Counter()  # of _quiet
        self._poll = select.epoll()
        self._wake_up, self._woken = socket.socketpair()
        self._listening = self._wants_place = False
        self._closing = threading.Event()
        self._turned_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="gpuwhy-http", daemon=True)

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._wake_up.setblocking(False)
        self._poll.register(self._woken, select.EPOLLIN)
        self._turned_s = time.monotonic()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether a round of accepting has gone well in the last 15 s."""
        return self._thread.is_alive() and time.monotonic() - self._turned_s < _ALIVE_S

    def stop(self) -> None:
        """Stop listening, end all connections and wait for their threads, up to 5 s for each."""
        self._closing.set()
        self._wake()
        self._thread.join()
        self._listener.close()
        for waiting in (*self._quiet.values(), *self._ready):
            waiting.connection.close()
        with self._lock:
            threads = [place.thread for place in self._places if place.thread is not None]
            for place in self._places:
                place.drop()
        for thread in threads:
            # A status that never returns must not keep the agent from ending.
            thread.join(timeout=5)
        self._poll.close()
        self._wake_up.close()
        self._woken.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_up.send(b"\0")

    def _changed(self) -> None:
        if self._wants_place:
            self._wake()

    def _run(self) -> None:
        pause_s, said_s = _FAILED_S, -math.inf
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception:
                if time.monotonic() - said_s >= _SAY_AGAIN_S:
                    log.exception("accepting connections failed; it goes on")
                    said_s = time.monotonic()
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _MOST_FAILED_S)
            else:
                self._turned_s = time.monotonic()
                pause_s = _FAILED_S

    def _turn(self) -> None:
        wait_s = min(self._seat(), _POLL_S)
        if self._quiet:
            left_s = max(0.0, next(iter(self._quiet.values())).until_s - time.monotonic())
            wait_s = min(wait_s, left_s)
        self._listen(on=len(self._ready) < self._most_waiting)
        called = False
        for file, _ in self._poll.poll(wait_s):
            if file == self._listener.fileno():
                called = True
            elif file == self._woken.fileno():
                self._woken.recv(4096)
            elif (asked := self._has_asked(self._quiet[file].connection)) is not None:
                self._settle(self._take(file), asked=asked)
        now_s = time.monotonic()
        while self._quiet and next(iter(self._quiet.values())).until_s <= now_s:
            self._take(next(iter(self._quiet))).connection.close()
        if called:
            self._accept()

    def _listen(self, *, on: bool) -> None:
        """Where everybody in the waiting room has asked, further clients wait in the kernel."""
        if on != self._listening:
            if on:
                self._poll.register(self._listener, select.EPOLLIN)
            else:
                self._poll.unregister(self._listener)
            self._listening = on

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if len(self._ready) >= self._most_waiting:
                return
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no file descriptor is left, or the client is gone already
                log.debug("a connection could not be accepted: %s", error)
                if self._quiet:
                    self._take(next(iter(self._quiet))).connection.close()
                    return
                with self._lock:
                    if self._places:
                        self._make_room(
                            _origin(("0.0.0.0", 0)), Counter(each.origin for each in self._places)
                        )
                time.sleep(_NO_FILES_S)
                return
            waiting = _Waiting(connection, address, _origin(address), time.monotonic() + self._first_s)
            asked = self._has_asked(connection)
            if asked is not None:
                self._settle(waiting, asked=asked)
                continue
            while self._quiet and len(self._quiet) + len(self._ready) >= self._most_waiting:
                self._push_out()
            self._quiet[connection.fileno()] = waiting
            self._origins[waiting.origin] += 1
            # By edge: a part of a message is looked at once. What came since the look above counts as one.
            self._poll.register(connection, select.EPOLLIN | select.EPOLLET)

    def _push_out(self) -> None:
        """Close the oldest of the address that has most; one whose message came meanwhile is no longer quiet."""
        most = max(self._origins, key=self._origins.__getitem__)
        file = next(file for file, waiting in self._quiet.items() if waiting.origin == most)
        waiting = self._take(file)
        self._settle(waiting, asked=self._has_asked(waiting.connection) or False)

    def _settle(self, waiting: _Waiting, *, asked: bool) -> None:
        if asked:
            self._ready.append(waiting)
        else:
            waiting.connection.close()

    def _take(self, file: int) -> _Waiting:
        """Out of the quiet ones."""
        self._poll.unregister(file)
        waiting = self._quiet.pop(file)
        self._origins[waiting.origin] -= 1
        if not self._origins[waiting.origin]:
            del self._origins[waiting.origin]
        return waiting

    def _has_asked(self, connection: socket.socket) -> bool | None:
        """Whether its first message is whole; None where more may come, False where the client is gone."""
        try:
            content = connection.recv(MESSAGE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return False
        if not content:
            return False
        return True if len(content) == MESSAGE_BYTES or self._is_whole(content) else None

    def _seat(self) -> float:
        """Give places to those that have asked; the seconds until to try again, infinite where nobody waits."""
        self._wants_place = bool(self._ready)  # before looking, so that no change of a place is missed
        for _ in range(_AT_ONCE):
            if not self._ready:
                self._wants_place = False
                return math.inf
            with self._lock:
                held = Counter(place.origin for place in self._places)
                waiting = min(self._ready, key=lambda each: held[each.origin])
                if len(self._places) >= self._most_places:
                    left_s = self._make_room(waiting.origin, held)
                    if left_s > 0:
                        return left_s
                self._ready.remove(waiting)
                place = Place(waiting.connection, waiting.address, waiting.origin, self._changed)
                place.thread = threading.Thread(
                    target=self._serve_and_leave, args=(place,), name="gpuwhy-http-connection", daemon=True
                )
                self._places.add(place)
            try:
                place.thread.start()
            except RuntimeError as error:  # the system has no thread left
                log.warning("a connection got no thread: %s", error)
                self._leave(place)
        return 0.0

    def _make_room(self, origin: bytes, held: Counter[bytes]) -> float:
        """Drop one for a newcomer from ``origin``; or the seconds until one can be."""
        now_s = time.monotonic()
        greedy, places = held.most_common(1)[0]
        shares = origin == greedy or places <= self._most_places // 2

        def left_s(place: Place) -> float:
            being_answered = place.keeps_s > NEW_S
            keeps_s = place.keeps_s if shares or being_answered or place.origin != greedy else 0.0
            return place.quiet_since_s + keeps_s - now_s

        lost = [place for place in self._places if left_s(place) <= 0]
        if not lost:
            return min(map(left_s, self._places))
        first = min(lost, key=lambda place: (place.has_asked, place.quiet_since_s))
        self._places.discard(first)
        first.drop()
        return 0.0

    def _serve_and_leave(self, place: Place) -> None:
        try:
            self._serve(place)
        finally:
            self._leave(place)

    def _leave(self, place: Place) -> None:
        # First out of the set: a place in it may be dropped, which must not hit who gets its file descriptor next.
        with self._lock:
            self._places.discard(place)
        _end(place.connection)
        self._changed()


def _origin(address: Any) -> bytes:
    """Whom an address stands for: a host in IPv4, and the network of 64 bits, which one host may fill, in IPv6."""
    host = address[0].partition("%")[0]
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host)
    return packed[12:] if packed[:12] == b"\0" * 10 + b"\xff\xff" else packed[:8]


def end_tls(connection: socket.socket) -> None:
    """Say goodbye in TLS, where it is spoken, without waiting for the other side to say it too."""
    if isinstance(connection, ssl.SSLSocket):
        with contextlib.suppress(OSError, ValueError):
            connection.settimeout(0)
            connection.unwrap()


def _end(connection: socket.socket) -> None:
    """Close a connection for good."""
    end_tls(connection)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    connection.close()
