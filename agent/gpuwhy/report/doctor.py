"""Examines this host: which signals its sources give, what their lack costs, and how to get them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwhy.config import Config
from gpuwhy.report.terminal import plain
from gpuwhy.sample import Normaliser, Sample, Share
from gpuwhy.sample.signals import SIGNAL_OF_RAW
from gpuwhy.source import GpuFacts
from gpuwhy.source.host import HostSource
from gpuwhy.source.ladder import Key, Ladder, SourceState
from gpuwhy.verdict.cards import find
from gpuwhy.workload import attribute
from gpuwhy.workload.resolver import Resolver

LOOKS = 3
SECONDS = float(LOOKS)


@dataclass(frozen=True, slots=True)
class Need:
    """What a group of signals is for: the verdicts that need it, and how to get it where it is missing.

    ``of`` says whose it is where a GPU is split by MIG: the slices' or the board's.
    """

    name: str
    signals: tuple[str, ...]
    without: str
    remedy: str
    of: Literal["slice", "board"] = "slice"


_PROFILING_REMEDY = (
    "from Hopper on NVML gives it with driver 525 or later; on data-centre cards before that, and everywhere "
    "else, a running DCGM host engine does (package datacenter-gpu-manager-4-core: `systemctl start "
    "nvidia-dcgm`), or a dcgm-exporter whose counters file has the line"
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
        of="board",
    ),
    Need(
        "clock events",
        ("clock_event_reasons",),
        "throttled only from a very low clock",
        "driver 450 or later; not on every vGPU",
        of="board",
    ),
    Need(
        "clocks",
        ("sm_clock_hertz",),
        "throttled only by thermal and brake events",
        "not on every vGPU",
        of="board",
    ),
    Need("power", ("power_watts",), "no spin-wait by power", "not on every vGPU and laptop", of="board"),
    Need(
        "processes",
        ("owners",),
        "idle cannot tell free from held; no starving causes",
        "they come from NVML, so see above if that is not used; in a container, share the host's pid namespace "
        "too (docker --pid=host, hostPID in Kubernetes)",
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
        "root, or CAP_SYS_PTRACE with CAP_DAC_READ_SEARCH, for processes of other users",
    ),
)


@dataclass(frozen=True, slots=True)
class Findings:
    """One host's examination.

    ``signals`` has, by row and signal, the source that serves it; ``refused`` why one is not served,
    by row, source and raw name; ``idle`` are rows without a process, about whose tree nothing can be
    said. ``sources`` are all that were tried, best first; ``advice`` what would make one of them better.
    ``readers`` are what says whose GPUs are, ``workloads`` what they say, by row; ``nameless`` is what keeps
    a GPU from having a name.
    """

    gpus: tuple[GpuFacts, ...]
    cards: Mapping[str, str]
    signals: Mapping[Key, Mapping[str, str]]
    refused: Mapping[Key, Mapping[str, Mapping[str, str]]]
    idle: frozenset[Key]
    sources: Mapping[str, SourceState]
    advice: Mapping[str, tuple[str, ...]]
    readers: Mapping[str, SourceState]
    workloads: Mapping[Key, tuple[Share, ...]]
    nameless: tuple[str, ...]

    def needs(self, gpu: GpuFacts) -> list[Need]:
        """What is looked for in this row: a board split by MIG has its clocks and power, a slice the rest."""
        of = "board" if gpu.split else "slice" if gpu.mig else ""
        return [need for need in NEEDS if not of or need.of == of]

    def missing(self, gpu: GpuFacts) -> list[Need]:
        """What this row lacks. Where nothing runs on it the process tree is not missed."""
        have = self.signals[gpu.key]
        return [
            need
            for need in self.needs(gpu)
            if not all(signal in have for signal in need.signals)
            and not (gpu.key in self.idle and need.signals[0].startswith("process_tree_"))
        ]

    def why(self, gpu: GpuFacts, need: Need) -> list[str]:
        """What the sources say of the lack, each with its name."""
        wanted = {raw for raw, signal in SIGNAL_OF_RAW.items() if signal in need.signals} | {*need.signals}
        found = {
            f"{source}: {reason}"
            for source, reasons in self.refused.get(gpu.key, {}).items()
            for raw, reason in reasons.items()
            if raw in wanted
        }
        return sorted(found) or ["not read"]

    @property
    def complete(self) -> bool:
        return not any(self.missing(gpu) for gpu in self.gpus)


def examine(
    config: Config, ladder: Ladder, host: HostSource, resolver: Resolver, progress: Callable[[float], None]
) -> Findings:
    """Looks at every GPU for a few seconds, through all sources that the configuration allows.

    Raises:
        SourceError: no GPU, or a source that cannot start.

    """
    normaliser = Normaliser()
    samples: list[Sample] = []
    owners: frozenset[int] = frozenset()
    shares: dict[Key, tuple[Share, ...]] = {}
    try:
        ladder.start()
        resolver.start()
        for look in range(LOOKS + 1):
            if look:
                time.sleep(SECONDS / LOOKS)
            reading = ladder.read()
            owners = frozenset(pid for gpu in reading.gpus for pid in gpu.owners or ())
            kernel = host.read(owners)
            resolver.follow(reading.gpus)
            found = attribute(normaliser.samples(replace(reading, host=kernel)), directory=resolver)
            shares |= {sample.gpu.key: sample.shares for sample in found if sample.shares is not None}
            samples += found
            able = ladder.capabilities()
            progress(look * SECONDS / LOOKS)
        sources, advice = ladder.states(), ladder.advice()
        readers, nameless = resolver.states(), tuple(resolver.lacks().values())
    finally:
        ladder.close()
        resolver.stop()
        host.close()
    gpus = tuple(gpu.facts for gpu in reading.gpus)
    signals: dict[Key, dict[str, str]] = {gpu.key: {} for gpu in gpus}
    refused: dict[Key, dict[str, dict[str, str]]] = {}
    for name, rows in able.items():
        for key, raws in rows.items():
            for raw, capability in raws.items():
                if capability.source is None:
                    refused.setdefault(key, {}).setdefault(name, {})[raw] = capability.reason
                elif raw in SIGNAL_OF_RAW and key in signals:
                    signals[key].setdefault(SIGNAL_OF_RAW[raw], capability.source)
    for sample in samples:
        if sample.gpu.key in signals:
            signals[sample.gpu.key].update(sample.sources)
            if sample.owners is not None:
                signals[sample.gpu.key]["owners"] = "nvml"
    for have in signals.values():
        have.update(dict.fromkeys(normaliser.host(kernel).values, "host"))
    return Findings(
        gpus=gpus,
        cards={gpu.uuid: find(gpu.model, config.cards.numbers).name for gpu in gpus},
        signals=signals,
        refused=refused,
        idle=frozenset(sample.gpu.key for sample in samples if sample.owners == ())
        - {sample.gpu.key for sample in samples if sample.owners},
        sources=sources,
        advice=advice,
        readers=readers,
        workloads=shares,
        nameless=nameless,
    )


def _source_state(state: SourceState) -> str:
    if state.up and state.used:
        return f"in use; {state.yielding}" if state.yielding else "in use"
    return "answers, and is not needed" if state.up else "not used"


def _reader_state(state: SourceState) -> str:
    return "in use" if state.up else "fails" if state.used else "not used"


def as_json(findings: Findings) -> dict[str, Any]:
    """The examination for programs."""
    return {
        "schema": "gpuwhy-doctor/1",
        "complete": findings.complete,
        "sources": [
            {"source": name, "state": _source_state(state), "reason": state.reason}
            for name, state in findings.sources.items()
        ],
        "advice": {name: list(lines) for name, lines in findings.advice.items() if lines},
        "whose": {
            "readers": [
                {"source": name, "state": _reader_state(state), "reason": state.reason}
                for name, state in findings.readers.items()
            ],
            "missing": list(findings.nameless),
        },
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "mig": gpu.mig,
                "model": gpu.model,
                "card": findings.cards[gpu.uuid],
                "workloads": [
                    {
                        "kind": share.workload.kind,
                        "workload": share.workload.name,
                        "namespace": share.workload.namespace,
                        "owner": share.workload.owner,
                        "runs": [tenant.run for tenant in share.tenants],
                        "basis": share.basis,
                    }
                    for share in findings.workloads.get(gpu.key, ())
                ],
                "signals": dict(sorted(findings.signals[gpu.key].items())),
                "refused": {
                    source: dict(sorted(reasons.items()))
                    for source, reasons in findings.refused.get(gpu.key, {}).items()
                },
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
    _print_sources(findings, console)
    _print_readers(findings, console)
    explained: list[Need] = []
    for gpu in findings.gpus:
        slice_ = (
            f"  MIG {gpu.mig} ({gpu.profile})" if gpu.mig else "  board, split by MIG" if gpu.split else ""
        )
        console.print(Text(f"GPU {gpu.index}{slice_}  {plain(gpu.model)}  {plain(gpu.uuid)}", style="bold"))
        console.print(
            Text(
                f"  driver {gpu.driver or 'not read'}, numbers of card {findings.cards[gpu.uuid]!r}",
                style="dim",
            )
        )
        console.print(Text(f"  {_whose(findings.workloads.get(gpu.key))}", style="dim"))
        have = findings.signals[gpu.key]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("")
        table.add_column("what", no_wrap=True)
        table.add_column("from", overflow="fold")
        missing = findings.missing(gpu)
        for need in findings.needs(gpu):
            sources = sorted({have[signal] for signal in need.signals if signal in have})
            if need in missing:
                table.add_row(
                    Text("missing", style="bold"), need.name, Text("; ".join(findings.why(gpu, need)))
                )
            elif sources:
                table.add_row("ok", need.name, ", ".join(sources))
            else:
                table.add_row("-", need.name, "no process holds this GPU now")
        console.print(Padding(table, (0, 0, 0, 2)))
        explained += [need for need in missing if need not in explained]
        console.print()
    for need in explained:
        console.print(Padding(Text(f"{need.name}: without it, {need.without}."), (0, 0, 0, 2)))
        console.print(Padding(Text(f"To have it: {need.remedy}."), (0, 0, 1, 4)))
    console.print(
        "Every verdict can be reached." if findings.complete else "Some verdicts cannot be reached here."
    )


def _whose(shares: tuple[Share, ...] | None) -> str:
    if shares is None:
        return "whose it is could not be found out in this time"
    held = [f"{plain(share.workload.title)} ({share.workload.kind}, {share.basis})" for share in shares]
    return f"held by {', '.join(held)}" if held else "nobody holds it"


def _print_states(title: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Rows of a name, how that is, and why, which may hold what programs and servers say."""
    console.print(Text(title, style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, said, reason in rows:
        table.add_row(name, Text(f"{said}: {plain(reason)}" if reason else said))
    console.print(Padding(table, (0, 0, 1, 2)))


def _print_readers(findings: Findings, console: Console) -> None:
    rows = ((name, _reader_state(state), state.reason) for name, state in findings.readers.items())
    _print_states("Whose GPUs are, from", rows, console)
    for sentence in findings.nameless:
        console.print(Padding(Text(f"{sentence}."), (0, 0, 1, 2)))


def _print_sources(findings: Findings, console: Console) -> None:
    rows = ((name, _source_state(state), state.reason) for name, state in findings.sources.items())
    _print_states("Sources, best first", rows, console)
    for name, lines in findings.advice.items():
        if lines and findings.sources[name].up:
            console.print(Padding(Text(f"{name} could say more:"), (0, 0, 0, 2)))
            for line in lines:
                console.print(line, soft_wrap=True, markup=False)  # to be pasted as it is
            console.print()
