"""The DCGM source against an engine that plays recordings and fails on demand."""

from __future__ import annotations

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.sample import Normaliser
from gpuwhy.source import NoGpuError, SourceError
from gpuwhy.source.dcgm import LOOK_S, RETRY_S, STALE_READS, DcgmSource
from gpuwhy.source.dcgm_fields import FIELDS
from gpuwhy.source.dcgm_rows import ACTS, BLANKS, PAUSED_READS, Act, blank
from gpuwhy.source.nvml import NvmlSource

from . import fake_engine
from .fake_engine import GPU_I, SOCKET, ST, TCP, FakeEngine, FakeInstance, install
from .fake_nvml import FakeGpu, FakeNvml, load_into_pynvml

NAMES = {row.id: row.name for row in FIELDS}
SELDOM = {row.name for row in FIELDS if row.group == "seldom"}
DEVICE = {row.name for row in FIELDS if row.group == "device"}
PROFILING = {row.name for row in FIELDS if row.group != "device"}
CORE = {row.name for row in FIELDS if row.group == "profiling"}
SLICE = {row.name for row in FIELDS if row.slice}
GR, SM, FP64, CLOCK, ENERGY, MEMORY = 1001, 1002, 1006, 100, 156, 252


class Clock:
    """Time that only the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Host:
    """One host with an engine, and a source that reads it once per ``tick``."""

    def __init__(self, monkeypatch, *gpus, version=4, start=True, prepare=None, **options):
        self.clock = Clock()
        self.engine = FakeEngine(list(gpus) or [FakeGpu()], self.clock, version=version)
        install(monkeypatch, self.engine)
        if prepare is not None:
            prepare(self.engine)
        self.source = DcgmSource(clock=self.clock, wall=lambda: self.clock.now + 1e9, **options)
        if start:
            self.facts = self.source.start()

    def tick(self, ticks=1, seconds=1.0):
        for _ in range(ticks):
            self.clock.now += seconds
            reading = self.source.read()
        return reading

    def values(self, row=0, ticks=1):
        """What the last of some ticks hands on of a row, {} = nothing."""
        parts = self.tick(ticks).gpus[row].parts
        return dict(parts[0].values) if parts else {}

    def reason(self, number, row=0):
        key = list(self.source.capabilities())[row]
        found = self.source.capabilities()[key][NAMES[number]]
        assert (found.source is None) == bool(found.reason)
        return found.reason


@pytest.fixture
def host(monkeypatch):
    """``host(*gpus)``; at the end the engine must have nothing of us left, and no cause to complain."""
    made = []

    def make(*gpus, **options):
        made.append(Host(monkeypatch, *gpus, **options))
        return made[-1]

    yield make
    for one in made:
        one.source.close()
        assert one.engine.is_clean
        assert not one.engine.faults
        assert not one.engine.left


def three():
    return [FakeGpu("gemm", uuid=f"GPU-{name}") for name in "abc"]


def at_bus(name, bus):
    gpu = FakeGpu("gemm", uuid=f"GPU-{name}")
    gpu.header = {**gpu.header, "pci_bus_id": f"00000000:{bus}:00.0"}
    return gpu


def before_hopper():
    gpu = FakeGpu("gemm")
    gpu.gpm = False
    return gpu


# --- starting


@pytest.mark.parametrize("version", [3, 4])
def test_facts_and_values(host, version):
    """One GPU through the bindings of DCGM 3 and of DCGM 4."""
    one = host(version=version)
    gpu = one.engine.gpus[0]
    (facts,) = one.facts
    assert (facts.index, facts.uuid, facts.model) == (0, gpu.uuid, gpu.header["name"])
    assert facts.pci_bus_id == gpu.header["pci_bus_id"]
    assert facts.compute_capability == gpu.header["compute_capability"]
    assert facts.driver == gpu.driver
    assert facts.default_power_limit_watts == gpu.header["default_power_limit_w"]
    assert facts.sm_clock_max_hertz == gpu.header["max_sm_clock_mhz"] * 1e6
    assert facts.memory_clock_max_hertz == gpu.header["max_mem_clock_mhz"] * 1e6
    assert facts.memory_total_bytes == pytest.approx(gpu.header["memory_total_bytes"])
    assert (facts.pcie_generation, facts.pcie_width) == (gpu.header["pcie_gen"], gpu.header["pcie_width"])
    assert (facts.mig, facts.split, facts.share_ratio) == ("", False, 1.0)
    values = one.values(ticks=2)
    assert values.keys() == {name for number, name in NAMES.items() if number not in one.engine.unknown}
    row, window = gpu.at(2.0), gpu.window(1.0, 2.0)
    assert values[NAMES[CLOCK]] == row["sm_clock_mhz"]
    assert values[NAMES[ENERGY]] == row["energy_mj"]
    assert values[NAMES[MEMORY]] == row["memory_used_bytes"] // 2**20
    assert values[NAMES[SM]] == pytest.approx(window["sm_util"] / 100)


def test_what_it_asks_the_engine_for(host):
    """Each kind apart, once a period, what is dear less often; kept for a minute; one call a tick for all."""
    one = host(*three())
    engine = one.engine
    fields = [set(ids) for _, _, ids in engine.field_groups.values()]
    for kind in ("device", "seldom", "profiling", "pipes", "rates"):
        assert {row.id for row in FIELDS if row.group == kind} in fields
    assert len(engine.watches) == 5 * 3
    assert set(engine.intervals.values()) == {(1_000_000, 60.0, 0), (10_000_000, 60.0, 0)}
    engine.asked.clear()
    engine.calls.clear()
    one.tick(5)
    assert engine.calls == {"dcgmEntitiesGetLatestValues": 5}
    assert [len(entities) for entities, _ in engine.asked] == 5 * [3]


def test_slow_period(host):
    """The engine polls at our period, and keeps values for six of them."""
    one = host(period_s=20.0)
    assert set(one.engine.intervals.values()) == {(20_000_000, 120.0, 0), (200_000_000, 1200.0, 0)}


def test_indices_are_in_the_order_of_pci_addresses(host):
    """The engine's numbers are not NVML's."""
    one = host(at_bus("x", "9D"), at_bus("y", "1B"), at_bus("z", "3B"))
    assert [(facts.index, facts.uuid) for facts in one.facts] == [(0, "GPU-y"), (1, "GPU-z"), (2, "GPU-x")]
    assert [gpu.facts.uuid for gpu in one.tick().gpus] == ["GPU-y", "GPU-z", "GPU-x"]


def test_indices_stay(host):
    """A GPU keeps its index when others come, go and come back."""
    one = host(at_bus("x", "3B"), at_bus("y", "1B"), prepare=lambda engine: engine.hidden.add(1))
    assert [facts.index for facts in one.facts] == [0]
    one.engine.hidden.clear()
    one.tick(11)
    assert [(gpu.facts.index, gpu.facts.uuid) for gpu in one.tick().gpus] == [(0, "GPU-x"), (1, "GPU-y")]
    one.engine.hidden.add(0)
    one.tick(11)
    assert [(gpu.facts.index, gpu.facts.uuid) for gpu in one.tick().gpus] == [(1, "GPU-y")]


def test_no_engine(monkeypatch):
    """Where none runs, that is told at once, and nothing is loaded."""
    install(monkeypatch, None)
    with pytest.raises(NoGpuError, match="no DCGM host engine runs here"):
        DcgmSource().start()


@pytest.mark.parametrize("address", ["10.0.0.5:5555", SOCKET])
def test_address(host, address):
    """TCP or a unix socket, as told."""
    one = host(address=address, prepare=lambda engine: engine.listens.add(address))
    assert one.values()


def test_socket_is_tried_second(host):
    """Where nobody listens at the port."""
    assert host(prepare=lambda engine: engine.listens.symmetric_difference_update({TCP, SOCKET})).values()


def test_embedded(host):
    """An engine in this process, only when told, and only where no other runs: two are not supported."""
    with pytest.raises(SourceError, match="NVIDIA supports one on a host"):
        host(embedded=True)
    one = host(embedded=True, prepare=lambda engine: setattr(engine, "listens", ()))
    assert one.engine.calls["dcgmStartEmbedded"] == 1
    assert one.values()
    one.source.close()
    assert one.engine.calls["dcgmStopEmbedded"] == 1
    assert not host().engine.calls["dcgmStartEmbedded"]


def test_engine_without_gpus(host):
    """As one that was started before the driver: named, with the remedy."""
    one = host(start=False, prepare=lambda engine: engine.hidden.add(0))
    with pytest.raises(SourceError, match=r"shows no GPU; .*restart nvidia-dcgm"):
        one.source.start()
    assert one.engine.is_clean


def test_engine_that_supports_no_gpu(host):
    """As with cards that DCGM does not know."""
    one = host(start=False, prepare=lambda engine: engine.unsupported.add(0))
    with pytest.raises(SourceError, match="can read none of its 1 GPUs"):
        one.source.start()


def test_engine_that_lets_nothing_be_watched(host):
    """The reasons are told."""
    refuse = dict.fromkeys(NAMES, ST["REQUIRES_ROOT"])
    one = host(start=False, prepare=lambda engine: engine.refuse.update(refuse))
    with pytest.raises(SourceError, match=r"nothing be watched: REQUIRES_ROOT .*NVreg_Restrict"):
        one.source.start()
    assert one.engine.is_clean


@pytest.mark.parametrize(
    "function, code, words",
    [
        ("dcgmConnect_v2", "CONNECTION_NOT_VALID", "CONNECTION_NOT_VALID"),
        ("dcgmConnect_v2", "VER_MISMATCH", "different DCGM versions"),
        ("dcgmConnect_v2", "FUNCTION_NOT_FOUND", "different DCGM versions"),
        ("dcgmGetAllDevices", "NVML_NOT_LOADED", "before the NVIDIA driver.*restart"),
        ("dcgmGetAllSupportedDevices", "TIMEOUT", "TIMEOUT .*does not answer"),
        ("dcgmGroupCreate", "MAX_LIMIT", "MAX_LIMIT .*groups"),
        ("dcgmGroupCreate", "DUPLICATE_KEY", "DUPLICATE_KEY"),
        ("dcgmWatchFields", "NVML_NOT_LOADED", "before the NVIDIA driver.*restart"),
    ],
)
def test_start_that_fails(host, function, code, words):
    """What was made until then is taken back; the next start works."""
    one = host(start=False)
    one.engine.fail[function] = ST[code]
    with pytest.raises(SourceError, match=rf"DCGM host engine at {TCP}: .*{words}"):
        one.source.start()
    assert one.engine.is_clean
    one.engine.fail.clear()
    assert one.source.start()


@pytest.mark.parametrize("code", ["BADPARAM", "CONNECTION_NOT_VALID", "MAX_LIMIT", "IN_USE"])
@pytest.mark.parametrize("split", [False, True])
def test_nothing_leaks_wherever_a_start_fails(host, code, split):
    """Each call of a start fails once, one start after the other."""
    one = host(FakeGpu(), start=False)
    if split:
        cut(one.engine)
    engine, failed = one.engine, 0
    for step in range(200):
        left = [step]

        def answer(arguments, left=left):
            left[0] -= 1
            return ST[code] if left[0] == -1 else 0

        methods = [name[1:] for name in dir(FakeEngine) if name.startswith("_dcgm")]
        engine.fail = {
            name: answer
            for name in methods
            if not any(word in name for word in ("Dis", "Destroy", "Unwatch"))
        }
        try:
            one.source.start()
        except SourceError:
            failed += 1
            assert engine.is_clean
        one.source.close()
        assert engine.is_clean
        if left[0] >= 0:
            break
    else:
        pytest.fail("a start takes more than 200 calls")
    assert failed > 3
    assert not engine.faults
    assert not engine.left


def test_close_at_any_time(host):
    """Before a start, twice, and after a failure."""
    one = host(start=False)
    one.source.close()
    one.source.start()
    one.source.close()
    one.source.close()
    assert one.engine.is_clean
    with pytest.raises(SourceError, match=r"start\(\) comes before read\(\)"):
        one.source.read()


def test_close_goes_on_when_the_engine_refuses(host):
    """Each step of the teardown may fail."""
    one = host()
    for function in ("dcgmUnwatchFields", "dcgmFieldGroupDestroy", "dcgmGroupDestroy", "dcgmDisconnect"):
        one.engine.fail[function] = ST["BADPARAM"]
    one.source.close()
    one.engine.restart()


# --- watches that are refused


@pytest.mark.parametrize("number", [FIELDS[0].id, 112, 1424, GR, 1005, FP64, 1016, 1009, 1012])
@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "UNKNOWN_FIELD", "BADPARAM", "PROFILING_MULTI_PASS"])
def test_a_refused_field_costs_only_itself(host, number, code):
    """Its group is halved until it stands alone."""
    one = host(prepare=lambda engine: engine.refuse.update({number: ST[code]}))
    assert set(NAMES.values()) - one.values(ticks=2).keys() == {NAMES[number]}
    assert one.reason(number)
    assert one.engine.calls["dcgmWatchFields"] < 25
    assert number not in {asked for _, fields in one.engine.asked for asked in fields}


def test_refusals_are_told_once(host, caplog):
    """However many GPUs lack it, and however often it is started."""
    one = host(*three(), prepare=lambda engine: engine.refuse.update({FP64: ST["NOT_SUPPORTED"]}))
    one.source.start()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert NAMES[FP64] in told[0].getMessage()


@pytest.mark.parametrize("code", ["MODULE_NOT_LOADED", "GPU_NOT_SUPPORTED", "REQUIRES_ROOT", "NO_PERMISSION"])
def test_a_gpu_without_profiling(host, code):
    """The rest goes on, the reason is kept, and nothing is tried field by field."""
    gpus = three()

    def prepare(engine):
        engine.refuse = {(1, number): ST[code] for number in fake_engine.PROFILING}

    one = host(*gpus, prepare=prepare)
    reading = one.tick(2)
    assert [gpu.parts[0].values.keys() & PROFILING for gpu in reading.gpus] == [PROFILING, set(), PROFILING]
    assert all(gpu.parts[0].values.keys() >= DEVICE for gpu in reading.gpus)
    for number in fake_engine.PROFILING:
        assert one.reason(number, row=1).startswith(code)
    assert one.engine.watched((1, 1)) == {row.id for row in FIELDS if row.group == "device"}
    calls = one.engine.calls["dcgmWatchFields"]
    one.tick(100)
    assert one.engine.calls["dcgmWatchFields"] == calls
    assert not one.source.yielding


def test_reasons_name_the_remedy(host):
    """What an admin can do about it."""
    one = host(prepare=lambda engine: engine.refuse.update({GR: ST["REQUIRES_ROOT"]}))
    assert "NVreg_RestrictProfilingToAdminUsers=0" in one.reason(GR)


def test_profiling_not_supported_of_all_fields(host):
    """Once no core field can be watched, pipes and rates are not tried."""
    one = host(prepare=lambda engine: engine.refuse.update(dict.fromkeys(fake_engine.PROFILING, -36)))
    assert one.values(ticks=2).keys() == DEVICE
    assert one.reason(1009).startswith("PROFILING_NOT_SUPPORTED")
    assert one.engine.calls["dcgmWatchFields"] <= 16


@pytest.mark.parametrize("code", ["NVML_ERROR", "NVML_DRIVER_TIMEOUT"])
def test_a_watch_that_fails_for_now(host, code):
    """As with a driver that is slow: it is tried again, and nobody is said to own the counters."""
    one = host(prepare=lambda engine: engine.refuse.update({GR: ST[code]}))
    assert one.values(ticks=2).keys() - SELDOM == DEVICE - SELDOM
    assert one.reason(GR).startswith(code)
    assert not one.source.yielding
    one.engine.refuse.clear()
    one.tick(int(RETRY_S))
    assert one.values().keys() == set(NAMES.values())


@pytest.mark.parametrize("code", ["IN_USE", "PROFILING_LIBRARY_ERROR"])
def test_counters_that_another_profiler_owns(host, caplog, code):
    """It yields, says so, goes on with the rest, and comes back by itself."""
    gpus = [before_hopper()]
    one = host(
        *gpus, prepare=lambda engine: engine.refuse.update(dict.fromkeys(fake_engine.PROFILING, ST[code]))
    )
    assert one.values(ticks=2).keys() == DEVICE
    assert f"{code} (another profiler" in one.source.yielding
    assert one.reason(GR).startswith(code)
    calls = one.engine.calls["dcgmWatchFields"]
    one.tick(int(RETRY_S) - 5)
    assert one.engine.calls["dcgmWatchFields"] == calls
    one.tick(10)
    assert calls < one.engine.calls["dcgmWatchFields"] <= calls + 3
    one.engine.refuse.clear()
    one.tick(int(RETRY_S) + 1)
    assert one.values().keys() == set(NAMES.values())
    assert not one.source.yielding


def test_a_refused_watch_does_not_end_the_others(host):
    """Before Hopper the engine's profiling module is told to end all of a client's watches then."""
    one = host(before_hopper(), before_hopper(), prepare=lambda engine: engine.refuse.update({(1, FP64): -6}))
    reading = one.tick(5)
    first, second = (set(gpu.parts[0].values) | SELDOM for gpu in reading.gpus)
    assert first == set(NAMES.values())
    assert first - second == {NAMES[FP64]}


def test_no_profiling_module(host):
    """As with DCGM's core package alone on a card before Hopper."""
    one = host(before_hopper(), prepare=lambda engine: setattr(engine, "module", False))
    assert one.values(ticks=2).keys() == DEVICE
    assert "profiling module" in one.reason(SM)


