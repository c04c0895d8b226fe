"""The command: what it prints and writes, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.store.made import verdict, write

from gpuwhy import cli
from gpuwhy.report.weekly import formats

from .fake_prometheus import Fake, serving

NOW = datetime.now(timezone.utc)
MONDAY = (NOW - timedelta(days=NOW.weekday() + 7)).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """An hour of last week's Monday."""
    path = tmp_path / "history.db"
    write(path, [verdict(MONDAY.timestamp() + 600 * number, 600.0) for number in range(1, 7)])
    return f"store:{path}"


def run(*arguments: str, **env: str) -> Result:
    given = {"COLUMNS": "80", "GPUWHY__REPORT__TIMEZONE": "UTC", **env}
    return CliRunner().invoke(
        cli.main, ["report", "--config", os.devnull, *arguments], env=given, prog_name="gpuwhy"
    )


@pytest.mark.parametrize("form", formats.FORMATS)
def test_every_format_can_be_printed(store: str, form: str) -> None:
    """Last week of a store in each format, on stdout alone."""
    done = run("--source", store, "--format", form)
    assert done.exit_code == 0, done.output
    assert "copy" in done.stdout
    assert done.stderr == ""


def test_every_format_can_be_asked_for() -> None:
    """The command offers what there is."""
    [option] = [each for each in cli.main.commands["report"].params if each.name == "form"]
    assert list(option.type.choices) == list(formats.FORMATS)


def test_the_terminal_is_the_default(store: str) -> None:
    """Without more it is last week's report, to be read here."""
    done = run(GPUWHY__REPORT__SOURCE=store)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("GPU efficiency, week ")
    assert "0.20 of 1.0 GPU-hours (20 %) were useful; starving cost 0.80" in " ".join(done.stdout.split())


def test_a_file_is_written_whole(store: str, tmp_path: Path) -> None:
    """--out replaces a file at once, and leaves nothing beside it."""
    out = tmp_path / "out" / "week.json"
    out.parent.mkdir()
    out.write_text("old")
    done = run("--source", store, "--format", "json", "--out", str(out))
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(out.read_text())["schema"] == "gpuwhy-report/1"
    assert [file.name for file in out.parent.iterdir()] == ["week.json"]


def test_a_file_that_could_not_be_replaced_is_as_it_was(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it meanwhile gets the old one, and nothing is left beside it."""
    out = tmp_path / "out" / "week.json"
    out.parent.mkdir()
    out.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", fail)
    done = run("--source", store, "--format", "json", "--out", str(out))
    assert (done.exit_code, out.read_text()) == (1, "old")
    assert [file.name for file in out.parent.iterdir()] == ["week.json"]


def test_a_file_that_cannot_be_written(store: str, tmp_path: Path) -> None:
    """The path and the remedy, in a line."""
    done = run("--source", store, "--out", str(tmp_path / "none" / "x"))
    assert done.exit_code == 1
    assert "No such file or directory; check the path" in done.stderr


def test_a_device_can_be_written_to(store: str) -> None:
    """What is no file is not replaced."""
    assert run("--source", store, "--out", os.devnull, "--format", "html").exit_code == 0
    assert not Path(os.devnull).is_file()


def test_the_price_is_that_of_the_dashboards(store: str) -> None:
    """One option prices all of it."""
    env = {"GPUWHY__RENDER__PRICE_PER_GPU_HOUR": "10", "GPUWHY__RENDER__CURRENCY": "EUR"}
    done = run("--source", store, "--format", "json", **env)
    document = json.loads(done.stdout)
    assert document["about"]["price_per_gpu_hour"] == 10
    assert document["fixes"][0]["money"] == pytest.approx(8.0)
    assert "€8.00" in run("--source", store, **env).stdout


def test_nothing_observed(store: str) -> None:
    """The report says so, and the exit code too."""
    done = run("--source", store, "--period", "2020-W10")
    assert done.exit_code == 1
    assert "No data for week 2020-W10." in done.stdout
    assert done.stderr == "gpuwhy: no data for week 2020-W10\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--period", "soon"], 2, "--period 'soon' is none of last-week"),
        (["--timezone", "Mars/Olympus"], 2, "there is no time zone 'Mars/Olympus'"),
        (
            ["--source", "ftp://x"],
            2,
            "report.source is 'ftp://x' (flag --source): set it to store, store:PATH",
        ),
        (["--source", "store:/none/history.db"], 1, "/none/history.db"),
        (["--format", "pdf"], 2, "'pdf' is not one of"),
    ],
)
def test_mistakes(store: str, arguments: list[str], code: int, said: str) -> None:
    """Each in a sentence, with its documented exit code."""
    done = run("--source", store, *arguments)
    assert done.exit_code == code
    assert said in " ".join(done.stderr.split())


def test_a_prometheus_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address, what it said and the remedy, with exit code 1."""
    monkeypatch.setattr("gpuwhy.report.weekly.prometheus.PATIENCE", ())
    with serving(Fake(always="401")) as fake:
        done = run("--source", fake.url)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"gpuwhy: {fake.url} answers 401")


def test_progress_is_shown_when_it_takes_long(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr alone, and not before two seconds."""
    monkeypatch.setattr(cli, "SLOW_S", -1.0)
    done = run("--source", store, "--format", "csv", FORCE_COLOR="1")
    assert done.stdout.startswith("start,end,level")
    assert "reading" in done.stderr
    assert run("--source", store, "--format", "csv").stderr == ""  # no terminal, no bar
    monkeypatch.setattr(cli, "SLOW_S", 3600.0)
    assert run("--source", store, "--format", "csv", FORCE_COLOR="1").stderr == ""


def test_what_the_extra_brings_is_named_where_it_is_missing(store: str, tmp_path: Path) -> None:
    """Without jinja2 and urllib3 the rest works, and the remedy is a command."""
    for name in ("jinja2", "markupsafe", "urllib3"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name}')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def say(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuwhy", "report", "--config", os.devnull, *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert say("--source", store, "--format", "markdown").returncode == 0
    for arguments in (("--source", store, "--format", "html"), ("--source", "http://127.0.0.1:1")):
        done = say(*arguments)
        assert done.returncode == 1
        assert f"{sys.executable} -m pip install " in done.stderr
