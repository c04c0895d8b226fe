"""The API server's pods, over real TLS, from servers that refuse, hang, lie and break off."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import tracemalloc
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.source import SourceError, kubernetes_api
from gpuwhy.source.kubernetes import KubernetesApi, Pod, node_name

from .fake_kubernetes_api import FakeApi, make_certificates, pod, send
from .host_trees import UID


@pytest.fixture(scope="module")
def certificates(tmp_path_factory, require_program):
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(require_program("openssl", "install openssl"), folder)
    return folder


@pytest.fixture
def account(tmp_path, certificates):
    """A pod's service account."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    (folder / "token").write_text("first\n")
    return folder


@pytest.fixture
def api(certificates):
    with FakeApi(certificates) as fake:
        fake.pods = [pod("train-0", UID)]
        yield fake


def reader(port, account, node="node-1", **options):
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    return KubernetesApi(node, environ=environ, folder=account, **options)


def uid(number):
    return f"{number:08d}-1111-4222-8333-444455556666"


def test_what_is_kept_of_a_pod(api, account):
    """Owner, phase, and the labels and annotations that name the pod; nothing else."""
    api.pods = [
        pod(
            "train-abcde",
            UID,
            owner=("Job", "train"),
            labels={"pod-template-hash": "abc", "team": "vision", "app": "x"},
            annotations={"gpuwhy/profile": "latency", "kubectl.kubernetes.io/last-applied": "{}" * 1000},
        ),
        pod("elsewhere", uid(9), node="node-2"),
    ]
    assert reader(api.port, account, owner_label="team").read() == {
        UID: Pod(
            UID,
            "ml",
            "train-abcde",
            phase="Running",
            controller_kind="Job",
            controller_name="train",
            labels={"pod-template-hash": "abc", "team": "vision"},
            annotations={"gpuwhy/profile": "latency"},
        )
    }
    assert api.asked == [{"fieldSelector": "spec.nodeName=node-1", "limit": "200", "resourceVersion": "0"}]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ({}, "notebook-1"),
        ({"generate_name": "notebook-"}, "notebook"),
        ({"generate_name": "other-"}, "notebook-1"),
        ({"generate_name": "-"}, "notebook-1"),
    ],
)
def test_pod_that_nothing_made(api, account, made, name):
    """It stands for itself, under the name that it was generated from."""
    api.pods = [pod("notebook-1", UID, **made)]
    found = reader(api.port, account).read()[UID]
    assert (found.controller_kind, found.controller_name) == ("Pod", name)


def test_static_pods_have_the_kubelets_uid(api, account):
    """The API server's copy of a pod that the kubelet made from a file has another uid than its groups."""
    static = "8a29ea4e1d8f4c6fb8f0b9a5c8a3a3b1"
    marks = {"kubernetes.io/config.hash": static, "kubernetes.io/config.mirror": static}
    api.pods = [pod("proxy-node-1", UID, owner=("Node", "node-1"), annotations=marks)]
    assert list(reader(api.port, account).read()) == [static]


@pytest.mark.parametrize("mirror", [False, True])
def test_an_annotation_takes_no_other_pods_uid(api, account, mirror):
    """Whoever writes a pod may write its annotations: another pod's uid there is not believed."""
    victim, thief = UID, UID.replace("0a1b", "ffff")
    marks = {"kubernetes.io/config.hash": victim} | ({"kubernetes.io/config.mirror": "x"} if mirror else {})
    api.pods = [pod("victim", victim), pod("thief", thief, annotations=marks)]
    found = reader(api.port, account).read()
    assert {uid: each.name for uid, each in found.items()} == {victim: "victim", thief: "thief"}


