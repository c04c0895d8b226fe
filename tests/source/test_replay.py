"""Recordings play as they were recorded, whatever they hold, and faults are named."""

from __future__ import annotations

import gzip
import json
import math
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Normaliser
from gpuwhy.source import Reading, SourceError
from gpuwhy.source.replay import LONGEST_LINE, ReplaySource, find, load, paths

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
HEADER: dict[str, Any] = {
    "format": "gpuwhy-recording/1",
    "workload": "test",
    "period_s": 1.0,
    "driver": "580.1",
    "host": {"cpus": 4, "clock_ticks_per_s": 100},
    "gpus": [{"index": 0, "uuid": "GPU-a", "name": "NVIDIA H200"}],
}

Write = Callable[..., Path]


def row(mono: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"mono": mono, "gpus": [{"index": 0, "gpu_util_pct": 50}], **more}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(row, ...)`` writes a recording; a row may be text."""

    def write(*rows: Any, header: Any = HEADER, name: str = "recording.jsonl", end: str = "\n") -> Path:
        lines = [line if isinstance(line, str) else json.dumps(line) for line in (header, *rows)]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = ("\n".join(lines) + end).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


def play(path: Path) -> list[Reading]:
    return list(load(path).readings())


def changed(**more: Any) -> dict[str, Any]:
    return {**HEADER, **more}


# --- the header ---------------------------------------------------------------------------------------


def test_header_is_read_in_si_units(write: Write) -> None:
    """What the header says of a GPU arrives in SI units."""
    gpu = {
        "index": 3,
        "uuid": "GPU-x",
        "name": "NVIDIA H200",
        "mig": 0,
        "share_ratio": 0.5,
        "pci_bus_id": "00000000:00:06.0",
        "compute_capability": "9.0",
        "profile": "1g.18gb",
        "power_limit_w": 650.0,
        "default_power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "max_mem_clock_mhz": 3201,
        "memory_total_bytes": 150754820096,
        "pcie_gen": 5,
        "pcie_width": 16,
    }
    recording = load(write(header=changed(gpus=[gpu])))
    (facts,) = recording.gpus
    assert (facts.index, facts.uuid, facts.mig, facts.driver, facts.profile) == (
        3,
        "GPU-x",
        "0",
        "580.1",
        "1g.18gb",
    )
    assert (facts.power_limit_watts, facts.default_power_limit_watts) == (650.0, 700.0)
    assert (facts.sm_clock_max_hertz, facts.memory_clock_max_hertz) == (1.98e9, 3.201e9)
    assert (facts.memory_total_bytes, facts.pcie_generation, facts.pcie_width) == (150754820096.0, 5, 16)
    assert facts.share_ratio == 0.5
    assert (recording.period_s, recording.cpus, recording.ticks_per_s) == (1.0, 4, 100.0)


def test_header_that_says_little_is_enough(write: Write) -> None:
    """What a header leaves out, or holds nonsense for, was not read; GPUs get a name to go by."""
    nonsense = {"power_limit_w": -1, "max_sm_clock_mhz": "fast", "memory_total_bytes": math.nan, "index": -3}
    path = write(
        header={
            "format": "gpuwhy-recording/1",
            "period_s": 1,
            "gpus": [{}, nonsense],
            "host": {"cpus": "many"},
        }
    )
    recording = load(path)
    assert [(facts.index, facts.uuid) for facts in recording.gpus] == [
        (0, "GPU-unnamed-0"),
        (1, "GPU-unnamed-1"),
    ]
    second = recording.gpus[1]
    assert (second.power_limit_watts, second.sm_clock_max_hertz, second.memory_total_bytes) == (
        None,
        None,
        None,
    )
    assert (recording.cpus, recording.ticks_per_s) == (None, 100.0)


@pytest.mark.parametrize(
    "header, key",
    [
        (changed(format="gpuwhy-recording/2"), "format is 'gpuwhy-recording/2'"),
        ({}, "format is None"),
        (changed(period_s=0), "period_s is 0"),
        (changed(period_s=-0.25), "period_s is -0.25"),
        (changed(period_s=None), "period_s is None"),
        (changed(period_s="1"), "period_s is '1'"),
        (changed(period_s=math.nan), "period_s is nan"),
        (changed(period_s=1e308), "period_s is 1e+308"),
        (changed(period_s=10**400), "period_s is 1000"),
        (changed(period_s=1e-300), "period_s is 1e-300"),
        (changed(period_s=True), "period_s is True"),
        (changed(gpus=[]), "gpus is a list of 0"),
        (changed(gpus=None), "gpus is None"),
        (changed(gpus={"index": 0}), "gpus is an object of 1"),
        (changed(gpus=[{"uuid": "GPU-a"}, None]), "gpus[1] is None"),
        (changed(gpus=[{"uuid": "GPU-a"}, {"uuid": "GPU-a"}]), "gpus[1].uuid is that of gpus[0]"),
        (
            changed(gpus=[{"uuid": "GPU-a", "index": 1}, {"uuid": "GPU-b"}]),
            "gpus[1].index is that of gpus[0]",
        ),
        ([], "expected an object, found list"),
        ("not JSON", "not JSON"),
        ("", "expected an object, found"),
    ],
)
def test_fault_in_the_header_is_named(write: Write, header: Any, key: str) -> None:
    """A header that is none names the file, its line, the key and what to do."""
    path = write(row(), header=json.dumps(header) if header == "" else header)
    with pytest.raises(SourceError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: line 1: ")
    assert key in message
    assert "record again" in message
    assert len(message) < len(str(path)) + 250


def test_slices_of_one_gpu_are_gpus_of_their_own(write: Write) -> None:
    """MIG slices share index and UUID, and are told apart by their instance."""
    slices = [{"index": 0, "uuid": "GPU-a", "mig": "1"}, {"index": 0, "uuid": "GPU-a", "mig": 2}]
    values = [{"index": 0, "mig": 2, "gpu_util_pct": 2}, {"index": 0, "mig": "1", "gpu_util_pct": 1}]
    (reading,) = play(write(row(gpus=values), header=changed(gpus=slices)))
    assert [gpu.parts[0].values["gpu_util_pct"] for gpu in reading.gpus] == [1, 2]


# --- files --------------------------------------------------------------------------------------------


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A path that cannot be played is named, and nothing hangs on a pipe."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path, why in (
        (tmp_path / "none.jsonl", "No such file"),
        (tmp_path, "not a file"),
        (pipe, "not a file"),
        (Path("nul\0byte"), "null byte"),
        (empty, "empty; expected a gpuwhy-recording/1"),
    ):
        with pytest.raises(SourceError, match=why) as caught:
            load(path)
        assert str(path) in str(caught.value)


def test_packed_and_plain_play_alike(write: Write) -> None:
    """Whether a file is packed is seen from its content, not its name."""
    plain = write(row(1.0), row(2.0), name="a.jsonl")
    packed = write(row(1.0), row(2.0), name="b.jsonl.gz")
    renamed = packed.rename(packed.with_name("c.jsonl"))
    assert play(plain) == play(renamed)


def test_blank_lines_are_no_rows(write: Write) -> None:
    """Blank lines, and carriage returns, are passed over."""
    path = write("", row(1.0), " \r", row(2.0), "")
    assert [reading.end_s for reading in play(path)] == [1.0, 2.0]


def test_killed_recorder_costs_the_last_row_only(write: Write) -> None:
    """Wherever a packed file was cut off, what was whole before it plays."""
    path = write(*(row(float(at), note=os.urandom(30).hex()) for at in range(1, 40)), name="a.jsonl.gz")
    data = path.read_bytes()
    played = []
    for size in range(0, len(data), 37):
        path.write_bytes(data[:size])
        try:
            played.append(len(play(path)))
        except SourceError as error:
            assert "empty" in str(error) or "line 1" in str(error)  # noqa: PT017  the header itself was cut
            played.append(-1)
    assert played == sorted(played)
    assert played[0] == -1
    assert played[-1] >= 36
    assert len(set(played)) > 20


def test_plain_file_cut_in_mid_write(write: Write) -> None:
    """Half a row at the end is left out; a whole one without its newline counts."""
    path = write(row(1.0), row(2.0), end="")
    assert len(play(path)) == 2
    path.write_bytes(path.read_bytes()[:-3])
    assert len(play(path)) == 1
    assert play(write(end='\n{"mono"')) == []
    path = write(row(1.0))
    with path.open("ab") as file:
        file.write(b"\0" * 512)  # what a crashed host's file system leaves
    assert len(play(path)) == 1


def test_half_a_row_with_rows_after_it_is_a_fault(write: Write) -> None:
    """Only the end of a file may be half a row."""
    path = write(row(1.0), '{"mono": 2', row(3.0))
    with pytest.raises(SourceError, match=r"line 3: not JSON .*; cut the line out, or record again"):
        play(path)


def test_damaged_file_is_no_shorter_recording(write: Write) -> None:
    """A flipped byte in a packed file is a fault that names the line, not a quiet end."""
    path = write(*(row(float(at), note=os.urandom(30).hex()) for at in range(1, 40)), name="a.jsonl.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"line \d+: (the file is damaged from here on|not JSON|expected)"):
        play(path)


@pytest.mark.parametrize(
    "bad, why",
    [
        ("[1, 2]", "expected an object, found list"),
        ("12", "expected an object, found int"),
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"mono": 1' + "0" * 5000 + "}", "not JSON"),
        ({"gpus": []}, "neither 'mono' nor 't' holds a time in seconds"),
        ({"mono": "1.0", "t": None}, "neither 'mono' nor 't'"),
        ({"mono": math.nan, "t": math.inf}, "neither 'mono' nor 't'"),
        ({"mono": 1e308}, "neither 'mono' nor 't'"),
        ({"mono": 10**400}, "neither 'mono' nor 't'"),
        ({"mono": -1.0, "t": True}, "neither 'mono' nor 't'"),
    ],
)
def test_fault_in_a_row_is_named(write: Write, bad: Any, why: str) -> None:
    """A row that is none names the file, the line and what to do; the rows before it play."""
    path = write(row(1.0), bad, row(3.0))
    readings = load(path).readings()
    assert next(readings).end_s == 1.0
    with pytest.raises(SourceError) as caught:
        next(readings)
    message = str(caught.value)
    assert message.startswith(f"{path}: line 3: ")
    assert why in message
    assert message.endswith("; cut the line out, or record again")


def test_endless_line_is_refused_unread(tmp_path: Path) -> None:
    """A line that no row can be as long as is refused without reading it into memory."""
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(HEADER).encode() + b"\n")
        for _ in range(5):
            file.write(bytes(LONGEST_LINE))
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="line 2: longer than"):
            play(path)
        assert tracemalloc.get_traced_memory()[1] < 3.5 * LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_long_recording_is_not_held_in_memory(tmp_path: Path) -> None:
    """Rows are read as they are played, so that the length of a recording costs no memory."""
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(HEADER).encode() + b"\n")
        for at in range(600):
            file.write(json.dumps(row(float(at), note="x" * 100_000)).encode() + b"\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in load(path).readings()) == 600
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()


def test_endless_loop_is_played_lazily(write: Write) -> None:
    """A looped replay hands on rows one by one."""
    source = ReplaySource([write(row(1.0), row(2.0))], loop=True)
    assert len(list(islice(source.schedule(), 1001))) == 1001


# --- values -------------------------------------------------------------------------------------------


def test_what_python_writes_and_json_is_not_plays(write: Write) -> None:
    """NaN and Infinity, as Python's own recorder writes them, reach the sample stage, which rejects them."""
    values = {
        "index": 0,
        "power_mw": math.nan,
        "sm_clock_mhz": math.inf,
        "gpu_util_pct": 7,
        "energy_mj": -math.inf,
    }
    path = write(row(1.0, gpus=[values]), row(2.0))
    assert "NaN" in path.read_text()
    assert "Infinity" in path.read_text()
    first, second = play(path)
    read = first.gpus[0].parts[0].values
    assert math.isnan(read["power_mw"])
    assert math.isinf(read["sm_clock_mhz"])
    assert read["gpu_util_pct"] == 7
    assert second.gpus[0].up


