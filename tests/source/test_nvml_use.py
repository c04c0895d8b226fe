"""How the NVML source reads who keeps a shared GPU busy."""

from __future__ import annotations

import gc
import logging
import tracemalloc

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .fake_nvml import FakeGpu, FakeInstance, hosts

USE = "nvmlDeviceGetProcessUtilization"
NEVER = [
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
]


@pytest.fixture
def host(monkeypatch):
    """``host(*gpus)``; at the end everything must have been given back, and no dead handle used."""
    with hosts(monkeypatch) as make:
        yield make


@pytest.fixture
def pair(host):
    """A host whose GPU two processes share."""
    return host(shared(7, 8))


def shared(*pids, use=(), uuid="GPU-a"):
    """A GPU with these owners, of which the driver has noted ``use``."""
    gpu = FakeGpu("gemm", uuid=uuid)
    gpu.pids, gpu.use = list(pids), list(use)
    return gpu


def test_shares(host):
    """Each owner has its share; one that the driver did not see at work has none of it, a real zero."""
    one = host(shared(7, 8, 9, use=[(7, 0.1, 77), (8, 1.6, 20)]))
    for _ in range(4):
        assert one.tick().gpus[0].process_use == {7: 0.77, 8: 0.2, 9: 0.0}


def test_pace(host):
    """The call costs more than most: it is made of shared GPUs, every third tick, and on different ticks."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]), shared(7, 8, use=[(7, 0.1, 50)], uuid="GPU-b"))
    one.tick(3)
    calls = []
    for _ in range(12):
        before = one.library.calls[USE]
        assert all(gpu.process_use == {7: 0.5, 8: 0.0} for gpu in one.tick().gpus)
        calls.append(one.library.calls[USE] - before)
    assert sum(calls) == 8
    assert max(calls) == 1


@pytest.mark.parametrize("pids", [[], [7]])
def test_gpu_that_nobody_shares(host, pids):
    """What a lone process has needs no estimate."""
    gpu = shared(*pids, use=[(7, 0.1, 97)])
    gpu.changed["gpu_util_pct"] = 0
    one = host(gpu)
    assert one.tick(10).gpus[0].process_use is None
    assert one.library.calls[USE] == 0


def test_list_that_cannot_be_read(host):
    """Without owners there is nobody to ask about."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    one.library.fail["nvmlDeviceGetComputeRunningProcesses_v3"] = pynvml.NVML_ERROR_UNKNOWN
    assert one.tick(10).gpus[0].process_use is None
    assert one.library.calls[USE] == 0


def test_owners_that_change(host):
    """Shares are of those who own the GPU now: they are read anew as soon as these change."""
    gpu = shared(7, 8, use=[(7, 0.1, 40), (8, 0.1, 40), (9, 0.1, 10)])
    one = host(gpu)
    one.tick(2)
    for pids in ([7, 8, 9], [8, 9], [9], [9, 7], []):
        gpu.pids = pids
        for _ in range(5):
            found = one.tick().gpus[0]
            owners = found.owners or ()
            assert set(found.process_use or ()) == set(owners if len(owners) > 1 else ())
        assert owners == tuple(pids)


def test_owners_that_change_between_two_looks(host):
    """Whichever tick shows other owners, the shares are of these at once."""
    gpu = shared(7, 8, use=[(7, 0.1, 40), (8, 0.1, 40), (9, 0.1, 10)])
    gpu.changed["gpu_util_pct"] = 50
    one = host(gpu)
    one.tick(3)
    for turn, pids in enumerate([[7, 8, 9], [7, 8], [8, 9], [7, 9], [7, 8]]):
        gpu.pids = pids
        gpu.changed["gpu_util_pct"] = 50 * (turn % 2)  # the lists are read as work starts or stops
        assert set(one.tick().gpus[0].process_use) == set(pids)


def test_back_to_the_same_owners(host):
    """What was read before a GPU was one process's alone is not said again."""
    gpu = shared(7, 8)
    one = host(gpu)
    one.tick(3)
    for turn in range(6):
        gpu.pids, gpu.changed["gpu_util_pct"] = [7], 50
        assert one.tick().gpus[0].process_use is None
        gpu.pids, gpu.changed["gpu_util_pct"], gpu.use = [7, 8], 0, [(7, 0.1, 10 + turn)]
        assert one.tick().gpus[0].process_use == {7: (10 + turn) / 100, 8: 0.0}
        one.tick(2)


def test_mps_clients(host):
    """Clients of an MPS server share the GPU as other processes do."""
    gpu = shared(7, use=[(20, 0.1, 60), (21, 0.1, 30)])
    gpu.mps_pids = [20, 21]
    assert host(gpu).tick(2).gpus[0].process_use == {7: 0.0, 20: 0.6, 21: 0.3}


