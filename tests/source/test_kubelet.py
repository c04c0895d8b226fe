"""The kubelet's grants, from a real gRPC server, from broken ones, and from bytes that nobody would send."""

from __future__ import annotations

import subprocess
import sys
import threading

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.source import SourceError, kubelet
from gpuwhy.source.kubernetes import Grant, Kubelet

from .fake_kubelet import FakeKubelet, container, listed, pod, raw_server, short_folder

GPU_A, GPU_B = "GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000"
TRAINER = pod("ml", "train-0", container("main", ("nvidia.com/gpu", [GPU_A])))
GRANT = Grant("ml", "train-0", "main", "nvidia.com/gpu", (GPU_A,))
QUICK_S = 0.3  # for what never answers


@pytest.fixture
def folder():
    with short_folder() as path:
        yield path


@pytest.fixture
def served(folder):
    fake = FakeKubelet(folder / "kubelet.sock", listed(TRAINER)).start()
    yield fake
    fake.stop()


def test_grants(served):
    """GPUs, MIG devices, replicas and claims are handed on as they are named; other devices are not."""
    served.answer = listed(
        pod(
            "ml",
            "train-0",
            container("main", ("nvidia.com/gpu", [GPU_A]), ("nvidia.com/gpu", [GPU_B]), ("rdma/hca", ["x"])),
            container("sidecar", ("nvidia.com/mig-1g.10gb", ["MIG-1", "MIG-2"])),
        ),
        pod("web", "nginx", container("main", ("amd.com/gpu", ["GPU-0"]))),
        pod("serving", "chat", container("main", ("nvidia.com/gpu.shared", [f"{GPU_A}::3"]))),
        pod(
            "dra",
            "claims",
            container("main", claims=[("gpu.nvidia.com", "gpu-0"), ("net.example.com", "gpu-1")]),
        ),
        pod("empty", "none"),
    )
    assert Kubelet(served.socket).read() == (
        Grant("ml", "train-0", "main", "nvidia.com/gpu", (GPU_A, GPU_B)),
        Grant("ml", "train-0", "sidecar", "nvidia.com/mig-1g.10gb", ("MIG-1", "MIG-2")),
        Grant("serving", "chat", "main", "nvidia.com/gpu.shared", (f"{GPU_A}::3",)),
        Grant("dra", "claims", "main", "gpu.nvidia.com", ("gpu-0",)),
    )
    assert served.requests == [b""]


def test_no_pods(served):
    served.answer = b""
    assert Kubelet(served.socket).read() == ()


def test_500_pods(served):
    """More than gRPC's usual limit of 4 MiB comes through."""
    served.answer = listed(
        *(
            pod(
                "ml",
                f"train-{number}",
                container("main", ("nvidia.com/gpu", [f"GPU-{number}"]), ("other/x" + "y" * 10_000, ["z"])),
            )
            for number in range(500)
        )
    )
    assert len(served.answer) > 4 * 2**20
    grants = Kubelet(served.socket).read()
    assert len(grants) == 500
    assert grants[499] == Grant("ml", "train-499", "main", "nvidia.com/gpu", ("GPU-499",))


def test_kubelet_restarts(served):
    """A kubelet that ends costs one reading; its new socket is found under the same name."""
    reader = Kubelet(served.socket, timeout_s=2)
    assert reader.present()
    assert reader.read() == (GRANT,)
    served.stop()
    assert not reader.present()
    with pytest.raises(SourceError, match=r"cannot be reached .*check that the kubelet runs.*mount"):
        reader.read()
    served.start()
    assert reader.present()
    assert reader.read() == (GRANT,)
    assert reader.read() == (GRANT,)


def test_odd_path(folder):
    """A path is not taken for a URI."""
    fake = FakeKubelet(folder / "a b%41?x#y" / "k.sock", listed(TRAINER))
    fake.socket.parent.mkdir()
    plain = fake.socket
    fake.socket = folder / "k.sock"
    fake.start()
    plain.symlink_to(fake.socket)
    try:
        assert Kubelet(plain, timeout_s=2).read() == (GRANT,)
    finally:
        fake.stop()


def test_hanging(served):
    """A kubelet that takes the question and does not answer is given up."""
    release = threading.Event()

    def hang(_context):
        release.wait(10)
        return b""

    served.answer = hang
    try:
        with pytest.raises(SourceError, match=r"did not answer within 0\.3 s"):
            Kubelet(served.socket, timeout_s=QUICK_S).read()
    finally:
        release.set()


@pytest.mark.parametrize(
    "talk",
    [
        None,
        lambda connection: None,
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda connection: connection.sendall(b"\x00" * 1000),
        lambda connection: connection.close(),
    ],
    ids=["never accepts", "silent", "speaks HTTP/1", "zeros", "hangs up"],
)
def test_something_else_listens(folder, talk):
    with raw_server(folder / "k.sock", talk), pytest.raises(SourceError, match=r"k\.sock"):
        Kubelet(folder / "k.sock", timeout_s=QUICK_S).read()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "does not know /v1.PodResourcesLister/List"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "what else asks"),
        (grpc.StatusCode.INTERNAL, r"answers INTERNAL \(it is \\n\\x1b\[31mbroken"),
    ],
)
def test_refusals(served, code, says):
    """Each says what to do; what the server says cannot command a terminal."""
    served.answer = lambda context: context.abort(code, "it is \n\x1b[31mbroken")
    with pytest.raises(SourceError, match=says) as caught:
        Kubelet(served.socket).read()
    assert str(caught.value).isprintable()


