"""What is served equals, byte for byte, what prometheus_client writes for the same families."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuwhy import __version__
from gpuwhy.catalog import SERIES, SERIES_BY_NAME, Series
from gpuwhy.exporter import Exposition, Format, Health, HostIncrements, Ledger, Snapshot
from gpuwhy.exporter.snapshot import Family
from gpuwhy.exporter.textformat import sample_prefix

Make = Callable[..., Any]
Labelled = tuple[dict[str, str], float]

REFERENCE: dict[Format, Callable[[CollectorRegistry], bytes]] = {
    Format.TEXT: prometheus_client.generate_latest,
    Format.OPENMETRICS: openmetrics.generate_latest,
}
HOSTILE = [
    'say "hi"',
    "two\nlines",
    "back\\slash",
    "\\n",
    "\\\\",
    '\\"',
    "emoji 🔥",
    "lone \ud83d surrogate",
    "",
    "{}",
    "a=b,c",
    "\r\t\x00",
]
formats = pytest.mark.parametrize("wanted", Format, ids=lambda wanted: wanted.name.lower())


class Families:
    """A collector of given families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def reference(families: Iterable[Metric], wanted: Format) -> bytes:
    registry = CollectorRegistry()
    registry.register(Families(families))
    return REFERENCE[wanted](registry)


def valid(text: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(letter) <= 0xDFFF else letter for letter in text)


def family(series: Series, samples: Sequence[Labelled]) -> Metric:
    """The family as a user of prometheus_client would build it."""
    if series.kind == "summary":
        summary = SummaryMetricFamily(series.name, series.help, labels=[], unit=series.unit)
        summary.add_metric([], count_value=samples[0][1], sum_value=samples[1][1])
        return summary
    if series.kind == "info":
        info = InfoMetricFamily(series.family, series.help, labels=[])
        for labels, _ in samples:
            info.add_metric([], {name: valid(value) for name, value in labels.items()})
        return info
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    metric = kind(series.name, series.help, labels=series.labels, unit=series.unit)
    for labels, value in samples:
        metric.add_metric([valid(labels[name]) for name in series.labels], value)
    return metric


def own_families() -> list[Metric]:
    build = {"version": __version__, "python": platform.python_version()}
    samples: dict[str, Labelled] = {
        "gpuwhy_values_dropped_total": ({}, 0.0),
        "gpuwhy_exposition_errors_total": ({}, 0.0),
        "gpuwhy_build_info": (build, 1.0),
    }
    return [family(SERIES_BY_NAME[name], [sample]) for name, sample in samples.items()]


def served(samples: Sequence[tuple[Series, Sequence[Labelled]]], wanted: Format) -> bytes:
    families = []
    for series, labelled in samples:
        names = series.sample_names if series.kind == "summary" else series.sample_names * len(labelled)
        lines = [
            (sample_prefix(name, labels), value)
            for name, (labels, value) in zip(names, labelled, strict=True)
        ]
        families.append(Family(series, tuple(lines)))
    exposition = Exposition(clock=lambda: 0.0, process=CollectorRegistry())
    exposition.publish(Snapshot(0.0, 5.0, 1, tuple(families), ()))
    return exposition.scrape(wanted)


texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(HOSTILE)
numbers = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0.0, -0.0, 1e6, 1e7, 123456789.0, 1e16, 1e22, 1e-7, 5e-324, 1.7e308])
)


@st.composite
def a_scrape(draw: st.DrawFn) -> list[tuple[Series, list[Labelled]]]:
    chosen = [series for series in SERIES if series.origin != "exporter"]
    chosen = draw(st.lists(st.sampled_from(chosen), unique=True, max_size=4))
    scrape = []
    for series in chosen:
        if series.kind == "summary":
            scrape.append((series, [({}, draw(numbers)), ({}, draw(numbers))]))
            continue
        values = st.just(1.0) if series.kind == "info" else numbers
        labels = st.fixed_dictionaries(dict.fromkeys(series.labels, texts))
        scrape.append((series, draw(st.lists(st.tuples(labels, values), min_size=1, max_size=4))))
    return scrape


@formats
@given(scrape=a_scrape())
@settings(max_examples=60)
def test_any_labels_and_values_are_written_alike(wanted: Format, scrape: Any) -> None:
    """Whatever is in labels and values, the whole output equals the reference's."""
    expected = [family(series, samples) for series, samples in scrape]
    assert served(scrape, wanted) == reference([*expected, *own_families()], wanted)


@formats
def test_every_row_is_written_alike(wanted: Format) -> None:
    """Every row of the catalogue, with hostile text in every label, equals the reference's output."""
    scrape = []
    for series in SERIES:
        if series.origin == "exporter":
            continue
        samples = [(dict.fromkeys(series.labels, text), float(place)) for place, text in enumerate(HOSTILE)]
        if series.kind == "summary":
            samples = [({}, 3.0), ({}, 0.25)]
        elif series.kind == "info":
            samples = [(labels, 1.0) for labels, _ in samples]
        elif not series.labels:
            samples = [({}, 1e9)]
        scrape.append((series, samples))
    expected = [family(series, samples) for series, samples in scrape]
    assert served(scrape, wanted) == reference([*expected, *own_families()], wanted)


@pytest.mark.parametrize(
    "wanted, parse",
    [(Format.TEXT, parse_text), (Format.OPENMETRICS, parse_openmetrics)],
    ids=["text", "openmetrics"],
)
def test_ledger_with_hostile_names_reads_back_and_is_written_alike(
    wanted: Format, parse: Make, facts: Make, judge: Make, host: HostIncrements
) -> None:
    """A full scrape of GPUs with hostile names parses to those names, and is written again byte for byte."""
    ledger = Ledger()
    gpus = [
        facts(index, uuid=f"{text}{index}", model=text, driver=text) for index, text in enumerate(HOSTILE)
    ]
    verdicts = [judge(gpu) for gpu in gpus]
    ledger.credit(verdicts, host, {verdict.gpu.key: verdict for verdict in verdicts})
    ledger.tick(0.01)
    health = Health({gpu.key: True for gpu in gpus}, {'so"urce': True}, last_sample_unix_s=1.8e9)
    exposition = Exposition(clock=lambda: 0.0, process=CollectorRegistry())
    exposition.publish(ledger.snapshot(health, taken_s=0.0, interval_s=5.0))
    content = exposition.scrape(wanted)
    families = list(parse(content.decode()))
    models = {
        sample.labels["model"]
        for each in families
        for sample in each.samples
        if sample.name == "gpuwhy_gpu_info"
    }
    assert models == {valid(text) for text in HOSTILE}
    assert reference(families, wanted) == content
