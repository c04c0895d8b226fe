"""Whose each process and GPU is, on whole hosts: found out beside the tick, kept, and forgotten in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.source.host_trees import CONTAINER, UID, HostTree, docker_path, pod_path, slurm_path

from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.catalog import RESOLVERS, WORKLOAD_KINDS
from gpuwhy.config import SELECTED_KINDS
from gpuwhy.source import GpuFacts, GpuReading, SourceError
from gpuwhy.source.containers import Containers
from gpuwhy.source.device_files import device_minors
from gpuwhy.source.identity import Identities
from gpuwhy.source.kubernetes import Grant, PodFolders
from gpuwhy.source.slurm import Slurm
from gpuwhy.workload import kinds
from gpuwhy.workload.directory import BROKER, UNKNOWN
from gpuwhy.workload.refreshed import Refreshed
from gpuwhy.workload.resolver import KEPT_S, KINDS, MOST_PIDS, PATIENCE_S, REREAD_S, Resolver
from gpuwhy.workload.tables import UNNAMED, Tables

GPU = "GPU-0"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Table:
    """A reader that says what it is told."""

    trouble = ""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def present(self) -> bool:
        return True

    def read(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Host:
    """A resolver of a host that is made of files, moved on by hand."""

    def __init__(self, folder: Path, version: int = 2) -> None:
        self.tree = HostTree(folder, version=version)
        self.clock = Clock()
        self.kubelet = Table("kubelet", ())
        identities = Identities(self.tree.proc)
        slurm = Slurm(self.tree.cgroup, self.tree.proc, identities, scontrol="", node="node-1")
        self.readers = {
            "grants": Refreshed(self.kubelet, (), clock=self.clock),
            "folders": Refreshed(PodFolders(self.tree.pods, self.tree.cgroup), {}, clock=self.clock),
            "jobs": Refreshed(slurm, {}, clock=self.clock),
            "containers": Refreshed(Containers(self.tree.containers), {}, clock=self.clock),
        }
        self.resolver = Resolver(
            identities,
            self.readers,
            fixed=Tables(node="node-1"),
            minors=lambda: device_minors(self.tree.proc),
            profiles={"serving/*": "latency"},
            clock=self.clock,
        )
        self.hastened = 0
        for reader in self.readers.values():
            reader.hasten = self._hasten  # type: ignore[method-assign]

    def _hasten(self) -> None:
        self.hastened += 1

    def follow(self, *owners: int, gpu: str = GPU) -> None:
        self.resolver.follow([GpuReading(GpuFacts(0, gpu), owners=owners)])

    def look(self, after_s: float = 1.0, *, read: bool = True) -> None:
        self.clock.now_s += after_s
        if read:
            for reader in self.readers.values():
                reader.refresh()
        self.resolver.look()

    def name(self, pid: int) -> tuple[str, str, str] | None:
        found = self.resolver.tenant(pid)
        return None if found is None else (found.workload.kind, found.workload.title, found.run)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def pod(host: Host, name: str = "llama-6c8d7f9b5d-x2x4z", namespace: str = "serving", uid: str = UID) -> None:
    host.tree.pod_folder(namespace, name, uid)


@pytest.mark.parametrize("version", [1, 2])
def test_each_kind_on_one_host(tmp_path: Path, version: int) -> None:
    """A pod, a Slurm job, a container, a unit and a plain process are told apart, under stable names."""
    host = Host(tmp_path, version)
    pod(host)
    host.tree.docker(CONTAINER, name="trainer", image="reg.example/train:1")
    host.tree.process(10, cgroup=pod_path(UID))
    host.tree.process(
        20,
        cgroup=slurm_path(42, version=version),
        uid=1000,
        environ={"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "pretrain", "SLURM_JOB_USER": "ann"},
    )
    host.tree.process(30, cgroup=docker_path())
    host.tree.process(40, cgroup="/system.slice/triton.service")
    host.tree.process(50, cgroup="/user.slice/user-1000.slice/session-3.scope", exe="/opt/bin/vllm")
    host.follow(10, 20, 30, 40, 50, 60)
    host.look()
    assert host.name(10) == ("kubernetes", "serving/llama", "llama-6c8d7f9b5d-x2x4z")
    assert host.name(20) == ("slurm", "pretrain", "42")
    assert host.name(30) == ("container", "trainer", CONTAINER[:12])
    assert host.name(40)[:2] == ("systemd", "triton.service")  # type: ignore[index]
    assert host.name(50)[:2] == ("process", "vllm")  # type: ignore[index]
    assert host.resolver.tenant(60) is UNKNOWN
    profile = host.resolver.tenant(10)
    assert profile is not None
    assert (profile.profile, profile.hint) == ("latency", "workloads.profiles 'serving/*'")


def test_the_mps_server_works_for_its_clients(host: Host) -> None:
    """It has a context and is nobody's work, in a pod as well."""
    host.tree.process(10, cgroup=pod_path(UID), exe="/usr/bin/nvidia-cuda-mps-server")
    host.tree.process(11, cgroup="/user.slice", exe="/tmp/nvidia-cuda-mps-server", uid=1000)
    host.follow(10, 11)
    host.look(PATIENCE_S)
    assert host.resolver.tenant(10) is BROKER
    assert host.name(11)[:2] == ("process", "nvidia-cuda-mps-server")  # type: ignore[index]