def test_hostile_values_play(write: Write) -> None:
    """Numbers no float can hold and strings of a megabyte are values like others."""
    big = "x" * 2**20
    values = {"index": 0, "power_mw": 10**400, "sm_clock_mhz": 1e308, "pstate": big, "deep": [[[[[]]]]]}
    (reading,) = play(write(row(gpus=[values], note=big), header=changed(workload=big)))
    assert reading.gpus[0].parts[0].values["power_mw"] == 10**400
    assert len(load(write(header=changed(workload=big))).workload) <= 256


def test_every_string_can_be_printed(write: Write) -> None:
    """Bytes that are no UTF-8, and half characters that JSON can escape, come out as the replacement sign."""
    odd = "py\udc80\ud800thon"
    header = changed(workload=odd, gpus=[{"uuid": odd, "name": odd, "pci_bus_id": odd, "mig": odd}])
    process = {"pid": 5, "comm": odd, "cgroup": odd, "state": odd}
    path = write(row(procs=[process], gpus=[{"index": 0, "mig": odd, "gpu_util_pct": 1}]), header=header)
    path.write_bytes(path.read_bytes() + b'{"mono": 2, "procs": [{"pid": 6, "comm": "\xff\xed\xa0\x80"}]}\n')
    recording = load(path)
    readings = list(recording.readings())
    assert recording.workload == "py\ufffd\ufffdthon"
    assert readings[0].gpus[0].up
    msgspec.json.encode([recording.gpus, readings])
    assert "\ufffd" in readings[1].host.processes[0]["comm"]


