"""What a release consists of, made from a copy of the tree: built twice, installed, and run where no source is."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpuwhy

from ..test_layout import tree_files  # noqa: TID252  one answer to what belongs to the tree
from .conftest import Command

REMEDY = "your distribution's package git"


@dataclass(frozen=True)
class Release:
    """A commit's tree, and what was built of it."""

    tree: Path
    git: str
    archive: Path
    wheel: Path


def dist(tree: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "tools/dist", out],
        env={**os.environ, "DIST_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def release(
    root: Path, require_program: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Release:
    git = require_program("git", REMEDY)
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for file in tree_files(root):
        copy = tree / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")
    for command in (
        ("init", "--quiet"),
        ("add", "--all"),
        (*identity, "commit", "--quiet", "--message=release"),
    ):
        subprocess.run([git, *command], cwd=tree, check=True)
    (tree / "agent/gpuwhy/stray.py").write_text("")  # of somebody who is not done yet
    done = dist(tree, out)
    assert done.returncode == 0, done.stderr
    assert "agent/gpuwhy/stray.py" in done.stderr
    return Release(tree, git, only(out, "*.tar.gz"), only(out, "*.whl"))


@pytest.fixture(scope="module")
def released(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The released wheel with its dependencies, in an environment of its own."""
    place = tmp_path_factory.mktemp("released")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    pip = [place / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
    for step in (("install", "--quiet", release.wheel), ("check",)):
        done = subprocess.run([*pip, *step], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (place / "home").mkdir()
    return Command(place / "venv/bin/gpuwhy", place / "home")


def test_the_same_commit_gives_the_same_bytes(release: Release, tmp_path: Path) -> None:
    """Anybody can build a release again and compare."""
    assert dist(release.tree, tmp_path).returncode == 0
    for file in (release.archive, release.wheel):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_archive_is_the_commit(release: Release) -> None:
    """The source archive holds all that is committed, so that `make test` works in it, and nothing else."""
    listed = subprocess.run(
        [release.git, "ls-files", "-z"], cwd=release.tree, capture_output=True, text=True, check=True
    ).stdout
    with tarfile.open(release.archive) as archive:
        held = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
    assert set(held) == {*filter(None, listed.split("\0")), "PKG-INFO"}
    assert held["tools/dist"].mode & 0o111, "scripts can be run"


def test_the_wheel_holds_what_it_runs_on(release: Release) -> None:
    """Types, pages, recordings, licence and notice are in it; tests and strays are not."""
    with zipfile.ZipFile(release.wheel) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    package = release.tree / "agent"
    tracked = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*")
        if file.is_file() and file.name != "stray.py"
    }
    info = f"gpuwhy-{gpuwhy.__version__}.dist-info"
    added = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"}
    assert names == {name for name in tracked if name.startswith("gpuwhy/")} | {
        f"{info}/{each}" for each in added
    }
    assert {"gpuwhy/py.typed", "gpuwhy/exporter/page/page.js", "gpuwhy/recordings/gemm.jsonl.gz"} <= names


def test_the_metadata_says_what_an_index_needs(release: Release) -> None:
    """Name, version, Python, licence and a description that an index can show."""
    with zipfile.ZipFile(release.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(wheel.read(name))
        kind = email.message_from_bytes(wheel.read(name.replace("METADATA", "WHEEL")))
    assert (about["Name"], about["Version"]) == ("gpuwhy", gpuwhy.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert sorted(about.get_all("License-File")) == ["LICENSE", "NOTICE"]
    assert about["Requires-Python"] == ">=3.10"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().startswith("# gpuwhy")
    assert len(about["Summary"]) < 512  # an index takes no more
    assert kind["Tag"] == "py3-none-any"
    with tarfile.open(release.archive) as archive:
        (info,) = (member for member in archive.getmembers() if member.name.endswith("/PKG-INFO"))
        assert email.message_from_bytes(archive.extractfile(info).read())["Version"] == gpuwhy.__version__


def test_it_runs_where_no_source_is(released: Command) -> None:
    """Installed from the wheel alone it says its version, explains a recording, and completes its commands."""
    assert released("--version").stdout.split() == ["gpuwhy", gpuwhy.__version__]
    explained = released("explain", "--replay", str(released.recordings / "jpeg_2w.jsonl.gz"))
    assert explained.returncode == 0, explained.stderr
    assert "starving / cpu-preprocess" in explained.stdout
    completion = released(_GPUWHY_COMPLETE="bash_source")
    assert completion.returncode == 0, completion.stderr
    assert re.search(r"complete .* gpuwhy$", completion.stdout.strip(), re.MULTILINE)


def test_the_archive_installs_too(release: Release, released: Command) -> None:
    """As pip installs it where an index has no wheel: what it builds of the archive says the same."""
    pip = [released.path.parent / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run(
        [*pip, "--no-deps", "--force-reinstall", release.archive], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert released("--version").stdout.split() == ["gpuwhy", gpuwhy.__version__]
    assert "starving" in released("explain", "--replay", str(released.recordings / "jpeg_2w.jsonl.gz")).stdout


def test_a_tree_that_is_no_clone_is_refused(release: Release, tmp_path: Path) -> None:
    """From an unpacked archive no release is made, since nothing says what is committed; the remedy is named."""
    with tarfile.open(release.archive) as archive:
        top = archive.getnames()[0].partition("/")[0]
        archive.extract(f"{top}/tools/dist", tmp_path)
    done = dist(tmp_path / top, tmp_path / "out")
    assert done.returncode == 1
    assert "make wheel" in done.stderr
