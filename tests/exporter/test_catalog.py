"""The catalogue is well formed, and says exactly what is exported."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpuwhy import catalog
from gpuwhy.catalog import SERIES, Series
from gpuwhy.exporter import Exposition, Format, Snapshot
from gpuwhy.sample.signals import DEVICE

BASE_UNITS = {"", "seconds", "ratio", "watts", "joules", "hertz", "celsius", "bytes", "cores"}
each = pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)


def test_names_are_unique() -> None:
    """No two rows, and no two families, share a name."""
    assert len({series.name for series in SERIES}) == len(SERIES)
    assert len({series.family for series in SERIES}) == len(SERIES)


@each
def test_name_says_kind_and_unit(series: Series) -> None:
    """A name has the prefix, ends with its base unit and then with what its kind adds, and nothing else."""
    assert re.fullmatch(r"gpuwhy_[a-z0-9_]+", series.name)
    assert series.unit in BASE_UNITS
    assert not series.unit or series.family.endswith(f"_{series.unit}")
    assert (series.kind == "counter") == series.name.endswith("_total")
    assert (series.kind == "info") == series.name.endswith("_info")


@each
def test_help_is_one_sentence(series: Series) -> None:
    """Help is one line that ends with a full stop and needs no escape."""
    assert re.fullmatch(r'[^\n\\"]+\.', series.help)


@each
def test_labels_start_with_the_whole_identity(series: Series) -> None:
    """A series carries all of the identity labels, first, or none."""
    assert series.per_gpu or not set(series.labels) & set(catalog.IDENTITY)
    assert len(set(series.labels)) == len(series.labels)


def test_device_fields_are_signals_that_are_read() -> None:
    """What a per-GPU row reads is a signal of the signal table, a GPU fact, or of the process tree."""
    known = {signal.name for signal in DEVICE} | {"sm_clock_max_hertz", "memory_total_bytes"}
    read = {
        field
        for series in SERIES
        if series.origin in {"signal", "fact", "increment"}
        for _, field in series.fields
    }
    assert {field for field in read - known if not field.startswith("process_tree_")} == set()


def test_scrape_and_catalogue_agree_both_ways(full: Snapshot) -> None:
    """A scrape with everything read has every row, with its kind, unit, help and labels, and no other."""
    exposition = Exposition(clock=lambda: 100.0)
    exposition.publish(full)
    text = exposition.scrape(Format.OPENMETRICS).decode()
    families = [
        family for family in text_string_to_metric_families(text) if not family.name.startswith("process_")
    ]
    exported = {
        family.name: (
            family.type,
            family.unit,
            family.documentation,
            {frozenset(sample.labels) for sample in family.samples},
            {sample.name for sample in family.samples},
        )
        for family in families
    }
    assert exported == {
        series.family: (
            series.kind,
            series.unit,
            series.help,
            {frozenset(series.labels)},
            set(series.sample_names),
        )
        for series in SERIES
    }
