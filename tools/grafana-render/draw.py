# ruff: noqa: INP001, S603  a script, which runs what it is told to
"""Draws Grafana dashboards as pictures, with Grafana's own components and without a Grafana server.

python draw.py --prometheus URL --now UNIX_SECONDS --bundle FOLDER --chromium PATH --out FOLDER FILE.json[?var-host=a]...

A query behind a dashboard's file picks variables or the time range, as in Grafana's own addresses. Each picture's
queries that failed or came back empty are printed; the exit code is 1 if one failed or the page had an error.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (
    b"<!doctype html><meta charset=utf-8><link rel=stylesheet href=/app.css>"
    b"<style>html{font-size:14px}body{margin:0;background:#111217;font-family:Inter,'DejaVu Sans',sans-serif}</style>"
    b"<script>window.grafanaBootData={settings:{},user:{},navTree:[]}</script>"
    b"<div id=root></div><script src=/app.js></script>"
)
ICON = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
# Proxies of the environment are for package indices, not for loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def handler(prometheus: str, dashboard: Path, bundle: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers with the page, one dashboard, and what Prometheus says: all from one address, as browsers want it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
            pass

        def do_GET(self) -> None:
            try:
                code, kind, body = self._answer(self.path.partition("?")[0])
            except OSError as error:
                code, kind, body = 502, "text/plain", str(error).encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def _answer(self, path: str) -> tuple[int, str, bytes]:
            if path.startswith("/api/v1/"):
                try:
                    with _opener.open(prometheus + self.path, timeout=60) as answer:
                        return 200, "application/json", answer.read()
                except urllib.error.HTTPError as error:
                    with error:
                        return error.code, "application/json", error.read()
            if path == "/dashboard.json":
                return 200, "application/json", dashboard.read_bytes()
            if path in {"/app.js", "/app.css"}:
                kind = "text/javascript" if path.endswith("js") else "text/css"
                return 200, kind, (bundle / path[1:]).read_bytes()
            if path == "/":
                return 200, "text/html", PAGE
            return (
                (200, "image/svg+xml", ICON) if path.endswith(".svg") else (404, "text/plain", path.encode())
            )

    return Handler


@contextlib.contextmanager
def served(prometheus: str, dashboard: Path, bundle: Path) -> Iterator[str]:
    """The address of a page that shows the dashboard."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(prometheus, dashboard, bundle))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def draw(options: argparse.Namespace, dashboard: str) -> bool:
    """One picture; whether all went well. Says what did not."""
    file, _, query = dashboard.partition("?")
    name = Path(file).stem
    options.out.mkdir(parents=True, exist_ok=True)
    with served(options.prometheus.rstrip("/"), Path(file), options.bundle) as url:
        command = ["node", options.bundle.parent / "shot.mjs", options.chromium, f"{url}?{query}"]
        command += [options.out / f"{name}.png", str(round(1000 * options.now))]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=180, check=False
        )
    if done.returncode:
        print(f"{name}: not drawn\n{done.stdout}{done.stderr}", file=sys.stderr)
        return False
    said = json.loads(done.stdout.splitlines()[-1])
    print(f"{options.out / name}.png: {said['queries']} queries")
    for query in said["odd"]:
        print(
            f"  {'EMPTY' if query['status'] == 'success' else 'ERROR'} {query['expr']} {query.get('error') or ''}"
        )
    for error in said["errors"]:
        print(f"  PAGE {error}")
    return all(query["status"] == "success" for query in said["odd"]) and not said["errors"]


def main() -> int:
    """Draws what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--now", required=True, type=float, metavar="SECONDS")
    parser.add_argument("--bundle", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--chromium", required=True, metavar="PATH")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("dashboards", nargs="+", metavar="FILE")
    options = parser.parse_args()
    drawn = [draw(options, dashboard) for dashboard in options.dashboards]
    return 0 if all(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
