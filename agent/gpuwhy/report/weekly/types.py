"""What a report says, in figures: every format shows this, and JSON is exactly this.

Hours are GPU-hours, a MIG slice by its share; ratios are 0-1; None is "not known". Times are ISO 8601 with
their offset from UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = "gpuwhy-report/1"


@dataclass(frozen=True, slots=True)
class Hours:
    """Where the hours of one group went.

    ``observed = useful + lost + headroom + free + unattributed``. Of workloads and owners headroom is not
    known apart (None) and stands in ``unattributed``, and ``observed`` is the time that they held GPUs.
    ``efficiency`` is useful over measured, None where nothing was measured.
    """

    observed: float
    measured: float
    useful: float
    lost: float
    headroom: float | None
    free: float | None
    unattributed: float
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class Past:
    """What is read of the weeks before of everything but the fleet."""

    measured: float
    useful: float
    lost: float
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """Hours charged to one cause.

    ``confirmed`` and ``to_investigate`` add up to them; of single GPUs they are not told apart (None).
    """

    verdict: str
    cause: str
    hours: float
    confirmed: float | None
    to_investigate: float | None


@dataclass(frozen=True, slots=True)
class Headline:
    """Hours by the verdict that each interval got, which says nothing yet of hours to be won."""

    verdict: str
    cause: str
    hours: float


@dataclass(frozen=True, slots=True)
class Group:
    """One host, model, workload, owner or GPU, or the fleet.

    ``labels`` are those of its level; ``hosts`` where it ran, as far as known. ``losses`` and ``verdicts`` are
    sorted by hours. ``before`` is the week before, None where there is none to compare with, and
    ``efficiencies`` those of the weeks before, the newest first.
    """

    level: str
    labels: Mapping[str, str]
    hosts: tuple[str, ...]
    hours: Hours
    losses: tuple[Loss, ...]
    verdicts: tuple[Headline, ...]
    before: Past | None
    efficiencies: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to mend, and what is known of it.

    ``evidence`` are sentences of figures; ``steps`` what to do next, the quickest test first; ``confirm``
    which result of the first settles it. ``money`` is what its hours cost, None without a price.
    """

    level: str
    labels: Mapping[str, str]
    hosts: tuple[str, ...]
    loss: Loss
    money: float | None
    meaning: str
    evidence: tuple[str, ...]
    steps: tuple[str, ...]
    confirm: str
    when_normal: str


@dataclass(frozen=True, slots=True)
class Week:
    """One of the weeks that are compared, or the same part of it. ``available`` says whether it counts."""

    name: str
    start: str
    end: str
    hours_expected: int
    hours_seen: int
    available: bool
    hours: Hours
    lost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure against the week before, and the median of ``available`` weeks before.

    ``unit`` is "ratio" or "hours"; ``good`` says whether more of it is better, None = neither.
    """

    name: str
    unit: str
    good: bool | None
    now: float | None
    before: float | None
    median: float | None
    available: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one part added to a change of efficiency, as differences of ratios."""

    labels: Mapping[str, str]
    mix: float
    rate: float


@dataclass(frozen=True, slots=True)
class Explained:
    """A change of efficiency against the week before: ``mix + rate`` is ``now - before``.

    ``by`` is the level of the parts; ``parts`` are those that moved it most.
    """

    by: str
    now: float
    before: float
    mix: float
    rate: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Worse:
    """A group that is less efficient than the median of its own weeks before.

    ``hours`` is how many of its measured hours would be useful at that median and are not. ``since`` is the
    day from which it is lower, None where no day stands out. ``explained`` is None where its parts are not known.
    """

    level: str
    labels: Mapping[str, str]
    efficiency: float
    past: float
    weeks: int
    hours: float
    since: str | None
    explained: Explained | None


@dataclass(frozen=True, slots=True)
class Day:
    """One day of the calendar."""

    date: str
    hours_expected: int
    hours: Hours
    lost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One host, hour by hour: which verdict lost most, and what share of the observed time was lost.

    ``lost`` is None where nothing was observed.
    """

    host: str
    verdicts: tuple[str, ...]
    lost: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Throttling:
    """One host and reason: hours that were throttled by their headline, and hours lost by it."""

    host: str
    cause: str
    hours: float
    lost: float


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that somebody held and that did nothing (``held``), or served little (``no_demand``)."""

    level: str
    labels: Mapping[str, str]
    hosts: tuple[str, ...]
    held: float
    no_demand: float


@dataclass(frozen=True, slots=True)
class About:
    """What the report is of. ``hours_seen`` are hours in which anything was observed, of ``hours_expected``."""

    name: str
    start: str
    end: str
    timezone: str
    complete: bool
    hours_expected: int
    hours_seen: int
    source: str
    generated: str
    version: str
    price_per_gpu_hour: float | None
    currency: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. Lists are sorted, what matters most first."""

    schema: str
    about: About
    headline: str
    notes: tuple[str, ...]
    definitions: tuple[str, ...]
    gpus: int
    hosts: int
    fleet: Group
    changes: tuple[Change, ...]
    weeks: tuple[Week, ...]
    fixes: tuple[Fix, ...]
    explained: tuple[Explained, ...]
    worse: tuple[Worse, ...]
    held: tuple[Held, ...]
    throttling: tuple[Throttling, ...]
    days: tuple[Day, ...]
    heat: tuple[HeatRow, ...]
    groups: tuple[Group, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing at all was observed."""
        return not self.fleet.hours.observed

    def of(self, level: str) -> tuple[Group, ...]:
        """The groups of a level."""
        return tuple(group for group in self.groups if group.level == level)