def test_null_is_not_read_and_not_none(write: Write) -> None:
    """A list that is null was not read; one that is empty was, and holds nothing."""
    gpus = [{"index": 0, "gpm": None, "procs": None}, {"index": 1, "gpm": {"sm_util": 5.0}, "procs": []}]
    header = changed(gpus=[{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}])
    unread, empty, plain = play(
        write(
            row(1.0, gpus=gpus, host=None, procs=None, cgroups=None),
            row(2.0, gpus=gpus, host={}, procs=[]),
            row(3.0, gpus=gpus, host={"procs_blocked": 1}),
            header=header,
        )
    )
    assert [part.source for part in unread.gpus[0].parts] == ["nvml"]
    assert [part.source for part in unread.gpus[1].parts] == ["nvml-gpm", "nvml"]
    assert unread.gpus[0].owners is None
    assert unread.gpus[1].owners == ()
    assert unread.host is None
    assert (empty.host.values, empty.host.processes) == (None, ())
    assert (plain.host.values["procs_blocked"], plain.host.processes) == (1, None)
    assert (plain.host.values["cpus"], plain.host.values["clock_ticks_per_s"]) == (4, 100.0)


def test_owners_are_the_pids_that_can_be(write: Write) -> None:
    """Of the processes on a GPU, those whose pid is one are its owners."""
    pids = [
        {"pid": 7},
        {"pid": 0},
        {"pid": -1},
        {"pid": "8"},
        {"pid": None},
        {},
        None,
        {"pid": 10**400},
        {"pid": 9.0},
    ]
    (reading,) = play(write(row(gpus=[{"index": 0, "procs": pids}])))
    assert reading.gpus[0].owners == (7, 9)


