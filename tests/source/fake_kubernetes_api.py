"""An API server for tests, on loopback and behind TLS, that pages as the real one does."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


def make_certificates(openssl: str, folder: Path) -> None:
    """``ca.crt``, and ``server.pem`` (certificate and key) of 127.0.0.1 that it signed, without identifiers
    of keys as in many clusters.
    """
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    usage = ["-addext", "keyUsage=critical,keyCertSign"]
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=kube-apiserver"]
    address = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    address += ["-addext", "authorityKeyIdentifier=none"]
    for command in (
        ["req", "-x509", *key, *usage, "-subj", "/CN=kubernetes", "-keyout", "ca.key", "-out", "ca.crt"],
        ["req", "-x509", *key, *signed, *address, "-keyout", "server.key", "-out", "server.crt"],
    ):
        done = subprocess.run([openssl, *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (folder / "server.pem").write_text(
        (folder / "server.crt").read_text() + (folder / "server.key").read_text()
    )


def pod(
    name: str,
    uid: str,
    *,
    namespace: str = "ml",
    node: str = "node-1",
    phase: str = "Running",
    owner: tuple[str, str] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    generate_name: str = "",
) -> dict[str, Any]:
    """A pod as the API server gives it, with much that nobody here asks for."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": "1",
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}] * 5,
    }
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    if generate_name:
        metadata["generateName"] = generate_name
    if owner:
        kind, owner_name = owner
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "not-it", "uid": "0"},
            {"apiVersion": "v1", "kind": kind, "name": owner_name, "uid": "1", "controller": True},
        ]
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x" * 200, "env": [{}] * 20}]},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}] * 4, "qosClass": "x"},
    }


class FakeApi:
    """Serves ``pods`` to whoever shows ``token``; ``answer`` replaces what is said, where it is set.

    ``asked`` are the queries so far.
    """

    def __init__(self, certificates: Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.token = "first"
        self.answer: Callable[[BaseHTTPRequestHandler, dict[str, str]], bool] | None = None
        self.asked: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "server.pem")
        self._server.socket = tls.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeApi:  # noqa: PYI034  Python 3.10 has no Self
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                api.asked.append(query)
                if api.answer and api.answer(self, query):
                    return
                if self.headers["Authorization"] != f"Bearer {api.token}":
                    send(self, {"kind": "Status", "code": 401}, 401)
                elif url.path != "/api/v1/pods":
                    send(self, {"kind": "Status", "code": 404}, 404)
                elif "continue" in query and "resourceVersion" in query:
                    send(self, {"kind": "Status", "code": 400}, 400)  # as the real one does
                else:
                    send(self, api.page(query))

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        found = [
            pod for pod in self.pods if query["fieldSelector"] == f"spec.nodeName={pod['spec']['nodeName']}"
        ]
        start, limit = int(query.get("continue", "0")), int(query["limit"])
        metadata: dict[str, str] = {"resourceVersion": "7"}
        if start + limit < len(found):
            metadata["continue"] = str(start + limit)
        return {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": found[start : start + limit],
        }


def send(handler: BaseHTTPRequestHandler, answer: Any, status: int = 200) -> bool:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    return True