def test_before_anything_is_known_nobody_is_named(host: Host) -> None:
    """Questions are answered at once, also before the first round."""
    host.follow(10)
    assert host.resolver.tenant(10) is None
    assert host.resolver.granted((GPU, "")) == ()


def test_a_pid_that_another_process_has_is_another_workload(host: Host) -> None:
    """Start times tell processes of one pid apart."""
    host.tree.process(10, cgroup="/system.slice/a.service", start=500)
    host.follow(10)
    host.look()
    host.tree.processes_end(10)
    host.tree.process(10, cgroup="/system.slice/b.service", start=900)
    host.look()
    assert host.name(10)[1] == "b.service"  # type: ignore[index]


def test_an_ended_process_is_known_until_its_interval_closes(host: Host) -> None:
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.follow(10)
    host.look()
    host.tree.processes_end(10)
    host.follow()
    host.look(KEPT_S - 1)
    assert host.name(10)[1] == "a.service"  # type: ignore[index]
    host.look(2)
    assert host.resolver.tenant(10) is None


def test_a_process_that_goes_on_is_known(host: Host) -> None:
    """What is asked for all the time is never forgotten, and who was moved away from a GPU in time."""
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.follow(10)
    for _ in range(5):
        host.look(KEPT_S / 2)
    assert host.name(10)[1] == "a.service"  # type: ignore[index]
    host.follow()
    host.look(REREAD_S)
    host.look(KEPT_S)
    assert host.resolver.tenant(10) is None


def test_a_process_that_the_driver_lists_after_its_end_keeps_its_name(host: Host) -> None:
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.follow(10)
    host.look()
    host.tree.processes_end(10)
    for _ in range(4):
        host.look(KEPT_S / 2)
    assert host.name(10)[1] == "a.service"  # type: ignore[index]


def test_a_process_may_be_moved(host: Host) -> None:
    """Its control group is read again now and then."""
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.follow(10)
    host.look()
    host.tree.process(10, cgroup="/system.slice/b.service")
    host.look(1)
    assert host.name(10)[1] == "a.service"  # type: ignore[index]
    host.look(REREAD_S)
    assert host.name(10)[1] == "b.service"  # type: ignore[index]


def test_a_new_pod_is_waited_for(host: Host) -> None:
    """A pod that no reader knows yet is being found out, and all are asked at once; no junk name is born."""
    host.tree.process(10, cgroup=pod_path(UID))
    host.follow(10)
    host.look()
    assert host.resolver.tenant(10) is None
    assert host.hastened
    pod(host)
    host.look(3)
    assert host.name(10)[1] == "serving/llama"  # type: ignore[index]


def test_news_name_what_had_no_name(host: Host) -> None:
    """A pod that a reader learns of late is named then, though its process is long known."""
    host.tree.process(10, cgroup=pod_path(UID))
    host.follow(10)
    host.look()
    host.look(PATIENCE_S, read=False)
    assert host.name(10)[1] == UNNAMED  # type: ignore[index]
    pod(host)
    host.look()
    assert host.name(10)[1] == "serving/llama"  # type: ignore[index]


def test_a_run_is_waited_for_once(host: Host) -> None:
    """Patience is with a pod, not with each of its processes: new ones are no new hope, and hurry nobody."""
    for at in range(3):
        host.tree.process(10 + at, cgroup=pod_path(UID))
        host.follow(*range(10, 11 + at))
        host.look(PATIENCE_S / 2, read=False)
    assert host.name(12) == ("kubernetes", UNNAMED, UID)
    assert host.hastened == len(host.readers)