def test_gpu_missing_from_a_row_is_down_for_it(write: Write) -> None:
    """A GPU that a row does not hold did not answer then."""
    header = changed(gpus=[{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}])
    both = [{"index": 0}, {"index": 1}]
    readings = play(
        write(
            row(1.0, gpus=both),
            row(2.0, gpus=both[1:]),
            row(3.0, gpus=None),
            row(4.0, gpus=both),
            header=header,
        )
    )
    assert [[gpu.up for gpu in reading.gpus] for reading in readings] == [
        [True, True],
        [False, True],
        [False, False],
        [True, True],
    ]


def test_gpus_without_an_index_go_by_position(write: Write) -> None:
    """An entry that is none keeps its place, so that the others stay whose they are."""
    header = changed(gpus=[{"uuid": "GPU-a"}, {"uuid": "GPU-b"}])
    (reading,) = play(write(row(gpus=[None, {"gpu_util_pct": 9}]), header=header))
    assert [gpu.up for gpu in reading.gpus] == [False, True]
    assert reading.gpus[1].parts[0].values["gpu_util_pct"] == 9


def test_age_counts_from_boot(write: Write) -> None:
    """A process's age is known where its start and the clock that counts from boot are."""
    process = {"pid": 7, "start_ticks": 2000}
    path = write(
        row(25.0, procs=[process, {"pid": 8}]),
        {"t": 1.8e9, "procs": [process]},
        row(10.0, procs=[process]),
    )
    aged, unknown, early = play(path)
    assert aged.host.processes[0]["age_s"] == 5.0
    assert "age_s" not in aged.host.processes[1]
    assert "age_s" not in unknown.host.processes[0]
    assert early.host.processes[0]["age_s"] == 0.0


