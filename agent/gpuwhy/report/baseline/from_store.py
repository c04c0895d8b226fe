"""Samples from the local history: its minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuwhy.report.baseline.types import SIGNALS, BaselineError, Choice, Gpu, Sample
from gpuwhy.store import Facts, GpuRow, Reader, StoreError, WorkloadRow
from gpuwhy.store.types import MINUTE_S
from gpuwhy.verdict.summary import total
from gpuwhy.verdict.types import TimeSplit

_Key = tuple[str, str, str]


def read(path: Path, start_unix: float, end_unix: float, chosen: Choice) -> list[Gpu]:
    """The whole minutes of the window.

    Raises:
        BaselineError: the file cannot be read.

    """
    # Minutes that start before the window are not of it, and the last one has to end in it.
    first, last = start_unix, end_unix - MINUTE_S + 1
    try:
        with Reader(path) as store:
            rows = list(store.minutes(first, last))
            held = list(store.workload_minutes(first, last))
    except StoreError as error:
        raise BaselineError(str(error)) from error
    parts, names = _workloads(held, chosen)
    samples: dict[_Key, list[Sample]] = {}
    facts: dict[_Key, Facts] = {}
    for row in rows:
        gpu = row.gpu
        key = _key(gpu)
        if not chosen.takes(gpu.host, gpu.index, gpu.uuid):
            continue
        time = total(parts.get((row.start_unix, gpu), ())) if chosen.workload else row.time
        if row.time.observed > 0 and time.observed > 0:
            facts[key] = gpu
            samples.setdefault(key, []).append(_sample(row, time))
    return [
        Gpu(
            host=gpu.host,
            index=gpu.index,
            uuid=gpu.uuid,
            mig=gpu.mig,
            model=gpu.model,
            driver=gpu.driver,
            profile=gpu.profile,
            share_ratio=gpu.share_ratio,
            sources=("replay",) if gpu.source == "replay" else (),
            workloads=tuple(sorted(names.get(key, ()))),
            samples=tuple(samples[key]),
        )
        for key, gpu in facts.items()
    ]


def _key(gpu: Facts) -> _Key:
    return (gpu.host, gpu.uuid, gpu.mig)


def _workloads(
    rows: list[WorkloadRow], chosen: Choice
) -> tuple[Mapping[tuple[int, Facts], list[TimeSplit]], Mapping[_Key, set[str]]]:
    """The chosen workload's time by minute and GPU, and the names of all by GPU."""
    parts: dict[tuple[int, Facts], list[TimeSplit]] = {}
    names: dict[_Key, set[str]] = {}
    for row in rows:
        key = _key(row.gpu)
        names.setdefault(key, set()).add(row.workload.title)
        if chosen.is_of(row.workload.name, row.workload.namespace):
            parts.setdefault((row.start_unix, row.gpu), []).append(row.time)
    return parts, names


def _sample(row: GpuRow, time: TimeSplit) -> Sample:
    signals = {name: row.signals[name].mean for name in SIGNALS if name in row.signals}
    return Sample(row.start_unix + row.length_s, row.time.observed, time, row.energy_joules, signals)
