"""A kubelet for tests: a gRPC server on a unix socket, and its messages by protobuf's own library.

The descriptor is written out of the published interface (k8s.io/kubelet, podresources/v1/api.proto), not
out of the decoder under test.
"""

from __future__ import annotations

import functools
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "v1.PodResourcesLister"

# Message: field, number, type, repeated.
PROTO: dict[str, list[tuple[str, int, str, bool]]] = {
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, "string", False),
        ("namespace", 2, "string", False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ContainerResources": [
        ("name", 1, "string", False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, "int64", True),
        ("memory", 4, "ContainerMemory", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "ContainerMemory": [
        ("memory_type", 1, "string", False),
        ("size", 2, "uint64", False),
        ("topology", 3, "TopologyInfo", False),
    ],
    "ContainerDevices": [
        ("resource_name", 1, "string", False),
        ("device_ids", 2, "string", True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "NUMANode": [("ID", 1, "int64", False)],
    "DynamicResource": [
        ("claim_name", 2, "string", False),
        ("claim_namespace", 3, "string", False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, "string", False),
        ("pool_name", 3, "string", False),
        ("device_name", 4, "string", False),
        ("share_id", 5, "string", False),
    ],
    "CDIDevice": [("name", 1, "string", False)],
}


@functools.cache
def _types() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    field_type = descriptor_pb2.FieldDescriptorProto
    for message, fields in PROTO.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number)
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in PROTO:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".v1.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in PROTO}


def pod(namespace: str, name: str, *containers: Any) -> Any:
    return _types()["PodResources"](namespace=namespace, name=name, containers=containers)


def container(name: str, *devices: tuple[str, list[str]], claims: list[tuple[str, str]] | None = None) -> Any:
    """``devices`` are of resources; ``claims`` pairs of driver and device, all of one claim."""
    message = _types()["ContainerResources"](name=name, cpu_ids=[0, 1, 2**40])
    message.memory.add(memory_type="memory", size=2**63).topology.nodes.add(ID=1)
    for resource, ids in devices:
        message.devices.add(resource_name=resource, device_ids=ids).topology.nodes.add(ID=0)
    if claims:
        claim = message.dynamic_resources.add(claim_name="one-gpu", claim_namespace="ml")
        for driver, device in claims:
            resource = claim.claim_resources.add(
                driver_name=driver, pool_name="node-1", device_name=device, share_id="s"
            )
            resource.cdi_devices.add(name=f"k8s.{driver}/claim=1-{device}")
    return message


def listed(*pods: Any) -> bytes:
    return _types()["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()


class FakeKubelet:
    """Serves ``answer`` at ``socket`` between ``start`` and ``stop``: bytes, or what a call returns."""

    def __init__(self, socket: Path, answer: bytes | Callable[[Any], bytes] = b"") -> None:
        self.socket = socket
        self.answer = answer
        self.requests: list[bytes] = []
        self._server: Any = None

    def start(self) -> FakeKubelet:
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)]
        )
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"List": handler})]
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def stop(self) -> None:
        """As a kubelet that ends: its socket is gone."""
        self._server.stop(0).wait()
        self.socket.unlink(missing_ok=True)

    def _list(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        return self.answer(context) if callable(self.answer) else self.answer


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short enough names, wherever the tests keep theirs."""
    with tempfile.TemporaryDirectory(prefix="gpuwhy-") as folder:
        yield Path(folder)


@contextmanager
def raw_server(path: Path, talk: Callable[[socket.socket], None] | None) -> Iterator[None]:
    """Something else that listens at the socket: ``talk`` to each who comes, or never accept."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(8)
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    if talk:
        thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in held:
            each.close()
        if talk:
            thread.join(5)
