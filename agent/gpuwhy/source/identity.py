"""Who a process is, from ``/proc``: its control groups, user, executable and what batch systems told it."""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuwhy.source.bounded import read_bounded
from gpuwhy.source.kept import whole
from gpuwhy.source.process import parse_stat

# What is kept of an environment, which may hold secrets.
ENVIRON = frozenset(
    {
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_JOBID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_ID",
        "SLURM_JOB_NAME",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_USER",
        "SLURM_STEP_GPUS",
    }
)
_MOST_ENVIRON = 1 << 20
_MOST_VALUE = 1024
_MOST_SMALL = 1 << 16  # stat, status, cgroup
_MOST_PASSWD = 1 << 23
_MOST_USERS = 4096
_DELETED = b" (deleted)"

ANSWER_S = 0.5
NAMELESS_FOR_S = 600.0  # how long a user whom nobody could name is not asked for again


@dataclass(frozen=True, slots=True)
class Identity:
    """One process.

    ``cgroups`` are the paths of all its control groups, deepest first. ``user`` is the name of its real
    user, or "uid:" and the number where that has no name; "" = not read. ``executable`` is the file's
    name, or where that may not be read the command's; ``environ`` holds only ``ENVIRON`` names.
    ``refused`` names what the kernel would not let us read: "exe", "environ".
    """

    pid: int
    start_ticks: int
    cgroups: tuple[str, ...] = ()
    user: str = ""
    executable: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


class Identities:
    """Reads processes below ``proc``.

    Users are named by ``passwd``, such as a host's file seen from a container, or by this system's own name
    service. That may block: it is asked in a thread of its own, and who it does not name in ``ANSWER_S`` goes
    by their number for the time being.
    """

    def __init__(
        self,
        proc: Path,
        *,
        passwd: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_up: Callable[[int], str] = lambda uid: pwd.getpwuid(uid).pw_name,
    ) -> None:
        self._proc = proc
        self._passwd = passwd
        self._clock = clock
        self._look_up = look_up
        self._names: dict[int, str] = {}
        self._nameless: dict[int, float] = {}
        self._asking: threading.Thread | None = None
        self._passwd_stamp: tuple[int, ...] = ()

    def start(self, pid: int) -> int | None:
        """When it started, in clock ticks since boot; None = gone. Tells it from a later one with its pid."""
        stat = parse_stat(self._small(pid, "stat"))
        return None if stat is None else int(stat["start_ticks"])

    def read(self, pid: int) -> Identity | None:
        """All of it, None where it is gone, or ended while it was read."""
        stat = parse_stat(self._small(pid, "stat"))
        if stat is None:
            return None
        uid = _real_uid(self._small(pid, "status"))
        executable, exe_refused = self._executable(pid)
        environ, environ_refused = self._environ(pid)
        cgroups = paths(self._small(pid, "cgroup"))
        if self.start(pid) != stat["start_ticks"]:
            return None
        refused = {name for name, was in (("exe", exe_refused), ("environ", environ_refused)) if was}
        return Identity(
            pid=pid,
            start_ticks=int(stat["start_ticks"]),
            cgroups=cgroups,
            user="" if uid is None else self.user(uid),
            executable=executable or str(stat["comm"]),
            environ=environ,
            refused=frozenset(refused),
        )

    def user(self, uid: int) -> str:
        """A user's name, "uid:" and the number where nobody knows one."""
        if self._passwd is not None:
            self._read_passwd(self._passwd)
            return self._names.get(uid, f"uid:{uid}")
        name = self._names.get(uid)
        if name is None and self._clock() >= self._nameless.get(uid, float("-inf")):
            name = self._ask(uid)
        return name or f"uid:{uid}"

    def _ask(self, uid: int) -> str | None:
        for known in (self._names, self._nameless):
            if len(known) >= _MOST_USERS:
                known.clear()
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._look, args=(uid,), name="gpuwhy-users", daemon=True)
            self._asking.start()
            self._asking.join(ANSWER_S)
        return self._names.get(uid)

    def _look(self, uid: int) -> None:
        try:
            name = self._look_up(uid)
        except (KeyError, OverflowError, OSError):
            name = ""
        if name:
            self._names[uid] = name
        else:
            self._nameless[uid] = self._clock() + NAMELESS_FOR_S

    def _read_passwd(self, passwd: Path) -> None:
        try:
            found = passwd.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._passwd_stamp:
                self._names = _names(read_bounded(passwd, _MOST_PASSWD))
                self._passwd_stamp = stamp
        except OSError:
            # What was read before is better than nothing.
            return

    def _small(self, pid: int, name: str) -> bytes:
        try:
            return read_bounded(f"{self._proc}/{pid}/{name}", _MOST_SMALL)
        except OSError:
            return b""

    def _executable(self, pid: int) -> tuple[str, bool]:
        """The file's name, "" for the kernel's threads, which have none, and whether it was refused."""
        try:
            path = os.readlink(os.fsencode(f"{self._proc}/{pid}/exe"))  # noqa: PTH115  paths are no bytes
        except OSError as error:
            return "", isinstance(error, PermissionError)
        return path.removesuffix(_DELETED).rpartition(b"/")[2].decode(errors="replace"), False

    def _environ(self, pid: int) -> tuple[dict[str, str], bool]:
        try:
            data = read_bounded(f"{self._proc}/{pid}/environ", _MOST_ENVIRON)
        except OSError as error:
            return {}, isinstance(error, PermissionError)
        found: dict[str, str] = {}
        for pair in data.split(b"\0"):
            name, equals, value = pair.partition(b"=")
            if equals and name.startswith(b"SLURM_") and (known := name.decode(errors="replace")) in ENVIRON:
                # As getenv answers, where a name stands there twice.
                found.setdefault(known, value[:_MOST_VALUE].decode(errors="replace"))
        return found, False


def paths(data: bytes) -> tuple[str, ...]:
    """The paths in a ``/proc/PID/cgroup``, each once, deepest first; version 2 wins a tie.

    A job or a runtime may use some controllers only, and all jobs be one service's in the others.
    """
    found: dict[str, tuple[int, bool]] = {}
    # Names may hold anything but a newline; also what Python takes for the end of a line.
    for line in data.split(b"\n"):
        _, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if colon and path.startswith(b"/") and b"\0" not in path:
            text = path.removesuffix(_DELETED).decode(errors="replace")
            depth = sum(part not in {"", ".."} for part in text.split("/"))
            found.setdefault(text, (depth, not controllers))
    return tuple(sorted(found, key=lambda path: found[path], reverse=True))


def _real_uid(status: bytes) -> int | None:
    fields = status.partition(b"\nUid:")[2].partition(b"\n")[0].split()
    return whole(fields[0]) if fields else None


def _names(passwd: bytes) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in passwd.split(b"\n"):
        fields = line.split(b":")
        uid = whole(fields[2]) if len(fields) >= 7 else None
        if uid is not None and fields[0]:
            found.setdefault(uid, fields[0].decode(errors="replace"))
    return found
