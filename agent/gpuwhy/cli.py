"""The ``gpuwhy`` command."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import gpuwhy
from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.exporter import web_config
from gpuwhy.exporter.http import ListenError
from gpuwhy.notify import JournalFormatter, is_journal, prefixed
from gpuwhy.source import DriverMismatchError, NoGpuError, SourceError
from gpuwhy.source.recorder import Recorder

if TYPE_CHECKING:
    from datetime import tzinfo

    from gpuwhy.report.baseline.asked import Asked
    from gpuwhy.report.baseline.types import Baseline

SLOW_S = 2.0
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
    if is_journal(sys.stderr):
        click.echo(prefixed(message, logging.ERROR), err=True)
    else:
        click.echo("\n".join(f"gpuwhy: {line}" for line in message.splitlines()), err=True)
    sys.exit(code)


def _options(*keys: str) -> Callable[[F], F]:
    """The flags of these options (all that have one, if none is named) and ``--config``."""

    def decorate(function: F) -> F:
        for option in reversed(configuration.options()):
            flag = option.flag or (f"--{option.name}" if option.key in keys else "")
            if flag and (not keys or option.key in keys):
                parameter = option.key.replace(".", "__")
                about = (
                    f"{option.description}; takes {option.expected}  "
                    f"[{option.key}; default {configuration.as_text(option.default)}]"
                )
                if isinstance(option.default, bool):
                    click.option(flag, parameter, is_flag=True, default=None, help=about)(function)
                else:
                    click.option(
                        flag,
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JournalFormatter("%(message)s")
        if is_journal(sys.stderr)
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=loaded.config.agent.log_level.upper(), handlers=[handler])
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
    if config.agent.replay_paths:
        raise click.UsageError(
            "doctor examines this host; what a recording holds says  gpuwhy explain --replay FILE"
        )
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


@main.command(short_help="Say where the GPU-hours of a week went.")
@click.option(
    "--period",
    default="last-week",
    show_default=True,
    metavar="PERIOD",
    help="last-week, this-week, today, yesterday, 7d (any number of days), 2026-W48, or 2026-11-23..2026-11-30 (up to the second, "
    "without it)",
    shell_complete=_completion("last-week, this-week, today, yesterday, 7d"),
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "html", "markdown", "json", "csv"]),
    default="terminal",
    show_default=True,
    help="to read here, to mail, for wikis, for programs, for spreadsheets",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="file to write  [default: stdout]"
)
@_options("report.source", "report.timezone")
def report(period: str, form: str, out: Path | None, config_path: Path | None, **flags: Any) -> None:
    """Says where the GPU-hours of a period went, what to fix first, and what got worse.

    Reads the local history of this host, or for a fleet the recorded series of a Prometheus. A price per
    GPU-hour is render.price_per_gpu_hour. Exit code 1 if nothing was observed; the report says so.

    \b
    gpuwhy report
    gpuwhy report --source http://prometheus:9090 --format html --out week.html
    """
    config = _load(config_path, flags).config
    from gpuwhy.report.weekly import command  # noqa: PLC0415  the daemon never needs it

    try:
        with _slow_progress("reading") as progress:
            made = command.make(config, period, os.environ, progress)
        if form == "terminal" and out is None:
            from rich.console import Console  # noqa: PLC0415

            command.show(made, Console(highlight=False, width=_width()))
        else:
            command.write(made, form, out, sys.stdout)
    except command.AskedError as error:
        _fail(str(error), USAGE)
    except command.ReportError as error:
        _fail(str(error), FAILED)
    if made.empty:
        _fail(f"no data for {made.about.name}", FAILED)


@contextmanager
def _slow_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr once something takes more than two seconds; yields what moves it."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    began = time.monotonic()
    console = Console(stderr=True)
    bar = Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), console=console, transient=True)
    task = bar.add_task(what)

    def move(done: int, steps: int) -> None:
        bar.update(task, completed=done, total=steps)
        if console.is_terminal and time.monotonic() - began > SLOW_S and not bar.live.is_started:
            bar.start()

    try:
        yield move
    finally:
        if bar.live.is_started:
            bar.stop()


@main.group(short_help="Keep a load test's window, and say what moved since.")
def baseline() -> None:
    """Keeps a load test's window under a name, and says what moved since.

    The first baseline is the one to keep: compare each version of a model, driver or server with it.
    The test and its limits are in docs/baselines.md.

    \b
    gpuwhy baseline save first --seconds 900 --note "v1, batch 32"
    gpuwhy baseline compare first --progress items_per_second=1234
    """


def _window_options(function: F) -> F:
    """The flags by which a window is taken."""
    given = (
        click.option(
            "--seconds",
            type=Seconds(5, 24 * 3600),
            help="watch this host for so long  [default: 900, or as long as the baseline]",
        ),
        click.option(
            "--last",
            default="",
            metavar="TIME",
            help="what history has of the last 15m, 900s or 2h, instead of watching",
        ),
        click.option("--from", "begin", default="", metavar="TIME", help="or from then, as 2026-11-30T14:00"),
        click.option("--to", "end", default="", metavar="TIME", help="until then  [default: now]"),
        click.option(
            "--replay",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="or all of a recording",
        ),
        click.option(
            "--source",
            "report__source",
            metavar="SOURCE",
            help="the history: store, store:PATH, or the address of a Prometheus, Thanos, Mimir or VictoriaMetrics "
            "that scrapes the agents  [report.source; default store]",
        ),
        click.option(
            "--gpu", "gpus", multiple=True, metavar="GPU", help="only this index or UUID; repeatable"
        ),
        click.option("--host", "hosts", multiple=True, metavar="HOST", help="only this host; repeatable"),
        click.option(
            "--workload",
            default="",
            metavar="NAME",
            help="only this workload's part, as NAME or NAMESPACE/NAME",
        ),
        click.option(
            "--progress",
            "progress",
            multiple=True,
            metavar="NAME=VALUE",
            help="what the work says of its pace, as items_per_second=1234 or p99_seconds=0.052,0.050,0.055; "
            "from three values on both sides it is tested; less is better for names such as these seconds, "
            "or with :better=lower at the end; repeatable",
        ),
    )
    function = _options("agent.profile", "agent.interval_seconds")(function)
    for option in reversed(given):
        function = option(function)
    return function


_FILE = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="this file instead of the folder of the local history",
)


@contextmanager
def _baseline_errors() -> Iterator[None]:
    from gpuwhy.report.baseline.types import AskedError, BaselineError  # noqa: PLC0415
    from gpuwhy.report.weekly.history import ReportError  # noqa: PLC0415

    try:
        yield
    except AskedError as error:
        raise click.UsageError(str(error)) from error
    except (BaselineError, ReportError) as error:
        _fail(str(error), FAILED)


def _take(
    config: configuration.Config, asked: Asked, default_s: float, *, name: str = "", note: str = ""
) -> Baseline:
    """The window that was asked for, as a baseline."""
    from gpuwhy.report.baseline import history  # noqa: PLC0415  the daemon never needs it
    from gpuwhy.report.baseline.from_verdicts import Collector  # noqa: PLC0415
    from gpuwhy.report.baseline.types import Baseline, checked  # noqa: PLC0415
    from gpuwhy.source.kubernetes import node_name  # noqa: PLC0415
    from gpuwhy.source.replay import load  # noqa: PLC0415

    chosen, version = asked.chosen, gpuwhy.__version__
    if asked.span is not None:
        with _slow_progress("reading") as move:
            gpus, source, version = history.read(config, asked.span, chosen, os.environ, move)
    elif asked.replay is not None:
        source = f"replay:{asked.replay.name}"
        recording, collector = load(asked.replay), Collector("", chosen)
        for interval in daemon.judge_recording(recording, config)[1]:
            collector.add(interval.verdicts)
        gpus = checked(collector.gpus(recording.workload), str(asked.replay), chosen)
    else:
        source = "replay" if config.agent.replay_paths else "live"
        seconds = default_s if asked.seconds is None else asked.seconds
        collector = Collector(node_name(os.environ), chosen)
        with _progress("watching", seconds) as progress:
            for _, interval in daemon.watched(config, seconds, progress):
                collector.add(interval.verdicts)
        gpus = checked(collector.gpus(), "this host", chosen)
    return Baseline(name, source, time.time(), version, gpus, note, chosen.workload, asked.progress)


def _asked(config: configuration.Config, window: dict[str, Any], flags: dict[str, Any]) -> Asked:
    from gpuwhy.report.baseline import asked  # noqa: PLC0415  the daemon never needs it

    history = flags.get("report__source") is not None
    return asked.parse(window, _zone(config), time.time(), history=history)


def _zone(config: configuration.Config) -> tzinfo:
    from gpuwhy.report.weekly.periods import find_zone  # noqa: PLC0415  the daemon never needs it

    return find_zone(config.report.timezone)[0]


@baseline.command("save", short_help="Keep a window under a name.")
@click.argument("name")
@click.option("--note", default="", help="what ran, for those who read it later")
@click.option("--replace", is_flag=True, help="write over a baseline of that name")
@_FILE
@_window_options
def baseline_save(
    name: str, note: str, replace: bool, file: Path | None, config_path: Path | None, **flags: Any
) -> None:
    """Keeps a window under NAME: every interval's figures, and the conditions they were taken under.

    Watches this host for --seconds, or reads history: the local one, or with --source that of a Prometheus.
    Start it when the load is warm. A window that is to be compared needs 300 s, better 900.

    \b
    gpuwhy baseline save first --note "v1, batch 32" --progress items_per_s=1234
    gpuwhy baseline save first --last 15m
    gpuwhy baseline save first --last 15m --source http://prometheus:9090
    """
    from gpuwhy.report.baseline import kept  # noqa: PLC0415  the daemon never needs it

    window, flags = _split(flags)
    config = _load(config_path, flags).config
    with _baseline_errors():
        kept.check_name(name)
        if file is not None:
            kept.check_free(file, name, replace=replace)
        path = file or kept.new_path(name, config.store, os.environ, replace=replace)
        taken = _take(config, _asked(config, window, flags), 900.0, name=name, note=note)
        kept.save(taken, path)
    length = taken.end_unix - taken.start_unix
    click.echo(
        f"{path}: {len(taken.gpus)} GPU{'s' * (len(taken.gpus) > 1)}, {length:.0f} s; compare with  gpuwhy baseline compare "
        f"{f'--file {file}' if file else name}",
        err=True,
    )
    if length < 300:
        click.echo("gpuwhy: to be compared it needs 300 s, better 900", err=True)


def _split(flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags of a window, and those of the configuration."""
    own = {key: value for key, value in flags.items() if "__" not in key}
    return own, {key: value for key, value in flags.items() if "__" in key}