# --- time ---------------------------------------------------------------------------------------------


def test_reading_speaks_for_the_time_since_the_row_before(write: Write) -> None:
    """Spans come from the recorded clock; the first row is a restart and speaks for one period."""
    readings = play(write(row(10.0, t=1.8e9), row(11.5), row(11.75, t=1.8e9 + 2)))
    assert [reading.span_s for reading in readings] == [1.0, 1.5, 0.25]
    assert [reading.end_s for reading in readings] == [10.0, 11.5, 11.75]
    assert [reading.restart for reading in readings] == [True, False, False]
    assert [reading.unix_s for reading in readings] == [1.8e9, 11.5, 1.8e9 + 2]


def test_clocks_are_never_mixed(write: Write) -> None:
    """A row that lacks one clock is timed by the other, not by the difference of the two."""
    unix = 1_796_032_342.0
    readings = play(
        write(
            {"mono": 258.0, "t": unix},
            {"t": unix + 1},
            {"mono": 260.5, "t": unix + 2.5},
            {"mono": 261.5},
            {"mono": 262.5, "t": unix + 4.5},
        )
    )
    assert [reading.span_s for reading in readings] == [1.0, 1.0, 1.5, 1.0, 1.0]
    assert [reading.end_s for reading in readings] == [258.0, 259.0, 260.5, 261.5, 262.5]
    assert [reading.restart for reading in readings] == [True, False, False, False, False]


def test_rows_with_nothing_in_common_are_a_restart(write: Write) -> None:
    """Where two rows share no clock, the time between them is not known."""
    first, second = play(write({"mono": 258.0}, {"t": 1.8e9}))
    assert (second.span_s, second.restart, second.end_s) == (1.0, True, 1.8e9)
    assert not math.isclose(second.end_s, first.end_s)


def test_clock_that_went_back_is_a_restart(write: Write) -> None:
    """A host that started again goes on with one period, whose counters are not compared."""
    readings = play(write(row(1000.0), row(1001.0), row(5.0), row(6.0)))
    assert [reading.restart for reading in readings] == [True, False, True, False]
    assert [reading.span_s for reading in readings] == [1.0, 1.0, 1.0, 1.0]
    assert [reading.end_s for reading in readings] == [1000.0, 1001.0, 5.0, 6.0]


