"""The NVML source against a driver library that answers from recordings and fails on demand."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import threading
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpuwhy.daemon import Pipeline
from gpuwhy.sample import Normaliser
from gpuwhy.sample.signals import SIGNAL_OF_RAW
from gpuwhy.source import DriverMismatchError, NoGpuError, SourceError
from gpuwhy.source.nvml import METRICS, NvmlSource
from gpuwhy.source.replay import load

from .fake_nvml import RECORDINGS, FakeGpu, Host, hosts, load_into_pynvml

UTILISATION = "nvmlDeviceGetUtilizationRates"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
LOST, RESET_REQUIRED, GPU_NOT_FOUND = 15, 16, 28
MISSING = [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA, pynvml.NVML_ERROR_NOT_READY]
NEVER = [
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
]


@pytest.fixture
def host(monkeypatch):
    """``host(*gpus)``; at the end everything must have been given back, and no dead handle used."""
    with hosts(monkeypatch) as make:
        yield make


def three():
    return [FakeGpu("gemm", uuid=f"GPU-{name}") for name in "abc"]


def ups(reading):
    return {gpu.facts.uuid: gpu.up for gpu in reading.gpus}


# --- starting


def test_no_library(monkeypatch):
    """Without a driver's library there is no GPU, and the message says what to install."""
    load_into_pynvml(monkeypatch, None)
    with pytest.raises(NoGpuError, match=r"libnvidia-ml\.so\.1 .* install"):
        NvmlSource().start()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, NoGpuError, "modprobe"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, DriverMismatchError, "different driver versions.*reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, SourceError, "NO_PERMISSION.*root"),
        (pynvml.NVML_ERROR_UNKNOWN, SourceError, "UNKNOWN.*daemon-reload"),
        (pynvml.NVML_ERROR_OPERATING_SYSTEM, SourceError, "OPERATING_SYSTEM.*daemon-reload"),
    ],
)
def test_init_refused(host, code, error, words):
    """Each way nvmlInit is refused has its own error and remedy."""
    one = host(start=False)
    one.library.fail["nvmlInitWithFlags"] = code
    with pytest.raises(error, match=words):
        one.source.start()
    assert one.library.inits == one.library.shutdowns == 0


def test_zero_gpus(host):
    """A driver without a GPU is no GPU, and NVML is closed again."""
    one = host(start=False)
    one.library.gpus.clear()
    with pytest.raises(NoGpuError, match="--gpus all"):
        one.source.start()
    assert one.library.inits == one.library.shutdowns == 1


