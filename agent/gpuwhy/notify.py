"""What the agent tells systemd: that it is ready, alive or stopping, what it finds, and how grave a log line is.

Nothing here needs systemd: without its environment variables all of it is silent.
Source: sd_notify(3), sd_watchdog_enabled(3), sd-daemon(3), systemd.exec(5) on $JOURNAL_STREAM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TextIO

# Level numbers of syslog(3).
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


class Notifier:
    """Datagrams to the manager that started this process. None of them blocks or fails the agent."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._clock = clock
        self._period_s = _watchdog_s(environment) / 3  # two may be lost
        self._alive_s = -self._period_s
        self._status = ""

    def ready(self) -> None:
        """The agent serves."""
        self._send("READY=1")

    def alive(self) -> None:
        """The main loop turns; to be called at least once a second or two. Sent as often as the watchdog needs."""
        now = self._clock()
        if self._period_s and now - self._alive_s >= self._period_s:
            self._alive_s = now
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """The line that ``systemctl status`` shows; sent where it changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={' '.join(text.splitlines())}")

    def stopping(self) -> None:
        """The agent ends."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address.startswith(("/", "\0")):
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """The watchdog's period, 0.0 where this process is not watched."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    watched = usec.isascii() and usec.isdigit() and pid in {"", str(os.getpid())}
    return int(usec) / 1e6 if watched else 0.0


class JournalFormatter(logging.Formatter):
    """Each line with its level as the journal reads it; time and unit are the journal's own."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, a prefix before each of its lines: the journal takes each for an entry."""
        return prefixed(super().format(record), record.levelno)


def prefixed(text: str, level: int) -> str:
    """``text`` with the level (of ``logging``) that the journal is to give each of its lines."""
    number = next((number for least, number in _PRIORITIES if level >= least), _DEBUG)
    return "\n".join(f"<{number}>{line}" for line in text.splitlines() or [""])


def is_journal(stream: TextIO | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written to ``stream`` goes to the journal."""
    try:
        device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
        status = os.fstat(stream.fileno()) if stream is not None else None
        return status is not None and (status.st_dev, status.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False
