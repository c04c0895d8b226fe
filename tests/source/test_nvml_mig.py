"""The NVML source on GPUs in MIG mode: rows for instances, and reconfiguration under its hands."""

from __future__ import annotations

import logging
from collections import Counter

import pynvml
import pytest

from gpuwhy.sample import Normaliser
from gpuwhy.source.nvml import METRICS

from .fake_nvml import FakeGpu, FakeInstance, hosts

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
LINKS = {"pcie_tx_mib_s", "pcie_rx_mib_s", "nvlink_rx_mib_s", "nvlink_tx_mib_s"}
SAMPLE = "nvmlGpmMigSampleGet"
BY_INDEX = "nvmlDeviceGetMigDeviceHandleByIndex"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def host(monkeypatch):
    """``host(*gpus)``; at the end everything must have been given back, and no dead handle used."""
    with hosts(monkeypatch) as make:
        yield make


def split(*instances, uuid="GPU-a", **fields):
    """A GPU in MIG mode."""
    gpu = FakeGpu("gemm", uuid=uuid)
    gpu.mig, gpu.instances = True, list(instances)
    for name, value in fields.items():
        setattr(gpu, name, value)
    return gpu


def two(**fields):
    """A GPU of a busy instance 2 and an idle instance 13."""
    return split(
        FakeInstance(13, "1g.10gb", "idle", {0: []}), FakeInstance(2, "3g.40gb", "gemm", {0: [7]}), **fields
    )


def rows(reading):
    return {gpu.facts.mig: gpu for gpu in reading.gpus}


def values(gpu, name):
    return next((part.values for part in gpu.parts if part.source == name), {})


# --- rows


def test_rows(host):
    """A split GPU has its board's row, then one for each instance by number, with profile and share."""
    one = host(two(), FakeGpu("idle", uuid="GPU-b"))
    assert [(facts.key, facts.index) for facts in one.facts] == [
        (("GPU-a", ""), 0),
        (("GPU-a", "2"), 0),
        (("GPU-a", "13"), 0),
        (("GPU-b", ""), 1),
    ]
    assert [gpu.facts for gpu in one.tick().gpus] == list(one.facts)
    board, large, small, other = one.facts
    assert [facts.split for facts in one.facts] == [True, False, False, False]
    assert [facts.profile for facts in one.facts] == ["", "3g.40gb", "1g.10gb", ""]
    assert [facts.share_ratio for facts in one.facts] == pytest.approx([3 / 7, 3 / 7, 1 / 7, 1.0])
    assert large.memory_total_bytes == (40 * 1024 - 512) * 2**20 + 4096
    assert small.memory_total_bytes == (10 * 1024 - 512) * 2**20 + 4096
    assert board.memory_total_bytes is None  # it is the instances', and would be counted twice
    assert other.memory_total_bytes == 150754820096.0
    assert {facts.model for facts in one.facts} == {"NVIDIA H200"}


def test_values(host):
    """Activity, memory and owners are the instances'; power, clocks and reasons the board's; nothing twice."""
    one = host(two())
    one.tick()
    found = rows(one.tick())
    gpu = one.library.gpus[0]
    row = gpu.at(2.0)
    board = values(found[""], "nvml")
    for name in (
        "power_mw",
        "power_avg_mw",
        "sm_clock_mhz",
        "gpu_temp_c",
        "event_reasons",
        "sw_power_cap_ns",
    ):
        assert board[name] == row[name], name
    assert not {"gpu_util_pct", "mem_util_pct", "memory_used_bytes"} & set(board)
    assert [part.source for part in found[""].parts] == ["nvml"]
    assert found[""].owners == ()
    for number, owners in (("2", (7,)), ("13", ())):
        instance = next(one for one in gpu.instances if str(one.id) == number)
        active = values(found[number], "nvml-gpm")
        assert active["sm_util"] == pytest.approx(instance.window(1.0, 2.0)["sm_util"])
        assert not LINKS & set(active)
        assert values(found[number], "nvml") == {"memory_used_bytes": instance.at(1.0)["memory_used_bytes"]}
        assert found[number].owners == owners
    assert values(found["2"], "nvml-gpm")["sm_util"] > 90
    assert values(found["13"], "nvml-gpm")["sm_util"] < 1
    assert {sample.gpu.mig for sample in Normaliser().samples(one.tick())} == {"", "2", "13"}


