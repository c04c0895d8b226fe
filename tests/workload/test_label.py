"""Names from pods and processes become labels that are printable, bounded and told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.catalog import WORKLOAD_KINDS
from gpuwhy.config import SELECTED_KINDS
from gpuwhy.sample import Tenant, Workload
from gpuwhy.workload.label import clean, label, selects

SERVER = Workload("kubernetes", "llama", "serving", "research")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama", "llama"),
        ("über-größe", "über-größe"),
        ("  padded ", "padded"),
        ("a\nb\tc", "a\ufffdb\ufffdc"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("\ud800", "\ufffd"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("", ""),
    ],
)
def test_what_does_not_print_is_replaced(text: str, shown: str) -> None:
    assert clean(text, 32) == shown


def test_long_names_are_cut_and_stay_apart() -> None:
    one, other = clean("x" * 200 + "1", 32), clean("x" * 200 + "2", 32)
    assert len(one) == len(other) == 32
    assert one != other
    assert one == clean("x" * 200 + "1", 32)
    assert one.startswith("x" * 25 + "~")


@given(st.text(), st.integers(16, 40))
def test_any_name_is_a_label(text: str, most: int) -> None:
    shown = clean(text, most)
    assert len(shown) <= most
    assert shown.isprintable()
    assert clean(shown, most) == shown
    shown.encode()


def test_a_label_is_never_empty() -> None:
    """A name of blanks only is no name; a namespace or owner may be none."""
    found = label(Tenant(Workload("process", " ", " ", "\n"), run="\n"), {}, 32)
    assert found.workload == Workload("process", "unnamed", "", "\ufffd")


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("llama", True),
        ("llam", False),
        ("ll*", True),
        ("serving/llama", True),
        ("training/llama", False),
        ("*/llama", True),
        ("serving/*", True),
        ("kubernetes:llama", True),
        ("kubernetes:serving/*", True),
        ("slurm:*", False),
        ("*:*", True),
        ("*", True),
        ("LLAMA", False),
        ("[", False),
    ],
)
def test_selectors(selector: str, fits: bool) -> None:
    assert selects(selector, SERVER) is fits


@pytest.mark.parametrize(
    "selector", ["nvidia/pytorch", "nvidia/*", "container:nvidia/pytorch", "*/nvidia/pytorch"]
)
def test_images_have_slashes_in_their_names(selector: str) -> None:
    assert selects(selector, Workload("container", "nvidia/pytorch"))


def test_the_first_selector_that_fits_wins_over_the_pod() -> None:
    """What an operator says goes before what the pod says of itself, and says so."""
    tenant = Tenant(SERVER, profile="throughput", hint="pod label gpuwhy/profile")
    assert label(tenant, {}, 64).profile == "throughput"
    assert label(tenant, {}, 64).hint == "pod label gpuwhy/profile"
    found = label(tenant, {"slurm:*": "unknown", "serving/*": "latency", "*": "unknown"}, 64)
    assert (found.profile, found.hint) == ("latency", "workloads.profiles 'serving/*'")


def test_kinds_that_may_be_selected_exist() -> None:
    assert set(WORKLOAD_KINDS) - set(SELECTED_KINDS) == {"replay", "unknown", "other"}
