"""Counters of one identity, as the lines in which they are scraped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from gpuwhy.catalog import Series
from gpuwhy.exporter.textformat import sample_prefix

Child = tuple[str, ...]  # values of a series' own labels

OWED_INTERVALS = (
    24  # two minutes: whoever scrapes for the first time later takes it for long past, which it is
)


class _Cell:
    """One counter: its sample line up to the value, and the value."""

    __slots__ = ("owed", "prefix", "value")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.value = 0.0
        self.owed: tuple[int, float] | None = None  # the interval since which it is shown at 0, and its gain


class Row:
    """The counters of one identity, and the sample lines it has needed so far."""

    __slots__ = ("_counters", "_labels", "_owing", "_prefixes")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._prefixes: dict[tuple[str, Child], str] = {}
        self._counters: dict[str, dict[Child, _Cell]] = {}
        self._owing: list[_Cell] = []

    def prefix(self, series: Series, child: Child) -> str:
        found = self._prefixes.get((series.name, child))
        if found is None:
            own = zip(series.own_labels, child, strict=True)
            found = sample_prefix(series.name, {**self._labels, **dict(own)})
            self._prefixes[series.name, child] = found
        return found

    def start(self, series: Series, children: Iterable[Child]) -> None:
        """Show these children, those that are new at 0."""
        cells = self._counters.setdefault(series.name, {})
        for child in children:
            if child not in cells:
                cells[child] = _Cell(self.prefix(series, child))

    def add(self, series: Series, child: Child, gain: object) -> bool:
        """Whether the gain was credited: finite, not negative, and of a child that was started."""
        cell = self._counters[series.name].get(child)
        if cell is None or not is_gain(gain):
            return False
        cell.value += gain
        return True

    def occur(self, series: Series, child: Child, gain: object, interval: int) -> bool:
        """Likewise for a child that is shown only once it gained something, ``interval`` being the number of this one.

        It is shown at 0, and what it gains is owed until ``settle`` says that the 0 was scraped, or was there
        for ``OWED_INTERVALS``: Prometheus counts an increase only from a value that it has seen.
        """
        if not is_gain(gain):
            return False
        cells = self._counters.setdefault(series.name, {})
        cell = cells.get(child)
        if cell is None and gain:
            cell = cells[child] = _Cell(self.prefix(series, child))
            cell.owed = (interval, gain)
            self._owing.append(cell)
        elif cell is not None and cell.owed is not None:
            cell.owed = (cell.owed[0], cell.owed[1] + gain)
        elif cell is not None:
            cell.value += gain
        return True

    def settle(self, scraped: int, interval: int) -> None:
        """Count what is owed to children that were at 0 in the scraped interval, or for long in the one that ends now."""
        newest = max(scraped, interval - OWED_INTERVALS)
        for cell in self._owing:
            if cell.owed is not None and cell.owed[0] <= newest:
                cell.value, cell.owed = cell.owed[1], None
        self._owing = [cell for cell in self._owing if cell.owed is not None]

    def counters(self, series: Series) -> Iterator[tuple[str, float]]:
        for cell in self._counters.get(series.name, {}).values():
            yield cell.prefix, cell.value


def is_gain(value: object) -> TypeGuard[float]:
    # One NaN would stay in its total for the life of the process; it fails both comparisons.
    return isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max
