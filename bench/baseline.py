"""What `gpuwhy baseline compare` can be trusted with: false alarms, and the 5 % losses that it finds.

Each kind of load gives pairs of windows of identical load, and pairs of which the second has lost 5 % of its
useful time. Recordings are cut into pieces of 2 to 8 s that are joined at random; the built loads are those of
tests/report/baseline/made.py. For each kind:
  alarms   pairs of identical load that were called a regression, and those of which any figure at all was
           called beyond noise, at windows of 15 minutes
  untold   pairs of identical load that it would not tell
  found    losses found, at the shortest window that was tried at which nine of ten are found
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report" / "baseline"))
import made  # type: ignore[import-not-found]

from gpuwhy.report.baseline.compare import CANNOT_TELL, LEAST_USEFUL, REGRESSION, compare

LOSS = 0.05
MINUTES = 15
TRIED = (5, 15, 30, 60, 120, 240, 480)
WANTED_FOUND, WANTED_ALARMS = 0.9, 0.05


def kinds() -> list[str]:
    """Built loads, and the real recordings in which something was useful."""
    names = [file.name.removesuffix(".jsonl.gz") for file in sorted(made.RECORDINGS.glob("*.gz"))]
    return [*made.LOADS, *(name for name in names if not name.startswith("syn_") and useful(name))]


def useful(name: str) -> bool:
    times = [sample.time for sample in made.seconds_of(name)]
    measured = sum(time.measured for time in times)
    return measured > 0 and sum(time.useful for time in times) / measured > 1.5 * LEAST_USEFUL


def window(kind: str, chance: random.Random, minutes: float, loss: float = 0.0) -> Any:
    # Longer windows are seen in longer steps anyway.
    step_s = max(5.0, minutes * 60 / 720)
    if kind in made.LOADS:
        gpu = made.built(made.LOADS[kind], chance, minutes * 60, loss=loss, step_s=step_s)
    else:
        gpu = made.recorded(kind, chance, minutes * 60, loss=loss, step_s=step_s)
    return made.baseline(gpu)


def measure(kind: str, pairs: int) -> dict[str, Any]:
    chance = random.Random(f"{kind} 1")
    alarms = any_figure = untold = 0
    spent = []
    for _ in range(pairs):
        before, after = window(kind, chance, MINUTES), window(kind, chance, MINUTES)
        began = time.process_time()
        found = compare(before, after)
        spent.append(time.process_time() - began)
        alarms += found.outcome == REGRESSION
        untold += found.outcome == CANNOT_TELL
        any_figure += any(each.beyond_noise for each in found.figures)
    result = {
        "kind": kind,
        "alarms": alarms / pairs,
        "any_figure": any_figure / pairs,
        "untold": untold / pairs,
        "compare_ms": 1e3 * statistics.median(spent),
    }
    return result | search(kind, pairs)


def search(kind: str, pairs: int) -> dict[str, Any]:
    found = 0.0
    for minutes in TRIED:
        chance = random.Random(f"{kind} {minutes}")
        hits = 0
        for done in range(1, pairs + 1):
            hits += (
                compare(window(kind, chance, minutes), window(kind, chance, minutes, LOSS)).outcome
                == REGRESSION
            )
            if done == pairs // 5 and hits < 0.7 * done:
                break  # far from enough
        found = hits / done
        if found >= WANTED_FOUND:
            return {"minutes": minutes, "found": found}
    return {"minutes": None, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200, help="pairs of each kind (default %(default)s)")
    parser.add_argument("--kinds", nargs="*", help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = []
    if not arguments.json:
        print(f"{'load':22}{'alarms':>8}{'any':>8}{'untold':>8}{'found':>8}{'minutes':>9}{'ms':>6}")
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(functools.partial(measure, pairs=arguments.pairs), arguments.kinds or kinds()):
            rows.append(row)
            if not arguments.json:
                print(
                    f"{row['kind']:22}{row['alarms']:8.1%}{row['any_figure']:8.1%}{row['untold']:8.1%}"
                    f"{row['found']:8.1%}{row['minutes'] or 'more':>9}{row['compare_ms']:6.0f}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    alarms = sum(row["alarms"] for row in rows) / len(rows)
    print(f"{len(rows)} kinds of load, {arguments.pairs} pairs each: {alarms:.1%} false alarms in the mean")
    missed = [row["kind"] for row in rows if row["alarms"] > WANTED_ALARMS or row["found"] < WANTED_FOUND]
    print(f"not as wanted: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
