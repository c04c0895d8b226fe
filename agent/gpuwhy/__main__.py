"""The command's way in: until all is loaded, Ctrl-C ends it at once, without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup and shells may ignore it
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpuwhy import cli  # noqa: PLC0415  this is what takes its time

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
