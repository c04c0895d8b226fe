"""Finds out whose each process and each GPU is, beside the tick and the scrape: both only look it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwhy.sample import Tenant
from gpuwhy.source import GpuReading
from gpuwhy.source.identity import Identities, Identity
from gpuwhy.source.ladder import SourceState, name_thread
from gpuwhy.workload.directory import BROKER, UNKNOWN
from gpuwhy.workload.kinds import container, kubernetes, process, slurm, systemd
from gpuwhy.workload.label import label
from gpuwhy.workload.refreshed import HANGS_S, Refreshed
from gpuwhy.workload.tables import UNNAMED, Key, Row, Tables

log = logging.getLogger("gpuwhy")

# Asked in this order: a job may run in a container, and a container be started by a unit.
KINDS: tuple[Callable[[Identity, Tables], Tenant | None], ...] = (
    slurm.tenant,
    kubernetes.tenant,
    container.tenant,
    systemd.tenant,
    slurm.claimed,  # anybody may set a variable: only who is nothing else is believed
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
    """A process that owns a GPU: who it is, when it was read and when it was last asked for.

    ``tenant`` is whose it is by the tables as they are, None where that has to be found out; ``run`` the
    run that no table has, None where one does.
    """

    identity: Identity
    read_s: float
    asked_s: float
    tenant: Tenant | None = None
    run: tuple[str, str] | None = None


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
        self._waiting: dict[tuple[str, str], float] = {}  # runs that no table has, by when they came
        self._tenants: dict[int, Tenant] = {}
        self._granted: dict[Key, tuple[Tenant, ...]] = {}
        self._tables = fixed
        self._holders: dict[str, tuple[Tables, Tenant]] = {}  # by the name that a source gives
        self._values: dict[str, Any] = {}
        self._granted_for: tuple[Row, ...] = ()
        self._began_s = self._looked_s = clock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._troubled = False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="gpuwhy-whose", daemon=True)

    def start(self) -> None:
        for reader in self._readers.values():
            reader.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends the threads, without waiting for one that hangs."""
        self._stopping.set()
        self._wake.set()
        for reader in self._readers.values():
            reader.stop()
        until = time.monotonic() + STOP_S
        for reader in self._readers.values():
            reader.join(max(0.0, until - time.monotonic()))
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))

    def states(self) -> dict[str, SourceState]:
        """How the readers are, by name, and ``/proc`` itself, which may hang on one process."""
        late = self._clock() - self._looked_s
        own = SourceState(up=True)
        if late > HANGS_S:
            own = SourceState(up=False, reason=f"the processes on GPUs have not been read for {late:.0f} s")
        readers = {reader.name: reader.state() for reader in self._readers.values()}
        return {"processes": own, **readers}

    def lacks(self) -> dict[str, str]:
        """What keeps GPUs from having a name, each with the remedy; of the last round."""
        wanted = self._wanted
        known = [known for pid, known in list(self._known.items()) if pid in wanted]
        hidden = sum(pid in self._unseen for pid in wanted)
        refused = sum(bool(each.identity.refused) for each in known)
        unnamed = {kind for kind, _ in list(self._waiting)}
        # A job is in the table by its control group alone.
        unnamed |= {
            each.tenant.workload.kind
            for each in known
            if each.tenant and each.tenant.workload.name == UNNAMED
        }
        in_pods = any(kubernetes.is_in_pod(each.identity) for each in known)
        grants = self._readers.get("grants")
        said: dict[str, str] = {}
        if hidden:
            said["hidden"] = (
                f"{hidden} of {len(wanted)} processes on GPUs are not in /proc: share the host's pid namespace "
                "(hostPID in Kubernetes, docker --pid=host)"
            )
        if refused:
            said["refused"] = (
                f"executable or environment of {refused} of {len(wanted)} processes on GPUs may not be read: run "
                "as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
            )
        if "kubernetes" in unnamed:
            said["pods"] = (
                "pods have no name here: mount the host's /var/log/pods, or let the agent list pods through the "
                "API server"
            )
        if in_pods and grants is not None and not grants.state().used:
            said["grants"] = (
                "GPUs that pods hold without a process cannot be seen: mount the host's "
                "/var/lib/kubelet/pod-resources, and install gpuwhy[kubernetes]"
            )
        if "slurm" in unnamed:
            said["jobs"] = (
                "Slurm jobs have no name here: the agent must be able to run scontrol, or to read the environment "
                "of their processes"
            )
        return said

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
        known = self._holders.get(name)
        if known is None or known[0] is not self._tables:
            job = name.removeprefix("job:")
            tables = self._tables
            found = kubernetes.holder(name, tables) if job == name else slurm.holder(job, tables)
            known = self._holders[name] = (tables, self._label(found))
            while len(self._holders) > MOST_PIDS:
                self._holders.pop(next(iter(self._holders)))
        return known[1]

    def look(self) -> None:
        """One round, in the caller's thread."""
        now = self._clock()
        values = {field: reader.value for field, reader in self._readers.items()}
        rows, held = self._rows, self._held
        news = any(values[field] is not self._values.get(field) for field in values)
        if news:
            self._minors = self._minors_of()
            self._tables, self._values = kubernetes.joined(replace(self._fixed, **values)), values
        if news or rows != self._granted_for:
            self._granted = self._grants(rows)
            self._granted_for = rows
            for known in self._known.values():
                known.tenant = None
        tenants: dict[int, Tenant] = {}
        waiting: dict[tuple[str, str], float] = {}
        for pid in self._followed(now):
            tenant = self._tenant(pid, held.get(pid), now, waiting)
            if tenant is not None:
                tenants[pid] = tenant
        self._tenants = tenants
        if waiting.keys() - self._waiting.keys():
            # Something new: whoever knows of it is asked at once.
            for reader in self._readers.values():
                reader.hasten()
        self._waiting = waiting
        self._looked_s = now
        if now - self._began_s >= PATIENCE_S:
            self._say(sure=not waiting or any(now - since >= PATIENCE_S for since in waiting.values()))

    def _say(self, *, sure: bool) -> None:
        """Logs each lack once; that pods or jobs have no name only where it is ``sure``."""
        lacks = self.lacks()
        if not sure:
            lacks = {name: lack for name, lack in lacks.items() if name not in {"pods", "jobs"}}
        for name in lacks.keys() - self._said:
            log.warning("%s", lacks[name])
        self._said |= lacks.keys()

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
        recent = sorted(
            (known for known in self._known.items() if now - known[1].asked_s <= KEPT_S),
            key=lambda item: -item[1].asked_s,
        )
        self._known = dict(recent[:MOST_PIDS])
        unseen = sorted(
            (item for item in self._unseen.items() if now - item[1] <= KEPT_S), key=lambda item: -item[1]
        )
        self._unseen = dict(unseen[:MOST_PIDS])
        return {*wanted, *self._known, *self._unseen}

    def _tenant(
        self, pid: int, key: Key | None, now: float, waiting: dict[tuple[str, str], float]
    ) -> Tenant | None:
        known = self._known.get(pid)
        if known is None and pid in self._unseen and pid not in self._wanted:
            return UNKNOWN
        start = self._identities.start(pid)
        if start is not None and (
            known is None or known.identity.start_ticks != start or now - known.read_s >= REREAD_S
        ):
            identity = self._identities.read(pid)
            if identity is not None:
                known = self._known[pid] = _Known(identity, now, now if known is None else known.asked_s)
        if known is None:
            self._unseen[pid] = self._unseen.get(pid, now)
            return UNKNOWN
        self._unseen.pop(pid, None)
        if known.tenant is None:
            known.tenant = self._named(known, key, now, waiting)
        elif known.run is not None and pid in self._wanted:
            waiting[known.run] = self._waiting.get(known.run, now)
        return known.tenant

    def _named(
        self, known: _Known, key: Key | None, now: float, waiting: dict[tuple[str, str], float]
    ) -> Tenant | None:
        # Anybody may call a program so, and would get rid of its time.
        if known.identity.executable in MPS_SERVER and known.identity.user in {"root", "uid:0"}:
            return BROKER
        tenant = next(found for kind in KINDS if (found := kind(known.identity, self._tables)) is not None)
        known.run = (tenant.workload.kind, tenant.run) if tenant.waits else None
        if known.run is not None:
            run = known.run
            waiting[run] = self._waiting.get(run, now)
            if now - waiting[run] < PATIENCE_S:
                return None
            # A pod that nothing else names may be the only one that was given its GPU.
            holders = () if key is None else self._granted.get(key, ())
            if len(holders) == 1 and self._is_nameless(holders[0], tenant):
                return holders[0]
        return self._label(replace(tenant, waits=False))

    def _is_nameless(self, holder: Tenant, tenant: Tenant) -> bool:
        """Whether a grant is all that is known of its pod, so that ``tenant`` may be it."""
        named = (holder.workload.namespace, holder.run)
        return holder.workload.kind == tenant.workload.kind == kubernetes.KIND and not any(
            (pod.namespace, pod.name) == named for pod in self._tables.pods.values()
        )

    def _label(self, tenant: Tenant) -> Tenant:
        return label(tenant, self._profiles, self._most)

    def _run(self) -> None:
        name_thread()
        while not self._stopping.is_set():
            self._wake.clear()
            if self._stopping.is_set():  # it may have been told to just before
                return
            try:
                self.look()
                self._troubled = False
            except Exception:
                if not self._troubled:
                    log.exception("whose the GPUs' processes are could not be found out; please report it")
                self._troubled = True
            self._wake.wait(LOOK_S)
            if not self._stopping.is_set():
                time.sleep(0.05)  # many owners may come at once
