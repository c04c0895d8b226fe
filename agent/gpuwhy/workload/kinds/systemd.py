"""Services of systemd, the system's and users' own."""

from __future__ import annotations

import re

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.cgroup import belongs_to_one_job
from gpuwhy.source.identity import Identity
from gpuwhy.workload.tables import Tables

KIND = "systemd"

# Beside those that hold what does not belong together: these start what others ask them to.
_SPAWNERS = frozenset(
    {
        "atd.service",
        "condor.service",
        "crio.service",
        "k3s-agent.service",
        "k3s.service",
        "lxcfs.service",
        "nomad.service",
        "pbs.service",
        "podman.service",
        "rke2-agent.service",
        "rke2-server.service",
        "snap.docker.dockerd.service",
        "snap.lxd.daemon.service",
    }
)
_TRANSIENT = re.compile(r"(?:run-[^/]*|dbus-:[^/]*)\.service")
# systemd.io/DESKTOP_ENVIRONMENTS: the part after the @ is random, or "autostart".
_APPLICATION = re.compile(r"(app-[^@/]+)@[^@/]*\.service")


def tenant(identity: Identity, tables: Tables) -> Tenant | None:
    """The innermost service that a process runs in; not one that spawns for others, nor one made on the fly,
    whose name is new each time.
    """
    del tables
    for path in identity.cgroups:
        unit = _unit(path)
        if unit:
            return Tenant(Workload(KIND, name=unit, owner=identity.user))
    return None


def _unit(path: str) -> str:
    parts = path.split("/")
    for at in range(len(parts) - 1, 0, -1):
        if parts[at].endswith(".service") and parts[at] != ".service":
            break
    else:
        return ""
    unit = parts[at]
    if not belongs_to_one_job("/".join(parts[: at + 1])) or unit in _SPAWNERS or _TRANSIENT.fullmatch(unit):
        return ""
    application = _APPLICATION.fullmatch(unit)
    if application and any(part.startswith("user@") for part in parts[:at]):
        return f"{application[1]}.service"
    return unit