def test_links_of_the_board(host):
    """Where the whole board can be sampled in MIG mode, its links are read, and nothing else of it."""
    one = host(two(board_gpm=True))
    one.tick()
    found = rows(one.tick())
    assert set(values(found[""], "nvml-gpm")) == LINKS
    assert not LINKS & set(values(found["2"], "nvml-gpm"))


def test_no_instances(host):
    """A split GPU without instances is its board alone, all of it unused."""
    (board,) = host(split()).tick().gpus
    assert (board.facts.split, board.facts.share_ratio, board.owners) == (True, 1.0, ())
    assert values(board, "nvml")["power_mw"] > 0


def test_shares_of_a_card_with_four_slices(host):
    """The whole is what the card's largest profile has; where no profile is told, seven."""
    gpu = split(FakeInstance(3, "2g.20gb"), slices=4)
    assert [facts.share_ratio for facts in host(gpu).facts] == [0.5, 0.5]
    one = host(gpu, start=False)
    for function in ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        one.library.fail[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert [facts.share_ratio for facts in one.source.start()] == pytest.approx([5 / 7, 2 / 7])


def test_several_compute_instances_are_one_row(host):
    """A GPU instance is one row however its compute is divided, with all their owners."""
    instance = FakeInstance(1, "3g.40gb", compute={0: [5], 1: [], 2: [6, 5]})
    instance.mps_pids = [9]
    found = rows(host(split(instance)).tick())
    assert list(found) == ["", "1"]
    assert (found["1"].facts.profile, found["1"].facts.share_ratio) == ("3g.40gb", pytest.approx(3 / 7))
    assert found["1"].owners == (5, 6, 9)


def test_devices_of_an_instance(host):
    """An instance's row has the UUIDs of its compute instances, by which it is granted; no other row has any."""
    whole = FakeGpu("idle", uuid="GPU-b")
    instances = [
        FakeInstance(1, compute={0: [5], 2: [6]}),
        FakeInstance(2),
        FakeInstance(3, "1g.10gb", compute={}),
    ]
    one = host(split(*instances), whole)
    for _ in range(3):
        found = {(gpu.facts.uuid, gpu.facts.mig): gpu.device_uuids for gpu in one.tick().gpus}
        assert found == {
            ("GPU-a", ""): (),
            ("GPU-a", "1"): ("MIG-1-0", "MIG-1-2"),
            ("GPU-a", "2"): ("MIG-2-0",),
            ("GPU-a", "3"): (),
            ("GPU-b", ""): (),
        }
    instances[1].life = "-again"
    assert rows(one.tick(12))["2"].device_uuids == ("MIG-2-0-again",)


def test_device_whose_uuid_is_not_told(host):
    """An instance that does not tell its UUID has a row, and no name to be granted by."""
    one = host(split(FakeInstance(1)), start=False)
    one.library.fail["nvmlDeviceGetUUID", (0, 1)] = pynvml.NVML_ERROR_UNKNOWN
    one.source.start()
    assert rows(one.tick())["1"].device_uuids == ()


def test_gaps_between_mig_devices(host):
    """A number without a MIG device behind it is no end of them, and no trouble."""
    one = host(split(None, FakeInstance(1, "1g.10gb"), None, FakeInstance(2, "1g.10gb"), None))
    assert [facts.mig for facts in one.facts] == ["", "1", "2"]
    assert not one.source.errors


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        (b"NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "3g.20gb"),
        (b"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        (b"NVIDIA A30", "3g.40gb"),  # by its size
    ],
)
def test_profile(host, name, profile):
    """The profile is in a MIG device's name; without it, the slices and the memory make it."""
    one = host(split(FakeInstance(1, "3g.40gb")), start=False)

    def get_name(device, buffer, size):
        buffer.value = name

    one.library._nvmlDeviceGetName = get_name
    assert one.source.start()[1].profile == profile


def test_size_and_number_that_are_not_told(host):
    """Without a MIG device's size its share comes from its name; without their number, as many as can be."""
    one = host(split(FakeInstance(1, "3g.40gb")), start=False)
    one.library.fail["nvmlDeviceGetAttributes_v2"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    one.library.fail["nvmlDeviceGetMaxMigDeviceCount"] = pynvml.NVML_ERROR_UNKNOWN
    assert one.source.start()[1].share_ratio == pytest.approx(3 / 7)


def test_instance_without_a_compute_instance(host):
    """It is there with no data and no owners, and is not asked for any; root alone can see it."""
    gpu = split(FakeInstance(1, "2g.20gb", compute={}), FakeInstance(2, "3g.40gb"))
    one = host(gpu)
    found = rows(one.tick(3))
    assert (found["1"].facts.profile, found["1"].facts.share_ratio) == ("2g.20gb", pytest.approx(2 / 7))
    assert found["1"].facts.memory_total_bytes == (20 * 1024 - 512) * 2**20
    assert (found["1"].parts, found["1"].owners, found["1"].up) == ((), (), True)
    assert found[""].facts.share_ratio == pytest.approx(2 / 7)
    assert not one.source.errors
    assert one.library.calls[SAMPLE] == 4  # the other one's, with the first at the start
    reason = one.source.capabilities()["GPU-a", "1"]["sm_util"].reason
    assert "without a compute instance" in reason
    gpu.instances[0].compute[0] = [3]
    found = rows(one.tick(12))
    assert found["1"].owners == (3,)
    assert values(found["1"], "nvml-gpm")

    gpu.instances[0].compute.clear()
    one = host(gpu, start=False)
    one.library.privileged = False
    assert [facts.share_ratio for facts in one.source.start()] == pytest.approx([4 / 7, 3 / 7])


def test_unprivileged(host, caplog):
    """Who may not ask the whole GPU gets memory, activity and owners of its instances all the same."""
    one = host(two(), start=False)
    one.library.privileged = False
    one.source.start()
    one.tick(29)
    found = rows(one.tick())
    assert found[""].facts.memory_total_bytes is None
    assert found["2"].owners == (7,)
    assert set(values(found["2"], "nvml")) == {"memory_used_bytes"}
    assert values(found["2"], "nvml-gpm")["sm_util"] > 90
    (message,) = [record.getMessage() for record in caplog.records]
    assert "missing: MIG instances without a compute instance" in message
    assert one.library.calls["nvmlDeviceGetGpuInstances"] == 1


def test_card_without_gpm(host):
    """Where the card has no GPM an instance has its memory and its owners."""
    one = host(two(gpm=False))
    found = rows(one.tick(2))
    assert [part.source for part in found["2"].parts] == ["nvml"]
    assert found["2"].owners == (7,)
    assert "not on this GPU" in one.source.capabilities()["GPU-a", "2"]["sm_util"].reason
    assert not one.library.calls[SAMPLE]


def test_capabilities(host):
    """Each row says what it carries itself; what is another row's, or nobody's, has a reason."""
    one = host(two())
    one.tick()
    known = one.source.capabilities()
    assert list(known) == [("GPU-a", ""), ("GPU-a", "2"), ("GPU-a", "13")]
    assert len({frozenset(found) for found in known.values()}) == 1
    carried = {key[1]: {name for name, one in found.items() if one.source} for key, found in known.items()}
    activity = {name for name, _ in METRICS} - LINKS - {"dmma_tensor_util"}
    assert carried["2"] == carried["13"] == activity | {"memory_used_bytes", "owners"}
    assert {"power_mw", "energy_mj", "event_reasons", "owners"} <= carried[""]
    assert not carried[""] & carried["2"] - {"owners"}
    assert "MIG mode" in known["GPU-a", ""]["gpu_util_pct"].reason
    assert known["GPU-a", ""]["pcie_rx_mib_s"].reason == "nvmlGpmSampleGet: NOT_SUPPORTED"


def test_xid_is_the_boards(host):
    """A critical error is in the board's row, once."""
    one = host(two())
    one.library.xids.append((0, 94))
    found = rows(one.tick())
    assert values(found[""], "nvml")["xid_events"] == (94,)
    assert "xid_events" not in values(found["2"], "nvml")


def test_calls_of_a_tick(host):
    """An instance costs a sample each tick, and little beside it, spread over the ticks."""
    one = host(split(*(FakeInstance(number, "1g.10gb", "idle") for number in range(7, 14))))
    one.tick(2)
    calls: Counter[str] = Counter()
    for _ in range(30):
        before = one.library.calls.copy()
        one.tick()
        calls += one.library.calls - before
        assert one.library.calls[MEMORY] - before[MEMORY] <= 2
        assert one.library.calls[PROCESSES] - before[PROCESSES] <= 3
    assert calls[SAMPLE] == calls["nvmlGpmMetricsGet"] == 7 * 30
    assert not calls["nvmlDeviceGetGpuInstances"]  # no slice is left for one that does not show
    rest = sum(calls.values()) - calls[SAMPLE] - calls["nvmlGpmMetricsGet"]
    alone = host(split())
    alone.tick(2)
    before = alone.library.calls.copy()
    alone.tick(30)
    assert rest - sum((alone.library.calls - before).values()) < 10 * 30


# --- errors


@pytest.mark.parametrize("code", [2, 3, 4, 6, 10, 21, 27, 999, 12345])
@pytest.mark.parametrize(
    "function", [MEMORY, SAMPLE, PROCESSES, "nvmlDeviceGetMPSComputeRunningProcesses_v3"]
)
def test_an_error_costs_its_values_only(host, caplog, function, code):
    """A call that fails on an instance costs only what it gives; the look that it causes is not repeated."""
    one = host(two())
    one.tick(6)
    one.library.fail[function, (0, 2)] = code
    if function == MEMORY:
        one.library.fail["nvmlDeviceGetMemoryInfo", (0, 2)] = code  # the older one would stand in
    looks = one.library.calls[BY_INDEX]
    for _ in range(12):
        found = rows(one.tick())
        assert list(found) == ["", "2", "13"]
        assert all(gpu.up for gpu in found.values())
    assert one.library.calls[BY_INDEX] - looks <= 7 * 3
    if function == MEMORY:
        assert not values(found["2"], "nvml")
        assert values(found["2"], "nvml-gpm")
    elif function == PROCESSES:
        assert found["2"].owners is None
    elif function == SAMPLE:
        assert not values(found["2"], "nvml-gpm")
        assert values(found["2"], "nvml")
    assert values(found["13"], "nvml-gpm")
    assert values(found[""], "nvml")["power_mw"]
    one.library.fail.clear()
    found = rows(one.tick(12))
    if code not in {3, 4}:
        assert found["2"].owners == (7,)
        assert len(found["2"].parts) == 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 4


@pytest.mark.parametrize("refusal", ["metrics_unknown", "metrics_refused"])
def test_unknown_metric_costs_only_itself(host, refusal):
    """A metric id that the driver does not know is left out on instances as on whole GPUs."""
    gpu = split(FakeInstance(1))
    setattr(gpu.instances[0], refusal, {pynvml.NVML_GPM_METRIC_FP16_UTIL})
    one = host(gpu)
    active = values(rows(one.tick(5))["1"], "nvml-gpm")
    assert "fp16_util" not in active
    assert {"sm_util", "dram_bw_util"} <= set(active)
    assert not one.source.errors
    assert "INVALID_ARGUMENT" in one.source.capabilities()["GPU-a", "1"]["fp16_util"].reason


@pytest.mark.parametrize("code", [4, 6, 10, 999])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
    ],
)
def test_look_that_is_refused(host, function, code):
    """Whatever cannot be asked when the layout is looked at, the GPU is read on."""
    one = host(two())
    one.tick()
    one.library.fail[function] = code
    reading = one.tick(12)
    assert all(gpu.up for gpu in reading.gpus)
    assert rows(reading)[""].facts.split
    one.library.fail.clear()
    assert one.tick(12).gpus[0].up


