"""What is asked for on the command line: windows, progress figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from gpuwhy.report.baseline.types import AskedError, Choice, Progress

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Of figures that are named so, less is better.
LESS_IS_BETTER = re.compile(r"_(seconds|ms|us|ns)$|latency|duration|error|loss", re.IGNORECASE)
MOST_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """A window: ``span`` of history, or ``replay``, or else this host for ``seconds`` (None = as is usual)."""

    seconds: float | None
    span: tuple[float, float] | None
    replay: Path | None
    chosen: Choice
    progress: tuple[Progress, ...]


def parse(flags: Mapping[str, Any], zone: tzinfo, now_unix: float, *, history: bool) -> Asked:
    """What the flags of a window ask for; ``history`` says whether its source was named.

    Raises:
        AskedError: they cannot be meant, alone or together.

    """
    span = window(flags["begin"], flags["end"], flags["last"], zone, now_unix)
    seconds, replay = flags["seconds"], flags["replay"]
    if sum((seconds is not None, span is not None, replay is not None)) > 1:
        raise AskedError("give one window: --seconds, or --last, or --from and --to, or --replay")
    if history and span is None:
        raise AskedError("--source is history: say which part of it with --last, or --from and --to")
    chosen = Choice(flags["gpus"], flags["hosts"], flags["workload"])
    return Asked(seconds, span, replay, chosen, progress(flags["progress"]))


def window(begin: str, end: str, last: str, zone: tzinfo, now_unix: float) -> tuple[float, float] | None:
    """Start and end in unix seconds; None if neither ``--from``, ``--to`` nor ``--last`` is given.

    Raises:
        AskedError: they are no times, do not go together, or the window is empty.

    """
    if not (begin or end or last):
        return None
    if last:
        if begin or end:
            raise AskedError("--last ends now: give it, or --from and --to")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", last)
        if not match or not float(match[1]):
            raise AskedError(f"--last {last[:40]!r} is no length of time: write 15m, 900s or 2h")
        return now_unix - float(match[1]) * UNITS_S[match[2]], now_unix
    if not begin:
        raise AskedError("--to needs --from: a window has a start")
    start = moment("--from", begin, zone)
    stop = moment("--to", end, zone) if end else now_unix
    if stop <= start:
        raise AskedError(f"--from {begin} is not before {f'--to {end}' if end else 'now'}")
    return start, min(stop, now_unix)


def moment(option: str, text: str, zone: tzinfo) -> float:
    """Unix seconds; a time without an offset is in the zone. Raises AskedError."""
    if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
        return float(text)
    try:
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
        return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise AskedError(
            f"{option} {text[:40]!r} is no time: write 2026-11-30T14:00, with an offset such as +01:00 or Z if it is "
            "not local, or unix seconds"
        ) from None


def progress(given: Sequence[str]) -> tuple[Progress, ...]:
    """The figures of ``NAME=VALUE[,VALUE...][:better=higher|lower]``. Raises AskedError."""
    found: dict[str, Progress] = {}
    for text in given:
        match = re.fullmatch(r"([A-Za-z_][\w.-]{0,63})=([^:]+)(?::better=(higher|lower))?", text)
        try:
            values = [float(value) for value in match[2].split(",")] if match else []
        except ValueError:
            values = []
        if not match or not values or not all(map(math.isfinite, values)) or min(values) < 0:
            raise AskedError(
                f"--progress {text[:80]!r} is none: write NAME=VALUE[,VALUE...][:better=higher|lower], such as "
                "items_per_second=1234 or p99_latency_seconds=0.052,0.050,0.055"
            )
        if len(values) > MOST_VALUES:
            raise AskedError(f"--progress {match[1]} has more than {MOST_VALUES} values")
        if match[1] in found:
            raise AskedError(f"--progress {match[1]} is given twice: several values are joined by commas")
        higher = match[3] == "higher" if match[3] else LESS_IS_BETTER.search(match[1]) is None
        found[match[1]] = Progress(match[1], tuple(values), higher)
    return tuple(found.values())
