"""Per-card numbers: what each card can really reach, and what it draws and clocks when it does.

Activity counters never reach 1.0: the best kernels stop short of the peak. Every row says where its
numbers come from; what was not measured is a prior. ``cards`` in the configuration overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

MEASURED_H200 = "measured on H200 with driver 580"
PRIOR = "prior: no card of this kind was measured"


@dataclass(frozen=True, slots=True)
class Card:
    """One card's numbers.

    ``*_peak_ratio`` is the highest activity that a good kernel reaches. ``full_load_clock_ratio`` is
    SM clock over maximum in a matrix product at the power limit, ``light_load_clock_ratio`` where nothing
    limits it: below 1 where boost never reaches the maximum that NVML tells. ``context_ratio`` is the
    share of the default limit that is drawn with a context and nothing to do. ``nvlink_bytes_per_second`` is one direction, all links; 0 = none.
    ``receive_floor`` is what the bus carries when nobody asks for anything.
    """

    name: str
    match: tuple[str, ...]
    default_power_watts: float
    sm_clock_max_hertz: float
    full_load_clock_ratio: float
    light_load_clock_ratio: float = 1.0
    dram_peak_ratio: float = 0.88
    tensor_peak_ratio: float = 0.93
    fp64_peak_ratio: float = 0.80
    fp32_peak_ratio: float = 0.76
    fp16_peak_ratio: float = 0.76
    int_peak_ratio: float = 1.0
    context_ratio: float = 0.18
    nvlink_bytes_per_second: float = 0.0
    pcie_bytes_per_second: float = 25e9
    receive_floor_bytes_per_second: float = 0.75e6
    known: bool = True
    source: str = PRIOR

    @property
    def measured(self) -> bool:
        """Whether its numbers were measured, not assumed."""
        return self.source == MEASURED_H200

    @property
    def context_watts(self) -> float:
        return self.context_ratio * self.default_power_watts


_GDDR = 0.85

# Default limits, base and boost clocks: NVIDIA data sheets. NVLink: data-sheet bandwidth, halved to
# one direction. Clock at full load: measured on H200; others as reported from GEMM load in public
# threads, yet so low that nobody is called throttled at the base clock, which the vendor promises
# at the default limit. A GPU learns the rest by itself.
CARDS: tuple[Card, ...] = (
    Card(
        "GB300",
        ("gb300", "b300"),
        1400,
        2.07e9,
        0.80,
        nvlink_bytes_per_second=900e9,
        pcie_bytes_per_second=50e9,
    ),
    Card(
        "B200",
        ("b200", "gb200", "b100"),
        1000,
        1.965e9,
        0.80,
        nvlink_bytes_per_second=900e9,
        pcie_bytes_per_second=50e9,
    ),
    Card(
        "GH200",
        ("gh200",),
        900,
        1.98e9,
        0.75,
        dram_peak_ratio=0.92,
        nvlink_bytes_per_second=450e9,
        pcie_bytes_per_second=50e9,
        source="prior: as H200, whose chip it shares",
    ),
    Card(
        "H200",
        ("h200",),
        700,
        1.98e9,
        0.73,
        dram_peak_ratio=0.92,
        nvlink_bytes_per_second=450e9,
        pcie_bytes_per_second=56e9,
        source=MEASURED_H200,
    ),
    Card(
        "H100 PCIe",
        ("h100 pcie", "h100 nvl"),
        350,
        1.755e9,
        0.65,
        nvlink_bytes_per_second=300e9,
        pcie_bytes_per_second=50e9,
    ),
    Card(
        "H100",
        ("h100", "h800", "h20"),
        700,
        1.98e9,
        0.73,
        nvlink_bytes_per_second=450e9,
        pcie_bytes_per_second=50e9,
    ),
    Card(
        "A100 PCIe",
        ("a100-pcie", "a100 80gb pcie", "a100-80gb pcie"),
        300,
        1.41e9,
        0.75,
        nvlink_bytes_per_second=300e9,
    ),
    Card("A100", ("a100", "a800"), 400, 1.41e9, 0.85, nvlink_bytes_per_second=300e9),
    Card("A30", ("a30",), 165, 1.44e9, 0.65),
    Card("A40", ("a40",), 300, 1.74e9, 0.75, dram_peak_ratio=_GDDR),
    Card("A10", ("a10", "a10g"), 150, 1.695e9, 0.58, dram_peak_ratio=_GDDR),
    Card("L40S", ("l40s", "l40"), 350, 2.52e9, 0.49, dram_peak_ratio=_GDDR),
    Card("L4", ("l4",), 72, 2.04e9, 0.43, dram_peak_ratio=_GDDR),
    Card("T4", ("t4",), 70, 1.59e9, 0.40, dram_peak_ratio=_GDDR, pcie_bytes_per_second=12e9),
    Card("V100", ("v100",), 300, 1.53e9, 0.85, nvlink_bytes_per_second=150e9, pcie_bytes_per_second=12e9),
    # NVML's maximum is beyond what boost reaches on cards for desks: 2.8 of 3.1 GHz reported for RTX 4090.
    Card(
        "RTX workstation",
        ("rtx a6000", "rtx a5500", "rtx a5000", "rtx a4500", "rtx a4000", "ada generation", "rtx pro"),
        300,
        2.1e9,
        0.45,
        light_load_clock_ratio=0.80,
        dram_peak_ratio=_GDDR,
        context_ratio=0.12,
    ),
    # Tensor counters of GeForce cards top at half of the scale (reported for RTX 4090).
    Card(
        "GeForce",
        ("geforce", "rtx", "titan"),
        350,
        2.5e9,
        0.70,
        light_load_clock_ratio=0.80,
        dram_peak_ratio=_GDDR,
        tensor_peak_ratio=0.5,
        context_ratio=0.12,
    ),
)
UNKNOWN_CARD = Card(
    "unknown", (), 300, 1.7e9, 0.45, light_load_clock_ratio=0.60, dram_peak_ratio=0.85, known=False
)

# An override outside these bounds is a mistake in the configuration, not a card.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "dram_peak_ratio": (0.3, 1.0),
    "tensor_peak_ratio": (0.3, 1.0),
    "fp64_peak_ratio": (0.3, 1.0),
    "fp32_peak_ratio": (0.3, 1.0),
    "fp16_peak_ratio": (0.3, 1.0),
    "full_load_clock_ratio": (0.3, 1.0),
    "context_ratio": (0.01, 0.6),
}


def _words(model: str) -> str:
    return f" {model.lower().replace('-', ' ').replace('_', ' ')} "


def find(model: str, overrides: Mapping[str, Mapping[str, float]] | None = None) -> Card:
    """The row for an NVML model name, "unknown" for a name that no row matches.

    ``overrides`` maps a part of a model name to numbers of ``BOUNDS``; the longest match wins.
    """
    name = _words(model)
    card = next((row for row in CARDS if any(_words(word) in name for word in row.match)), UNKNOWN_CARD)
    names = {field.name for field in fields(Card)}
    for part in sorted(overrides or {}, key=len):
        if part.lower() in model.lower():
            numbers = {
                key: value for key, value in (overrides or {})[part].items() if key in names & BOUNDS.keys()
            }
            card = replace(card, **numbers, source=f"configuration, cards.{part}")  # type: ignore[arg-type]
    return card
