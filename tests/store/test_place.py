"""Where history is kept, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwhy.config import StoreConfig
from gpuwhy.store import StoreError
from gpuwhy.store.place import find, make


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "var" / "gpuwhy"


def test_a_named_file_is_it_and_nothing_else(tmp_path: Path, state: Path) -> None:
    """Its folder is made."""
    options = StoreConfig(path=str(tmp_path / "a" / "b.db"))
    environ = {"STATE_DIRECTORY": str(tmp_path / "service")}
    assert make(options, environ, root=True, state=state) == tmp_path / "a" / "b.db"
    assert (tmp_path / "a").is_dir()
    with pytest.raises(StoreError, match=f"no history at {tmp_path}/a/b.db: "):
        find(options, environ, state=state)


@pytest.mark.parametrize("root", [True, False])
def test_a_service_has_its_own_folder(tmp_path: Path, state: Path, root: bool) -> None:
    """systemd's, the first of several."""
    environ = {"STATE_DIRECTORY": f"{tmp_path}/one:{tmp_path}/two"}
    assert make(StoreConfig(), environ, root=root, state=state) == tmp_path / "one" / "history.db"


def test_the_systems_folder_comes_first_where_it_can_be_made(tmp_path: Path, state: Path) -> None:
    for root in (True, False):
        environ = {"HOME": str(tmp_path / "home")}
        assert make(StoreConfig(), environ, root=root, state=state) == state / "history.db"


def test_a_user_has_a_folder_at_home(tmp_path: Path) -> None:
    """Where the system's cannot be made; root has none, so that its history is not where nobody looks."""
    taken = tmp_path / "var"
    taken.write_text("in the way")
    home, environ = tmp_path / "home", {"HOME": str(tmp_path / "home")}
    assert make(StoreConfig(), environ, root=False, state=taken) == home / ".local/state/gpuwhy/history.db"
    environ["XDG_STATE_HOME"] = "relative"
    assert make(StoreConfig(), environ, root=False, state=taken) == home / ".local/state/gpuwhy/history.db"
    environ["XDG_STATE_HOME"] = str(tmp_path / "xdg")
    assert make(StoreConfig(), environ, root=False, state=taken) == tmp_path / "xdg/gpuwhy/history.db"
    with pytest.raises(
        StoreError, match=r"no folder for history: .*var .File exists.*store\.enabled to false"
    ):
        make(StoreConfig(), environ, root=True, state=taken)


def test_one_that_may_not_be_written_to_is_passed_over(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != state)
    found = make(StoreConfig(), {"HOME": str(tmp_path)}, root=False, state=state)
    assert found == tmp_path / ".local/state/gpuwhy/history.db"


def test_the_first_that_is_there_is_read(tmp_path: Path, state: Path) -> None:
    """Root's agent writes the system's folder; its history is found by every user, also without systemd's hint."""
    environ = {"HOME": str(tmp_path)}
    with pytest.raises(StoreError, match=f"no history at {state}/history.db or {tmp_path}/.local/state"):
        find(StoreConfig(), environ, state=state)
    mine, systems = tmp_path / ".local/state/gpuwhy/history.db", state / "history.db"
    for file in (mine, systems):
        file.parent.mkdir(parents=True)
        file.touch()
        assert find(StoreConfig(), environ, state=state) == file
