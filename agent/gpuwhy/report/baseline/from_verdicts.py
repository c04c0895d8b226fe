"""Samples from judged intervals: of this host now, or of a recording."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwhy.report.baseline.types import SIGNALS, Choice, Gpu, Sample
from gpuwhy.source import GpuFacts
from gpuwhy.verdict.summary import total
from gpuwhy.verdict.types import TimeSplit, Verdict


class Collector:
    """Takes verdicts as they come, keeps what a baseline needs of them, and forgets the rest."""

    def __init__(self, host: str, chosen: Choice) -> None:
        self._host = host
        self._chosen = chosen
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        self._facts: dict[tuple[str, str], GpuFacts] = {}
        self._limits: dict[tuple[str, str], float] = {}
        self._sources: dict[tuple[str, str], dict[str, None]] = {}
        self._workloads: dict[tuple[str, str], dict[str, None]] = {}
        self._warm_up: dict[tuple[str, str], float] = {}

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Adds the verdicts of one interval."""
        for verdict in verdicts:
            gpu = verdict.gpu
            if self._chosen.takes(self._host, gpu.index, gpu.uuid):
                self._add(verdict)

    def _add(self, verdict: Verdict) -> None:
        key = verdict.gpu.key
        time = self._time(verdict)
        if verdict.time.observed <= 0 or time.observed <= 0:
            return
        signals = {name: verdict.signals[name] for name in SIGNALS if name in verdict.signals}
        signals["verdict_confidence_ratio"] = verdict.confidence
        energy = verdict.increments.get("energy_joules")
        sample = Sample(verdict.unix_end_s, verdict.time.observed, time, energy, signals)
        self._samples.setdefault(key, []).append(sample)
        self._facts[key] = verdict.gpu
        limit = verdict.signals.get("power_limit_watts", verdict.gpu.power_limit_watts)
        if limit is not None:
            self._limits[key] = limit
        self._sources.setdefault(key, {}).update(dict.fromkeys(verdict.sources.values()))
        names = self._workloads.setdefault(key, {})
        names.update(dict.fromkeys(each.workload.title for each in verdict.workloads))
        if "warm-up" in verdict.flags:
            self._warm_up[key] = self._warm_up.get(key, 0.0) + verdict.time.observed

    def _time(self, verdict: Verdict) -> TimeSplit:
        if not self._chosen.workload:
            return verdict.time
        return total(
            each.time
            for each in verdict.workloads
            if self._chosen.is_of(each.workload.name, each.workload.namespace)
        )

    def gpus(self, workload: str = "") -> list[Gpu]:
        """What was collected; ``workload`` names it where the verdicts do not."""
        return [
            Gpu(
                self._host,
                facts.index,
                facts.uuid,
                facts.mig,
                facts.model,
                facts.driver,
                facts.profile,
                facts.share_ratio,
                self._limits.get(key),
                facts.sm_clock_max_hertz,
                tuple(sorted(self._sources[key])),
                tuple(sorted(self._workloads[key])) or ((workload,) if workload else ()),
                self._warm_up.get(key, 0.0),
                tuple(self._samples[key]),
            )
            for key, facts in self._facts.items()
        ]
