"""Where the history file is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwhy.config import StoreConfig
from gpuwhy.store.types import StoreError

NAME = "history.db"
STATE = Path("/var/lib/gpuwhy")


def make(options: StoreConfig, environ: Mapping[str, str], *, root: bool, state: Path = STATE) -> Path:
    """The file that this user's agent writes; a folder that lacks is made.

    Raises:
        StoreError: there is no folder that this user may write to.

    """
    tried = []
    for file in _places(options, environ, root=root, state=state):
        folder = file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            tried.append(f"{folder} ({error.strerror})")
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return file
        tried.append(f"{folder} (not writable)")
    raise StoreError(
        f"no folder for history: {', '.join(tried)}; make one that this user may write to, name a file in "
        "store.path, or set store.enabled to false"
    )


def find(options: StoreConfig, environ: Mapping[str, str], *, state: Path = STATE) -> Path:
    """The file to read: the first that is there, of this host's agent or of one that this user ran.

    Raises:
        StoreError: there is none.

    """
    places = list(_places(options, environ, root=False, state=state))
    for file in places:
        if file.exists():
            return file
    raise StoreError(
        f"no history at {' or '.join(map(str, places))}: let the agent run for a while, or name its file"
    )


def folders(options: StoreConfig, environ: Mapping[str, str], *, state: Path = STATE) -> list[Path]:
    """The state folders that may be used, the one that counts first; whether they are there or not."""
    return [file.parent for file in _places(options, environ, root=False, state=state)]


def _places(options: StoreConfig, environ: Mapping[str, str], *, root: bool, state: Path) -> Iterator[Path]:
    if options.path:
        yield Path(options.path)
        return
    service = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if service:
        yield Path(service, NAME)
        return
    yield state / NAME
    if not root:
        home = environ.get("XDG_STATE_HOME", "")
        # The standard has a relative path ignored.
        folder = Path(home) if home.startswith("/") else Path(environ.get("HOME") or "/", ".local", "state")
        yield folder / "gpuwhy" / NAME
