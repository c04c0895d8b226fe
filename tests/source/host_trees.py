"""A whole host made of plain files: processes, control groups of any shape, and what container engines keep.

    tree = HostTree(tmp_path)  # version=1 for control groups of version 1
    tree.process(7, cgroup=pod_path(UID, driver="cgroupfs"), uid=1000, exe="/usr/bin/python3.11")
    tree.processes_end(7)

Paths of control groups are strings as the kernel prints them after the last colon: ``pod_path``,
``docker_path``, ``podman_path``, ``slurm_path`` build those of the drivers and runtimes in use.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .fake_host import stat_line

UID = "0a1b2c3d-1111-4222-8333-444455556666"
CONTAINER = "c0ffee" * 10 + "abcd"  # 64 hexadecimal digits
# A kernel of today with version 1 has these hierarchies, systemd's own among them.
VERSION1 = ("name=systemd", "cpu,cpuacct", "memory", "devices", "freezer")


class HostTree:
    """``proc``, ``cgroup``, ``pods``, ``docker``, ``podman`` are where readers are pointed at."""

    def __init__(self, root: Path, *, version: int = 2) -> None:
        self.root = root
        self.version = version
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self.pods = root / "pods"  # /var/log/pods
        self.containers = root / "host"  # below it /var/lib/docker and /var/lib/containers
        for folder in (self.proc, self.cgroup):
            folder.mkdir(parents=True, exist_ok=True)
        if version == 1:
            for controllers in VERSION1:
                (self.cgroup / controllers.removeprefix("name=")).mkdir(exist_ok=True)

    def process(
        self,
        pid: int,
        *,
        cgroup: str | Mapping[str, str] = "/",
        uid: int = 0,
        exe: str | None = "/usr/bin/python3.11",
        environ: Mapping[str, str] | bytes = b"",
        start: int = 500,
        comm: bytes = b"python3",
        cmdline: bytes = b"python3\0train.py\0",
        ppid: int = 1,
        seen_from: str | None = None,
    ) -> None:
        """Starts a process, or changes it.

        ``cgroup`` is its path, or on version 1 also a path for each hierarchy that differs from "/". From
        ``seen_from``, the reader's own group in a private namespace, paths print relative to that.
        ``exe`` None is a kernel's thread.
        """
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_bytes(comm + b"\n")
        (folder / "cmdline").write_bytes(cmdline)
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\n")
        pairs = environ if isinstance(environ, bytes) else _block(environ)
        (folder / "environ").write_bytes(pairs)
        link = folder / "exe"
        link.unlink(missing_ok=True)
        if exe is not None:
            link.symlink_to(exe)
        lines = []
        for number, (controllers, path) in enumerate(self._paths(cgroup)):
            self._enter(controllers, path, pid)
            shown = path if seen_from is None else from_inside(path, seen_from)
            lines.append(f"{0 if self.version == 2 else number + 1}:{controllers}:{shown}\n")
        (folder / "cgroup").write_bytes(os.fsencode("".join(lines)))
        # Last and at once: whoever looks meanwhile sees no process yet, or the one before, as in a real /proc.
        whole = folder / "stat.new"
        whole.write_bytes(stat_line(pid, ppid, comm=comm, start=start))
        whole.replace(folder / "stat")

    def processes_end(self, *pids: int) -> None:
        """They are gone; their groups stay."""
        for pid in pids:
            shutil.rmtree(self.proc / str(pid))
            for file in self.cgroup.glob("**/cgroup.procs"):
                left = [line for line in file.read_text().split() if line != str(pid)]
                file.write_text("".join(f"{line}\n" for line in left))

    def group(self, path: str, *, hierarchy: str = "") -> Path:
        """An empty control group; on version 1 in ``hierarchy``, e.g. "memory"."""
        folder = self._mount(hierarchy) / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").touch()
        return folder

    def group_ends(self, path: str) -> None:
        """The group and all below it are gone, in all hierarchies."""
        mounts = [self.cgroup] if self.version == 2 else [self._mount(each) for each in VERSION1]
        for mount in mounts:
            shutil.rmtree(mount / path.strip("/"), ignore_errors=True)

    def pod_folder(self, namespace: str, name: str, uid: str) -> Path:
        """What the kubelet makes below /var/log/pods."""
        folder = self.pods / f"{namespace}_{name}_{uid}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def docker(
        self, container: str, *, name: str, image: str, labels: Mapping[str, str] | None = None
    ) -> Path:
        """What dockerd keeps of a container."""
        config = {
            "ID": container,
            "Name": f"/{name}",
            "Image": "sha256:" + "1" * 64,
            "State": {"Running": True, "Pid": 7},
            "Config": {"Image": image, "Labels": labels, "Env": ["PATH=/bin"], "Cmd": ["run"]},
        }
        file = self.containers / "var/lib/docker/containers" / container / "config.v2.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config))
        return file

    def podman(self, *containers: Mapping[str, Any]) -> Path:
        """What containers/storage keeps of all containers of root; each has "id", "name", "image"."""
        rows = [
            {
                "id": each["id"],
                "names": [each["name"], f"{each['name']}-other"],
                "image": "2" * 64,
                "layer": "3" * 64,
                "metadata": json.dumps({"image-name": each["image"], "name": each["name"]}),
                "created": "2025-01-01T00:00:00Z",
            }
            for each in containers
        ]
        file = self.containers / "var/lib/containers/storage/overlay-containers/containers.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows))
        return file

    def _paths(self, cgroup: str | Mapping[str, str]) -> Iterable[tuple[str, str]]:
        if self.version == 2:
            assert isinstance(cgroup, str)
            return [("", cgroup)]
        if isinstance(cgroup, str):
            return [(controllers, cgroup) for controllers in VERSION1]
        return [(controllers, cgroup.get(controllers, "/")) for controllers in VERSION1]

    def _mount(self, controllers: str) -> Path:
        return self.cgroup / controllers.removeprefix("name=")

    def _enter(self, controllers: str, path: str, pid: int) -> None:
        file = self.group(path, hierarchy=controllers) / "cgroup.procs"
        pids = file.read_text().split()
        if str(pid) not in pids:
            file.write_text("".join(f"{each}\n" for each in [*pids, pid]))


def _block(environ: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())


def from_inside(path: str, own: str) -> str:
    """``path`` as a reader prints it whose private namespace has its root at ``own``."""
    relative = os.path.relpath(path, own)
    return "/" if relative == "." else f"/{relative}"


def pod_path(
    uid: str = UID,
    container: str = CONTAINER,
    *,
    driver: str = "systemd",
    quality: str = "burstable",
    runtime: str = "cri-containerd",
) -> str:
    """A container of a pod. ``quality`` is burstable, besteffort or guaranteed; ``runtime`` cri-containerd,
    crio or docker; ``container`` "" is the pod's own group.
    """
    middle = "" if quality == "guaranteed" else quality
    if driver == "cgroupfs":
        parts = ["", "kubepods", *([middle] if middle else []), f"pod{uid}"]
        inner = f"crio-{container}" if runtime == "crio" else container
    else:
        prefix = f"kubepods-{middle}" if middle else "kubepods"
        parts = ["", "kubepods.slice", *([f"{prefix}.slice"] if middle else [])]
        parts.append(f"{prefix}-pod{uid.replace('-', '_')}.slice")
        inner = f"{runtime}-{container}.scope"
    return "/".join([*parts, inner] if container else parts)


def docker_path(container: str = CONTAINER, *, driver: str = "systemd") -> str:
    """A container that dockerd started."""
    return f"/system.slice/docker-{container}.scope" if driver == "systemd" else f"/docker/{container}"


def podman_path(container: str = CONTAINER, *, user: int = 0, driver: str = "systemd") -> str:
    """A container of podman, of root or of a user; the payload of crun has a group of its own below."""
    if driver != "systemd":
        return f"/libpod_parent/libpod-{container}"
    slices = f"/user.slice/user-{user}.slice/user@{user}.service/user.slice" if user else "/machine.slice"
    return f"{slices}/libpod-{container}.scope/container"


def slurm_path(
    job: int | str = 42,
    step: str | None = "0",
    *,
    task: int | None = 0,
    version: int = 2,
    uid: int = 1000,
    node: str = "",
) -> str:
    """A process of a step; ``node`` is set where several slurmd share a host. A job that is text is a SLUID,
    by which Slurm 26.05 names folders of version 2.
    """
    if version == 1:
        parts = [f"/slurm_{node}" if node else "/slurm", f"uid_{uid}", f"job_{job}"]
        parts += [f"step_{step}"] if step is not None else []
        parts += [f"task_{task}"] if step is not None and task is not None else []
        return "/".join(parts)
    parts = ["/system.slice", f"{node}_slurmstepd.scope" if node else "slurmstepd.scope"]
    parts += [f"job_{job}" if isinstance(job, int) else job]
    if step is not None:
        parts += [f"step_{step}", "user"]
        parts += [f"task_{task}"] if task is not None else []
    return "/".join(parts)
