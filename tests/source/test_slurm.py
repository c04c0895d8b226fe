"""Jobs of Slurm: by control groups, environments, mapping files and the word of the controller."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.source import SourceError
from gpuwhy.source.identity import Identities
from gpuwhy.source.slurm import (
    ASK_FOR_S,
    LONGEST_PAUSE_S,
    PAUSE_S,
    Job,
    Slurm,
    _hosts,
    parse_job,
    run_bounded,
)

from .host_trees import HostTree, slurm_path

SLUID = "s5K1KKYAYG5D00"
ENVIRON = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_USER": "spoofed",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_JOB_PARTITION": "gpu",
}
USERS = {0: "root", 1000: "alice", 1001: "bob"}


def line(
    number: int = 42,
    *,
    name: str = "train",
    array: str = "",
    user: str = "alice(1000)",
    account: str = "vision",
    comment: str = "",
    nodes: str = "",
    node_count: int = 1,
    command: str = "/home/alice/run.sh",
) -> str:
    """An answer of ``scontrol -d -o show job``, in the order of its source."""
    detail = f"JOB_GRES=gpu:2 {nodes} " if nodes else ""
    said = f"Comment={comment} " if comment else ""
    return (
        f"JobId={number} {array}JobName={name} UserId={user} GroupId=users(100) MCS_label=N/A Priority=4294901757"
        f" Nice=0 Account={account} QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0"
        f" ExitCode=0:0 RunTime=00:10:00 Partition=gpu AllocNode:Sid=login:99 ReqNodeList=(null) NodeList=a1"
        f" BatchHost=a1 NumNodes={node_count} NumCPUs=8 TRES=cpu=8,gres/gpu=2 Socks/Node=* CoreSpec=* {detail}"
        f"MinCPUsNode=8 Features=(null) OverSubscribe=OK Command={command} WorkDir=/home/alice {said}"
        "StdErr=/home/alice/err StdIn=/dev/null StdOut=/home/alice/out Power= \n"
    )


class Controller:
    """Answers questions; ``says`` is text, or what to raise."""

    def __init__(self, says: str | Exception | Callable[[str], str] = "") -> None:
        self.says = says
        self.asked: list[str] = []
        self.status = 0

    def __call__(self, command: list[str], timeout_s: float) -> tuple[int, bytes]:
        assert command[:-1] == ["scontrol", "-d", "-o", "show", "job"]
        self.asked.append(command[-1])
        if isinstance(self.says, Exception):
            raise self.says
        text = self.says if isinstance(self.says, str) else self.says(command[-1])
        return self.status, text.encode("utf-8", "surrogateescape")


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def slurm(tree: HostTree, **more) -> Slurm:
    identities = Identities(tree.proc, look_up=USERS.__getitem__)
    return Slurm(tree.cgroup, tree.proc, identities, **{"scontrol": "", **more})


def daemon(tree: HostTree, pid: int, step: str, *, job: int | str = 42, title: str | None = None) -> None:
    """The slurmstepd of a step of version 2; it has been told of no job."""
    path = slurm_path(job, step, task=None).removesuffix("/user") + "/slurm"
    name = f"slurmstepd: [{title or f'42.{step}'}]\0".encode()
    tree.process(pid, cgroup=path, cmdline=name, exe="/usr/sbin/slurmstepd")


def test_no_slurm(tree: HostTree) -> None:
    tree.process(7, cgroup="/system.slice/ssh.service")
    assert not slurm(tree).present()
    assert slurm(tree).read() == {}


@pytest.mark.parametrize("node", ["", "a1"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_job_by_its_processes(tmp_path: Path, version: int, node: str) -> None:
    tree = HostTree(tmp_path, version=version)
    tree.process(7, cgroup=slurm_path(version=version, node=node), uid=1000, environ=ENVIRON)
    reader = slurm(tree)
    assert reader.present()
    # Not the account: anybody may set a variable.
    job = Job("42", name="train", user="alice", partition="gpu", live=True)
    assert reader.read() == {"42": job}
    tree.processes_end(7)
    tree.group_ends(slurm_path(version=version, node=node, step=None))
    assert reader.read() == {}
    assert reader.present()
    assert not reader._told
    assert not reader._step_gpus


def test_jobs_of_a_configured_slice_and_of_a_hybrid(tree: HostTree) -> None:
    tree.group("/batch.slice/slurmstepd.scope/job_7/step_batch/user/task_0")
    tree.group("/unified/system.slice/slurmstepd.scope/job_8/step_batch")
    tree.group("/slurmstepd.scope/job_9")
    assert slurm(tree).read().keys() == {"7", "8", "9"}


def test_version_1_names_the_user_where_processes_do_not(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, version=1)
    tree.group(slurm_path(version=1, uid=1001), hierarchy="memory")
    assert slurm(tree).read()["42"].user == "bob"


@pytest.mark.parametrize(
    "name", ["job_", "job_x", "job_12345678901", "job_1\x0b2", "system", "s5K1KKYAYG5D0", "sI" + "0" * 12]
)
def test_folders_that_are_no_jobs(tree: HostTree, name: str) -> None:
    tree.group(f"/system.slice/slurmstepd.scope/{name}/step_0")
    assert slurm(tree).read() == {}


def test_the_daemon_of_a_step_says_nothing_of_the_job(tree: HostTree) -> None:
    daemon(tree, 5, "batch")
    tree.process(6, cgroup=slurm_path(step="batch"), environ={"PATH": "/bin"})
    tree.process(7, cgroup=slurm_path(step="batch"), environ=ENVIRON, uid=1000)
    assert slurm(tree).read()["42"].name == "train"


def test_what_may_not_be_read_is_not_tried_without_end(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 140):
        tree.process(pid, cgroup=slurm_path(task=pid), environ={})
    read: list[int] = []
    real = Identities.read
    monkeypatch.setattr(Identities, "read", lambda self, pid: (read.append(pid), real(self, pid))[1])
    assert slurm(tree).read() == {"42": Job("42", live=True)}
    assert 0 < len(read) <= 4


def test_a_process_of_another_job_is_not_asked(tree: HostTree) -> None:
    tree.process(7, cgroup=slurm_path(), environ=ENVIRON | {"SLURM_JOB_ID": "43"})
    assert slurm(tree).read() == {"42": Job("42", live=True)}


def test_arrays(tree: HostTree) -> None:
    tree.process(
        7, cgroup=slurm_path(), environ=ENVIRON | {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}
    )
    assert slurm(tree).read()["42"].array_id == "40_3"
    answer = line(array="ArrayJobId=40 ArrayTaskId=3 ArrayTaskThrottle=4 ")
    job = parse_job(answer.encode(), "42")
    assert job is not None
    assert job.array_id == "40_3"


# Names of folders by SLUID


def test_a_sluid_is_joined_to_its_job(tree: HostTree) -> None:
    """Slurm 26.05 names folders so; a user's variable joins nothing."""
    tree.process(7, cgroup=slurm_path(SLUID, "batch"), environ=ENVIRON, uid=1000)
    assert slurm(tree).read().keys() == {SLUID}
    daemon(tree, 5, "batch", job=SLUID)
    jobs = slurm(tree).read()
    assert jobs.keys() == {"42", SLUID}
    assert jobs["42"] is jobs[SLUID]
    assert (jobs["42"].id, jobs["42"].sluid, jobs["42"].live) == ("42", SLUID, True)


