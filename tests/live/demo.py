"""What `make demo` shows: made-up hosts that replay the bundled recordings, watched by real programs.

The agents, their recordings, the configuration in ``deploy/`` and the rules are those of a user. Only time is
shortened: windows of the rules, and how often Prometheus and Alertmanager look.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuwhy.config import AlertOverride, RenderConfig
from gpuwhy.render import alerts
from gpuwhy.render.recording import rule_file

from .programs import Program, ProgramError, _opener, _relocated, free_port

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS_PORT, ALERTMANAGER_PORT, AGENTS_PORT = 19090, 19093, 19837
INTERVAL_S = 2  # of the agents
WINDOW_S = 30  # of a rule that looks back minutes or hours
# What a rule waits for after that. Before the first scrape there is no agent, and a busy machine misses some scrapes.
WAIT_S = {"GpuwhyAgentAbsent": 10, "GpuwhyAgentDown": 5}
READY_S = 60.0


@dataclass(frozen=True)
class Host:
    """A made-up host: the recording that it replays, and what is to be seen there."""

    name: str
    recording: str
    shows: str


HOSTS = (
    Host("trainer-1", "gemm", "healthy: tensor cores are the limit"),
    Host("trainer-2", "jpeg_2w", "starving: the CPU decodes pictures too slowly"),
    Host("trainer-3", "ddp_straggler", "two GPUs: one is late for want of its host, the other waits for it"),
    Host("trainer-4", "syn_sw_thermal", "throttled by heat (numbers made up)"),
    Host("server-1", "decode_attn", "memory-bound: an LLM writes its answer"),
    Host("notebook-1", "parked", "idle, but held: memory is taken, nothing runs"),
)


@dataclass(frozen=True)
class Child:
    """One of the demo's programs, and what people call it."""

    name: str
    program: Program

    def launch(self) -> None:
        with self.program.log.open("ab") as log:
            self.program.process = subprocess.Popen(
                self.program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.program.cwd,
                # Of the caller's settings none may reach the agents, nor the proxies of the environment anyone.
                env={
                    "PATH": os.defpath,
                    "LC_ALL": "C.UTF-8",
                    "STATE_DIRECTORY": f"{self.program.log}.state",
                    "NODE_NAME": self.name,
                },
                # Ctrl-C is for the demo, which then ends the others itself.
                start_new_session=True,
            )

    def ended(self) -> bool:
        return self.program.process is not None and self.program.process.poll() is not None

    def has(self, page: str) -> bool:
        try:
            with _opener.open(f"{self.program.url}{page}", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ready(self) -> bool:
        return self.has("/-/ready")


class Guard:
    """Ends the programs and removes the folder where the demo itself is killed, and can no longer."""

    # It hears that by the end of its input, which the kernel closes with the demo.
    SCRIPT = """while read -r pid; do [ "$pid" != end ] || exit; pids="$pids $pid"; done
kill -9 $pids; rm -rf -- "$1" """

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", self.SCRIPT, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        print(pid, file=self.process.stdin, flush=True)

    def dismiss(self) -> None:
        """All has ended: its numbers may be those of other programs soon."""
        self.process.communicate("end\n")


def say(text: str = "") -> None:
    """A line for a terminal; names in it may be anybody's."""
    print("".join(sign if sign.isprintable() else "?" for sign in text))


def port(wanted: int, name: str) -> int:
    """This port of loopback, or a free one, which is said."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            found = free_port()
            say(f"demo: port {wanted} is taken, so {name} has {found}")
            return found
    return wanted


def shortened() -> RenderConfig:
    """The options of users by which an alert comes within a minute instead of an hour."""
    changed = {}
    for alert in alerts.settled(RenderConfig()):
        by_dose = (
            alert.window_s > WINDOW_S and alert.threshold is not None and alert.least_window_s <= WINDOW_S
        )
        changed[alert.name] = AlertOverride(
            window_seconds=WINDOW_S if by_dose else None,
            # The intervals at both ends of so short a window are seen in part.
            threshold=0.75 if alert.name == "GpuwhyGpuHeld" else None,
            for_seconds=WAIT_S.get(alert.name, 0),
        )
    return RenderConfig(alerts=changed)


def agent(host: Host, number: int, folder: Path) -> Child:
    """An agent that replays."""
    import gpuwhy

    address = f"127.0.0.1:{port(AGENTS_PORT + number, host.name)}"
    recording = Path(gpuwhy.__file__).parent / "recordings" / f"{host.recording}.jsonl.gz"
    empty = folder / "agent.yaml"
    empty.touch()
    command = [str(Path(sys.executable).parent / "gpuwhy"), "run", f"--config={empty}", f"--listen={address}"]
    replay = [f"--source=replay:{recording}", "--loop", f"--interval={INTERVAL_S}"]
    return Child(host.name, Program([*command, *replay], f"http://{address}", folder / f"{host.name}.log"))


def alertmanager(folder: Path) -> Child:
    """The shipped configuration, but nobody is told."""
    config = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
    config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
    for route in config["route"]["routes"]:
        route["group_wait"], route["group_interval"] = "5s", "1s"
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{port(ALERTMANAGER_PORT, 'Alertmanager')}"
    found = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager") or "alertmanager"
    program, cwd = _relocated(Path(found), folder)
    flags = (
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        "--cluster.listen-address=",
    )
    command = [str(program), *flags, f"--web.listen-address={address}", "--log.level=warn"]
    return Child("Alertmanager", Program(command, f"http://{address}", folder / "alertmanager.log", cwd=cwd))


def prometheus(folder: Path, agents: Sequence[Child], manager: Child) -> Child:
    """The shipped configuration and the rendered rules, looked at each second."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "2s"}
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [_address(manager)]}]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    rules = yaml.safe_load(alerts.rule_file(shortened()))
    for group in rules["groups"]:
        group["interval"] = "2s"
    (folder / "gpuwhy" / "targets").mkdir(parents=True)
    (folder / "gpuwhy" / "alerts.rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "gpuwhy" / "recording.rules.yaml").write_text(rule_file(RenderConfig()))
    targets = [{"targets": [_address(each)], "labels": {"instance": each.name}} for each in agents]
    (folder / "gpuwhy" / "targets" / "hosts.yaml").write_text(yaml.safe_dump(targets))

    address = f"127.0.0.1:{port(PROMETHEUS_PORT, 'Prometheus')}"
    found = Path(shutil.which("prometheus") or "prometheus")
    pages = (
        found.resolve().parent.parent / "share/prometheus/web"
    )  # Debian's looks for them where it is installed
    command = [
        str(found),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        "--log.level=error",
        *([f"--web.local-assets={pages}/"] if pages.is_dir() else []),
    ]
    return Child("Prometheus", Program(command, f"http://{address}", folder / "prometheus.log"))


def _address(child: Child) -> str:
    return child.program.url.removeprefix("http://")


class Demo:
    """All programs of the demo, until ``stop`` is set."""

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self.stop = stop
        self.folder = folder
        self.agents = tuple(agent(host, number, folder) for number, host in enumerate(HOSTS))
        self.manager = alertmanager(folder)
        self.server = prometheus(folder, self.agents, self.manager)
        self.children = (*self.agents, self.manager, self.server)

    def run(self, seconds: float) -> int:
        """Until ``stop``, these seconds or the end of a program; the exit code."""
        guard = Guard(self.folder)
        try:
            begun = time.monotonic()
            for child in self.children:
                child.launch()
                guard.watch(child.program.process.pid)
            if self._get_ready(begun + READY_S):
                self._show()
                self._watch(begun, begun + seconds)
            return 1 if self._told_of_failure() else 0
        finally:
            running = [child for child in self.children if child.program.process is not None]
            for child in running:  # together, so that they take as long as the slowest
                if not child.ended():
                    child.program.process.terminate()
            for child in running:
                child.program.stop()
            guard.dismiss()

    def _failed(self) -> bool:
        return any(child.ended() for child in self.children)

    def _get_ready(self, until: float) -> bool:
        say("demo: this is a REPLAY of recordings on made-up hosts; nothing of this machine is measured")
        say(f"demo: starting {len(self.agents)} agents, Alertmanager and Prometheus")
        waiting = list(self.children)
        while waiting and not self._failed() and time.monotonic() < until and not self.stop.wait(0.2):
            for child in [child for child in waiting if child.ready()]:
                waiting.remove(child)
                say(
                    f"demo: {child.name} is ready ({len(self.children) - len(waiting)} of {len(self.children)})"
                )
        if waiting and not self._failed() and not self.stop.is_set():
            raise ProgramError(
                "\n".join(
                    f"{child.name} is not ready after {READY_S:.0f} s; the end of its log:\n{child.program.tail()}"
                    for child in waiting
                )
            )
        return not waiting

    def _show(self) -> None:
        debians = "prometheus-alertmanager" in self.manager.program.command[0]
        rows = [
            *((host.name, "/", host.shows, child) for child, host in zip(self.agents, HOSTS, strict=True)),
            (
                "Prometheus",
                "/alerts" if self.server.has("/alerts") else "/classic/alerts",
                "the rules, and which fire",
                self.server,
            ),
            (
                "Alertmanager",
                "/api/v2/alerts" if debians else "/#/alerts",
                "what would wake somebody",
                self.manager,
            ),
        ]
        say()
        say(f"Look first at {self.agents[1].program.url}/ for why a GPU waits, and what to do about it.")
        say()
        for name, path, shows, child in rows:
            say(f"  {name:<12}  {child.program.url + path:<37}  {shows}")
        say()
        if debians:
            say(
                "Debian's Alertmanager has no pages, and its Prometheus plain ones, so alerts are shown here as well."
            )
        say(
            f"Grafana: add {self.server.program.url} as a data source, and import dashboards/gpuwhy-host.json."
        )
        say(
            f"The rules are the rendered ones, but look back {WINDOW_S} s instead of up to an hour: alerts come in a minute."
        )
        say("Ctrl-C ends all of it.")
        say()

    def _watch(self, begun: float, until: float) -> None:
        shown = set()
        while not self._failed() and time.monotonic() < until and not self.stop.wait(0.5):
            for each in self._alerts():
                if each["fingerprint"] not in shown:
                    shown.add(each["fingerprint"])
                    labels = each["labels"]
                    say(
                        f"[{time.monotonic() - begun:3.0f} s] {labels['severity']}: {labels['alertname']}: "
                        f"{each['annotations']['description']}"
                    )

    def _alerts(self) -> list[dict[str, Any]]:
        try:
            found = self.manager.program.json("/api/v2/alerts", silenced="false", inhibited="false")
        except ProgramError:  # whether it has ended is looked at elsewhere
            return []
        return sorted(
            found, key=lambda each: (each["labels"].get("instance", ""), each["labels"]["alertname"])
        )

    def _told_of_failure(self) -> bool:
        ended = [child for child in self.children if child.ended()]
        for child in ended:
            code = child.program.process.returncode
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            print(
                f"demo: {child.name} ended {how}; the end of its log:\n{child.program.tail()}",
                file=sys.stderr,
            )
        return bool(ended)


def above_0(text: str) -> float:
    value = float(text)
    if not value > 0:  # which no number is not either
        message = f"{text}: wants seconds above 0"
        raise argparse.ArgumentTypeError(message)
    return value


def shown(stop: threading.Event, seconds: float) -> int:
    """The demo in a folder of its own; the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="gpuwhy-demo-") as folder:
            return Demo(Path(folder), stop).run(seconds)
    except ProgramError as error:
        print(f"demo: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            where = tempfile.gettempdir()
        elif tempfile.tempdir is None:  # Python found none to write to, and names those that it tried
            where = str(error)
        else:
            raise
        print(
            f"demo: no room in {where}\n  remedy: TMPDIR=FOLDER, a folder with 100 MiB of room",
            file=sys.stderr,
        )
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/demo", description="Shows gpuwhy on replayed recordings.")
    parser.add_argument("--seconds", type=above_0, default=float("inf"), help="end by itself after so long")
    seconds = parser.parse_args().seconds
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, lambda *_: stop.set())
    code = shown(stop, seconds)
    say("demo: ended; nothing of it is left")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # nobody reads any more; Python would say so once again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
