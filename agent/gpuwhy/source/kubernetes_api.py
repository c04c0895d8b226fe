"""Asks the API server for this node's pods, as the service account that the agent runs under."""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from gpuwhy.source.bounded import read_bounded
from gpuwhy.source.deadline import Timed, left
from gpuwhy.source.pods import MOST_PODS, Pod
from gpuwhy.source.reading import SourceError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 200
MOST_BYTES = 32 * 2**20  # of one answer; a pod is 5 to 20 KB
_LONGEST = 256  # characters of a name
_MOST_TOKEN = 64 * 2**10

# What says the stable name of what a pod belongs to; see ``workload.kinds.kubernetes``.
NAMING_LABELS = frozenset(
    {
        "jobset.sigs.k8s.io/jobset-name",
        "leaderworkerset.sigs.k8s.io/name",
        "pod-template-hash",
        "ray.io/originated-from-cr-name",
        "ray.io/originated-from-crd",
        "rollouts-pod-template-hash",
        "serving.knative.dev/service",
        "serving.kserve.io/inferenceservice",
        "training.kubeflow.org/job-name",
        "volcano.sh/job-name",
        "workflows.argoproj.io/cron-workflow",
        "workflows.argoproj.io/workflow",
    }
)
# The kubelet's own name for a pod that it made from a file; the API server's copy of it has another uid.
_STATIC = "kubernetes.io/config.hash"
_MIRROR = "kubernetes.io/config.mirror"
_HASH = re.compile(r"[0-9a-f]{32}")  # what no pod from the API has for a uid
_RULE = 'a ClusterRole with the rule {apiGroups: [""], resources: [pods], verbs: [list]}'
_UID = re.compile(r"[0-9a-f-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Za-z.:-]+")
_TOKEN = re.compile(r"[!-~]+")


def node_name(environ: Mapping[str, str]) -> str:
    """The host's name in the cluster: NODE_NAME, which a pod can be given (spec.nodeName), else its own."""
    return environ.get("NODE_NAME", "").strip() or socket.gethostname().lower()


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


class _ListMetadata(msgspec.Struct):
    more: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    kind: str
    items: list[_Pod] | None = None
    metadata: _ListMetadata | None = None


class _GoneError(Exception):
    """The list's next page cannot be had any more."""