def test_mismatch_while_opening(host):
    """A version mismatch told by a later call than nvmlInit is a version mismatch all the same."""
    one = host(start=False)
    one.library.fail["nvmlDeviceGetName"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(DriverMismatchError):
        one.source.start()


@pytest.mark.parametrize("code", [LOST, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN])
def test_third_gpu_cannot_be_opened(host, caplog, code):
    """A GPU that cannot be opened is left out and told; the others are read."""
    one = host(*three(), start=False)
    one.library.fail["handle", 2] = code
    facts = one.source.start()
    assert [gpu.uuid for gpu in facts] == ["GPU-a", "GPU-b"]
    assert "index 2 cannot be opened" in caplog.text
    reading = one.tick(5)
    assert ups(reading) == {"GPU-a": True, "GPU-b": True}
    one.library.fail.clear()
    reading = one.tick(100)
    assert ups(reading).get("GPU-c") is (None if code == pynvml.NVML_ERROR_NO_PERMISSION else True)
    assert caplog.text.count("cannot be opened") == 1


def test_no_gpu_answers(host):
    """A host whose only GPU is lost has a fault, not no GPU."""
    one = host(start=False)
    one.library.fail["handle", 0] = LOST
    with pytest.raises(SourceError, match="GPU 0: GPU_IS_LOST") as raised:
        one.source.start()
    assert not isinstance(raised.value, NoGpuError)


def test_facts(host):
    """The facts of a GPU are what the driver says, in base units."""
    facts = host().facts[0]
    assert (facts.index, facts.uuid, facts.model, facts.compute_capability) == (
        0,
        "GPU-00000000-0000-0000-0000-000000000001",
        "NVIDIA H200",
        "9.0",
    )
    assert (facts.driver, facts.pci_bus_id) == ("580.159.04", "00000000:00:06.0")
    assert facts.power_limit_watts == facts.default_power_limit_watts == 700.0
    assert (facts.sm_clock_max_hertz, facts.memory_clock_max_hertz) == (1.98e9, 3.201e9)
    assert (facts.memory_total_bytes, facts.pcie_generation, facts.pcie_width) == (150754820096.0, 5, 16)


def test_facts_that_are_not_given(host):
    """A fact that the driver does not give is None, and the GPU is read."""
    one = host(start=False)
    for function in ("nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetPowerManagementDefaultLimit"):
        one.library.fail[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    (facts,) = one.source.start()
    assert facts.pcie_width is None
    assert facts.default_power_limit_watts is None
    assert one.tick().gpus[0].up


def test_read_before_start(monkeypatch):
    """Reading what was not started is an error, not a crash."""
    load_into_pynvml(monkeypatch, None)
    with pytest.raises(SourceError, match="start"):
        NvmlSource().read()


# --- what a reading holds


def test_reading(host):
    """A reading holds raw values under the recordings' names, best part first, and its own time."""
    one = host()
    first, second = one.tick(), one.tick()
    row = one.library.gpus[0].at(2.0)
    active, plain = second.gpus[0].parts
    assert (active.source, plain.source) == ("nvml-gpm", "nvml")
    for name in (
        "gpu_util_pct",
        "mem_util_pct",
        "power_mw",
        "power_avg_mw",
        "power_instant_mw",
        "sm_clock_mhz",
        "mem_clock_mhz",
        "gpu_temp_c",
        "event_reasons",
        "sw_power_cap_ns",
        "sync_boost_ns",
        "sw_thermal_ns",
    ):
        assert plain.values[name] == row[name], name
    for name, value in one.library.gpus[0].window(1.0, 2.0).items():
        assert active.values[name] == pytest.approx(value), name
    assert second.gpus[0].owners == tuple(process["pid"] for process in row["procs"])
    assert (first.restart, second.restart) == (True, False)
    assert (second.end_s, second.unix_s, second.span_s, second.period_s) == (1002.0, 1e9 + 1002.0, 1.0, 1.0)
    assert second.host is None


def test_every_recorded_signal_is_read(host):
    """Everything that recordings hold of a GPU is in the first reading."""
    one = host()
    row = one.library.gpus[0].at(1.0)
    (active, plain) = one.tick().gpus[0].parts
    assert set(row["gpm"]) <= set(active.values)
    assert set(row) - {"index", "procs", "gpm"} <= set(plain.values)
    assert plain.values["power_limit_mw"] == 700000


def test_gauges_are_carried_and_counters_are_not(host):
    """Between two looks a gauge stays and a counter is absent, since its gain must count once."""
    one = host()
    energies = [name for _ in range(40) if (name := one.part("nvml")).get("energy_mj") is not None]
    assert len(energies) == 5  # the first, and each tenth
    assert all("memory_used_bytes" in one.part("nvml") for _ in range(20))
    assert 0 < one.library.calls["nvmlDeviceGetMemoryInfo_v2"] < 20


def test_gauge_that_fails_is_not_carried_on(host):
    """A gauge whose next look fails is absent, not old."""
    one = host()
    one.tick()
    one.library.fail["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_NO_DATA
    held = ["memory_used_bytes" in one.part("nvml") for _ in range(12)]
    assert held == sorted(held, reverse=True)
    assert not held[5]


def test_ticks_cost_the_same(host):
    """Expensive calls of eight GPUs are spread: no tick after the first asks two GPUs for energy."""
    one = host(*[FakeGpu("idle", uuid=f"GPU-{n}") for n in range(8)])
    one.tick()
    calls = []
    for _ in range(20):
        before = one.library.calls.copy()
        one.tick()
        calls.append(one.library.calls - before)
    assert max(tick[ENERGY] for tick in calls) == 1
    assert sum(tick[ENERGY] for tick in calls) == 16
    totals = [sum(tick.values()) for tick in calls]
    assert max(totals) - min(totals) <= 0.15 * min(totals)


def test_names_of_functions_in_older_drivers(host):
    """Where the driver has only the older function, the value comes from that."""
    one = host(start=False)
    one.library.absent |= {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        PROCESSES,
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    }
    one.source.start()
    reading = one.tick(2)
    values = reading.gpus[0].parts[-1].values
    assert values["event_reasons"] == 4
    assert values["memory_used_bytes"] > 0
    assert reading.gpus[0].owners
    assert one.source.capabilities()[reading.gpus[0].facts.key]["event_reasons"].source == "nvml"


def test_gap_asks_everything_anew(host):
    """After a long pause nothing old is shown, and no activity window spans it."""
    one = host()
    one.tick(3)
    before = one.library.calls[ENERGY]
    one.clock.now += 30.0
    reading = one.source.read()
    assert reading.span_s == 30.0
    assert [part.source for part in reading.gpus[0].parts] == ["nvml"]
    assert one.library.calls[ENERGY] == before + 1
    assert one.part("nvml-gpm") is not None


# --- GPM


def test_first_window_begins_at_start(host):
    """The first reading has activity when it comes a window after the start, and none when it does not."""
    assert host().part("nvml-gpm") is not None
    one = host()
    one.period_s = 0.05
    assert one.part("nvml-gpm") is None
    assert one.tick().span_s == pytest.approx(0.05)
    assert one.part("nvml-gpm") is not None  # the window went on


def test_no_gpm_on_this_card(host):
    """A card without GPM is read plainly, and doctor says why."""
    gpu = FakeGpu()
    gpu.gpm = False
    one = host(gpu)
    assert [part.source for part in one.tick().gpus[0].parts] == ["nvml"]
    capability = one.source.capabilities()[gpu.uuid, ""]["sm_util"]
    assert capability.source is None
    assert "not on this GPU" in capability.reason
    assert not one.library.calls["nvmlGpmSampleGet"]


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
def test_driver_without_gpm(host, function):
    """A driver that lacks any of GPM's functions costs activity only."""
    one = host(start=False)
    one.library.absent.add(function)
    one.source.start()
    reading = one.tick(3)
    assert [part.source for part in reading.gpus[0].parts] == ["nvml"]
    assert "FUNCTION_NOT_FOUND" in one.source.capabilities()[reading.gpus[0].facts.key]["sm_util"].reason


def test_second_sample_cannot_be_had(host):
    """A sample that was made before the other one failed is freed, and the GPU is read plainly."""
    one = host(start=False)
    one.library.fail["nvmlGpmSampleAlloc"] = iter([0, pynvml.NVML_ERROR_MEMORY]).__next__
    one.source.start()
    assert not one.library.samples
    assert one.tick().gpus[0].up


@pytest.mark.parametrize("refusal", ["metrics_unknown", "metrics_refused"])
def test_unknown_metric_costs_only_itself(host, refusal):
    """A metric id that the driver does not know is found out once and left out, also where it spoils the call."""
    gpu = FakeGpu()
    setattr(gpu, refusal, {pynvml.NVML_GPM_METRIC_FP16_UTIL})
    one = host(gpu)
    active = one.part("nvml-gpm")
    assert "fp16_util" not in active
    assert {"sm_util", "dram_bw_util", "nvlink_tx_mib_s"} <= set(active)
    calls = one.library.calls["nvmlGpmMetricsGet"]
    one.tick(5)
    assert one.library.calls["nvmlGpmMetricsGet"] == calls + 5
    assert "INVALID_ARGUMENT" in one.source.capabilities()[gpu.uuid, ""]["fp16_util"].reason


def test_metric_that_the_card_lacks(host):
    """A metric refused alone is not asked again; the recordings have no DMMA."""
    one = host()
    assert "dmma_tensor_util" not in one.part("nvml-gpm")
    assert one.source.capabilities()[one.facts[0].key]["dmma_tensor_util"].reason.endswith("NOT_SUPPORTED")


def test_metrics_refused_for_good_are_not_asked_one_by_one_for_ever(host):
    """A driver that refuses every metric with an odd error is asked one by one once only."""
    one = host()
    one.library.fail["nvmlGpmMetricsGet"] = pynvml.NVML_ERROR_UNKNOWN
    one.tick()
    calls = one.library.calls["nvmlGpmMetricsGet"]
    reading = one.tick(5)
    assert one.library.calls["nvmlGpmMetricsGet"] == calls + 5
    assert reading.gpus[0].up
    one.library.fail.clear()
    assert one.part("nvml-gpm")


def test_nan(host):
    """A NaN is handed on as it is and costs one signal, counted by the sample stage."""
    gpu = FakeGpu()
    gpu.changed["dram_bw_util"] = math.nan
    one = host(gpu)
    normaliser = Normaliser()
    (sample,) = normaliser.samples(one.tick())
    assert "dram_active_ratio" not in sample.values
    assert sample.values["sm_active_ratio"] > 0.9
    assert normaliser.rejected == {("dram_active_ratio", "nan"): 1}


def test_failed_sample_lengthens_the_window(host):
    """When a sample fails the next window goes back to the last good one."""
    one = host()
    one.tick()
    one.library.fail["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_NOT_READY
    assert one.part("nvml-gpm") is None
    one.library.fail.clear()
    assert one.part("nvml-gpm")["sm_util"] == pytest.approx(one.library.gpus[0].window(1.0, 3.0)["sm_util"])


# --- errors


def functions():
    """Every function that a tick calls."""
    with pytest.MonkeyPatch.context() as patch:
        one = Host(patch)
        before = one.library.calls.copy()
        one.tick(30)
        called = sorted(one.library.calls - before)
        one.source.close()
    return called


@pytest.mark.parametrize("code", [*MISSING, *NEVER, 2, 4, 7, 10, 17, 23, 999, 12345])
@pytest.mark.parametrize("function", functions())
def test_an_error_costs_its_values_only(host, caplog, function, code):
    """Whatever call fails with whatever code, the GPU stays up, all else is read, and the log stays short."""
    one = host(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    one.tick(2)
    whole = [set().union(*(part.values for part in gpu.parts)) for gpu in one.tick(1).gpus]
    on_a_gpu = function not in {"nvmlGpmMetricsGet", "nvmlEventSetWait_v2"}
    one.library.fail[(function, 0) if on_a_gpu else function] = code
    reading = one.tick(12)
    assert ups(reading) == {"GPU-a": True, "GPU-b": True}
    for _ in range(3):
        for place, gpu in enumerate(one.tick().gpus):
            missing = whole[place] - set().union(*(part.values for part in gpu.parts))
            gauges = {name for name in missing if not name.endswith("_ns") and name != "energy_mj"}
            assert len(gauges) <= {
                "nvmlDeviceGetFieldValues": 3,
                "nvmlGpmSampleGet": 16,
                "nvmlGpmMetricsGet": 16,
            }.get(function, 2)
            assert not gauges or place == 0 or not on_a_gpu
    one.library.fail.clear()
    parts = one.tick(12).gpus[0].parts
    if code in MISSING or code in {2, 7, 10, 17, 23, 999, 12345}:
        assert whole[0] - set().union(*(part.values for part in parts)) <= {
            "energy_mj",
            "hw_thermal_ns",
            "hw_power_brake_ns",
        }
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 16


@pytest.mark.parametrize("code", NEVER)
def test_not_asked_again(host, code):
    """What a GPU does not have is asked once on that GPU, and goes on being asked on the other."""
    one = host(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    one.library.fail[UTILISATION, 0] = code
    reading = one.tick(10)
    assert one.library.calls[UTILISATION] == 11
    assert "gpu_util_pct" not in reading.gpus[0].parts[-1].values
    assert "gpu_util_pct" in reading.gpus[1].parts[-1].values
    known = one.source.capabilities()
    assert known["GPU-a", ""]["gpu_util_pct"].source is None
    assert UTILISATION in known["GPU-a", ""]["gpu_util_pct"].reason
    assert known["GPU-b", ""]["gpu_util_pct"].source == "nvml"


def test_denied_is_told_once_with_a_remedy(host, caplog):
    """A refusal of permission is one warning that says how to have the value."""
    one = host()
    one.library.fail[PROCESSES] = pynvml.NVML_ERROR_NO_PERMISSION
    reading = one.tick(20)
    assert reading.gpus[0].owners is None
    assert one.library.calls[PROCESSES] == 1
    (message,) = [record.getMessage() for record in caplog.records]
    assert "missing: owners (nvmlDeviceGetComputeRunningProcesses_v3: NO_PERMISSION)" in message
    assert "run gpuwhy as root" in message


def test_unknown_code_is_counted_and_logged_sparsely(host, caplog):
    """A code that nobody knows costs the value each time, is counted, and fills no log."""
    one = host()
    one.library.fail[UTILISATION] = 777
    assert "gpu_util_pct" not in one.tick(100).gpus[0].parts[-1].values
    assert one.source.errors[one.facts[0].uuid, UTILISATION, "ERROR_777"] == 100
    assert caplog.text.count("ERROR_777") == 3  # the 1st, 10th and 100th
    one.library.fail.clear()
    assert "gpu_util_pct" in one.part("nvml")


@pytest.mark.parametrize("refusal", ["whole", pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_field_that_the_driver_does_not_know(host, refusal):
    """A field id that is refused, alone or with the whole call, costs only itself and is not asked again."""
    one = host(start=False)
    one.library.fail["field", 269] = refusal
    one.library.fail["field", 186] = pynvml.NVML_ERROR_NOT_SUPPORTED
    one.source.start()
    values = one.part("nvml")
    assert {"sw_power_cap_ns", "sync_boost_ns", "power_avg_mw"} <= set(values)
    assert not {"sw_thermal_ns", "power_instant_mw"} & set(values)
    assert {"sw_power_cap_ns", "sync_boost_ns", "power_avg_mw"} <= set(one.part("nvml"))
    known = next(iter(one.source.capabilities().values()))
    assert known["sw_thermal_ns"].reason == "nvmlDeviceGetFieldValues: INVALID_ARGUMENT"
    assert known["power_instant_mw"].reason == "nvmlDeviceGetFieldValues: NOT_SUPPORTED"


def test_mismatch_in_mid_run(host):
    """A driver that was replaced under us cannot be read by this process, and read() says so."""
    one = host()
    one.tick()
    one.library.fail["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(DriverMismatchError, match="restart gpuwhy"):
        one.tick()


# --- GPUs and drivers that go and come back


@pytest.mark.parametrize("code", [LOST, RESET_REQUIRED, GPU_NOT_FOUND])
@pytest.mark.parametrize("function", [UTILISATION, "nvmlGpmSampleGet", PROCESSES])
def test_lost_gpu_stays_visible_and_returns(host, caplog, function, code):
    """A lost GPU is down in every reading, its handle is not used again, and its UUID joins it again."""
    caplog.set_level(logging.INFO)
    one = host(*three())
    one.tick(2)
    lost = {"now": False}
    one.library.fail["*", 1] = lambda: code if lost["now"] else 0
    one.library.fail[function, 1] = code
    reading = one.tick(3 if function == PROCESSES else 1)
    lost["now"] = True
    del one.library.fail[function, 1]
    assert ups(reading) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    assert reading.gpus[1].parts == ()
    assert reading.gpus[1].owners is None
    down = one.source.capabilities()["GPU-b", ""]["sm_util"]
    assert down.source is None
    reading = one.tick(30)
    assert ups(reading) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    lost["now"] = False
    for _ in range(70):
        reading = one.tick()
        if reading.gpus[1].up:
            break
    assert ups(reading) == {"GPU-a": True, "GPU-b": True, "GPU-c": True}
    assert [gpu.facts.index for gpu in reading.gpus] == [0, 1, 2]
    assert one.part("nvml-gpm", gpu=1)
    assert not one.tick().restart
    assert caplog.text.count("is down") == caplog.text.count("answers again") == 1


def test_reopening_slows_down(host):
    """NVML is reopened after 1, 2, 4 ... 60 seconds while a GPU stays away."""
    one = host(*three())
    one.tick()
    one.library.fail["*", 1] = LOST
    opened = []
    for second in range(400):
        before = one.library.inits
        one.tick()
        if one.library.inits > before:
            opened.append(second)
    waits = [later - sooner for sooner, later in itertools.pairwise(opened)]
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert one.library.opened == 1


def test_flapping_gpu_is_not_chased(host):
    """A GPU that answers for seconds and is lost again does not make NVML be reopened each time at once."""
    one = host(*three())
    one.library.fail[UTILISATION, 1] = lambda: LOST if one.clock.now % 5 == 0 else 0
    seen = Counter(one.tick().gpus[1].up for _ in range(600))
    assert one.library.inits < 25
    assert seen[True] > 30


def test_gpu_lost_while_it_is_opened(host):
    """A GPU that is lost between its name and its first sample is visible, down, and comes back."""
    one = host(*three(), start=False)
    one.library.fail["nvmlGpmSampleGet", 1] = LOST
    assert [facts.uuid for facts in one.source.start()] == ["GPU-a", "GPU-c"]
    assert ups(one.tick()) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    one.library.fail.clear()
    assert all(ups(one.tick(5)).values())


def test_peers_of_a_lost_gpu_keep_their_activity(host):
    """Reopening NVML for a lost GPU costs the others no reading and no activity window."""
    gpus = three()
    one = host(*gpus)
    one.tick()
    one.library.fail["*", 1] = LOST
    for _ in range(20):
        reading = one.tick()
        for gpu in (reading.gpus[0], reading.gpus[2]):
            assert [part.source for part in gpu.parts] == ["nvml-gpm", "nvml"]
            assert gpu.owners
            assert "memory_used_bytes" in gpu.parts[1].values
    assert one.library.inits > 3


def test_gpu_that_answers_nothing_is_down(host):
    """A GPU all of whose calls fail oddly is not up, whatever the code is called."""
    one = host(*three())
    one.tick()
    one.library.fail["*", 0] = pynvml.NVML_ERROR_UNKNOWN
    assert ups(one.tick()) == {"GPU-a": False, "GPU-b": True, "GPU-c": True}
    one.library.fail.clear()
    assert all(ups(one.tick(60)).values())


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_driver_reload(host, code):
    """While the driver is gone all GPUs are down; afterwards counters start anew and the reading says so."""
    one = host(*three())
    normaliser = Normaliser()
    for _ in range(12):
        normaliser.samples(one.tick())
    one.library.fail["*"] = code
    reading = one.tick()
    assert not any(ups(reading).values())
    assert not reading.restart
    one.tick(20)
    one.library.fail.clear()
    for gpu in one.library.gpus:
        gpu.changed.update(energy_mj=5, sw_power_cap_ns=7, sync_boost_ns=0, sw_thermal_ns=0)
    restarts = 0
    for _ in range(60):
        reading = one.tick()
        restarts += reading.restart
        normaliser.samples(reading)
    assert all(ups(reading).values())
    assert restarts == 1
    assert not normaliser.rejected
    assert one.library.opened == 1


def test_driver_goes_in_the_middle_of_a_tick(host):
    """GPUs read before the driver went have their values; the others are down."""
    one = host(*three())
    one.tick()
    one.library.fail[UTILISATION, 1] = pynvml.NVML_ERROR_UNINITIALIZED
    assert ups(one.tick()) == {"GPU-a": True, "GPU-b": False, "GPU-c": False}


def test_init_fails_while_reopening(host):
    """When NVML cannot be opened again it is tried on, and opened once when it can."""
    one = host(*three())
    one.library.fail["*"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    one.tick()
    one.library.fail = {"nvmlInitWithFlags": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    assert not any(ups(one.tick(40)).values())
    assert one.library.opened == 0
    one.library.fail.clear()
    assert all(ups(one.tick(64)).values())
    assert one.library.opened == 1


def test_mismatch_while_reopening(host):
    """A driver that comes back in another version ends the source."""
    one = host()
    one.library.fail["*"] = pynvml.NVML_ERROR_UNINITIALIZED
    one.tick()
    one.library.fail = {"nvmlInitWithFlags": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    with pytest.raises(DriverMismatchError):
        one.tick(3)


def test_renumbered_gpus_keep_their_index(host):
    """When the driver numbers GPUs otherwise after a reload, each UUID keeps the index it had."""
    one = host(*three())
    one.tick()
    one.library.fail["*"] = pynvml.NVML_ERROR_UNINITIALIZED
    one.tick()
    one.library.fail.clear()
    one.library.gpus = [one.library.gpus[2], FakeGpu(uuid="GPU-new"), one.library.gpus[0]]
    reading = one.tick(5)
    assert {gpu.facts.uuid: (gpu.facts.index, gpu.up) for gpu in reading.gpus} == {
        "GPU-a": (0, True),
        "GPU-b": (1, False),
        "GPU-c": (2, True),
        "GPU-new": (3, True),
    }


def test_expected_gpu_that_nvml_does_not_show(host):
    """A GPU that another source knew is in the readings, down, from the first one on."""
    known = host(FakeGpu(uuid="GPU-x"), FakeGpu(uuid="GPU-a")).facts
    one = host(FakeGpu(uuid="GPU-a"), expected=known)
    reading = one.tick()
    assert {gpu.facts.uuid: (gpu.facts.index, gpu.up) for gpu in reading.gpus} == {
        "GPU-x": (0, False),
        "GPU-a": (1, True),
    }


def test_hang(host):
    """A call that hangs holds only its thread; when it returns, nothing old is shown."""
    one = host()
    one.tick(3)
    entered, release = threading.Event(), threading.Event()

    def hang():
        entered.set()
        release.wait(10)
        return 0

    one.library.fail["nvmlDeviceGetPowerUsage"] = hang
    readings = []
    thread = threading.Thread(target=lambda: readings.append(one.tick()))
    thread.start()
    assert entered.wait(5)
    one.clock.now += 120.0
    release.set()
    thread.join(5)
    assert readings[0].gpus[0].up
    one.library.fail.clear()
    reading = one.tick()
    assert reading.span_s == pytest.approx(121.0)
    assert [part.source for part in reading.gpus[0].parts] == ["nvml"]
    assert [part.source for part in one.tick().gpus[0].parts] == ["nvml-gpm", "nvml"]


def test_close(host):
    """Closing is safe twice and before a start, and a source can be started again."""
    one = host()
    one.tick()
    one.source.close()
    one.source.close()
    assert one.library.opened == 0
    assert not one.library.samples
    one.source.start()
    assert one.tick().restart
    NvmlSource().close()


# --- Xid


def test_xids(host):
    """Critical errors are in the reading after them, in order, repeats included, on their own GPU."""
    one = host(*three())
    assert one.library.watched == {0, 1, 2}
    one.library.xids.extend([(1, 31), (1, 31), (2, 94)])
    reading = one.tick()
    assert [gpu.parts[-1].values.get("xid_events") for gpu in reading.gpus] == [None, (31, 31), (94,)]
    assert all("xid_events" not in gpu.parts[-1].values for gpu in one.tick().gpus)


def test_xid_of_a_gpu_that_falls_off_the_bus(host):
    """The error that says why a GPU is gone comes with the reading that says that it is gone."""
    one = host(*three())
    one.library.xids.append((1, 79))
    one.library.fail["*", 1] = LOST
    gpu = one.tick().gpus[1]
    assert not gpu.up
    assert gpu.parts[0].values == {"xid_events": (79,)}
    assert Normaliser().samples(one.tick()) is not None


def test_lost_gpu_in_the_event_set(host):
    """A wait that answers GPU_IS_LOST is no trouble of its own."""
    one = host(*three())
    one.library.fail["nvmlEventSetWait_v2"] = LOST
    assert all(ups(one.tick(3)).values())
    one.library.fail.clear()
    one.library.xids.append((0, 63))
    assert one.tick().gpus[0].parts[-1].values["xid_events"] == (63,)


@pytest.mark.parametrize(
    "function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"]
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, 999])
def test_no_events(host, function, code):
    """Where events cannot be had, all else is read."""
    one = host(start=False)
    one.library.fail[function] = code
    one.source.start()
    assert one.tick(3).gpus[0].up
    if code != 999:
        assert one.library.calls[function] == 1


def test_endless_events_do_not_hold_the_tick(host):
    """A GPU that announces errors without end cannot hold the tick."""
    one = host()
    one.library.xids.extend([(0, 13)] * 1000)
    assert 0 < len(one.part("nvml")["xid_events"]) < 1000


# --- process lists


def owners(host, pids, **gpu_fields):
    gpu = FakeGpu("parked")
    gpu.pids = pids
    for name, value in gpu_fields.items():
        setattr(gpu, name, value)
    one = host(gpu)
    return one, one.tick().gpus[0].owners


@pytest.mark.parametrize(
    ("pids", "expected"),
    [
        ([], ()),
        ([42], (42,)),
        ([42, 42, 43], (42, 43)),
        ([0, 42], (42,)),
        ([42, 0xFFFFFFFF, 3_000_000_000], (42,)),
        ([0, 0xFFFFFFFF], None),
    ],
)
def test_process_lists_that_lie(host, pids, expected):
    """Pids that cannot exist are left out and counted; a list of nothing else was not read."""
    one, found = owners(host, pids)
    assert found == expected
    assert bool(one.source.errors) == any(not 0 < pid < 2**22 for pid in pids)


def test_long_process_list(host):
    """A list longer than the buffer is read with a longer one, and asked once a time from then on."""
    one, found = owners(host, list(range(1, 501)))
    assert found == tuple(range(1, 501))
    calls = one.library.calls[PROCESSES]
    one.tick(3)
    assert one.library.calls[PROCESSES] == calls + 1


def test_endless_process_list(host):
    """A list that claims to be endless was not read, and takes no memory."""
    one = host()

    def endless(gpu, count, buffer):
        count._obj.value = 0xFFFFFFF0
        return pynvml.NVML_ERROR_INSUFFICIENT_SIZE

    one.library._nvmlDeviceGetComputeRunningProcesses_v3 = endless
    reading = one.tick()
    assert reading.gpus[0].owners is None
    assert reading.gpus[0].up


def test_mps_clients_are_owners(host):
    """Clients of an MPS server count as owners beside the server."""
    _, found = owners(host, [10], mps_pids=[20, 21, 10])
    assert found == (10, 20, 21)


def test_busy_gpu_with_an_empty_list(host):
    """An empty list while somebody works shows only that we cannot see who: it was not read."""
    gpu = FakeGpu("gemm")
    gpu.pids = []
    assert host(gpu).tick().gpus[0].owners is None


def test_owners_follow_work_that_starts(host):
    """The list is read at once when GPU-Util starts or stops, not only when it is due."""
    gpu = FakeGpu("parked")
    gpu.pids = []
    one = host(gpu)
    one.tick(2)
    for util, pids in ((80, [7]), (0, []), (50, [8, 9])):
        gpu.pids = pids
        gpu.changed["gpu_util_pct"] = util
        assert one.tick().gpus[0].owners == tuple(pids)


# --- MIG


def test_mig_parent(host, caplog):
    """A GPU split by MIG is up with what the driver says of the board, and has no activity."""
    caplog.set_level(logging.INFO)
    gpu = FakeGpu()
    gpu.mig = True
    one = host(gpu)
    reading = one.tick(3)
    assert reading.gpus[0].up
    assert [part.source for part in reading.gpus[0].parts] == ["nvml"]
    assert "gpu_util_pct" not in reading.gpus[0].parts[0].values
    assert "power_mw" in reading.gpus[0].parts[0].values
    assert "split by MIG" in caplog.text


# --- what other sources serve


ACTIVE = frozenset(name for name, _ in METRICS)
PLAIN = frozenset(
    {
        *("gpu_util_pct", "mem_util_pct", "power_mw", "sm_clock_mhz", "mem_clock_mhz", "gpu_temp_c"),
        *("event_reasons", "power_avg_mw", "power_instant_mw", "pstate", "power_limit_mw", "mem_temp_c"),
        *("sw_power_cap_ns", "sync_boost_ns", "sw_thermal_ns", "hw_thermal_ns", "hw_power_brake_ns"),
        *("memory_used_bytes", "energy_mj"),
    }
)
LISTS = {PROCESSES, "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlEventSetWait_v2"}


def spare(one, *names, gpu=0):
    one.source.spared = {one.facts[gpu].key: frozenset(names)}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("nvmlDeviceGetPowerUsage", ["power_mw"]),
        ("nvmlDeviceGetMemoryInfo_v2", ["memory_used_bytes"]),
        (ENERGY, ["energy_mj"]),
        (UTILISATION, ["gpu_util_pct", "mem_util_pct"]),
    ],
)
def test_spared(host, function, names):
    """What is spared is not asked and not carried on, on that GPU only; afterwards it is there at once."""
    one = host(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    one.tick(3)
    one.library.fail[function, 0] = lambda: pytest.fail("was asked")
    spare(one, *names)
    for _ in range(12):
        reading = one.tick()
        assert not set(names) & set(reading.gpus[0].parts[-1].values)
        assert "sm_clock_mhz" in reading.gpus[0].parts[-1].values
    assert "another source" in one.source.capabilities()["GPU-a", ""][names[0]].reason
    assert one.source.capabilities()["GPU-b", ""][names[0]].source == "nvml"
    one.library.fail.clear()
    one.source.spared = {}
    assert set(names) <= set(one.tick().gpus[0].parts[-1].values)


def test_spared_in_part(host):
    """Of what one call gives, all is asked as long as anything of it is wanted."""
    one = host()
    spare(one, "gpu_util_pct", "power_avg_mw", "sw_power_cap_ns", "sync_boost_ns")
    values = one.part("nvml")
    assert {"mem_util_pct", "power_instant_mw", "sw_thermal_ns"} <= set(values)


@pytest.mark.parametrize("ticks", [1, 3, 20])
def test_spared_activity(host, ticks):
    """No sample is taken while all activity is spared, and no window goes back over the pause."""
    one = host(FakeGpu("sawtooth"))
    one.tick(3)
    spare(one, *ACTIVE)
    calls = one.library.calls["nvmlGpmSampleGet"]
    for _ in range(ticks):
        assert [part.source for part in one.tick().gpus[0].parts] == ["nvml"]
    assert one.library.calls["nvmlGpmSampleGet"] == calls
    spare(one, *(ACTIVE - {"nvlink_rx_mib_s"}))
    assert one.part("nvml-gpm") is None  # the new window begins
    now = one.clock.now - one.library.loaded_s
    window = one.library.gpus[0].window(now, now + 1)
    assert one.part("nvml-gpm")["sm_util"] == pytest.approx(window["sm_util"])


def test_beside_a_source_of_all_signals_no_activity_is_sampled(host):
    """What the ladder can spare are signals: raw values that are only recorded cost no call for themselves."""
    one = host()
    one.tick(3)
    spare(one, *SIGNAL_OF_RAW)
    calls = one.library.calls.copy()
    assert [part.source for part in one.tick(10).gpus[0].parts] == []
    assert set(one.library.calls - calls) == {*LISTS, "nvmlDeviceGetMigMode"}


def test_everything_spared(host):
    """Then lists and events are read on, and a GPU without answers is none that is lost."""
    one = host(*three())
    one.tick(2)
    one.source.spared = {facts.key: ACTIVE | PLAIN for facts in one.facts}
    before = one.library.calls.copy()
    one.library.xids.append((1, 31))
    readings = [one.tick() for _ in range(30)]
    assert set(one.library.calls - before) == {*LISTS, "nvmlDeviceGetMigMode"}
    assert all(gpu.up and gpu.owners for reading in readings for gpu in reading.gpus)
    assert readings[0].gpus[1].parts[0].values == {"xid_events": (31,)}
    assert readings[1].gpus[1].parts == ()
    assert one.library.inits == 1
    one.library.fail["*", 1] = LOST
    assert ups(one.tick(3)) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}


def test_the_little_that_is_asked_has_no_answer(host):
    """A GPU is not lost because the one thing still asked of it has no value; it is when nothing has."""
    one = host(*three())
    one.source.spared = {facts.key: PLAIN - {"mem_temp_c"} for facts in one.facts}
    one.tick(2)
    one.library.fail["field", 82] = pynvml.NVML_ERROR_NOT_READY
    for _ in range(12):
        reading = one.tick()
        assert all(ups(reading).values())
        assert all(not PLAIN & set(gpu.parts[-1].values) - {"mem_temp_c"} for gpu in reading.gpus)
    one.library.fail["*", 0] = pynvml.NVML_ERROR_UNKNOWN
    assert not all(ups(one.tick())["GPU-a"] for _ in range(5))


def test_owners_without_gpu_util(host):
    """Where GPU-Util is spared the list follows its cadence, and an empty one is believed."""
    gpu = FakeGpu("gemm")
    gpu.pids = []
    one = host(gpu)
    assert one.tick().gpus[0].owners is None
    spare(one, "gpu_util_pct", "mem_util_pct")
    assert one.tick().gpus[0].owners == ()
    before = one.library.calls[PROCESSES]
    gpu.pids = [7]
    found = [one.tick().gpus[0].owners for _ in range(9)]
    assert found[3:] == [(7,)] * 6
    assert one.library.calls[PROCESSES] == before + 3
    one.source.spared = {}
    one.tick(3)
    before = one.library.calls[PROCESSES]
    spare(one, "gpu_util_pct", "mem_util_pct")
    one.tick(3)
    assert one.library.calls[PROCESSES] == before + 1


def test_lists_only(host):
    """Process lists and events are read, and no values: for who wants them from another source."""
    one = host(*three(), lists_only=True)
    before = one.library.calls.copy()
    one.library.xids.append((0, 79))
    first, *readings = [one.tick() for _ in range(30)]
    assert set(one.library.calls - before) == {*LISTS, "nvmlDeviceGetMigMode"}
    assert first.gpus[0].parts[0].values == {"xid_events": (79,)}
    assert all(gpu.up and gpu.owners and not gpu.parts for reading in readings for gpu in reading.gpus)
    assert one.facts[0].model == "NVIDIA H200"
    known = one.source.capabilities()["GPU-a", ""]
    assert {name for name, one in known.items() if one.source} == {"owners"}
    assert {one.reason for name, one in known.items() if name != "owners"} == {
        "only process lists are read through NVML"
    }
    assert not one.library.samples


def test_lists_only_without_answers(host):
    """A GPU whose lists cannot be read is there, unless the driver says that it is lost."""
    one = host(*three(), lists_only=True)
    one.tick()
    for function in LISTS:
        one.library.fail[function, 0] = pynvml.NVML_ERROR_UNKNOWN
    one.library.fail["*", 1] = LOST
    reading = one.tick(4)
    assert ups(reading) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    assert reading.gpus[0].owners is None


# --- capabilities


def test_capabilities(host):
    """After a first window every value that recordings hold is served, by the part that carries it."""
    one = host()
    one.tick()
    known = one.source.capabilities()[one.facts[0].key]
    assert {name: one.source for name, one in known.items() if one.source is None} == {
        "dmma_tensor_util": None
    }
    assert {name for name, one in known.items() if one.source == "nvml-gpm"} == {
        name for name, _ in METRICS
    } - {"dmma_tensor_util"}
    assert known["owners"].source == known["gpu_util_pct"].source == "nvml"


def test_capabilities_before_a_reading(host):
    """Nothing is claimed to be served before it was."""
    one = host()
    assert {capability.reason for capability in one.source.capabilities()[one.facts[0].key].values()} == {
        "no value yet"
    }


# --- the whole


NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_are_those_of_the_recording(host, name):
    """A driver that says what a recording holds gets the recording's verdicts."""
    recording = load(RECORDINGS / f"{name}.jsonl.gz")
    played = list(recording.readings())
    gpus = [FakeGpu(name, place) for place in range(len(recording.gpus))]
    one = host(*gpus, period_s=recording.period_s, start=False)
    one.clock.now = played[0].end_s - played[0].span_s
    one.library.loaded_s = played[0].end_s
    one.source.start()
    pipelines = [Pipeline(interval_s=5.0, hold=True), Pipeline(interval_s=5.0, hold=True)]
    found = [[], []]
    for recorded in played:
        one.clock.now = recorded.end_s
        read = replace(one.source.read(), host=recorded.host)
        for place, reading in enumerate((recorded, read)):
            found[place] += pipelines[place].feed(reading)
    for place, stages in enumerate(pipelines):
        found[place] += stages.finish()
    recorded, read = (
        [
            [(verdict.gpu.key, verdict.verdict, verdict.cause) for verdict in judged.verdicts]
            for judged in intervals
        ]
        for intervals in found
    )
    assert recorded
    assert read == recorded
    assert pipelines[1].normaliser.rejected == pipelines[0].normaliser.rejected


def test_an_hour_of_ticks_leaves_nothing_behind(host):
    """After a warm-up, an hour of ticks grows neither objects nor memory nor open files."""
    one = host(FakeGpu("one_busy", 0, uuid="GPU-a"), FakeGpu("one_busy", 1, uuid="GPU-b"))
    one.library.fail[UTILISATION, 1] = 777  # odd answers, too, must not pile up
    one.tick(300)

    def state():
        gc.collect()
        return len(gc.get_objects()), len(list(Path("/proc/self/fd").iterdir()))

    before = state()
    tracemalloc.start()
    one.tick(60)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    one.tick(600)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - memory
    tracemalloc.stop()
    one.tick(3600 - 660)
    after = state()
    assert abs(after[0] - before[0]) < 50
    assert after[1] == before[1]
    assert grown < 16_384
