"""Idle: nobody wants the GPU, and what only looks like it."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.rules import idle

from .build import (
    HOT_HOST,
    NO_WORK,
    QUIET_HOST,
    Edge,
    case,
    check_edge,
    each,
    facts,
    h200,
    in_gap,
    interval,
    key,
    limits,
    readings,
    verdict,
)

FREE, HELD, NO_DEMAND = ("idle", "free"), ("idle", "held"), ("idle", "no-demand")
still = partial(interval, **{**NO_WORK, "graphics": 0.0, "sm": 0.0, "gpu_util_ratio": 0.0, **QUIET_HOST})
serving = partial(
    still,
    graphics=0.04,
    sm=0.016,
    process_tree_cpu_cores=0.3,
    process_tree_owner_cpu_cores=0.3,
    process_tree_hottest_thread_cores=0.29,
)
polling = partial(
    still,
    **{**HOT_HOST, "process_tree_owner_system_ratio": 0.6},
    pcie_receive_bytes_per_second=0.7e6,
    pcie_transmit_bytes_per_second=0.7e6,
)


def judged(one: Interval) -> object:
    return key(idle.judge(case(one)))


def free(one: Interval) -> object:
    return key(idle.free(case(one)))


def polls(one: Interval) -> object:
    return key(idle.polls(case(one)))


SLEEPING = [
    Edge("NOTHING", lambda v: still(graphics=v), over=NO_DEMAND, under=HELD, missing=HELD),
    Edge(
        "NOTHING_REDUCED",
        lambda v: still(graphics=None, sm=None, gpu_util_ratio=v),
        over=NO_DEMAND,
        under=HELD,
        missing=NO_DEMAND,
    ),
    Edge(
        "ASLEEP",
        # Without the threads, all the owners' CPU bounds the busiest from above: 0.40 here.
        lambda v: serving(
            process_tree_hottest_thread_cores=in_gap(v, 0.04), process_tree_owner_cpu_cores=0.40
        ),
        over=None,
        under=NO_DEMAND,
        missing=NO_DEMAND,
    ),
    Edge(
        "HELD",
        lambda v: still(process_tree_hottest_thread_cores=v, process_tree_owner_cpu_cores=0.10),
        over=NO_DEMAND,
        under=HELD,
        missing=NO_DEMAND,
    ),
]
UNSEEN = [
    # An MPS server that sleeps while its clients, which are not in the list, keep the GPU busy.
    Edge("UNSEEN_BUSY", lambda v: still(graphics=v), over=0.45, under=1.0, missing=1.0),
    Edge(
        "UNSEEN_CPU",
        lambda v: still(graphics=0.2, process_tree_cpu_cores=v, process_tree_owner_cpu_cores=v),
        over=1.0,
        under=0.45,
        missing=1.0,
    ),
]
FREE_EDGES = [
    Edge("FREE", lambda v: still(graphics=v, sm=None, owners=()), over=None, under=FREE, missing=FREE),
]
POLLING = [
    Edge(
        "POLLING",
        lambda v: polling(process_tree_owner_system_ratio=v),
        over=NO_DEMAND,
        under=None,
        missing=None,
    ),
]


def test_a_thread_that_spins_for_the_gpu_is_no_work() -> None:
    """A server at half load spins while the GPU works and sleeps in the gap: as hot as the engine is busy."""
    half = serving(
        graphics=0.5, sm=0.47, process_tree_hottest_thread_cores=0.55, process_tree_owner_cpu_cores=0.55
    )
    assert verdict(half).key == ("idle", "no-demand")
    assert verdict(half).confidence < 0.5
    working = serving(
        graphics=0.5, sm=0.47, process_tree_hottest_thread_cores=0.97, process_tree_owner_cpu_cores=0.97
    )
    assert verdict(working).key == ("starving", "host-serial")


@pytest.mark.parametrize(
    "seen",
    [
        {"power_watts": 126.0},
        {"power_watts": 81.0, "memory_used_bytes": 65e9},
        {"power_watts": 81.0, "pcie_receive_bytes_per_second": 58e6},
    ],
)
def test_an_empty_process_list_is_not_believed_alone(seen: dict[str, float]) -> None:
    """In a container the list may be empty while power, memory or the bus show that somebody is there."""
    empty = interval(**NO_WORK, graphics=0.0, sm=0.0, owners=(), **seen)
    assert verdict(empty).key != ("idle", "free")
    assert verdict(empty).confidence < 0.5
    assert not verdict(empty).time.free
    free = interval(**NO_WORK, graphics=0.0, sm=0.0, owners=(), power_watts=81.0, memory_used_bytes=0.6e9)
    assert verdict(free).key == ("idle", "free")
    assert verdict(free).confidence >= 0.9


def test_what_crosses_the_bus_is_for_somebody() -> None:
    """A GPU that runs next to nothing but is sent data is not parked."""
    fed = still(pcie_receive_bytes_per_second=60e6)
    assert verdict(still()).key == ("idle", "held")
    assert verdict(fed).key == ("idle", "no-demand")


@each(SLEEPING)
def test_limits(edge: Edge) -> None:
    """How little runs and how deep the tree sleeps decides between held, no demand and somebody at work."""
    check_edge(idle, edge, judged)


@each(UNSEEN)
def test_limits_of_work_that_nobody_asked_for(edge: Edge) -> None:
    """A GPU that works while its whole tree sleeps works for somebody else: that is no sure idleness."""

    def ceiling(one: Interval) -> float:
        found = idle.judge(case(one))
        return 1.0 if found is None else found.ceiling

    check_edge(idle, edge, ceiling)


@each(FREE_EDGES)
def test_limits_of_free(edge: Edge) -> None:
    """Without a process only the tail of one that just ended may run."""
    check_edge(idle, edge, free)


@each(POLLING)
def test_limits_of_polling(edge: Edge) -> None:
    """A loop around a system call spends its time in the kernel."""
    check_edge(idle, edge, polls)


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in [*SLEEPING, *UNSEEN, *FREE_EDGES, *POLLING]} == limits(idle)


def test_free_needs_a_process_list_that_was_read() -> None:
    """An empty list is free; a list that was not read is no empty one."""
    assert free(still(owners=())) == FREE
    assert free(still(owners=None)) is None
    assert free(still(owners=(100,))) is None
    assert readings(idle.free(case(still(owners=())))) == {"graphics_active_ratio": 0.0, "processes": 0.0}


def test_free_on_a_thermal_bit_or_a_stuck_gpu_util() -> None:
    """A GPU without a process is free, whatever bit it shows and though GPU-Util be stuck at 1."""
    latched = still(owners=(), gpu_util_ratio=1.0, reasons={"sw-thermal": 1.0}, sm_clock_hertz=0.345e9)
    assert verdict(latched).key == FREE


def test_free_by_gpu_util_where_nothing_else_was_read() -> None:
    """NVML alone also shows a GPU without a process that does nothing."""
    nvml = partial(interval, owners=())
    assert free(nvml(gpu_util_ratio=0.0)) == FREE
    assert free(nvml(gpu_util_ratio=0.5)) is None
    assert free(nvml()) is None


@pytest.mark.parametrize(
    ("memory", "power", "expected"),
    [(0.6e9, None, FREE), (3e9, 81.0, HELD), (None, 81.0, FREE), (None, 122.0, HELD), (None, None, HELD)],
)
def test_without_host_and_process_list_memory_and_power_tell(
    memory: float | None, power: float | None, expected: object
) -> None:
    """A context holds half a GB and draws 40 W more on an H200; with neither read, it is called held."""
    unseen = partial(interval, **NO_WORK, graphics=0.0, owners=None)
    found = idle.judge(case(unseen(memory_used_bytes=memory, power_watts=power)))
    assert key(found) == expected
    assert found is not None
    assert found.ceiling <= 0.45


def test_without_host_only_nothing_at_all_is_idle() -> None:
    """A little work or a copy with nobody to ask is not called idle."""
    unseen = partial(interval, **NO_WORK, owners=(100,))
    assert judged(unseen(graphics=0.0)) == HELD
    assert judged(unseen(graphics=0.04)) is None
    assert judged(unseen(graphics=0.0, pcie_receive_bytes_per_second=5e9)) is None


def test_a_server_with_little_to_do_has_no_demand() -> None:
    """Its busiest thread sleeps most of the time, and nobody waits."""
    found = idle.judge(case(serving()))
    assert key(found) == NO_DEMAND
    assert readings(found) == {"process_tree_hottest_thread_cores": 0.29}


def test_a_worker_that_works_is_somebody() -> None:
    """Decoders keep the tree awake while the owner sleeps, whether they are seen one by one or in sum only."""
    assert judged(still(process_tree_busiest_worker_cores=0.9)) is None
    assert judged(still(process_tree_busiest_worker_cores=0.1)) == HELD
    unseen_workers = still(process_tree_cpu_cores=0.9, process_tree_owner_cpu_cores=0.02)
    assert judged(unseen_workers) is None


def test_an_unread_thread_is_bounded_by_what_includes_it() -> None:
    """No thread uses more than its process: with 0.06 cores for all, none is hot."""
    no_threads = partial(serving, process_tree_hottest_thread_cores=None)
    assert judged(no_threads(process_tree_owner_cpu_cores=0.06)) == NO_DEMAND
    assert judged(no_threads(process_tree_owner_cpu_cores=0.9)) is None
    assert judged(no_threads(process_tree_owner_cpu_cores=None, process_tree_cpu_cores=0.06)) == NO_DEMAND


@pytest.mark.parametrize(
    "unread",
    [
        ("process_tree_runqueue_wait_ratio",),
        ("process_tree_blocked_ratio", "host_pressure_io_ratio"),
    ],
)
def test_sleep_that_may_be_waiting_convinces_little(unread: tuple[str, ...]) -> None:
    """Without run-queue wait, or without anything of storage, a sleeping tree may be a waiting one."""
    for sleeping in (serving, still):
        assert verdict(sleeping()).confidence >= 0.9
        assert verdict(sleeping(**dict.fromkeys(unread))).confidence <= 0.45
        # Either of the two tells of storage.
        assert verdict(sleeping(**{unread[0]: 0.0, unread[-1]: None} if unread[1:] else {})).confidence >= 0.9


def test_polling_without_work_or_traffic_is_no_demand() -> None:
    """A thread at a full core that asks a queue for work does not starve the GPU."""
    assert polls(polling()) == NO_DEMAND
    assert verdict(polling()).key == NO_DEMAND


@pytest.mark.parametrize(
    "readings",
    [
        {"graphics": 0.01},
        {"pcie_receive_bytes_per_second": 20e6},
        {"pcie_transmit_bytes_per_second": 20e6},
        {"process_tree_hottest_thread_cores": None},
    ],
)
def test_what_is_no_polling(readings: dict[str, float]) -> None:
    """Work, traffic, or a thread that nobody saw: the host's CPU may be spent for the GPU."""
    assert polls(polling(**readings)) is None


