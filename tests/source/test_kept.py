"""Files that stay open while a budget lasts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpuwhy.source.kept import Budget, KeptFile, Turn, read_once, whole


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_budget_bounds_what_stays_open(tmp_path: Path) -> None:
    """Files beyond the budget are read all the same, and closed; a file given back makes room."""
    budget, before = Budget(2), descriptors()
    for name in "abc":
        (tmp_path / name).write_text(name)
    files = [KeptFile(str(tmp_path / name), budget) for name in "abc"]
    for _ in range(3):
        assert [file.read() for file in files] == [b"a", b"b", b"c"]
        assert (budget.left, descriptors() - before) == (0, 2)
    files[0].close()
    files[2].read()
    assert (budget.left, descriptors() - before) == (0, 2)
    for file in files:
        file.close()
        file.close()
    assert (budget.left, descriptors() - before) == (2, 0)


@pytest.mark.parametrize("size", [0, 1, 3071, 3072, 4095, 4096, 4097, 65536, 200_000])
def test_files_are_read_whole_and_anew(tmp_path: Path, size: int) -> None:
    """Every size is read to its end, each time from its start."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    for budget in (Budget(0), Budget(1)):
        file = KeptFile(str(path), budget)
        for _ in range(2):
            assert file.read() == b"x" * size
        file.close()
    assert read_once(str(path)) == b"x" * size


def test_a_process_that_has_ended_is_gone_for_an_open_file() -> None:
    """A file of a process that has ended says nothing, and gives its descriptor back."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    budget = Budget(1)
    file = KeptFile(f"/proc/{pid}/stat", budget)
    assert (file.read() or b"").startswith(b"%d (" % pid)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert file.read() is None
    assert budget.left == 1


def test_running_out_of_descriptors_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may go at the next read is tried at the next read."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    file = KeptFile(str(path), Budget(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "too many open files")))
        assert file.read() is None
    assert file.read() == b"x"
    file.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0),
        (b"18446744073709551615", 2**64 - 1),
        (b"", None),
        (b"-1", None),
        (b"1_0", None),
        (b"9" * 21, None),
    ],
)
def test_whole(text: bytes, value: int | None) -> None:
    """Only digits are a counter."""
    assert whole(text) == value


def test_everybodys_turn_comes() -> None:
    """However the crowd changes, nobody who stays waits longer than a round."""
    turn, crowd, waited = Turn(), dict.fromkeys(range(50)), dict.fromkeys(range(50), 0)
    for step in range(300):
        crowd[1000 + step] = None
        crowd.pop(1000 + step - 20, None)
        chosen = turn.choose(crowd, 7)
        assert len(chosen) <= 7
        assert set(chosen) <= crowd.keys()
        for member in waited:
            waited[member] = 0 if member in chosen else waited[member] + 1
            assert waited[member] < 3 * (70 // 7)
    assert sorted(turn.choose(range(5), 7)) == [0, 1, 2, 3, 4]
