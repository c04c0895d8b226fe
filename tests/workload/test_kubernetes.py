"""Names that stay when pods come and go, and who holds a GPU by the kubelet's word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.identity import Identity
from gpuwhy.source.kubernetes import Grant, Pod
from gpuwhy.workload.kinds.kubernetes import controller, grants, holder, joined, tenant
from gpuwhy.workload.tables import Row, Tables

UID, UID_B = "0a1b2c3d-1111-4222-8333-444455556666", "11111111-2222-4333-8444-555555555555"
CONTAINER = "c0ffee" * 10 + "abcd"
A, B, C = (f"GPU-{digit * 8}-2222-3333-4444-555555555555" for digit in "abc")
MIG_1, MIG_2 = (f"MIG-{digit * 8}-2222-3333-4444-555555555555" for digit in "12")


def process(uid=UID, *, path="/kubepods/burstable/pod{}/" + CONTAINER):
    return Identity(7, 1, cgroups=(path.format(uid), "/"), user="root", executable="python")


def made_by(kind, owner, name="pod-name", **labels):
    return Pod(
        UID, "ml", name, phase="Running", controller_kind=kind, controller_name=owner,
        labels={label.replace("__", "/").replace("_", "-"): value for label, value in labels.items()},
    )  # fmt: skip


# --- whose a process is


def test_process_of_a_pod():
    """Named after its controller, owned by its namespace; the pod itself is the run."""
    pod = made_by("ReplicaSet", "chat-7d4b8f9c6d", "chat-7d4b8f9c6d-x2k9p", pod_template_hash="7d4b8f9c6d")
    assert tenant(process(), Tables(pods={UID: pod})) == Tenant(
        Workload("kubernetes", "chat", "ml", "ml"), run="chat-7d4b8f9c6d-x2k9p"
    )


def test_process_of_no_pod():
    assert tenant(Identity(7, 1, cgroups=("/system.slice/x.service", "/")), Tables()) is None
    assert tenant(Identity(7, 1), Tables()) is None


def test_pod_that_nobody_knows():
    """It is a pod for sure, under a name that does not change with it."""
    assert tenant(process(UID_B), Tables(pods={UID: made_by("Job", "x")})) == Tenant(
        Workload("kubernetes", "unnamed"), run=UID_B
    )


def test_cluster_in_a_pod():
    """Of a pod in a pod the outer one is meant, known or not: what it names inside of itself is its own."""
    inner = process(path=f"/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{UID_B}/x")
    pods = {UID: made_by("StatefulSet", "outer"), UID_B: made_by("StatefulSet", "inner")}
    assert tenant(inner, Tables(pods={UID: pods[UID]})).workload.name == "outer"
    assert tenant(inner, Tables(pods=pods)).workload.name == "outer"
    assert tenant(inner, Tables(pods={UID_B: pods[UID_B]})).run == UID
    assert tenant(inner, Tables()).run == UID


def test_owner():
    """A label where one is agreed on and set, else the namespace."""
    pods = {UID: made_by("Job", "train", team="vision"), UID_B: made_by("Job", "train", team="")}
    tables = Tables(pods=pods, owner_label="team")
    assert tenant(process(UID), tables).workload.owner == "vision"
    assert tenant(process(UID_B), tables).workload.owner == "ml"
    assert tenant(process(UID), Tables(pods=pods)).workload.owner == "ml"


@pytest.mark.parametrize(
    ("annotation", "label", "profile", "hint"),
    [
        ("latency", None, "latency", "pod annotation gpuwhy/profile"),
        (None, "throughput", "throughput", "pod label gpuwhy/profile"),
        ("latency", "throughput", "latency", "pod annotation gpuwhy/profile"),
        ("fast", "throughput", "throughput", "pod label gpuwhy/profile"),
        ("Latency", None, "", ""),
        (None, None, "", ""),
    ],
)
def test_profile(annotation, label, profile, hint):
    pod = Pod(
        UID,
        "ml",
        "p",
        annotations={"gpuwhy/profile": annotation} if annotation else {},
        labels={"gpuwhy/profile": label} if label else {},
    )
    found = tenant(process(), Tables(pods={UID: pod}))
    assert (found.profile, found.hint) == (profile, hint)


def test_joined():
    """What the API server says, and what the host shows of who lives; pods of either stay."""
    api = {UID: made_by("Job", "train"), "only-api": made_by("Job", "x")}
    folders = {
        UID: Pod(UID, "ml", "pod-name", live=False),
        "only-folder": Pod("only-folder", "ml", "y", live=True),
    }
    pods = joined(Tables(pods=api, folders=folders)).pods
    assert set(pods) == {UID, "only-api", "only-folder"}
    assert (pods[UID].controller_name, pods[UID].live) == ("train", False)
    assert pods["only-api"] == api["only-api"]


# --- names, from what the API server says


@pytest.mark.parametrize(
    ("kind", "owner", "labels", "expected"),
    [
        ("ReplicaSet", "chat-7d4b8f9c6d", {"pod_template_hash": "7d4b8f9c6d"}, ("Deployment", "chat")),
        ("ReplicaSet", "chat-5", {"pod_template_hash": "5"}, ("Deployment", "chat")),
        ("ReplicaSet", "chat-bb4", {"rollouts_pod_template_hash": "bb4"}, ("Rollout", "chat")),
        ("ReplicaSet", "chat-7d4b8f9c6d", {}, ("ReplicaSet", "chat-7d4b8f9c6d")),
        ("ReplicaSet", "chat-x", {"pod_template_hash": "y"}, ("ReplicaSet", "chat-x")),
        ("StatefulSet", "llama-3", {}, ("StatefulSet", "llama-3")),
        ("DaemonSet", "exporter-x2k9p", {}, ("DaemonSet", "exporter-x2k9p")),
        ("Job", "train", {}, ("Job", "train")),
        ("Job", "model-v2", {}, ("Job", "model-v2")),
        ("Job", "mixtral-8x22b", {}, ("Job", "mixtral-8x22b")),
        ("Job", "quantize-nvfp4", {}, ("Job", "quantize-nvfp4")),
        ("Job", "sample-job-x7k2p", {}, ("Job", "sample-job")),
        ("Job", "nightly-29170800", {}, ("CronJob", "nightly")),
        ("Job", "nightly-1750248000", {}, ("CronJob", "nightly")),
        ("Job", "train-20260131", {}, ("Job", "train-20260131")),
        ("Job", "train-2026013112", {}, ("Job", "train-2026013112")),
        ("Job", "train-12345678", {}, ("Job", "train-12345678")),
        ("Job", "train-1234567", {}, ("Job", "train-1234567")),
        ("Workflow", "etl-1750248000", {}, ("CronWorkflow", "etl")),
        ("Workflow", "etl-x7k2p", {}, ("Workflow", "etl")),
        ("PyTorchJob", "llama-sft", {"training.kubeflow.org__job_name": "llama-sft"}, ("PyTorchJob", "llama-sft")),
        ("Job", "mpi-launcher", {"training.kubeflow.org__job_name": "mpi"}, ("Job", "mpi")),
        ("Job", "big-workers-1", {"jobset.sigs.k8s.io__jobset_name": "big"}, ("JobSet", "big")),
        ("StatefulSet", "lws-0", {"leaderworkerset.sigs.k8s.io__name": "lws"}, ("LeaderWorkerSet", "lws")),
        (
            "RayCluster",
            "tune-raycluster-9c546",
            {"ray.io__originated_from_cr_name": "tune", "ray.io__originated_from_crd": "RayJob"},
            ("RayJob", "tune"),
        ),
        ("RayCluster", "tune-9c546", {}, ("RayCluster", "tune")),
        ("RayCluster", "shared", {}, ("RayCluster", "shared")),
        (
            "ReplicaSet",
            "llm-predictor-00001-deployment-7d4b8f9c6d",
            {"serving.knative.dev__service": "llm-predictor", "serving.kserve.io__inferenceservice": "llm"},
            ("InferenceService", "llm"),
        ),
        ("NewThing", "thing-x7k2p", {}, ("NewThing", "thing-x7k2p")),
        ("Pod", "notebook-x7k2p", {}, ("Pod", "notebook-x7k2p")),
    ],
)  # fmt: skip
def test_controllers(kind, owner, labels, expected):
    assert controller(made_by(kind, owner, **labels), "node-1") == expected


def test_pod_from_a_file():
    """It carries its node's name at its end, whatever this host calls itself."""
    assert controller(made_by("Node", "node-1", "proxy-node-1"), "other") == ("Pod", "proxy")


