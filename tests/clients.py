"""What tests of the HTTP server do as its clients and as the manager of its certificates."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import trustme


def wait_for(done: Callable[[], bool], seconds: float = 10.0, step: float = 0.02) -> bool:
    """Whether it came to be within these seconds."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


def is_open(client: socket.socket) -> bool:
    """Whether the server has kept this connection, on which it has said nothing yet."""
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def connection_threads() -> int:
    """How many connections have a thread of this process."""
    return sum(each.name == "gpuwhy-http-connection" for each in threading.enumerate())


def write_pair(folder: Path, pair: trustme.LeafCert) -> None:
    """As a certificate's manager does it: each file replaced as a whole, readable by its owner."""
    for name, content in (
        ("cert.pem", b"".join(blob.bytes() for blob in pair.cert_chain_pems)),
        ("key.pem", pair.private_key_pem.bytes()),
    ):
        (folder / "new").write_bytes(content)
        (folder / "new").chmod(0o600)
        (folder / "new").replace(folder / name)


def trusting(authority: trustme.CA, own: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A client's settings: whom it trusts, and the certificate that it shows."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if own is not None:
        own.configure_cert(context)
    return context