def test_polling_in_user_mode_cannot_be_told_from_preparing_work() -> None:
    """A spinning thread and one that prepares a batch look alike until something reaches the GPU."""
    spinning = polling(process_tree_owner_system_ratio=0.01)
    assert verdict(spinning).verdict == "starving"
    assert verdict(spinning).confidence < 0.5
    assert verdict(polling(process_tree_owner_system_ratio=0.01, graphics=0.05)).confidence >= 0.9


def test_gpu_util_alone_shows_driver_calls() -> None:
    """Without profiling, one step of GPU-Util is nothing; SM activity must agree where it was read."""
    nvml = partial(still, graphics=None)
    assert judged(nvml(sm=None, gpu_util_ratio=0.01)) == HELD
    assert judged(nvml(sm=0.0, gpu_util_ratio=0.3)) == NO_DEMAND
    assert judged(nvml(sm=0.01, gpu_util_ratio=0.01)) == NO_DEMAND
    # On a slice the engine's activity is no measure of busy time, but none of it is none.
    assert judged(still(gpu=h200(mig="1", share_ratio=1 / 7), sm=None, gpu_util_ratio=None)) == HELD
    # Tensor cores and DRAM at 0 do not show that nothing runs.
    assert judged(nvml(sm=None, gpu_util_ratio=None)) == NO_DEMAND


def test_a_bus_that_only_carries_its_idle_traffic_moves_nothing() -> None:
    """The floor is the card's; either direction counts beyond it."""
    floor = {"pcie_receive_bytes_per_second": 0.75e6, "pcie_transmit_bytes_per_second": 0.75e6}
    assert not idle.moves(case(still(**floor)))
    assert not idle.moves(case(still()))
    assert idle.moves(case(still(**{**floor, "pcie_transmit_bytes_per_second": 2e6})))


@pytest.mark.parametrize("model", ["NVIDIA Something New", ""])
def test_an_unknown_card_does_not_tell_by_power(model: str) -> None:
    """Without a row nobody knows what a context draws."""
    gpu = facts(model)
    assert judged(interval(gpu=gpu, **NO_WORK, graphics=0.0, owners=None, power_watts=5.0)) == HELD


def test_half_a_gpus_work_is_hardly_idle() -> None:
    """Near the edge of the gap nobody can be sure that there is no demand."""
    assert verdict(serving(graphics=0.59)).confidence <= 0.55
    assert verdict(serving(graphics=0.05)).confidence >= 0.9
    assert verdict(serving(gpu=h200(), graphics=0.62)).verdict != "idle"
