"""Readings made by hand, through the sample stage into a builder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpuwhy.interval import Interval, IntervalBuilder
from gpuwhy.sample import Normaliser
from gpuwhy.source import GpuFacts, GpuReading, Part, Reading
from gpuwhy.workload import attribute

Gpus = Mapping[str, Mapping[str, Any] | None]


def reading(
    end_s: float, gpus: Gpus, *, span_s: float, period_s: float, restart: bool, owners: tuple[int, ...] | None
) -> Reading:
    """``gpus`` holds raw values by UUID, None for a GPU that is down."""
    return Reading(
        end_s=end_s,
        unix_s=end_s + 1.8e9,
        span_s=span_s,
        period_s=period_s,
        gpus=tuple(
            GpuReading(
                GpuFacts(at, uuid),
                () if values is None else (Part("nvml", values),),
                owners=owners,
                up=values is not None,
            )
            for at, (uuid, values) in enumerate(gpus.items())
        ),
        restart=restart,
    )


class Host:
    """A host whose readings go through sample, workload and interval; collects what comes out."""

    def __init__(self, *, interval_s: float = 5.0, hold: bool = False, start_s: float = 100.0) -> None:
        self.normaliser = Normaliser()
        self.builder = IntervalBuilder(interval_s, hold=hold)
        self.now_s = start_s
        self.done: list[list[Interval]] = []
        self.samples: list[Any] = []

    def read(
        self,
        gpus: Gpus | None = None,
        *,
        after_s: float = 1.0,
        span_s: float | None = None,
        period_s: float = 1.0,
        restart: bool = False,
        owners: tuple[int, ...] | None = (),
        times: int = 1,
    ) -> list[list[Interval]]:
        """What the next reading completes, or the next ``times`` of them."""
        done: list[list[Interval]] = []
        for _ in range(times):
            self.now_s += after_s
            look = reading(
                self.now_s,
                {"a": {"sm_util": 50}} if gpus is None else gpus,
                span_s=after_s if span_s is None else span_s,
                period_s=period_s,
                restart=restart,
                owners=owners,
            )
            samples = attribute(self.normaliser.samples(look))
            self.samples += samples
            done += self.builder.add(look, samples)
        self.done += done
        return done

    def advance(self, now_s: float, period_s: float = 1.0) -> list[list[Interval]]:
        done = self.builder.advance(now_s, now_s + 1.8e9, period_s)
        self.done += done
        return done

    def finish(self) -> list[list[Interval]]:
        done = self.builder.finish()
        self.done += done
        return done


@pytest.fixture(scope="session")  # a class: nothing of it is shared between examples
def new_host() -> type[Host]:
    return Host


@pytest.fixture
def host() -> Host:
    return Host()
