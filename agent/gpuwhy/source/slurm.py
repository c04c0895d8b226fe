"""The jobs that Slurm runs on this host, who they belong to and which GPUs they hold.

Slurm's control groups say which jobs run: ``/slurm[_NODE]/uid_U/job_J`` of version 1,
``system.slice/[NODE_]slurmstepd.scope/job_J`` of version 2, where Slurm 26.05 writes the job's SLUID in place
of ``job_J`` unless ``CgroupJobIdPaths`` is set. What a job is called comes from ``scontrol``, which is asked
once for each, or else from the environment of its processes, which its user can change.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from gpuwhy.source.bounded import folders, read_bounded
from gpuwhy.source.identity import Identities, Identity
from gpuwhy.source.kept import whole
from gpuwhy.source.reading import SourceError

SLUID = r"s[0-9A-HJKMNP-TV-Z]{13}"  # its digits are Crockford's base 32

ANSWER_WITHIN_S = 5.0  # for one question to the controller,
ASK_FOR_S = 10.0  # and for all of one read
PAUSE_S, LONGEST_PAUSE_S = 15.0, 900.0  # between questions while there is no answer

_MOST_JOBS = 1024
_MOST_STEPS = 32
_MOST_GROUPS = 16  # of a step, one for each task
_MOST_PIDS = 4
_MOST_ENTRIES = 4096
_MOST_ANSWER = 1 << 22  # an array is answered with all its tasks, some 1.5 KiB each
_MOST_LINE = 1 << 16
_MOST_TEXT = 1024
_MOST_GPUS = 64

_JOB_FOLDER = re.compile(rf"(?:job_([0-9]{{1,10}})|({SLUID}))")
_JOB_ID = re.compile(r"[0-9]{1,10}")
_STEPD = re.compile(rb"slurmstepd: \[([0-9]{1,10})\.")
# A file of the mapping folder: a GPU's number, with its MIG instance's after a point, or a UUID.
_MAPPED = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_GRES = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:[0-9]+\(IDX:([0-9,-]+)\)")


@dataclass(frozen=True, slots=True)
class Job:
    """One job; "" = not known.

    ``id`` is its number, or its SLUID where only that is known. ``array_id`` is "A_I" for task I of array A.
    ``gpus`` are numbers ("0", "0.2" with a MIG instance) or UUIDs: where ``mapped`` is set as files of the
    mapping folder are named, the numbers NVML's; else places in Slurm's own list of the node's GPUs.
    ``live`` is None where Slurm's control groups are not there to tell.
    """

    id: str
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    array_id: str = ""
    comment: str = ""
    gpus: tuple[str, ...] = ()
    live: bool | None = None
    sluid: str = ""
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """A step's folder in one hierarchy."""

    name: str
    folder: Path


@dataclass(slots=True)
class _Groups:
    """What control groups say of a job."""

    id: str
    sluid: str = ""
    uid: int | None = None
    steps: list[_Step] = field(default_factory=list)