def test_mixed_cards(host):
    """Each card's rows are asked for what it has: two calls."""
    one = host(FakeGpu(), before_hopper(), prepare=lambda engine: setattr(engine, "module", False))
    one.engine.calls.clear()
    reading = one.tick(2)
    assert [gpu.parts[0].values.keys() & PROFILING for gpu in reading.gpus] == [PROFILING, set()]
    assert one.engine.calls["dcgmEntitiesGetLatestValues"] == 4


# --- values that are none


@pytest.mark.parametrize("kind, code", list(enumerate(BLANKS)))
@pytest.mark.parametrize("number", [ENERGY, SM])
def test_blanks(host, kind, code, number):
    """Each class is kept apart; what is not supported, or not permitted, is not asked again."""
    one = host(prepare=lambda engine: engine.blank.update({number: kind}))
    assert set(NAMES.values()) - one.values(ticks=2).keys() == {NAMES[number]}
    assert one.reason(number).startswith(code)
    asked_again = number in one.engine.asked[-1][1]
    assert asked_again == (code in {"NO_DATA", "NOT_FOUND"})
    one.engine.blank.clear()
    assert (NAMES[number] in one.values(ticks=2)) == asked_again
    one.source.start()
    assert NAMES[number] in one.values(ticks=2)


def test_a_blank_among_values_costs_that_value(host):
    """What was served is asked on, whatever the blank."""
    one = host()
    one.tick(3)
    one.engine.blank[ENERGY] = fake_engine.NOT_SUPPORTED
    assert NAMES[ENERGY] not in one.values()
    assert one.reason(ENERGY) == "NOT_SUPPORTED"
    one.engine.blank.clear()
    assert NAMES[ENERGY] in one.values()
    assert not one.reason(ENERGY)


