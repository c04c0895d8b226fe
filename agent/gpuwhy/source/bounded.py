"""Reading files that others write, never more of them than is worth it."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

# What stands in the file's place may be a pipe that nobody writes to.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PIECE = 1 << 16


def read_bounded(path: str | Path, most: int) -> bytes:
    """The first ``most`` bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    pieces: list[bytes] = []
    left = most
    fd = os.open(path, _FLAGS)
    try:
        while left > 0 and (piece := os.read(fd, min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(fd)
    return b"".join(pieces)


def folders(path: str | Path, most: int) -> list[str]:
    """The names of at most ``most`` folders in a folder, none where it cannot be listed."""
    try:
        with os.scandir(path) as found:
            return list(islice((entry.name for entry in found if entry.is_dir()), most))
    except OSError:
        return []
