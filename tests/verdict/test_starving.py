"""Starving: a gap, and who leaves the GPU waiting."""

from __future__ import annotations

from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict.rules import starving

from .build import (
    HOT_HOST,
    NO_WORK,
    QUIET_HOST,
    Edge,
    case,
    check_edge,
    each,
    h200,
    in_gap,
    interval,
    key,
    limits,
    readings,
    times,
    verdict,
)

MIB = 2.0**20
# A GPU that is busy a fifth of the time; "hot" with a thread at work between bursts, "asleep" without.
gappy = partial(interval, **{**NO_WORK, "graphics": 0.2, "sm": 0.15, "tensor": 0.1})
hot = partial(gappy, **HOT_HOST)
asleep = partial(gappy, **QUIET_HOST)
bare = partial(gappy, owners=None)


def cause(one: Interval, *peers: Interval) -> str | None:
    found = starving.judge(case(one, *peers))
    assert found is None or found.verdict == "starving"
    return None if found is None else found.cause


def wide(one: Interval, profile: str = "unknown") -> bool:
    return bool(starving.gap(case(one, profile=profile)))


def received(per_second: float | None) -> float | None:
    """A PCIe rate whose part above the card's idle floor is this much."""
    return None if per_second is None else per_second + 0.75e6


CAUSES = [
    Edge(
        "WAIT",
        lambda v: hot(process_tree_runqueue_wait_ratio=v),
        over="host-contention",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "WAIT_SHARE",
        # Waiting makes up a share v of running and waiting when 1.8 s/s of it stand beside 1.8 (1 - v) / v.
        lambda v: hot(
            process_tree_runqueue_wait_ratio=1.8,
            process_tree_owner_cpu_cores=None if v is None else 1.8 * (1 - v) / v,
        ),
        over="host-contention",
        under="host-serial",
        missing="host-contention",
    ),
    Edge(
        "QUOTA",
        lambda v: hot(process_tree_throttled_ratio=v),
        over="host-contention",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "WORKER",
        lambda v: asleep(process_tree_busiest_worker_cores=v),
        over="cpu-preprocess",
        under=None,
        missing=None,
    ),
    Edge(
        "TREE",
        lambda v: hot(process_tree_cpu_ratio=v),
        over="cpu-preprocess",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "CROWD",
        lambda v: hot(process_tree_cpu_cores=None if v is None else 1.0 + v),
        over="cpu-preprocess",
        under="host-serial",
        missing="host-serial",
    ),
    Edge("HOST", lambda v: bare(host_cpu_busy_ratio=v), over="cpu-preprocess", under=None, missing=None),
    Edge(
        "COPY",
        lambda v: hot(graphics=0.01, pcie_transmit_bytes_per_second=v),
        over="copy",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "COPY_BUSY",
        lambda v: hot(graphics=v, sm=None, tensor=0.0, pcie_transmit_bytes_per_second=5e9),
        over="host-serial",
        under="copy",
        # Nothing says that kernels run beside the copy.
        missing="copy",
    ),
    Edge(
        "BLOCKED",
        lambda v: hot(process_tree_blocked_ratio=v),
        over="io-wait",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "PRESSURE",
        lambda v: asleep(host_pressure_io_ratio=v, process_tree_read_bytes_per_second=1e6),
        over="io-wait",
        under=None,
        missing=None,
    ),
    Edge(
        "PRESSURE",
        lambda v: asleep(
            process_tree_io_pressure_ratio=v,
            host_pressure_io_ratio=0.0,
            process_tree_read_bytes_per_second=1e6,
        ),
        over="io-wait",
        under=None,
        missing=None,
    ),
    Edge(
        "IOWAIT",
        lambda v: asleep(
            host_pressure_io_ratio=None, host_iowait_cores=v, process_tree_read_bytes_per_second=1e6
        ),
        over="io-wait",
        under=None,
        missing=None,
    ),
    Edge(
        "READS",
        lambda v: asleep(host_pressure_io_ratio=0.9, process_tree_read_bytes_per_second=v),
        over="io-wait",
        under=None,
        # Pressure on the host, and nobody saw whether the tree reads: a guess.
        missing="io-wait",
    ),
    Edge(
        "FLINCHES",
        lambda v: asleep(host_pressure_io_ratio=0.9, process_tree_blocked_ratio=v),
        over="io-wait",
        under=None,
        missing=None,
    ),
    Edge(
        "STREAM",
        lambda v: asleep(process_tree_write_bytes_per_second=v),
        over="io-wait",
        under=None,
        missing=None,
    ),
    Edge(
        "ASLEEP",
        lambda v: asleep(
            process_tree_hottest_thread_cores=in_gap(v, 0.2),
            process_tree_owner_cpu_cores=0.9,
            process_tree_read_bytes_per_second=50e6,
        ),
        over="host-serial",
        under="io-wait",
        missing=None,
    ),
    Edge(
        "HOT",
        lambda v: asleep(process_tree_hottest_thread_cores=in_gap(v, 0.2)),
        over="host-serial",
        under=None,
        missing=None,
    ),
    Edge(
        "LAUNCH_BUSY",
        lambda v: hot(graphics=v, sm=None, tensor=None, dram=0.0, pcie_receive_bytes_per_second=200e6),
        over="launch-bound",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "LAUNCH_PER_BUSY",
        lambda v: hot(graphics=0.5, pcie_receive_bytes_per_second=received(times(v, 0.5))),
        over="launch-bound",
        under="host-serial",
        missing="host-serial",
    ),
    Edge(
        "LAUNCH_PER_CPU",
        lambda v: hot(
            graphics=0.1,
            process_tree_owner_cpu_cores=0.8,
            pcie_receive_bytes_per_second=received(times(v, 0.8)),
        ),
        over="launch-bound",
        under="host-serial",
        missing="host-serial",
    ),
]
GAPS = [
    Edge("GAP", lambda v: (gappy(graphics=None if v is None else 1 - v), "unknown"), True, False, False),
    Edge(
        "GAP_LATENCY", lambda v: (gappy(graphics=None if v is None else 1 - v), "latency"), True, False, False
    ),
]