class Slurm:
    """``cgroup_root`` and ``proc`` are the host's ``/sys/fs/cgroup`` and ``/proc``.

    ``mapping_folder`` is what dcgm-exporter knows as DCGM_HPC_JOB_MAPPING_DIR: a file for each GPU, with
    the jobs that hold it, one a line. ``scontrol`` is the program to ask, "" = never. ``node`` is what Slurm
    calls this host, for jobs on several.
    """

    name = "slurm"

    def __init__(
        self,
        cgroup_root: Path,
        proc: Path,
        identities: Identities,
        *,
        mapping_folder: Path | None = None,
        scontrol: str = "scontrol",
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[list[str], float], tuple[int, bytes]] | None = None,
    ) -> None:
        self._root = cgroup_root
        self._proc = proc
        self._identities = identities
        self._mapping_folder = mapping_folder
        self._scontrol = scontrol
        self._node = node
        self._clock = clock
        self._ask_program = ask or run_bounded
        self._answers: dict[str, Job] = {}
        self._told: dict[str, Job] = {}  # by the environment
        self._step_gpus: dict[tuple[str, str], tuple[str, ...]] = {}
        self._ids: dict[str, str] = {}  # job ids by SLUID
        self._ask_at = float("-inf")
        self._pause_s = 0.0
        self.trouble = ""  # why the controller was not heard, "" = it was, or is not to be asked

    def present(self) -> bool:
        """Whether Slurm has control groups here, or somebody maps GPUs to jobs."""
        return any(True for _ in self._scopes()) or self._mapping_there()

    def read(self) -> dict[str, Job]:
        """The jobs of this host by id, and by SLUID where the control groups are named so.

        Where the controller does not answer, jobs are told by their processes; ``trouble`` says so.

        Raises:
            SourceError: neither control groups nor mapping files can be read.
        """
        groups, seen = self._groups()
        mapped = self._mapped()
        if not seen and mapped is None and not self._readable():
            raise SourceError(
                f"slurm: {self._root} cannot be listed; it has to be the host's /sys/fs/cgroup, readable"
            )
        self._forget(groups, mapped or {})
        self._question(groups if seen else mapped or {})
        jobs: dict[str, Job] = {}
        for number in {**groups, **(mapped or {})}:
            own = groups.get(number)
            job = self._job(number, own, (mapped or {}).get(number, ()))
            job = replace(job, live=own is not None if seen else None)
            jobs[number] = job
            if job.sluid:
                jobs[job.sluid] = job
        return jobs

    def _job(self, number: str, own: _Groups | None, mapped: tuple[str, ...]) -> Job:
        answer = self._answers.get(number)
        told = self._tell(own) if own else None
        heard = answer is not None and answer != Job(answer.id)
        job = answer if answer and heard else told or Job(number)
        if heard and told:
            job = replace(
                job,
                name=job.name or told.name,
                user=job.user or told.user,
                array_id=job.array_id or told.array_id,
            )
        user = job.user
        if own and own.uid is not None and not (answer and answer.user):
            user = self._identities.user(own.uid)
        gpus = mapped or (answer.gpus if answer else ()) or (told.gpus if told else ())
        return replace(job, user=user, sluid=own.sluid if own else "", gpus=gpus, mapped=bool(mapped))

    def _readable(self) -> bool:
        try:
            with os.scandir(self._root):
                return True
        except OSError:
            return False

    # Control groups

    def _scopes(self) -> Iterator[tuple[Path, int | None]]:
        """The folders that hold those of jobs, and the user's number where they are one user's."""
        for name in folders(self._root, _MOST_ENTRIES):
            yield from ((found, None) for found in self._stepd_scopes(self._root, name))
            if name == "unified":
                for inner in folders(self._root / name, _MOST_ENTRIES):
                    yield from ((found, None) for found in self._stepd_scopes(self._root / name, inner))
            elif not name.endswith((".slice", ".scope", ".service")):
                yield from self._users(self._root / name)

    def _stepd_scopes(self, parent: Path, name: str) -> Iterator[Path]:
        if _is_stepd_scope(name):
            yield parent / name
        elif name.endswith(".slice"):
            inner = folders(parent / name, _MOST_ENTRIES)
            yield from (parent / name / scope for scope in inner if _is_stepd_scope(scope))

    @staticmethod
    def _users(controller: Path) -> Iterator[tuple[Path, int | None]]:
        for name in folders(controller, _MOST_ENTRIES):
            if name == "slurm" or (name.startswith("slurm_") and not name.endswith((".scope", ".service"))):
                yield controller / name, None
                for user in folders(controller / name, _MOST_ENTRIES):
                    uid = whole(user.removeprefix("uid_").encode(errors="replace"))
                    if user.startswith("uid_") and uid is not None:
                        yield controller / name / user, uid

    def _groups(self) -> tuple[dict[str, _Groups], bool]:
        """The jobs that have control groups, and whether Slurm has any."""
        found: dict[str, _Groups] = {}
        seen = False
        ids: dict[str, str] = {}
        for scope, uid in self._scopes():
            seen = True
            for name in folders(scope, _MOST_ENTRIES):
                match = _JOB_FOLDER.fullmatch(name)
                if match is None or len(found) >= _MOST_JOBS:
                    continue
                steps = [
                    _Step(step.removeprefix("step_"), scope / name / step)
                    for step in folders(scope / name, _MOST_ENTRIES)
                    if step.startswith("step_")
                ]
                sluid = match[2] or ""
                number = match[1] or self._ids.get(sluid) or self._number(steps) or sluid
                if sluid and number != sluid:
                    ids[sluid] = number
                own = found.setdefault(number, _Groups(number, sluid, uid))
                own.steps += steps
        self._ids = ids
        return found, seen

    def _number(self, steps: Iterable[_Step]) -> str:
        """The job's id by the title of the daemon of one of its steps, "" where none tells."""
        for step in islice(steps, _MOST_STEPS):
            for pid in _pids(step.folder / "slurm"):
                try:
                    match = _STEPD.match(read_bounded(f"{self._proc}/{pid}/cmdline", _MOST_TEXT))
                except OSError:
                    continue
                if match:
                    return match[1].decode()
        return ""

    # The environment of processes

    def _identities_of(self, step: _Step) -> Iterator[Identity]:
        pids = (pid for folder in _task_folders(step.folder) for pid in _pids(folder))
        for pid in islice(pids, _MOST_PIDS):
            identity = self._identities.read(pid)
            if identity is not None and identity.environ:
                yield identity

    def _tell(self, own: _Groups) -> Job | None:
        """What the environment of a job's processes says, each step asked until one of it has answered."""
        told = self._told.get(own.id)
        # The newest are the likeliest to run something.
        for step in sorted(own.steps, key=lambda step: step.name)[-_MOST_STEPS:]:
            key = (own.id, step.name)
            if step.name == "extern" or key in self._step_gpus:
                continue
            for identity in self._identities_of(step):
                # Beside the job's own processes there is the daemon that starts them.
                if _id_in(identity.environ) == own.id:
                    self._step_gpus[key] = _gpus_of(step.name, identity.environ)
                    told = told or _told(own.id, identity)
                    break
        if told is None:
            return None
        self._told[own.id] = told
        names = {step.name for step in own.steps}
        gpus = [self._step_gpus.get((own.id, name), ()) for name in sorted(names)]
        return replace(told, gpus=tuple(dict.fromkeys(gpu for step in gpus for gpu in step))[:_MOST_GPUS])

    def _forget(self, groups: Mapping[str, _Groups], mapped: Mapping[str, tuple[str, ...]]) -> None:
        """Whatever is no longer here; a job that is requeued under its id is asked for again."""
        steps = {(own.id, step.name) for own in groups.values() for step in own.steps}
        self._step_gpus = {key: gpus for key, gpus in self._step_gpus.items() if key in steps}
        self._told = {number: job for number, job in self._told.items() if number in groups}
        here = groups.keys() | mapped.keys()
        self._answers = {number: job for number, job in self._answers.items() if number in here}

    # Mapping files

    def _mapping_there(self) -> bool:
        return self._mapped() is not None

    def _mapped(self) -> dict[str, tuple[str, ...]] | None:
        """GPUs by job id, None without a folder that can be read."""
        if self._mapping_folder is None:
            return None
        found: dict[str, list[str]] = {}
        try:
            with os.scandir(self._mapping_folder) as entries:
                names = sorted(entry.name for entry in islice(entries, _MOST_ENTRIES) if not entry.is_dir())
        except OSError:
            return None
        for name in names:
            if not _MAPPED.fullmatch(name):
                continue
            try:
                data = read_bounded(self._mapping_folder / name, 1 << 16)
            except OSError:
                continue
            for line in data.split(b"\n")[:_MOST_ENTRIES]:
                # Some write the user's number after the job's.
                number = line.split(None, 1)[0].decode(errors="replace") if line.strip() else ""
                if _JOB_ID.fullmatch(number) and len(found) < _MOST_JOBS:
                    found.setdefault(number, []).append(name)
        return {number: tuple(dict.fromkeys(gpus))[:_MOST_GPUS] for number, gpus in found.items()}

    # The controller

    def _question(self, numbers: Iterable[str]) -> None:
        """Asks for jobs that have not been asked for, as long as there is time and it answers."""
        start_s = self._clock()
        if not self._scontrol or start_s < self._ask_at:
            return
        for number in numbers:
            if number in self._answers:
                continue
            if self._clock() - start_s > ASK_FOR_S:
                return
            command = [self._scontrol, "-d", "-o", "show", "job", number]
            problem = ""
            try:
                status, answer = self._ask_program(command, ANSWER_WITHIN_S)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                problem = str(error)
            else:
                job = parse_job(answer, number, self._node)
                if job is None and (status == 0 or b"Invalid job id" in answer):
                    job = Job(number)
                if job is None:
                    problem = (
                        answer[:200].decode(errors="replace").strip() or f"it ended with status {status}"
                    )
            if problem:
                self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or PAUSE_S)
                self._ask_at = self._clock() + self._pause_s
                self.trouble = f"{' '.join(command)}: {problem}; jobs are named by their environment (set workloads.slurm_scontrol to the program's path, or empty)"
                return
            assert job is not None  # noqa: S101  there is a job where there is no problem
            self._answers[number] = self._answers[job.id] = job
            if job.id != number:
                self._ids[number] = job.id
            self._pause_s, self.trouble = 0.0, ""


