"""What ``gpuwhy report`` does: configuration and history to a report, and that to wherever it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpuwhy.config import Config
from gpuwhy.report.weekly import figures, formats, sources
from gpuwhy.report.weekly.history import AskedError, Progress, ReportError
from gpuwhy.report.weekly.periods import find_zone, parse
from gpuwhy.report.weekly.types import Report

if TYPE_CHECKING:
    from rich.console import Console


def make(
    config: Config,
    period: str,
    environ: Mapping[str, str],
    progress: Progress,
    now_unix: float | None = None,
) -> Report:
    """The report of a period. Raises ReportError."""
    now = time.time() if now_unix is None else now_unix
    zone, zone_name = find_zone(config.report.timezone)
    asked = parse(period, zone, now)
    history = sources.read(config, asked.span, environ, progress)
    settings = figures.Settings(
        period=asked,
        zone_name=zone_name,
        price_per_gpu_hour=config.render.price_per_gpu_hour,
        currency=config.render.currency,
        generated_unix=now,
    )
    return figures.compute(history, settings)


def show(report: Report, console: Console) -> None:
    """Prints it for people at a terminal."""
    from gpuwhy.report.weekly.formats import terminal  # noqa: PLC0415  rich is slow to load

    terminal.print_report(report, console)


def write(report: Report, form: str, out: Path | None, stdout: TextIO) -> None:
    """Writes it in a format; a file becomes whole at once. Raises ReportError, and OSError of stdout."""
    text = formats.text(report, form)
    if out is None:
        stdout.write(text)
        return
    part = out.with_name(f".{out.name}.part")
    try:
        if out.exists() and not out.is_file():  # a pipe or a device
            out.write_bytes(text.encode())
            return
        try:
            part.write_bytes(text.encode())
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        # Under the name that was given, not that of the part.
        raise ReportError(
            f"{out} cannot be written: {error.strerror}; check the path, its permissions and the room on its disk"
        ) from error


__all__ = ["AskedError", "ReportError", "make", "show", "write"]