def test_newest_timestamp_is_passed_on(host):
    """The first call speaks of the last periods only, each later one of the time since the newest note."""
    one = host(shared(7, 8, use=[(7, 0.3, 50), (8, 0.2, 50)]))
    one.tick(8)
    first, *later = one.library.asked_since
    stamps = [int((one.clock.now - ago) * 1e6 + 1e15) for ago in range(8)]
    assert first in {stamp - 5_000_000 for stamp in stamps}
    assert later
    assert all(since in {stamp - 200_000 for stamp in stamps} for since in later)
    assert later == sorted(set(later))


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_wall_clock_that_is_set(host, jump_s):
    """A clock that jumps costs no more than the notes in between."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    one.tick(4)
    one.library.wall_ahead_s += jump_s
    assert one.tick(3).gpus[0].process_use == {7: 0.5, 8: 0.0}


def test_nothing_new(host, caplog):
    """Nobody at work is no trouble, and no share: the call goes on being made."""
    gpu = shared(7, 8)
    one = host(gpu)
    assert one.tick(9).gpus[0].process_use is None
    assert one.library.calls[USE] == 3
    assert not one.source.errors
    assert not caplog.records
    gpu.use = [(7, 0.1, 5)]
    assert one.tick(3).gpus[0].process_use == {7: 0.05, 8: 0.0}
    gpu.use = []
    assert one.tick(3).gpus[0].process_use is None


LIES = [
    (7, 0.1, 101),
    (7, 0.1, 0xFFFFFFFF),
    (7, -3.0, 9),
    (7, 3600.0, 9),
    (7, 1e9, 9),
    (0, 0.1, 9),
    (99, 0.1, 9),
]


@pytest.mark.parametrize("lie", LIES)
def test_notes_that_cannot_be(host, lie):
    """More than all, of later, of long ago, of the dead: left out; of nothing else there are no shares."""
    assert host(shared(7, 8, use=[lie])).tick(4).gpus[0].process_use is None
    found = host(shared(7, 8, use=[lie, (7, 0.2, 40), (8, 0.3, 30)])).tick(4).gpus[0].process_use
    assert found == {7: 0.4, 8: 0.3}


def test_far_stamp_does_not_stop_the_rest(host):
    """A note of the future is not the newest seen: what comes after is still read."""
    gpu = shared(7, 8, use=[(7, -3e6, 50), (8, 0.1, 50)])
    one = host(gpu)
    assert one.tick(4).gpus[0].process_use == {7: 0.0, 8: 0.5}
    gpu.use = [(7, 0.1, 60)]
    assert one.tick(3).gpus[0].process_use == {7: 0.6, 8: 0.0}


def test_several_notes_of_a_process(host):
    """A driver that gives each note gives their mean."""
    one = host(shared(7, 8, use=[(7, 0.1, 90), (7, 0.3, 30), (8, 0.2, 10), (7, 0.4, 30)]))
    assert one.tick(2).gpus[0].process_use == {7: 0.5, 8: 0.1}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from([7, 8, 9]), st.integers(0, 2**32 - 1)),
            st.one_of(st.floats(0, 6), st.floats(-1e9, 1e9)),
            st.one_of(st.integers(0, 100), st.integers(0, 2**32 - 1)),
        ),
        max_size=12,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_answer(pair, use):
    """Whatever the driver notes, shares are of the owners, each of all of them, and ratios; or there are none."""
    pair.library.gpus[0].use = use
    found = pair.tick(3).gpus[0]
    assert found.up
    if found.process_use is None:
        return
    assert set(found.process_use) == {7, 8}
    assert all(0 <= share <= 1 for share in found.process_use.values())
    assert any(pid in {7, 8} and percent <= 100 for pid, _, percent in use)


def test_long_answer(host):
    """An answer longer than the buffer is read with a longer one, and asked once a time from then on."""
    one = host(shared(*range(1, 301), use=[(pid, 0.1, 1) for pid in range(1, 301)]))
    one.library.use_room = 500
    assert one.tick().gpus[0].process_use == dict.fromkeys(range(1, 301), 0.01)
    before = one.library.calls[USE]
    one.tick(3)
    assert one.library.calls[USE] == before + 1


@pytest.mark.parametrize("room", [0xFFFFFFF0, 70_000])
def test_endless_answer(host, room):
    """An answer that claims to be endless was not read, and takes no memory."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    one.library.use_room = room
    reading = one.tick(4)
    assert reading.gpus[0].process_use is None
    assert reading.gpus[0].up
    assert one.source.errors["GPU-a", USE, "INSUFFICIENT_SIZE"] == one.library.calls[USE]


def test_count_beyond_the_buffer(host):
    """A count that the buffer cannot hold does not lead beyond its end."""
    one = host(shared(7, 8))

    def overfull(gpu, buffer, count, since):
        buffer[0].pid, buffer[0].smUtil = 7, 50
        buffer[0].timeStamp = int(one.library.wall() * 1e6)
        count._obj.value = 0xFFFFFFFF
        return 0

    one.library._nvmlDeviceGetProcessUtilization = overfull
    assert one.tick(2).gpus[0].process_use == {7: 0.5, 8: 0.0}


