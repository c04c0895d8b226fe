"""Examines this host: which signals its sources give, what their lack costs, and how to get them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwhy.config import Config
from gpuwhy.sample import Normaliser, Sample
from gpuwhy.sample.signals import DEVICE
from gpuwhy.source import GpuFacts, SourceError
from gpuwhy.source.host import HostSource
from gpuwhy.source.nvml import NvmlSource
from gpuwhy.verdict.cards import find
from gpuwhy.workload import attribute

LOOKS = 3
SECONDS = float(LOOKS)


@dataclass(frozen=True, slots=True)
class Need:
    """What a group of signals is for: the verdicts that need it, and how to get it where it is missing."""

    name: str
    signals: tuple[str, ...]
    without: str
    remedy: str


_PROFILING_REMEDY = (
    "from Hopper on NVML gives them with driver 525 or later; before that only a DCGM host engine does, "
    "which this version of gpuwhy does not read yet"
)
NEEDS: tuple[Need, ...] = (
    Need(
        "busy time",
        ("graphics_active_ratio",),
        "GPU-Util stands in as an upper bound, confidence <= 0.45",
        _PROFILING_REMEDY,
    ),
    Need("SM activity", ("sm_active_ratio",), "pseudo-peak has no few-sms and spin-wait", _PROFILING_REMEDY),
    Need("tensor cores", ("tensor_active_ratio",), "no healthy, no pseudo-peak", _PROFILING_REMEDY),
    Need("DRAM", ("dram_active_ratio",), "no memory-bound", _PROFILING_REMEDY),
    Need(
        "other pipes",
        ("fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio"),
        "useful time is not measured; pseudo-peak only where power is low too",
        _PROFILING_REMEDY,
    ),
    Need(
        "PCIe",
        ("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
        "starving has no copy and launch-bound",
        _PROFILING_REMEDY,
    ),
    Need(
        "clock events",
        ("clock_event_reasons",),
        "throttled only from a very low clock",
        "driver 450 or later; not on every vGPU",
    ),
    Need("clocks", ("sm_clock_hertz",), "throttled only by thermal and brake events", "not on every vGPU"),
    Need("power", ("power_watts",), "no spin-wait by power", "not on every vGPU and laptop"),
    Need(
        "processes",
        ("owners",),
        "idle cannot tell free from held; no starving causes",
        "run on the host or with its pid namespace (docker --pid=host, hostPID in Kubernetes)",
    ),
    Need(
        "process tree",
        ("process_tree_cpu_cores",),
        "starving and idle stay guesses, confidence <= 0.45",
        "run in the host's pid namespace and leave /proc readable (no hidepid, ProtectProc or ProcSubset)",
    ),
    Need(
        "run queue",
        ("process_tree_runqueue_wait_ratio",),
        "no host-contention but by quota",
        "a kernel with CONFIG_SCHED_INFO",
    ),
    Need(
        "pressure",
        ("host_pressure_io_ratio",),
        "io-wait by D state and iowait only",
        "boot with psi=1 (kernel 4.20 or later)",
    ),
    Need(
        "process I/O",
        ("process_tree_read_bytes_per_second",),
        "io-wait by D state and pressure only",
        "root or CAP_SYS_PTRACE, for processes of other users",
    ),
)


@dataclass(frozen=True, slots=True)
class Findings:
    """One host's examination.

    ``signals`` has, by GPU and signal, the source that serves it; ``refused`` why one is not
    served; ``idle`` are GPUs without a process, about whose tree nothing can be said.
    """

    gpus: tuple[GpuFacts, ...]
    cards: Mapping[str, str]
    signals: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, Mapping[str, str]]
    idle: frozenset[str]

    def missing(self, gpu: GpuFacts) -> list[Need]:
        """What this GPU lacks. Where nothing runs on it the process tree is not missed."""
        have = self.signals[gpu.uuid]
        return [
            need
            for need in NEEDS
            if not all(signal in have for signal in need.signals)
            and not (gpu.uuid in self.idle and need.signals[0].startswith("process_tree_"))
        ]

    @property
    def complete(self) -> bool:
        return not any(self.missing(gpu) for gpu in self.gpus)


def examine(config: Config, progress: Callable[[float], None]) -> Findings:
    """Looks at every GPU for a few seconds.

    Raises:
        SourceError: no GPU, or a source that cannot start.

    """
    if config.agent.replay_paths:
        raise SourceError("doctor examines this host; a replay has nothing to examine")
    device, host = NvmlSource(), HostSource()
    gpus = device.start()
    normaliser = Normaliser()
    samples: list[Sample] = []
    owners: frozenset[int] = frozenset()
    try:
        for look in range(LOOKS + 1):
            if look:
                time.sleep(SECONDS / LOOKS)
            reading = device.read()
            owners = frozenset(pid for gpu in reading.gpus for pid in gpu.owners or ())
            kernel = host.read(owners)
            samples = attribute(normaliser.samples(replace(reading, host=kernel)))
            progress(look * SECONDS / LOOKS)
        refused = {
            uuid: {raw: capability.reason for raw, capability in found.items() if capability.source is None}
            for uuid, found in device.capabilities().items()
        }
    finally:
        device.close()
        host.close()
    signals: dict[str, dict[str, str]] = {gpu.uuid: {} for gpu in gpus}
    for sample in samples:
        signals[sample.gpu.uuid] = dict(sample.sources)
        if sample.owners is not None:
            signals[sample.gpu.uuid]["owners"] = device.name
    return Findings(
        gpus=gpus,
        cards={gpu.uuid: find(gpu.model, config.cards.numbers).name for gpu in gpus},
        signals=signals,
        refused=refused,
        idle=frozenset(sample.gpu.uuid for sample in samples if not sample.owners),
    )


def _raw_names(signal: str) -> tuple[str, ...]:
    return next((tuple(raw for raw, _ in row.raw) for row in DEVICE if row.name == signal), (signal,))


def as_json(findings: Findings) -> dict[str, Any]:
    """The examination for programs."""
    return {
        "schema": "gpuwhy-doctor/1",
        "complete": findings.complete,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "card": findings.cards[gpu.uuid],
                "signals": dict(sorted(findings.signals[gpu.uuid].items())),
                "refused": dict(sorted(findings.refused.get(gpu.uuid, {}).items())),
                "missing": [
                    {
                        "what": need.name,
                        "signals": list(need.signals),
                        "without": need.without,
                        "remedy": need.remedy,
                    }
                    for need in findings.missing(gpu)
                ],
            }
            for gpu in findings.gpus
        ],
    }


def print_findings(findings: Findings, console: Console) -> None:
    """The examination for people."""
    for gpu in findings.gpus:
        console.print(Text(f"GPU {gpu.index}  {gpu.model}  {gpu.uuid}", style="bold"))
        console.print(
            Text(f"  driver {gpu.driver}, numbers of card {findings.cards[gpu.uuid]!r}", style="dim")
        )
        have = findings.signals[gpu.uuid]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("")
        table.add_column("what", no_wrap=True)
        table.add_column("from", overflow="fold")
        missing = findings.missing(gpu)
        for need in NEEDS:
            sources = sorted({have[signal] for signal in need.signals if signal in have})
            if need in missing:
                table.add_row(Text("missing", style="bold"), need.name, Text(_why(findings, gpu, need)))
            elif sources:
                table.add_row("ok", need.name, ", ".join(sources))
            else:
                table.add_row("-", need.name, "no process holds this GPU now")
        console.print(Padding(table, (0, 0, 0, 2)))
        for need in missing:
            console.print()
            console.print(Padding(Text(f"{need.name}: without it, {need.without}."), (0, 0, 0, 2)))
            console.print(Padding(Text(f"To have it: {need.remedy}."), (0, 0, 0, 4)))
        console.print()
    console.print(
        "Every verdict can be reached." if findings.complete else "Some verdicts cannot be reached here."
    )


def _why(findings: Findings, gpu: GpuFacts, need: Need) -> str:
    refused = findings.refused.get(gpu.uuid, {})
    reasons = {refused[raw] for signal in need.signals for raw in _raw_names(signal) if raw in refused}
    return "; ".join(sorted(reasons)) or "not read"