@baseline.command(
    "compare",
    short_help="Say what moved since.",
    epilog="""\b
Exit codes: 0 no regression, 10 regression, 11 cannot tell (too short, too
noisy, not measured); 1 failed, 2 usage, 3 no GPU, 4 driver mismatch.""",
)
@click.argument("name", required=False)
@_FILE
@click.option(
    "--with", "other", default="", metavar="NAME2", help="compare with this baseline, not a new window"
)
@click.option(
    "--with-file", type=click.Path(dir_okay=False, path_type=Path), help="the same, from a file of its own"
)
@click.option(
    "--max-loss",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.02,
    show_default=True,
    help="part of the efficiency that may be lost, likewise of progress that is tested",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="for people, programs, or a pull request",
)
@_window_options
def baseline_compare(
    name: str | None,
    *,
    file: Path | None,
    other: str,
    with_file: Path | None,
    max_loss: float,
    form: str,
    config_path: Path | None,
    **flags: Any,
) -> None:
    """Says what moved since the baseline NAME, and whether it is more than noise.

    Takes a second window as `save` does, of the same length and workload unless told otherwise, or another
    baseline. It is a regression if efficiency (useful over measured time), or a progress figure with three
    values or more on both sides, is worse beyond noise and by more than --max-loss. Each window is cut into
    6 to 20 blocks, longer than the load's own correlation time; the test is Welch's t on the blocks at 1 %,
    over all figures together (Holm). Under 300 s, or 12 correlation times, it cannot tell, and says so.

    \b
    gpuwhy baseline compare first
    gpuwhy baseline compare first --last 15m --format markdown
    gpuwhy baseline compare first --with second
    """
    from gpuwhy.report.baseline import compare, formats, kept  # noqa: PLC0415  the daemon never needs it

    window, flags = _split(flags)
    config = _load(config_path, flags).config
    if (name is None) is (file is None):
        raise click.UsageError("give the NAME of a baseline, or its --file")
    with _baseline_errors():
        before = kept.load(file or kept.path_of(name or "", config.store, os.environ))
        if other or with_file:
            if any(window.values()):
                raise click.UsageError("--with takes a baseline: no window, choice or progress goes with it")
            after = kept.load(with_file or kept.path_of(other, config.store, os.environ))
        else:
            window["workload"] = window["workload"] or before.workload
            length = max(5.0, before.end_unix - before.start_unix)
            after = _take(config, _asked(config, window, flags), length)
        found = compare.compare(before, after, max_loss)
        click.echo(formats.comparison(found, form, _zone(config)), nl=False)
    sys.exit(compare.EXIT_CODES[found.outcome])