# --- names, from shapes alone


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # What controllers make
        ("chat-7d4b8f9c6d-x2k9p", ("Deployment", "chat")),
        ("chat-5c689d88-x2k9p", ("Deployment", "chat")),
        ("mixtral-8x22b-66b6c48dd5-zz6sk", ("Deployment", "mixtral-8x22b")),
        ("llama-3-66b6c48dd5-zz6sk", ("Deployment", "llama-3")),
        ("llm-predictor-00001-deployment-7d4b8f9c6d-x2k9p", ("Service", "llm-predictor")),
        ("train-0", ("StatefulSet", "train")),
        ("train-12", ("StatefulSet", "train")),
        ("train-x2k9p", ("", "train")),
        ("train-3-x2k9p", ("Job", "train")),
        ("nightly-29170800-x2k9p", ("CronJob", "nightly")),
        ("nightly-1750248000-x2k9p", ("CronJob", "nightly")),
        ("nightly-29170800-3-x2k9p", ("CronJob", "nightly")),
        ("sft-worker-0", ("", "sft")),
        ("sft-master-0", ("", "sft")),
        ("sft-launcher-6cd4n", ("", "sft")),
        ("big-workers-1-0-x2k9p", ("Job", "big-workers-1")),
        ("proxy-node-1", ("Pod", "proxy")),
        # What only looks so
        ("llama-small", ("", "llama-small")),
        ("model-v2", ("", "model-v2")),
        ("mixtral-8x22b", ("", "mixtral-8x22b")),
        ("llama-nvfp4", ("", "llama-nvfp4")),
        ("llama-mxfp8", ("", "llama-mxfp8")),
        ("llama-gptq4", ("", "llama-gptq4")),
        ("flux-t5xxl", ("", "flux-t5xxl")),
        ("run-24578", ("", "run-24578")),
        ("run-20260131", ("", "run-20260131")),
        ("train-20260131-x2k9p", ("", "train-20260131")),
        ("big-deployment-small", ("", "big-deployment-small")),
        ("chat-4bcd56-x2k9p", ("", "chat-4bcd56")),
        ("resnet50", ("", "resnet50")),
        ("bert-large-uncased", ("", "bert-large-uncased")),
        ("model-007", ("", "model-007")),
        ("node-1", ("StatefulSet", "node")),
        ("", ("", "")),
        ("-0", ("", "-0")),
        ("0", ("", "0")),
    ],
)
def test_shapes(name, expected):
    assert controller(Pod(UID, "ml", name), "node-1") == expected


