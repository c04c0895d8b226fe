"""What is recorded replays as what it was."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Normaliser
from gpuwhy.source import GpuFacts, GpuReading, HostReading, Part, Reading, SourceError
from gpuwhy.source.recorder import Recorder
from gpuwhy.source.replay import load
from gpuwhy.workload import attribute

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def rerecord(path: Path, out: Path) -> None:
    recording = load(path)
    with Recorder(out, period_s=recording.period_s, workload=recording.workload) as recorder:
        for reading in recording.readings():
            recorder.write(reading)


@pytest.mark.parametrize(
    "name", ["gemm", "quota", "ddp_straggler", "syn_sentinels", "contention_foreign", "idle"]
)
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_a_recording_of_a_replay_is_the_same(tmp_path: Path, name: str, suffix: str) -> None:
    """Recorded again, a recording gives the same samples, rejections and facts."""
    first, again = RECORDINGS / f"{name}.jsonl.gz", tmp_path / f"again{suffix}"
    rerecord(first, again)
    one, other = load(first), load(again)
    assert one.gpus == other.gpus
    normalisers = Normaliser(), Normaliser()
    for before, after in zip(one.readings(), other.readings(), strict=True):
        samples = [
            attribute(stage.samples(reading))
            for stage, reading in zip(normalisers, (before, after), strict=True)
        ]
        assert samples[0] == samples[1]
    assert normalisers[0].rejected == normalisers[1].rejected


def test_rows_are_readable_while_it_is_written(tmp_path: Path) -> None:
    """A recorder that is killed leaves every row that it wrote."""
    path = tmp_path / "live.jsonl.gz"
    recorder = Recorder(path, period_s=1.0, workload="w")
    reading = Reading(
        1.0, 2.0, 1.0, 1.0, (GpuReading(GpuFacts(0, "GPU-a"), (Part("nvml", {"power_mw": 5000}),), ()),)
    )
    for second in range(3):
        recorder.write(replace(reading, end_s=float(second)))
        assert len(list(load(path).readings())) == second + 1


def test_lost_gpu_is_left_out_of_its_row(tmp_path: Path) -> None:
    """A GPU that did not answer has no entry, which replays as not up."""
    path = tmp_path / "lost.jsonl"
    facts = GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-b", mig="3", profile="1g.10gb", share_ratio=0.25)
    with Recorder(path, period_s=1.0, workload="") as recorder:
        recorder.write(Reading(1.0, 2.0, 1.0, 1.0, (GpuReading(facts[0]), GpuReading(facts[1], up=False))))
    (reading,) = load(path).readings()
    assert [gpu.up for gpu in reading.gpus] == [True, False]
    assert reading.gpus[1].facts == facts[1]


def test_it_never_overwrites(tmp_path: Path) -> None:
    """A file that is there stays as it is, and the error names it."""
    path = tmp_path / "x.jsonl"
    path.write_text("mine")
    with pytest.raises(SourceError, match=r"x\.jsonl: is there already"):
        Recorder(path, period_s=1.0, workload="")
    assert path.read_text() == "mine"


def test_full_disk_is_said() -> None:
    """A device without room ends the recording with a sentence."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here; remedy: run on Linux")
    recorder = Recorder.__new__(Recorder)
    recorder.path, recorder.rows, recorder._period_s, recorder._workload = Path("/dev/full"), 0, 1.0, ""
    recorder._known = set()
    recorder._file = Path("/dev/full").open("wb")  # noqa: SIM115
    reading = Reading(1.0, 2.0, 1.0, 1.0, (GpuReading(GpuFacts(0, "GPU-a")),))
    with pytest.raises(SourceError, match=r"No space left.*what was written before is kept"):
        recorder.write(reading)
    with pytest.raises(SourceError, match="No space left"):
        recorder.__exit__(None, None, None)


numbers = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70), st.booleans(), st.text(max_size=5))


@given(
    st.dictionaries(st.sampled_from(["power_mw", "sm_clock_mhz", "event_reasons", "energy_mj"]), numbers),
    st.dictionaries(st.text(max_size=5), numbers),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_can_be_recorded(tmp_path: Path, raw: dict, host: dict) -> None:
    """Whatever a source hands on becomes strict JSON that replays."""
    path = tmp_path / "any.jsonl.gz"
    path.unlink(missing_ok=True)
    gpu = GpuReading(GpuFacts(0, "GPU-a"), (Part("nvml", raw),), (1,))
    kernel = HostReading(1.0, 1.0, host, ({"pid": 1, "comm": "x\udcff"},))
    with Recorder(path, period_s=1.0, workload="") as recorder:
        recorder.write(Reading(1.0, 2.0, 1.0, 1.0, (gpu,), host=kernel))
    for line in gzip.decompress(path.read_bytes()).splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert len(list(load(path).readings())) == 1


shares = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70), st.floats(0, 1))
uuids = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), max_size=8)


@given(st.one_of(st.none(), st.dictionaries(st.integers(1, 2**22), shares)), uuids)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_use_and_devices_come_back(tmp_path: Path, use: dict | None, devices: list[str]) -> None:
    """The use by process and the names of an instance's devices give the same sample, recorded or not."""
    path = tmp_path / "use.jsonl"
    path.unlink(missing_ok=True)
    gpu = GpuReading(GpuFacts(0, "GPU-a"), owners=(1, 2), process_use=use, device_uuids=tuple(devices))
    reading = Reading(1.0, 2.0, 1.0, 1.0, (gpu,))
    with Recorder(path, period_s=1.0, workload="") as recorder:
        recorder.write(reading)
    (again,) = load(path).readings()
    assert again.gpus[0].device_uuids == tuple(devices)
    before, after = (Normaliser().samples(one)[0].process_use for one in (reading, again))
    assert after == before or (use and not before and not after)


def test_recording_ends_where_rows_come(tmp_path: Path) -> None:
    """A header names the rows of its file: a MIG instance that comes later would be lost, and is said instead."""
    path = tmp_path / "mig.jsonl"
    board = GpuReading(GpuFacts(0, "GPU-a", split=True), (Part("nvml", {"power_mw": 1.0}),))
    slice_ = GpuReading(
        GpuFacts(0, "GPU-a", mig="1"), (Part("dcgm", {"DCGM_FI_PROF_SM_ACTIVE": 0.5}),), holder="ml/x"
    )
    with Recorder(path, period_s=1.0, workload="") as recorder:
        recorder.write(Reading(0.5, 1.5, 1.0, 1.0, ()))  # no GPU yet
        recorder.write(Reading(1.0, 2.0, 1.0, 1.0, (board, slice_)))
        recorder.write(Reading(2.0, 3.0, 1.0, 1.0, (board,)))
        other = replace(slice_, facts=GpuFacts(0, "GPU-a", mig="2"))
        with pytest.raises(SourceError, match="GPUs of this host have changed"):
            recorder.write(Reading(3.0, 4.0, 1.0, 1.0, (board, other)))
    first, second = load(path).readings()
    assert [(gpu.facts.mig, gpu.facts.split, gpu.holder) for gpu in first.gpus] == [
        ("", True, ""),
        ("1", False, "ml/x"),
    ]
    assert Part("dcgm", {"DCGM_FI_PROF_SM_ACTIVE": 0.5}) in first.gpus[1].parts
    assert [gpu.up for gpu in second.gpus] == [True, False]