def test_clock_that_stands_adds_no_time(write: Write) -> None:
    """A row that does not move time on speaks for none, and is rejected as stale."""
    readings = play(write(row(1.0), row(1.0), row(2.0)))
    normaliser = Normaliser()
    assert [len(normaliser.samples(reading)) for reading in readings] == [1, 0, 1]
    assert normaliser.rejected == {("reading", "stale"): 1}


def test_clock_that_leaps_years_is_broken(write: Write) -> None:
    """A jump longer than a recording can pause is no gap of thousands of years."""
    readings = play(write(row(1.0), row(4e9), row(2.0)))
    assert [(reading.span_s, reading.restart) for reading in readings] == [(1.0, True)] * 3


def test_gap_of_a_day_is_a_gap(write: Write) -> None:
    """A pause is kept at its length, and its reading covers two periods of it."""
    _, second = play(write(row(1.0), row(86_401.0)))
    assert (second.span_s, second.restart) == (86_400.0, False)
    (sample,) = Normaliser().samples(second)
    assert sample.span_s == 2.0


# --- folders, several paths, speed, loop ----------------------------------------------------------------


def test_folder_plays_in_name_order(write: Write, tmp_path: Path) -> None:
    """The recordings of a folder follow each other by name; what is none is left alone."""
    write(row(30.0), row(31.0), name="folder/b.jsonl")
    write(row(10.0), name="folder/c.jsonl.gz")
    write(row(20.0), name="folder/a.jsonl")
    write(row(99.0), name="folder/.hidden.jsonl")
    (tmp_path / "folder" / "README.md").write_text("none")
    (tmp_path / "folder" / "d.jsonl").mkdir()
    assert [path.name for path in find(tmp_path / "folder")] == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
    played = [reading for _, reading in ReplaySource([tmp_path / "folder"]).schedule()]
    assert [reading.unix_s for reading in played] == [20.0, 30.0, 31.0, 10.0]
    assert [reading.restart for reading in played] == [True, True, False, True]
    assert {reading.origin for reading in played} == {0}


def test_folder_without_recordings_is_named(tmp_path: Path) -> None:
    """An empty folder, and no path at all, are refused."""
    with pytest.raises(SourceError, match=r"no recording \(\*\.jsonl\.gz or \*\.jsonl\)"):
        ReplaySource([tmp_path])
    with pytest.raises(SourceError, match="nothing to replay"):
        ReplaySource([])
    with pytest.raises(SourceError, match="null byte"):
        load(find(Path("nul\0byte"))[0])


def test_bundled_recordings_are_those_that_are_installed(tmp_path: Path) -> None:
    """``bundled`` stands for the recordings in the package, side by side; other names for themselves."""
    bundled = paths(["bundled", str(tmp_path)])
    assert bundled[-1] == tmp_path
    assert len(bundled) > 3
    assert all(load(path).gpus for path in bundled[:-1])


def test_paths_side_by_side_are_hosts_of_their_own(write: Write) -> None:
    """Each path is a host with GPUs of its own, however alike their names are."""
    header = changed(gpus=[{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}])
    every = [{"index": 0}, {"index": 1}]
    first = write(row(1.0, gpus=every), row(2.0, gpus=every), header=header, name="1.jsonl")
    second = write(row(500.0), row(500.5), row(501.0), header=changed(period_s=0.5), name="2.jsonl")
    readings = [reading for _, reading in ReplaySource([first, second, first]).schedule()]
    names: dict[int, set[tuple[int, str]]] = {}
    for reading in readings:
        names.setdefault(reading.origin, set()).update(
            (gpu.facts.index, gpu.facts.uuid) for gpu in reading.gpus
        )
    assert [len(names[origin]) for origin in (0, 1, 2)] == [2, 1, 2]
    everyone = [name for origin in names for name in names[origin]]
    assert sorted(index for index, _ in everyone) == [0, 1, 2, 3, 4]
    assert len({uuid for _, uuid in everyone}) == 5
    assert {"GPU-a", "GPU-b"} == {uuid for _, uuid in names[0]}
    assert [reading.end_s for reading in readings] == sorted(reading.end_s for reading in readings)