@each(CAUSES)
def test_limits(edge: Edge) -> None:
    """Each limit decides between its cause and the next one, or none."""
    check_edge(starving, edge, cause)


@each(GAPS)
def test_limits_of_the_gap(edge: Edge) -> None:
    """How long a GPU may stand still before somebody asks why."""
    check_edge(starving, edge, lambda pair: wide(*pair))


def test_every_limit_is_tested() -> None:
    """A limit that is added to the rule needs its row above."""
    assert {edge.limit for edge in [*CAUSES, *GAPS]} == limits(starving)


def test_causes_in_their_order() -> None:
    """What holds the host comes before what it does; each cause stands in for the one before it."""
    everything = {
        "process_tree_throttled_ratio": 0.4,
        "process_tree_busiest_worker_cores": 1.0,
        "pcie_receive_bytes_per_second": 5e9,
        "process_tree_blocked_ratio": 0.8,
    }
    order = []
    for name in everything:
        order.append(cause(hot(graphics=0.08, sm=0.05, **everything)))
        everything[name] = 0.0
    assert order == ["host-contention", "cpu-preprocess", "copy", "io-wait"]
    assert cause(hot(graphics=0.08, pcie_receive_bytes_per_second=70e6)) == "launch-bound"
    assert cause(hot(graphics=0.08, pcie_receive_bytes_per_second=2e6)) == "host-serial"


def test_nothing_read_names_no_cause() -> None:
    """Without host readings no cause is found, and neither with a tree that only sleeps."""
    assert cause(bare()) is None
    assert cause(asleep()) is None


def test_a_gap_without_a_cause_is_a_guess() -> None:
    """The same readings are seen where nobody wants the GPU."""
    found = starving.undetermined(case(bare()))
    assert key(found) == ("starving", "undetermined")
    assert found.ceiling <= 0.45
    assert found.evidence[0].test == "host not read"
    assert starving.undetermined(case(asleep())).evidence[0].test == "host evidence names no cause"
    assert verdict(bare()).key == ("starving", "undetermined")
    # Half awake: neither asleep nor at work.
    half = asleep(process_tree_hottest_thread_cores=0.58)
    assert verdict(half).key == ("starving", "undetermined")
    assert verdict(half).confidence < 0.5


def test_a_hot_thread_alone_proves_nothing() -> None:
    """CUDA synchronisation spins: without a gap a thread at a full core starves nobody."""
    full = interval(
        **{**NO_WORK, **HOT_HOST, "graphics": 0.98, "sm": 0.9, "tensor": 0.8}, sm_clock_hertz=1.5e9
    )
    assert not wide(full)
    assert verdict(full).key == ("healthy", "compute")


def test_one_saturated_thread_hides_in_the_hosts_cpu() -> None:
    """6 % of a 16-core host can be the one thread that everything waits for."""
    assert cause(hot(host_cpu_busy_ratio=0.06, process_tree_cpu_ratio=0.06)) == "host-serial"


