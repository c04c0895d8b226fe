"""Slurm jobs, containers, services and plain processes: who is whose, by every shape of control group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.source.host_trees import (
    CONTAINER,
    HostTree,
    docker_path,
    from_inside,
    pod_path,
    podman_path,
    slurm_path,
)

from gpuwhy import catalog
from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.containers import Container, Containers
from gpuwhy.source.identity import Identities, Identity
from gpuwhy.source.slurm import Job
from gpuwhy.workload.kinds import container, process, slurm, systemd
from gpuwhy.workload.tables import Row, Tables

OTHER = "d" * 64
SLUID = "s5K1KKYAYG5D00"
KINDS = (slurm, container, systemd, process)
ASKED = (slurm.tenant, container.tenant, systemd.tenant, slurm.claimed, process.tenant)
NOTHING = Tables()


def identity(*cgroups: str, executable: str = "python3.11", user: str = "alice", **environ: str) -> Identity:
    return Identity(7, 500, cgroups, user, executable, environ)


def tables(*jobs: Job, containers: tuple[Container, ...] = ()) -> Tables:
    by_id = {job.id: job for job in jobs} | {job.sluid: job for job in jobs if job.sluid}
    return Tables(jobs=by_id, containers={each.id: each for each in containers})


def first(of: Identity, known: Tables = NOTHING) -> Tenant:
    return next(found for asked in ASKED if (found := asked(of, known)) is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_in_the_catalogue(kind) -> None:
    assert kind.KIND in catalog.WORKLOAD_KINDS
    assert kind.__name__.endswith(f".{kind.KIND}")


# Slurm

TRAIN = Job("42", "train", "alice", "vision", "gpu", live=True)


@pytest.mark.parametrize(
    "path",
    [
        slurm_path(),
        slurm_path(node="a1"),
        slurm_path(step="batch"),
        slurm_path(step="extern", task=None),
        slurm_path(step=None),
        slurm_path(version=1),
        slurm_path(version=1, node="a1"),
        slurm_path(version=1, step="0", task=None),
        slurm_path().replace("/system.slice", "/batch.slice"),
        slurm_path() + "/my/own/group",
        from_inside(slurm_path(), "/system.slice/agent.service"),
        from_inside(slurm_path(version=1), "/a/b/c"),
    ],
)
def test_a_job_by_its_group(path: str) -> None:
    tenant = Tenant(Workload("slurm", "train", owner="vision"), run="42")
    assert first(identity("/", path), tables(TRAIN)) == tenant
    unknown = Tenant(Workload("slurm", "unnamed", owner="alice"), run="42")
    assert first(identity("/", path)) == unknown


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/slurmd.service",
        "/system.slice/slurmstepd.scope/system",
        "/job_42/step_0",
        "/slurm/job_42",
        "/docker/job_42/slurm",
        "/slurm/uid_1000/job_12345678901",
        # What a user may make of a group that is delegated to them.
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_42",
        "/user.slice/slurmstepd.scope/job_42/step_0",
        "/system.slice/alice.service/slurm/uid_0/job_42",
        "/system.slice/alice.service/system.slice/slurmstepd.scope/job_42/step_0",
        pod_path() + slurm_path(),
    ],
)
def test_a_group_that_is_no_job(path: str) -> None:
    assert slurm.tenant(identity(path), tables(TRAIN)) is None


def test_a_folder_by_sluid() -> None:
    of = identity(slurm_path(SLUID))
    job = Job("42", "train", "alice", "vision", live=True, sluid=SLUID)
    assert first(of, tables(job)).run == "42"
    assert first(of).run == SLUID
    # Its number is the controller's to tell, not the environment's.
    told = identity(slurm_path(SLUID), SLURM_JOB_ID="42", SLURM_JOB_NAME="train")
    assert first(told).run == SLUID


def test_the_environment_where_slurm_uses_no_groups() -> None:
    environ = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "train", "SLURM_JOB_ACCOUNT": "vision"}
    tenant = Tenant(Workload("slurm", "train", owner="alice"), run="42")
    assert first(identity("/user.slice/user-1000.slice/session-3.scope", **environ)) == tenant
    assert first(identity("/", SLURM_JOBID="42")).run == "42"
    assert slurm.tenant(identity("/", SLURM_JOB_ID="-1"), NOTHING) is None
    assert slurm.tenant(identity("/", SLURM_JOB_ID="42; rm"), NOTHING) is None


def test_a_claim_to_a_job_that_is_not_here() -> None:
    """Where jobs have groups, an environment that was set by hand moves no work to another's account."""
    of = identity("/docker/" + CONTAINER, SLURM_JOB_ID="43")
    assert first(of, tables(TRAIN)).workload.kind == "container"
    # What has a container, pod or service of its own is that, whatever it claims.
    for path in ("/docker/" + CONTAINER, "/system.slice/triton.service"):
        assert first(identity(path, SLURM_JOB_ID="42"), tables(TRAIN)).workload.kind != "slurm"
    mapped = Job("42", gpus=("0",), mapped=True)
    assert first(identity("/", SLURM_JOB_ID="43"), tables(mapped)).run == "43"


