"""Verdicts for people at a terminal: one block per GPU, readable in 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Okabe-Ito, as on the dashboards: told apart by colour-blind people too.
COLOURS: Mapping[str, str] = {
    "healthy": "#009e73",
    "memory-bound": "#56b4e9",
    "starving": "#e69f00",
    "pseudo-peak": "#cc79a7",
    "throttled": "#d55e00",
    "idle": "#999999",
    "unknown": "#f0e442",
}
BAR_CELLS = 40


def print_document(document: Mapping[str, Any], console: Console) -> None:
    """Prints a ``gpuwhy-explain/1`` document."""
    gpus = document["gpus"]
    plural = "" if len(gpus) == 1 else "s"
    console.print(
        Text(f"{document['source']}: {len(gpus)} GPU{plural} over {document['window_s']:.0f} s"), style="dim"
    )
    for gpu in gpus:
        console.print()
        _print_gpu(gpu, console)


def _print_gpu(gpu: Mapping[str, Any], console: Console) -> None:
    mig = f" MIG {gpu['mig']}" if gpu["mig"] else ""
    head = Text(f"GPU {gpu['index']}{mig}  {gpu['model'] or 'unknown model'}", style="bold")
    if gpu["workload"]:
        head.append(f"  {gpu['workload']}", style="not bold dim")
    console.print(head)
    verdict = Text("  ")
    verdict.append(f"{gpu['verdict']} / {gpu['cause']}", style=f"bold {COLOURS[gpu['verdict']]}")
    if gpu["confidence"]:
        verdict.append(f"   confidence {gpu['confidence']:.2f}")
    if gpu["flags"]:
        verdict.append(f"   ({', '.join(gpu['flags'])})")
    console.print(verdict)
    if gpu["reason"]:
        console.print(Padding(Text(gpu["reason"]), (0, 0, 0, 2)))
    console.print()
    if gpu["evidence"]:
        console.print(Padding(_evidence(gpu["evidence"]), (0, 0, 0, 2)))
        console.print()
    console.print(Padding(_time(gpu), (0, 0, 0, 2)))
    if gpu["next_steps"]:
        console.print()
        console.print(Text("  What to do next", style="bold"))
        for number, step in enumerate(gpu["next_steps"], start=1):
            table = Table.grid(padding=(0, 1))
            table.add_column(width=2, justify="right")
            table.add_column(overflow="fold")
            table.add_row(f"{number}.", Text(step.replace("`", "")))
            console.print(Padding(table, (0, 0, 0, 2)))


def _evidence(evidence: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("evidence", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("test", overflow="fold")
    for item in evidence:
        table.add_row(
            Text(item["signal"]),
            human(item["signal"], item["value"]),
            Text(_test(item["signal"], item["test"])),
        )
    return table


def _test(signal: str, test: str) -> str:
    operator, _, number = test.partition(" ")
    try:
        return f"{operator} {human(signal, float(number))}"
    except ValueError:
        return test


def human(signal: str, value: float) -> str:
    """A value with the unit that its signal's name says, short enough for a table."""
    if signal.endswith("_hertz"):
        return f"{value / 1e6:.0f} MHz"
    if "bytes" in signal:
        per = "/s" if "per" in signal else ""
        for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {unit}{per}"
        return f"{value:.0f} B{per}"
    for suffix, unit in (("_watts", " W"), ("_celsius", " °C"), ("_cores", " cores"), ("_seconds", " s")):
        if signal.endswith(suffix):
            return f"{value:.4g}{unit}"
    return f"{value:.3g}"


def _time(gpu: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where the time went", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    observed = gpu["observed_s"] or 1.0
    rows = [("useful", gpu["useful_s"], COLOURS["healthy"])]
    rows += [
        (f"lost to {name}", seconds, COLOURS[name.partition("/")[0]])
        for name, seconds in sorted(gpu["lost"].items(), key=lambda item: -item[1])
    ]
    rows += [
        ("headroom", gpu["headroom_s"], COLOURS["memory-bound"]),
        ("free", gpu["free_s"], COLOURS["idle"]),
        ("not attributed", gpu["unattributed_s"], COLOURS["unknown"]),
    ]
    for name, seconds, colour in rows:
        if seconds >= 0.05:
            bar = "█" * max(1, round(BAR_CELLS * seconds / observed))
            table.add_row(name, f"{seconds:.1f}", Text(bar, style=colour))
    return table