@pytest.mark.parametrize("stem", ["a" * 40, "a" * 50, "a" * 56])
def test_long_names_are_cut_before_their_end(stem):
    """Kubernetes cuts what it adds five letters to at 58."""
    name = f"{stem}-7d4b8f9c6d-"[:58] + "x2k9p"
    assert controller(Pod(UID, "ml", name), "") == ("Deployment", stem)


def test_long_name_without_a_hash():
    assert controller(Pod(UID, "ml", "a" * 58 + "x2k9p"), "") == ("", "a" * 58)


SAFE = st.text(alphabet="bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)


@given(
    st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    st.integers(10**7, 2**32 - 1),
    SAFE,
    SAFE,
)
def test_replicas_have_one_name(stem, number, suffix, other):
    """All pods of a Deployment have the same name, for every hash that Kubernetes can make."""
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    hashed = "".join(alphabet[ord(digit) % 27] for digit in str(number))
    assert {controller(Pod(UID, "ml", f"{stem}-{hashed}-{end}"), "") for end in (suffix, other)} == {
        ("Deployment", stem)
    }


@given(st.text(max_size=80), st.text(max_size=20), st.text(max_size=20))
def test_any_name(name, kind, owner):
    """Every pod with a name has one, whatever it is."""
    for pod in (Pod(UID, "ml", name), made_by(kind, owner, name), made_by("Job", owner, name)):
        found = controller(pod, owner)[1]
        assert found or not name


# --- grants


def given_to(pod, *devices, resource="nvidia.com/gpu", namespace="ml"):
    return Grant(namespace, pod, "main", resource, devices)


def held(granted, rows, pods=(), **options):
    tables = Tables(grants=tuple(granted), pods={pod.uid: pod for pod in pods}, node="node-1", **options)
    return {key: [each.run for each in holders] for key, holders in grants(tables, rows).items()}


WHOLE = [Row((A, ""), 0, minor=1), Row((B, ""), 1, minor=0)]
SPLIT = [
    Row((A, ""), 0, minor=0),
    Row((A, "3"), 0, minor=0, devices=(MIG_1,)),
    Row((A, "4"), 0, minor=0, devices=(MIG_2,)),
    Row((B, ""), 1, minor=1),
    Row((C, ""), 2, minor=2),
    Row((C, "9"), 2, minor=2),
]


@pytest.mark.parametrize(
    ("rows", "resource", "device", "key"),
    [
        (WHOLE, "nvidia.com/gpu", A, (A, "")),
        (WHOLE, "nvidia.com/gpu.shared", f"{A}::12", (A, "")),
        (WHOLE, "nvidia.com/gpu", "nvidia0", (B, "")),
        (WHOLE, "nvidia.com/gpu", "nvidia1/vgpu3", (A, "")),
        (WHOLE, "nvidia.com/gpu", "nvidia7", None),
        (WHOLE, "nvidia.com/gpu", C, None),
        (WHOLE, "nvidia.com/gpu", "0", None),
        (WHOLE, "nvidia.com/gpu", "", None),
        (WHOLE, "nvidia.com/hostdev", "0000:17:00.0", None),
        ([Row((A, ""), 0)], "nvidia.com/gpu", "nvidia0", None),
        ([Row((A, ""), 0, minor=0), Row((B, ""), 1, minor=0)], "nvidia.com/gpu", "nvidia0", None),
        (SPLIT, "nvidia.com/mig-3g.40gb", MIG_1, (A, "3")),
        (SPLIT, "nvidia.com/mig-3g.40gb", f"{MIG_2}::0", (A, "4")),
        (SPLIT, "nvidia.com/mig-3g.40gb", f"MIG-{A}/4/0", (A, "4")),
        (SPLIT, "nvidia.com/mig-3g.40gb", f"MIG-{A}/5/0", None),
        (SPLIT, "nvidia.com/gpu", "nvidia0/gi3", (A, "3")),
        (SPLIT, "nvidia.com/gpu", "nvidia0/gi4/vgpu1", (A, "4")),
        (SPLIT, "nvidia.com/gpu", "nvidia1/gi4", None),
        (SPLIT, "nvidia.com/gpu", A, None),
        (SPLIT, "nvidia.com/gpu", "nvidia0", None),
        (SPLIT, "nvidia.com/gpu", B, (B, "")),
        (SPLIT, "gpu.nvidia.com", "gpu-1", (B, "")),
        (SPLIT, "gpu.nvidia.com", "gpu-2-mig-9-4-4", (C, "9")),
        (SPLIT, "gpu.nvidia.com", "gpu-2-mig-3g47gb-9-0", (C, "9")),
        (SPLIT, "gpu.nvidia.com", "gpu-0-mig-9-4-4", None),
        (SPLIT, "gpu.nvidia.com", "gpu-2", None),
        (SPLIT, "gpu.nvidia.com", "gpu-vfio-1", None),
        (SPLIT, "nvidia.com/gpu", "gpu-1", None),
        # Numbered by index or by minor, which differ here
        (WHOLE, "gpu.nvidia.com", "gpu-0", None),
        ([Row((A, ""), 0)], "gpu.nvidia.com", "gpu-0", None),
    ],
)
def test_devices(rows, resource, device, key):
    """All names of devices; what cannot be told for sure is nobody's."""
    expected = {} if key is None else {key: ["train-0"]}
    assert held([given_to("train-0", device, resource=resource)], rows) == expected


def test_tenant_of_a_grant():
    """A pod that holds a GPU has the name that its processes have."""
    pod = made_by("Job", "train", "train-x2k9p", team="vision")
    tables = Tables(pods={UID: pod}, grants=(given_to("train-x2k9p", A),), owner_label="team")
    assert grants(tables, WHOLE) == {(A, ""): (tenant(process(), tables),)}
    assert grants(tables, WHOLE)[A, ""][0].workload == Workload("kubernetes", "train", "ml", "vision")


def test_several_gpus_and_containers():
    granted = [given_to("a-0", A, B), given_to("a-0", A), given_to("b-0", A, namespace="web")]
    assert held(granted, WHOLE) == {(A, ""): ["a-0", "b-0"], (B, ""): ["a-0"]}


def test_replicas_are_shared():
    """Pods that share a GPU all hold it, ordered by name; one that has two replicas holds it once."""
    granted = [given_to(name, f"{A}::{number}") for number, name in enumerate(["b-0", "a-0", "b-0"])]
    pods = [Pod(UID, "ml", "a-0", live=True), Pod(UID_B, "ml", "b-0")]
    assert held(granted, WHOLE, pods) == {(A, ""): ["a-0", "b-0"]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"live": True}, {"live": False}, ["a-0"]),
        ({"phase": "Running"}, {"phase": "Succeeded"}, ["a-0"]),
        ({"phase": "Succeeded", "live": True}, {"live": True}, ["b-0"]),
        ({"live": True}, {}, ["a-0"]),
        ({"live": True}, None, ["a-0"]),
        ({}, {}, ["a-0", "b-0"]),
        ({"live": False}, {}, ["b-0"]),
        ({"live": False}, {"phase": "Failed"}, None),
        ({"phase": "Pending"}, {"live": False}, ["a-0"]),
    ],
)
def test_pods_that_have_ended(first, second, expected):
    """The kubelet may list pods that have ended; they hold nothing."""
    pods = [Pod(UID, "ml", "a-0", **first)]
    if second is not None:
        pods.append(Pod(UID_B, "ml", "b-0", **second))
    found = held([given_to("a-0", A), given_to("b-0", A)], WHOLE, pods)
    assert found == ({} if expected is None else {(A, ""): expected})


