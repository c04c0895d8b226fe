"""Pods as the host shows them: their folders, and their control groups in all shapes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.source import SourceError
from gpuwhy.source.kubernetes import Pod, PodFolders, pod_uids

from .host_trees import CONTAINER, UID, HostTree, docker_path, from_inside, pod_path, podman_path

UID_B = "11111111-2222-4333-8444-555555555555"
STATIC = "8a29ea4e1d8f4c6fb8f0b9a5c8a3a3b1"
SYSTEMD = UID.replace("-", "_")


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("quality", ["burstable", "besteffort", "guaranteed"])
@pytest.mark.parametrize("runtime", ["cri-containerd", "crio", "docker"])
@pytest.mark.parametrize("uid", [UID, STATIC])
def test_uid_of_a_path(driver, quality, runtime, uid):
    """Drivers, qualities of service and runtimes write the same uid in their own ways."""
    path = pod_path(uid, driver=driver, quality=quality, runtime=runtime)
    assert pod_uids(path) == [uid]
    assert pod_uids(pod_path(uid, "", driver=driver, quality=quality)) == [uid]
    # From a pod with a namespace of its own, beside it and in another quality of service.
    for own in (pod_path(UID_B, driver=driver, quality=quality), pod_path(UID_B, driver=driver)):
        assert pod_uids(from_inside(path, own)) == [uid]


@pytest.mark.parametrize(
    ("path", "uids"),
    [
        (f"/kubepods/burstable/pod{UID}/{CONTAINER}", [UID]),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice/x.scope", [UID]),
        (f"/kubelet/kubepods/pod{UID}/{CONTAINER}", [UID]),
        (f"/system.slice/containerd.service/kubepods-pod{SYSTEMD}.slice:cri-containerd:{CONTAINER}", [UID]),
        *(
            (f"/system.slice/{name}.service/kubepods-pod{SYSTEMD}.slice:cri-containerd:{CONTAINER}", [UID])
            for name in ("k3s", "k3s-agent", "rke2-agent", "rke2-server", "snap.microk8s.daemon-containerd")
        ),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-conmon-{CONTAINER}.scope", [UID]),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{CONTAINER}.scope/container", [UID]),
        (f"/../pod{UID}/{CONTAINER}", [UID]),
        # A cluster in a container, and one in a pod.
        (
            f"/system.slice/docker-{CONTAINER}.scope/kubelet.slice/kubelet-kubepods-pod{SYSTEMD}.slice/x",
            [UID],
        ),
        (f"/kubepods/pod{UID}/{CONTAINER}/kubelet/kubepods/pod{UID_B}/{CONTAINER}", [UID, UID_B]),
        # No pods of Kubernetes
        ("/", []),
        ("", []),
        ("/..", []),
        (docker_path(), []),
        (podman_path(), []),
        (f"/machine.slice/machine-libpod_pod_{CONTAINER}.slice/libpod-{CONTAINER}.scope", []),
        (f"/machine.slice/libpod_pod{CONTAINER}", []),
        (f"/kubepods/pod{CONTAINER}", []),
        (f"/tripod{UID}", []),
        # What a user or a service may make of what is delegated to them.
        (f"/user.slice/user-1000.slice/user@1000.service/app.slice/pod{UID}/x", []),
        (f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/x", []),
        (f"/system.slice/alice.service/kubepods/pod{UID}/x", []),
        (f"/pod{UID}0", []),
        (f"/pod{UID[:-1]}", []),
        (f"/pod{UID.upper()}", []),
        ("/user.slice/user-1000.slice/session-1.scope", []),
        (f"/../cri-containerd-{CONTAINER}.scope", []),
    ],
)
def test_uids_of_paths(path, uids):
    assert pod_uids(path) == uids


@given(st.text(alphabet=st.sampled_from("pod/-_.:0af" + "\n\udc80g"), max_size=120) | st.text(max_size=60))
def test_any_path(path):
    """Any path is taken; what is found is in the one form that tables are kept by."""
    assert all(set(uid) <= set("0123456789abcdef-") for uid in pod_uids(path))


def _folders(tree):
    return PodFolders(tree.pods, tree.cgroup)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("quality", ["burstable", "besteffort", "guaranteed"])
def test_pods_that_live(tmp_path, version, driver, quality):
    """Names come from the folders; those live whose groups are there, empty or not."""
    tree = HostTree(tmp_path, version=version)
    tree.pod_folder("ml", "train-0", UID)
    tree.pod_folder("ml", "train-1", UID_B)
    tree.pod_folder("kube-system", "proxy-node-1", STATIC)
    path = pod_path(UID, driver=driver, quality=quality)
    tree.process(7, cgroup=path)
    tree.process(8, cgroup=pod_path(STATIC, driver=driver, quality="burstable"))
    source = _folders(tree)
    assert source.present()
    assert source.read() == {
        UID: Pod(UID, "ml", "train-0", live=True),
        UID_B: Pod(UID_B, "ml", "train-1", live=False),
        STATIC: Pod(STATIC, "kube-system", "proxy-node-1", live=True),
    }
    tree.group_ends(path.rpartition("/")[0])
    assert source.read()[UID].live is False


@pytest.mark.parametrize(
    "above", ["/kubelet.slice/kubelet-", "/custom/", "/kubelet/", "/custom.slice/custom-"], ids=str
)
def test_groups_below_others(tmp_path, above):
    """The kubelet may keep its pods below another group."""
    tree = HostTree(tmp_path)
    tree.group("/system.slice/ssh.service")
    tree.group(f"{above}kubepods.slice/x-kubepods-burstable.slice/x-kubepods-burstable-pod{SYSTEMD}.slice")
    tree.pod_folder("ml", "train-0", UID)
    tree.pod_folder("ml", "train-1", UID_B)
    assert [pod.live for _, pod in sorted(_folders(tree).read().items())] == [True, False]


@pytest.mark.parametrize("version", [1, 2])
def test_life_is_not_known(tmp_path, version):
    """Where no pods' groups can be seen, nothing is said of who lives."""
    tree = HostTree(tmp_path, version=version)
    tree.pod_folder("ml", "train-0", UID)
    tree.group("/system.slice/ssh.service", hierarchy="" if version == 2 else "memory")
    assert _folders(tree).read() == {UID: Pod(UID, "ml", "train-0", live=None)}
    assert PodFolders(tree.pods, tmp_path / "nowhere").read()[UID].live is None


