"""Labelled recordings for tests: as they are, with signals taken away, or one after the other."""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuwhy.interval import Interval, IntervalBuilder
from gpuwhy.sample.normalise import Normaliser
from gpuwhy.source.replay import load
from gpuwhy.verdict import Verdict, judge
from gpuwhy.workload import attribute
from gpuwhy.workload.directory import Titled

Rows = list[dict[str, Any]]  # the header comes first

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
NAMES = sorted(file.name.removesuffix(".jsonl.gz") for file in FOLDER.glob("*.jsonl.gz"))


@functools.cache
def _text(name: str) -> str:
    return gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).decode()


def rows(name: str) -> Rows:
    """A recording's lines, decoded anew so that a caller may change them."""
    return [json.loads(line) for line in _text(name).splitlines()]


@functools.cache
def labels(name: str) -> dict[int, dict[str, Any]]:
    """What each GPU's workload was built to be, by index."""
    return {label["gpu"]: label for label in rows(name)[0]["labels"]}


def intervals(recording: Rows, length_s: float = 5.0) -> list[list[Interval]]:
    """The intervals that the stages before the verdict make of a recording, oldest first."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "recording.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in recording))
        normaliser, builder = Normaliser(), IntervalBuilder(length_s, hold=True)
        closed: list[list[Interval]] = []
        for reading in load(file).readings():
            samples = attribute(normaliser.samples(reading), directory=Titled(reading.workload))
            closed += builder.add(reading, samples)
        return closed + builder.finish()


@functools.cache
def kept_intervals(name: str) -> list[list[Interval]]:
    """``intervals`` of an unchanged recording, made once."""
    return intervals(rows(name))


def verdicts(closed: Iterable[list[Interval]], **options: Any) -> dict[int, list[Verdict]]:
    """Each GPU's verdicts, oldest first, by index."""
    by_gpu: dict[int, list[Verdict]] = {}
    for host in closed:
        for verdict in judge(host, **options):
            by_gpu.setdefault(verdict.gpu.index, []).append(verdict)
    return by_gpu


# --- signals taken away, as on a poorer host


def _as_is(recording: Rows) -> Rows:
    return recording


def _one_row_a_second(recording: Rows) -> Rows:
    """Gauges and counters as they stand at the end of each second, profiling counters as its mean."""
    header, *body = recording
    step = round(1 / header["period_s"])
    header["period_s"] *= step
    thinned = []
    for end in range(step, len(body) + 1, step):
        second, row = body[end - step : end], body[end - 1]
        for place, gpu in enumerate(row["gpus"]):
            for name in gpu.get("gpm") or {}:
                read = [(each["gpus"][place].get("gpm") or {}).get(name) for each in second]
                known = [value for value in read if value is not None]
                gpu["gpm"][name] = sum(known) / len(known) if known else None
        thinned.append(row)
    return [header, *thinned]


def _no_host(recording: Rows) -> Rows:
    for row in recording[1:]:
        row.update(host=None, procs=None, cgroups=None)
    return recording


def _nvml_only(recording: Rows) -> Rows:
    for row in recording[1:]:
        for gpu in row["gpus"]:
            gpu["gpm"] = None
    return recording


def _stock_exporter(recording: Rows) -> Rows:
    """What a dcgm-exporter serves as it comes: three profiling counters, no limits, no clock-event reasons."""
    served = {"graphics_util", "any_tensor_util", "dram_bw_util", "pcie_rx_mib_s", "pcie_tx_mib_s"}
    for gpu in recording[0]["gpus"]:
        gpu.update(power_limit_w=None, default_power_limit_w=None)
    for row in recording[1:]:
        for gpu in row["gpus"]:
            gpu["gpm"] = {name: value for name, value in (gpu.get("gpm") or {}).items() if name in served}
            for name in [name for name in gpu if name.endswith("_ns") or name == "event_reasons"]:
                gpu[name] = None
    return recording


MODES: dict[str, Callable[[Rows], Rows]] = {
    "full": _as_is,
    "1hz": _one_row_a_second,
    "no-host": _no_host,
    "nvml-only": _nvml_only,
    "stock-exporter": _stock_exporter,
}


# --- a load that changes


def splice(first: Rows, second: Rows) -> Rows:
    """``second`` after ``first`` on the same GPUs: times and cumulative counters go on, processes are others."""
    header, *before = first
    _, *after = second
    last, start = before[-1], after[0]
    gap = header["period_s"]
    shift = {clock: last[clock] + gap - start[clock] for clock in ("t", "mono")}
    for row in after:
        for clock, seconds in shift.items():
            row[clock] += seconds
    for place, gpu in enumerate(start["gpus"]):
        names = [name for name in gpu if name.endswith("_ns") or name == "energy_mj"]
        _go_on([row["gpus"][place] for row in after], last["gpus"][place], names)
    host = start["host"]
    _go_on(
        [row["host"] for row in after],
        last["host"],
        [name for name in host if name.endswith(("_us", "_bytes"))],
    )
    _go_on([row["host"]["cpu_ticks"] for row in after], last["host"]["cpu_ticks"], list(host["cpu_ticks"]))
    for row in after:
        for process in [
            *(row["procs"] or []),
            *(owner for gpu in row["gpus"] for owner in gpu["procs"] or []),
        ]:
            for name in ("pid", "ppid"):
                if process.get(name, 0) > 1:
                    process[name] += 1_000_000
        if row.get("cgroups"):
            row["cgroups"] = {str(int(pid) + 1_000_000): cgroup for pid, cgroup in row["cgroups"].items()}
    return [header, *before, *after]


def _go_on(later: list[dict[str, Any]], last: dict[str, Any], names: Iterable[str]) -> None:
    """Shifts counters so that the first of ``later`` stands where ``last`` ended."""
    for name in names:
        base, start = last.get(name), later[0].get(name)
        for values in later:
            if base is not None and start is not None and values.get(name) is not None:
                values[name] += base - start