def test_500_pods_come_in_pages(api, account):
    """All pages are read, the first from the server's memory; what is kept of a pod is small."""
    api.pods = [
        pod(f"train-{number}", uid(number), owner=("StatefulSet", "train"), labels={"app": "x"})
        for number in range(500)
    ]
    source = reader(api.port, account)
    assert list(source.read()) == [uid(number) for number in range(500)]
    assert [query.get("continue") for query in api.asked] == [None, "200", "400"]
    tracemalloc.start()
    try:
        pods = source.read()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(pods) == 500
    assert kept < 2**20


def test_pages_that_have_gone(api, account):
    """A list that changed meanwhile is read again, once."""
    api.pods = [pod(f"train-{number}", uid(number)) for number in range(300)]
    gone = []

    def once(handler, query):
        if "continue" in query and not gone:
            gone.append(1)
            return send(handler, {"kind": "Status"}, 410)
        return False

    api.answer = once
    assert len(reader(api.port, account).read()) == 300
    api.answer = lambda handler, query: "continue" in query and send(handler, {}, 410)
    with pytest.raises(SourceError, match="faster than it can be read"):
        reader(api.port, account).read()


def test_pages_without_end(api, account):
    """A server whose list never ends costs a bounded number of questions."""
    api.answer = lambda handler, _: send(
        handler, {"kind": "PodList", "items": [pod("a", UID)], "metadata": {"continue": "0"}}
    )
    assert list(reader(api.port, account).read()) == [UID]
    assert len(api.asked) <= 30


def test_token_is_read_each_time(api, account):
    """Tokens are renewed in place; an old one is refused."""
    source = reader(api.port, account)
    assert source.read()
    api.token = "second"
    with pytest.raises(SourceError, match=r"401 .*does not take the token.*verbs: \[list\]"):
        source.read()
    (account / "token").write_text("second")
    assert source.read()


def test_no_rights(api, account):
    """The message names the rule that is lacking."""
    api.answer = lambda handler, _: send(handler, {"kind": "Status"}, 403)
    with pytest.raises(SourceError, match=r'403 .*apiGroups: \[""\], resources: \[pods\], verbs: \[list\]'):
        reader(api.port, account).read()


def test_no_pod_on_the_node(api, account):
    """The agent's own pod is on its node, so a node without pods is one of another name."""
    with pytest.raises(SourceError, match=r"no pod on node 'node-7'.*NODE_NAME.*spec\.nodeName"):
        reader(api.port, account, node="node-7").read()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"", "answers 500"),
        (429, b"", "answers 429"),
        (302, b"", "answers 302"),
        (200, b"", "does not answer with pods"),
        (200, b"<html>", "does not answer with pods"),
        (200, b'{"kind": "Status"}', "answers with 'Status'"),
        (200, b'{"kind": "\\u001b[31m"}', r"answers with '\\+x1b\[31m'"),
        (200, b'{"kind": "PodList", "items": [1]}', "does not answer with pods"),
        (200, b'{"kind": "PodList", "items": [{"metadata": {"name": 7}}]}', "does not answer with pods"),
        (200, b'{"kind": "PodList", "items": null}', "no pod on node"),
        (
            200,
            b'{"kind": "PodList", "items": [{"metadata": {"name": "x\xff"}}]}',
            "does not answer with pods",
        ),
        (200, b"[" * 100_000, "does not answer with pods"),
        (
            200,
            b'{"kind": "PodList", "items": [{"metadata": {"name": "a", "uid": "../x"}}]}',
            "no pod on node",
        ),
    ],
)
def test_odd_answers(api, account, status, body, says):
    api.answer = lambda handler, _: send(handler, body, status)
    with pytest.raises(SourceError, match=says) as caught:
        reader(api.port, account).read()
    assert str(caught.value).isprintable()


def test_cut_answer(api, account):
    """An answer that ends early is no list."""

    def cut(handler, query):
        body = json.dumps(api.page(query)).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body) + 100))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    api.answer = cut
    with pytest.raises(SourceError, match="cannot be read"):
        reader(api.port, account).read()