@pytest.mark.parametrize(
    "code, passes",
    [
        ("NO_DATA", True),
        ("TIMEOUT", True),
        ("UNKNOWN_FIELD", False),
        ("NO_PERMISSION", False),
        ("REQUIRES_ROOT", False),
        ("MODULE_NOT_LOADED", False),
    ],
)
def test_status_of_a_value(host, code, passes):
    """It is looked at though the call succeeds, and costs that value only."""
    one = host(prepare=lambda engine: engine.status.update({SM: ST[code]}))
    assert set(NAMES.values()) - one.values(ticks=2).keys() == {NAMES[SM]}
    assert one.reason(SM).startswith(code)
    assert (SM in one.engine.asked[-1][1]) == passes


def test_counters_above_the_blanks_of_int32(host):
    """An energy counter passes them, and must not be lost on the way."""
    one = host()
    one.tick(2)
    seen = []
    for value in range(0x7FFFFFEE, 0x7FFFFFF8):
        one.engine.gpus[0].changed = {"energy_mj": value}
        seen.append(one.values().get(NAMES[ENERGY]))
    assert seen == [
        0x7FFFFFEE,
        0x7FFFFFEF,
        None,
        None,
        None,
        None,
        0x7FFFFFF4,
        0x7FFFFFF5,
        0x7FFFFFF6,
        0x7FFFFFF7,
    ]