def test_pinned_copies_fill_gpu_util_without_sms() -> None:
    """GPU-Util 98 % with SM activity at 0-3 % is what a copy looks like, in either direction."""
    copying = partial(hot, gpu_util_ratio=0.98, graphics=0.005, sm=0.002, tensor=0.0)
    for way in ("receive", "transmit"):
        seen = copying(**{f"pcie_{way}_bytes_per_second": 59e9})
        assert cause(seen) == "copy"
        assert verdict(seen).key == ("starving", "copy")
        assert readings(verdict(seen))["graphics_active_ratio"] == 0.005


def test_gpu_util_bounds_a_gap_only_from_above() -> None:
    """Without profiling a low GPU-Util proves a gap, a high one proves nothing."""
    nvml = partial(interval, **HOT_HOST)
    assert wide(nvml(gpu_util_ratio=0.3))
    assert not wide(nvml(gpu_util_ratio=0.98))
    assert not wide(nvml())
    # Busy by what was seen: GPU-Util that says less is the older reading.
    assert not wide(nvml(gpu_util_ratio=0.3, sm=0.7))


def test_sm_activity_alone_proves_no_gap() -> None:
    """One SM at work keeps the engine busy and reads 0.008."""
    assert not wide(interval(sm=0.008))
    assert wide(interval(gpu=h200(mig="2", share_ratio=1 / 7), sm=0.1))


def test_engine_activity_of_a_slice_may_be_a_share_of_the_whole() -> None:
    """0.13 of a GPU may be all that a seventh of it can show: no gap is proven before 0.6 of that."""
    part = h200(mig="2", share_ratio=1 / 7)
    assert not wide(interval(gpu=part, graphics=0.13))
    assert wide(interval(gpu=part, graphics=0.01))


def test_a_tree_that_fills_its_own_cores_contends_with_nobody() -> None:
    """Decoders that wait for each other are too many for their cores, not victims of a neighbour."""
    crowded = hot(process_tree_cpu_ratio=0.98, process_tree_runqueue_wait_ratio=0.5)
    assert cause(crowded) == "cpu-preprocess"


def test_many_busy_threads_wait_a_little_each() -> None:
    """Forty loader threads at work on free cores add up to 0.2 s/s of waiting: that is no contention."""
    many = hot(
        process_tree_cpu_cores=12.0,
        process_tree_owner_cpu_cores=12.0,
        process_tree_hottest_thread_cores=0.4,
        process_tree_runqueue_wait_ratio=0.2,
    )
    assert cause(many) == "cpu-preprocess"


def test_threads_that_spin_for_several_gpus_decode_nothing() -> None:
    """A process that drives four GPUs may spin in four threads."""
    four = {**HOT_HOST, "process_tree_cpu_cores": 4.0, "process_tree_owner_cpu_cores": 4.0}
    gpus = [gappy(gpu=h200(index), **{**four, "graphics": 0.5}) for index in range(4)]
    assert cause(*gpus) == "host-serial"
    assert cause(gpus[0]) == "cpu-preprocess"


def test_somebody_elses_storage_does_not_starve_this_tree() -> None:
    """A server that idles on a host with busy disks waits for nothing."""
    assert cause(asleep(host_pressure_io_ratio=0.9)) is None
    assert verdict(asleep(host_pressure_io_ratio=0.9)).key == ("idle", "no-demand")


def test_the_trees_own_pressure_comes_before_the_hosts() -> None:
    """A tree whose own group waits for storage is starved by it, whatever the host's pressure."""
    own = partial(asleep, host_pressure_io_ratio=0.0)
    waits = own(process_tree_io_pressure_ratio=0.5, process_tree_read_bytes_per_second=5e6)
    assert verdict(waits).key == ("starving", "io-wait")
    assert readings(verdict(waits))["process_tree_io_pressure_ratio"] == 0.5
    assert verdict(waits).confidence > 0.5
    unread = own(process_tree_io_pressure_ratio=0.5, process_tree_read_bytes_per_second=None)
    assert verdict(unread).confidence > 0.5
    writes_its_log = own(process_tree_io_pressure_ratio=0.5, process_tree_read_bytes_per_second=0.0)
    assert verdict(writes_its_log).confidence < 0.5


def test_pressure_on_others_is_theirs() -> None:
    """Where the tree's own group waits for nothing, the host's pressure says nothing about it."""
    theirs = asleep(
        process_tree_io_pressure_ratio=0.01, host_pressure_io_ratio=0.9, process_tree_blocked_ratio=0.1
    )
    assert cause(theirs) is None
    assert verdict(theirs).key == ("idle", "no-demand")
    streams = asleep(
        process_tree_io_pressure_ratio=0.01,
        host_pressure_io_ratio=0.9,
        process_tree_read_bytes_per_second=5e7,
    )
    assert cause(streams) == "io-wait"