def test_refusals(tmp_path, monkeypatch):
    """Groups that may not be listed say nothing of who lives; folders that may not are an error."""
    tree = HostTree(tmp_path)
    tree.pod_folder("ml", "train-0", UID)
    tree.process(7, cgroup=pod_path(UID))
    scandir = os.scandir
    closed = {tree.cgroup / "kubepods.slice/kubepods-burstable.slice"}

    def refuse(path):
        if path in closed:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert _folders(tree).read()[UID].live is None
    closed.add(tree.pods)
    with pytest.raises(SourceError, match="run the agent as root"):
        _folders(tree).read()


def test_odd_names(tmp_path):
    """What no kubelet makes is passed over, a name with an escape code too."""
    tree = HostTree(tmp_path)
    tree.pods.mkdir()
    for name in (b"x", UID.encode(), b"a_b", b"a_b_c", b"A_b_" + UID.encode(), b"a_\x1b[31m_" + UID.encode()):
        (tree.pods / os.fsdecode(name)).mkdir()
    (tree.pods / os.fsdecode(b"a_\xff_" + UID.encode())).mkdir()
    (tree.pods / f"a_b\n_{UID}").mkdir()
    (tree.pods / f"ml_model.v1_{UID_B}").mkdir()
    assert list(_folders(tree).read().values()) == [Pod(UID_B, "ml", "model.v1")]


def test_no_folder(tmp_path):
    source = PodFolders(tmp_path / "pods", tmp_path)
    assert not source.present()
    with pytest.raises(SourceError, match="cannot be listed"):
        source.read()


@pytest.mark.parametrize(
    ("phase", "live", "lives"),
    [
        ("", None, None),
        ("", True, True),
        ("", False, False),
        ("Running", None, True),
        ("Pending", None, True),
        ("Running", False, False),
        ("Succeeded", True, False),
        ("Failed", None, False),
        ("Unknown", None, None),
        ("Unknown", True, True),
    ],
)
def test_who_lives(phase, live, lives):
    assert Pod(UID, "ml", "train-0", phase=phase, live=live).lives is lives