def test_refusals_end_with_the_mode(host):
    """One MIG device's refusal is not the others'; what the GPU refuses is asked anew when MIG comes anew."""
    gpu = two()
    one = host(gpu, start=False)
    one.library.fail["nvmlDeviceGetGpuInstanceId", (0, 13)] = pynvml.NVML_ERROR_NOT_SUPPORTED
    one.library.privileged = False
    assert [facts.mig for facts in one.source.start()] == ["", "2"]
    one.library.fail.clear()
    one.library.fail[BY_INDEX] = pynvml.NVML_ERROR_NOT_SUPPORTED
    one.tick(12)
    one.library.fail.clear()
    assert list(rows(one.tick(12))) == [""]
    gpu.mig = False
    one.tick(12)
    gpu.mig = True
    assert list(rows(one.tick(12))) == ["", "2", "13"]


# --- reconfiguration


def test_destroyed_instance(host):
    """An instance that is gone leaves the readings at once, and its share is the board's."""
    gpu = two()
    one = host(gpu)
    one.tick(2)
    held = len(one.library.samples)
    del gpu.instances[1]
    found = rows(one.tick())
    assert list(found) == ["", "13"]
    assert found[""].facts.share_ratio == pytest.approx(6 / 7)
    assert values(found["13"], "nvml-gpm")
    assert len(one.library.samples) == held - 2
    assert ("GPU-a", "2") not in one.source.capabilities()


