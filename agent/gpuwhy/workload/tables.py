"""What resolvers know beside a process itself: the newest that each slow reader said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwhy.source.containers import Container
    from gpuwhy.source.kubernetes import Grant, Pod
    from gpuwhy.source.slurm import Job

Key = tuple[str, str]  # ``GpuFacts.key``

# The name of a workload of which only the run is known: never a name that changes from run to run.
UNNAMED = "unnamed"
PROFILES = frozenset({"throughput", "latency"})  # that a pod or job may say of itself


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU, or a MIG instance of one, by all names under which it may be granted.

    ``minor`` is the number of its device file (/dev/nvidia0 has 0), None = not known. ``devices`` are the
    UUIDs of a MIG instance's own devices ("MIG-...").
    """

    key: Key
    index: int
    minor: int | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tables:
    """Empty where a reader said nothing.

    ``pods`` are by uid, ``folders`` the same as the host's own folders show them, ``jobs`` by Slurm's job
    id, ``containers`` by their 64-digit id. ``node`` is this host's name. ``grants`` are the kubelet's.
    ``owner_label`` is the pod label that names the owner, "" for the namespace; ``profile_label`` the pod
    label or annotation that names the profile.
    """

    node: str = ""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    folders: Mapping[str, Pod] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    owner_label: str = ""
    profile_label: str = "gpuwhy/profile"
