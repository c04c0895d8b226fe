"""What the sampling thread hands to the scrapes: everything to show, and nothing that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwhy.catalog import Series
from gpuwhy.source import GpuFacts
from gpuwhy.verdict.types import Verdict

GpuKey = tuple[str, str]  # ``GpuFacts.key``

STALE_INTERVALS = 3  # readings older than this many intervals say nothing about now


@dataclass(frozen=True, slots=True)
class Health:
    """What only the daemon knows about the state of sources and GPUs.

    ``gpu_up`` is by ``GpuFacts.key``, ``source_up`` has one entry per source in use; a GPU or
    source that is missing has no series. ``degraded`` is True while a lower source stands in for
    one that was lost. ``last_sample_unix_s`` is the wall-clock end of the last device reading,
    None before the first. ``source_yielding`` is True for a source whose profiling is paused or taken
    by another tool. ``expected_gpus`` is what the configuration says this host has, 0 = it does not say.
    ``store_up`` says whether local history is kept, and ``store_dropped_s`` the seconds of GPUs it left out;
    None = it is switched off.
    """

    gpu_up: Mapping[GpuKey, bool] = field(default_factory=dict)
    source_up: Mapping[str, bool] = field(default_factory=dict)
    degraded: bool = False
    last_sample_unix_s: float | None = None
    source_yielding: Mapping[str, bool] = field(default_factory=dict)
    expected_gpus: int = 0
    store_up: bool | None = None
    store_dropped_s: float | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """The samples of one series: each a prebuilt line up to its value, and the value."""

    series: Series
    samples: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One row of the status page; ``up`` and ``verdict`` are None while nothing is known."""

    facts: GpuFacts
    up: bool | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at ``taken_s`` on the monotonic clock, families in the catalogue's order.

    ``judged`` counts the intervals credited so far, ``dropped`` the values the ledger refused.
    """

    taken_s: float
    interval_s: float
    judged: int
    families: tuple[Family, ...]
    gpus: tuple[GpuNow, ...]
    sources: tuple[str, ...] = ()
    dropped: int = 0
    health: Health = field(default_factory=Health)

    def stale(self, now_s: float) -> bool:
        """Whether it is too old to speak about now."""
        return now_s - self.taken_s > STALE_INTERVALS * self.interval_s

    @property
    def replaying(self) -> bool:
        """Whether a recording is shown instead of this host."""
        return any(source.startswith("replay") for source in self.sources)
