"""What a scrape costs, beside prometheus_client's own encoding of the same series in the same run.

The verdicts are made up, with every signal read, so that every series is there. Each round publishes
a new snapshot. `http` is a request on a kept connection, while a thread renders ahead as in the agent;
`http, N idle` one on a new connection while N idle ones are open; client and server share a process.
`credit, publish` is what the sampling thread pays per interval, `fresh` the first scrape of a snapshot,
`ready` one of a snapshot that is already rendered. Ratios are to `generate_latest` of the same series.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpuwhy import catalog
from gpuwhy.exporter import Exposition, Format, Health, HostIncrements, HttpServer, Ledger, Snapshot
from gpuwhy.source import GpuFacts
from gpuwhy.verdict.types import TimeSplit, Verdict
from gpuwhy.verdict.vocabulary import CAUSES

INTERVAL_S = 5.0
PAUSE_S = 0.05  # between snapshot and scrape, which seldom meet when an interval is 5 s
TARGET_P99_MS = 2.0  # of a scrape over HTTP, 8 GPUs


class Host:
    """A host of made-up GPUs that is judged again with each snapshot."""

    def __init__(self, gpus: int) -> None:
        self._random = random.Random(7)
        self._facts = [
            GpuFacts(
                index=index,
                uuid=f"GPU-{self._random.getrandbits(32):08x}-1111-2222-3333-444455556666",
                model="NVIDIA H200",
                pci_bus_id=f"00000000:{index:02X}:00.0",
                compute_capability="9.0",
                driver="575.51.03",
                power_limit_watts=700.0,
                sm_clock_max_hertz=1.98e9,
                memory_total_bytes=150754820096.0,
            )
            for index in range(gpus)
        ]
        self._ledger = Ledger()
        self._signals = _fields("signal", "fact")
        self._increments = _fields("increment")

    def snapshot(self) -> Snapshot:
        return self.credit(self.judge())

    def judge(self) -> list[Verdict]:
        return [self._judge(facts) for facts in self._facts]

    def credit(self, verdicts: list[Verdict]) -> Snapshot:
        host = HostIncrements(self._values(catalog.HOST_CPU_MODES), self._values(catalog.PRESSURE_RESOURCES))
        self._ledger.credit(verdicts, host, {verdict.gpu.key: verdict for verdict in verdicts})
        self._ledger.tick(self._random.random())
        health = Health(
            {facts.key: True for facts in self._facts},
            {"nvml-gpm": True, "host": True},
            last_sample_unix_s=time.time(),
        )
        return self._ledger.snapshot(health, taken_s=time.monotonic(), interval_s=INTERVAL_S)

    def _judge(self, facts: GpuFacts) -> Verdict:
        cause = self._random.choice(CAUSES)
        useful = self._random.random() * INTERVAL_S
        return Verdict(
            gpu=facts,
            start_s=0.0,
            end_s=INTERVAL_S,
            unix_end_s=time.time(),
            verdict=cause.verdict,
            cause=cause.name,
            confidence=self._random.random(),
            evidence=(),
            time=TimeSplit(INTERVAL_S, INTERVAL_S, useful, verdict={cause.key: INTERVAL_S}),
            speed_of_light=self._random.random(),
            signals=self._values(self._signals),
            sources=dict.fromkeys(self._signals, "nvml-gpm"),
            increments=self._values(self._increments),
            clock_events=self._values(catalog.CLOCK_REASONS),
        )

    def _values(self, names: tuple[str, ...]) -> dict[str, float]:
        return {name: self._random.random() for name in names}


class Reference:
    """prometheus_client's encoding of the series that a scrape has."""

    def __init__(self, text: bytes) -> None:
        self._families = list(text_string_to_metric_families(text.decode()))
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self):
        return self._families

    def encode(self) -> bytes:
        return generate_latest(self._registry)


