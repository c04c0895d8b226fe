"""Asks the kubelet which GPUs it gave to which pods: ``v1.PodResourcesLister/List`` on its socket.

gRPC is imported when it is first needed. The answer is decoded here: four messages of a stable interface
need less code than a protobuf library needs memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuwhy.source.reading import SourceError

METHOD = "/v1.PodResourcesLister/List"
DRA_DRIVER = "gpu.nvidia.com"
MOST_BYTES = 64 * 2**20
MOST_FIELDS = 500_000  # of an answer; 500 pods with two GPUs each have 10,000
_LONGEST = 512  # bytes of a name

# Kept where somebody has set them. What fails is said in our own messages.
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # A connection of its own each time: the kubelet makes a new socket when it restarts.
    ("grpc.use_local_subchannel_pool", 1),
)
_REMEDY = "check that the kubelet runs, and in a container mount the socket's folder (not the socket alone)"


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices that the kubelet gave to a container.

    ``resource`` is the name that the pod asked by ("nvidia.com/gpu"), or the driver's where the devices
    come by a resource claim ("gpu.nvidia.com"). ``device_ids`` are as the device plugin or driver names
    them.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class Kubelet:
    """What the kubelet behind ``socket`` granted. An answer takes ``timeout_s`` at most."""

    name = "kubelet"
    trouble = ""

    def __init__(
        self, socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock"), *, timeout_s: float = 5.0
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def present(self) -> bool:
        """Whether there is a kubelet's socket, or a place for it that we may not look into."""
        try:
            return stat.S_ISSOCK(os.stat(self._socket).st_mode)  # noqa: PTH116  Path.is_socket() hides refusals
        except OSError as error:
            return isinstance(error, PermissionError)

    def read(self) -> tuple[Grant, ...]:
        """All grants of NVIDIA's devices, those of pods that have ended too at times.

        Raises:
            SourceError: gRPC is not installed, or no answer came in time, or none that can be understood.
        """
        grpc = _grpc()
        # The path is a URI to gRPC.
        channel = grpc.insecure_channel(f"unix:{quote(os.path.abspath(self._socket))}", options=_OPTIONS)  # noqa: PTH100  symbolic links stay: they may turn
        try:
            answer: bytes = channel.unary_unary(METHOD)(b"", timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise SourceError(self._explained(grpc, error)) from None
        finally:
            channel.close()
        try:
            return decoded(answer)
        except ValueError as error:
            raise SourceError(
                f"what {self._socket} answers is no list of pods ({error}); check that it is the kubelet's "
                "PodResources socket"
            ) from None

    def _explained(self, grpc: Any, error: Any) -> str:
        code = error.code()
        said = str(error.details() or "").encode("unicode_escape").decode()[:200]
        if code is grpc.StatusCode.UNAVAILABLE:
            if not os.access(self._socket.parent, os.X_OK) and self._socket.parent.exists():
                return f"{self._socket} may not be opened; run the agent as root"
            return f"{self._socket} cannot be reached ({said}); {_REMEDY}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{self._socket} did not answer within {self._timeout_s:g} s; see the kubelet's log"
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the kubelet behind {self._socket} does not know {METHOD} ({said}); it came with Kubernetes 1.20"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return (
                f"{self._socket} refuses, or sends more than {MOST_BYTES >> 20} MiB ({said}); see what else asks "
                "the kubelet for pod resources"
            )
        return f"{self._socket} answers {code.name} ({said}); see the kubelet's log"


def _grpc() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import grpc  # noqa: PLC0415  16 MiB, for hosts with a kubelet only
    except ImportError as error:
        raise SourceError(
            f"the kubelet's grants need grpcio, which cannot be imported ({error}); install gpuwhy[kubernetes]"
        ) from None
    return grpc


# --- the answer, in protobuf's wire format


class _Message:
    """The fields that are text, bytes or messages; ``fields`` steps over numbers."""

    __slots__ = ("_data", "_left")

    def __init__(self, data: memoryview, left: list[int]) -> None:
        self._data = data
        self._left = left  # fields that the whole answer may still have

    def fields(self) -> Iterator[tuple[int, _Message]]:
        data, at, end = self._data, 0, len(self._data)
        while at < end:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise ValueError(f"more than {MOST_FIELDS} fields")
            tag, at = _varint(data, at)
            kind, number = tag & 7, tag >> 3
            if not number:
                raise ValueError("a field without a number")
            if kind == 2:
                size, at = _varint(data, at)
                yield number, _Message(data[at : at + size], self._left)
                at += size
            elif kind == 0:
                _, at = _varint(data, at)
            elif kind in {1, 5}:
                at += 8 if kind == 1 else 4
            else:
                raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("cut short")

    def text(self) -> str:
        return bytes(self._data[:_LONGEST]).decode(errors="replace")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("cut short")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")


def decoded(answer: bytes) -> tuple[Grant, ...]:
    """The grants of NVIDIA's devices in a ``ListPodResourcesResponse``; fields that are not known are
    passed over.

    Raises:
        ValueError: it is no such message, or too large.
    """
    grants: list[Grant] = []
    for number, pod in _Message(memoryview(answer), [MOST_FIELDS]).fields():
        if number == 1:
            grants += _pod(pod)
    return tuple(grants)


def _pod(message: _Message) -> list[Grant]:
    name = namespace = ""
    held: dict[tuple[str, str], list[str]] = {}
    for number, value in message.fields():
        if number == 1:
            name = value.text()
        elif number == 2:
            namespace = value.text()
        elif number == 3:
            container, devices = _container(value)
            for resource, ids in devices:
                if resource.startswith("nvidia.com/") or resource == DRA_DRIVER:
                    # The kubelet lists a container's devices by NUMA node.
                    held.setdefault((container, resource), []).extend(ids)
    return [
        Grant(namespace, name, container, resource, tuple(dict.fromkeys(ids)))
        for (container, resource), ids in held.items()
    ]


def _container(message: _Message) -> tuple[str, list[tuple[str, list[str]]]]:
    name = ""
    devices: list[tuple[str, list[str]]] = []
    for number, value in message.fields():
        if number == 1:
            name = value.text()
        elif number == 2:
            devices.append(_named(value, 1, 2))
        elif number == 5:
            devices += [_named(claim, 2, 4) for inner, claim in value.fields() if inner == 4]
    return name, devices


def _named(message: _Message, resource: int, device: int) -> tuple[str, list[str]]:
    """Devices and what they are of, by the numbers of these fields."""
    of, ids = "", []
    for number, value in message.fields():
        if number == resource:
            of = value.text()
        elif number == device:
            ids.append(value.text())
    return of, ids