@given(
    st.one_of(
        st.integers(-(2**62), 0x7FFFFFF0 - 1),
        st.integers(0x7FFFFFF4, 0x7FFFFFFFFFFFFFF0 - 1),
        st.floats(-1e14, 2.0**47, exclude_max=True),
    )
)
def test_numbers_are_no_blanks(value):
    """Everything below a base, or between the two of integers, is a number."""
    assert not blank(value)


@given(st.sampled_from([0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2.0**47]), st.integers(0, 3))
def test_blanks_are_kept_apart(base, kind):
    """The four classes above each base."""
    assert blank(base + kind) == BLANKS[kind]


@given(st.one_of(st.integers(0x7FFFFFFFFFFFFFF4, 2**63 - 1), st.floats(2.0**47 + 4), st.just(float("nan"))))
def test_what_is_above_the_blanks_is_blank(value):
    """And so is what is no number at all."""
    assert blank(value) == BLANKS[0]


@pytest.mark.parametrize("value", ["", "<<<NULL>>>", None, b"x"])
def test_text_is_blank(value):
    """A field of numbers that holds none has no value."""
    assert blank(value) == BLANKS[0]


# --- time


def spans(readings, row=0):
    return [sum(part.span_s for part in reading.gpus[row].parts) for reading in readings]