def test_every_row_is_used_and_restamped(write: Write) -> None:
    """Rows end one after the other on the replay's own clock, host and GPUs at the same time."""
    path = write(row(100.0, host={"procs_blocked": 0}), row(101.0), row(103.5, host={"procs_blocked": 0}))
    played = list(ReplaySource([path]).schedule())
    assert [due for due, _ in played] == [1.0, 2.0, 4.5]
    assert [reading.end_s for _, reading in played] == [1.0, 2.0, 4.5]
    assert [reading.host and reading.host.end_s for _, reading in played] == [1.0, None, 4.5]


@pytest.mark.parametrize("speed", [0.5, 10.0])
def test_speed_changes_when_rows_are_due_only(write: Write, speed: float) -> None:
    """At any speed the same readings with the same spans are handed on."""
    path = write(row(1.0), row(2.0), row(5.0))
    slow, fast = list(ReplaySource([path]).schedule()), list(ReplaySource([path], speed=speed).schedule())
    assert [reading for _, reading in slow] == [reading for _, reading in fast]
    assert [due for due, _ in fast] == [due / speed for due, _ in slow]


def test_seam_of_a_loop_is_a_restart_and_no_fault(write: Write) -> None:
    """When a replay starts again time goes on, and falling counters are no faults."""
    counting = [
        row(
            float(at),
            gpus=[{"index": 0, "energy_mj": 1e6 * at, "sw_power_cap_ns": 10**8 * at, "gpu_util_pct": 1}],
            host={
                "cpu_ticks": {"user": at, "system": at, "idle": 100 * at},
                "psi_io_some_us": at,
                "net_rx_bytes": at,
            },
            procs=[{"pid": 7, "utime": at, "stime": at}],
        )
        for at in range(1, 5)
    ]
    normaliser = Normaliser()
    ends, restarts, gains = [], [], []
    for _, reading in islice(ReplaySource([write(*counting)], loop=True).schedule(), 12):
        ends.append(reading.end_s)
        restarts.append(reading.restart)
        gains += [sample.gains.get("energy_joules") for sample in normaliser.samples(reading)]
    assert ends == [float(at) for at in range(1, 13)]
    assert restarts == [True, False, False, False] * 3
    assert gains == [None, 1000.0, 1000.0, 1000.0] * 3
    assert not normaliser.rejected


def test_loop_over_nothing_ends(write: Write) -> None:
    """Recordings without a row do not loop for ever."""
    assert list(ReplaySource([write()], loop=True).schedule()) == []


def test_every_recording_plays_every_row() -> None:
    """The labelled recordings play whole, at the times and with the GPUs that they hold."""
    files = find(RECORDINGS)
    assert len(files) > 40
    for file in files:
        lines = gzip.decompress(file.read_bytes()).splitlines()
        recording = load(file)
        readings = list(recording.readings())
        assert len(readings) == len(lines) - 1
        assert all(gpu.up for reading in readings for gpu in reading.gpus)
        assert sum(reading.restart for reading in readings) == 1
        assert all(before.end_s < after.end_s for before, after in pairwise(readings))


# --- anything at all ------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-5, 2**70),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**32 - 1, 2**64 - 1, 10**400, 1e308, -1e308, math.nan, math.inf, 1e-320]),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