@pytest.mark.parametrize("gpm", [True, False])
def test_new_instance(host, gpm):
    """A new instance is there within ten ticks; those that stay lose nothing, though handles move."""
    gpu = split(*(FakeInstance(number, "1g.10gb") for number in (5, 6, 7)), gpm=gpm)
    for instance in gpu.instances:
        instance.changed["memory_used_bytes"] = instance.id
    one = host(gpu)
    one.tick(3)
    gpu.instances[0:1] = []
    gpu.instances.append(FakeInstance(1, "2g.20gb"))
    seen = []
    for _ in range(12):
        found = rows(one.tick())
        seen.append("1" in found)
        for number in ("6", "7"):
            assert values(found[number], "nvml") == {"memory_used_bytes": int(number)}
            assert found[number].owners == (100 + int(number),)
            assert bool(values(found[number], "nvml-gpm")) == gpm
    assert list(found) == ["", "1", "6", "7"]
    assert seen[10]
    assert found["1"].owners == (101,)
    assert found[""].facts.share_ratio == pytest.approx(3 / 7)


def test_instance_recreated_under_its_id(host):
    """A new instance under an old id begins afresh: no window goes back to the one before."""
    gpu = split(FakeInstance(1, "1g.10gb", "idle"))
    one = host(gpu)
    one.tick(4)
    del gpu.instances[0]
    assert list(rows(one.tick())) == [""]
    gpu.instances.append(FakeInstance(1, "1g.10gb", "gemm"))
    found = [rows(one.tick()).get("1") for _ in range(12)]
    there = [values(gpu, "nvml-gpm").get("sm_util") for gpu in found if gpu is not None]
    assert there[0] is None
    assert there[1] > 90


