"""Reads history from wherever the configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuwhy.config import Config
from gpuwhy.report.weekly import from_store
from gpuwhy.report.weekly.history import WEEKS_BEFORE, History, Progress, ReportError
from gpuwhy.report.weekly.periods import Span
from gpuwhy.store import StoreError, place

# Who asks for more than this compares it with one period before.
LONG_H = 15 * 24


def read(config: Config, span: Span, environ: Mapping[str, str], progress: Progress) -> History:
    """The hours of a span and of the weeks before it. Raises ReportError."""
    weeks = WEEKS_BEFORE if span.hours <= LONG_H else 1
    spans = (span, *(span.before(number) for number in range(1, weeks + 1)))
    source = config.report.source
    if source.startswith(("http://", "https://")):
        from gpuwhy.report.weekly import from_prometheus  # noqa: PLC0415  it needs the extra

        return from_prometheus.read(config, spans, progress)
    named = source.partition(":")[2]
    try:
        path = Path(named) if named else place.find(config.store, environ)
    except StoreError as error:
        raise ReportError(f"{error}; for a fleet, give --source the address of its Prometheus") from error
    return from_store.read(path, spans, progress)
