"""The command line: what it takes, says, and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from gpuwhy import __version__, cli, daemon
from gpuwhy.source import DriverMismatchError, NoGpuError, SourceError
from gpuwhy.source.replay import BUNDLED

GEMM = str(BUNDLED / "gemm.jsonl.gz")


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(
        cli.main, list(arguments), env={"COLUMNS": "80", **(env or {})}, prog_name="gpuwhy"
    )


def commands() -> list[str]:
    return sorted(cli.main.commands)


def test_version() -> None:
    """The version is that of the package."""
    assert run("--version").output == f"gpuwhy {__version__}\n"


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_fits_80_columns_and_teaches(command: str) -> None:
    """Each command's help says more than its options, in 80 columns."""
    done = run(*([command] if command else []), "--help")
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    assert "Exit codes" in done.output or command
    assert len(done.output.split("Options:")[0].split()) > 12


@pytest.mark.parametrize("command", commands())
def test_every_option_has_help(command: str) -> None:
    """No option is left without a word on what it does."""
    for parameter in cli.main.commands[command].params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name


def test_explain_json() -> None:
    """The JSON is of the schema, strict, and names its source."""
    done = run("explain", "--replay", GEMM, "--format", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["schema"] == "gpuwhy-explain/1"
    assert document["source"] == f"replay:{GEMM}"
    (gpu,) = document["gpus"]
    assert (gpu["verdict"], gpu["cause"], gpu["index"]) == ("healthy", "compute", 0)
    assert gpu["next_steps"]
    assert gpu["signals"]["sm_active_ratio"] == "nvml-gpm"


def test_explain_text_has_no_colour_in_a_pipe() -> None:
    """Text for a pipe is plain and 80 columns wide."""
    done = run("explain", "--replay", GEMM)
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    assert "healthy / compute" in done.output


@pytest.mark.parametrize(
    ("error", "code"),
    [(NoGpuError("no GPU here"), 3), (DriverMismatchError("they differ"), 4), (SourceError("it broke"), 1)],
)
@pytest.mark.parametrize("command", ["run", "explain"])
def test_errors_have_their_exit_codes(
    monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, code: int
) -> None:
    """What the product raises is one sentence on stderr and the documented code."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(daemon, "make_feed", fail)
    done = run(command, env={"GPUWHY__HTTP__LISTEN": "127.0.0.1:0"})
    assert done.exit_code == code
    assert str(error) in done.stderr
    assert "Traceback" not in done.output


def test_no_gpu_names_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the way to see the product anyway is named."""
    monkeypatch.setattr(daemon, "make_feed", lambda *_, **__: (_ for _ in ()).throw(NoGpuError("none")))
    assert "gpuwhy run --source replay:bundled --loop" in run("run").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "--replay", "/no/such/file"], ["/no/such/file", "cannot be read"]),
        (["run", "--source", "replay:/no/such/file"], ["/no/such/file", "cannot be read"]),
        (
            ["run", "--source", "replay:bundled", "--listen", "nonsense"],
            ["http.listen", "nonsense", "HOST:PORT"],
        ),
        (["run", "--loop"], ["agent.replay_loop", "remove it"]),
        (["check-config", "--config", "/no/such.yaml"], ["/no/such.yaml"]),
        (["check-config", "--interval", "0"], ["agent.interval_seconds", "0"]),
        (["record", "/no/such/folder/x.gz"], ["/no/such/folder/x.gz", "cannot be written"]),
    ],
)
def test_errors_name_value_and_remedy(arguments: list[str], words: list[str]) -> None:
    """An error names what was given and what to do, without a traceback."""
    done = run(*arguments)
    assert done.exit_code in {1, 2}
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)