@baseline.command("list", short_help="List those that are kept.")
@_options("store")
def baseline_list(config_path: Path | None, **flags: Any) -> None:
    """Lists the baselines that are kept on this host: name, when, how long, of what, and the note."""
    from gpuwhy.report.baseline import formats, kept  # noqa: PLC0415  the daemon never needs it

    config = _load(config_path, flags).config
    with _baseline_errors():
        click.echo(formats.listing(kept.listed(config.store, os.environ), _zone(config)), nl=False)


@baseline.command("show", short_help="Show one that is kept.")
@click.argument("name", required=False)
@_FILE
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="for people, or the file as it is kept",
)
@_options("store")
def baseline_show(
    name: str | None, file: Path | None, form: str, config_path: Path | None, **flags: Any
) -> None:
    """Shows a baseline: its conditions, and its figures over the whole window."""
    from gpuwhy.report.baseline import formats, kept  # noqa: PLC0415  the daemon never needs it

    config = _load(config_path, flags).config
    if (name is None) is (file is None):
        raise click.UsageError("give the NAME of a baseline, or its --file")
    with _baseline_errors():
        found = kept.load(file or kept.path_of(name or "", config.store, os.environ))
        click.echo(kept.text(found) if form == "json" else formats.shown(found, _zone(config)), nl=False)


