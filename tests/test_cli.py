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
    assert f"run gpuwhy render --out {tmp_path}" in done.stderr
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
  alert_labels: {team: ml}
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
    assert starving["labels"] == {"team": "ml", "severity": "info", "verdict": "starving"}
    assert (
        "(https://wiki.example/runbook#starving{{ .Labels.cause }})" in starving["annotations"]["description"]
    )
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
    assert done.stderr == f"gpuwhy: dashboards need grafanalib: {sys.executable} -m pip install grafanalib\n"


BASELINE = sorted(cli.baseline.commands)


@pytest.mark.parametrize("command", BASELINE)
def test_help_of_baselines(command: str) -> None:
    """Each command of the group teaches in 80 columns, and each option says what it does."""
    text = run("baseline", command, "--help").output
    assert max(map(len, text.splitlines())) <= 80
    assert "\\b" not in text
    assert len(text.split("Options:")[0].split()) > 12
    for parameter in cli.baseline.commands[command].params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name


def test_the_help_of_compare_states_the_test_and_its_codes() -> None:
    """Who writes a pipeline finds what decides, and how it ends."""
    words = " ".join(run("baseline", "compare", "--help").output.split())
    for said in ("10 regression", "11 cannot tell", "Welch's t", "Holm", "300 s", "--max-loss"):
        assert said in words


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"STATE_DIRECTORY": str(tmp_path)}


def test_a_baseline_lives(state: dict[str, str], tmp_path: Path) -> None:
    """Saved, not written over, listed, shown, compared, removed."""
    done = run(
        "baseline", "save", "first", "--replay", GEMM, "--note", "v1", "--progress", "items=3", env=state
    )
    assert done.exit_code == 0, done.output
    assert "to be compared it needs 300 s" in done.stderr
    assert json.loads((tmp_path / "baselines/first.json").read_text())["schema"] == "gpuwhy-baseline/1"
    again = run("baseline", "save", "first", "--replay", GEMM, env=state)
    assert again.exit_code == 1
    assert "--replace" in again.stderr
    assert (
        run("baseline", "save", "first", "--replay", GEMM, "--replace", "--note", "v2", env=state).exit_code
        == 0
    )
    listed = run("baseline", "list", env=state).output
    assert "first" in listed
    assert "1 x NVIDIA H200: v2" in listed
    assert "efficiency" in run("baseline", "show", "first", env=state).output
    kept = run("baseline", "show", "first", "--format", "json", env=state).output
    assert json.loads(kept)["note"] == "v2"
    done = run("baseline", "compare", "first", "--replay", GEMM, env=state)
    assert done.exit_code == 11
    assert "Cannot tell: efficiency: a window has" in done.output
    assert run("baseline", "delete", "first", env=state).exit_code == 0
    assert run("baseline", "show", "first", env=state).exit_code == 1


def test_baselines_in_files_of_their_own(state: dict[str, str], tmp_path: Path) -> None:
    """A pipeline keeps them as artefacts: --file and --with-file."""
    file = str(tmp_path / "artefacts" / "v1.json")
    assert run("baseline", "save", "v1", "--file", file, "--replay", GEMM, env=state).exit_code == 0
    assert "--replace" in run("baseline", "save", "v1", "--file", file, "--replay", GEMM, env=state).stderr
    assert "efficiency" in run("baseline", "show", "--file", file, env=state).output
    arguments = ("baseline", "compare", "--file", file, "--with-file", file, "--format", "json")
    done = run(*arguments, env=state)
    assert done.exit_code == 11
    assert json.loads(done.output)["schema"] == "gpuwhy-baseline-compare/1"
    assert run("baseline", "show", "v1", env=state).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["save", "../x", "--replay", GEMM], 2, ["'../x' is no name", "--file"]),
        (["save", "a/b"], 2, ["'a/b' is no name"]),
        (["compare", "frist"], 1, ["there is no baseline 'frist'"]),
        (["compare"], 2, ["NAME", "--file"]),
        (["compare", "x", "--file", "y"], 2, ["NAME", "--file"]),
        (["show"], 2, ["NAME", "--file"]),
        (["save", "x", "--last", "5"], 2, ["--last", "15m"]),
        (["save", "x", "--seconds", "10", "--replay", GEMM], 2, ["one window"]),
        (["save", "x", "--source", "http://127.0.0.1:1"], 2, ["--last", "--from"]),
        (["save", "x", "--replay", GEMM, "--progress", "items"], 2, ["NAME=VALUE"]),
        (["save", "x", "--replay", GEMM, "--gpu", "7"], 1, ["of GPU 7", GEMM]),
        (["save", "x", "--replay", "/no/such.gz"], 1, ["/no/such.gz", "cannot be read"]),
        (["save", "x", "--last", "5m", "--source", "store:/no/such.db"], 1, ["/no/such.db does not exist"]),
        (["compare", "x", "--file", "/no/such.json"], 2, ["NAME"]),
        (["compare", "--file", "/no/such.json"], 1, ["/no/such.json cannot be read"]),
        (["delete", "x"], 1, ["there is no baseline 'x'", "baseline save"]),
    ],
)
def test_what_baselines_refuse(
    state: dict[str, str], arguments: list[str], code: int, words: list[str]
) -> None:
    """Every refusal says what was given and what to do, with its documented code."""
    done = run("baseline", *arguments, env=state)
    assert done.exit_code == code, done.output
    said = " ".join(done.stderr.split())
    for word in words:
        assert word in said
    assert "Traceback" not in done.output


def test_a_nearby_name_is_offered(state: dict[str, str]) -> None:
    """Of a mistyped name the nearest is named, and all that there are."""
    run("baseline", "save", "first", "--replay", GEMM, env=state)
    done = run("baseline", "compare", "frist", "--replay", GEMM, env=state)
    assert done.exit_code == 1
    assert "did you mean first? (there are: first)" in done.stderr


def test_baselines_take_no_window_with_a_baseline(state: dict[str, str]) -> None:
    """Two baselines are compared as they are."""
    run("baseline", "save", "first", "--replay", GEMM, env=state)
    assert run("baseline", "compare", "first", "--with", "first", env=state).exit_code == 11
    done = run("baseline", "compare", "first", "--with", "first", "--last", "5m", env=state)
    assert done.exit_code == 2
    assert "--with takes a baseline" in done.stderr


def test_a_baseline_without_a_gpu(state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Live without a GPU ends with 3, as everywhere, and keeps nothing."""
    monkeypatch.setattr(
        daemon, "make_feed", lambda *_, **__: (_ for _ in ()).throw(NoGpuError("no GPU here"))
    )
    done = run("baseline", "save", "first", "--seconds", "5", env=state)
    assert done.exit_code == 3
    assert "no GPU here" in done.stderr
    assert "none yet" in run("baseline", "list", env=state).output


def test_a_baseline_of_this_host(state: dict[str, str]) -> None:
    """Watched live, here a replay in real time: every interval is kept, and it is said to be a replay."""
    env = {**state, "GPUWHY__AGENT__SOURCE": f"replay:{GEMM}", "GPUWHY__AGENT__REPLAY_LOOP": "true"}
    env["GPUWHY__AGENT__REPLAY_SPEED"] = "4"
    assert run("baseline", "save", "first", "--seconds", "6", env=env).exit_code == 0
    kept = json.loads(run("baseline", "show", "first", "--format", "json", env=state).output)
    assert kept["source"] == "replay"
    assert sum(kept["gpus"][0]["samples"]["seconds"]) >= 20
    assert kept["gpus"][0]["workloads"] == ["gemm"]