def test_address_in_use(tmp_path: Path) -> None:
    """A port that is taken ends the agent with the address and the remedy."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("run", "--source", f"replay:{GEMM}", "--listen", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert str(port) in done.stderr


def test_check_config_shows_value_and_origin() -> None:
    """Each effective value stands with where it comes from."""
    done = run("check-config", "--listen", "127.0.0.1:1", env={"GPUWHY__AGENT__PROFILE": "latency"})
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.output.splitlines()}
    assert rows["http.listen"] == ["127.0.0.1:1", "flag --listen"]
    assert rows["agent.profile"] == ["latency", "environment GPUWHY__AGENT__PROFILE"]
    assert rows["agent.source"] == ["auto", "default"]


def test_render_check_fails_on_a_stale_file(tmp_path: Path) -> None:
    """`render --check` is quiet after `render`, and shows the difference and fails after a change."""
    assert run("render", "--out", str(tmp_path)).exit_code == 0
    assert run("render", "--check", "--out", str(tmp_path)).exit_code == 0
    page = tmp_path / "docs" / "metrics.md"
    page.write_text(page.read_text().replace("gpuwhy_useful", "gpuwhy_usefull"))
    done = run("render", "--check", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "gpuwhy_usefull" in done.output


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_is_laid_out(command: str) -> None:
    """No mark of the help's own layout is shown, and no command's line is cut."""
    text = run(*([command] if command else []), "--help").output
    assert "\\b" not in text
    assert "..." not in text.replace("PATH...", "").replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --profile l", "latency"),
        ("run --source re", "replay:"),
        ("run --source replay:b", "replay:bundled"),
        ("run --log-level w", "warning"),
    ],
)
def test_values_are_completed(words: str, offered: str) -> None:
    """What an option takes is completed from its own description."""
    count = str(len(words.split()))
    done = run(
        env={"_GPUWHY_COMPLETE": "bash_complete", "COMP_WORDS": f"gpuwhy {words}", "COMP_CWORD": count}
    )
    assert offered in done.output


def test_explain_reads_one_recording() -> None:
    """A folder, and a file together with a source, are refused with what to do instead."""
    done = run("explain", "--replay", str(BUNDLED))
    assert done.exit_code == 1
    assert f"gpuwhy run --source replay:{BUNDLED}" in done.stderr
    assert run("explain", "--replay", GEMM, "--source", "nvml").exit_code == 2


def test_record_refuses_a_replay(tmp_path: Path) -> None:
    """What would be recorded is recorded already; no file is left."""
    path = tmp_path / "x.jsonl"
    done = run("record", str(path), "--source", f"replay:{GEMM}")
    assert done.exit_code == 1
    assert "a recording already" in done.stderr
    assert not path.exists()


def test_explain_judges_recordings_side_by_side_apart() -> None:
    """Recordings that play side by side are hosts of their own."""
    gemm, idle = (str(BUNDLED / f"{name}.jsonl.gz") for name in ("gemm", "parked"))
    done = run("explain", "--source", f"replay:{gemm},{idle}", "--seconds", "6", "--format", "json")
    assert [gpu["verdict"] for gpu in json.loads(done.stdout)["gpus"]] == ["healthy", "idle"]


def test_completion_is_offered() -> None:
    """The shell's tab completion knows the commands."""
    done = run(env={"_GPUWHY_COMPLETE": "bash_complete", "COMP_WORDS": "gpuwhy ex", "COMP_CWORD": "1"})
    assert done.output == "plain,explain\n"


OWN = """\
render:
  selector: cluster="a"
  host_label: node
  runbook_url: https://wiki.example/runbook
  grafana_url: https://grafana.example
  price_per_gpu_hour: 2.5
  alerts:
    GpuwhyStarving: {severity: info, threshold: 0.5, window_seconds: 7200}
    GpuwhyPseudoPeak: {enabled: false}
    GpuwhyHostRegression: {enabled: true}
"""


def test_render_takes_the_users_own_options(tmp_path: Path) -> None:
    """Matchers, host label, severity, threshold, window, addresses and price reach rules and dashboards."""
    file = tmp_path / "config.yaml"
    file.write_text(OWN)
    arguments = ("render", "--config", str(file), "--out", str(tmp_path))
    assert run(*arguments).exit_code == 0
    assert run(*arguments, "--check").exit_code == 0
    groups = yaml.safe_load((tmp_path / "alerts/alerts.rules.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    starving = rules["GpuwhyStarving"]
    assert starving["labels"]["severity"] == "info"
    assert 'gpuwhy_verdict_seconds_total{cluster="a",' in starving["expr"]
    assert "sum by (node, gpu, uuid, mig)" in starving["expr"]
    assert starving["expr"].endswith(">= 3600")
    assert starving["annotations"]["runbook_url"] == "https://wiki.example/runbook#gpuwhystarving"
    assert starving["annotations"]["dashboard_url"].startswith("https://grafana.example/d/gpuwhy-host?")
    assert "GpuwhyPseudoPeak" not in rules
    assert "GpuwhyHostRegression" in rules
    recorded = (tmp_path / "alerts/recording.rules.yaml").read_text()
    assert 'gpuwhy_useful_seconds_total{cluster="a"}' in recorded
    assert "instance," not in recorded
    assert "currencyUSD" in (tmp_path / "dashboards/gpuwhy-weekly.json").read_text()
    assert "instance" not in yaml.safe_load((tmp_path / "alerts/inhibit.yaml").read_text()).__str__()


@pytest.mark.parametrize("command", ["render", "check-config"])
def test_an_unknown_alert_is_named(command: str, tmp_path: Path) -> None:
    """A mistyped alert is no option that silently does nothing."""
    file = tmp_path / "config.yaml"
    file.write_text("render:\n  alerts:\n    GpuwhyStarvng: {enabled: false}\n")
    arguments = ["--out", str(tmp_path)] if command == "render" else []
    done = run(command, "--config", str(file), *arguments)
    assert done.exit_code == 2
    assert "render.alerts.GpuwhyStarvng is not known: write GpuwhyStarving, or remove it" in done.stderr


def test_rendering_without_grafanalib_says_what_to_install(tmp_path: Path) -> None:
    """The extra that is missing is named, and no traceback shown."""
    code = "import sys; sys.modules['grafanalib'] = None; from gpuwhy.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "render", "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "gpuwhy: dashboards need grafanalib: pip install 'gpuwhy[render]'\n"
