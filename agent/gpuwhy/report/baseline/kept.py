"""Baselines in files: one JSON file each, ``gpuwhy-baseline/1``, in the folder of the local history.

Samples are kept by column, a line each, so that people can read the file and it stays small. null = not read.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from gpuwhy.config import StoreConfig
from gpuwhy.report.baseline.types import SCHEMA, AskedError, Baseline, BaselineError, Gpu, Progress, Sample
from gpuwhy.store import StoreError, place
from gpuwhy.verdict.types import CauseKey, TimeSplit

FOLDER = "baselines"
MOST_BYTES = 256 << 20
PLAIN = ("observed", "measured", "useful", "headroom", "free")

Column = list[float]
Gaps = list["float | None"]


class Columns(msgspec.Struct, kw_only=True):
    """One GPU's samples, a list for each quantity, all of one length. Seconds, unless the name says otherwise."""

    end_unix: Column
    seconds: Column
    observed: Column
    measured: Column
    useful: Column
    headroom: Column
    free: Column
    lost: dict[str, Column]
    verdict: dict[str, Column]
    energy_joules: Gaps
    signals: dict[str, Gaps]


class Row(msgspec.Struct, kw_only=True):
    """One GPU or MIG row."""

    host: str
    index: int
    uuid: str
    mig: str
    model: str
    driver: str
    profile: str
    share_ratio: float
    power_limit_watts: float | None
    sm_clock_max_hertz: float | None
    sources: list[str]
    workloads: list[str]
    warm_up_s: float
    samples: Columns


class Pace(msgspec.Struct, kw_only=True):
    """A progress figure."""

    name: str
    values: Column
    higher_is_better: bool


class File(msgspec.Struct, kw_only=True):
    """A whole file. ``start`` and ``end`` are for people; samples carry their times."""

    schema: str
    name: str
    note: str
    saved: str
    saved_unix: float
    start: str
    end: str
    step_s: float
    source: str
    version: str
    workload: str
    progress: list[Pace]
    gpus: list[Row]


def path_of(name: str, options: StoreConfig, environ: Mapping[str, str]) -> Path:
    """The file of a baseline that is kept.

    Raises:
        AskedError: the name is none.
        BaselineError: there is none of that name; the message lists those that there are.

    """
    check_name(name)
    known = listed(options, environ)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    there = ", ".join(sorted(known)) or "none yet: gpuwhy baseline save NAME"
    raise BaselineError(f"there is no baseline {name!r}{hint} (there are: {there})")


def new_path(name: str, options: StoreConfig, environ: Mapping[str, str], *, replace: bool) -> Path:
    """Where a new baseline goes.

    Raises:
        AskedError: the name is none.
        BaselineError: there is one of that name and it is not to be replaced, or no folder to write to.

    """
    check_name(name)
    there = listed(options, environ).get(name)
    if there is not None:
        check_free(there, name, replace=replace)
        return there
    try:
        folder = place.make(options, environ, root=os.geteuid() == 0).parent
    except StoreError as error:
        raise BaselineError(f"{error}; or give --file PATH") from error
    return folder / FOLDER / f"{name}.json"


def check_free(path: Path, name: str, *, replace: bool) -> None:
    """Raises BaselineError for a file that is there and not to be replaced."""
    if path.exists() and not replace:
        raise BaselineError(
            f"{name} is there already ({path}): the first baseline is the one to keep; take another name, or "
            "replace it with --replace"
        )


def check_name(name: str) -> None:
    """Raises AskedError for what is no name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise AskedError(
            f"{name[:80]!r} is no name of a baseline: up to 64 letters, digits, '.', '_' and '-', beginning with a "
            "letter or digit; a path goes to --file"
        )


def listed(options: StoreConfig, environ: Mapping[str, str]) -> dict[str, Path]:
    """The baselines that are kept, by name, from every folder that this user's agent or this host's may use."""
    found: dict[str, Path] = {}
    for folder in place.folders(options, environ):
        try:
            files = sorted((folder / FOLDER).glob("*.json"))
        except OSError:
            continue
        for file in files:
            found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def load(path: Path) -> Baseline:
    """A baseline from its file.

    Raises:
        BaselineError: the file cannot be read, or is none.

    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BaselineError(f"{path} has more than {MOST_BYTES >> 20} MiB: it is no baseline")
        return _baseline(msgspec.json.decode(path.read_bytes(), type=File), path)
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path} is no baseline, or is damaged: {error}") from error


def save(baseline: Baseline, path: Path) -> None:
    """Writes the file; it becomes whole at once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text(baseline))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def text(baseline: Baseline) -> str:
    """The file's text: indented, but a column in one line."""
    return _lines(msgspec.to_builtins(_file(baseline)), "") + "\n"


