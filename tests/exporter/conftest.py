"""Hand-made verdicts, and scrapes read back by prometheus_client's own parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gpuwhy import catalog
from gpuwhy.exporter import Exposition, Format, Health, HostIncrements, Ledger, Snapshot
from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuFacts
from gpuwhy.verdict.types import Evidence, TimeSplit, Verdict, WorkloadVerdict

MakeFacts = Callable[..., GpuFacts]
MakeVerdict = Callable[..., Verdict]
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Read:
    """A scrape as values by name and labels."""

    def __init__(self, values: Values) -> None:
        self.values = values

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def get(self, stem: str, **labels: str) -> float | None:
        """The one sample of ``gpuwhy_<stem>`` with at least these labels, None when there is none."""
        found = [
            value
            for (name, has), value in self.values.items()
            if name == catalog.PREFIX + stem and labels.items() <= has
        ]
        assert len(found) <= 1, f"{stem} {labels} is not one series"
        return found[0] if found else None

    def count(self, stem: str, **labels: str) -> int:
        return sum(name == catalog.PREFIX + stem and labels.items() <= has for name, has in self.values)

    def total(self, stem: str, **labels: str) -> float:
        return sum(
            value
            for (name, has), value in self.values.items()
            if name == catalog.PREFIX + stem and labels.items() <= has
        )


def read_text(text: str) -> Read:
    families = text_string_to_metric_families(text)
    return Read({(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples})


@pytest.fixture(scope="session")
def read() -> Callable[[Snapshot], Read]:
    """Renders a fresh snapshot as text and reads it back."""

    def scrape(snapshot: Snapshot) -> Read:
        exposition = Exposition(clock=lambda: snapshot.taken_s, process=CollectorRegistry())
        exposition.publish(snapshot)
        return read_text(exposition.scrape(Format.TEXT).decode())

    return scrape


@pytest.fixture(scope="session")
def read_bytes() -> Callable[[bytes], Read]:
    return lambda content: read_text(content.decode())


@pytest.fixture(scope="session")
def facts() -> MakeFacts:
    def make(index: int = 0, **changes: Any) -> GpuFacts:
        known: dict[str, Any] = {
            "index": index,
            "uuid": f"GPU-{index:08d}",
            "model": "NVIDIA H200",
            "pci_bus_id": f"00000000:{index:02d}:00.0",
            "compute_capability": "9.0",
            "driver": "575.51.03",
            "power_limit_watts": 700.0,
            "sm_clock_max_hertz": 1.98e9,
            "memory_total_bytes": 150e9,
        }
        return GpuFacts(**{**known, **changes})

    return make


@pytest.fixture(scope="session")
def tenancy() -> Callable[..., WorkloadVerdict]:
    """A pod alone on its GPU for 5 s, judged ``starving/copy``, unless told otherwise."""

    def make(name: str = "llama", **changes: Any) -> WorkloadVerdict:
        workload = Workload("kubernetes", name, "ml", "research")
        known: dict[str, Any] = {
            "workload": workload,
            "tenants": (Tenant(workload, run=f"{name}-0"),),
            "ratio": 1.0,
            "basis": "alone",
            "verdict": "starving",
            "cause": "copy",
            "confidence": 0.8,
            "evidence": (Evidence("graphics_active_ratio", 0.25, "< 0.60"),),
            "time": TimeSplit(
                observed=5.0,
                measured=5.0,
                useful=1.0,
                lost={("starving", "copy"): 3.5},
                verdict={("starving", "copy"): 5.0},
            ),
        }
        return WorkloadVerdict(**{**known, **changes})

    return make


@pytest.fixture(scope="session")
def judge(facts: MakeFacts, tenancy: Callable[..., WorkloadVerdict]) -> MakeVerdict:
    """An interval of 5 s judged ``starving/copy`` with every signal read, unless told otherwise."""

    def make(
        gpu: GpuFacts | None = None, verdict: str = "starving", cause: str = "copy", **changes: Any
    ) -> Verdict:
        key = (verdict, cause)
        known: dict[str, Any] = {
            "gpu": gpu or facts(),
            "start_s": 95.0,
            "end_s": 100.0,
            "unix_end_s": 1.8e9,
            "verdict": verdict,
            "cause": cause,
            "confidence": 0.8,
            "evidence": (Evidence("graphics_active_ratio", 0.25, "< 0.60"),),
            "time": TimeSplit(observed=5.0, measured=5.0, useful=1.0, verdict={key: 5.0}),
            "speed_of_light": 0.2,
            "signals": fields("signal", "fact"),
            "sources": {"sm_active_ratio": "nvml-gpm", "gpu_util_ratio": "nvml"},
            "increments": fields("increment"),
            "clock_events": {"sw-power-cap": 0.5},
            "workloads": (tenancy(),),
        }
        return Verdict(**{**known, **changes})

    return make


def fields(*origins: str) -> dict[str, float]:
    """A different value for each field that the catalogue reads."""
    names = [field for series in catalog.SERIES if series.origin in origins for _, field in series.fields]
    return {name: 0.25 + place for place, name in enumerate(names)}


@pytest.fixture(scope="session")
def health(facts: MakeFacts) -> Health:
    return Health(
        gpu_up={facts(index).key: True for index in range(8)},
        source_up={"nvml-gpm": True, "host": True},
        last_sample_unix_s=1.8e9,
        source_yielding={"nvml-gpm": False},
        expected_gpus=8,
        store_up=True,
        store_dropped_s=0.0,
    )


@pytest.fixture(scope="session")
def host() -> HostIncrements:
    return HostIncrements(
        cpu_seconds=dict.fromkeys(catalog.HOST_CPU_MODES, 1.0),
        pressure_seconds=dict.fromkeys(catalog.PRESSURE_RESOURCES, 0.5),
    )


@pytest.fixture
def full(judge: MakeVerdict, facts: MakeFacts, health: Health, host: HostIncrements) -> Snapshot:
    """A snapshot, taken at 100 s, of two GPUs with everything read."""
    ledger = Ledger()
    split = TimeSplit(5.0, 5.0, 1.0, lost={("starving", "copy"): 3.0}, verdict={("starving", "copy"): 5.0})
    verdicts = [judge(facts(0), time=split), judge(facts(1), "healthy", "compute")]
    ledger.credit(verdicts, host, {verdict.gpu.key: verdict for verdict in verdicts})
    ledger.xid(verdicts[0].gpu.key, 31)
    ledger.tick(0.02)
    return ledger.snapshot(health, taken_s=100.0, interval_s=5.0)


@pytest.fixture
def exposition() -> Exposition:
    """An exposition whose clock stands at 100 s, without process metrics."""
    return Exposition(clock=lambda: 100.0, process=CollectorRegistry())
