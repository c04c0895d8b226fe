"""Containers outside of Kubernetes: Docker's, Podman's, containerd's, LXC's."""

from __future__ import annotations

import re

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.containers import Container
from gpuwhy.source.identity import Identity
from gpuwhy.workload.tables import UNNAMED, Tables

KIND = "container"

_ID = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")
# The process that watches a container is none of it.
_MONITOR = re.compile(r"(?:^|[/-])conmon-[0-9a-f]{64}")
_LXC = re.compile(r"/lxc(?:/|\.payload[./])([^/]+)")
_HEX = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
# A name that nobody gave is an adjective, "_" and a surname, and a digit where that was taken. One that was
# given in that shape loses to its image's, which stays the same as well.
_RANDOM = re.compile(r"[a-z]+_[a-z]+[0-9]?")


def tenant(identity: Identity, tables: Tables) -> Tenant | None:
    """Named by its compose service, else by the name that somebody gave it, else by its image, else by the
    executable. Of a container in another the outer is meant: what it names inside of itself is its own.
    """
    for path in identity.cgroups:
        if "kubepods" in path or _MONITOR.search(path):
            continue
        ids = _ID.findall(path)
        if ids:
            known = [tables.containers[each] for each in ids if each in tables.containers]
            return _tenant(known[0] if known else Container(ids[0]), identity)
        lxc = _LXC.search(path)
        if lxc:
            return Tenant(Workload(KIND, name=lxc[1], owner=identity.user), run=lxc[1])
    return None


def _tenant(container: Container, identity: Identity) -> Tenant:
    name = container.service
    if not name and container.name and not _is_random(container.name):
        name = container.name
    name = name or _image(container.image) or identity.executable or UNNAMED
    namespace = container.project if container.service else ""
    return Tenant(Workload(KIND, name=name, namespace=namespace, owner=identity.user), run=container.id[:12])


def _is_random(name: str) -> bool:
    return bool(_RANDOM.fullmatch(name) or _HEX.fullmatch(name))


def _image(image: str) -> str:
    """Its name without registry, tag and digest, as nvidia/pytorch; "" where it is no name but an id."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        name = rest
    head, slash, last = name.rpartition("/")
    name = f"{head}{slash}{last.partition(':')[0]}"
    return "" if _HEX.fullmatch(image) or _HEX.fullmatch(name) else name
