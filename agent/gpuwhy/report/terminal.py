"""Verdicts for people at a terminal: one block per GPU, readable in 80 columns and without colour."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwhy.verdict.colours import VERDICTS
from gpuwhy.verdict.words import human, human_test

# The best first, as bars are read.
COLOURS: Mapping[str, str] = {
    name: VERDICTS[name]
    for name in ("healthy", "memory-bound", "starving", "pseudo-peak", "throttled", "idle", "unknown")
}
BAR_CELLS = 40
LEAST_CELLS = 5
SHOWN_S = 0.05
MOST_WORKLOADS = 8
_PADDING = re.compile(r"\s+((?:\x1b\[[0-9;]*m)*)$")


def print_document(document: Mapping[str, Any], console: Console) -> None:
    """Prints a ``gpuwhy-explain/1`` document."""
    with console.capture() as captured:
        _print_document(document, console)
    for line in captured.get().splitlines():
        # Tables pad every line to their width; a pasted output should not.
        console.file.write(_PADDING.sub(r"\1", line) + "\n")


def plain(text: str) -> str:
    """``text`` without what a terminal would obey: names come from drivers, pods and recordings."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _print_document(document: Mapping[str, Any], console: Console) -> None:
    gpus = document["gpus"]
    boards = len({gpu["uuid"] for gpu in gpus})
    plural = "" if boards == 1 else "s"
    rows = f" in {len(gpus)} rows" if len(gpus) > boards else ""
    console.print(
        Text(f"{document['source']}: {boards} GPU{plural}{rows} over {document['window_s']:.0f} s"),
        style="dim",
    )
    for gpu in gpus:
        console.print()
        _print_gpu(gpu, console)


def _print_gpu(gpu: Mapping[str, Any], console: Console) -> None:
    mig = f" MIG {gpu['mig']}" if gpu["mig"] else ""
    head = Text(f"GPU {gpu['index']}{mig}  {plain(gpu['model']) or 'unknown model'}", style="bold")
    workloads = [each for each in gpu["workloads"] if each["kind"] != "replay"]
    if gpu["workload"] and not workloads:
        head.append(f"  {plain(gpu['workload'])}", style="not bold dim")
    console.print(head)
    for each in workloads[:MOST_WORKLOADS]:
        console.print(Padding(_workload(each, alone=len(workloads) == 1), (0, 0, 0, 2)))
    if len(workloads) > MOST_WORKLOADS:
        console.print(Text(f"  and {len(workloads) - MOST_WORKLOADS} more", style="dim"))
    verdict = Text("  ")
    verdict.append(f"{gpu['verdict']} / {gpu['cause']}", style=f"bold {COLOURS[gpu['verdict']]}")
    if gpu["confidence"]:
        verdict.append(f"   confidence {gpu['confidence']:.2f}")
    if gpu["flags"]:
        verdict.append(f"   ({', '.join(gpu['flags'])})")
    console.print(verdict)
    if gpu["reason"]:
        console.print(Padding(Text(plain(gpu["reason"])), (0, 0, 0, 2)))
    console.print()
    if gpu["evidence"]:
        console.print(Padding(_evidence(gpu["evidence"]), (0, 0, 0, 2)))
        console.print()
    console.print(Padding(_time(gpu, console.width), (0, 0, 0, 2)))
    if gpu["next_steps"]:
        console.print()
        console.print(Text("  What to do next", style="bold"))
        for number, step in enumerate(gpu["next_steps"], start=1):
            table = Table.grid(padding=(0, 1))
            table.add_column(width=2, justify="right")
            table.add_column(overflow="fold")
            table.add_row(f"{number}.", Text(step.replace("`", "")))
            console.print(Padding(table, (0, 0, 0, 2)))


def _workload(workload: Mapping[str, Any], *, alone: bool) -> Text:
    name = (
        f"{workload['namespace']}/{workload['workload']}" if workload["namespace"] else workload["workload"]
    )
    line = Text(plain(name))
    runs = [run for run in workload["runs"] if run != workload["workload"]]
    said = [workload["kind"]]
    if runs:
        said.append(runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more")
    if workload["owner"] and workload["owner"] != workload["namespace"]:
        said.append(f"of {workload['owner']}")
    if workload["basis"] == "granted":
        said.append("granted, no process")
    if workload["profile_from"]:
        said.append(f"{workload['profile']} by {workload['profile_from']}")
    line.append(plain(f"  ({', '.join(said)})"), style="dim")
    if not alone:
        line.append(f"  {workload['share_ratio']:.0%} of the time: ", style="dim")
        line.append(f"{workload['verdict']} / {workload['cause']}", style=COLOURS[workload["verdict"]])
    return line


def _evidence(evidence: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("evidence", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("test", overflow="fold")
    for item in evidence:
        table.add_row(
            Text(item["signal"]),
            human(item["signal"], item["value"]),
            Text(plain(human_test(item["signal"], item["test"]))),
        )
    return table


def _time(gpu: Mapping[str, Any], width: int) -> Table:
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
    shown = [row for row in rows if row[1] >= SHOWN_S]
    named = max((len(name) for name, *_ in shown), default=0)
    # Indent, the two columns before it and their padding; "seconds" is the widest of its column.
    cells = min(BAR_CELLS, width - (2 + max(named, len("where the time went")) + 2 + len("seconds") + 2 + 2))
    for name, seconds, colour in shown:
        bar = "█" * max(1, round(cells * seconds / observed)) if cells >= LEAST_CELLS else ""
        table.add_row(name, f"{seconds:.1f}", Text(bar, style=colour))
    return table
