"""Pods as the host itself shows them: by the folders of their logs and by their control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gpuwhy.source.reading import SourceError

MOST_PODS = 4096  # of one host, with those that have ended; the kubelet's own limit is 110 unless raised
_MOST_FOLDERS = 256  # that are searched for the pods' control groups

_ENDED = frozenset({"Succeeded", "Failed"})
_RUNS = frozenset({"Pending", "Running"})

# Pods from files on the host ("static") have a hash in place of a UUID.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
# A pod's part of a control group's path. cgroupfs: "pod<uid>"; systemd: "kubepods-burstable-pod<uid>.slice",
# with "_" for "-"; containerd's old way: "kubepods-pod<uid>.slice:cri-containerd:<id>".
_GROUP = re.compile(rf"(?:^|[/-])pod({_UID})(?=$|[/:]|\.slice(?:$|[/:]))")
_ENGINES = r"kubelet|containerd|crio|docker|k3s|k3s-agent|rke2-server|rke2-agent|snap\.microk8s\.[^/]+"
_OTHERS = re.compile(rf"/user\.slice/|/user@|/(?!(?:{_ENGINES})\.service/)[^/]+\.service/")
_LOGS = re.compile(rf"([a-z0-9][a-z0-9-]{{0,62}})_([a-z0-9][a-z0-9.-]{{0,252}})_({_UID})")
# Where version 1 is searched: one hierarchy is enough, and others keep groups that are long gone.
_HIERARCHIES = ("memory", "pids", "cpu", "cpu,cpuacct", "systemd", "unified")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this host, with what is needed to name it.

    ``uid`` is the one in its control groups' names. ``phase`` is the API server's, "" = not asked.
    ``controller_kind`` and ``controller_name`` are of what made it, "Pod" and the pod's own stable name
    where nothing did, "" = not known. ``live`` is whether it has a control group, None = not known.
    """

    uid: str
    namespace: str
    name: str
    phase: str = ""
    controller_kind: str = ""
    controller_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    live: bool | None = None

    @property
    def lives(self) -> bool | None:
        """Whether it may hold devices; None = nothing is known of that.

        A phase that is final is never taken back; any other may be older than what the kernel shows.
        """
        if self.phase in _ENDED:
            return False
        if self.live is not None:
            return self.live
        return True if self.phase in _RUNS else None


def pod_uids(path: str) -> list[str]:
    """The uids of the pods that a control group's path names, outermost first; as a rule one or none.

    The path may begin anywhere, as it does seen from a private namespace. Users and services name what is
    theirs as they like: below them nothing is a pod, save below a kubelet's and a container engine's.
    """
    match = _OTHERS.search(path)
    return [found[1].replace("_", "-") for found in _GROUP.finditer(path[: match.start()] if match else path)]


class PodFolders:
    """The pods of this host by the folders that the kubelet makes for their logs, which names them without
    the API server, and by their control groups below ``cgroup_root``.
    """

    name = "pod-folders"
    trouble = ""

    def __init__(
        self, folder: Path = Path("/var/log/pods"), cgroup_root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._folder = folder
        self._cgroup_root = cgroup_root

    def present(self) -> bool:
        """Whether a kubelet keeps logs here."""
        try:
            return self._folder.is_dir()
        except OSError:
            return False

    def read(self) -> dict[str, Pod]:
        """The pods by uid, with those that ended and whose logs are kept.

        Raises:
            SourceError: the folder cannot be listed.
        """
        try:
            names = _names(self._folder, MOST_PODS)
        except OSError as error:
            raise SourceError(
                f"{self._folder} cannot be listed ({error.strerror}), so pods have no names; run the agent as "
                "root, and in a container mount that folder"
            ) from None
        living = _living(self._cgroup_root)
        pods: dict[str, Pod] = {}
        for name in names:
            parts = _LOGS.fullmatch(name)
            if parts:
                uid = parts[3].replace("_", "-")
                live = None if living is None else uid in living
                pods[uid] = Pod(uid, namespace=parts[1], name=parts[2], live=live)
        return pods


def _names(folder: Path, most: int = _MOST_FOLDERS) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, most)]


def _living(root: Path) -> frozenset[str] | None:
    """The uids of pods that have a control group; None where those of pods cannot be found."""
    version2 = os.access(root / "cgroup.controllers", os.F_OK)
    for mount in (root,) if version2 else (*(root / name for name in _HIERARCHIES), root):
        try:
            tops = _tops(mount)
            if tops:
                return frozenset(_uids(tops))
        except OSError:
            continue
    return None


def _tops(mount: Path) -> list[Path]:
    """The groups that hold all pods: kubepods[.slice], or below the kubelet's own or another (--cgroup-root)."""
    groups = [mount / name for name in _names(mount)]
    found = [group for group in groups if "kubepods" in group.name]
    if found:
        return found
    for group in groups:
        try:
            found += [group / name for name in _names(group) if "kubepods" in name]
        except OSError:
            continue  # a file, or a group that went
    return found


def _uids(tops: Iterable[Path]) -> Iterable[str]:
    for top in tops:
        names = _names(top, MOST_PODS)
        for name in names:
            yield from pod_uids(name)
            if "burstable" in name or "besteffort" in name:
                try:
                    inner = _names(top / name, MOST_PODS)
                except FileNotFoundError:
                    continue
                for each in inner:
                    yield from pod_uids(each)