def test_the_group_is_believed_rather_than_the_environment() -> None:
    of = identity(slurm_path(42), SLURM_JOB_ID="43", SLURM_JOB_NAME="other", SLURM_JOB_ACCOUNT="other")
    assert first(of) == Tenant(Workload("slurm", "unnamed", owner="alice"), run="42")


def test_an_account_that_the_controller_does_not_know_is_not_the_users_to_name() -> None:
    of = identity(slurm_path(), SLURM_JOB_ID="42", SLURM_JOB_NAME="train", SLURM_JOB_ACCOUNT="other")
    assert first(of, tables(Job("42", user="alice", live=True))).workload == Workload(
        "slurm", "train", owner="alice"
    )


def test_tasks_of_an_array_are_one_workload() -> None:
    jobs = [Job(str(number), "sweep", "alice", array_id=f"40_{number}") for number in (41, 42)]
    found = [first(identity(slurm_path(int(job.id))), tables(*jobs)) for job in jobs]
    assert found[0].workload == found[1].workload
    assert [tenant.run for tenant in found] == ["40_41", "40_42"]


@pytest.mark.parametrize(
    "comment, profile",
    [
        ("gpuwhy/profile=latency", "latency"),
        ("team=a, gpuwhy/profile=throughput;x", "throughput"),
        ("gpuwhy/profile=fast", ""),
        ("gpuwhy/profile=latency2", ""),
        ("xgpuwhy/profile=latency", ""),
        ("", ""),
    ],
)
def test_a_profile_in_the_comment(comment: str, profile: str) -> None:
    found = first(identity(slurm_path()), tables(Job("42", comment=comment)))
    assert (found.profile, found.hint) == (profile, "Slurm comment" if profile else "")


ROWS = (
    Row(("GPU-a", ""), 0, 0),
    Row(("GPU-b", ""), 1, 1),
    Row(("GPU-c", ""), 2, 3),
    Row(("GPU-d", ""), 3, 2),
)
SPLIT = (
    Row(("GPU-a", ""), 0, 0),
    Row(("GPU-a", "1"), 0, 0, ("MIG-1",)),
    Row(("GPU-a", "2"), 0, 0, ("MIG-2",)),
    Row(("GPU-b", ""), 1, 1),
)


def granted(rows: tuple[Row, ...], *jobs: Job) -> dict[tuple[str, str], list[str]]:
    return {key: [each.run for each in held] for key, held in slurm.grants(tables(*jobs), rows).items()}


@pytest.mark.parametrize(
    "rows, gpus, mapped, keys",
    [
        (ROWS, ("0", "1"), True, {"GPU-a", "GPU-b"}),
        (ROWS, ("0", "1"), False, {"GPU-a", "GPU-b"}),
        # The order of device files is not that of the bus: only NVML's own numbers are sure.
        (ROWS, ("2",), True, {"GPU-c"}),
        (ROWS, ("2",), False, set()),
        ((Row(("GPU-a", ""), 0),), ("0",), False, {"GPU-a"}),
        (ROWS, ("9", "GPU-x", "0.1", "MIG-1"), True, set()),
        (ROWS, ("GPU-b",), True, {"GPU-b"}),
        (SPLIT, ("0.1",), True, {"GPU-a/1"}),
        (SPLIT, ("MIG-2",), True, {"GPU-a/2"}),
        (SPLIT, ("0", "GPU-a"), True, set()),
        (SPLIT, ("1",), True, {"GPU-b"}),
        # Where instances are counted too.
        (SPLIT, ("1",), False, set()),
    ],
)
def test_grants(rows: tuple[Row, ...], gpus: tuple[str, ...], mapped: bool, keys: set[str]) -> None:
    found = granted(rows, Job("42", gpus=gpus, mapped=mapped, live=True))
    assert {"/".join(part for part in key if part) for key in found} == keys


def test_jobs_that_share_a_gpu_and_jobs_that_have_ended() -> None:
    jobs = [
        Job(str(number), gpus=("0",), mapped=True, live=live)
        for number, live in ((100, True), (9, None), (7, False))
    ]
    assert granted(ROWS, *jobs) == {("GPU-a", ""): ["9", "100"]}


