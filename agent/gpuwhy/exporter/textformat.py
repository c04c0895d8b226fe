"""How names, labels and values are written in the two Prometheus text formats.

Sample lines are the same in both; only the lines above a family and the end differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum

from prometheus_client.utils import floatToGoString

from gpuwhy.catalog import Series

format_value: Callable[[float], str] = floatToGoString

_SURROGATE = re.compile("[\ud800-\udfff]")


class Format(Enum):
    """An exposition format; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot carry, replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def sample_prefix(name: str, labels: Mapping[str, str]) -> str:
    """A sample line up to its value, labels sorted by name."""
    if not labels:
        return name
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"


def family_header(series: Series, wanted: Format) -> str:
    """The HELP, TYPE and UNIT lines above the samples of a series."""
    about = series.help.replace("\\", r"\\").replace("\n", r"\n")
    if wanted is Format.OPENMETRICS:
        about = about.replace('"', r"\"")
        unit = f"# UNIT {series.family} {series.unit}\n" if series.unit else ""
        return f"# HELP {series.family} {about}\n# TYPE {series.family} {series.kind}\n{unit}"
    kind = "gauge" if series.kind == "info" else series.kind
    return f"# HELP {series.name} {about}\n# TYPE {series.name} {kind}\n"


def _escape(value: str) -> str:
    return encodable(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