def test_instance_recreated_between_two_ticks(host):
    """One that came back before it was missed gives nothing of the window over both lives."""
    gpu = split(FakeInstance(1, "1g.10gb", "idle"))
    one = host(gpu)
    one.tick(4)
    gpu.instances[0] = FakeInstance(1, "2g.20gb", "gemm", life="-second")
    found = rows(one.tick())["1"]
    assert found.facts.profile == "2g.20gb"
    assert not values(found, "nvml-gpm")
    assert values(rows(one.tick())["1"], "nvml-gpm")["sm_util"] > 90
    one.library.crossed.clear()  # that is how it came out


def test_other_compute_instances(host):
    """When an instance's compute is divided anew, its owners are those of the new parts."""
    gpu = split(FakeInstance(1, "3g.40gb", compute={0: [5]}))
    one = host(gpu)
    one.tick(4)
    gpu.instances[0].compute.clear()
    gpu.instances[0].compute.update({1: [6], 2: [7]})
    found = rows(one.tick(12))
    assert found["1"].owners == (6, 7)
    assert values(found["1"], "nvml-gpm")


def test_mig_mode_goes_on_and_off(host, caplog):
    """Without a reset too, as from Hopper on: the rows follow within ten ticks, and the log tells."""
    caplog.set_level(logging.INFO)
    gpu = FakeGpu("gemm", uuid="GPU-a")
    one = host(gpu, FakeGpu("gemm", uuid="GPU-b"))
    one.tick(3)
    gpu.mig, gpu.instances = True, [FakeInstance(1, "3g.40gb")]
    reading = one.tick(12)
    assert [gpu.facts.key for gpu in reading.gpus] == [("GPU-a", ""), ("GPU-a", "1"), ("GPU-b", "")]
    assert reading.gpus[0].facts.split
    assert "memory_used_bytes" not in values(reading.gpus[0], "nvml")
    assert values(reading.gpus[1], "nvml-gpm")
    gpu.mig, gpu.instances = False, []
    reading = one.tick()
    assert [gpu.facts.key for gpu in reading.gpus] == [("GPU-a", ""), ("GPU-b", "")]
    whole = one.tick().gpus[0]
    assert (whole.facts.split, whole.facts.share_ratio) == (False, 1.0)
    assert values(whole, "nvml-gpm")["sm_util"] > 90
    assert {"gpu_util_pct", "memory_used_bytes"} <= set(values(whole, "nvml"))
    assert whole.owners
    told = [message for message in caplog.messages if "split" in message]
    assert told == ["GPU 0 (GPU-a) is split by MIG: 3g.40gb", "GPU 0 (GPU-a) is no longer split by MIG"]


