"""Who a process is: users, executables, groups and environments, whatever names they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.source.identity import ENVIRON, NAMELESS_FOR_S, Identities, Identity, paths

from .fake_host import stat_line
from .host_trees import HostTree, pod_path, slurm_path


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def identities(tree: HostTree, **more) -> Identities:
    return Identities(tree.proc, **{"look_up": {0: "root", 1000: "alice"}.__getitem__, **more})


def read(tree: HostTree, pid: int = 7, **more) -> Identity:
    found = identities(tree, **more).read(pid)
    assert found is not None
    return found


def test_all_of_a_process(tree: HostTree) -> None:
    environ = {"PATH": "/bin", "SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "a=b", "SLURM_NODEID": "0"}
    tree.process(
        7, cgroup=slurm_path(), uid=1000, exe="/opt/conda/bin/python3.11", environ=environ, start=900
    )
    assert read(tree) == Identity(
        pid=7,
        start_ticks=900,
        cgroups=(slurm_path(),),
        user="alice",
        executable="python3.11",
        environ={"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "a=b"},
    )


def test_one_that_is_gone_is_none(tree: HostTree) -> None:
    assert identities(tree).read(7) is None
    assert identities(tree).start(7) is None
    tree.process(7)
    tree.processes_end(7)
    assert identities(tree).read(7) is None


def test_a_start_tells_a_later_process_with_the_same_pid(tree: HostTree) -> None:
    tree.process(7, start=500)
    reader = identities(tree)
    assert reader.start(7) == 500
    tree.process(7, start=501)
    assert reader.start(7) == 501


def test_one_that_is_replaced_while_it_is_read_is_none(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the user of one would be joined to the executable of another."""
    tree.process(7, start=500)
    reader = identities(tree)
    link = os.readlink

    def replaced(path):
        tree.process(7, start=501)
        return link(path)

    monkeypatch.setattr(os, "readlink", replaced)
    assert reader.read(7) is None


@pytest.mark.parametrize(
    "exe, comm, name",
    [
        ("/usr/bin/python3.11 (deleted)", b"x", "python3.11"),
        ("/memfd:worker (deleted)", b"x", "memfd:worker"),
        (None, b"kworker/0:1", "kworker/0:1"),
        ("/srv/a b\n\x1b[31m", b"x", "a b\n\x1b[31m"),
        (os.fsdecode(b"/srv/\xff\xfe"), b"x", "\ufffd\ufffd"),
        (None, b"a) R (b", "a) R (b"),
    ],
)
def test_executables(tree: HostTree, exe: str | None, comm: bytes, name: str) -> None:
    tree.process(7, exe=exe, comm=comm)
    found = read(tree)
    assert found.executable == name
    assert found.refused == frozenset()


def test_what_is_refused_is_named(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(7, uid=1000, comm=b"train", environ={"SLURM_JOB_ID": "1"}, cgroup=pod_path())

    def refuse(path, *rest):
        if str(os.fsdecode(path)).endswith(("exe", "environ")):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *rest)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "readlink", refuse)
    found = read(tree)
    assert (found.executable, found.user, found.cgroups) == ("train", "alice", (pod_path(),))
    assert found.environ == {}
    assert found.refused == {"exe", "environ"}


def test_a_huge_environment_is_cut(tree: HostTree) -> None:
    late = b"SLURM_JOB_NAME=late\0"
    tree.process(
        7, environ=b"SLURM_JOB_ID=42\0SLURM_JOB_USER=" + b"x" * 5000 + b"\0A=" + b"y" * (1 << 20) + late
    )
    environ = read(tree).environ
    assert environ["SLURM_JOB_ID"] == "42"
    assert len(environ["SLURM_JOB_USER"]) == 1024
    assert "SLURM_JOB_NAME" not in environ


def test_the_first_of_two_is_what_getenv_answers(tree: HostTree) -> None:
    tree.process(7, environ=b"SLURM_JOB_ID=1\0SLURM_JOB_ID=2\0")
    assert read(tree).environ["SLURM_JOB_ID"] == "1"


def test_a_nameless_user_is_its_number_and_asked_for_again_later(tree: HostTree) -> None:
    asked: list[int] = []
    now_s = 0.0

    def look_up(uid: int) -> str:
        asked.append(uid)
        if len(asked) == 1:
            raise KeyError(uid)
        return "carol"

    tree.process(7, uid=77)
    reader = identities(tree, look_up=look_up, clock=lambda: now_s)
    assert [reader.user(77), reader.user(77)] == ["uid:77", "uid:77"]
    assert asked == [77]
    now_s = NAMELESS_FOR_S
    assert [reader.user(77), reader.user(77)] == ["carol", "carol"]
    assert asked == [77, 77]


