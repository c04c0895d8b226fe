"""The running agent on a host with a kubelet: whose work it is, on /metrics, in the status and on the page."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.sample import Workload
from gpuwhy.source import NoGpuError
from gpuwhy.verdict.types import TimeSplit, Verdict, WorkloadVerdict
from gpuwhy.workload import refreshed, resolver

from .source import fake_kubelet
from .source.fake_kubelet import FakeKubelet, short_folder
from .source.host_trees import UID, HostTree, pod_path, slurm_path
from .test_daemon import FACTS, Device, Running

POD = "llama-6c8d7f9b5d-x2x4z"
STILL = {"graphics_util": 0.0, "sm_util": 0.0, "any_tensor_util": 0.0, "dram_bw_util": 0.0}


@dataclass
class Node:
    """A node of a cluster: its files, its kubelet, its GPU and the agent on it."""

    tree: HostTree
    kubelet: FakeKubelet
    device: Device
    running: Running

    def seconds(self, verdict: str, **labels: str) -> float | None:
        return self.running.value("workload_verdict_seconds_total", verdict=verdict, **labels)


def granting(*pods: str) -> bytes:
    return fake_kubelet.listed(
        *(
            fake_kubelet.pod("serving", pod, fake_kubelet.container("main", ("nvidia.com/gpu", ["GPU-a"])))
            for pod in pods
        )
    )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(refreshed, "EVERY_S", 0.2)
    monkeypatch.setattr(refreshed, "LEAST_S", 0.05)
    monkeypatch.setattr(resolver, "LOOK_S", 0.1)
    tree = HostTree(tmp_path)
    for there, path in ((tree.cgroup, "sys/fs/cgroup"), (tree.pods, "var/log/pods")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(there)
    tree.pods.mkdir(exist_ok=True)
    with short_folder() as folder:
        kubelet = FakeKubelet(folder / "kubelet.sock", granting()).start()
        device = Device()
        env = {
            "GPUWHY__AGENT__HOST_ROOT": str(tmp_path),
            "GPUWHY__WORKLOADS__KUBELET_SOCKET": str(folder / "kubelet.sock"),
            "GPUWHY__WORKLOADS__KUBERNETES_API": "false",
            "GPUWHY__WORKLOADS__PROFILES": "{serving/*: latency}",
            "GPUWHY__WORKLOADS__SLURM_SCONTROL": "",
        }
        made = Node(tree, kubelet, device, Running(device, env=env))
        made.running.thread.start()
        yield made
        device.free.set()
        if made.running.thread.is_alive():
            made.running.stop()
        assert made.running.error is None
        kubelet.stop()


def test_the_pod_is_named_everywhere(node: Node) -> None:
    """Series, status and page name the pod's controller, and its run and profile with it."""
    node.tree.pod_folder("serving", POD, UID)
    node.tree.process(4242, cgroup=pod_path(UID))
    node.running.wait(lambda: (node.seconds("healthy", workload="llama") or 0) > 1)
    labels = {"workload_kind": "kubernetes", "workload_namespace": "serving", "workload_owner": "serving"}
    assert node.seconds("healthy", **labels) is not None
    assert node.seconds("starving", **labels) == 0
    assert node.running.value("workload_info", run=POD, profile="latency", **labels) == 1
    assert node.running.value("workload_share_ratio", **labels) == 1
    assert node.running.value("source_up", source="kubelet") == 1
    (gpu,) = json.loads(node.running.get("/api/v1/status")[1])["gpus"]
    assert gpu["workload"] == "serving/llama"
    (own,) = gpu["workloads"]
    assert (own["kind"], own["runs"], own["profile"]) == ("kubernetes", [POD], "latency")
    assert own["profile_from"] == "workloads.profiles 'serving/*'"
    assert "serving/llama" in node.running.get("/")[1]


def test_a_gpu_that_a_pod_holds_without_a_process_is_its_loss(node: Node) -> None:
    """What the kubelet granted and nobody uses is that pod's idle time, over a restart of the kubelet."""
    node.device.owners = ()
    node.device.raw = {**node.device.raw, **STILL}
    node.device.plain = {"gpu_util_pct": 0, "power_mw": 80e3, "sm_clock_mhz": 345, "event_reasons": 1}
    node.kubelet.answer = granting("train-0")
    node.running.wait(lambda: (node.seconds("idle", workload="train") or 0) > 1)
    assert node.running.value("workload_lost_seconds_total", verdict="idle", cause="held") is not None
    node.kubelet.stop()
    node.running.wait(lambda: node.running.value("source_up", source="kubelet") == 0.0)
    before = node.seconds("idle", workload="train") or 0
    node.running.wait(lambda: (node.seconds("idle", workload="train") or 0) > before)
    node.kubelet.answer = granting("other-0")
    node.kubelet.start()
    node.running.wait(lambda: (node.seconds("idle", workload="other") or 0) > 0)
    assert node.running.value("source_up", source="kubelet") == 1


