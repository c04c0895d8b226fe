"""CPU time of one look at a DCGM host engine: ``python bench/dcgm.py [--address HOST:PORT] [--ticks 60] [--json]``.

Looks once a second, as the agent does, and in turns makes the bare call that a look rests on: the bindings'
own ``dcgmEntitiesGetLatestValues`` for the same GPUs and fields. CPU is that of the calling thread; what the
client library's own threads add is shown apart. Needs a running engine, with a driver or an injected one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from gpuwhy.source import SourceError
from gpuwhy.source.dcgm import DcgmSource

PERIOD_S = 1.0


def spent(call) -> tuple[float, float]:
    """Milliseconds of CPU that a call takes: of this thread, and of the process's other threads."""
    thread, process = time.thread_time(), time.process_time()
    call()
    thread = time.thread_time() - thread
    return thread * 1e3, (time.process_time() - process - thread) * 1e3


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--address", default="")
    options.add_argument("--bindings", default="")
    options.add_argument("--library", default="")
    options.add_argument("--ticks", type=int, default=60)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    source = DcgmSource(address=chosen.address, bindings=chosen.bindings, library=chosen.library)
    try:
        gpus = source.start()
    except SourceError as error:
        print(f"no engine to look at: {error}", file=sys.stderr)
        return 1
    engine = source._engine  # noqa: SLF001  the bare call needs its handle
    rows = source._rows()  # noqa: SLF001
    entities, fields = [row.entity for row in rows], sorted(rows[0].live)
    looks, bare, values = [], [], 0
    try:
        for tick in range(chosen.ticks + 3):
            time.sleep(PERIOD_S / 2)
            readings: list = []
            mine = spent(lambda into=readings: into.append(source.read()))
            time.sleep(PERIOD_S / 2)
            theirs = spent(lambda: engine.call("dcgmEntitiesGetLatestValues", entities, fields, 0))
            if tick >= 3:
                looks.append(mine)
                bare.append(theirs)
                values = sum(len(part.values) for gpu in readings[0].gpus for part in gpu.parts)
    finally:
        source.close()
    found = {
        "gpus": len(gpus),
        "values_per_look": values,
        "look_ms": round(statistics.mean(own for own, _ in looks), 3),
        "look_ms_per_gpu": round(statistics.mean(own for own, _ in looks) / len(gpus), 3),
        "library_threads_ms": round(statistics.mean(other for _, other in looks), 3),
        "bare_call_ms": round(statistics.mean(own for own, _ in bare), 3),
        "bare_library_threads_ms": round(statistics.mean(other for _, other in bare), 3),
    }
    found["look_over_bare"] = round(found["look_ms"] / found["bare_call_ms"], 2)
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:26} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