def test_patience_does_not_begin_anew(host: Host) -> None:
    """A pod that stays nameless keeps its name of none over re-reads and others' news."""
    host.tree.process(10, cgroup=pod_path(UID))
    host.follow(10)
    host.look(read=False)
    host.look(PATIENCE_S, read=False)
    for at in range(8):
        host.kubelet.value = (Grant("ml", f"other-{at}", "main", "nvidia.com/gpu", ("GPU-9",)),)
        host.look(REREAD_S / 4)
        assert host.name(10)[1] == UNNAMED  # type: ignore[index]
        assert "pods" in host.resolver.lacks()
    assert host.hastened == len(host.readers)


def test_a_job_that_is_in_the_table_by_its_group_alone_is_missed(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its environment nor the controller names it: that is said, also while others come and go."""
    host.tree.process(20, cgroup=slurm_path(42), uid=1000)
    host.follow(20)
    host.look()
    assert host.name(20)[1] == UNNAMED  # type: ignore[index]
    assert "jobs" in host.resolver.lacks()
    for at in range(4):
        host.tree.process(30 + at, cgroup=pod_path(UID.replace("0a1b", f"{at:04x}")))
        host.follow(20, 30 + at)
        host.look(PATIENCE_S - 1, read=False)
    assert caplog.text.count("scontrol") == 1


def test_a_job_that_no_table_has_is_waited_for(host: Host) -> None:
    """A job's account comes with the controller's answer: until then it has no series under another owner."""
    host.tree.process(
        20, cgroup=slurm_path(42), uid=1000, environ={"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "train"}
    )
    host.follow(20)
    host.look(read=False)
    assert host.resolver.tenant(20) is None
    host.look()
    assert host.name(20) == ("slurm", "train", "42")


def test_what_is_missing_is_said_while_it_is_waited_for(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Who looks for three seconds, as the doctor does, hears of it; the log does once it is sure."""
    host.tree.process(10, cgroup=pod_path(UID))
    host.tree.process(20, cgroup=slurm_path(42))
    host.tree.process(30, cgroup="/user.slice", exe=None)
    host.follow(10, 20, 30, 40)
    host.readers["grants"] = host.resolver._readers["grants"]
    host.kubelet.present = lambda: False  # type: ignore[method-assign]
    host.resolver.look()
    assert {"pods", "jobs", "hidden"} <= host.resolver.lacks().keys()
    assert "1 of 4 processes" in host.resolver.lacks()["hidden"]
    assert "pod-resources" in host.resolver.lacks()["grants"]
    assert not caplog.text
    for _ in range(3):
        host.look(PATIENCE_S, read=False)
    assert caplog.text.count("hostPID") == 1
    host.follow()
    host.look(read=False)
    assert host.resolver.lacks() == {}


def test_a_pod_that_nobody_names_has_no_name_of_its_own(host: Host) -> None:
    """After some time it is unnamed, whatever its uid, and its run says which it is."""
    host.tree.process(10, cgroup=pod_path(UID))
    host.follow(10)
    host.look()
    host.look(PATIENCE_S)
    assert host.name(10) == ("kubernetes", UNNAMED, UID)


def test_a_pod_that_nobody_names_may_be_known_by_its_gpu(host: Host) -> None:
    """Where the kubelet gave the GPU to one pod only, that is who works on it."""
    host.kubelet.value = (Grant("ml", "train-0", "main", "nvidia.com/gpu", (GPU,)),)
    host.tree.process(10, cgroup=pod_path(UID))
    host.tree.process(11, cgroup="/system.slice/a.service")
    host.follow(10, 11)
    host.look()
    host.look(PATIENCE_S)
    assert host.name(10) == ("kubernetes", "ml/train", "train-0")
    assert host.name(11)[0] == "systemd"  # type: ignore[index]


def test_two_grants_name_nobody(host: Host) -> None:
    """Where two pods share a GPU, or the one that was given it is known, a strange pod is neither."""
    host.kubelet.value = tuple(
        Grant("ml", name, "main", "nvidia.com/gpu", (f"{GPU}::0",)) for name in ("a-0", "b-0")
    )
    host.tree.process(10, cgroup=pod_path(UID))
    host.follow(10)
    host.look()
    host.look(PATIENCE_S)
    assert host.name(10)[1] == UNNAMED  # type: ignore[index]
    host.kubelet.value = (Grant("ml", "train-0", "main", "nvidia.com/gpu", (GPU,)),)
    pod(host, "train-0", "ml", uid=UID.replace("0a1b", "ffff"))
    host.look()
    assert host.name(10)[1] == UNNAMED  # type: ignore[index]


def test_grants_follow_the_gpus(host: Host) -> None:
    """A GPU or MIG instance that comes later has its grant at once, without news from the kubelet."""
    host.kubelet.value = (Grant("ml", "train-0", "main", "nvidia.com/mig-1g.10gb", ("MIG-1",)),)
    host.look()
    facts = GpuFacts(0, GPU, mig="3")
    host.resolver.follow([GpuReading(facts, owners=(), device_uuids=("MIG-1",))])
    host.look(read=False)
    assert [each.run for each in host.resolver.granted((GPU, "3"))] == ["train-0"]


def test_stopping_stops_all(host: Host) -> None:
    threads = list(host.readers.values())
    host.resolver.start()
    host.resolver.stop()
    for reader in threads:
        reader.join(5)
        assert reader._thread is not None
        assert not reader._thread.is_alive()
    host.resolver._thread.join(5)
    assert not host.resolver._thread.is_alive()


def test_a_hang_of_proc_is_said(host: Host) -> None:
    """While no round ends, the processes' state says so."""
    host.look(read=False)
    assert host.resolver.states()["processes"].up
    host.clock.now_s += 60
    assert "60 s" in host.resolver.states()["processes"].reason


def test_grants_are_kept_over_a_restart_of_the_kubelet(host: Host) -> None:
    """While the kubelet is away for a moment, what it granted stands."""
    host.kubelet.value = (Grant("ml", "train-0", "main", "nvidia.com/gpu", (GPU,)),)
    host.follow()
    host.look()
    assert [each.run for each in host.resolver.granted((GPU, ""))] == ["train-0"]
    host.kubelet.value = SourceError("refused")
    host.look(20)
    assert [each.run for each in host.resolver.granted((GPU, ""))] == ["train-0"]
    assert not host.resolver.states()["kubelet"].up
    host.kubelet.value = ()
    host.look(20)
    assert host.resolver.granted((GPU, "")) == ()


def test_an_exporters_pod_is_named_like_all_pods(host: Host) -> None:
    found = host.resolver.holder("serving/llama-6c8d7f9b5d-x2x4z")
    assert (found.workload.title, found.profile) == ("serving/llama", "latency")


def test_device_files_have_their_own_numbers(host: Host) -> None:
    """GKE names GPUs by device file, which the driver's files in /proc tell."""
    for bus, uuid, minor in (("0000:01:00.0", "GPU-a", 3), ("0000:02:00.0", "GPU-b", 0)):
        folder = host.tree.proc / "driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    (host.tree.proc / "driver/nvidia/gpus/0000:03:00.0").mkdir()
    assert device_minors(host.tree.proc) == {"GPU-a": 3, "GPU-b": 0}
    assert device_minors(host.tree.proc / "nowhere") == {}
    host.kubelet.value = (Grant("ml", "train-0", "main", "nvidia.com/gpu", ("nvidia3",)),)
    host.follow(gpu="GPU-a")
    host.look()
    host.follow(gpu="GPU-a")
    host.look()
    assert [each.run for each in host.resolver.granted(("GPU-a", ""))] == ["train-0"]


def test_short_lived_processes_cost_bounded_memory(host: Host) -> None:
    """Thousands that come and go are forgotten, and no more than so many are looked at."""
    for at in range(8):
        pids = range(1000 + 100 * at, 1100 + 100 * at)
        for pid in pids[:50]:
            host.tree.process(pid, cgroup="/system.slice/a.service")
        host.follow(*pids)
        host.look(3, read=False)
        assert all(host.resolver.tenant(pid) for pid in pids)
        host.tree.processes_end(*pids[:50])
    assert sum(host.resolver.tenant(pid) is not None for pid in range(1000, 4000)) <= 2100
    host.follow()
    host.look(KEPT_S + 1, read=False)
    assert not any(host.resolver.tenant(pid) for pid in range(1000, 4000))
    host.follow(*range(10_000, 10_000 + MOST_PIDS + 500))
    host.look(read=False)
    assert sum(host.resolver.tenant(pid) is not None for pid in range(10_000, 20_000)) == MOST_PIDS


def test_five_hundred_pods(host: Host) -> None:
    """All are named, each by its own controller."""
    uids = [f"{at:08x}-1111-4222-8333-444455556666" for at in range(500)]
    for at, uid in enumerate(uids):
        pod(host, f"svc-{at}-6c8d7f9b5d-x2x4z", uid=uid)
        host.tree.process(1000 + at, cgroup=pod_path(uid))
    host.follow(*range(1000, 1500))
    host.look()
    assert {host.name(1000 + at)[1] for at in range(500)} == {f"serving/svc-{at}" for at in range(500)}  # type: ignore[index]


@pytest.mark.parametrize(
    "hostile",
    ["a\nb", '"}{', "\x1b[31m", "x" * 5000, "<script>", "\udcff\udcfe"],
)
def test_hostile_names_are_labels(host: Host, hostile: str) -> None:
    """A process may call itself anything; what comes out prints on one line and is no longer than allowed."""
    host.tree.process(10, cgroup="/user.slice", exe=None, comm=hostile.encode("utf-8", "surrogateescape"))
    host.tree.process(
        11,
        cgroup=slurm_path(42),
        environ={"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": hostile.replace("\udcff", "").replace("\udcfe", "")},
    )
    host.follow(10, 11)
    host.look()
    host.look(PATIENCE_S)
    for pid in (10, 11):
        found = host.resolver.tenant(pid)
        assert found is not None
        for text in (found.workload.name, found.workload.owner, found.run):
            assert len(text) <= 128
            assert text.isprintable()
            text.encode()


def test_threads_start_and_stop(
    host: Host, until: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between start and stop it keeps itself up to date; a new owner is named without waiting for a round."""
    monkeypatch.setattr("gpuwhy.workload.resolver.LOOK_S", 60.0)
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.resolver.start()
    try:
        until(lambda: host.resolver._values != {})  # the first round has begun
        host.follow(10)
        until(lambda: host.resolver.tenant(10) is not None)
    finally:
        host.resolver.stop()


def test_a_fault_in_a_round_does_not_end_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a kind raises is said once, and the next round is another chance."""
    broken = {"is": True}
    real = host.resolver._identities.start

    def start(pid: int) -> Any:
        if broken["is"]:
            raise RuntimeError("broken")
        return real(pid)

    monkeypatch.setattr(host.resolver._identities, "start", start)
    monkeypatch.setattr("gpuwhy.workload.resolver.LOOK_S", 0.02)
    host.tree.process(10, cgroup="/system.slice/a.service")
    host.follow(10)
    host.resolver.start()
    try:
        until(lambda: "please report" in caplog.text)
        broken["is"] = False
        until(lambda: host.resolver.tenant(10) is not None)
    finally:
        host.resolver.stop()
    assert caplog.text.count("please report") == 1


def test_every_kind_and_reader_has_its_place() -> None:
    """A kind's file that is not asked, and a reader that is not started, would be forgotten."""
    said = "kinds/*.py and KINDS of workload/resolver.py differ"
    files = {file.stem for folder in kinds.__path__ for file in Path(folder).glob("[a-z]*.py")}
    assert [kind.__module__.rpartition(".")[2] for kind in KINDS][-1] == "process"
    assert {kind.__module__.rpartition(".")[2] for kind in KINDS} == files, said
    assert files <= set(WORKLOAD_KINDS), "a kind is missing in WORKLOAD_KINDS of catalog.py"
    assert files == set(SELECTED_KINDS), "a kind is missing in SELECTED_KINDS of config.py"
    docs = (Path(__file__).parents[2] / "docs/workloads.md").read_text()
    for kind in files:
        assert f"| `{kind}` |" in docs, f"{kind} has no row in docs/workloads.md"
    made = daemon.make_resolver(configuration.load({}, {}, None).config)
    fields = {field.name for field in dataclasses.fields(Tables)}
    assert made._readers.keys() <= fields, (
        "a reader of make_resolver has no field in Tables of workload/tables.py"
    )
    assert set(made.states()) == set(RESOLVERS), "catalog.RESOLVERS and make_resolver of daemon.py differ"
