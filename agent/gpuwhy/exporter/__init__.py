"""Stage 6: verdicts out, to Prometheus and over HTTP.

The sampling thread credits a ``Ledger`` and publishes its ``Snapshot``; an ``Exposition`` renders
the latest one, and an ``HttpServer`` answers from it.
"""

from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.http import HttpServer, ListenError
from gpuwhy.exporter.ledger import HostIncrements, Ledger
from gpuwhy.exporter.snapshot import Health, Snapshot
from gpuwhy.exporter.textformat import Format

__all__ = [
    "Exposition",
    "Format",
    "Health",
    "HostIncrements",
    "HttpServer",
    "Ledger",
    "ListenError",
    "Snapshot",
]