def test_a_job_that_is_known_by_two_names_holds_a_gpu_once() -> None:
    job = Job("42", "train", "alice", "vision", gpus=("0",), mapped=True, live=True, sluid=SLUID)
    assert slurm.grants(tables(job), ROWS) == {
        ("GPU-a", ""): (Tenant(Workload("slurm", "train", owner="vision"), run="42"),)
    }


# Containers


@pytest.mark.parametrize(
    "path",
    [
        docker_path(),
        docker_path(driver="cgroupfs"),
        podman_path(),
        podman_path(user=1000),
        podman_path(driver="cgroupfs"),
        f"/machine.slice/libpod-payload-{CONTAINER}",
        f"/default/{CONTAINER}",
        f"/system.slice/nerdctl-{CONTAINER}.scope",
        f"/system.slice/cri-containerd-{CONTAINER}.scope",
        f"/system.slice:docker:{CONTAINER}",
        f"/docker/{CONTAINER}/system.slice/train.service",
        # Docker in Docker: the host knows the outer one.
        f"/docker/{CONTAINER}/docker/{OTHER}",
        from_inside(docker_path(), "/system.slice/gpuwhy.service"),
    ],
)
def test_a_container_by_its_group(path: str) -> None:
    known = tables(containers=(Container(CONTAINER, "trainer", "pytorch"),))
    tenant = Tenant(Workload("container", "trainer", owner="alice"), run=CONTAINER[:12])
    assert first(identity("/", path), known) == tenant
    assert first(identity("/", path)) == Tenant(
        Workload("container", "python3.11", owner="alice"), CONTAINER[:12]
    )


def test_of_nested_containers_the_outer_one() -> None:
    """What a container names inside of itself may be somebody else's name."""
    known = tables(containers=(Container(CONTAINER, "runner"), Container(OTHER, "job")))
    assert first(identity(f"/docker/{CONTAINER}/docker/{OTHER}"), known).workload.name == "runner"


@pytest.mark.parametrize(
    "path",
    [
        pod_path(),
        pod_path(driver="cgroupfs"),
        pod_path(runtime="crio"),
        f"/machine.slice/libpod-conmon-{CONTAINER}.scope",
        f"/system.slice/crio-conmon-{CONTAINER}.scope",
        f"/docker/{CONTAINER}a",
        f"/docker/{CONTAINER[1:]}",
        "/lxc.monitor.web",
        "/docker/x",
    ],
)
def test_a_group_that_is_no_container(path: str) -> None:
    assert container.tenant(identity(path), NOTHING) is None


@pytest.mark.parametrize(
    "path",
    [
        "/lxc/web",
        "/lxc.payload.web",
        "/lxc.payload/web/init.scope",
        "/lxc.payload.web/system.slice/a.service",
    ],
)
def test_lxc(path: str) -> None:
    assert first(identity(path)) == Tenant(Workload("container", "web", owner="alice"), run="web")


@pytest.mark.parametrize(
    "name, image, service, found",
    [
        ("chat-llm-1", "vllm", "llm", ("llm", "chat")),
        ("trainer", "pytorch", "", ("trainer", "")),
        ("llm_server", "vllm", "", ("vllm", "")),
        ("happy_turing", "nvcr.io/nvidia/pytorch:24.05-py3", "", ("nvidia/pytorch", "")),
        ("zen_easley3", "pytorch", "", ("pytorch", "")),
        ("", "localhost/serve:latest", "", ("serve", "")),
        ("", "registry:5000/team/serve:1@sha256:" + "a" * 64, "", ("team/serve", "")),
        ("", "registry.example.com/serve", "", ("serve", "")),
        ("", "ubuntu:22.04", "", ("ubuntu", "")),
        ("happy_turing", "sha256:" + "a" * 64, "", ("python3.11", "")),
        (CONTAINER[:12], "1234567890ab", "", ("python3.11", "")),
        ("", "", "", ("python3.11", "")),
        ("", ":", "", ("python3.11", "")),
    ],
)
def test_names_of_containers(name: str, image: str, service: str, found: tuple[str, str]) -> None:
    known = tables(containers=(Container(CONTAINER, name, image, "chat" if service else "", service),))
    workload = first(identity(docker_path()), known).workload
    assert (workload.name, workload.namespace) == found