def test_huge_answer(api, account, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "MOST_BYTES", 1000)
    api.answer = lambda handler, _: send(handler, b" " * 1001)
    with pytest.raises(SourceError, match="sends more than"):
        reader(api.port, account).read()


def test_dripping_and_hanging(api, account):
    """A byte now and then does not keep the reader."""
    release = threading.Event()

    def drip(handler, _):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not release.wait(0.02):
            handler.wfile.write(b"x")
        return True

    api.answer = drip
    try:
        with pytest.raises(SourceError, match=r"did not answer within 0\.3 s"):
            reader(api.port, account, timeout_s=0.3).read()
    finally:
        release.set()


@contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_no_tls(account):
    """What listens and never speaks is given up within the time, handshake included."""
    with listener() as port, pytest.raises(SourceError, match=r"did not answer within 0\.3 s"):
        reader(port, account, timeout_s=0.3).read()
    with pytest.raises(SourceError, match="cannot be read"):
        reader(port, account, timeout_s=0.3).read()  # nobody listens there now


def test_other_authority(api, account, certificates, tmp_path, require_program):
    """A server that the cluster's authority did not sign gets no token."""
    other = tmp_path / "other"
    other.mkdir()
    make_certificates(require_program("openssl", "install openssl"), other)
    (account / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(SourceError, match="certificate verify failed"):
        reader(api.port, account).read()
    assert api.asked == []


def test_certificates_as_clusters_have_them(api, account, monkeypatch):
    """Python 3.13 would refuse what older ones take."""
    make = ssl.create_default_context

    def strict(**options):
        context = make(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    assert reader(api.port, account).read()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("token", None, "token cannot be read"),
        ("token", b"", "holds no token"),
        ("token", b"a\r\nHost: x", "holds no token"),
        ("token", b"\xff", "holds no token"),
        ("ca.crt", None, "ca.crt cannot be used"),
        ("ca.crt", b"no certificate", "ca.crt cannot be used"),
    ],
)
def test_broken_account(api, account, file, content, says):
    (account / file).unlink()
    if content is not None:
        (account / file).write_bytes(content)
    with pytest.raises(SourceError, match=says):
        reader(api.port, account).read()


@pytest.mark.parametrize(("host", "port"), [("a b", "443"), ("10.0.0.1", "x"), ("10.0.0.1", "4433333")])
def test_broken_environment(account, host, port):
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(SourceError, match="which is no address"):
        KubernetesApi("n", environ=environ, folder=account).read()


def test_presence(account):
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert KubernetesApi("n", environ=environ, folder=account).present()
    assert not KubernetesApi("n", environ={}, folder=account).present()
    (account / "token").unlink()
    assert not KubernetesApi("n", environ=environ, folder=account).present()


def test_node_name():
    assert node_name({"NODE_NAME": "node-1"}) == "node-1"
    assert node_name({}) == socket.gethostname().lower()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON,
        "uid": JSON | st.just(UID),
        "namespace": JSON,
        "labels": JSON,
        "annotations": JSON,
        "generateName": JSON,
        "ownerReferences": st.lists(
            st.fixed_dictionaries({}, optional={"kind": JSON, "name": JSON, "controller": JSON}), max_size=2
        ),
    },
)


@settings(max_examples=60)
@given(st.lists(st.fixed_dictionaries({"metadata": METADATA}, optional={"status": JSON}), max_size=3))
def test_any_pods(items):
    """Whatever stands in a list of pods, it is pods with text in all places, or the one error."""

    class Canned(KubernetesApi):
        def _answer(self, target, ends_s):
            return msgspec.json.encode({"kind": "PodList", "items": items})

    try:
        pods = Canned("node-1", environ={}).read()
    except SourceError:
        return
    for found in pods.values():
        assert found.name
        assert all(isinstance(text, str) for text in (found.uid, found.namespace, found.phase))
        assert found.controller_kind
        assert sys.getsizeof(found.labels) < 1000
