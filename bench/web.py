"""What idle, slow and many clients cost a scrape, with and without TLS and users.

The server has a process of its own. Each scrape is a new connection, with the handshake in it. `alone` is
the same server before the 200 idle and 50 slow connections come, which open again whatever it closes.
The burst is 1,000 scrapes at once from 1,000 threads.
"""

from __future__ import annotations

import argparse
import base64
import collections
import http.client
import multiprocessing
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import bcrypt
import psutil
import trustme
from scrape import Host

from gpuwhy.exporter import Exposition, HttpServer
from gpuwhy.exporter.web_config import WebConfig

IDLE, SLOW, BURST = 200, 50, 1000
AUTHORIZATION = "Basic " + base64.b64encode(b"prom:right").decode()


class Target(NamedTuple):
    """Where a scrape goes, and by which certificates."""

    port: int
    context: ssl.SSLContext | None


def main() -> int:
    """Print the figures; 1 where the burst had anything but answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapes", type=int, default=300)
    scrapes = parser.parse_args().scrapes
    authority = trustme.CA()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = authority.issue_cert("127.0.0.1")
        pair.private_key_and_cert_chain_pem.write_to_path(folder / "pair.pem")
        hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
        tls = "tls_server_config: {cert_file: pair.pem, key_file: pair.pem}\n"
        users = f"basic_auth_users: {{prom: '{hashed}'}}\n"
        for title, content in (("plain", ""), ("users", users), ("TLS", tls), ("TLS and users", tls + users)):
            path = folder / "web.yaml"
            path.write_text(content)
            path.chmod(0o600)
            (folder / "pair.pem").chmod(0o600)
            context = None
            if "tls" in content:
                context = ssl.create_default_context()
                authority.configure_trust(context)
            failed |= measured(title, path, context, scrapes)
    return int(failed)


def measured(title: str, path: Path, context: ssl.SSLContext | None, scrapes: int) -> bool:
    """One configuration's lines; True where a scrape of the burst was not answered."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=served, args=(str(path), theirs))
    process.start()
    target = Target(ours.recv(), context)
    memory = psutil.Process(process.pid)
    scrape(target)
    alone = timed(target, scrapes)
    stop = threading.Event()
    crowd = [threading.Thread(target=hold, args=(target, stop, IDLE, b""))]
    crowd.append(
        threading.Thread(target=hold, args=(target, stop, SLOW, b"\x16\x03\x01" if context else b"GET /"))
    )
    for thread in crowd:
        thread.start()
    time.sleep(2)
    crowded = timed(target, scrapes)
    stop.set()
    for thread in crowd:
        thread.join()
    before = memory.memory_info().rss
    outcomes = burst(target)
    first = memory.memory_info().rss
    again = burst(target)
    after = memory.memory_info().rss
    print(
        f"{title:14} alone p50 {alone[0]:6.1f} p99 {alone[1]:6.1f} ms   "
        f"crowd p50 {crowded[0]:6.1f} p99 {crowded[1]:6.1f} ms   "
        f"ratio p50 {crowded[0] / alone[0]:.1f} p99 {crowded[1] / alone[1]:.1f}   "
        f"bursts {dict(outcomes)} {dict(again)}   "
        f"RSS {before / 2**20:.1f}, {first / 2**20:.1f}, {after / 2**20:.1f} MiB",
        flush=True,
    )
    ours.send("stop")
    process.join()
    return set(outcomes) | set(again) != {"200"}


def served(path: str, pipe: Connection) -> None:
    """The server's process: 8 GPUs that do not change."""
    exposition = Exposition()
    exposition.publish(Host(8).snapshot())
    server = HttpServer(("127.0.0.1", 0), exposition, lambda: b"{}", web=WebConfig(Path(path)))
    pipe.send(server.start()[1])
    pipe.recv()
    server.stop()


def scrape(target: Target) -> int:
    """The status of one scrape on a new connection."""
    if target.context is None:
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", target.port, timeout=60, context=target.context)
    try:
        headers = {"Authorization": AUTHORIZATION, "Accept-Encoding": "gzip"}
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def timed(target: Target, scrapes: int) -> tuple[float, float]:
    """Median and 99th percentile in ms; every scrape has to be answered."""
    taken = []
    for _ in range(scrapes):
        start = time.perf_counter()
        if scrape(target) != http.client.OK:
            raise SystemExit("a scrape was refused")
        taken.append(1000 * (time.perf_counter() - start))
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98]


def hold(target: Target, stop: threading.Event, count: int, content: bytes) -> None:
    """Keep connections open that send nothing, or ``content`` and then a byte every 0.5 s."""
    clients: list[socket.socket] = []
    while not stop.is_set():
        while len(clients) < count and not stop.is_set():
            client = socket.create_connection(("127.0.0.1", target.port), timeout=10)
            client.sendall(content)
            client.setblocking(False)
            clients.append(client)
        stop.wait(0.5)
        clients = [client for client in clients if alive(client, content[:1])]
    for client in clients:
        client.close()


def alive(client: socket.socket, byte: bytes) -> bool:
    """Whether the server still has this connection; closes it otherwise."""
    try:
        client.send(byte)
        if client.recv(65536):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    client.close()
    return False


def burst(target: Target) -> collections.Counter[str]:
    """How many of the scrapes at once had which status, or which error."""
    outcomes: collections.Counter[str] = collections.Counter()
    ready = threading.Barrier(BURST)
    lock = threading.Lock()

    def one() -> None:
        ready.wait()
        try:
            outcome = str(scrape(target))
        except OSError as error:
            outcome = type(error).__name__
        with lock:
            outcomes[outcome] += 1

    threads = [threading.Thread(target=one) for _ in range(BURST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
