"""How many compute slices MIG cuts a card into; source: NVIDIA's MIG user guide, supported profiles."""

from __future__ import annotations

MOST = 7  # A100, H100 and their successors
FEWER = (("A30", 4), ("RTX PRO 6000", 4), ("RTX PRO 5000", 2), ("RTX PRO 4500", 2))


def slices_of(model: str) -> int:
    """The slices of a card by its NVML name, with or without dashes for spaces."""
    name = f" {model.replace('-', ' ')} "
    return next((count for part, count in FEWER if f" {part} " in name), MOST)
