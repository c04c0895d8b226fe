"""`make demo`, as a person starts and ends it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .demo import AGENTS_PORT, HOSTS, ROOT
from .programs import get, wait_for

# Agents, Prometheus, Alertmanager, and the shell that ends them where the demo is killed.
PROGRAMS = len(HOSTS) + 3
SECONDS = "110"  # it ends by itself before pytest would end the test


class Demo:
    """A running tools/demo, with a folder of its own for what it makes."""

    def __init__(self, root: Path, made: Path) -> None:
        self.made = made
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [root / "tools/demo", "--seconds", SECONDS],
            env={**os.environ, "DEMO_PYTHON": sys.executable, "TMPDIR": str(made)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += iter(self.process.stdout.readline, "")

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def says(self, text: str, seconds: float = 60) -> None:
        wait_for(lambda: text in self.text or self.process.poll() is not None, seconds)
        assert text in self.text, self.text

    def children(self) -> dict[str, psutil.Process]:
        """Its programs by their command lines."""
        found = {}
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # one that ends now has no command line
                found[" ".join(each.cmdline())] = each
        return found

    def link(self, name: str) -> str:
        """The page that it shows for a program."""
        found = re.search(rf"^  {name} +(http://\S+)", self.text, re.MULTILINE)
        assert found, self.text
        return found[1]

    def url(self, name: str) -> str:
        """The address of that program."""
        return "/".join(self.link(name).split("/")[:3])

    def ended(self) -> tuple[int, str]:
        """Its exit code and all that it said, once it has ended."""
        code = self.process.wait(30)
        self._reader.join()
        return code, self.text


@pytest.fixture
def demo(root: Path, prometheus_program: str, alertmanager_program: str, tmp_path: Path) -> Iterator[Demo]:
    running = Demo(root, tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.wait(30)
    running._reader.join()
    running.process.stdout.close()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that the demo would have liked."""
    with contextlib.closing(socket.socket()) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # by somebody else: as good
            holder.bind(("127.0.0.1", AGENTS_PORT))
            holder.listen()
        yield AGENTS_PORT


def nothing_is_left(demo: Demo, children: dict[str, psutil.Process]) -> bool:
    left = [each for each in children.values() if each.is_running()]
    for each in left:  # by this test neither
        each.kill()
    return not left and not list(demo.made.iterdir())


def test_alerts_come_and_ctrl_c_ends_all(taken: int, demo: Demo) -> None:
    """All targets are up, a starving GPU's alert reaches Alertmanager and the terminal, and Ctrl-C leaves nothing.

    One port is taken, as on a machine where something runs already.
    """
    demo.says("Ctrl-C ends all")
    assert "REPLAY" in demo.text
    assert f"port {taken} is taken, so trainer-1 has" in demo.text
    targets = f"{demo.url('Prometheus')}/api/v1/targets"
    assert wait_for(lambda: get(targets).count(b'"health":"up"') == len(HOSTS), 10), get(targets)
    assert b"REPLAY" in get(demo.link("trainer-2")).upper()
    assert b"GpuwhyStarving" in get(demo.link("Prometheus"))

    demo.says("GpuwhyStarving: GPU 0 on trainer-2")
    assert "cpu-preprocess" in demo.text
    assert "GpuwhyAgentDown" not in demo.text
    assert b"GpuwhyStarving" in get(f"{demo.url('Alertmanager')}/api/v2/alerts")

    children = demo.children()
    assert len(children) == PROGRAMS
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    code, said = demo.ended()
    assert code == 0, said
    assert "Traceback" not in said
    assert nothing_is_left(demo, children)


def test_a_program_that_dies_is_named(demo: Demo) -> None:
    """Where one of the programs ends by itself, so does the demo, and it says which and shows its log."""
    wait_for(lambda: len(demo.children()) == PROGRAMS, 20)
    demo.says("trainer-2 is ready")
    children = demo.children()
    (agent,) = (each for command, each in children.items() if "jpeg_2w" in command)
    agent.kill()
    code, said = demo.ended()
    assert code == 1, said
    assert "trainer-2 ended by signal 9" in said
    assert "listening on" in said
    assert nothing_is_left(demo, children)


def test_a_signal_while_it_starts_ends_it(demo: Demo) -> None:
    """SIGTERM before all programs are ready ends those that run."""
    demo.says("starting")
    wait_for(lambda: len(demo.children()) > 2, 20, step=0.01)
    children = demo.children()
    demo.process.terminate()
    code, said = demo.ended()
    assert code == 0, said
    assert "Ctrl-C ends all" not in said
    assert nothing_is_left(demo, children)


def test_killed_it_leaves_nothing(demo: Demo) -> None:
    """SIGKILL, as of a machine short of memory, is no way to keep programs and a folder either."""
    wait_for(lambda: len(demo.children()) == PROGRAMS, 20)
    demo.says("trainer-2 is ready")
    children = demo.children()
    demo.process.kill()
    assert demo.process.wait(30) == -signal.SIGKILL
    wait_for(lambda: not any(each.is_running() for each in children.values()), 10)
    assert nothing_is_left(demo, children)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_seconds_that_are_none(seconds: str) -> None:
    """The end is a number of seconds from now."""
    done = _python("-m", "tests.live.demo", "--seconds", seconds)
    assert done.returncode == 2
    assert "argument --seconds" in done.stderr
    assert seconds in done.stderr


@pytest.mark.parametrize(("code", "words"), [("ENOSPC", "no room in "), ("EACCES", "Traceback")])
def test_a_full_disk_is_said(tmp_path: Path, code: str, words: str) -> None:
    """With what to do; what nobody thought of keeps its traceback."""
    script = f"""
import errno, os, sys, threading
from tests.live import demo
def full(*_):
    raise OSError(errno.{code}, os.strerror(errno.{code}))
demo.Demo = full
sys.exit(demo.shown(threading.Event(), 1))
"""
    done = _python("-c", script, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert words in done.stderr
    assert ("TMPDIR=FOLDER" in done.stderr) == ("Traceback" not in done.stderr)
    assert not list(tmp_path.iterdir())


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    """Without its programs the demo starts nothing, and says what each takes."""
    (tmp_path / "tools").mkdir()
    shutil.copy(root / "tools/demo", tmp_path / "tools")
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [tmp_path / "tools/demo"],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for name, remedy in (
        (".venv-run", "make demo"),
        ("prometheus", "make programs"),
        ("prometheus-alertmanager", "PATH"),
    ):
        assert re.search(rf"^  {name}\S*: .*{remedy}", done.stderr, re.MULTILINE), done.stderr
