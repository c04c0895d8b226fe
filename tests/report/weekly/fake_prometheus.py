"""A server that speaks the API of Prometheus just far enough, and misbehaves as it is told."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Points = dict[int, float]


@dataclass
class Fake:
    """``series`` holds points by labels. ``faults`` are used up one a request, then it behaves."""

    series: list[tuple[dict[str, str], Points]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    always: str = ""
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    most_steps: int = 10**6
    url: str = ""

    def add(self, name: str, points: Points, **labels: str) -> None:
        self.series.append(({"__name__": name, **labels}, points))

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        matched = [(metric, points) for metric, points in self.series if _matches(metric, query["query"])]
        if query["query"].startswith("sum_over_time"):
            minutes, end = int(re.search(r"\[(\d+)m:1h\]", query["query"])[1]), int(query["time"])
            if minutes // 60 > self.most_steps:
                return 422, {"status": "error", "errorType": "execution", "error": "too many samples"}
            inside = range((end - minutes * 60) // 3600 * 3600 + 3600, end + 1, 3600)
            result = [
                {"metric": metric, "value": [end, str(sum(points.get(at, 0.0) for at in inside))]}
                for metric, points in matched
            ]
            return 200, {"status": "success", "data": {"resultType": "vector", "result": result}}
        if path.endswith("query"):
            result = [{"metric": {}, "value": [0, str(len(matched))]}] if matched else []
            return 200, {"status": "success", "data": {"resultType": "vector", "result": result}}
        start, end, step = (int(float(query[name])) for name in ("start", "end", "step"))
        if (end - start) // step + 1 > self.most_steps:
            return 422, {"status": "error", "errorType": "execution", "error": "too many samples"}
        result = [
            {
                "metric": metric,
                "values": [[at, str(points[at])] for at in range(start, end + 1, step) if at in points],
            }
            for metric, points in matched
        ]
        data = {"resultType": "matrix", "result": [each for each in result if each["values"]]}
        return 200, {"status": "success", "data": data, "warnings": self.warnings or None}


def _matches(metric: dict[str, str], query: str) -> bool:
    # Enough for what the report asks: names, by equality or alternatives, and one matcher more.
    name = re.search(r'__name__=(~?)"([^"]*)"', query)
    if name is None:
        return query.startswith(("count", "max", "group")) and metric["__name__"] in query
    same = re.fullmatch(name[2], metric["__name__"]) if name[1] else metric["__name__"] == name[2]
    cluster = re.search(r'cluster="([^"]*)"', query)
    return bool(same) and (cluster is None or metric.get("cluster") == cluster[1])


@contextlib.contextmanager
def serving(fake: Fake, certificate: Path | None = None) -> Iterator[Fake]:
    """The fake on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            self._reply(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _reply(self, query: str) -> None:
            path = urlsplit(self.path).path
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            fake.asked.append((path, asked, dict(self.headers.items())))
            fault = fake.faults.pop(0) if fake.faults else fake.always
            status, document = fake.answer(path, asked)
            body = json.dumps(document).encode()
            if fault.isdigit() and int(fault) >= 400:
                status, body = int(fault), b'{"status":"error","errorType":"x","error":"told to fail"}'
            elif fault == "tenant":
                status, body = 401, b"no org id\n"
            elif fault == "redirect":
                self.send_response(302)
                self.send_header("Location", "https://login.example/oauth?secret=1")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            elif fault == "html":
                body = b"<html><body>Welcome</body></html>"
            elif fault == "hang-up":
                self.close_connection = True
                return
            elif fault == "slow":
                time.sleep(2)
            self.send_response(status)
            length = len(body) + (50 if fault == "short" else 0)
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if fault == "truncated":
                self.wfile.write(body[: len(body) // 2] + b" " * (len(body) - len(body) // 2))
            elif fault == "drip":
                for letter in body:
                    self.wfile.write(bytes([letter]))
                    self.wfile.flush()
                    time.sleep(0.05)
            else:
                self.wfile.write(body)
            self.wfile.flush()
            self.close_connection = fault == "short"

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Who hangs up on purpose is no error."""

    with Server(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        fake.url = f"{scheme}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
