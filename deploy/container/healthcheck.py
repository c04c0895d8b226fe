# noqa: INP001  a script of its own
"""Exits 0 if the agent in this container answers on ``/-/healthy``, else 1 with the reason.

It asks the port of ``GPUWHY__HTTP__LISTEN`` (9837 unless set) on loopback, or the address that is given as an
argument, as ``http://127.0.0.1:9837``: plainly first, then with TLS, whose certificate is for other names than
this one and is not checked.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

TIMEOUT_S = 4


def main() -> int:
    port = os.environ.get("GPUWHY__HTTP__LISTEN", ":9837").rpartition(":")[2]
    asked = sys.argv[1:] or [f"http://127.0.0.1:{port}", f"https://127.0.0.1:{port}"]
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    # A proxy of the environment is not for loopback.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
    )
    reasons = []
    for address in asked:
        try:
            with opener.open(f"{address}/-/healthy", timeout=TIMEOUT_S):
                return 0
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    print(*reasons, sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
