"""What containers are called, from what their engines keep on disk; no engine is asked.

Docker keeps a file for each container, containers/storage, which Podman uses, one list of all. Containers
that users run without root are kept in their homes and left out.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gpuwhy.source.bounded import folders, read_bounded
from gpuwhy.source.reading import SourceError

_ID = re.compile(r"[0-9a-f]{64}")
_MOST_CONTAINERS = 4096
_MOST_CONFIG = 1 << 20
_MOST_LIST = 1 << 24
_MOST_TEXT = 1024
_LISTS = (
    "containers.json",
    "volatile-containers.json",
)  # the second holds those that are removed when they end

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Container:
    """``image`` is the name that it was started by. ``project`` and ``service`` are compose's."""

    id: str
    name: str = ""
    image: str = ""
    project: str = ""
    service: str = ""


class Containers:
    """``root`` is the host's root, "/" or where that is mounted; what is not there is looked for below "/"."""

    name = "containers"
    trouble = ""

    def __init__(self, root: Path) -> None:
        self._given = self._root = root
        self._known: dict[Path, tuple[_Stamp, dict[str, Container]]] = {}

    def present(self) -> bool:
        """Whether an engine keeps containers here."""
        for root in (self._given, Path("/")):
            self._root = root
            if self._is_here():
                return True
        return False

    def _is_here(self) -> bool:
        return _is_folder(self._docker()) or any(_is_folder(folder) for folder in self._storages())

    def read(self) -> dict[str, Container]:
        """All containers by id, also those that do not run.

        Raises:
            SourceError: nothing of what is there may be read.
        """
        found: dict[str, Container] = {}
        known: dict[Path, tuple[_Stamp, dict[str, Container]]] = {}
        refusals: list[OSError] = []
        answered = False
        docker = self._docker()
        try:
            files = [docker / name / "config.v2.json" for name in _ids(docker)]
            answered = bool(files)
        except OSError as error:
            files = []
            if not isinstance(error, FileNotFoundError):
                refusals.append(error)
        files += [folder / name for folder in self._storages() for name in _LISTS]
        for file in files:
            try:
                known[file] = self._file(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                refusals.append(error)
                continue
            answered = True
            found.update(islice(known[file][1].items(), _MOST_CONTAINERS))
        if refusals and not answered:
            raise SourceError(
                f"containers: {refusals[0].filename}: {refusals[0].strerror}; names of containers need root,"
                " or read access to the folder of the container engine"
            )
        self._known = known
        return found

    def _file(self, file: Path) -> tuple[_Stamp, dict[str, Container]]:
        """What a file says; it is read again only when it has changed."""
        stat = file.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        known = self._known.get(file)
        if known and known[0] == stamp:
            return known
        if file.name in _LISTS:
            return stamp, _listed(_json(read_bounded(file, _MOST_LIST)))
        return stamp, _docker(_json(read_bounded(file, _MOST_CONFIG)))

    def _docker(self) -> Path:
        try:
            config = _json(read_bounded(self._root / "etc/docker/daemon.json", _MOST_CONFIG))
        except OSError:
            config = None
        elsewhere = _text(config, "data-root")
        data = elsewhere if elsewhere.startswith("/") else "/var/lib/docker"
        return self._root / data.strip("/") / "containers"

    def _storages(self) -> list[Path]:
        storage = self._root / "var/lib/containers/storage"
        return [storage / name for name in sorted(folders(storage, 100)) if name.endswith("-containers")]


def _ids(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MOST_CONTAINERS) if _ID.fullmatch(entry.name)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _json(data: bytes) -> Any:
    """The value, None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _text(value: Any, name: str) -> str:
    """A string in an object, "" where there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found[:_MOST_TEXT].replace("\0", "") if isinstance(found, str) else ""


def _docker(config: Any) -> dict[str, Container]:
    container = _text(config, "ID")
    if not _ID.fullmatch(container):
        return {}
    inner = config.get("Config")
    labels = inner.get("Labels") if isinstance(inner, dict) else None
    return {
        container: Container(
            id=container,
            name=_text(config, "Name").removeprefix("/"),
            image=_text(inner, "Image"),
            project=_text(labels, "com.docker.compose.project"),
            service=_text(labels, "com.docker.compose.service"),
        )
    }


def _listed(rows: Any) -> dict[str, Container]:
    found: dict[str, Container] = {}
    for row in rows if isinstance(rows, list) else ():
        container = _text(row, "id")
        if not _ID.fullmatch(container):
            continue
        names = row.get("names")
        first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
        about = _json(_text_whole(row, "metadata"))
        found[container] = Container(
            id=container, name=first[:_MOST_TEXT] or _text(about, "name"), image=_text(about, "image-name")
        )
    return found


def _text_whole(value: Any, name: str) -> bytes:
    found = value.get(name)
    return found.encode(errors="replace") if isinstance(found, str) else b""