class KubernetesApi:
    """The pods of ``node``, with the labels and annotations that name them, their owner and their profile.

    ``node`` is ``node_name`` unless given. ``folder`` is the service account's, whose token is read anew each time because it is renewed.
    ``environ`` says where the API server is. ``read`` takes ``timeout_s`` at most.
    """

    name = "kubernetes-api"
    trouble = ""

    def __init__(
        self,
        node: str = "",
        *,
        environ: Mapping[str, str] = os.environ,
        folder: Path = ACCOUNT,
        owner_label: str = "",
        profile_label: str = "gpuwhy/profile",
        timeout_s: float = 5.0,
    ) -> None:
        self._node = node or node_name(environ)
        self._folder = folder
        self._host = environ.get("KUBERNETES_SERVICE_HOST", "")
        self._port = environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
        self._labels = NAMING_LABELS | {owner_label, profile_label}
        self._profile_label = profile_label
        self._timeout_s = timeout_s

    def present(self) -> bool:
        """Whether the agent runs in a pod that has a service account."""
        try:
            return bool(self._host) and (self._folder / "token").exists()
        except OSError:
            return bool(self._host)

    def read(self) -> dict[str, Pod]:
        """The pods by the uid that their control groups carry.

        Raises:
            SourceError: no answer in time, or a refusal, or an answer that cannot be understood; names the
                rights that are needed where those are missing.
        """
        ends_s = time.monotonic() + self._timeout_s
        try:
            pods = self._pods(ends_s)
        except TimeoutError:
            raise SourceError(
                f"{self._server} did not answer within {self._timeout_s:g} s; see whether it is overloaded, or "
                "whether a network policy stands between"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(
                f"{self._server} cannot be read ({_shown(str(error) or type(error).__name__)}); see whether a "
                "network policy stands between, and whether the service account is this cluster's"
            ) from None
        if not pods:
            # The agent runs in a pod, so that its own node has one.
            raise SourceError(
                f"{self._server} knows no pod on node {self._node!r}; set NODE_NAME to the node's name "
                "(fieldRef: spec.nodeName in the agent's own pod)"
            )
        return pods

    @property
    def _server(self) -> str:
        return f"the API server at {_shown(self._host)}:{_shown(self._port)}"

    def _pods(self, ends_s: float) -> dict[str, Pod]:
        try:
            return self._all_pages(ends_s)
        except _GoneError:
            pass
        try:
            return self._all_pages(ends_s)
        except _GoneError:
            raise SourceError(f"{self._server} changes its list of pods faster than it can be read") from None

    def _all_pages(self, ends_s: float) -> dict[str, Pod]:
        pods: dict[str, Pod] = {}
        more = ""
        for _ in range(1 + MOST_PODS // PAGE):
            page = self._page(more, ends_s)
            for item in page.items or ():
                pod = self._pod(item)
                if pod and len(pods) < MOST_PODS:
                    pods[pod.uid] = pod
            more = page.metadata.more if page.metadata else ""
            if not more:
                break
        return pods

    def _page(self, more: str, ends_s: float) -> _PodList:
        query = {"fieldSelector": f"spec.nodeName={self._node}", "limit": str(PAGE)}
        # From the API server's memory: a list that must be the newest is read from etcd, of all nodes' pods.
        query |= {"continue": more} if more else {"resourceVersion": "0"}
        body = self._answer(f"/api/v1/pods?{urlencode(query)}", ends_s)
        try:
            page = msgspec.json.decode(body, type=_PodList)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(
                f"{self._server} does not answer with pods ({_shown(str(error))}); see what is behind that address"
            ) from None
        if page.kind != "PodList":
            raise SourceError(
                f"{self._server} answers with {_shown(page.kind)!r}, not with pods; see what is behind that address"
            )
        return page

    def _answer(self, target: str, ends_s: float) -> bytes:
        if not _ADDRESS.fullmatch(self._host) or not self._port.isdecimal() or len(self._port) > 5:
            raise SourceError(
                f"KUBERNETES_SERVICE_HOST and _PORT say {_shown(self._host)} {_shown(self._port)}, which is no "
                "address"
            )
        shown = f"[{self._host}]" if ":" in self._host else self._host
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {shown}:{self._port}\r\nUser-Agent: gpuwhy\r\n"
            f"Authorization: Bearer {self._token()}\r\nAccept: application/json\r\n"
            "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
        ).encode("ascii")
        with closing(self._connected(ends_s)) as sock:
            sock.settimeout(left(ends_s))
            sock.sendall(request)
            with http.client.HTTPResponse(cast("Any", Timed(sock, ends_s)), method="GET") as response:
                response.begin()
                self._check(response.status, response.reason)
                body = response.read(MOST_BYTES + 1)
                if len(body) > MOST_BYTES:
                    raise SourceError(f"{self._server} sends more than {MOST_BYTES >> 20} MiB at once")
                if response.length:
                    raise http.client.IncompleteRead(body, response.length)
                return body

    def _check(self, status: int, reason: str) -> None:
        if status == http.HTTPStatus.OK:
            return
        said = f"{self._server} answers {status} {_shown(reason)}"
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise SourceError(
                f"{said}: it does not take the token in {self._folder}; mount the service account's own, and give "
                f"it {_RULE}"
            )
        if status == http.HTTPStatus.FORBIDDEN:
            raise SourceError(f"{said}; bind the agent's service account to {_RULE}")
        if status == http.HTTPStatus.GONE:
            raise _GoneError
        raise SourceError(f"{said}; it will be asked again")

    def _connected(self, ends_s: float) -> ssl.SSLSocket:
        authority = self._folder / "ca.crt"
        try:
            tls = ssl.create_default_context(cafile=str(authority))
        except OSError as error:
            raise SourceError(
                f"{authority} cannot be used ({_shown(str(error))}); mount the service account into the pod"
            ) from None
        # Python 3.13 is strict by default; many clusters' certificates lack a key identifier.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with socket.create_connection((self._host, int(self._port)), left(ends_s)) as plain:
            plain.settimeout(left(ends_s))
            return tls.wrap_socket(plain, server_hostname=self._host)

    def _token(self) -> str:
        file = self._folder / "token"
        try:
            token = read_bounded(file, _MOST_TOKEN).decode("ascii").strip()
        except OSError as error:
            raise SourceError(
                f"{file} cannot be read ({error.strerror}); mount the service account into the pod "
                "(automountServiceAccountToken)"
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not _TOKEN.fullmatch(token):
            raise SourceError(f"{file} holds no token; mount the service account into the pod")
        return token

    def _pod(self, item: _Pod) -> Pod | None:
        said = item.metadata
        labels, annotations = said.labels or {}, said.annotations or {}
        # The copy that the kubelet makes of a pod from a file. Anybody may write the annotation alone.
        of_file = annotations.get(_STATIC, "") if annotations.get(_MIRROR) else ""
        uid = of_file if _HASH.fullmatch(of_file) else said.uid
        if not said.name or not _UID.fullmatch(uid):
            return None
        kind, name = _controller(said)
        return Pod(
            uid=uid,
            namespace=_kept(said.namespace),
            name=said.name[:_LONGEST],
            phase=_kept(item.status.phase if item.status else ""),
            controller_kind=_kept(kind),
            controller_name=name[:_LONGEST],
            labels=_some(labels, self._labels),
            annotations=_some(annotations, (self._profile_label,)),
        )


def _controller(said: _Metadata) -> tuple[str, str]:
    for owner in said.owner_references or ():
        if owner.controller and owner.kind:
            return owner.kind, owner.name
    stem = said.generate_name.rstrip("-")
    return "Pod", stem if stem and said.name.startswith(said.generate_name) else said.name


def _some(mapping: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: _kept(mapping[name]) for name in names if name in mapping}


def _kept(text: str) -> str:
    """Cut to a bearable length, and once for all pods that say the same."""
    return sys.intern(text[:_LONGEST])


def _shown(text: str) -> str:
    """What a server said, fit for a message."""
    return text.strip().encode("unicode_escape").decode()[:200]
