"""Evidence in words and units that people read."""

from __future__ import annotations

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_UNITS = (("_watts", " W"), ("_celsius", " °C"), ("_cores", " cores"), ("_seconds", " s"))


def human(signal: str, value: float) -> str:
    """A value with the unit that its signal's name says, short enough for a table."""
    if signal.endswith("_hertz"):
        return f"{value / 1e6:.0f} MHz"
    if "bytes" in signal:
        per = "/s" if "per" in signal else ""
        for size, unit in _SIZES:
            if abs(value) >= size:
                return f"{value / size:.3g} {unit}{per}"
        return f"{value:.0f} B{per}"
    value = round(value, 4)  # no powers of ten: what is that small is nothing
    for suffix, unit in _UNITS:
        if signal.endswith(suffix):
            return f"{value:.4g}{unit}"
    return f"{value:.3g}"


def human_test(signal: str, test: str) -> str:
    """A test such as ``< 1.683e+09`` with its number in the signal's unit; other tests as they are."""
    operator, _, number = test.partition(" ")
    try:
        return f"{operator} {human(signal, float(number))}"
    except ValueError:
        return test