def test_spans_add_up(host):
    """Every second is spoken for once, with ticks that come early, late or beside the engine's."""
    one = host()
    readings = [one.tick(seconds=seconds) for seconds in (1.0, 0.7, 1.3, 0.9, 1.1, 1.0, 0.6, 1.4, 1.0, 1.0)]
    assert sum(spans(readings)) == pytest.approx(10.0)
    assert spans(readings)[1] == 0  # nothing new
    assert spans(readings)[2] == pytest.approx(2.0)


def test_a_value_that_stands_still_is_missing(host):
    """Its time says so, not its value: others may well repeat."""
    one = host()
    one.tick(2)
    one.engine.gpus[0].changed = dict.fromkeys(("sm_clock_mhz", "energy_mj"), 1000)
    assert one.values().keys() == set(NAMES.values())
    one.engine.frozen.add(ENERGY)
    for _ in range(3):
        assert set(NAMES.values()) - one.values().keys() == {NAMES[ENERGY]}
    one.engine.frozen.clear()
    assert one.values()[NAMES[ENERGY]] == 1000


def test_a_value_without_a_time_is_missing(host):
    """Nobody can say of when it is."""
    one = host(prepare=lambda engine: engine.untimed.add(SM))
    assert set(NAMES.values()) - one.values(ticks=2).keys() == {NAMES[SM]}
    one.source.close()
    one.engine.refuse[SM] = ST["IN_USE"]
    one.source.start()
    one.engine.refuse.clear()
    assert NAMES[SM] not in {name for _ in range(int(RETRY_S) + 2) for name in one.values()}


def test_what_was_cached_before_the_watch_is_not_news(host):
    """A MIG instance's fields begin with what the engine had of its number before."""
    one = host()
    one.engine.frozen.add(0)
    one.source.start()
    assert one.tick().gpus[0].parts == ()


def test_profiling_values_that_are_late(host):
    """All wait for them, a tick at most, so that their time is not lost; then the rest goes on alone."""
    one = host()
    one.tick(3)
    one.engine.frozen |= fake_engine.PROFILING
    late = one.tick()
    assert late.gpus[0].parts == ()
    assert late.gpus[0].up
    one.engine.frozen.clear()
    reading = one.tick()
    assert spans([reading]) == [2.0]
    assert reading.gpus[0].parts[0].values.keys() == set(NAMES.values())
    one.engine.frozen |= fake_engine.PROFILING
    readings = [one.tick() for _ in range(4)]
    assert spans(readings) == [0, 2.0, 1.0, 1.0]
    assert readings[-1].gpus[0].parts[0].values.keys() == DEVICE
    assert not one.source.yielding


def test_a_long_pause(host):
    """A reading after one speaks for two periods at most."""
    one = host()
    one.tick(2)
    assert spans([one.tick(seconds=60)]) == [2.0]


def test_a_clock_that_is_set_back(host):
    """Times that differ are news, whichever way."""
    one = host()
    one.tick(2)
    one.engine.wall = lambda: one.clock.now + 5e8
    assert one.values()


def test_all_values_stand_still(host):
    """An engine that answers and does not read is as good as gone."""
    one = host(*three())
    one.tick(2)
    one.engine.frozen |= {0, 1, 2}
    one.tick(STALE_READS - 1)
    with pytest.raises(SourceError, match=r"STALE_DATA .*stand still"):
        one.tick()
    assert one.engine.is_clean
    one.engine.frozen.clear()
    one.source.start()
    assert one.values()


def test_reads_that_come_fast(host):
    """No news is no fault then."""
    one = host()
    one.tick(2)
    assert not any(one.tick(seconds=0.01).gpus[0].parts for _ in range(90))
    assert spans([one.tick(seconds=0.2)]) == [pytest.approx(1.1)]