def _is_stepd_scope(name: str) -> bool:
    return name == "slurmstepd.scope" or name.endswith("_slurmstepd.scope")


def _task_folders(step: Path) -> Iterator[Path]:
    """Where a step's processes may be, tasks first: in the step itself there may be its daemon."""
    for parent in (step / "user", step):
        yield from (parent / task for task in folders(parent, _MOST_GROUPS) if task.startswith("task_"))
    yield step / "user"
    yield step


def _pids(folder: Path) -> list[int]:
    try:
        data = read_bounded(folder / "cgroup.procs", 1 << 12)
    except OSError:
        return []
    # The last line may be cut. Processes outside of the reader's pid namespace are printed as 0.
    lines = data.split(b"\n")[:-1]
    return [pid for pid in map(whole, lines[:_MOST_PIDS]) if pid]


def _id_in(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")


def _told(number: str, identity: Identity) -> Job:
    environ = identity.environ
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    is_array = _JOB_ID.fullmatch(array) and _JOB_ID.fullmatch(task)
    return Job(
        id=number,
        name=environ.get("SLURM_JOB_NAME", ""),
        user=identity.user or environ.get("SLURM_JOB_USER", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        array_id=f"{array}_{task}" if is_array else "",
    )


def _gpus_of(step: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The environment travels to other hosts with a job's steps: the job's GPUs are this host's only where
    its first process runs.
    """
    name = "SLURM_JOB_GPUS" if step in {"batch", "interactive"} else "SLURM_STEP_GPUS"
    parts = environ.get(name, "").split(",")[:_MOST_GPUS]
    return tuple(part for part in parts if _MAPPED.fullmatch(part) and "." not in part)


def parse_job(answer: bytes, number: str, node: str = "") -> Job | None:
    """What ``scontrol -d -o show job`` says of one job, None where it does not.

    Names and comments are their users', and may hold what looks like another field: one that stands there
    twice is not believed.
    """
    begin = f"JobId={number} " if _JOB_ID.fullmatch(number) else "JobId="
    lines = [line for line in answer.split(b"\n") if line.startswith(begin.encode(errors="replace"))]
    match = _JOB_ID.match(lines[0][6:17].decode(errors="replace")) if lines else None
    if match is None:
        return None
    # Further lines are in somebody's comment, which stands in the first one's end.
    text = lines[0][:_MOST_LINE].decode(errors="replace")

    def one(pattern: str) -> str:
        found = re.findall(pattern, text)
        value = found[0] if len(found) == 1 else ""
        return "" if value in {"(null)", "N/A"} else value[:_MOST_TEXT]

    user = one(r" UserId=([^ ()]+)\([0-9]+\) GroupId=")
    array, task = one(r" ArrayJobId=([0-9]+) "), one(r" ArrayTaskId=([0-9]+) ")
    name, found, rest = text.partition(" JobName=")[2].partition(" UserId=")
    if not found or " UserId=" in rest or " JobName=" in name + rest:
        name = ""
    comment = one(r" Comment=(.*)") if text.count(" Comment=") == 1 else ""
    return Job(
        id=match[0],
        name="" if name == "(null)" else name[:_MOST_TEXT],
        user="" if user == "nobody" else user,
        account=one(r" Account=([^ ]*)"),
        partition=one(r" Partition=([^ ]*)"),
        array_id=f"{array}_{task}" if array and task else "",
        comment=re.split(r" [A-Z][A-Za-z]*=", comment, maxsplit=1)[0].strip(),
        gpus=_allocated(text, node),
    )


def _allocated(text: str, node: str) -> tuple[str, ...]:
    """The places of a job's GPUs in Slurm's list of this host's, none where that is not clear."""
    before, begin, rest = text.partition(" JOB_GRES=")
    inner, end, after = rest.partition(" MinCPUsNode=")
    if not begin or not end or " JOB_GRES=" in after or " MinCPUsNode=" in before + after:
        return ()
    parts = re.findall(r" Nodes=([^ ]+) CPU_IDs=[^ ]* Mem=[0-9]+ GRES=([^ ]*)", inner)
    alone = re.findall(r" NumNodes=([0-9]+) ", text) == ["1"]
    if alone:
        own = [gres for _, gres in parts] if len(parts) == 1 else []
    else:
        # Slurm calls a host by its short name, unless told otherwise.
        name = node.partition(".")[0].lower()
        own = [
            gres
            for nodes, gres in parts
            if name in {each.partition(".")[0].lower() for each in _hosts(nodes)}
        ]
    places = (place for gres in own for match in _GRES.findall(gres) for place in _ranges(match))
    return tuple(map(str, islice(places, _MOST_GPUS)))


def _ranges(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = whole(first.encode()), whole((last if dash else first).encode())
        if low is not None and high is not None and low <= high < 1 << 16:
            yield from range(low, high + 1)


def _hosts(text: str) -> set[str]:
    """The hosts of a list such as "a1,b[01-03,7]"; names with more than one bracket are left out."""
    found: set[str] = set()
    for piece in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        name, bracket, inner = piece.partition("[")
        ranges, _, rest = inner.partition("]")
        if not bracket:
            found.add(name)
        elif "[" not in rest:
            for part in ranges.split(","):
                width = len(part.partition("-")[0])
                found.update(
                    f"{name}{place:0{width}}{rest}" for place in islice(_ranges(part), _MOST_ENTRIES)
                )
    return found


def run_bounded(command: list[str], timeout_s: float) -> tuple[int, bytes]:
    """A program's exit status and the first 4 MiB of what it printed, errors too.

    It is killed when its time is over, with all that it started.

    Raises:
        OSError: it cannot be started, or did not end in time.
    """
    # What this agent was itself told by Slurm is not the question.
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SCONTROL_")) or name == "SLURM_CONF"
    }
    end_s = time.monotonic() + timeout_s
    process = subprocess.Popen(  # noqa: S603  the command is configured; what is added to it is digits
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ | {"LC_ALL": "C"},
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  it was asked for
    pieces: list[bytes] = []
    left = _MOST_ANSWER
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while left > 0:
                if not selector.select(max(0.0, end_s - time.monotonic())):
                    raise TimeoutError(f"no answer within {timeout_s:g} s")
                piece = os.read(process.stdout.fileno(), min(left, 1 << 16))
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
        try:
            # One that has said enough need not be waited for.
            status = process.wait(max(0.0, end_s - time.monotonic())) if left else 0
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None
        return status, b"".join(pieces)
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