def test_reset_into_mig_mode(host):
    """A GPU that was reset comes back as what it is now, under its index."""
    gpu = FakeGpu("gemm", uuid="GPU-b")
    one = host(FakeGpu("gemm", uuid="GPU-a"), gpu)
    one.tick(2)
    one.library.fail["*", 1] = pynvml.NVML_ERROR_RESET_REQUIRED
    assert [(gpu.facts.key, gpu.up) for gpu in one.tick().gpus] == [
        (("GPU-a", ""), True),
        (("GPU-b", ""), False),
    ]
    gpu.mig, gpu.instances = True, [FakeInstance(1, "3g.40gb")]
    one.library.fail.clear()
    reading = one.tick(10)
    assert [(gpu.facts.key, gpu.facts.index, gpu.up) for gpu in reading.gpus] == [
        (("GPU-a", ""), 0, True),
        (("GPU-b", ""), 1, True),
        (("GPU-b", "1"), 1, True),
    ]


@pytest.mark.parametrize("first", ["nvmlDeviceGetPowerUsage", SAMPLE, "*"])
def test_lost_board(host, first):
    """A lost board takes all its instances down with it; no handle of theirs is used, and they return."""
    one = host(two(), FakeGpu("gemm", uuid="GPU-b"))
    one.tick(2)
    one.library.fail[first, 0] = LOST
    reading = one.tick()
    one.library.fail["*", 0] = LOST
    assert [gpu.up for gpu in reading.gpus] == [False, False, False, True]
    assert [gpu.facts.mig for gpu in reading.gpus] == ["", "2", "13", ""]
    assert all(gpu.parts == () and gpu.owners is None for gpu in reading.gpus[:3])
    reading = one.tick(20)
    assert [gpu.up for gpu in reading.gpus] == [False, False, False, True]
    assert one.source.capabilities()["GPU-a", "2"]["sm_util"].source is None
    one.library.fail.clear()
    reading = one.tick(70)
    assert all(gpu.up for gpu in reading.gpus)
    assert values(rows(one.tick())["2"], "nvml-gpm")