def test_one_gpu_stands_still(host):
    """The others go on; what the engine may have forgotten is watched anew."""
    one = host(*three())
    one.tick(2)
    one.engine.frozen.add(1)
    reading = one.tick(STALE_READS + 3)
    assert [bool(gpu.parts) for gpu in reading.gpus] == [True, False, True]
    assert all(gpu.up for gpu in reading.gpus)
    calls = one.engine.calls["dcgmWatchFields"]
    one.tick(int(LOOK_S))
    assert one.engine.calls["dcgmWatchFields"] > calls
    one.engine.frozen.clear()
    assert [bool(gpu.parts) for gpu in one.tick().gpus] == [True, True, True]


# --- pauses


def test_profiling_is_paused(host, caplog):
    """Blank values of one read are nothing; of several they are a pause, which ends by itself."""
    one = host(*three())
    one.tick(3)
    one.engine.paused = True
    one.tick(PAUSED_READS - 1)
    assert not one.source.yielding
    assert one.values().keys() == DEVICE
    assert "profiling is paused" in one.source.yielding
    one.tick(50)
    one.engine.paused = False
    assert one.values(ticks=2).keys() == set(NAMES.values())
    assert not one.source.yielding
    assert not one.engine.calls["dcgmProfResume"]


def test_a_status_says_that_profiling_is_paused(host):
    """At once."""
    one = host()
    one.tick(2)
    one.engine.status = dict.fromkeys(fake_engine.PROFILING, ST["PAUSED"])
    one.tick(2)
    assert "profiling is paused" in one.source.yielding
    assert one.values().keys() == DEVICE


def test_the_engine_is_paused(host):
    """As for a diagnostic: nothing is read, and nothing is wrong."""
    one = host(*three())
    one.tick(2)
    one.engine.halted = True
    reading = one.tick(60)
    assert all(gpu.up and not gpu.parts for gpu in reading.gpus)
    assert "paused" in one.source.yielding
    one.engine.halted = False
    assert one.values().keys() == set(NAMES.values())
    assert not one.source.yielding


# --- GPUs and engines that are lost


def test_gpu_lost_and_back(host, caplog):
    """It stays in the readings, down, while the others go on."""
    one = host(*three())
    one.tick(2)
    one.engine.lost.add(1)
    reading = one.tick(2)
    assert [gpu.up for gpu in reading.gpus] == [True, False, True]
    assert [bool(gpu.parts) for gpu in reading.gpus] == [True, False, True]
    assert "lost" in one.reason(CLOCK, row=1)
    one.tick(40)
    assert [gpu.up for gpu in one.tick().gpus] == [True, False, True]
    one.engine.lost.clear()
    one.tick()
    reading = one.tick()
    assert all(gpu.up and gpu.parts for gpu in reading.gpus)
    told = [record.getMessage() for record in caplog.records if "GPU 1" in record.getMessage()]
    assert [" is down" in line for line in told] == [True, False]


def test_all_gpus_lost(host):
    """That is no reason to connect anew."""
    one = host(*three())
    one.tick(2)
    one.engine.lost |= {0, 1, 2}
    assert not any(gpu.up for gpu in one.tick(20).gpus)


def test_gpu_lost_and_back_with_dcgm_3(host):
    """Its bindings do not tell the state of a GPU: it has no values, and after a while no row."""
    one = host(*three(), version=3)
    one.tick(2)
    one.engine.lost.add(1)
    assert [bool(gpu.parts) for gpu in one.tick().gpus] == [True, False, True]
    assert [gpu.facts.uuid for gpu in one.tick(20).gpus] == ["GPU-a", "GPU-c"]
    one.engine.lost.clear()
    one.tick(11)
    assert all(gpu.parts for gpu in one.tick().gpus)
    assert [gpu.facts.uuid for gpu in one.tick().gpus] == ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.parametrize("code", [name for name, act in ACTS.items() if act is Act.DOWN])
def test_a_status_says_that_the_gpu_is_gone(host, code):
    """At once."""
    one = host(*three())
    one.tick(2)
    one.engine.status = {(2, number): ST[code] for number in NAMES}
    assert [gpu.up for gpu in one.tick().gpus] == [True, True, False]
    one.engine.status.clear()
    assert all(gpu.up for gpu in one.tick().gpus)


def test_gpu_that_is_lost_at_the_start(host):
    """It is left out, and built once it is back."""
    one = host(*three(), prepare=lambda engine: engine.lost.add(1))
    assert [facts.uuid for facts in one.facts] == ["GPU-a", "GPU-c"]
    one.tick(5)
    one.engine.lost.clear()
    one.tick(int(LOOK_S))
    assert [gpu.facts.uuid for gpu in one.tick(2).gpus] == ["GPU-a", "GPU-c", "GPU-b"]


@pytest.mark.parametrize("code", ["CONNECTION_NOT_VALID", "TIMEOUT", "NVML_NOT_LOADED", "BADPARAM"])
def test_engine_that_refuses_to_answer(host, code):
    """Named, and everything is given up; the next start works."""
    one = host()
    one.engine.fail["dcgmEntitiesGetLatestValues"] = ST[code]
    with pytest.raises(SourceError, match=rf"dcgmEntitiesGetLatestValues: {code}"):
        one.tick()
    assert one.engine.is_clean
    one.engine.fail.clear()
    one.source.start()
    assert one.values()


