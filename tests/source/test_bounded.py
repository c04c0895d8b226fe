"""Files that others write: no more than asked for, and no waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwhy.source.bounded import folders, read_bounded


@pytest.mark.parametrize("most", [0, 1, 65536, 65537, 200_000])
def test_no_more_than_asked_for(tmp_path: Path, most: int) -> None:
    (tmp_path / "file").write_bytes(bytes(range(250)) * 600)
    assert read_bounded(tmp_path / "file", most) == (bytes(range(250)) * 600)[:most]


def test_a_pipe_that_nobody_writes_to_is_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_bounded(tmp_path / "pipe", 100) == b""


def test_what_cannot_be_read_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none", 100)


def test_folders(tmp_path: Path) -> None:
    # Control groups have some sixty files each.
    for number in range(60):
        (tmp_path / f"file{number}").touch()
    for name in "abc":
        (tmp_path / name).mkdir()
    assert sorted(folders(tmp_path, 10)) == ["a", "b", "c"]
    assert len(folders(tmp_path, 2)) == 2
    assert folders(tmp_path / "none", 10) == []
