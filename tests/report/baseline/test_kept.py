"""Baselines in files: what is read is what was written, and what is none says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwhy.config import StoreConfig
from gpuwhy.report.baseline import kept
from gpuwhy.report.baseline.types import SIGNALS, AskedError, Baseline, BaselineError, Gpu, Progress, Sample
from gpuwhy.verdict.types import TimeSplit
from gpuwhy.verdict.vocabulary import CAUSES

from . import made

STORE = StoreConfig()


def small(**changes: Any) -> Baseline:
    return made.baseline(made.gpu([0.6, 0.7, 0.65]), **changes)


def environ(folder: Path) -> dict[str, str]:
    return {"STATE_DIRECTORY": str(folder)}


seconds = st.floats(0, 100).map(lambda number: round(number, 6))
splits = st.builds(
    TimeSplit,
    observed=seconds,
    measured=seconds,
    useful=seconds,
    headroom=seconds,
    free=seconds,
    lost=st.dictionaries(st.sampled_from([cause.key for cause in CAUSES]), seconds.filter(bool), max_size=3),
    verdict=st.dictionaries(
        st.sampled_from([cause.key for cause in CAUSES]), seconds.filter(bool), max_size=3
    ),
)
numbers = st.integers(0, 999_999).map(lambda number: number / 1000)
samples = st.builds(
    Sample,
    end_unix=st.integers(10**12, 2 * 10**12).map(lambda number: number / 1000),
    seconds=seconds,
    time=splits,
    energy_joules=st.none() | numbers,
    signals=st.dictionaries(st.sampled_from(SIGNALS), numbers, max_size=4),
)
gpus = st.builds(
    Gpu,
    host=st.text(max_size=8),
    index=st.integers(0, 15),
    uuid=st.text(max_size=8),
    power_limit_watts=st.none() | numbers,
    workloads=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    samples=st.lists(samples, min_size=1, max_size=2).map(tuple),
)
baselines = st.builds(
    Baseline,
    name=st.text(max_size=8),
    source=st.text(max_size=8),
    saved_unix=st.integers(0, 10**12).map(lambda number: number / 1000),
    version=st.text(max_size=8),
    gpus=st.lists(gpus, min_size=1, max_size=2).map(tuple),
    note=st.text(max_size=20),
    progress=st.lists(
        st.builds(
            Progress, st.text(max_size=5), st.lists(numbers, min_size=1, max_size=3).map(tuple), st.booleans()
        ),
        max_size=2,
    ).map(tuple),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(baselines)
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, baseline: Baseline
) -> None:
    """Any baseline survives its file, whatever its names are."""
    path = tmp_path_factory.mktemp("kept") / "x.json"
    kept.save(baseline, path)
    assert kept.load(path) == baseline


def test_the_file_is_readable() -> None:
    """Indented, each column of samples in one line, times also in words."""
    text = kept.text(small(note="v1"))
    assert '\n        "useful": [3.0,3.5,3.25],\n' in text
    assert '"start": "2023-11-14T22:00:00+00:00"' in text
    assert max(map(len, text.splitlines())) < 120


def test_schema(golden: Callable[[str, str], None]) -> None:
    """The schema of the file: a change of it is a change of ``gpuwhy-baseline/1``."""
    golden("baseline/schema.json", json.dumps(msgspec.json.schema(kept.File), indent=2) + "\n")


def test_the_file_is_of_the_schema() -> None:
    """Nothing is in it that the schema does not have."""
    assert json.loads(kept.text(small())).keys() == set(kept.File.__struct_fields__)
    (row,) = json.loads(kept.text(small()))["gpus"]
    assert row.keys() == set(kept.Row.__struct_fields__)
    assert row["samples"].keys() == set(kept.Columns.__struct_fields__)


def change(text: str, **changes: Any) -> str:
    document = json.loads(text)
    for key, value in changes.items():
        at = document
        *path, last = key.split("__")
        for name in path:
            at = at[int(name) if name.isdigit() else name]
        at[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no baseline, or is damaged"),
        ("{}", "no baseline, or is damaged"),
        ("[1]", "no baseline, or is damaged"),
        ("\xff", "no baseline, or is damaged"),
        (change(kept.text(small()), schema="gpuwhy-baseline/9"), "gpuwhy-baseline/9"),
        (change(kept.text(small()), gpus=[]), "no GPU"),
        (change(kept.text(small()), gpus__0__samples__useful=[1.0]), "not of one length"),
        (change(kept.text(small()), gpus__0__samples__end_unix=[]), "not of one length"),
        (change(kept.text(small()), gpus__0__samples__useful=[1.0, -1.0, 1.0]), "below 0"),
        (kept.text(small())[:-30], "no baseline, or is damaged"),
    ],
)
def test_what_is_no_baseline(tmp_path: Path, text: str, words: str) -> None:
    """A file that was cut, changed by hand, or is something else is named, and never half believed."""
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1" if text == "\xff" else "utf-8"))
    with pytest.raises(BaselineError, match=words) as raised:
        kept.load(path)
    assert str(path) in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(BaselineError, match="cannot be read: No such file"):
        kept.load(tmp_path / "x.json")


def test_names(tmp_path: Path) -> None:
    """They are found by name; one that is not there lists the known ones, with the nearest."""
    folder = environ(tmp_path)
    assert kept.listed(STORE, folder) == {} or tmp_path not in kept.listed(STORE, folder).values()
    for name in ("first", "second"):
        kept.save(small(name=name), kept.new_path(name, STORE, folder, replace=False))
    assert {"first", "second"} <= kept.listed(STORE, folder).keys()
    assert kept.path_of("first", STORE, folder) == tmp_path / "baselines" / "first.json"
    with pytest.raises(BaselineError, match=r"no baseline 'frist'; did you mean first\? .*first, second"):
        kept.path_of("frist", STORE, folder)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "a\\b", ".hidden", "a b", "x" * 65, "a\n", "-x", "\u00e9"]
)
def test_what_is_no_name(tmp_path: Path, name: str) -> None:
    """Nothing that leads to another folder or hides; the message says what a name is."""
    with pytest.raises(AskedError, match="is no name of a baseline"):
        kept.path_of(name, STORE, environ(tmp_path))
    with pytest.raises(AskedError, match="--file"):
        kept.new_path(name, STORE, environ(tmp_path), replace=True)


def test_the_first_is_the_one_to_keep(tmp_path: Path) -> None:
    """A name that is taken is not written over unless that is asked for."""
    folder = environ(tmp_path)
    kept.save(small(), kept.new_path("first", STORE, folder, replace=False))
    with pytest.raises(BaselineError, match="--replace"):
        kept.new_path("first", STORE, folder, replace=False)
    assert kept.new_path("first", STORE, folder, replace=True) == kept.path_of("first", STORE, folder)


def test_a_store_that_is_named_has_its_baselines_beside_it(tmp_path: Path) -> None:
    """``store.path`` moves them along."""
    options = StoreConfig(path=str(tmp_path / "own" / "history.db"))
    path = kept.new_path("first", options, {}, replace=False)
    assert path == tmp_path / "own" / "baselines" / "first.json"


def test_a_file_becomes_whole_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails on the way leaves the file of before, and nothing beside it."""
    path = tmp_path / "first.json"
    kept.save(small(), path)
    first = path.stat().st_ino
    kept.save(small(), path)
    assert path.stat().st_ino != first  # another file took its place
    before = path.read_bytes()
    monkeypatch.setattr(
        kept.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        kept.save(small(note="other"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_quarter_of_an_hour_is_small() -> None:
    """8 GPUs, 15 minutes, 5 s each: under a MiB."""
    baseline = made.baseline(
        *(made.gpu([0.5 + at / 1000 for at in range(180)], index=number) for number in range(8))
    )
    assert len(kept.text(baseline)) < 1 << 20
