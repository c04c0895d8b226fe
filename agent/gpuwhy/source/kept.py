"""Reading the kernel's files over and over, for little.

On ``/proc`` opening and closing costs three times what reading does, so files stay open while a budget
of descriptors lasts; beyond it they are opened for each read. psutil opens each time, which is why the
host source uses it nowhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Generic, TypeVar

# A refusal that will most likely be repeated: no such file or feature, or no right to read it. Running
# out of descriptors or memory is none.
_LASTING = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_SIZE = 4096
# The kernel may hand out a table in pieces of a page each, cut between lines. No line that is read
# here is longer than 1 KiB, so a piece below this length is the last one.
_MORE_FROM = 3072

MOST_DIGITS = 20  # of a 64-bit number
RETRY_AFTER = 60  # reads of a file that are skipped after a lasting refusal


class Budget:
    """How many more files may stay open."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most


class KeptFile:
    """One file, read from its start each time."""

    __slots__ = ("_budget", "_fd", "_pause", "path")

    def __init__(self, path: str, budget: Budget) -> None:
        self.path = path
        self._budget = budget
        self._fd = -1
        self._pause = 0

    def read(self) -> bytes | None:
        """The whole content, None where it cannot be read; a lasting refusal is retried rarely."""
        if self._pause:
            self._pause -= 1
            return None
        try:
            if self._fd < 0:
                return self._open()
            data = os.pread(self._fd, _SIZE, 0)
            return data if len(data) < _MORE_FROM else _rest(self._fd, data)
        except OSError as error:
            if error.errno in _LASTING:
                self._pause = RETRY_AFTER
            self.close()
            return None

    def close(self) -> None:
        """Gives the descriptor back; the file may be read again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._budget.left += 1

    def _open(self) -> bytes:
        fd = os.open(self.path, _FLAGS)
        if self._budget.left <= 0:
            return _all(fd)
        self._budget.left -= 1
        self._fd = fd
        return _rest(fd, b"")


def read_once(path: str) -> bytes | None:
    """The whole content of a file that will not be read again soon, None where it cannot be read."""
    try:
        return _all(os.open(path, _FLAGS))
    except OSError:
        return None


def _all(fd: int) -> bytes:
    try:
        data = os.pread(fd, _SIZE, 0)
        return data if len(data) < _MORE_FROM else _rest(fd, data)
    finally:
        os.close(fd)


def _rest(fd: int, start: bytes) -> bytes:
    pieces, offset = [start], len(start)
    while piece := os.pread(fd, 16 * _SIZE, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def entries(folder: str) -> set[str] | None:
    """The names in a folder, None where it cannot be listed."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208  thousands of Path objects cost more than the listing
    except OSError:
        return None


def whole(text: bytes) -> int | None:
    """A counter as the kernel prints it: digits of a 64-bit number; None for anything else."""
    return int(text) if text.isdigit() and len(text) <= MOST_DIGITS else None


Member = TypeVar("Member")


class Turn(Generic[Member]):
    """Chooses from a crowd that changes, so that everybody's turn comes."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: Iterator[Member] = iter(())

    def choose(self, crowd: Collection[Member], most: int) -> list[Member]:
        """All of the crowd where that is no more than ``most``, else at most so many, whoever is next."""
        if len(crowd) <= most:
            return list(crowd)
        chosen = list(islice(self._order, most))
        if len(chosen) < most:
            self._order = iter(list(crowd))
            chosen += islice(self._order, most - len(chosen))
        return [member for member in chosen if member in crowd]
