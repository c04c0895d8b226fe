"""Which alerts would fire on what a real GPU did: `bench/gpu.py scrapes FILE`, judged by a real Prometheus.

    python bench/alerts.py FILE       FILE may be gzipped

Each scrape is back-filled with its own time. The alerts are rendered with windows of 30 s in place of an hour
and are asked for each second. A row is a workload that ran, with the alerts that held at its end, when the
window lies wholly in it; `right` says whether those are the ones it should wake for, and no others.
Needs Debian's prometheus and promtool (`make programs`).
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.live.history import add_blocks, find_programs, samples, serving  # noqa: E402
from tests.live.programs import running  # noqa: E402

from gpuwhy.config import AlertOverride, RenderConfig  # noqa: E402
from gpuwhy.render import alerts  # noqa: E402
from gpuwhy.render.promql import Promql  # noqa: E402

WINDOW_S = 30
WANTED = {
    "gemm": set(),
    "one_block": {"GpuwhyPseudoPeak"},
    "copy_kernel": {"GpuwhyMemoryBound"},
    "starved": {"GpuwhyStarving"},
    "tiny_kernels": {"GpuwhyStarving"},
    "held": {"GpuwhyGpuHeld"},
    "ddp_even": set(),
    "ddp_late": {"GpuwhyGpuLagging", "GpuwhyStarving", "GpuwhyPseudoPeak"},
}
HOST = "h200"


def timed(scrapes: list[tuple[float, str]]) -> Iterator[str]:
    for at, text in scrapes:
        for series, value in samples(text, HOST):
            yield f"{series} {value} {at:.3f}\n"
        yield f'up{{job="gpuwhy",instance="{HOST}"}} 1 {at:.3f}\n'
    yield "# EOF\n"


def shortened() -> RenderConfig:
    short = {
        # Counters grow in steps of 5 s: a window of 30 s shows at most 25 of them.
        alert.name: AlertOverride(
            window_seconds=WINDOW_S,
            for_seconds=0,
            threshold=0.75 if alert.verdict and alert.limit > 0.75 else None,
        )
        for alert in alerts.ALERTS
        if alert.window_s and alert.least_window_s <= WINDOW_S
    }
    return RenderConfig(alerts=short)


def main() -> None:
    path = Path(sys.argv[1])
    lines = (gzip.open if path.suffix == ".gz" else open)(path, "rt").read().splitlines()
    *scrapes, periods = map(json.loads, lines)
    programs, options = find_programs(ROOT), shortened()
    with tempfile.TemporaryDirectory(prefix="gpuwhy-alerts-") as folder:
        add_blocks(Path(folder), programs, timed(scrapes))
        server = serving(programs, Path(folder))
        with running(server):
            wrong = 0
            for period in periods:
                end = period["to"] - 1
                held = {
                    alert.name
                    for alert in alerts.rendered(options)
                    if server.query(alert.expr(alert, Promql(options)), end)
                }
                right = held == WANTED[period["workload"]]
                wrong += not right
                print(
                    f"{period['workload']:14} {'right' if right else 'WRONG'}  {', '.join(sorted(held)) or 'none'}"
                )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
