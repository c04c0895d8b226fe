"""What local history costs: size of a week of 8 busy GPUs, CPU of writing, memory, and time to read it back.

The verdicts are those that tests/store/made.py makes: every signal read, two causes a minute, a workload
on each GPU. `hand over` is what the thread that judges pays for an interval; `write` is all CPU of the thread that writes,
a minute of all GPUs.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

GPUS = 8
TARGET_MIB = 30.0  # of a week of 8 GPUs
TARGET_MONTH_S = 2.0  # to read the hours of a month


def resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=int, default=1440, help="minutes to write (a week is 10080; default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    from gpuwhy import daemon  # noqa: F401  memory shall count what history adds to it

    before_mib = resident_mib()
    from gpuwhy.store import Reader
    from gpuwhy.store.database import Bounds
    from gpuwhy.store.writer import MOST_QUEUED, Writer

    imported_mib = resident_mib()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "store"))
    from made import MONDAY, host, write  # type: ignore[import-not-found]

    own_mib = resident_mib()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "history.db")
        bounds = Bounds(age_s=35 * 86400.0, size_bytes=256 << 20)
        writer = Writer(lambda: file, bounds, host="h1", clock=lambda: MONDAY + 86400.0)
        writer.start()
        handed = spent = 0.0
        intervals = arguments.minutes * 12
        for verdicts in host(GPUS, arguments.minutes):
            began = time.thread_time()
            writer.credit(verdicts)
            handed += time.thread_time() - began
            while writer._queue.qsize() > MOST_QUEUED // 2:  # noqa: SLF001  a real host is never this fast
                time.sleep(0.001)
        running_mib = resident_mib()
        clock = time.pthread_getcpuclockid(writer._thread.ident)  # noqa: SLF001
        while writer._queue.qsize():  # noqa: SLF001
            time.sleep(0.01)
        spent = time.clock_gettime(clock)
        dropped = writer.state().dropped_s
        writer.close()
        size = sum(file.stat().st_size for file in Path(folder).iterdir())

        month = Path(folder, "month.db")
        write(month, [])
        # The hours of a month, without a month of minutes.
        write(
            month,
            (
                each
                for hour in range(35 * 24)
                for each in next(host(GPUS, 1, start_unix=MONDAY + 3600 * hour, seed=hour))
            ),
        )
        began = time.perf_counter()
        with Reader(month) as history:
            hours = sum(1 for _ in history.hours(0, 2**40)) + sum(1 for _ in history.workload_hours(0, 2**40))
        month_s = time.perf_counter() - began
        began = time.perf_counter()
        with Reader(file) as history:
            minutes = sum(1 for _ in history.minutes(0, 2**40))
        minutes_s = time.perf_counter() - began
    result = {
        "gpus": GPUS,
        "minutes": arguments.minutes,
        "mib": round(size / 2**20, 2),
        "mib_of_a_week": round(size / 2**20 * 10080 / arguments.minutes, 1),
        "mib_of_a_week_wanted": TARGET_MIB,
        "hand_over_us": round(1e6 * handed / intervals, 1),
        "write_ms_per_minute": round(1e3 * spent / arguments.minutes, 2),
        "dropped_s": dropped,
        "import_mib": round(imported_mib - before_mib, 1),
        "thread_and_cache_mib": round(running_mib - own_mib, 1),
        "read_hours_of_35_days_s": round(month_s, 2),
        "read_hours_of_35_days_s_wanted": TARGET_MONTH_S,
        "rows_of_35_days": hours,
        "read_minutes_us_each": round(1e6 * minutes_s / minutes, 1),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
