"""What idle, slow and many clients cost a scrape, with and without TLS and users.

The server has a process of its own, and so has the crowd, which opens again whatever the server closes.
Each scrape is a new connection, with the handshake in it. ``alone`` is the same server before anybody else comes;
``idle+slow`` are 200 connections that say nothing with 50 that drip; ``silent`` are 800 that say nothing and are
opened again as fast as it goes; ``slow`` are 800 of another address that begin a request and do no more.
The burst is 1,000 scrapes at once from 1,000 threads. It comes twice, since what the first leaves behind is kept
for the next: the second may take a quarter more memory.
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
from typing import Any, NamedTuple

import bcrypt
import psutil
import trustme
from scrape import Host

from gpuwhy.exporter import Exposition, HttpServer
from gpuwhy.exporter.web_config import WebConfig

BURST = 1000
MOST_GROWTH = 1.25
AUTHORIZATION = "Basic " + base64.b64encode(b"prom:right").decode()


class Target(NamedTuple):
    """Where a scrape goes, and by which certificates."""

    port: int
    context: ssl.SSLContext | None


class Crowd(NamedTuple):
    """Connections of one kind: from where, how many, whether they speak, and how long between looks at them."""

    source: str
    size: int
    speaks: bool
    pause_s: float


CROWDS = {
    "idle+slow": (Crowd("127.0.0.1", 200, False, 0.5), Crowd("127.0.0.1", 50, True, 0.5)),
    "silent": (Crowd("127.0.0.1", 800, False, 0.0),),
    "slow": (Crowd("127.0.0.2", 800, True, 0.0),),
}


def main() -> int:
    """Print the figures; 1 where a burst had anything but answers, or the second took much more memory."""
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
    """One configuration's lines; True where a burst was not answered as a whole, or memory grew by the second."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = multiprocessing.Pipe()
    process = spawn.Process(target=served, args=(str(path), theirs))
    process.start()
    target = Target(ours.recv(), context)
    memory = psutil.Process(process.pid)
    scrape(target)
    alone = timed(target, scrapes)
    said = [f"alone p50 {alone[0]:.1f} p99 {alone[1]:.1f} ms"]
    start = used(memory)
    for name, crowds in CROWDS.items():
        stop = spawn.Event()
        crowd = spawn.Process(target=come, args=(target.port, crowds, context is not None, stop))
        crowd.start()
        time.sleep(2)
        p50, p99 = timed(target, scrapes)
        kept = used(memory)
        stop.set()
        crowd.join()
        ratios = f"({p50 / alone[0]:.1f}, {p99 / alone[1]:.1f})"
        said.append(f"{name} p50 {p50:.1f} p99 {p99:.1f} ms {ratios} {memory_said(kept)}")
    outcomes, first = burst(target, memory)
    again, after = burst(target, memory)
    said.append(f"bursts {dict(outcomes)} {dict(again)} {memory_said(first)}, {memory_said(after)}")
    said.append(f"{memory_said(start)} at first, {memory_said(used(memory))} at the end")
    print("\n    ".join((title, *said)), flush=True)
    ours.send("stop")
    process.join()
    return set(outcomes) | set(again) != {"200"} or after[0] > MOST_GROWTH * first[0]


def used(process: psutil.Process) -> tuple[float, float, int]:
    """Resident and unshared MiB, and threads."""
    found = process.memory_full_info()
    return found.rss / 2**20, found.uss / 2**20, process.num_threads()


def memory_said(found: tuple[float, float, int]) -> str:
    """That as text."""
    return f"RSS {found[0]:.1f} USS {found[1]:.1f} MiB {found[2]} threads"


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


def come(port: int, crowds: tuple[Crowd, ...], tls: bool, stop: Any) -> None:
    """The crowd's process."""
    threads = [threading.Thread(target=hold, args=(port, crowd, tls, stop)) for crowd in crowds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold(port: int, crowd: Crowd, tls: bool, stop: Any) -> None:
    """Keep connections open that send nothing, or the start of a request and then a byte at each look."""
    start = (b"\x16\x03\x01" if tls else b"GET /") if crowd.speaks else b""
    clients: list[socket.socket] = []
    while not stop.is_set():
        while len(clients) < crowd.size and not stop.is_set():
            client = socket.create_connection(
                ("127.0.0.1", port), timeout=10, source_address=(crowd.source, 0)
            )
            client.sendall(start)
            client.setblocking(False)
            clients.append(client)
        stop.wait(crowd.pause_s)
        clients = [client for client in clients if alive(client, start[:1] if crowd.pause_s else b"")]
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


def burst(
    target: Target, memory: psutil.Process
) -> tuple[collections.Counter[str], tuple[float, float, int]]:
    """How many of the scrapes at once had which status, or which error, and the most memory seen meanwhile."""
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
    most = used(memory)
    while any(thread.is_alive() for thread in threads):
        most = max(most, used(memory))
        time.sleep(0.1)
    return outcomes, most


if __name__ == "__main__":
    sys.exit(main())
