"""The signals that history keeps: one row each.

To keep another, add a row: files of before get its columns when they are next opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwhy.catalog import ACTIVITY_UNITS

CONFIDENCE = "verdict_confidence_ratio"


@dataclass(frozen=True, slots=True)
class Kept:
    """A signal by its name, and the step in whole numbers of which it is kept."""

    name: str
    step: float


KEPT: tuple[Kept, ...] = (
    *(Kept(f"{unit}_active_ratio", 1e-3) for unit in ACTIVITY_UNITS),
    Kept("gpu_util_ratio", 1e-3),
    Kept("power_watts", 0.1),
    Kept("sm_clock_hertz", 1e6),
    Kept("gpu_temperature_celsius", 1.0),
    Kept("memory_used_bytes", 2.0**20),
    Kept("pcie_receive_bytes_per_second", 1e5),
    Kept("nvlink_receive_bytes_per_second", 1e5),
    Kept("process_tree_cpu_cores", 0.01),
    Kept("process_tree_hottest_thread_cores", 0.01),
    Kept(CONFIDENCE, 1e-3),
)