def test_cpu_pressure_is_shown_and_decides_nothing() -> None:
    """The group's pressure says what the threads' waiting says already, and names nothing by itself."""
    waits = hot(process_tree_runqueue_wait_ratio=0.5)
    both = hot(process_tree_runqueue_wait_ratio=0.5, process_tree_cpu_pressure_ratio=0.16)
    assert verdict(both).key == verdict(waits).key == ("starving", "host-contention")
    assert verdict(both).confidence == verdict(waits).confidence
    assert readings(verdict(both))["process_tree_cpu_pressure_ratio"] == 0.16
    assert cause(hot(process_tree_cpu_pressure_ratio=0.9)) == "host-serial"


def test_pressure_with_unknown_part_of_the_tree_is_a_guess() -> None:
    """Reading /proc/PID/io needs a permission; without it the host's pressure is all there is."""
    unseen = asleep(host_pressure_io_ratio=0.9, process_tree_read_bytes_per_second=None)
    assert verdict(unseen).key == ("starving", "io-wait")
    assert verdict(unseen).confidence < 0.5


def test_the_hosts_traffic_is_a_guess() -> None:
    """A data set over the network and requests to a server that idles look alike from outside."""
    loading = asleep(host_network_receive_bytes_per_second=100e6)
    assert verdict(loading).key == ("starving", "io-wait")
    assert verdict(loading).confidence < 0.5
    assert cause(hot(host_network_receive_bytes_per_second=100e6)) == "host-serial"


def test_evidence_that_only_changes_the_cause_leaves_the_verdict_sure() -> None:
    """With somebody at work it is starving either way; where all sleep the evidence carries the verdict."""
    assert verdict(asleep(process_tree_busiest_worker_cores=0.86)).confidence >= 0.7
    assert verdict(hot(process_tree_throttled_ratio=0.051)).confidence >= 0.7
    assert verdict(asleep(process_tree_throttled_ratio=0.051)).confidence <= 0.55


# --- GPUs of one job that take turns


def turns(
    *busy: float | tuple[float, ...], owners: tuple[tuple[int, ...], ...] | None = None
) -> list[Interval]:
    """GPUs of one job that are this busy, all the time or sample by sample; one process drives all unless told."""
    return [
        interval(
            gpu=h200(index),
            **{**NO_WORK, **HOT_HOST},
            owners=(owners or ((100,),) * len(busy))[index],
            family=("pid:1000",),
            series={"graphics_active_ratio": share if isinstance(share, tuple) else (share,)},
        )
        for index, share in enumerate(busy)
    ]


def test_turns_of_one_process() -> None:
    """A layer-wise split over four GPUs keeps each busy a quarter of the time."""
    for index in range(4):
        gpus = turns(0.25, 0.25, 0.25, 0.25)
        gpus.insert(0, gpus.pop(index))
        assert cause(*gpus) == "peer-wait"


def test_turns_of_several_processes_show_sample_by_sample() -> None:
    """Pipeline ranks exclude each other; ranks that are half busy at the same time, or all the time, do not."""
    ranks = ((100,), (200,))
    assert cause(*turns((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 1.0), owners=ranks)) == "peer-wait"
    assert cause(*turns((1.0, 0.0, 1.0, 0.0), (1.0, 0.0, 1.0, 0.0), owners=ranks)) == "host-serial"
    assert cause(*turns((0.5, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5), owners=ranks)) == "host-serial"


def test_one_process_that_uses_its_gpus_at_once_takes_no_turns() -> None:
    """Data parallelism in one process is busy everywhere at the same moments."""
    together = (1.0, 0.0, 0.0, 0.0)
    assert cause(*turns(together, together, together, together)) != "peer-wait"


@pytest.mark.parametrize("busy", [(0.1, 0.1), (0.8, 0.2), (0.59, 0.59, 0.59)])
def test_shares_that_are_no_turns(busy: tuple[float, ...]) -> None:
    """Too little together, one that does nearly all, or more than one GPU's worth."""
    assert cause(*turns(*busy)) != "peer-wait"


def test_strangers_take_no_turns() -> None:
    """GPUs of other jobs may add up to one by chance."""
    mine, other = turns(0.5, 0.5)
    stranger = interval(gpu=h200(1), **NO_WORK, graphics=0.5, owners=(7,), family=("pid:7",))
    assert cause(mine, other) == "peer-wait"
    assert cause(mine, stranger) == "host-serial"