def _fields(*origins: str) -> tuple[str, ...]:
    return tuple(field for series in catalog.SERIES if series.origin in origins for _, field in series.fields)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def measure(gpus: int, rounds: int, idle: int) -> dict:
    memory_before = psutil.Process().memory_info().rss
    host = Host(gpus)
    exposition = Exposition()
    exposition.publish(host.snapshot())
    exposition.scrape(Format.TEXT)
    server = HttpServer(("127.0.0.1", 0), exposition, lambda: b"{}")
    address = server.start()
    taken: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        taken.setdefault(name, []).append(timed(call))

    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        kept = stack.enter_context(contextlib.closing(http.client.HTTPConnection(*address, timeout=10)))
        request(kept, gzip=True)
        exposition.start()
        stack.callback(exposition.stop)
        for _ in range(rounds):
            exposition.publish(host.snapshot())
            time.sleep(PAUSE_S)
            note("http", lambda: request(kept))
            note("http gzip", lambda: request(kept, gzip=True))
        kept.close()
        for _ in range(idle):
            stack.enter_context(socket.create_connection(address, timeout=10))
        for _ in range(rounds):
            exposition.publish(host.snapshot())
            time.sleep(PAUSE_S)
            note(f"http, {idle} idle", lambda: request_anew(address))
        memory_after = psutil.Process().memory_info().rss

    # In the process, in turn with the reference, so that both meet the same noise.
    content = exposition.scrape(Format.TEXT)
    reference = Reference(content)
    for _ in range(rounds):
        note("reference", reference.encode)
        verdicts = host.judge()
        note("credit, publish", lambda verdicts=verdicts: exposition.publish(host.credit(verdicts)))
        note("fresh", lambda: exposition.scrape(Format.TEXT))
        note("ready", lambda: exposition.scrape(Format.TEXT))
    base = quantiles(taken.pop("reference"))
    ours = {name: quantiles(values) for name, values in taken.items()}
    return {
        "gpus": gpus,
        "rounds": rounds,
        "idle_connections": idle,
        "series": sum(not line.startswith(b"#") for line in content.splitlines()),
        "bytes": len(content),
        "gzip_bytes": len(exposition.scrape(Format.TEXT, compressed=True)),
        "memory_mib": (memory_after - memory_before) / 2**20,
        "reference_ms": base,
        "ours_ms": ours,
        "ratio": {
            name: {quantile: value / base[quantile] for quantile, value in values.items()}
            for name, values in ours.items()
        },
    }


def request(connection: http.client.HTTPConnection, *, gzip: bool = False) -> None:
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip" if gzip else "identity"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


def request_anew(address: tuple[str, int]) -> None:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=10)) as connection:
        request(connection)


def quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def show(result: dict) -> None:
    print(
        f"{result['gpus']} GPUs, {result['series']} series, {result['bytes'] / 1024:.0f} KiB "
        f"({result['gzip_bytes'] / 1024:.0f} KiB gzip), {result['rounds']} rounds"
    )
    print(f"{'':24}{'p50 ms':>9}{'p99 ms':>9}{'p50 ratio':>11}{'p99 ratio':>11}")
    base = result["reference_ms"]
    print(f"{'generate_latest':24}{base['p50']:9.3f}{base['p99']:9.3f}")
    for name, values in result["ours_ms"].items():
        ratio = result["ratio"][name]
        print(f"{name:24}{values['p50']:9.3f}{values['p99']:9.3f}{ratio['p50']:11.3f}{ratio['p99']:11.3f}")
    print(
        f"memory of ledger, snapshots, exposition and server with {result['idle_connections']} idle "
        f"connections: {result['memory_mib']:.1f} MiB"
    )
    worst = max(values["p99"] for name, values in result["ours_ms"].items() if name.startswith("http"))
    print(f"target: p99 over HTTP <= {TARGET_P99_MS} ms with 8 GPUs; worst here {worst:.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs of the host (default 8)")
    parser.add_argument("--rounds", type=int, default=300, metavar="N", help="snapshots (default 300)")
    parser.add_argument("--idle", type=int, default=200, metavar="N", help="idle connections (default 200)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    result = measure(arguments.gpus, arguments.rounds, arguments.idle)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
