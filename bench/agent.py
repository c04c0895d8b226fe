"""What judging costs: CPU of a tick of 8 GPUs through all stages, and memory over a day of ticks.

Recordings of the package are taken at one row a second, as live sources give them. The reference in
the same run is a bare loop that decodes the same rows from JSON, so that the ratio can be compared
between machines.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import gpuwhy
from gpuwhy.daemon import Pipeline
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.ledger import Ledger
from gpuwhy.exporter.snapshot import Health
from gpuwhy.exporter.textformat import Format
from gpuwhy.source.replay import BUNDLED, load
from gpuwhy.verdict.now import Now

GPUS = 8


def one_host() -> list:
    """A minute of 8 GPUs on one host, one reading a second, made of the bundled recordings."""
    tracks = []
    for path in sorted(BUNDLED.glob("*.jsonl.gz")):
        rows = list(load(path).readings())[3::4]
        for position in range(len(rows[0].gpus)):
            tracks += [[(row.gpus[position], row.host) for row in rows]]
    tracks = tracks[:GPUS]
    readings = []
    for second in range(60):
        gpus = []
        for index, track in enumerate(tracks):
            gpu, _ = track[second % len(track)]
            gpus.append(replace(gpu, facts=replace(gpu.facts, index=index, uuid=f"GPU-{index}")))
        host = tracks[0][second % len(tracks[0])][1]
        readings.append((tuple(gpus), host))
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ticks", type=int, default=7200, help="ticks to run (86400 is a day; default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    minute = one_host()
    template = next(load(min(BUNDLED.glob("*.jsonl.gz"))).readings())
    lines = [
        json.dumps([[dict(part.values) for part in gpu.parts] for gpu in gpus]).encode() for gpus, _ in minute
    ]

    stages, ledger, now, exposition = Pipeline(interval_s=5.0), Ledger(), Now(), Exposition()
    memory = []
    spent = reference = 0.0
    for tick in range(arguments.ticks):
        gpus, host = minute[tick % len(minute)]
        reading = replace(
            template,
            end_s=float(tick + 1),
            unix_s=1.8e9 + tick,
            span_s=1.0,
            period_s=1.0,
            gpus=gpus,
            host=None if host is None else replace(host, end_s=float(tick + 1), span_s=1.0),
            restart=tick % 60 == 0,
        )
        began = time.process_time()
        for judged in stages.feed(reading):
            shown = {verdict.gpu.key: now.update(verdict) for verdict in judged.verdicts}
            ledger.credit(judged.verdicts, judged.host, shown)
            exposition.publish(ledger.snapshot(Health(), taken_s=time.monotonic(), interval_s=5.0))
        if tick >= 600:
            spent += time.process_time() - began
        if tick % 15 == 0:
            exposition.scrape(Format.OPENMETRICS, compressed=True)
        began = time.process_time()
        json.loads(lines[tick % len(lines)])
        if tick >= 600:
            reference += time.process_time() - began
        if tick % 600 == 599:
            gc.collect()
            memory.append(resource_bytes())
    counted = max(1, arguments.ticks - 600)
    result = {
        "version": gpuwhy.__version__,
        "python": sys.version.split()[0],
        "gpus": GPUS,
        "ticks": arguments.ticks,
        "cpu_ms_per_tick": round(1e3 * spent / counted, 3),
        "cpu_over_decoding": round(spent / reference, 1) if reference else None,
        "resident_mib_after_10_minutes": round(memory[0] / 2**20, 1) if memory else None,
        "resident_mib_at_end": round(memory[-1] / 2**20, 1) if memory else None,
        "resident_mib_peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:32} {value}")


def resource_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