def test_engine_restarts(host):
    """All numbers are void: nothing is asked of the new one before a start."""
    one = host(*three())
    one.tick(2)
    one.engine.restart()
    one.engine.calls.clear()
    with pytest.raises(SourceError, match="CONNECTION_NOT_VALID"):
        one.tick()
    # An engine that hangs would hold every step of a teardown.
    assert one.engine.calls == {"dcgmEntitiesGetLatestValues": 1, "dcgmDisconnect": 1}
    one.source.start()
    assert all(gpu.parts for gpu in one.tick(2).gpus)


def test_engine_stops(host):
    """And is not there for a while."""
    one = host()
    one.engine.stop()
    with pytest.raises(SourceError):
        one.tick()
    with pytest.raises(NoGpuError):
        one.source.start()
    one.engine.listens.add(TCP)
    one.source.start()
    assert one.values()


def test_engine_has_forgotten_our_watches(host):
    """What is not watched will not come."""
    one = host()
    one.tick(2)
    one.engine.forget_watches()
    with pytest.raises(SourceError, match="NOT_WATCHED"):
        one.tick()


def test_engine_hangs(host):
    """A call that hangs holds its own thread only, and what it answers in the end is used."""
    one = host()
    one.tick(2)
    hangs, goes_on, readings = threading.Event(), threading.Event(), []

    def hang(arguments):
        hangs.set()
        goes_on.wait(30)
        return 0

    one.engine.fail["dcgmEntitiesGetLatestValues"] = hang
    thread = threading.Thread(target=lambda: readings.append(one.tick(seconds=10)))
    thread.start()
    assert hangs.wait(30)
    assert not readings
    goes_on.set()
    thread.join(30)
    assert spans(readings) == [2.0]


# --- MIG


def cut(engine, gpu=0, computes=(1, 2, 0)):
    """Splits a GPU into 3g, 2g and 1g; the last has no compute instance."""
    engine.split.add(gpu)
    engine.instances[gpu] = [
        FakeInstance(1, 3, FakeGpu("gemm"), "MIG 3g.71gb", 72448, computes[0]),
        FakeInstance(3, 2, FakeGpu("idle"), "MIG 2g.35gb", 33280, computes[1]),
        FakeInstance(11, 1, FakeGpu("stream_add"), "MIG 1g.18gb", 16384, computes[2]),
    ]


def test_slices(host):
    """A row for the board, and one for each instance with its own activity and memory; nothing twice."""
    one = host(at_bus("x", "9D"), at_bus("y", "1B"), prepare=cut)
    assert [(facts.index, facts.mig, facts.split, facts.profile) for facts in one.facts] == [
        (0, "", False, ""),
        (1, "", True, ""),
        (1, "1", False, "3g.71gb"),
        (1, "3", False, "2g.35gb"),
        (1, "11", False, "1g.16gb"),
    ]
    assert [facts.uuid for facts in one.facts] == ["GPU-y", *4 * ["GPU-x"]]
    assert [facts.share_ratio for facts in one.facts] == pytest.approx([1, 1 / 7, 3 / 7, 2 / 7, 1 / 7])
    assert [facts.power_limit_watts is None for facts in one.facts] == [False, False, True, True, True]
    assert one.facts[2].memory_total_bytes == 72448 * 2**20
    reading = one.tick(2)
    board, gemm, idle, empty = reading.gpus[1:]
    values = board.parts[0].values
    assert not values.keys() & SLICE
    assert values.keys() == set(NAMES.values()) - SLICE - {NAMES[203], NAMES[204]}
    assert gemm.parts[0].values.keys() == idle.parts[0].values.keys() == SLICE
    assert gemm.parts[0].values[NAMES[SM]] > 0.9 > idle.parts[0].values[NAMES[SM]]
    assert empty.up
    assert empty.parts[0].values.keys() == {NAMES[MEMORY]}
    assert "each MIG instance" in one.reason(SM, row=1)
    assert "whole board" in one.reason(CLOCK, row=2)
    assert not one.reason(SM, row=2)


def test_four_slices(host):
    """An A30 has four, and the engine says so."""
    one = host(prepare=lambda engine: (cut(engine), setattr(engine, "slices", 4)))
    assert [facts.share_ratio for facts in one.facts] == pytest.approx([0, 3 / 4, 2 / 4, 1 / 4])


def test_split_without_instances(host):
    """Everything is free, and the board has no activity."""
    one = host(prepare=lambda engine: engine.split.add(0))
    assert [(facts.split, facts.share_ratio) for facts in one.facts] == [(True, 1.0)]
    assert not one.values(ticks=2).keys() & SLICE


def test_an_engine_that_cannot_list_instances(host):
    """As one that has never heard of MIG."""
    one = host(prepare=lambda engine: engine.fail.update(dcgmGetEntityGroupEntities=-6))
    assert one.values()


