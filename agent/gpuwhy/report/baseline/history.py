"""Windows of the past, from the local store or a Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuwhy.config import Config
from gpuwhy.report.baseline import from_store
from gpuwhy.report.baseline.types import BaselineError, Choice, Gpu, Steps, checked
from gpuwhy.store import StoreError, place


def read(
    config: Config,
    span: tuple[float, float],
    chosen: Choice,
    environ: Mapping[str, str],
    progress: Steps,
) -> tuple[tuple[Gpu, ...], str, str]:
    """The GPUs of a window, where they were read from, and the version that judged.

    Raises:
        BaselineError: nothing was found, or the source cannot be read.

    """
    source = config.report.source
    if source.startswith(("http://", "https://")):
        from gpuwhy.report.baseline import from_prometheus  # noqa: PLC0415  it needs the extra

        found, version = from_prometheus.read(config, *span, chosen, progress)
        return checked(found, source, chosen), source, version
    named = source.partition(":")[2]
    try:
        path = Path(named) if named else place.find(config.store, environ)
    except StoreError as error:
        raise BaselineError(f"{error}; or give --source the address of a Prometheus") from error
    # The store does not say which version wrote it.
    return checked(from_store.read(path, *span, chosen), str(path), chosen), "store", ""