def test_a_container_from_disk_to_name(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, version=1)
    tree.docker(CONTAINER, name="happy_turing", image="nvcr.io/nvidia/tritonserver:24.05")
    tree.process(7, cgroup=docker_path(driver="cgroupfs"), uid=0, exe="/opt/tritonserver/bin/tritonserver")
    of = Identities(tree.proc, look_up=lambda uid: "root").read(7)
    assert of is not None
    found = first(of, Tables(containers=Containers(tree.containers).read()))
    assert found == Tenant(Workload("container", "nvidia/tritonserver", owner="root"), run=CONTAINER[:12])


# Services

USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "path, name",
    [
        ("/system.slice/vllm.service", "vllm.service"),
        ("/system.slice/vllm.service/worker/0", "vllm.service"),
        ("/system.slice/system-serve.slice/serve@llama.service", "serve@llama.service"),
        ("/system.slice/jupyter-alice-singleuser.service", "jupyter-alice-singleuser.service"),
        (f"{USER}/app.slice/train.service", "train.service"),
        (f"{USER}/app.slice/app-org.gnome.Terminal@a1b2c3.service", "app-org.gnome.Terminal.service"),
        (f"{USER}/app.slice/app-blender@autostart.service", "app-blender.service"),
        ("/system.slice/app-serve@2.service", "app-serve@2.service"),
        (from_inside("/system.slice/vllm.service", "/system.slice/gpuwhy.service"), "vllm.service"),
        ("/system.slice/\x1b[31m\n.service", "\x1b[31m\n.service"),
    ],
)
def test_services(path: str, name: str) -> None:
    assert first(identity("/", path)) == Tenant(Workload("systemd", name, owner="alice"))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/system.slice/ssh.service",
        "/system.slice/docker.service",
        "/system.slice/slurmd.service/job",
        "/system.slice/atd.service",
        "/system.slice/.service",
        "/system.slice/run-r0123456789abcdef.service",
        "/system.slice/run-u17.service",
        "/system.slice/run-p1234-i99.service",
        "/user.slice/user-1000.slice/session-3.scope",
        f"{USER}/init.scope",
        f"{USER}/app.slice/vte-spawn-1.scope",
    ],
)
def test_what_answers_for_no_work_leaves_it_to_the_process(path: str) -> None:
    assert first(identity(path)) == Tenant(Workload("process", "python3.11", owner="alice"))


def test_a_process_of_which_nothing_is_known() -> None:
    assert first(Identity(7, 500)) == Tenant(Workload("process", "unnamed"))


PARTS = st.sampled_from(
    [
        "..",
        "slurm",
        "uid_0",
        "job_42",
        "slurmstepd.scope",
        "docker",
        CONTAINER,
        "lxc",
        "a.service",
        "user@1.service",
    ]
) | st.text(max_size=6)


@given(st.lists(PARTS, max_size=6), st.text(max_size=12), st.text(max_size=12))
def test_somebody_always_answers(parts: list[str], name: str, image: str) -> None:
    known = tables(Job("42", name, comment=name), containers=(Container(CONTAINER, name, image),))
    found = first(identity("/" + "/".join(parts), SLURM_JOB_ID=name), known)
    assert found.workload.name
    assert found.workload.kind in catalog.WORKLOAD_KINDS


NAME = st.text(max_size=8) | st.sampled_from(["0", "1", "0.1", "GPU-a", "MIG-1", "00", "٣", "²", "1.", "."])


@example(["²"], True, ROWS)
@given(st.lists(NAME, max_size=6), st.booleans(), st.sampled_from([ROWS, SPLIT, ()]))
def test_no_name_of_a_gpu_raises(gpus: list[str], mapped: bool, rows: tuple[Row, ...]) -> None:
    assert granted(rows, Job("42", gpus=tuple(gpus), mapped=mapped)).keys() <= {row.key for row in rows}


def test_a_variable_takes_nobody_elses_job() -> None:
    """A job id that a process claims is believed where the job is its own user's, or whose it is not known."""
    claimed = identity("/user.slice", user="mallory", SLURM_JOB_ID="42")
    for user, believed in (("ann", False), ("mallory", True), ("", True)):
        known = tables(Job("42", name="train", user=user, live=True))
        found = slurm.claimed(claimed, known)
        assert (found is not None) is believed


def test_the_comments_word_is_the_pods_label() -> None:
    """One name says what a workload aims at, on pods and in comments."""
    job = Job("42", name="train", comment="urgent; team/aim=latency")
    known = replace(tables(job), profile_label="team/aim")
    found = slurm.holder("42", known)
    assert (found.profile, found.hint, found.workload.name) == ("latency", "Slurm comment", "train")
    assert slurm.holder("42", tables(job)).profile == ""
    assert slurm.holder("7", known).workload.name == "unnamed"