def test_oversized(served, monkeypatch):
    options = dict(kubelet._OPTIONS) | {"grpc.max_receive_message_length": 1000}
    monkeypatch.setattr(kubelet, "_OPTIONS", tuple(options.items()))
    served.answer = bytes(1001)
    with pytest.raises(SourceError, match="sends more than 64 MiB"):
        Kubelet(served.socket).read()


def test_garbage(served):
    served.answer = b"\xff\xff\xff\xff"
    with pytest.raises(SourceError, match="is no list of pods"):
        Kubelet(served.socket).read()


def test_too_many_fields(served):
    """Bytes that would take minutes to go through are given up."""
    served.answer = b"\x10\x00" * (kubelet.MOST_FIELDS + 1)
    with pytest.raises(SourceError, match="more than 500000 fields"):
        Kubelet(served.socket).read()


def test_not_installed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SourceError, match=r"install gpuwhy\[kubernetes\]"):
        Kubelet(folder / "k.sock").read()


SCRIPT = """
import os, sys, time
from pathlib import Path
from gpuwhy.source import SourceError
from gpuwhy.source.kubernetes import Kubelet

def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

assert "grpc" not in sys.modules
before, threads = memory(), len(os.listdir("/proc/self/task"))
reader = Kubelet(Path(sys.argv[1]), timeout_s=2)
assert len(reader.read()) == 500
for _ in range(20):
    reader.read()
try:
    Kubelet(Path("/nonexistent/kubelet.sock"), timeout_s=2).read()
except SourceError:
    pass
ends = time.monotonic() + 20
while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < ends:
    time.sleep(0.05)
print(len(os.listdir("/proc/self/task")) - threads, memory() - before)
"""


def test_what_it_costs(served):
    """It leaves no thread behind, prints nothing, and with 500 pods stays below its part of the memory."""
    served.answer = listed(
        *(
            pod("ml", f"train-{number}", container("main", ("nvidia.com/gpu", [f"GPU-{number}"])))
            for number in range(500)
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(served.socket)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    threads, megabytes = done.stdout.split()
    assert threads == "0"
    assert float(megabytes) < 30, megabytes


# --- the decoder against protobuf's own encoder, and against anything

NAMES = st.text(max_size=20)
RESOURCES = st.sampled_from(
    ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "nvidia.com", "", "gpu.nvidia.com"]
)
DEVICES = st.lists(st.tuples(RESOURCES, st.lists(NAMES, max_size=3)), max_size=3)
CLAIMS = st.lists(
    st.tuples(st.sampled_from(["gpu.nvidia.com", "other.com"]), st.text(min_size=1, max_size=20)), max_size=3
)
PODS = st.lists(
    st.tuples(
        NAMES, NAMES, st.lists(st.tuples(NAMES, DEVICES, CLAIMS), max_size=2, unique_by=lambda c: c[0])
    ),
    max_size=4,
)


def _is_nvidia(resource):
    return resource.startswith("nvidia.com/") or resource == "gpu.nvidia.com"


@given(PODS)
@settings(max_examples=60)
def test_decoder_agrees_with_protobuf(pods):
    """Whatever is listed, the decoder has what the encoder was given, in its order."""
    message = listed(
        *(
            pod(
                namespace,
                name,
                *(container(each, *devices, claims=claims) for each, devices, claims in inside),
            )
            for namespace, name, inside in pods
        )
    )
    expected = []
    for namespace, name, inside in pods:
        for each, devices, claims in inside:
            held = {}
            for resource, ids in [*devices, *((driver, [device]) for driver, device in claims)]:
                if _is_nvidia(resource):
                    held.setdefault(resource, []).extend(ids)
            expected += [
                Grant(namespace, name, each, resource, tuple(dict.fromkeys(ids)))
                for resource, ids in held.items()
            ]
    assert list(kubelet.decoded(message)) == expected


@given(PODS, st.data())
@settings(max_examples=200)
def test_cut_and_changed_messages(pods, data):
    """What is not such a message raises ValueError and nothing else."""
    message = bytearray(
        listed(
            *(
                pod(namespace, name, *(container(each, *devices) for each, devices, _ in inside))
                for namespace, name, inside in pods
            )
        )
    )
    if message and data.draw(st.booleans()):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    try:
        grants = kubelet.decoded(cut)
    except ValueError:
        return
    assert all(_is_nvidia(grant.resource) for grant in grants)


@given(st.binary(max_size=200))
def test_any_bytes(data):
    try:
        kubelet.decoded(data)
    except ValueError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05ab",  # shorter than it says
        b"\x0d\x01\x02",  # half a 32-bit number
        b"\x09\x01",  # half a 64-bit number
        b"\x80" * 11,  # a number without end
        b"\x80",
        b"\x02\x00",  # field 0
        b"\x0b",  # a group, which proto3 has not
        b"\x0a\x03\x1a\x09x",  # an inner message longer than the outer one
    ],
)
def test_broken_messages(data):
    with pytest.raises(ValueError):
        kubelet.decoded(data)


def test_names_are_bounded():
    """A name of a megabyte is cut; one that is no text does not fail the rest."""
    message = listed(pod("n" * 2**20, "p", container("c", ("nvidia.com/gpu", [GPU_A]))), TRAINER)
    first, second = kubelet.decoded(message.replace(b"train-0", b"tra\xff\xfe-0"))
    assert len(first.namespace) == 512
    assert second.pod == "tra\ufffd\ufffd-0"