@pytest.mark.parametrize("error", [KeyError, OverflowError, OSError])
def test_a_name_service_that_fails(tree: HostTree, error: type[Exception]) -> None:
    def look_up(uid: int) -> str:
        raise error

    tree.process(7, uid=2**32 - 1)
    assert read(tree, look_up=look_up).user == "uid:4294967295"


def test_a_hosts_passwd_is_read_anew_when_it_changes(tree: HostTree, tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_bytes(
        b"root:x:0:0:root:/root:/bin/sh\nal\xffice:x:1000:1000:a:/:/bin/sh\n#\nbroken:x:5\n+::::::\n"
    )
    reader = identities(tree, passwd=passwd)
    assert [reader.user(uid) for uid in (0, 1000, 5)] == ["root", "al\ufffdice", "uid:5"]
    passwd.write_text("bob:x:1000:1000:b:/:/bin/sh\nsecond:x:1000:1:::\n")
    assert [reader.user(uid) for uid in (0, 1000)] == ["uid:0", "bob"]
    passwd.unlink()
    assert reader.user(1000) == "bob"


def test_no_passwd_is_no_error(tree: HostTree, tmp_path: Path) -> None:
    assert identities(tree, passwd=tmp_path / "none").user(1000) == "uid:1000"


def test_version_1_paths_once_and_deepest_first(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, version=1)
    service = "/system.slice/slurmd.service"
    job = slurm_path(version=1)
    tree.process(7, cgroup={"memory": job, "devices": job, "name=systemd": service})
    assert read(tree).cgroups == (job, service, "/")


@pytest.mark.parametrize(
    "data, found",
    [
        (b"0::/a\n", ("/a",)),
        (b"1:cpu:/b\n0::/a\n", ("/a", "/b")),
        (b"0::/a (deleted)\n", ("/a",)),
        (b"0::/../../job_1/step_0\n", ("/../../job_1/step_0",)),
        (b"0::/a:b:c\n", ("/a:b:c",)),
        (b"garbage\n0:/x\n0::relative\n0::/nul\0\n\n", ()),
        # A user's group may be called so; it is one line, and one name.
        ("0::/user.slice/x\x0b0::/slurm\u2028uid_1\n".encode(), ("/user.slice/x\x0b0::/slurm\u2028uid_1",)),
        (b"0::/user.slice/x\r0::/slurm\n", ("/user.slice/x\r0::/slurm",)),
        (b"0::/cut", ("/cut",)),
    ],
)
def test_paths(data: bytes, found: tuple[str, ...]) -> None:
    assert paths(data) == found


@given(st.binary(max_size=300))
def test_no_groups_are_too_strange(data: bytes) -> None:
    for path in paths(data):
        assert path.startswith("/")
        path.encode()


NAMES = st.text(
    st.characters(blacklist_characters="/\n\0:", blacklist_categories=["Cs"]), min_size=1, max_size=8
)


@given(st.lists(NAMES.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=5))
def test_a_group_reads_as_it_is_called(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    if not path.endswith(" (deleted)"):
        assert paths(f"1:name=systemd:/\n0::{path}\n".encode()) == (path, "/")


@given(
    data=st.dictionaries(st.sampled_from(["stat", "status", "environ", "cgroup"]), st.binary(max_size=200))
)
def test_nothing_that_proc_says_raises(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, bytes]
) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.process(7)
    for name, content in data.items():
        (tree.proc / "7" / name).write_bytes(content)
    found = identities(tree, look_up={}.__getitem__).read(7)
    assert found is None or set(found.environ) <= ENVIRON


def test_a_stat_that_is_cut_is_no_process(tree: HostTree) -> None:
    tree.process(7)
    (tree.proc / "7" / "stat").write_bytes(stat_line(7)[:-9])
    assert identities(tree).read(7) is None


def test_this_process_by_the_systems_own_names() -> None:
    found = Identities(Path("/proc")).read(os.getpid())
    assert found is not None
    assert found.executable == Path(f"/proc/{os.getpid()}/exe").resolve().name
    assert found.user
    assert found.start_ticks == Identities(Path("/proc")).start(os.getpid())


def test_a_name_service_that_hangs_names_nobody_and_holds_nothing_up(tmp_path: Path) -> None:
    """One user whom it does not answer for goes by their number, and so does whoever comes after, at once."""
    import threading

    free = threading.Event()

    def hang(uid: int) -> str:
        free.wait(20)
        return f"user{uid}"

    identities = Identities(tmp_path, look_up=hang)
    assert identities.user(1000) == "uid:1000"
    asked = threading.active_count()
    assert [identities.user(uid) for uid in (1000, 1001, 1002)] == ["uid:1000", "uid:1001", "uid:1002"]
    assert threading.active_count() == asked
    free.set()
    assert identities._asking is not None
    identities._asking.join(5)
    assert identities.user(1000) == "user1000"
