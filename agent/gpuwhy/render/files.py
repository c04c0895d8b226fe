"""Rendered files: writing them, and telling which of those on disk are not what the tables say."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwhy.config import RenderConfig

_MARK = "Rendered by `gpuwhy render`"


@dataclass(frozen=True, slots=True)
class Target:
    """One rendered file: its path from the top of the tree, and what returns its text under the options.

    The text ends with a newline, starts with ``notice`` where its format has comments, and is the same at
    every call.
    """

    path: str
    text: Callable[[RenderConfig], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """A file on disk that is not what is rendered. ``diff`` is empty unless it changed."""

    path: str
    kind: Literal["changed", "missing", "orphan"]
    diff: str = ""

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"{self.path} differs from what is rendered; run `gpuwhy render`\n{self.diff}"
        if self.kind == "missing":
            return f"{self.path} is missing; run `gpuwhy render`"
        return f"{self.path} is rendered by nothing; delete it"


def notice(source: str) -> str:
    """What the first line of a rendered file says, in a comment of its format; ``source`` is what to edit."""
    return f"{_MARK} from {source}: edit that and run it again, not this file."


class NotOursError(Exception):
    """Files are in the way that nothing here rendered; the message names them and the remedy."""


def write(files: Mapping[str, str], out: Path) -> list[Path]:
    """Bring files below ``out`` to these texts; returns those that were not so already.

    Raises NotOursError, and writes nothing, where a file would be replaced that was not rendered.
    """
    stale = {
        path: out / path
        for path, text in files.items()
        if not (out / path).is_file() or (out / path).read_bytes() != text.encode()
    }
    foreign = [
        str(file) for file in stale.values() if file.exists() and not (file.is_file() and _is_marked(file))
    ]
    if foreign:
        raise NotOursError(
            f"{', '.join(foreign)}: there already, and not rendered by gpuwhy: name another folder with --out, or "
            "move it away"
        )
    written = []
    for path, file in stale.items():
        text = files[path]
        file.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: Prometheus may read it at any time.
        part = file.with_name(f".{file.name}.part")
        try:
            part.write_bytes(text.encode())
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        written.append(file)
    return written


def check(files: Mapping[str, str], out: Path, whole_folders: Iterable[str] = ()) -> list[Difference]:
    """Every difference below ``out``, in the order of paths.

    An orphan is a file that says it is rendered, beside one that is, or any file in one of
    ``whole_folders``, to which people add nothing.
    """
    differences = [Difference(path, "orphan") for path in _orphans(files, out, whole_folders)]
    for path, text in files.items():
        file = out / path
        if not file.is_file():
            differences.append(Difference(path, "missing"))
        elif (content := file.read_bytes()) != text.encode():
            differences.append(Difference(path, "changed", _diff(path, content, text)))
    return sorted(differences, key=lambda difference: difference.path)


def _diff(path: str, content: bytes, text: str) -> str:
    on_disk = content.decode("utf-8", "backslashreplace")
    lines = difflib.unified_diff(
        # Not splitlines(): it would hide a changed line ending.
        [f"{line!r}\n" if "\r" in line else f"{line}\n" for line in on_disk.split("\n")],
        [f"{line}\n" for line in text.split("\n")],
        f"{path} on disk",
        f"{path} rendered",
    )
    return "".join(lines)


def _orphans(files: Mapping[str, str], out: Path, whole_folders: Iterable[str]) -> Iterator[str]:
    found = {file for folder in whole_folders for file in (out / folder).rglob("*") if file.is_file()}
    for folder in {(out / path).parent for path in files}:
        found |= {file for file in folder.glob("*") if file.is_file() and _is_marked(file)}
    for file in found:
        path = file.relative_to(out).as_posix()
        if path not in files:
            yield path


def _is_marked(file: Path) -> bool:
    # JSON has no comments: there the description says it.
    lines = 10 if file.suffix == ".json" else 1
    with file.open("rb") as opened:
        return any(_MARK.encode() in opened.readline(1000) for _ in range(lines))
