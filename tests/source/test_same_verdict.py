"""Every recording gives its verdict through NVML, through a DCGM host engine and through a dcgm-exporter."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpuwhy.daemon import NEEDS, STEADY, Pipeline
from gpuwhy.sample.signals import SIGNAL_OF_RAW
from gpuwhy.source import Reading
from gpuwhy.source.dcgm import DcgmSource
from gpuwhy.source.exporter import ExporterSource
from gpuwhy.source.ladder import Ladder, Rung, Source
from gpuwhy.source.nvml import NvmlSource
from gpuwhy.source.replay import load
from gpuwhy.verdict import Verdict
from gpuwhy.verdict.summary import summarise

from .fake_engine import FakeEngine, install
from .fake_exporter import FakeExporter
from .fake_nvml import RECORDINGS, FakeGpu, FakeNvml, load_into_pynvml

NAMES = sorted(file.name.removesuffix(".jsonl.gz") for file in RECORDINGS.glob("*.jsonl.gz"))
PERIOD_S = 1.0
START_S = 50_000.0

Make = Callable[[list[FakeGpu], "Clock", pytest.MonkeyPatch], Source]


class Clock:
    now = START_S

    def __call__(self) -> float:
        return self.now


def through_nvml(gpus: list[FakeGpu], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Source:
    library = FakeNvml(gpus, clock)
    library.loaded_s = START_S
    load_into_pynvml(monkeypatch, library)
    return NvmlSource(clock=clock, wall=clock)


def through_dcgm(gpus: list[FakeGpu], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Source:
    install(monkeypatch, FakeEngine(gpus, clock))
    return DcgmSource(clock=clock, wall=clock)


def through_exporter(gpus: list[FakeGpu], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Source:
    return ExporterSource(clock=clock, wall=clock, fetch=FakeExporter(gpus, clock).fetch)


SOURCES: dict[str, Make] = {"nvml": through_nvml, "dcgm": through_dcgm, "dcgm-exporter": through_exporter}


def seconds(name: str, devices: Ladder, clock: Clock) -> Iterator[Reading]:
    """A reading a second of the devices, joined with what the recording says of host and owners."""
    first_s = due_s = None
    for row in load(RECORDINGS / f"{name}.jsonl.gz").readings():
        first_s = row.end_s if first_s is None else first_s
        clock.now = START_S + row.end_s - first_s
        if due_s is not None and clock.now < due_s - 1e-6:
            continue
        due_s = clock.now + PERIOD_S
        owners = {gpu.facts.key: gpu.owners for gpu in row.gpus}
        reading = devices.read()
        yield replace(
            reading,
            host=None if row.host is None else replace(row.host, end_s=clock.now),
            gpus=tuple(replace(gpu, owners=owners[gpu.facts.key]) for gpu in reading.gpus),
        )


def judged(name: str, source: Source, clock: Clock) -> dict[int, dict[str, Any]]:
    """Each GPU's summary by index."""
    devices = Ladder(
        [Rung(source)], signal_of=SIGNAL_OF_RAW, steady=STEADY, needs=NEEDS, clock=clock, wall=clock
    )
    devices.start()
    stages = Pipeline(interval_s=5.0, hold=True)
    by_gpu: dict[int, list[Verdict]] = {}
    try:
        closed = [interval for reading in seconds(name, devices, clock) for interval in stages.feed(reading)]
    finally:
        devices.close()
    for interval in [*closed, *stages.finish()]:
        for verdict in interval.verdicts:
            by_gpu.setdefault(verdict.gpu.index, []).append(verdict)
    return {index: summarise(verdicts) for index, verdicts in by_gpu.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", SOURCES)
def test_same_verdict(source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdict and cause are those that the workload was built to have, whoever reads it."""
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz") as lines:
        header = json.loads(next(lines))
    gpus = [FakeGpu(name, place) for place in range(len(header["gpus"]))]
    clock = Clock()
    found = judged(name, SOURCES[source](gpus, clock, monkeypatch), clock)
    for label in header["labels"]:
        gpu = found[label["gpu"]]
        assert gpu["verdict"] in label["accept"], gpu
        if label["accept_causes"] and gpu["verdict"] == label["verdict"]:
            assert gpu["cause"] in label["accept_causes"], gpu
        if not gpu["reason"]:
            assert {each.partition("-")[0] for each in gpu["signals"].values()} <= {
                source.partition("-")[0],
                "host",
            }