def test_pod_made_anew_under_its_name():
    """A StatefulSet's pod that was made anew lives, though the old one's folder is there."""
    pods = [Pod(UID, "ml", "a-0", live=False), Pod(UID_B, "ml", "a-0", live=True)]
    assert held([given_to("a-0", A)], WHOLE, pods) == {(A, ""): ["a-0"]}
    assert held([given_to("a-0", A)], WHOLE, pods[::-1]) == {(A, ""): ["a-0"]}


def test_nothing_known():
    """The kubelet alone is believed."""
    assert held([given_to("a-0", A)], WHOLE) == {(A, ""): ["a-0"]}
    assert held([], WHOLE) == {}
    assert held([given_to("a-0", A)], []) == {}


@given(
    st.lists(
        st.builds(
            Grant,
            st.text(max_size=3),
            st.text(max_size=3),
            st.just("c"),
            st.sampled_from(["nvidia.com/gpu", "gpu.nvidia.com", "x"]),
            st.lists(
                st.sampled_from([A, MIG_1, "nvidia0", "nvidia0/gi3", f"{A}::1", "gpu-0", f"MIG-{A}/3/0"])
                | st.text(alphabet="nvidiaMIGPU-:/0123456789gv\n", max_size=30),
                max_size=3,
            ).map(tuple),
        ),
        max_size=4,
    )
)
def test_any_grants(granted):
    """Only rows that are there are held, and never a board that is split."""
    for rows in (WHOLE, SPLIT):
        found = held(granted, rows)
        assert set(found) <= {row.key for row in rows}
        assert rows is WHOLE or not {(A, ""), (C, "")} & set(found)


# --- the pod that a source names


def test_holder():
    """Named as its processes are; by its shape where nobody knows it."""
    pods = {
        UID: Pod(UID, "ml", "train-0", live=False),
        UID_B: made_by("StatefulSet", "train", "train-0"),
        "other": made_by("StatefulSet", "wrong", "train-1"),
    }
    tables = Tables(pods=pods)
    assert holder("ml/train-0", tables) == Tenant(Workload("kubernetes", "train", "ml", "ml"), run="train-0")
    assert holder("web/train-0", Tables()).workload == Workload("kubernetes", "train", "web", "web")
    assert holder("train-0", Tables()).workload == Workload("kubernetes", "train")
    assert holder("", Tables()).run == ""
