"""Prometheus and Alertmanager as real programs: on loopback, in a folder of their own, ended by their pid."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..clients import wait_for  # noqa: TID252  one set of clients for all

READY_S = 60.0
STOP_S = 10.0
LOG_TAIL = 4000

# Proxies of the environment are for package indices, not for loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ProgramError(Exception):
    """A program did not start, or refused a request; the message holds the end of its log."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(
    url: str, *, timeout: float = 60.0, data: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """The body of a page of loopback, also of one that reports an error."""
    asked = urllib.request.Request(url, data=data, headers=dict(headers or {}))
    try:
        with _opener.open(asked, timeout=timeout) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return bytes(error.read())


@dataclass
class Program:
    """A running program that is ready once ``url/-/ready`` answers 200."""

    command: list[str]
    url: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    cwd: Path | None = None

    def start(self) -> None:
        """Raises ProgramError if it is not ready in time."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.cwd
            )
        if not wait_for(self._ready_or_ended, READY_S) or self.process.poll() is not None:
            self.stop()
            raise ProgramError(f"{self.command[0]} did not get ready\n{self.tail()}")

    def _ready_or_ended(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            return True
        with contextlib.suppress(OSError), _opener.open(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self) -> None:
        """Ends it by its pid and waits; what does not end in time is killed."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-LOG_TAIL:] if self.log.exists() else ""

    def json(self, path: str, **parameters: str | float) -> Any:
        """What a page of its API says; raises ProgramError with its own words for an error."""
        asked = f"{self.url}{path}" + (f"?{urllib.parse.urlencode(parameters)}" if parameters else "")
        try:
            answer = json.loads(get(asked))
        except (OSError, ValueError) as error:
            raise ProgramError(f"{asked}: {error}\n{self.tail()}") from error
        if isinstance(answer, dict) and answer.get("status") == "error":
            raise ProgramError(f"{answer.get('error')}: {parameters.get('query', path)}")
        return answer


@dataclass
class Prometheus(Program):
    """A Prometheus and what it is asked."""

    def query(self, expr: str, at: float) -> list[dict[str, Any]]:
        """An instant vector: ``metric`` and ``value`` of each series."""
        found = self.json("/api/v1/query", query=expr, time=at)["data"]
        return (
            list(found["result"])
            if found["resultType"] == "vector"
            else [{"metric": {}, "value": found["result"]}]
        )

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """A matrix: ``metric`` and ``values`` of each series."""
        found = self.json("/api/v1/query_range", query=expr, start=start, end=end, step=step)
        return list(found["data"]["result"])

    def label_values(self, label: str, match: str, start: float, end: float) -> list[str]:
        """The values of a label on the series that match."""
        found = self.json(f"/api/v1/label/{label}/values", **{"match[]": match}, start=start, end=end)
        return list(found["data"])


@dataclass(frozen=True)
class Scrape:
    """How a Prometheus is set up: what it scrapes, evaluates, and whom it tells."""

    targets: dict[str, str] = field(default_factory=dict)  # address by the host's name
    rules: tuple[Path, ...] = ()
    alertmanager: str = ""
    interval: str = "1s"

    def config(self) -> dict[str, Any]:
        """The configuration file."""
        return {
            "global": {"scrape_interval": self.interval, "evaluation_interval": self.interval},
            "rule_files": [str(path) for path in self.rules],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [self.alertmanager]}]}]
                if self.alertmanager
                else []
            },
            "scrape_configs": [
                {
                    "job_name": "gpuwhy",
                    "static_configs": [
                        {"targets": [address], "labels": {"instance": host}}
                        for host, address in self.targets.items()
                    ],
                }
            ]
            if self.targets
            else [],
        }


def prometheus(
    program: str, folder: Path, setup: Scrape | None = None, *, flags: Sequence[str] = (), port: int = 0
) -> Prometheus:
    """A Prometheus over ``folder/data``, not yet started."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump((setup or Scrape()).config()))
    address = f"127.0.0.1:{port or free_port()}"
    return Prometheus(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address={address}",
            "--log.level=error",
            *flags,
        ],
        f"http://{address}",
        folder / "prometheus.log",
    )


_SHARE = "share/prometheus/alertmanager"


def _relocated(program: Path, folder: Path) -> tuple[Path, Path | None]:
    """The program, and the folder to run it in, so that it finds its templates.

    Debian's looks for them where its package is installed. One that was only unpacked is copied with another
    name of the same length in that place: that of the folder it runs in.
    """
    installed, unpacked = Path("/usr", _SHARE), program.resolve().parent.parent / _SHARE
    if installed.is_dir() or not unpacked.is_dir():
        return program, None
    here = b"/proc/self/cwd".ljust(len(str(installed)), b"/")
    copy = folder / program.name
    copy.write_bytes(program.read_bytes().replace(str(installed).encode(), here))
    copy.chmod(0o755)
    return copy, unpacked


def alertmanager(program: str, folder: Path, config: dict[str, Any]) -> Program:
    """An Alertmanager on its own, not yet started."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    runs, cwd = _relocated(Path(program), folder)
    return Program(
        [
            str(runs),
            f"--config.file={file}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ],
        f"http://{address}",
        folder / "alertmanager.log",
        cwd=cwd,
    )


@contextlib.contextmanager
def running(*programs: Program) -> Iterator[None]:
    """These programs, started in order and ended however it goes; a failure shows the ends of their logs."""
    started: list[Program] = []
    try:
        for program in programs:
            started.append(program)
            program.start()
        yield
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # also a test's own failure
        for program in started:
            print(f"{program.command[0]} said:\n{program.tail()}")
        raise
    finally:
        for program in reversed(started):
            program.stop()
