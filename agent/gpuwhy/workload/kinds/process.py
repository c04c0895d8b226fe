"""Processes that nothing else answers for."""

from __future__ import annotations

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.identity import Identity
from gpuwhy.workload.tables import UNNAMED, Tables

KIND = "process"


def tenant(identity: Identity, tables: Tables) -> Tenant:
    """Named by the executable, owned by the user; always an answer."""
    del tables
    return Tenant(Workload(KIND, name=identity.executable or UNNAMED, owner=identity.user))
