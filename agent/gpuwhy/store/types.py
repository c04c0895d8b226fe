"""What history holds, as it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwhy.sample import Workload
from gpuwhy.verdict.types import TimeSplit

MINUTE_S = 60
HOUR_S = 3600


class StoreError(Exception):
    """History cannot be read or kept; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row's GPU was at that time; a change of any of it makes facts of their own.

    ``source`` is "live", or "replay" for recordings that were played into the file. ``share_ratio`` weighs
    the row: GPU-seconds are its seconds times that. ``first_unix`` and ``last_unix`` are the hours, by their
    start, in which it was first and last seen.
    """

    index: int
    uuid: str
    mig: str
    model: str
    driver: str
    profile: str
    share_ratio: float
    host: str
    source: str
    first_unix: int
    last_unix: int

    @property
    def key(self) -> tuple[str, str]:
        """Row identity, the same as of ``GpuFacts``: (uuid, mig)."""
        return (self.uuid, self.mig)


@dataclass(frozen=True, slots=True)
class Level:
    """One signal over a row's time.

    ``mean`` is over the time in which it was read. ``p95`` is the 95th percentile of the means of a
    minute's intervals, and of an hour the largest of its minutes'.
    """

    mean: float
    p95: float


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU (or MIG row) over ``length_s`` seconds of wall-clock time from ``start_unix``: a minute or an hour.

    Seconds are the row's own, not weighed by its share. ``time.observed`` may exceed ``length_s`` where a clock
    was set back, and is less where the agent did not run. ``energy_joules`` is None where it was not read.
    ``signals`` are by signal name, absent = not read; ``verdict_confidence_ratio`` is among them.
    Where facts change within a row's time, there are two rows of one identity; they add up.
    """

    start_unix: int
    length_s: int
    gpu: Facts
    time: TimeSplit
    energy_joules: float | None = None
    signals: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload on one GPU over the same time.

    ``time`` is its part of the time that was read, so ``time.observed`` are the seconds that it held the GPU;
    ``ratio`` is that over what was read of the GPU in the row (1 = alone and all the time).
    """

    start_unix: int
    length_s: int
    gpu: Facts
    workload: Workload
    ratio: float
    time: TimeSplit


@dataclass(frozen=True, slots=True)
class Span:
    """What time history speaks of: hours from ``first_unix`` on, minutes from ``first_minute_unix`` on.

    Both are starts; ``end_unix`` is the end of the newest minute. Old minutes go before their hours do.
    """

    first_unix: int
    first_minute_unix: int
    end_unix: int