@pytest.mark.parametrize("title", ["40_3.batch", "40+1.0", "batch", "42", ""])
def test_a_title_that_may_name_another_id_is_none(tree: HostTree, title: str) -> None:
    daemon(tree, 5, "batch", job=SLUID, title=title or "x")
    assert slurm(tree).read() == {SLUID: Job(SLUID, live=True, sluid=SLUID)}


def test_a_sluid_that_nothing_names_is_asked_for(tree: HostTree) -> None:
    tree.group(slurm_path(SLUID, "extern"))
    controller = Controller(line(77, name="held"))
    reader = slurm(tree, scontrol="scontrol", ask=controller)
    reader.read()
    jobs = reader.read()
    assert jobs.keys() == {"77", SLUID}
    assert jobs["77"].name == "held"
    assert controller.asked == [SLUID]


# GPUs


@pytest.mark.parametrize(
    "step, environ, gpus",
    [
        ("batch", {"SLURM_JOB_GPUS": "0,3"}, ("0", "3")),
        ("interactive", {"SLURM_JOB_GPUS": "1"}, ("1",)),
        ("0", {"SLURM_STEP_GPUS": "2"}, ("2",)),
        # It came along from the host of the batch step.
        ("0", {"SLURM_JOB_GPUS": "0,3"}, ()),
        ("batch", {"SLURM_STEP_GPUS": "2"}, ()),
        ("extern", {"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "1"}, ()),
        ("batch", {"SLURM_JOB_GPUS": "NoDevFiles"}, ()),
        ("batch", {"SLURM_JOB_GPUS": "0.1,x,,-1,99999,GPU-0a"}, ("GPU-0a",)),
    ],
)
def test_gpus_by_the_environment(
    tree: HostTree, step: str, environ: dict[str, str], gpus: tuple[str, ...]
) -> None:
    tree.process(7, cgroup=slurm_path(step=step), environ=ENVIRON | environ)
    assert slurm(tree).read()["42"].gpus == gpus


def test_gpus_of_several_steps_while_they_run(tree: HostTree) -> None:
    for pid, step, number in ((7, "0", "1"), (8, "1", "3")):
        tree.process(pid, cgroup=slurm_path(step=step), environ=ENVIRON | {"SLURM_STEP_GPUS": number})
    reader = slurm(tree)
    assert reader.read()["42"].gpus == ("1", "3")
    tree.processes_end(7)
    tree.group_ends(slurm_path(step="0").removesuffix("/user/task_0"))
    assert reader.read()["42"].gpus == ("3",)


def test_a_step_is_asked_once(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(7, cgroup=slurm_path(), environ=ENVIRON)
    reader = slurm(tree)
    first = reader.read()
    monkeypatch.setattr(Identities, "read", lambda self, pid: pytest.fail("read again"))
    assert reader.read() == first


def mapping(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name, content in files.items():
        (folder / name.removeprefix("gpu_")).write_text(content)
    return folder


def test_mapping_files_as_dcgm_exporter_reads_them(tree: HostTree, tmp_path: Path) -> None:
    folder = mapping(tmp_path, gpu_0="42\n43\n", gpu_3="42\n\n", gpu_10="", gpu_notes="42\n")
    (folder / "1.2").write_text("44")
    (folder / "MIG-0a").write_text("44 1000\n")
    (folder / "5").mkdir()
    reader = slurm(tree, mapping_folder=folder)
    assert reader.present()
    # Without Slurm's control groups nothing says that they have ended.
    assert reader.read() == {
        "42": Job("42", gpus=("0", "3"), mapped=True),
        "43": Job("43", gpus=("0",), mapped=True),
        "44": Job("44", gpus=("1.2", "MIG-0a"), mapped=True),
    }


def test_a_mapping_file_that_was_left_behind_is_of_no_living_job(tree: HostTree, tmp_path: Path) -> None:
    tree.process(7, cgroup=slurm_path(42, "batch"), environ=ENVIRON | {"SLURM_JOB_GPUS": "1"})
    reader = slurm(tree, mapping_folder=mapping(tmp_path, gpu_0="42\n41\n"))
    jobs = reader.read()
    assert (jobs["42"].live, jobs["42"].gpus, jobs["42"].mapped) == (True, ("0",), True)
    assert jobs["41"].live is False


@pytest.mark.parametrize("version", [1, 2])
def test_slurm_that_runs_nothing_knows_that_all_have_ended(tmp_path: Path, version: int) -> None:
    tree = HostTree(tmp_path, version=version)
    tree.group(slurm_path(1, None, version=version), hierarchy="memory" if version == 1 else "")
    tree.group_ends("/slurm/uid_1000" if version == 1 else slurm_path(1, None))
    assert slurm(tree, mapping_folder=mapping(tmp_path, gpu_0="42\n")).read()["42"].live is False


def test_neither_is_readable(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.cgroup.rmdir()
    with pytest.raises(SourceError, match=r"cgroup cannot be listed; it has to be the host's /sys/fs/cgroup"):
        slurm(tree, mapping_folder=tmp_path / "none").read()
    assert not slurm(tree).present()


@given(st.binary(max_size=80))
def test_no_mapping_file_is_too_strange(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    folder = mapping(tree.root, gpu_0="")
    (folder / "0").write_bytes(content)
    for number, job in slurm(tree, mapping_folder=folder).read().items():
        assert re.fullmatch("[0-9]{1,10}", number)
        assert job.gpus == ("0",)


# The controller


def test_a_job_is_asked_for_once(tree: HostTree) -> None:
    tree.process(
        7, cgroup=slurm_path(), environ=ENVIRON | {"SLURM_JOB_NAME": "false", "SLURM_STEP_GPUS": "1"}
    )
    controller = Controller(line(comment="gpuwhy/profile=latency"))
    reader = slurm(tree, scontrol="scontrol", ask=controller)
    job = Job("42", "train", "alice", "vision", "gpu", "", "gpuwhy/profile=latency", ("1",), live=True)
    assert reader.read() == {"42": job}
    assert reader.read() == {"42": job}
    assert controller.asked == ["42"]
    tree.processes_end(7)
    tree.group_ends(slurm_path(step=None))
    assert reader.read() == {}
    assert not reader._answers


def test_an_account_that_is_not_clear_is_not_the_users_to_name(tree: HostTree) -> None:
    tree.process(7, cgroup=slurm_path(), uid=1000, environ=ENVIRON | {"SLURM_JOB_ACCOUNT": "other"})
    answer = line(name="a Account=x", user="nobody(1000)")
    job = slurm(tree, scontrol="scontrol", ask=Controller(answer)).read()["42"]
    assert (job.account, job.user, job.partition) == ("", "alice", "gpu")


def test_a_job_unknown_to_the_controller_is_not_asked_for_again(tree: HostTree) -> None:
    tree.process(7, cgroup=slurm_path(), environ=ENVIRON)
    controller = Controller("slurm_load_jobs error: Invalid job id specified\n")
    controller.status = 1
    reader = slurm(tree, scontrol="scontrol", ask=controller)
    assert reader.read()["42"].name == "train"
    reader.read()
    assert controller.asked == ["42"]
    assert not reader.trouble


@pytest.mark.parametrize(
    "says, said",
    [
        (TimeoutError("no answer within 5 s"), "no answer within 5 s"),
        (FileNotFoundError(2, "No such file or directory", "scontrol"), "No such file"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "Unable to contact"),
        ("", "status 1"),
    ],
)
def test_silence_is_backed_off_and_said(tree: HostTree, says: str | Exception, said: str) -> None:
    now_s = 0.0
    for number in (42, 43):
        tree.process(number, cgroup=slurm_path(number), environ=ENVIRON | {"SLURM_JOB_ID": str(number)})
    controller = Controller(says)
    controller.status = 1
    reader = slurm(tree, scontrol="scontrol", ask=controller, clock=lambda: now_s)
    assert reader.read()["42"].name == "train"
    assert len(controller.asked) == 1
    assert said in reader.trouble
    assert "scontrol -d -o show job" in reader.trouble
    now_s = PAUSE_S - 1
    reader.read()
    assert len(controller.asked) == 1
    for _ in range(20):
        now_s += LONGEST_PAUSE_S
        reader.read()
    assert len(controller.asked) == 21
    controller.says, controller.status = lambda number: line(int(number), name="known"), 0
    now_s += LONGEST_PAUSE_S
    assert {job.name for job in reader.read().values()} == {"known"}
    assert not reader.trouble


def test_many_new_jobs_take_no_longer_than_allowed(tree: HostTree) -> None:
    now_s = 0.0

    def slow(number: str) -> str:
        nonlocal now_s
        now_s += 3.0
        return line(int(number), name=f"job{number}")

    for number in range(1, 11):
        tree.group(slurm_path(number))
    controller = Controller(slow)
    reader = slurm(tree, scontrol="scontrol", ask=controller, clock=lambda: now_s)
    named = [job.name for job in reader.read().values() if job.name]
    assert len(named) == 4
    assert now_s <= ASK_FOR_S + 3.0
    while len(controller.asked) < 10:
        reader.read()
    assert {job.name for job in reader.read().values()} == {f"job{number}" for number in range(1, 11)}
    assert len(controller.asked) == len(set(controller.asked))


def test_an_array_is_answered_with_all_its_tasks() -> None:
    answer = "".join(line(number, name=f"n{number}") for number in (40, 41, 42, 420))
    job = parse_job(answer.encode(), "42")
    assert job is not None
    assert job.name == "n42"


@pytest.mark.parametrize(
    "more, job",
    [
        ({"name": "two words"}, {"name": "two words"}),
        ({"name": "Account=root UserId=x"}, {"name": "", "account": "vision", "user": "alice"}),
        ({"name": "a UserId=root(0) GroupId=root(0) b"}, {"name": "", "user": "", "account": "vision"}),
        ({"name": "a Account=staff"}, {"name": "a Account=staff", "account": ""}),
        (
            {"comment": "x Account=staff UserId=root(0) GroupId=a(0)"},
            {"name": "", "user": "", "account": "", "comment": "x"},
        ),
        ({"comment": "x JobName=y"}, {"name": "", "comment": "x"}),
        ({"command": "/a Comment=gpuwhy/profile=latency"}, {"comment": "gpuwhy/profile=latency"}),
        ({"command": "/a Comment=x", "comment": "y"}, {"comment": ""}),
        ({"name": "\x1b[31m\u2028\udcff"}, {"name": "\x1b[31m\u2028\ufffd"}),
        ({"account": "(null)", "user": "nobody(77)"}, {"account": "", "user": ""}),
        ({"user": "AD\\alice(1000)"}, {"user": "AD\\alice"}),
    ],
)
def test_what_users_write_is_not_taken_for_another_field(more: dict[str, str], job: dict[str, str]) -> None:
    found = parse_job(line(**more).encode("utf-8", "surrogateescape"), "42")
    assert found is not None
    expected = {
        "name": "train",
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "comment": "",
    } | job
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_second_line_is_no_jobs() -> None:
    """A name or comment may hold a line's end: what follows it is not read, and what came before stands."""
    found = parse_job(line(name="x\nJobId=42 JobName=y UserId=root(0) ").encode(), "42")
    assert (found.name, found.user, found.account) == ("", "", "")
    found = parse_job(line(comment="a\nJobId=42 x").encode(), "42")
    assert (found.user, found.account, found.comment) == ("alice", "vision", "a")


@pytest.mark.parametrize(
    "nodes, count, gpus",
    [
        ("Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=gpu:2(IDX:0-1)", 1, ("0", "1")),
        ("Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=gpu:h100:3(IDX:0,2-3)", 1, ("0", "2", "3")),
        ("Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=nic:1(IDX:5),gpu:a:1(IDX:1),gpu:b:1(IDX:4)", 1, ("1", "4")),
        ("Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=shard:4(IDX:0)", 1, ()),
        ("Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=gpu:0(IDX:N/A)", 1, ()),
        (
            "Nodes=b1 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)   Nodes=a[1-2] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:3)",
            3,
            ("3",),
        ),
        ("Nodes=b[1-4] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)", 4, ()),
    ],
)
def test_gpus_by_the_controller(nodes: str, count: int, gpus: tuple[str, ...]) -> None:
    job = parse_job(line(nodes=nodes, node_count=count).encode(), "42", "a1")
    assert job is not None
    assert job.gpus == gpus


def test_a_job_on_several_hosts_needs_the_name_of_this_one() -> None:
    nodes = "Nodes=a[1-2] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:3)"
    job = parse_job(line(nodes=nodes, node_count=2).encode(), "42")
    assert job is not None
    assert job.gpus == ()


def test_a_held_gpu_of_a_job_without_steps(tree: HostTree) -> None:
    """Only the step that adopts logins: nothing of the job runs, and its environment is nowhere."""
    tree.group(slurm_path(step="extern"))
    answer = line(nodes="Nodes=a1 CPU_IDs=0-7 Mem=100 GRES=gpu:1(IDX:1)")
    job = slurm(tree, scontrol="scontrol", ask=Controller(answer)).read()["42"]
    assert (job.gpus, job.mapped, job.live) == (("1",), False, True)


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("a1", {"a1"}),
        ("a1,b-2.x", {"a1", "b-2.x"}),
        ("a[1-3,7]", {"a1", "a2", "a3", "a7"}),
        ("a[08-10]-ib,b1", {"a08-ib", "a09-ib", "a10-ib", "b1"}),
        ("r[1-2]n[1-2],c", {"c"}),
        ("a[", {"a"}),
        ("]", set()),
    ],
)
def test_lists_of_hosts(text: str, hosts: set[str]) -> None:
    assert _hosts(text) == hosts


TEXT = st.text(st.characters(blacklist_categories=["Cs"]) | st.sampled_from(list(" =\n[](),-")), max_size=60)


@given(TEXT, TEXT, TEXT)
def test_no_answer_raises(name: str, comment: str, nodes: str) -> None:
    answer = line(name=name, comment=comment, nodes=nodes)
    job = parse_job(answer.encode(), "42", "a1")
    assert job is None or job.id == "42"
    parse_job(answer.encode()[:100], "42", "a1")


@given(st.text(st.characters(blacklist_characters="\n=", blacklist_categories=["Cs"]), max_size=40))
def test_a_name_without_a_field_in_it_comes_as_it_is(name: str) -> None:
    job = parse_job(line(name=name).encode(), "42")
    assert job is not None
    assert job.name == name
    assert replace(job, name="train") == parse_job(line().encode(), "42")


@pytest.mark.parametrize("filler", [" ", "A", " A", "a[", "[", ",", " Nodes=", "gpu:1(IDX:"])
def test_a_hostile_answer_is_not_slow(filler: str) -> None:
    """What grows with the square of it would take minutes."""
    text = filler * (400_000 // len(filler))
    for answer in (
        line(comment=text),
        line(name=text),
        line(nodes=text),
        line(nodes=f"Nodes={text} CPU_IDs=0 Mem=1 GRES={text}"),
    ):
        parse_job(answer.encode(), "42", "a1")


# The program


def test_a_program_that_answers() -> None:
    assert run_bounded(["/bin/sh", "-c", "echo a; echo b >&2; exit 3"], 5.0) == (3, b"a\nb\n")


def test_the_question_is_not_what_slurm_told_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CLUSTERS", "SCONTROL_FUTURE", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    _, answer = run_bounded(["/usr/bin/env"], 5.0)
    assert {name for name in answer.decode().split() if "SLURM" in name or "SCONTROL" in name} == {
        "SLURM_CONF=x"
    }


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 77 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        run_bounded(["/bin/sh", "-c", script], 0.3)
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.005)
    pytest.fail("its child runs on")


def _runs(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def test_a_program_that_never_stops_talking() -> None:
    status, answer = run_bounded(["/bin/sh", "-c", "exec yes"], 5.0)
    assert (status, len(answer)) == (0, 1 << 22)


def test_no_program() -> None:
    with pytest.raises(FileNotFoundError):
        run_bounded(["/no/such/program"], 1.0)


def test_descriptors_are_given_back() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run_bounded(["/bin/true"], 5.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
