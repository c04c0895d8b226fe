"""Which device file each GPU has: schedulers name GPUs by its number, which is not NVML's index."""

from __future__ import annotations

from pathlib import Path

from gpuwhy.source.bounded import folders, read_bounded

_MOST_BYTES = 4096
_MOST_GPUS = 128


def device_minors(proc: Path) -> dict[str, int]:
    """The number of ``/dev/nvidiaN`` by GPU UUID, as the driver shows it below ``proc``; empty without it."""
    found: dict[str, int] = {}
    root = proc / "driver/nvidia/gpus"
    for name in folders(root, _MOST_GPUS):
        try:
            text = read_bounded(root / name / "information", _MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        lines = [line.partition(":") for line in text.splitlines()]
        fields = {key.strip(): value.strip() for key, _, value in lines}
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        if uuid and minor.isascii() and minor.isdigit():
            found[uuid] = int(minor)
    return found