def _lines(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        parts = (
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_lines(each, inner)}"
            for key, each in value.items()
        )
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(inner + _lines(each, inner) for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _file(baseline: Baseline) -> File:
    return File(
        schema=SCHEMA,
        name=baseline.name,
        note=baseline.note,
        saved=_iso(baseline.saved_unix),
        saved_unix=round(baseline.saved_unix, 3),
        start=_iso(baseline.start_unix),
        end=_iso(baseline.end_unix),
        step_s=round(baseline.step_s, 3),
        source=baseline.source,
        version=baseline.version,
        workload=baseline.workload,
        progress=[
            Pace(name=each.name, values=list(each.values), higher_is_better=each.higher_is_better)
            for each in baseline.progress
        ],
        gpus=[_row(gpu) for gpu in baseline.gpus],
    )


def _row(gpu: Gpu) -> Row:
    samples = gpu.samples
    return Row(
        host=gpu.host,
        index=gpu.index,
        uuid=gpu.uuid,
        mig=gpu.mig,
        model=gpu.model,
        driver=gpu.driver,
        profile=gpu.profile,
        share_ratio=gpu.share_ratio,
        power_limit_watts=gpu.power_limit_watts,
        sm_clock_max_hertz=gpu.sm_clock_max_hertz,
        sources=list(gpu.sources),
        workloads=list(gpu.workloads),
        warm_up_s=round(gpu.warm_up_s, 3),
        samples=Columns(
            end_unix=[round(sample.end_unix, 3) for sample in samples],
            seconds=[round(sample.seconds, 6) for sample in samples],
            **{name: [round(getattr(sample.time, name), 6) for sample in samples] for name in PLAIN},
            lost=_by_cause([sample.time.lost for sample in samples]),
            verdict=_by_cause([sample.time.verdict for sample in samples]),
            energy_joules=[_short(sample.energy_joules) for sample in samples],
            signals={
                name: [_short(sample.signals.get(name)) for sample in samples]
                for name in dict.fromkeys(name for sample in samples for name in sample.signals)
            },
        ),
    )


def _by_cause(splits: Sequence[Mapping[CauseKey, float]]) -> dict[str, Column]:
    keys = dict.fromkeys(key for split in splits for key, seconds in split.items() if seconds)
    return {"/".join(key): [round(split.get(key, 0.0), 6) for split in splits] for key in sorted(keys)}


def _short(number: float | None) -> float | None:
    """To six digits: no sensor has more."""
    return None if number is None else float(f"{number:.6g}")


def _baseline(file: File, path: Path) -> Baseline:
    if file.schema != SCHEMA:
        raise BaselineError(
            f"{path} is of schema {file.schema[:40]!r}, this gpuwhy reads {SCHEMA}: read it with the gpuwhy that "
            "wrote it"
        )
    gpus = tuple(_gpu(row, path) for row in file.gpus)
    if not gpus:
        raise BaselineError(f"{path} is damaged: it has no GPU")
    progress = tuple(
        Progress(each.name, tuple(each.values), each.higher_is_better)
        for each in file.progress
        if each.values
    )
    return Baseline(
        name=file.name,
        source=file.source,
        saved_unix=file.saved_unix,
        version=file.version,
        gpus=gpus,
        note=file.note,
        workload=file.workload,
        progress=progress,
    )


def _gpu(row: Row, path: Path) -> Gpu:
    columns = row.samples
    many: list[Sequence[float | None]] = [
        *columns.lost.values(),
        *columns.verdict.values(),
        *columns.signals.values(),
        columns.energy_joules,
    ]
    many += [getattr(columns, name) for name in ("seconds", *PLAIN)]
    if not columns.end_unix or any(len(column) != len(columns.end_unix) for column in many):
        raise BaselineError(f"{path} is damaged: the columns of GPU {row.index} are not of one length")
    given = (number for column in (*many, columns.end_unix) for number in column if number is not None)
    if not all(math.isfinite(number) and number >= 0 for number in given):
        raise BaselineError(f"{path} is damaged: a number of GPU {row.index} is below 0 or none")
    facts = {name: getattr(row, name) for name in Row.__struct_fields__ if name != "samples"}
    facts |= {"sources": tuple(row.sources), "workloads": tuple(row.workloads)}
    return Gpu(**facts, samples=tuple(_samples(columns)))


def _samples(columns: Columns) -> Iterable[Sample]:
    lost, verdict = (
        {_key(name): column for name, column in each.items()} for each in (columns.lost, columns.verdict)
    )
    for at, end in enumerate(columns.end_unix):
        time = TimeSplit(
            **{name: getattr(columns, name)[at] for name in PLAIN},
            lost={key: column[at] for key, column in lost.items() if column[at]},
            verdict={key: column[at] for key, column in verdict.items() if column[at]},
        )
        signals = {
            name: found for name, column in columns.signals.items() if (found := column[at]) is not None
        }
        yield Sample(end, columns.seconds[at], time, columns.energy_joules[at], signals)


def _key(name: str) -> CauseKey:
    verdict, _, cause = name.partition("/")
    return (verdict, cause)


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="seconds")