@pytest.mark.parametrize("code", NEVER)
def test_not_asked_again(host, caplog, code):
    """Where a GPU has no such thing it is asked once; another GPU goes on being asked."""
    caplog.set_level(logging.DEBUG)
    use = [(7, 0.1, 50)]
    one = host(shared(7, 8, use=use), shared(7, 8, use=use, uuid="GPU-b"))
    one.library.fail[USE, 0] = code
    one.library.calls.clear()
    reading = one.tick(9)
    assert [gpu.process_use for gpu in reading.gpus] == [None, {7: 0.5, 8: 0.0}]
    assert one.library.calls[USE] == 1 + 4
    assert caplog.text.count("use of the GPU by process") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not one.source.errors


def test_driver_that_does_not_have_it(host):
    """An older driver costs the shares and nothing else."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]), start=False)
    one.library.absent.add(USE)
    one.source.start()
    reading = one.tick(9)
    assert (reading.gpus[0].process_use, reading.gpus[0].owners) == (None, (7, 8))
    assert one.library.calls[USE] == 0


def test_denied_is_told_once_with_a_remedy(host, caplog):
    """A refusal of permission is one warning that says how to have the shares."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    one.library.fail[USE] = pynvml.NVML_ERROR_NO_PERMISSION
    one.tick(20)
    assert one.library.calls[USE] == 1
    (message,) = [record.getMessage() for record in caplog.records]
    assert "use of the GPU by process" in message
    assert "run gpuwhy as root" in message


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT, 12345])
def test_odd_code_costs_one_look(host, code):
    """A failed call takes back what was read before it, is counted, and made again."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    assert one.tick(4).gpus[0].process_use == {7: 0.5, 8: 0.0}
    one.library.fail[USE] = code
    reading = one.tick(6)
    assert reading.gpus[0].process_use is None
    assert reading.gpus[0].owners == (7, 8)
    assert sum(one.source.errors.values()) == 2
    one.library.fail.clear()
    assert one.tick(3).gpus[0].process_use == {7: 0.5, 8: 0.0}


@pytest.mark.parametrize("code", [15, 16, 28])
def test_lost_gpu(host, code):
    """Told here that a GPU is lost, it is lost; it comes back with its shares."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]))
    one.tick(4)
    one.library.fail[USE] = code
    assert not one.tick(4).gpus[0].up
    one.library.fail.clear()
    reading = one.tick(10)
    assert reading.gpus[0].up
    assert reading.gpus[0].process_use == {7: 0.5, 8: 0.0}


def test_not_under_mig(host):
    """The driver has no shares under MIG, and is not asked for them."""
    gpu = shared(use=[(5, 0.1, 50)])
    gpu.mig, gpu.instances = True, [FakeInstance(1, compute={0: [5, 6, 7]})]
    one = host(gpu)
    reading = one.tick(12)
    assert [found.owners for found in reading.gpus] == [(), (5, 6, 7)]
    assert all(found.process_use is None for found in reading.gpus)
    assert one.library.calls[USE] == 0


def test_split_while_it_is_shared(host):
    """Shares end with MIG mode and come back after it."""
    gpu = shared(7, 8, use=[(7, 0.1, 50)])
    one = host(gpu)
    assert one.tick(4).gpus[0].process_use == {7: 0.5, 8: 0.0}
    gpu.mig, gpu.instances = True, [FakeInstance(1, compute={0: [5, 6]})]
    reading = one.tick(12)
    assert [found.process_use for found in reading.gpus] == [None, None]
    gpu.mig = False
    assert one.tick(12).gpus[0].process_use == {7: 0.5, 8: 0.0}


def test_beside_a_source_of_all_else(host):
    """Whoever serves the values, shares are NVML's."""
    one = host(shared(7, 8, use=[(7, 0.1, 50)]), lists_only=True)
    reading = one.tick(4)
    assert not reading.gpus[0].parts
    assert reading.gpus[0].process_use == {7: 0.5, 8: 0.0}


def test_long_pause_asks_anew(host):
    """After a pause shares of before it are not said."""
    gpu = shared(7, 8, use=[(7, 0.1, 50)])
    one = host(gpu)
    one.tick(4)
    gpu.use = [(8, 0.1, 70)]
    one.clock.now += 60
    assert one.tick().gpus[0].process_use == {7: 0.0, 8: 0.7}


def test_ticks_leave_nothing_behind(host):
    """Ten minutes of a shared GPU whose owners come and go grow no memory."""
    gpu = shared(7, 8, use=[(7, 0.1, 50), (8, 0.2, 40)])
    one = host(gpu)

    def ticks(rounds):
        for turn in range(rounds):
            gpu.pids = [7, 8, 100 + turn]
            gpu.use = [(pid, 0.1, 20) for pid in gpu.pids]
            one.tick(4)
            one.library.asked_since.clear()
        gc.collect()

    ticks(30)
    tracemalloc.start()
    ticks(10)
    memory = tracemalloc.get_traced_memory()[0]
    ticks(150)
    grown = tracemalloc.get_traced_memory()[0] - memory
    tracemalloc.stop()
    assert grown < 8192
