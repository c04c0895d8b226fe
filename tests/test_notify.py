"""What systemd is told, over a real socket, and how log lines reach the journal."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwhy import config as configuration
from gpuwhy.daemon import Agent, End
from gpuwhy.notify import JournalFormatter, Notifier, is_journal


class Manager:
    """The end that systemd listens on."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def heard(self) -> list[str]:
        """All that was sent so far."""
        self._socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def hear(self, wanted: str) -> None:
        """Waits for a message of this pattern."""
        self._socket.settimeout(30)
        while not re.search(wanted, self._socket.recv(4096).decode()):
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@gpuwhy-{uuid.uuid4()}")
    yield made
    made.close()


def test_each_message_once(manager: Manager) -> None:
    """A status that did not change is not sent again, and cannot bring a field of its own."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.address})
    notifier.ready()
    notifier.status("8 GPUs: 8 healthy")
    notifier.status("8 GPUs: 8 healthy")
    notifier.status("one\nMAINPID=1")
    notifier.stopping()
    assert manager.heard() == ["READY=1", "STATUS=8 GPUs: 8 healthy", "STATUS=one MAINPID=1", "STOPPING=1"]


def test_watchdog_is_told_three_times_a_period(manager: Manager) -> None:
    """From the first turn on, and no more often than needed."""
    now = 1000.0
    environment = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    notifier = Notifier(environment, lambda: now)
    told = []
    for _ in range(120):
        notifier.alive()
        if manager.heard():
            told.append(now - 1000)
        now += 1.0
    assert told == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize(
    "watchdog",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"},
    ],
)
def test_nobody_watches(manager: Manager, watchdog: Mapping[str, str]) -> None:
    """Without a period, or with another process's, there is nothing to tell."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.address, **watchdog})
    notifier.alive()
    assert manager.heard() == []


@pytest.mark.parametrize("address", ["", "relative", "@", "/nowhere/notify", "/dev/null", "/" + "x" * 200])
def test_without_a_manager_it_is_silent(address: str) -> None:
    """No socket, one that is gone and one that cannot be are nobody's error."""
    Notifier({"NOTIFY_SOCKET": address} if address else {}).ready()


def test_a_manager_that_does_not_read_blocks_nothing(manager: Manager) -> None:
    """A full socket costs messages."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.address})
    for number in range(5000):
        notifier.status(f"{number} {'x' * 1000}")
    assert 0 < len(manager.heard()) < 5000


class Turns:
    """A feed whose device never answers, and an HTTP server that ends after three turns of six."""

    period_s = 0.001
    name = "hung"

    def __init__(self) -> None:
        self.turns = 0
        self.told: list[str] = []
        self.agent = Agent(configuration.Config(), lambda *_: self)  # type: ignore[arg-type, return-value]
        self.agent._http = self  # type: ignore[assignment]
        self.agent._manager = self  # type: ignore[assignment]

    def is_alive(self) -> bool:
        return self.turns < 3

    def host(self) -> None:
        self.turns += 1
        if self.turns == 6:
            self.agent._ticks.put(End())

    def sources(self) -> dict[str, Any]:
        return {}

    def alive(self) -> None:
        self.told.append("alive")

    def status(self, text: str) -> None:
        self.told.append(text)


def test_the_watchdog_sees_loop_and_http_and_no_device() -> None:
    """A device that hangs stops nothing; an HTTP server that has ended does."""
    made = Turns()
    made.agent._loop()
    assert made.turns == 6
    assert made.told.count("alive") == 3
    assert "no interval judged yet" in made.told


@pytest.mark.parametrize(
    ("level", "number"),
    [
        (logging.DEBUG, 7),
        (logging.INFO, 6),
        (logging.WARNING, 4),
        (logging.ERROR, 3),
        (logging.CRITICAL, 2),
        (35, 4),
    ],
)
def test_each_line_has_its_level(level: int, number: int) -> None:
    """A traceback's and a hostile name's lines too: each is an entry of the journal."""
    record = logging.LogRecord("gpuwhy", level, "", 0, "lost %s", ("a\n<0>b",), None)
    assert JournalFormatter("%(message)s").format(record) == f"<{number}>lost a\n<{number}><0>b"


def test_the_journal_is_known_by_its_file(tmp_path: Path) -> None:
    """Only a stream that is the one systemd named."""
    with (tmp_path / "journal").open("w") as journal, (tmp_path / "other").open("w") as other:
        status = os.fstat(journal.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(journal, named)
        assert not is_journal(other, named)
        assert not is_journal(None, named)
        for nonsense in ("", "1", "a:b", f"{status.st_dev}:"):
            assert not is_journal(journal, {"JOURNAL_STREAM": nonsense})
    assert not is_journal(journal, named)


def _environment(journal: Any, **more: str) -> dict[str, str]:
    status = os.fstat(journal.fileno())
    return {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}", **more}


def test_a_service_from_start_to_end(tmp_path: Path) -> None:
    """The real agent: ready when it listens, then alive, stopping on SIGTERM; all it logs has a level."""
    manager = Manager(str(tmp_path / "notify"))
    log = tmp_path / "log"
    command = [sys.executable, "-m", "gpuwhy", "run", "--source", "replay:bundled", "--loop"]
    try:
        with log.open("w") as stderr:
            agent = subprocess.Popen(
                [*command, "--interval", "1", "--listen", "127.0.0.1:0"],
                stderr=stderr,
                env=_environment(stderr, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="600000"),
            )
            try:
                manager.hear("^READY=1$")
                assert re.search(r"^<6>listening on http://127\.0\.0\.1:\d+$", log.read_text(), re.MULTILINE)
                manager.hear("^WATCHDOG=1$")
                manager.hear(r"^STATUS=replay, \d+ GPUs: ")
                agent.send_signal(signal.SIGTERM)
                manager.hear("^STOPPING=1$")
                assert agent.wait(10) == 0
            finally:
                agent.kill()
                agent.wait()
    finally:
        manager.close()
    assert all(re.match(r"<[2-7]>", line) for line in log.read_text().splitlines())


def test_a_refusal_has_a_level(tmp_path: Path) -> None:
    """What ends the agent at its start is an error in the journal, its remedy too."""
    bad = tmp_path / "config.yaml"
    bad.write_text("agent:\n  interval_seconds: soon\n")
    log = tmp_path / "log"
    with log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "gpuwhy", "run", "--config", str(bad)],
            stderr=stderr,
            env=_environment(stderr),
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert "agent.interval_seconds" in log.read_text()
    assert "gpuwhy:" not in log.read_text()  # the journal has the name
    assert all(line.startswith("<3>") for line in log.read_text().splitlines())
