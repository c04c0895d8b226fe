"""How gpuwhy's series are written in PromQL, under the options of section ``render``.

Rules, alerts and dashboards write no series' name by hand: what is asked for here is in the catalogue, or
is recorded, or raises. All that comes out is valid in Prometheus from 2.42 on, and in 3.x.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuwhy.catalog import IDENTITY, PREFIX, SERIES
from gpuwhy.config import RenderConfig

_SAMPLES = {name.removeprefix(PREFIX) for series in SERIES for name in series.sample_names}


@dataclass(frozen=True, slots=True)
class Promql:
    """Selectors and label lists of one configuration."""

    options: RenderConfig = field(default_factory=RenderConfig)

    @property
    def host(self) -> str:
        """The label that tells hosts apart."""
        return self.options.host_label

    @property
    def row(self) -> tuple[str, ...]:
        """The labels that tell rows (GPUs, MIG instances) apart over all hosts."""
        return (self.host, *IDENTITY)

    def raw(self, stem: str, *matchers: str, window: str = "") -> str:
        """A series of the catalogue by its name without prefix, with the user's matchers and these.

        Raises KeyError for a name that the catalogue lacks.
        """
        if stem not in _SAMPLES:
            raise KeyError(f"{PREFIX}{stem} is not in the catalogue")
        return f"{PREFIX}{stem}{braces(self.options.selector, *matchers)}{_window(window)}"

    def increase(self, stem: str, window: str, *matchers: str) -> str:
        """What a counter of the catalogue gained in a window."""
        return f"increase({self.raw(stem, *matchers, window=window)})"


def braces(*matchers: str) -> str:
    """Matchers in their braces; nothing for none. Empty ones are left out."""
    given = [matcher.strip() for matcher in matchers if matcher.strip()]
    return f"{{{','.join(given)}}}" if given else ""


def over(name: str, window: str, *matchers: str) -> str:
    """A recorded series over a window such as ``7d:1h``."""
    return f"{name}{braces(*matchers)}{_window(window)}"


def by(labels: Iterable[str]) -> str:
    """The grouping of an aggregation: `` by (a, b)``, or nothing where all are summed up."""
    joined = ", ".join(labels)
    return f" by ({joined})" if joined else ""


def duration(seconds: float) -> str:
    """Whole seconds as PromQL writes them, in one unit: 3600 is ``1h``, 90 is ``90s``."""
    whole = round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _window(window: str) -> str:
    return f"[{window}]" if window else ""
