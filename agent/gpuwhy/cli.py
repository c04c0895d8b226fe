"""The ``gpuwhy`` command."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

import gpuwhy
from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.exporter.http import ListenError
from gpuwhy.source import DriverMismatchError, NoGpuError, SourceError
from gpuwhy.source.recorder import Recorder

DONE, FAILED, USAGE, NO_GPU, DRIVER_MISMATCH = 0, 1, 2, 3, 4

EPILOG = """\b
Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 no GPU,
4 driver and library versions differ.
Tab completion: eval "$(_GPUWHY_COMPLETE=bash_source gpuwhy)"
(zsh_source and fish_source likewise)."""

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A range that NaN is not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124  NaN
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return number


class Group(click.Group):
    """Turns what the product raises into one line on stderr and the documented exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a locale without the bar's block prints "?"
        try:
            return super().invoke(ctx)
        except configuration.ConfigError as error:
            _fail(str(error), USAGE)
        except NoGpuError as error:
            _fail(f"{error}\nto see gpuwhy on recordings: gpuwhy run --source replay:bundled --loop", NO_GPU)
        except DriverMismatchError as error:
            _fail(str(error), DRIVER_MISMATCH)
        except (SourceError, ListenError) as error:
            _fail(str(error), FAILED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else "output: "
            _fail(
                f"{where}{error.strerror}; check the path, its permissions and the room on its disk", FAILED
            )


def _width() -> int | None:
    """The terminal's own width; 80 columns for files and pipes."""
    return None if sys.stdout is not None and sys.stdout.isatty() else 80


def _fail(message: str, code: int) -> None:
    for line in message.splitlines():
        click.echo(f"gpuwhy: {line}", err=True)
    sys.exit(code)


def _options(*keys: str) -> Callable[[F], F]:
    """The flags of these options (all that have one, if none is named) and ``--config``."""

    def decorate(function: F) -> F:
        for option in reversed(configuration.options()):
            if option.flag and (not keys or option.key in keys):
                parameter = option.key.replace(".", "__")
                about = (
                    f"{option.description}; takes {option.expected}  "
                    f"[{option.key}; default {configuration.as_text(option.default)}]"
                )
                if isinstance(option.default, bool):
                    click.option(option.flag, parameter, is_flag=True, default=None, help=about)(function)
                else:
                    click.option(
                        option.flag,
                        parameter,
                        default=None,
                        metavar=_metavar(option),
                        help=about,
                        shell_complete=_completion(option.expected),
                    )(function)
        click.option(
            "--config",
            "config_path",
            type=click.Path(path_type=Path),
            help=f"configuration file  [default {configuration.DEFAULT_PATH}, if it is there]",
        )(function)
        return function

    return decorate


def _completion(expected: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes what an option says it takes: its plain words, and how its longer forms begin."""
    words = re.findall(r"(?<![\w\[])[a-z]+(?::[a-z]+|:)?(?=[ ,A-Z]|$)", expected)
    known = [word for word in words if word not in {"or", "a", "number", "from", "to"}]
    return lambda _context, _parameter, typed: [word for word in known if word.startswith(typed)]


def _metavar(option: configuration.Option) -> str:
    return "NUMBER" if isinstance(option.default, (int, float)) else option.name.upper()


def _load(config_path: Path | None, flags: dict[str, Any]) -> configuration.Loaded:
    given = {key.replace("__", "."): value for key, value in flags.items() if value is not None}
    return configuration.load(given, os.environ, config_path)


@click.group(
    cls=Group,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(gpuwhy.__version__, "-V", "--version", message="gpuwhy %(version)s")
def main() -> None:
    """Says why each GPU of this host is not doing more useful work.

    \b
    gpuwhy run                                   serve metrics and a page, all day
    gpuwhy run --source replay:bundled --loop    the same, shown on recordings
    gpuwhy explain                               one answer, now
    gpuwhy doctor                                what this host can tell
    """


@main.command(
    short_help="Watch the GPUs and serve what it finds.",
    epilog="Every option can also stand in the configuration file or the environment; see gpuwhy check-config.",
)
@_options()
def run(config_path: Path | None, **flags: Any) -> None:
    """Watches the GPUs and serves what it finds until it is stopped.

    Metrics for Prometheus are at /metrics, a page for people at /, the last five minutes as JSON
    at /api/v1/status, health at /-/healthy and /-/ready. SIGTERM and Ctrl-C end it with code 0.

    \b
    gpuwhy run --listen 127.0.0.1:9837
    gpuwhy run --source replay:gemm.jsonl.gz,idle.jsonl.gz --loop
    """
    loaded = _load(config_path, flags)
    logging.basicConfig(
        level=loaded.config.agent.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    daemon.run(loaded.config)


@main.command(short_help="Say once what each GPU waits for.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="a recording to explain instead of this host",
)
@click.option(
    "--seconds",
    type=Seconds(5, 3600),
    default=15.0,
    show_default=True,
    help="how long to watch this host",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="for people or for programs",
)
@_options("agent.source", "agent.profile", "agent.interval_seconds")
def explain(replay: Path | None, seconds: float, form: str, config_path: Path | None, **flags: Any) -> None:
    """Says once what each GPU waits for, with evidence and what to do next.

    Watches this host for a while, or reads a recording. The verdict is the one with most seconds in
    the window, its evidence that of the last interval with this verdict. The JSON is of schema
    gpuwhy-explain/1.

    \b
    gpuwhy explain --seconds 60
    gpuwhy explain --replay FILE --format json
    """
    loaded = _load(config_path, flags)
    if replay is not None and flags.get("agent__source") is not None:
        raise click.UsageError("--replay reads a file and --source this host: give one of them")
    if replay is not None and replay.is_dir():
        raise SourceError(
            f"{replay}: a folder; explain reads one recording: name a file in it, "
            f"or play them all with  gpuwhy run --source replay:{replay}"
        )
    if replay is not None:
        document = daemon.explain_recording(replay, loaded.config)
    else:
        with _progress("watching", seconds) as progress:
            document = daemon.watch(loaded.config, seconds, progress)
    if form == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console  # noqa: PLC0415  the daemon never needs it

    from gpuwhy.report.terminal import print_document  # noqa: PLC0415

    print_document(document, Console(highlight=False, width=_width()))


@contextmanager
def _progress(what: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """A bar on stderr while it is a terminal; yields the function that moves it."""
    from rich.console import Console  # noqa: PLC0415  the daemon never needs it
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=seconds)
        yield lambda done: bar.update(task, completed=done)


@main.command(short_help="Record this host, to replay and to share.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--seconds",
    type=Seconds(1, 24 * 3600),
    default=60.0,
    show_default=True,
    help="how long to record",
)
@click.option("--period", type=Seconds(0.1, 60), default=1.0, show_default=True, help="seconds between rows")
@click.option("--workload", default="", help="what ran, as a word for those who read it")
@_options("agent.source")
def record(
    file: Path, seconds: float, period: float, workload: str, config_path: Path | None, **flags: Any
) -> None:
    """Records what this host's GPUs and their processes say, to replay and to share.

    FILE gets the rows as they come (gzip if it ends in .gz) and is whole after each of them; Ctrl-C
    ends it early. It holds GPU names, UUIDs and readings, and of the GPU's processes the command
    name, pids, CPU and I/O counters and cgroup path: look before you share it.
    """
    loaded = _load(config_path, flags)
    with Recorder(file, period_s=period, workload=workload) as recorder:
        try:
            with _progress("recording", seconds) as progress:
                daemon.record(loaded.config, recorder, seconds, progress, period_s=period)
        except KeyboardInterrupt:
            click.echo("stopped early", err=True)
        finally:
            if not recorder.rows:
                file.unlink(missing_ok=True)
    if not recorder.rows:
        raise SourceError("nothing was recorded; try a longer --seconds")
    click.echo(f"{file}: {recorder.rows} rows; see it with  gpuwhy explain --replay {file}", err=True)


@main.command(short_help="Say what this host can tell, and what is missing.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="for people or for programs",
)
@_options("agent.source")
def doctor(form: str, config_path: Path | None, **flags: Any) -> None:
    """Says what this host can give, signal by signal: from which source, what is missing, how to get it.

    Exit code 0 if every verdict can be reached, 1 if some cannot, 3 without a GPU, 4 if driver and
    library differ.
    """
    from gpuwhy.report import doctor as examination  # noqa: PLC0415

    config = _load(config_path, flags).config
    with _progress("examining", examination.SECONDS) as progress:
        findings = examination.examine(
            config,
            daemon.make_ladder(config),
            daemon.make_host(config),
            daemon.make_resolver(config),
            progress,
        )
    if form == "json":
        click.echo(json.dumps(examination.as_json(findings), indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415

        examination.print_findings(findings, Console(highlight=False, width=_width()))
    sys.exit(DONE if findings.complete else FAILED)


@main.command("check-config", short_help="Print each option, its value and its origin.")
@_options()
def check_config(config_path: Path | None, **flags: Any) -> None:
    """Prints each option's effective value and where it comes from.

    \b
    Precedence: flag > environment (GPUWHY__SECTION__KEY) > file > default.
    Exit code 2 where something is wrong; every problem is named with its remedy.
    """
    rows = configuration.describe(_load(config_path, flags))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, value, origin in rows:
        click.echo(f"{key:{widths[0]}}  {value:{widths[1]}}  {origin}".rstrip())


@main.command(short_help="Write what is made from gpuwhy's tables.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="folder to render into  [default: here]",
)
@click.option("--check", is_flag=True, help="change nothing; show what differs and exit 1 if anything does")
def render(out: Path, check: bool) -> None:
    """Writes what is made from gpuwhy's tables: the reference in docs/."""
    from gpuwhy import render as rendering  # noqa: PLC0415

    if check:
        differences = rendering.check(out)
        for difference in differences:
            click.echo(str(difference))
        if differences:
            _fail(f"{len(differences)} rendered files are out of date; run gpuwhy render", FAILED)
        return
    for path in rendering.write(out):
        click.echo(path)
