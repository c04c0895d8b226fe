"""Intervals for tests, made from the few readings that matter; everything else is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from gpuwhy.interval import Interval, Stat
from gpuwhy.source import GpuFacts
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.cards import find
from gpuwhy.verdict.case import Case, Finding
from gpuwhy.verdict.check import Limit
from gpuwhy.verdict.types import CauseKey

PIPES = ("tensor", "fp64", "fp32", "fp16")
ACTIVITIES = frozenset({"graphics", "sm", "dram", "int", *PIPES})

NO_WORK = dict.fromkeys((*PIPES, "int", "dram"), 0.0)
QUIET_HOST = {
    "process_tree_cpu_cores": 0.0,
    "process_tree_cpu_ratio": 0.0,
    "process_tree_owner_cpu_cores": 0.0,
    "process_tree_owner_system_ratio": 0.0,
    "process_tree_hottest_thread_cores": 0.0,
    "process_tree_runqueue_wait_ratio": 0.0,
    "process_tree_blocked_ratio": 0.0,
    "process_tree_read_bytes_per_second": 0.0,
    "process_tree_write_bytes_per_second": 0.0,
    "host_pressure_io_ratio": 0.0,
}
HOT_HOST = {
    **QUIET_HOST,
    "process_tree_cpu_cores": 1.0,
    "process_tree_cpu_ratio": 0.06,
    "process_tree_owner_cpu_cores": 1.0,
    "process_tree_hottest_thread_cores": 1.0,
}


def facts(
    model: str = "NVIDIA H200",
    *,
    limit: float | None = None,
    default: float | None = None,
    sm_clock: float | None = None,
    memory_clock: float | None = None,
    index: int = 0,
    **others: Any,
) -> GpuFacts:
    """A GPU of which only this much is known; limits in watts, clocks in hertz."""
    return GpuFacts(
        index=index,
        uuid=f"GPU-{index}",
        model=model,
        power_limit_watts=limit,
        default_power_limit_watts=default,
        sm_clock_max_hertz=sm_clock,
        memory_clock_max_hertz=memory_clock,
        **others,
    )


def h200(index: int = 0, **others: Any) -> GpuFacts:
    known = {
        "limit": 700.0,
        "default": 700.0,
        "sm_clock": 1.98e9,
        "memory_clock": 3.201e9,
        "pcie_generation": 5,
        "pcie_width": 16,
    }
    return facts(index=index, **{**known, **others})


H200 = h200()


def interval(
    gpu: GpuFacts = H200,
    *,
    reasons: Mapping[str, float] | None = None,
    reason_samples: Mapping[str, int] | None = None,
    owners: Iterable[int] | None = (100,),
    family: Iterable[str] = (),
    coverage: float = 1.0,
    length: float = 5.0,
    samples: int = 20,
    series: Mapping[str, Iterable[float]] | None = None,
    **signals: float | None,
) -> Interval:
    """An interval in which each signal holds all the time, or runs through its ``series``.

    Short names such as ``sm`` stand for activity ratios; None = not read. ``reason_samples`` agree
    with ``reasons`` unless given. The power limit is the GPU's unless given.
    """
    values = {"power_limit_watts": gpu.power_limit_watts, **signals}
    runs = {name: (float(value),) for name, value in values.items() if value is not None}
    runs |= {name: tuple(run) for name, run in (series or {}).items()}
    stats = {
        f"{name}_active_ratio" if name in ACTIVITIES else name: Stat(
            run, (length * coverage / len(run),) * len(run)
        )
        for name, run in runs.items()
        if coverage > 0
    }
    if reasons is not None and reason_samples is None:
        reason_samples = {name: round(share * samples) for name, share in reasons.items()}
    return Interval(
        gpu=gpu,
        start_s=0.0,
        end_s=length,
        unix_end_s=1e9 + length,
        covered_s=length * coverage,
        samples=samples,
        stats=stats,
        sources=dict.fromkeys(stats, "test"),
        reasons=reasons,
        reason_samples=reason_samples,
        owners=None if owners is None else frozenset(owners),
        family=frozenset(family) or frozenset(f"pid:{pid}" for pid in owners or ()),
    )


def case(one: Interval, *peers: Interval, profile: str = "unknown") -> Case:
    """What a rule is asked about."""
    others = tuple(Case.of(peer, find(peer.gpu.model), profile) for peer in peers)
    return replace(Case.of(one, find(one.gpu.model), profile), peers=others)


def verdict(one: Interval, *peers: Interval, **options: Any) -> Verdict:
    """The verdict on the first GPU of a host."""
    return judge([one, *peers], **options)[0]


def key(found: Finding | None) -> CauseKey | None:
    return None if found is None else found.key


def readings(found: Finding | Verdict | None) -> dict[str, float]:
    """The values of the evidence by signal, in its order, without the dust of averaging."""
    return {} if found is None else {item.signal: round(item.value, 9) for item in found.evidence}


# --- limits of rules

NUDGE = 1e-6


@dataclass(frozen=True)
class Edge:
    """A limit of a rule, and what the rule concludes from a reading that lies on either side of it.

    ``at`` makes the interval in which the reading has a value, None = not read. ``over`` is concluded
    at the limit and above, ``under`` below it, ``missing`` without the reading.
    """

    limit: str
    at: Callable[[float | None], Any]
    over: Any
    under: Any
    missing: Any


def check_edge(rule: ModuleType, edge: Edge, ask: Callable[[Any], Any]) -> None:
    """Fails unless ``ask`` answers as the edge says, just over and just under the limit and without a reading."""
    value = getattr(rule, edge.limit).value
    assert ask(edge.at(value * (1 + NUDGE))) == edge.over, f"just over {edge.limit} = {value}"
    assert ask(edge.at(value * (1 - NUDGE))) == edge.under, f"just under {edge.limit} = {value}"
    assert ask(edge.at(None)) == edge.missing, f"{edge.limit}: not read"


def limits(rule: ModuleType) -> set[str]:
    """The names of a module's limits."""
    return {name for name, value in vars(rule).items() if isinstance(value, Limit)}


def each(edges: Iterable[Edge]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("edge", edges, ids=lambda edge: edge.limit)


def times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def in_gap(share: float | None, busy: float) -> float | None:
    """Cores of a thread that spins while the engine is busy and works for a share of the rest."""
    return None if share is None else busy + share * (1 - busy)