def test_slices_come_and_go(host):
    """They are found within ten seconds; watches of what has not changed stay."""
    one = host(*three())
    one.tick(2)
    groups = set(one.engine.groups)
    cut(one.engine, gpu=1)
    one.tick(int(LOOK_S))
    assert len(groups & set(one.engine.groups)) == 2
    reading = one.tick(2)
    assert [(gpu.facts.index, gpu.facts.mig) for gpu in reading.gpus] == [
        (0, ""), (1, ""), (1, "1"), (1, "3"), (1, "11"), (2, ""),
    ]  # fmt: skip
    assert all(gpu.parts for gpu in reading.gpus)
    one.engine.instances.clear()
    one.engine.split.clear()
    one.tick(int(LOOK_S))
    assert [gpu.facts.mig for gpu in one.tick(2).gpus] == ["", "", ""]
    assert one.values(row=1).keys() == set(NAMES.values())


def test_slices_are_cut_anew(host):
    """The engine numbers the new ones as the old ones: nothing of those is handed on."""
    one = host(prepare=cut)
    one.tick(3)
    one.engine.instances[0] = [FakeInstance(2, 4, FakeGpu("idle"), "MIG 4g.71gb", 72448)]
    one.tick(int(LOOK_S))
    reading = one.tick()
    assert [(gpu.facts.mig, gpu.facts.profile) for gpu in reading.gpus] == [("", ""), ("2", "4g.71gb")]
    assert [gpu.facts.share_ratio for gpu in reading.gpus] == pytest.approx([3 / 7, 4 / 7])
    assert one.values(row=1)[NAMES[SM]] < 0.1
    assert one.engine.watched((GPU_I, 0)) == {row.id for row in FIELDS if row.slice}
    assert not one.engine.watched((GPU_I, 1))


@pytest.mark.parametrize("code", ["INSTANCE_NOT_FOUND", "NOT_WATCHED"])
def test_a_slice_is_gone(host, code):
    """A status that says so has the engine asked at once; if nothing has changed, something else is wrong."""
    one = host(prepare=cut)
    one.tick(3)
    one.engine.instances[0].pop(0)
    one.engine.status = {(0, number): ST[code] for number in (SM, MEMORY)}
    assert [gpu.facts.mig for gpu in one.tick().gpus] == ["", "3", "11"]
    with pytest.raises(SourceError, match=code):
        one.tick()


def test_a_compute_instance_is_gone(host):
    """Its GPU instance has no activity then, and that is no pause."""
    one = host(prepare=cut)
    one.tick(3)
    one.engine.instances[0][0].computes = 0
    for _ in range(30):
        reading = one.tick()
        assert not one.source.yielding
    assert reading.gpus[1].parts[0].values.keys() == {NAMES[MEMORY]}


def test_profiling_of_slices_is_paused(host):
    """Told later than of whole GPUs."""
    one = host(prepare=cut)
    one.tick(3)
    one.engine.paused = True
    one.tick(20)
    assert "profiling is paused" in one.source.yielding


def test_calls_with_slices(host):
    """One for the whole GPUs, one for the boards, one for the slices."""
    one = host(*three(), prepare=cut)
    one.tick(2)
    one.engine.calls.clear()
    one.tick(3)
    assert one.engine.calls == {"dcgmEntitiesGetLatestValues": 9}


def test_a_gpu_that_cannot_be_built_costs_the_others_nothing(host):
    """It is tried again at the next look, and leaves nothing behind meanwhile."""
    one = host(*three())
    one.tick(2)
    cut(one.engine, gpu=1)
    one.engine.fail["dcgmGroupAddEntity"] = ST["BADPARAM"]
    one.tick(35)
    reading = one.tick()
    assert [gpu.facts.uuid for gpu in reading.gpus] == ["GPU-a", "GPU-c"]
    assert all(gpu.parts for gpu in reading.gpus)
    assert len(one.engine.groups) == 2
    one.engine.fail.clear()
    one.tick(int(LOOK_S))
    assert len(one.tick().gpus) == 6


# --- what becomes of the values


@pytest.mark.parametrize("recording", ["gemm", "train_gpt", "h2d", "idle", "syn_sw_thermal"])
def test_signals_are_those_of_nvml(monkeypatch, recording):
    """The same work, read through DCGM and through NVML, is the same in SI units."""
    clock = Clock()
    gpu = FakeGpu(recording)
    engine = FakeEngine([gpu], clock)
    library = FakeNvml([gpu], clock)
    library.loaded_s = clock.now
    install(monkeypatch, engine)
    load_into_pynvml(monkeypatch, library)
    sources = [made(clock=clock, wall=clock) for made in (DcgmSource, NvmlSource)]
    normalisers = [Normaliser(), Normaliser()]
    for source in sources:
        source.start()
    for second in range(20):
        clock.now += 1
        pair = [
            normaliser.samples(source.read()) for normaliser, source in zip(normalisers, sources, strict=True)
        ]
        if second < 2:
            continue
        (dcgm,), (nvml,) = pair
        assert {name for name in nvml.values if name not in dcgm.values} == set()
        for name, value in dcgm.values.items():
            if name in nvml.values and name not in {"memory_used_bytes", "power_limit_watts"}:
                tolerance = 1.0 if name.endswith("per_second") else 1e-6
                # NVML is asked for a few of them every fifth second only.
                if name != "memory_temperature_celsius":
                    assert value == pytest.approx(nvml.values[name], abs=tolerance), name
        assert dcgm.reasons == nvml.reasons
    assert not normalisers[0].rejected
    for source in sources:
        source.close()
