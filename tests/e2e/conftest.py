"""The installed command: a wheel in an environment of its own, started and stopped as a user would."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LISTENING = re.compile(r"listening on (https?://127\.0\.0\.1:\d+)")

# Proxies of the environment are for package indices, not for loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Making an environment takes longer than a unit test may."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))


class Command:
    """An installed ``gpuwhy``, run in a folder and an environment that know nothing of the source tree."""

    def __init__(self, path: Path, home: Path) -> None:
        self.path = path
        self.home = home

    @property
    def recordings(self) -> Path:
        """The folder of recordings that came with the wheel."""
        (folder,) = self.path.parent.parent.glob("lib/python3*/site-packages/gpuwhy/recordings")
        return folder

    def environment(self, **extra: str) -> dict[str, str]:
        state = str(self.home / "state")
        return {
            "PATH": os.defpath,
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "STATE_DIRECTORY": state,
            **extra,
        }

    def __call__(self, *args: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end, whatever its exit code."""
        return subprocess.run(
            [self.path, *args],
            cwd=self.home,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @contextlib.contextmanager
    def serve(self, *args: str, **env: str) -> Iterator[Agent]:
        """``gpuwhy run`` on a free loopback port, listening."""
        agent = Agent(self, args, self.environment(**env))
        try:
            agent.wait_until_listening()
            yield agent
        finally:
            agent.end()


class Agent:
    """A running agent."""

    def __init__(self, command: Command, args: tuple[str, ...], env: dict[str, str]) -> None:
        self.url = ""
        self.log: list[str] = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(
            [command.path, "run", "--listen", "127.0.0.1:0", *args],
            cwd=command.home,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if not self.url and (found := LISTENING.search(line)):
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def wait_until_listening(self) -> None:
        self._listening.wait(30)
        if not self.url:
            pytest.fail(f"never said that it listens:\n{''.join(self.log)}")

    def end(self) -> None:
        """Ends it, however the test went."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def get(self, path: str, accept: str = "*/*") -> str:
        """The body of a page; raises for any status but 2xx."""
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with _opener.open(request, timeout=10) as answer:
            return str(answer.read().decode())

    def wait_for(self, path: str, wanted: Callable[[str], bool], seconds: float = 30) -> str:
        """The first body that is as wanted."""
        deadline = time.monotonic() + seconds
        body = ""
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                body = self.get(path)
                if wanted(body):
                    return body
            time.sleep(0.1)
        pytest.fail(
            f"{path} is not as wanted after {seconds} s; log:\n{''.join(self.log)}\nlast body:\n{body}"
        )

    def stop(self, by: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Asks it to end: (exit code, seconds that took)."""
        start = time.monotonic()
        self.process.send_signal(by)
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still runs 10 s after {by.name}; log:\n{''.join(self.log)}")
        return code, time.monotonic() - start


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Command]:
    """``install(python)`` puts the wheel into an environment made with that Python, once per run."""
    made: dict[str, Command] = {}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def make(python: str) -> Command:
        real = run(python, "-c", "import sys; print(sys.base_prefix, sys.version_info[:2])")
        if real not in made:
            place = tmp_path_factory.mktemp("installed")
            run(python, "-m", "venv", place / "venv")
            run(place / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
            home = place / "home"
            home.mkdir()
            made[real] = Command(place / "venv/bin/gpuwhy", home)
        return made[real]

    return make


@pytest.fixture(scope="session")
def installed_gpuwhy(install: Callable[[str], Command]) -> Command:
    """``gpuwhy`` as installed from the wheel, with the Python that runs the tests."""
    return install(sys.executable)


@pytest.fixture
def agent(installed_gpuwhy: Command) -> Iterator[Agent]:
    """An agent that loops the bundled recordings at ten times their speed."""
    with installed_gpuwhy.serve("--source", "replay:bundled", "--loop", "--speed", "10") as running:
        yield running
