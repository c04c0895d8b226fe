"""History from the local store: the hours of one host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuwhy.report.weekly.history import (
    FREE,
    HEADROOM,
    LOST,
    MEASURED,
    OBSERVED,
    USEFUL,
    Gatherer,
    Group,
    History,
    Progress,
    ReportError,
    Stream,
    Window,
)
from gpuwhy.report.weekly.periods import HOUR_S, Span
from gpuwhy.store import GpuRow, Reader, StoreError, WorkloadRow
from gpuwhy.verdict.types import TimeSplit

_PLAYED = (
    "The history holds recordings that were played into it: these are not this host's own hours, and at a speed other "
    "than 1 they hold more time than passed."
)


def read(path: Path, spans: tuple[Span, ...], progress: Progress) -> History:
    """The period, and the spans before it. Raises ReportError."""
    try:
        with Reader(path) as store:
            return _read(store, path, spans, progress)
    except StoreError as error:
        raise ReportError(str(error)) from error


def _read(store: Reader, path: Path, spans: tuple[Span, ...], progress: Progress) -> History:
    windows = []
    places: dict[Group, set[str]] = {}
    hosts: dict[str, None] = {}
    sources: dict[str, None] = {}
    for number, span in enumerate(spans):
        gatherer = Gatherer(span.hours)
        gpus: dict[Group, dict[Stream, float]] = {}
        first = span.start_unix // HOUR_S * HOUR_S
        for row in store.hours(first, span.end_unix):
            hosts[row.gpu.host] = sources[row.gpu.source] = None
            for hour, part in _hours(row.start_unix, span):
                _add_gpu(gatherer, gpus, row, hour, part, whole=number == 0)
        for each in store.workload_hours(first, span.end_unix):
            workload = each.workload
            group = (workload.kind, workload.name, workload.namespace, workload.owner)
            for hour, part in _hours(each.start_unix, span):
                _add_workload(gatherer, group, each, hour, part, whole=number == 0)
                if number == 0:
                    places.setdefault(group, set()).add(each.gpu.host)
        windows.append(Window(span, gatherer.tables, gpus))
        progress(number + 1, len(spans))
    notes = (_PLAYED,) if "replay" in sources else ()
    name = f"local history of {', '.join(hosts) or 'this host'} ({path})"
    found = {group: tuple(sorted(seen)) for group, seen in places.items()}
    return History(name, windows[0], tuple(windows[1:]), found, notes)


def _hours(start_unix: int, span: Span) -> Iterator[tuple[int, float]]:
    """Which hours of the span an hour of the store is in, and with what part of it.

    Where clocks differ from UTC by half hours, it lies in two of them.
    """
    first, into = divmod(start_unix - span.start_unix, HOUR_S)
    for hour, part in ((first, 1 - into / HOUR_S), (first + 1, into / HOUR_S)):
        if part and 0 <= hour < span.hours:
            yield hour, part


def _add_gpu(
    gatherer: Gatherer,
    gpus: dict[Group, dict[Stream, float]],
    row: GpuRow,
    hour: int,
    part: float,
    *,
    whole: bool,
) -> None:
    gpu = row.gpu
    weight = gpu.share_ratio * part
    everything = list(_streams(row.time, weight))
    sums = list(_sums(row.time, weight, USEFUL, MEASURED, OBSERVED))
    gatherer.add("fleet", (), everything, hour)
    if whole:
        sums_of_gpu = gpus.setdefault((gpu.host, str(gpu.index), gpu.uuid, gpu.mig), {})
        for stream, seconds in everything:
            if stream[0] != "verdict" and seconds > 0:
                sums_of_gpu[stream] = sums_of_gpu.get(stream, 0.0) + seconds
    for level, group in (("instance", (gpu.host,)), ("model", (gpu.model,))):
        gatherer.add(level, group, everything if whole else sums, hour)


def _add_workload(
    gatherer: Gatherer, group: Group, row: WorkloadRow, hour: int, part: float, *, whole: bool
) -> None:
    weight = row.gpu.share_ratio * part
    if whole:
        streams = [
            (stream if stream[0] != "verdict" else ("verdict", stream[1], ""), seconds)
            for stream, seconds in _streams(row.time, weight)
            if stream[0] in {"useful", "measured", "lost", "verdict"}
        ]
    else:
        streams = list(_sums(row.time, weight, USEFUL, MEASURED))
    gatherer.add("workload", group, streams, hour)
    gatherer.add("owner", group[-1:], streams, hour)


def _streams(time: TimeSplit, weight: float) -> Iterator[tuple[Stream, float]]:
    yield from _sums(time, weight, USEFUL, MEASURED, OBSERVED, HEADROOM, FREE, lost=False)
    for quantity, seconds in (("lost", time.lost), ("verdict", time.verdict)):
        for (verdict, cause), each in seconds.items():
            yield (quantity, verdict, cause), each * weight


def _sums(
    time: TimeSplit, weight: float, *streams: Stream, lost: bool = True
) -> Iterator[tuple[Stream, float]]:
    for stream in streams:
        yield stream, getattr(time, stream[0]) * weight
    if lost:
        yield LOST, sum(time.lost.values()) * weight