def mostly(sensible: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Sensible three times out of four, so that what lies deeper is reached."""
    return st.one_of(sensible, sensible, sensible, ANYTHING)


def record(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: mostly(value) for name, value in keys.items()})


GPU = record(
    index=st.integers(0, 2),
    mig=st.sampled_from([None, "1"]),
    energy_mj=NUMBERS,
    gpu_util_pct=NUMBERS,
    event_reasons=NUMBERS,
    sw_power_cap_ns=NUMBERS,
    gpm=record(sm_util=NUMBERS, graphics_util=NUMBERS),
    procs=st.lists(record(pid=st.integers(1, 4)), max_size=3),
)
ROW = record(
    t=st.floats(0, 100),
    mono=st.floats(0, 100),
    gpus=st.lists(GPU, max_size=3),
    host=record(cpu_ticks=record(user=NUMBERS, idle=NUMBERS), psi_io_some_us=NUMBERS, net_rx_bytes=NUMBERS),
    procs=st.lists(
        record(
            pid=st.integers(1, 4), ppid=st.integers(0, 4), utime=NUMBERS, stime=NUMBERS, start_ticks=NUMBERS
        ),
        max_size=3,
    ),
    cgroups=st.dictionaries(
        st.sampled_from(["1", "2", "x", "²", "9" * 5000]),
        record(path=st.text(max_size=3), cpu_max=st.lists(ANYTHING, max_size=3), throttled_usec=NUMBERS),
        max_size=2,
    ),
)
HEADERS = record(
    format=st.just("gpuwhy-recording/1"),
    period_s=st.floats(0.01, 10),
    host=record(cpus=NUMBERS, clock_ticks_per_s=NUMBERS),
    gpus=st.lists(
        record(index=st.integers(0, 2), uuid=st.sampled_from("abc"), name=st.text(max_size=3)),
        min_size=1,
        max_size=3,
    ),
    workload=st.text(max_size=3),
)


def played_or_refused(data: bytes) -> int:
    """How many readings the bytes give; any exception but ``SourceError`` fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(data)
        count = 0
        try:
            for due, reading in islice(ReplaySource([path], loop=True).schedule(), 20):
                assert math.isfinite(due)
                assert math.isfinite(reading.span_s)
                assert reading.span_s >= 0
                count += 1
        except SourceError as error:
            assert str(path) in str(error)  # noqa: PT017
        return count


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_play_or_are_refused(data: bytes, packed: bool) -> None:
    """Whatever a file holds, packed or not, it gives readings or says what is wrong."""
    played_or_refused(gzip.compress(data) if packed else data)
    played_or_refused(json.dumps(HEADER).encode() + b"\n" + data)
    played_or_refused(b"\x1f\x8b" + data)


@settings(deadline=None, max_examples=300)
@given(mostly(HEADERS), st.lists(mostly(ROW), max_size=4))
def test_any_rows_play_or_are_refused(header: Any, rows: list[Any]) -> None:
    """Whatever header and rows hold, they give readings or say what is wrong."""
    lines = "\n".join(json.dumps(line) for line in (header, *rows))
    played_or_refused(lines.encode())


@settings(deadline=None, max_examples=300)
@given(st.lists(ROW, min_size=1, max_size=4))
def test_any_row_under_a_good_header_becomes_samples_or_nothing(rows: list[Any]) -> None:
    """Whatever a row holds, the sample stage takes or rejects it, and hands on finite numbers only."""
    header = changed(gpus=[{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_text("\n".join(json.dumps(line) for line in (header, *rows)))
        normaliser = Normaliser()
        try:
            for reading in load(path).readings():
                for sample in normaliser.samples(reading):
                    numbers = [
                        *sample.values.values(),
                        *sample.gains.values(),
                        *sample.reason_seconds.values(),
                    ]
                    if sample.host is not None:
                        numbers += [*sample.host.values.values(), *sample.host.cpu_seconds.values()]
                    assert all(math.isfinite(number) for number in numbers)
                    msgspec.json.encode(sample.gpu)
        except SourceError:
            pass
        assert {reason for _, reason in normaliser.rejected} <= {
            "sentinel",
            "nan",
            "out-of-range",
            "backwards",
            "stale",
        }
