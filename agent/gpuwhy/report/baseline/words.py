"""Figures in words, the same in text, Markdown and sentences."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo

from gpuwhy.report.baseline.types import Baseline
from gpuwhy.report.weekly.words import MINUS, NOT_KNOWN, clean
from gpuwhy.verdict.words import human

__all__ = ["MINUS", "NOT_KNOWN", "clean"]

# The scale and unit that a base unit is shown in; others as they are.
SCALES: dict[str, tuple[float, str]] = {
    "watts": (1.0, "W"),
    "joules per second": (1.0, "J/s"),
    "hertz": (1e-6, "MHz"),
    "celsius": (1.0, "°C"),
}


def percent(ratio: float | None, digits: int = 1) -> str:
    return NOT_KNOWN if ratio is None else f"{100 * ratio:.{digits}f} %"


def signed(number: float, text: Callable[[float], str]) -> str:
    """With its sign, none for what reads as 0."""
    said = text(abs(number))
    if not any(digit in said for digit in "123456789"):
        return said
    return f"{'+' if number > 0 else MINUS}{said}"


def signed_percent(ratio: float) -> str:
    return signed(ratio, percent)


def points(difference: float) -> str:
    """A difference of ratios, in percentage points."""
    return signed(difference, lambda size: f"{100 * size:.1f} points")


def level(unit: str, value: float | None) -> str:
    """A value of that unit."""
    if value is None:
        return NOT_KNOWN
    if unit == "ratio":
        return percent(value)
    scale, name = SCALES.get(unit, (1.0, ""))
    number = f"{value * scale:.0f}" if unit in SCALES else f"{value:.4g}"
    return f"{number} {name}".rstrip()


def seconds(length: float) -> str:
    """A length of time for people: 45 s, 15 min, 2.5 h."""
    if length < 120:
        return f"{length:.0f} s"
    return f"{length / 60:.3g} min" if length < 7200 else f"{length / 3600:.3g} h"


def moment(unix: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(unix, zone).strftime("%Y-%m-%d %H:%M:%S")


def source(baseline_source: str) -> str:
    """Where a window was read from, in a word or two."""
    kind = baseline_source.partition(":")[0]
    return {"replay": "a recording", "http": "Prometheus", "https": "Prometheus"}.get(kind, kind)


def power_limit(watts: float | None) -> str:
    return "" if watts is None else human("power_watts", watts)


def clock(hertz: float | None) -> str:
    return "" if hertz is None else human("sm_clock_hertz", hertz)


def warm_up(baseline: Baseline) -> str:
    """How long its processes were young, "" where the source does not say."""
    if source(baseline.source) in {"store", "Prometheus"}:
        return ""
    most = max(gpu.warm_up_s for gpu in baseline.gpus)
    return seconds(most) if most else "none"
