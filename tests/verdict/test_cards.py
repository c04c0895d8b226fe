"""The card table: sane rows, names as NVML prints them, overrides."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from gpuwhy.config import CardOverride
from gpuwhy.verdict.cards import BOUNDS, CARDS, MEASURED_H200, UNKNOWN_CARD, Card, find

EVERY_CARD = (*CARDS, UNKNOWN_CARD)
each_card = pytest.mark.parametrize("card", EVERY_CARD, ids=lambda card: card.name)


@each_card
def test_row_is_sane(card: Card) -> None:
    """Numbers lie where such numbers can lie."""
    for name, (least, most) in BOUNDS.items():
        assert least <= getattr(card, name) <= most, name
    assert 50 <= card.default_power_watts <= 2000
    assert 1e9 <= card.sm_clock_max_hertz <= 4e9
    assert card.full_load_clock_ratio <= card.light_load_clock_ratio <= 1.0
    assert 0 < card.int_peak_ratio <= 1.0
    assert card.nvlink_bytes_per_second == 0 or 50e9 <= card.nvlink_bytes_per_second <= 1e12
    assert 5e9 <= card.pcie_bytes_per_second <= 130e9
    assert 0 < card.receive_floor_bytes_per_second < 10e6
    assert 0 < card.context_watts < 0.6 * card.default_power_watts


@each_card
def test_row_says_where_its_numbers_come_from(card: Card) -> None:
    """What was not measured says that it is a prior."""
    assert card.source == MEASURED_H200 or card.source.startswith("prior")


def test_only_the_h200_was_measured() -> None:
    """A row that claims a measurement needs one in docs and tests."""
    assert [card.name for card in EVERY_CARD if card.source == MEASURED_H200] == ["H200"]


def test_names_and_words_are_distinct() -> None:
    """No row is shadowed by a word that stands in another one too."""
    assert len({card.name for card in EVERY_CARD}) == len(EVERY_CARD)
    words = [word for card in CARDS for word in card.match]
    assert len(set(words)) == len(words)
    for card in CARDS:
        assert card.known
        assert all(find(word).name == card.name for word in card.match), card.name
    assert not UNKNOWN_CARD.known


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 PCIe"),
        ("NVIDIA H800", "H100"),
        ("NVIDIA H20", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40S"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-32GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "GeForce"),
        ("NVIDIA GeForce RTX 3080 Ti", "GeForce"),
        ("NVIDIA GeForce GTX 1080 Ti", "GeForce"),
        ("NVIDIA TITAN RTX", "GeForce"),
        ("NVIDIA RTX A6000", "RTX workstation"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX workstation"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "B200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B300 SXM6 AC", "GB300"),
        ("Tesla P100-PCIE-16GB", "unknown"),
        ("Tesla K80", "unknown"),
        ("NVIDIA A2", "unknown"),
        ("NVIDIA A16", "unknown"),
        ("NVIDIA L20", "unknown"),
        ("NVIDIA X1000", "unknown"),
        ("NVIDIA A1000", "unknown"),
        ("Graphics Device", "unknown"),
        ("", "unknown"),
    ],
)
def test_model_names_find_their_row(model: str, row: str) -> None:
    """Names are matched by whole words: an L40 is no L4, and an A1000 no A100."""
    assert find(model).name == row
    assert find(model.upper()).name == row


def test_overrides_replace_single_numbers() -> None:
    """What is given is replaced, the rest stays, and the row says that it was configured."""
    card = find("NVIDIA H200", {"h200": {"dram_peak_ratio": 0.8}})
    assert card.dram_peak_ratio == 0.8
    assert card.tensor_peak_ratio == find("NVIDIA H200").tensor_peak_ratio
    assert card.known
    assert "configuration" in card.source
    assert find("NVIDIA A100-SXM4-80GB", {"h200": {"dram_peak_ratio": 0.8}}) == find("NVIDIA A100-SXM4-80GB")


def test_the_longest_match_wins_number_by_number() -> None:
    """A rule for all cards of a kind stands beside one for a single model."""
    overrides = {
        "H100 PCIe": {"dram_peak_ratio": 0.7},
        "H100": {"dram_peak_ratio": 0.8, "tensor_peak_ratio": 0.9},
    }
    for order in (overrides, dict(reversed(overrides.items()))):
        card = find("NVIDIA H100 PCIe", order)
        assert (card.dram_peak_ratio, card.tensor_peak_ratio) == (0.7, 0.9)
        assert find("NVIDIA H100 80GB HBM3", order).dram_peak_ratio == 0.8


def test_overrides_of_an_unknown_card_leave_it_unknown() -> None:
    """A few numbers do not make a card known: what was not given is still a guess."""
    card = find("NVIDIA X1000", {"X1000": {"tensor_peak_ratio": 0.5}})
    assert card.tensor_peak_ratio == 0.5
    assert not card.known


def test_only_numbers_with_bounds_can_be_overridden() -> None:
    """Names, limits of the data sheet and links are no matter of opinion."""
    card = find("NVIDIA H200", {"H200": {"default_power_watts": 1.0, "name": 2.0, "known": 0.0}})
    assert dataclasses.replace(card, source="") == dataclasses.replace(find("NVIDIA H200"), source="")


def test_the_configuration_has_the_same_bounds() -> None:
    """What the configuration lets pass is what the table takes."""
    hints = typing.get_type_hints(CardOverride, include_extras=True)
    in_config = {}
    for name, hint in hints.items():
        numbers = [
            meta
            for part in typing.get_args(typing.get_args(hint)[0])
            for meta in getattr(part, "__metadata__", ())
        ]
        (bounds,) = [meta for meta in numbers if meta.ge is not None]
        in_config[name] = (bounds.ge, bounds.le)
    assert in_config == dict(BOUNDS)


def test_every_bound_is_a_number_of_the_row() -> None:
    """A bound for nothing would let an override pass that changes nothing."""
    assert BOUNDS.keys() <= {field.name for field in dataclasses.fields(Card)}
