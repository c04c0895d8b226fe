"""Finds out whose each process and each GPU is, beside the tick and the scrape: both only look it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuReading
from gpuwhy.source.identity import Identities, Identity
from gpuwhy.source.ladder import SourceState, name_thread
from gpuwhy.workload.directory import BROKER, UNKNOWN
from gpuwhy.workload.kinds import container, kubernetes, process, slurm, systemd
from gpuwhy.workload.label import label
from gpuwhy.workload.refreshed import Refreshed
from gpuwhy.workload.tables import UNNAMED, Key, Row, Tables

log = logging.getLogger("gpuwhy")

# Asked in this order: a job may run in a container, and a container be started by a unit.
KINDS: tuple[Callable[[Identity, Tables], Tenant | None], ...] = (
    slurm.tenant,
    kubernetes.tenant,
    container.tenant,
    systemd.tenant,
    process.tenant,
)
GRANTS: tuple[Callable[[Tables, Sequence[Row]], Mapping[Key, tuple[Tenant, ...]]], ...] = (
    kubernetes.grants,
    slurm.grants,
)

MPS_SERVER = {"nvidia-cuda-mps-server", "nvidia-cuda-mps"}  # the second is what fits into a command's name
LOOK_S = 1.0
REREAD_S = 60.0  # a process may be moved to another control group
PATIENCE_S = 10.0  # for the reader that knows a new pod's or job's name
KEPT_S = 60.0  # after a pid was last asked for: intervals close later than processes end
MOST_PIDS = 4096
STOP_S = 0.3


@dataclass(slots=True)
class _Known:
    """A process that owns a GPU: who it is, since when that is known, when it was read and last asked for.

    ``tenant`` is whose it is by the tables as they are, None where that has to be found out.
    """

    identity: Identity
    since_s: float
    read_s: float
    asked_s: float
    tenant: Tenant | None = None


class Resolver:
    """A ``Directory`` of this host, kept up to date by threads of its own between ``start`` and ``stop``.

    ``readers`` are by the field of ``Tables`` that they fill. ``fixed`` holds the fields that stay. A
    process whose name only a reader knows is being found out for ``PATIENCE_S``, so that no series is
    born under a name that lasts for seconds.
    """

    def __init__(
        self,
        identities: Identities,
        readers: Mapping[str, Refreshed],
        *,
        fixed: Tables,
        minors: Callable[[], Mapping[str, int]] = dict,
        profiles: Mapping[str, str] | None = None,
        label_length: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``minors`` gives the number of each GPU's device file by UUID."""
        self._identities = identities
        self._readers = dict(readers)
        self._fixed = fixed
        self._minors_of = minors
        self._minors: Mapping[str, int] = {}
        self._profiles = profiles or {}
        self._most = label_length
        self._clock = clock
        self._wanted: frozenset[int] = frozenset()
        self._rows: tuple[Row, ...] = ()
        self._held: dict[int, Key] = {}  # a GPU of each owner's
        self._known: dict[int, _Known] = {}
        self._unseen: dict[int, float] = {}  # pids that were never there, by when they were last asked for
        self._tenants: dict[int, Tenant] = {}
        self._granted: dict[Key, tuple[Tenant, ...]] = {}
        self._tables = fixed
        self._reads: tuple[int, ...] | None = None
        self._granted_for: tuple[Row, ...] = ()
        self._wake = threading.Event()
        self._stopping = False
        self._troubled = False
        self._thread = threading.Thread(target=self._run, name="gpuwhy-whose", daemon=True)

    def start(self) -> None:
        for reader in self._readers.values():
            reader.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends the threads, without waiting for one that hangs."""
        self._stopping = True
        self._wake.set()
        for reader in self._readers.values():
            reader.stop()
        until = time.monotonic() + STOP_S
        for reader in self._readers.values():
            reader.join(max(0.0, until - time.monotonic()))
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))

    def states(self) -> dict[str, SourceState]:
        """How the readers are, by name."""
        return {reader.name: reader.state() for reader in self._readers.values()}

    def lacks(self) -> list[str]:
        """What keeps GPUs from having a name, each with the remedy; of the last round."""
        wanted = self._wanted
        hidden = sum(pid in self._unseen for pid in wanted)
        known = [known for pid, known in list(self._known.items()) if pid in wanted]
        refused = sum(bool(each.identity.refused) for each in known)
        unnamed = {each.kind for pid in wanted if (each := self._unnamed(pid)) is not None}
        said = {
            f"{hidden} of {len(wanted)} processes on GPUs are not in /proc: share the host's pid namespace "
            "(hostPID in Kubernetes, docker --pid=host)": hidden > 0,
            f"executable or environment of {refused} of {len(wanted)} processes on GPUs may not be read: run as "
            "root or with CAP_SYS_PTRACE": refused > 0,
            "pods have no name here: mount the host's /var/log/pods, or let the agent list pods through the API "
            "server": "kubernetes" in unnamed,
            "Slurm jobs have no name here: the agent must be able to read the environment of their processes, or "
            "to run scontrol": "slurm" in unnamed,
        }
        return [sentence for sentence, true in said.items() if true]

    def _unnamed(self, pid: int) -> Workload | None:
        tenant = self._tenants.get(pid)
        return tenant.workload if tenant is not None and tenant.workload.name == UNNAMED else None

    def follow(self, gpus: Sequence[GpuReading]) -> None:
        wanted = frozenset(pid for gpu in gpus for pid in gpu.owners or ())
        rows = tuple(
            Row(gpu.facts.key, gpu.facts.index, self._minors.get(gpu.facts.uuid), gpu.device_uuids)
            for gpu in gpus
        )
        if wanted != self._wanted or rows != self._rows:
            self._held = {pid: gpu.facts.key for gpu in gpus for pid in gpu.owners or ()}
            self._wanted, self._rows = wanted, rows
            self._wake.set()

    def tenant(self, pid: int) -> Tenant | None:
        return self._tenants.get(pid)

    def granted(self, key: Key) -> tuple[Tenant, ...]:
        return self._granted.get(key, ())

    def holder(self, name: str) -> Tenant:
        job = name.removeprefix("job:")
        found = kubernetes.holder(name, self._tables) if job == name else slurm.holder(job, self._tables)
        return self._label(found)

    def look(self) -> None:
        """One round, in the caller's thread."""
        now = self._clock()
        reads = tuple(reader.reads for reader in self._readers.values())
        news = reads != self._reads
        if news:
            self._minors = self._minors_of()
            values: dict[str, Any] = {field: reader.value for field, reader in self._readers.items()}
            self._tables, self._reads = kubernetes.joined(replace(self._fixed, **values)), reads
            for known in self._known.values():
                known.tenant = None
        rows = self._rows
        if news or rows != self._granted_for:
            self._granted_for = rows
            self._granted = self._grants(rows)
        tenants: dict[int, Tenant] = {}
        waits = False
        for pid in self._followed(now):
            tenant = self._tenant(pid, now)
            if tenant is None:
                waits = True
            else:
                tenants[pid] = tenant
        self._tenants = tenants
        if waits:
            for reader in self._readers.values():
                reader.hasten()

    def _grants(self, rows: Sequence[Row]) -> dict[Key, tuple[Tenant, ...]]:
        granted: dict[Key, tuple[Tenant, ...]] = {}
        for grants in GRANTS:
            for key, holders in grants(self._tables, rows).items():
                granted[key] = (*granted.get(key, ()), *map(self._label, holders))
        return granted

    def _followed(self, now: float) -> Iterable[int]:
        """The pids that are asked for, and those that were a moment ago."""
        wanted = sorted(self._wanted)[:MOST_PIDS]
        for pid in wanted:
            if pid in self._known:
                self._known[pid].asked_s = now
            elif pid in self._unseen:
                self._unseen[pid] = now
        self._known = {pid: known for pid, known in self._known.items() if now - known.asked_s <= KEPT_S}
        self._unseen = {pid: asked for pid, asked in self._unseen.items() if now - asked <= KEPT_S}
        return {*wanted, *self._known, *self._unseen}

    def _tenant(self, pid: int, now: float) -> Tenant | None:
        start = self._identities.start(pid)
        known = self._known.get(pid)
        if start is not None and (
            known is None or known.identity.start_ticks != start or now - known.read_s >= REREAD_S
        ):
            identity = self._identities.read(pid)
            if identity is not None:
                new = known is None or known.identity.start_ticks != identity.start_ticks
                since = now if new or known is None else known.since_s
                known = self._known[pid] = _Known(identity, since, now, now)
        if known is None:
            self._unseen[pid] = self._unseen.get(pid, now)
            return UNKNOWN
        self._unseen.pop(pid, None)
        if known.tenant is None:
            known.tenant = self._named(pid, known, now)
        return known.tenant

    def _named(self, pid: int, known: _Known, now: float) -> Tenant | None:
        # Anybody may call a program so, and would get rid of its time.
        if known.identity.executable in MPS_SERVER and known.identity.user == "root":
            return BROKER
        tenant = next(found for kind in KINDS if (found := kind(known.identity, self._tables)) is not None)
        if tenant.workload.name == UNNAMED:
            if now - known.since_s < PATIENCE_S:
                return None
            # A pod that nothing else names may be the only one that was given its GPU.
            holders = self._granted.get(self._held.get(pid, ("", "")), ())
            if len(holders) == 1 and holders[0].workload.kind == tenant.workload.kind:
                return holders[0]
        return self._label(tenant)

    def _label(self, tenant: Tenant) -> Tenant:
        return label(tenant, self._profiles, self._most)

    def _run(self) -> None:
        name_thread()
        while not self._stopping:
            self._wake.clear()
            try:
                self.look()
                self._troubled = False
            except Exception:
                if not self._troubled:
                    log.exception("whose the GPUs' processes are could not be found out; please report it")
                self._troubled = True
            self._wake.wait(LOOK_S)
            if not self._stopping:
                time.sleep(0.05)  # many owners may come at once
