"""Readings made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpuwhy.sample import Normaliser, Sample
from gpuwhy.source import GpuFacts, GpuReading, HostReading, Part, Reading

FACTS = GpuFacts(0, "GPU-a")


class Feed:
    """One GPU's readings, a second apart unless told otherwise, through one ``Normaliser``."""

    def __init__(self) -> None:
        self.normaliser = Normaliser()
        self.now_s = 1000.0

    @property
    def rejected(self) -> dict[tuple[str, str], int]:
        return dict(self.normaliser.rejected)

    def read(
        self,
        values: Mapping[str, Any] | None = None,
        *parts: Part,
        after_s: float = 1.0,
        period_s: float = 1.0,
        span_s: float | None = None,
        restart: bool = False,
        host: Mapping[str, Any] | None = None,
        processes: list[Mapping[str, Any]] | None = None,
        cgroups: Mapping[str, Mapping[str, Any]] | None = None,
        owners: tuple[int, ...] | None = (),
        facts: GpuFacts = FACTS,
        process_use: Mapping[int, Any] | None = None,
    ) -> Sample | None:
        """The sample of the next reading, None where there is none."""
        self.now_s += after_s
        span = after_s if span_s is None else span_s
        looked = host is not None or processes is not None
        samples = self.normaliser.samples(
            Reading(
                end_s=self.now_s,
                unix_s=self.now_s + 1.8e9,
                span_s=span,
                period_s=period_s,
                gpus=(
                    GpuReading(
                        facts,
                        parts or (Part("nvml", values or {}),),
                        owners=owners,
                        process_use=process_use,
                    ),
                ),
                host=HostReading(
                    end_s=self.now_s,
                    span_s=span,
                    values=host,
                    processes=None if processes is None else tuple(processes),
                    cgroups=cgroups,
                )
                if looked
                else None,
                restart=restart,
            )
        )
        return samples[0] if samples else None


@pytest.fixture
def feed() -> Feed:
    return Feed()
