# noqa: INP001  a script of its own
"""Exits 0 if the agent in this container answers on ``/-/healthy``, else 1 with the reason.

It asks where ``GPUWHY__HTTP__LISTEN`` says (port 9837 unless set; loopback for an agent that listens everywhere),
or the address that is given as an argument, as ``http://127.0.0.1:9837``: plainly first, then with TLS, whose
certificate is for other names than this one and is not checked. An agent that wants a client certificate, and
refuses this script, which has none, counts as healthy.
"""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

TIMEOUT_S = 4
EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def main() -> int:
    host, _, port = os.environ.get("GPUWHY__HTTP__LISTEN", ":9837").rpartition(":")
    place = f"{EVERYWHERE.get(host, host)}:{port}"
    reasons = []
    for address in sys.argv[1:] or [f"http://{place}", f"https://{place}"]:
        try:
            ask(address)
        except (OSError, HTTPException, ValueError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return 0
    print(*reasons, sep="\n", file=sys.stderr)
    return 1


def ask(address: str) -> None:
    """Raise if nobody healthy answers there."""
    url = urlsplit(address)
    connection = HTTPConnection(url.netloc, timeout=TIMEOUT_S)
    if url.scheme == "https":
        unchecked = ssl.create_default_context()
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(url.netloc, timeout=TIMEOUT_S, context=unchecked)
    try:
        connection.connect()
    except ssl.SSLError as error:
        # TLS 1.2 refuses who has no certificate within its handshake.
        if "HANDSHAKE_FAILURE" in (error.reason or ""):
            return
        raise
    try:
        connection.request("GET", "/-/healthy")
        answer = connection.getresponse()
    except (ssl.SSLError, ConnectionError):
        # TLS 1.3 refuses who has no certificate only after its handshake, which is done here.
        if url.scheme == "https":
            return
        raise
    finally:
        connection.close()
    if answer.status != 200:
        message = f"{answer.status} {answer.reason}"
        raise HTTPException(message)


if __name__ == "__main__":
    sys.exit(main())
