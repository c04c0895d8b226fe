"""HTTP answers that have to come in time, however slowly they drip."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


def left(ends_s: float) -> float:
    """The seconds until a deadline on the monotonic clock.

    Raises:
        TimeoutError: it has passed.
    """
    seconds = ends_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class Timed(io.RawIOBase):
    """A socket's bytes until a deadline. It passes for a socket with http.client."""

    def __init__(self, sock: socket.socket, ends_s: float) -> None:
        self._sock = sock
        self._ends_s = ends_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What http.client asks of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(left(self._ends_s))
        return self._sock.recv_into(buffer)
