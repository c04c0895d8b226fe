"""Whole scrapes of replayed recordings, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuwhy.daemon import Pipeline
from gpuwhy.exporter import Exposition, Format, Health, Ledger
from gpuwhy.source.replay import load
from gpuwhy.verdict.now import Now

RECORDINGS = Path(__file__).parent / "data" / "recordings"


def scrape(name: str, wanted: Format) -> str:
    recording = load(RECORDINGS / f"{name}.jsonl.gz")
    stages, ledger, now, shown = Pipeline(interval_s=5.0), Ledger(), Now(), {}
    last = 0.0
    for reading in recording.readings():
        last = reading.unix_s
        for judged in stages.feed(reading):
            shown.update({verdict.gpu.key: now.update(verdict) for verdict in judged.verdicts})
            ledger.credit(judged.verdicts, judged.host, shown)
    ledger.credit([], None, shown)
    for (signal, reason), count in stages.normaliser.rejected.items():
        ledger.reject(signal, reason, count)
    health = Health({gpu.key: True for gpu in recording.gpus}, {"replay": True}, last_sample_unix_s=last)
    exposition = Exposition(clock=lambda: 0.0, process=CollectorRegistry())
    exposition.publish(ledger.snapshot(health, taken_s=0.0, interval_s=5.0))
    # Which Python and gpuwhy it is changes with every release.
    return "".join(
        f"{line}\n"
        for line in exposition.scrape(wanted).decode().splitlines()
        if not line.startswith("gpuwhy_build_info{")
    )


@pytest.mark.parametrize("name", ["ddp_straggler", "syn_sentinels", "quota", "idle"])
def test_scrape(golden: Callable[[str, str], None], name: str) -> None:
    """What Prometheus gets of a recording is what it got when the golden was reviewed."""
    golden(f"scrape/{name}.prom", scrape(name, Format.TEXT))