@baseline.command("delete", short_help="Remove one that is kept.")
@click.argument("name")
@_options("store")
def baseline_delete(name: str, config_path: Path | None, **flags: Any) -> None:
    """Removes a baseline for good; nobody is asked again."""
    from gpuwhy.report.baseline import kept  # noqa: PLC0415  the daemon never needs it

    config = _load(config_path, flags).config
    with _baseline_errors():
        path = kept.path_of(name, config.store, os.environ)
        path.unlink()
    click.echo(f"{path}: removed", err=True)


@main.command("check-config", short_help="Print each option, its value and its origin.")
@_options()
def check_config(config_path: Path | None, **flags: Any) -> None:
    """Prints each option's effective value and where it comes from.

    \b
    Precedence: flag > environment (GPUWHY__SECTION__KEY) > file > default.
    Exit code 2 where something is wrong; every problem is named with its remedy.
    """
    loaded = _load(config_path, flags)
    from gpuwhy.render import alerts  # noqa: PLC0415  the daemon never needs them

    alerts.settled(loaded.config.render)
    web_config.load(loaded.config.http.web_config_file)
    rows = configuration.describe(loaded)
    # A mapping may be long: it does not push all others aside.
    widths = [min(48, max(len(row[column]) for row in rows)) for column in (0, 1)]
    for key, value, origin in rows:
        click.echo(f"{key:{widths[0]}}  {value:{widths[1]}}  {origin}".rstrip())
    click.echo("gpuwhy: nothing is wrong with this configuration", err=True)


@main.command(short_help="Write what is made from gpuwhy's tables.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="folder to render into  [default: here]",
)
@click.option("--check", is_flag=True, help="change nothing; show what differs and exit 1 if anything does")
@_options("render")
def render(out: Path, check: bool, config_path: Path | None) -> None:
    """Writes what is made from gpuwhy's tables: alerts and their runbook, dashboards, the reference in docs/.

    \b
    Your own matchers, host label, thresholds, severities, runbook address and
    price are options of section render; docs/alerts.md leads through them.
    """
    options = _load(config_path, {}).config.render
    from gpuwhy import render as rendering  # noqa: PLC0415

    try:
        differences = rendering.check(out, options) if check else []
        written = [] if check else rendering.write(out, options)
    except (ImportError, rendering.NotOursError) as error:  # an extra that is missing says which it is
        _fail(str(error), FAILED)
    if check:
        for difference in differences:
            click.echo(str(difference))
        if differences:
            again = ["gpuwhy", "render", *(["--config", str(config_path)] if config_path else [])]
            again += ["--out", str(out)] if out != Path() else []
            _fail(f"{len(differences)} rendered files are out of date; run {shlex.join(again)}", FAILED)
        return
    for path in written:
        click.echo(path)
