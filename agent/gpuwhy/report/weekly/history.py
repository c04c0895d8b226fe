"""What a report is made of: GPU-seconds by hour, group and quantity, from whichever source."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpuwhy.report.weekly.periods import Span

# Levels are those of ``recorded.LEVELS`` but gpu; a group is the values of its level's labels, in their order.
Group: TypeAlias = tuple[str, ...]
# (quantity of ``recorded.QUANTITIES``, verdict, cause); "" where a quantity has none.
Stream: TypeAlias = tuple[str, str, str]
Row: TypeAlias = dict[Stream, "array[float]"]
Table: TypeAlias = dict[Group, Row]

USEFUL: Stream = ("useful", "", "")
MEASURED: Stream = ("measured", "", "")
OBSERVED: Stream = ("observed", "", "")
HEADROOM: Stream = ("headroom", "", "")
FREE: Stream = ("free", "", "")
LOST: Stream = ("lost", "", "")  # of all causes together, in the weeks before

WEEKS_BEFORE = 4
# How much a source is asked about the weeks before: of the fleet everything, of these levels sums alone.
SUMMED = ("instance", "model", "workload", "owner")

# How far reading has come: steps done, and steps in all.
Progress: TypeAlias = Callable[[int, int], None]


class ReportError(Exception):
    """No report can be made; the message says why and what to do."""


class AskedError(ReportError):
    """What was asked for is no period or time zone."""


@dataclass(frozen=True, slots=True)
class Window:
    """GPU-seconds of each hour of a span, by level. What is not there is 0.

    Seconds are those of whole GPUs at every level: a MIG slice counts by its share. At the levels workload
    and owner there is no observed time: what they held is the sum of their verdicts. Of single GPUs, of which
    there are many, only the ``gpus`` of the period are read, as sums of its hours, without verdicts.
    """

    span: Span
    tables: Mapping[str, Table]
    gpus: Mapping[Group, Mapping[Stream, float]] = field(default_factory=dict)

    def table(self, level: str) -> Table:
        return self.tables.get(level, {})

    @property
    def fleet(self) -> Row:
        return self.table("fleet").get((), {})


@dataclass(frozen=True, slots=True)
class History:
    """The hours of the period, and of the weeks before it, the newest first.

    ``places`` are the hosts of workloads that lost most; ``notes`` are sentences about what the source
    could not say.
    """

    source: str
    period: Window
    before: tuple[Window, ...]
    places: Mapping[Group, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Gatherer:
    """Sums seconds up by level, group, stream and hour."""

    def __init__(self, hours: int) -> None:
        self._hours = hours
        self.tables: dict[str, Table] = {}

    def row(self, level: str, group: Group) -> Row:
        return self.tables.setdefault(level, {}).setdefault(group, {})

    def series(self, level: str, group: Group, stream: Stream) -> array[float]:
        """The hours of one stream, to add to."""
        row = self.row(level, group)
        if stream not in row:
            row[stream] = array("d", bytes(8 * self._hours))
        return row[stream]

    def add(self, level: str, group: Group, streams: Iterable[tuple[Stream, float]], hour: int) -> None:
        """Adds what one hour has of each stream."""
        for stream, seconds in streams:
            if seconds > 0:
                self.series(level, group, stream)[hour] += seconds

    def merge(self, level: str, group: Group, stream: Stream, values: array[float]) -> None:
        """Adds all hours of one stream; takes the array over."""
        row = self.row(level, group)
        if stream in row:
            values = array("d", map(operator.add, row[stream], values))
        row[stream] = values