def test_lost_code_of_an_instance_alone(host):
    """An instance whose handle says that the GPU is lost may be only gone itself: the board decides."""
    gpu = two(gpm=False)
    one = host(gpu)
    one.tick(3)
    del gpu.instances[1]
    one.library.fail[PROCESSES, None] = one.library.fail[MEMORY, None] = LOST
    found = rows(one.tick(5))
    assert list(found) == ["", "13"]
    assert all(gpu.up for gpu in found.values())
    assert one.library.inits == 1


def test_driver_goes_while_the_layout_is_read(host):
    """The driver's end is what it is wherever it is told."""
    one = host(two(), FakeGpu("gemm", uuid="GPU-b"))
    one.tick()
    one.library.fail[BY_INDEX] = pynvml.NVML_ERROR_UNINITIALIZED
    ups = Counter(gpu.up for _ in range(10) for gpu in one.tick().gpus)
    assert ups[False]
    assert one.library.opened <= 1
    one.library.fail.clear()
    assert all(gpu.up for gpu in one.tick(70).gpus)


def test_expected_instances(host):
    """Instances that another source knew on a GPU that NVML does not show are in the readings, down."""
    known = host(two(uuid="GPU-x")).facts
    one = host(FakeGpu("gemm", uuid="GPU-a"), expected=known)
    assert [(gpu.facts.key, gpu.up) for gpu in one.tick().gpus] == [
        (("GPU-x", ""), False),
        (("GPU-x", "2"), False),
        (("GPU-x", "13"), False),
        (("GPU-a", ""), True),
    ]


def test_many_reconfigurations_leave_nothing_behind(host):
    """A GPU that is divided anew all day holds the samples of its present instances only."""
    gpu = split()
    one = host(gpu)
    for turn in range(40):
        numbers = [turn % 5 + 1, turn % 7 + 6]
        gpu.instances = [FakeInstance(number, "1g.10gb", "idle", life=f"-{turn}") for number in numbers]
        one.library.crossed.clear()
        found = rows(one.tick(11))
        one.library.crossed.clear()
        assert list(found) == ["", *(str(number) for number in numbers)]
    assert len(one.library.samples) == 2 * len(found)


# --- with other sources


def test_spared_by_row(host):
    """What another source serves of one instance is not asked of that one, and of the others it is."""
    one = host(two())
    one.tick(2)
    one.source.spared = {("GPU-a", "2"): frozenset(name for name, _ in METRICS) | {"memory_used_bytes"}}
    before = one.library.calls[SAMPLE]
    found = rows(one.tick(10))
    assert one.library.calls[SAMPLE] == before + 10
    assert found["2"].parts == ()
    assert found["2"].owners == (7,)
    assert [part.source for part in found["13"].parts] == ["nvml-gpm", "nvml"]
    one.source.spared = {}
    assert set(values(rows(one.tick())["2"], "nvml")) == {"memory_used_bytes"}
    assert values(rows(one.tick())["2"], "nvml-gpm")


def test_lists_only(host):
    """Owners by instance, and the layout, without a single value."""
    gpu = two()
    one = host(gpu, lists_only=True)
    found = rows(one.tick(2))
    assert {number: row.owners for number, row in found.items()} == {"": (), "2": (7,), "13": ()}
    assert all(row.parts == () and row.up for row in found.values())
    assert not one.library.calls[SAMPLE] + one.library.calls[MEMORY]
    del gpu.instances[1]
    assert list(rows(one.tick(10))) == ["", "13"]