def test_another_jobs_process_under_the_same_pid(node: Node) -> None:
    """A pid that is used again is the new process's from then on, and the old one's seconds stay."""
    node.tree.process(
        4242, cgroup=slurm_path(7), environ={"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "first"}, start=1
    )
    node.running.wait(lambda: (node.seconds("healthy", workload="first") or 0) > 0)
    node.tree.process(
        4242, cgroup=slurm_path(8), environ={"SLURM_JOB_ID": "8", "SLURM_JOB_NAME": "second"}, start=2
    )
    node.running.wait(lambda: (node.seconds("healthy", workload="second") or 0) > 1)
    stopped = node.seconds("healthy", workload="first")
    node.running.wait(lambda: (node.seconds("healthy", workload="second") or 0) > 3)
    assert node.seconds("healthy", workload="first") == stopped
    assert node.running.value("workload_info", run="8", workload="second") == 1
    assert node.running.value("workload_info", run="7", workload="first") is None


def test_a_kubelet_that_hangs_costs_nothing_else(node: Node) -> None:
    """While the kubelet does not answer, processes are named and time is counted."""
    import threading

    free = threading.Event()

    def hang(_: Any) -> bytes:
        free.wait(20)
        return granting()

    node.kubelet.answer = hang
    node.tree.process(4242, cgroup="/system.slice/triton.service")
    try:
        node.running.wait(lambda: (node.seconds("healthy", workload="triton.service") or 0) > 1)
        assert node.running.stop() < 2
    finally:
        free.set()


def test_daemon_without_grpc_says_so(node: Node, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A host with a kubelet and an agent without the extra: one sentence, and all else goes on."""
    import sys

    monkeypatch.setitem(sys.modules, "grpc", None)
    node.running.wait(lambda: "gpuwhy[kubernetes]" in caplog.text)
    node.running.wait(lambda: node.running.value("source_up", source="kubelet") == 0)
    assert caplog.text.count("gpuwhy[kubernetes]") == 1


def test_born_at_zero_and_stopped_in_the_end(node: Node) -> None:
    """The first that is published of a workload is 0, and with the agent all of its threads end."""
    firsts: dict[str, float] = {}
    publish = node.running.agent._exposition.publish

    def note(snapshot: Any) -> None:
        for family in snapshot.families:
            if family.series.name == "gpuwhy_workload_verdict_seconds_total":
                for prefix, value in family.samples:
                    firsts.setdefault(prefix, value)
        publish(snapshot)

    node.running.agent._exposition.publish = note  # type: ignore[method-assign]
    for at in range(3):
        node.tree.process(4242, cgroup=f"/system.slice/unit-{at}.service", start=at + 1)
        node.running.wait(lambda at=at: (node.seconds("healthy", workload=f"unit-{at}.service") or 0) > 0)
    assert len(firsts) == 3 * 7
    assert set(firsts.values()) == {0.0}
    node.running.stop()
    whose = node.running.agent._resolver
    assert whose is not None
    for thread in (whose._thread, *(reader._thread for reader in whose._readers.values())):
        assert thread is not None
        thread.join(5)
        assert not thread.is_alive()


def test_one_that_is_named_as_its_interval_closes_is_shown_first(node: Node) -> None:
    """Who had no name at any tick of an interval is published at 0 all the same before it counts."""
    agent = node.running.agent
    node.running.wait(lambda: node.running.value("gpu_up") == 1.0)
    workload = Workload("process", "late")
    published: list[float] = []
    publish = agent._exposition.publish

    def note(snapshot: Any) -> None:
        for family in snapshot.families:
            if family.series.name == "gpuwhy_workload_useful_seconds_total":
                published.extend(value for prefix, value in family.samples if 'workload="late"' in prefix)
        publish(snapshot)

    node.running.stop()
    agent._exposition.publish = note  # type: ignore[method-assign]
    own = WorkloadVerdict(workload, (), 1.0, "alone", "healthy", "compute", 0.9, (), TimeSplit(useful=3.0))
    verdict = Verdict(FACTS, 0.0, 5.0, 5.0, "healthy", "compute", 0.9, (), TimeSplit(), workloads=(own,))
    agent._credit(daemon.Judged((verdict,), None))
    agent._publish()
    assert published == [0.0, 3.0]


def test_a_kubelet_that_comes_later_is_found() -> None:
    """Below a mounted root its socket is looked for where its folder is, whenever it is made."""
    with short_folder() as root:
        folder = root / "var/lib/kubelet/pod-resources"
        folder.mkdir(parents=True)
        config = configuration.load({}, {"GPUWHY__AGENT__HOST_ROOT": str(root)}, None).config
        reader = daemon.make_resolver(config)._readers["grants"]._reader
        assert not reader.present()
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / "kubelet.sock"))
            assert reader.present()


def test_a_root_that_is_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped mount is named, and the usual places are read."""
    config = configuration.load({}, {"GPUWHY__AGENT__HOST_ROOT": str(tmp_path / "hots")}, None).config
    daemon.make_resolver(config)
    assert f"agent.host_root: {tmp_path / 'hots'} is no folder" in caplog.text
    assert daemon.on_host(config, "proc") == Path("/proc")


def test_explain_ends_its_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watching starts what names workloads, and ends it whatever comes."""
    done: list[str] = []

    class Whose:
        def start(self) -> None:
            done.append("start")

        def stop(self) -> None:
            done.append("stop")

    def no_gpu(*_: Any) -> Any:
        raise NoGpuError("none")
        yield

    monkeypatch.setattr(daemon, "make_resolver", lambda _: Whose())
    monkeypatch.setattr(daemon, "live_ticks", no_gpu)
    with pytest.raises(NoGpuError):
        daemon.watch(configuration.load({}, {}, None).config, 1.0, lambda _: None)
    assert done == ["start", "stop"]
