"""A GPU split by MIG: slices are judged on their own activity and their board's clocks, the board is what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.learn import Learner

from .build import NO_WORK, QUIET_HOST, h200, interval

REASON = {"hw-thermal": 0.5}


def board(share: float = 4 / 7, **signals: Any) -> Interval:
    gpu = h200(split=True, share_ratio=share)
    given = {"sm_clock_hertz": 1.9e9, "power_watts": 500.0, "reasons": {}, "owners": (), **signals}
    return interval(gpu=gpu, **given)


def slice_(mig: str = "1", share: float = 3 / 7, **signals: Any) -> Interval:
    gpu = replace(
        h200(mig=mig, share_ratio=share, profile="3g.71gb"),
        power_limit_watts=None,
        default_power_limit_watts=None,
        sm_clock_max_hertz=None,
        memory_clock_max_hertz=None,
    )
    given = {**NO_WORK, **QUIET_HOST, "graphics": 0.4, "sm": 0.95, "tensor": 0.9, **signals}
    return interval(gpu=gpu, **given)


def by_mig(*intervals: Interval, learner: Learner | None = None) -> dict[str, Verdict]:
    return {verdict.gpu.mig: verdict for verdict in judge(intervals, learner=learner)}


@pytest.mark.parametrize("share", [0.0, 4 / 7, 1.0])
def test_board_is_what_no_instance_has(share: float) -> None:
    """Its row is idle/free for the share that is left, whatever its power says of the slices' work."""
    one = by_mig(board(share))[""]
    assert one.key == ("idle", "free")
    assert one.confidence == pytest.approx(0.95)
    assert [(each.signal, each.value) for each in one.evidence] == [("gpu_share_ratio", share)]
    assert (one.time.free, one.time.observed, one.time.lost, one.time.unattributed) == (5.0, 5.0, {}, 0.0)
    assert one.signals["power_watts"] == 500.0


def test_board_that_was_not_read_is_no_free_one() -> None:
    """Without readings nobody knows whether the share is free."""
    one = by_mig(board(coverage=0.4))[""]
    assert one.verdict == "unknown"
    assert one.time.free == 0.0
    assert by_mig(board(coverage=0.0))[""].cause == "no-data"


def test_slice_is_judged_by_its_own_sms() -> None:
    """A slice at full tensor load is healthy, though its engine activity tops out below 1."""
    both = by_mig(board(), slice_())
    assert both["1"].key == ("healthy", "compute")
    assert both["1"].confidence > 0.9


def test_slice_is_throttled_with_its_board() -> None:
    """Clocks are the board's: its events hold for every busy slice, and for no idle one."""
    both = by_mig(
        board(sm_clock_hertz=0.8e9, reasons=REASON, reason_samples={"hw-thermal": 10}),
        slice_("1"),
        slice_("2", sm=0.0, tensor=0.0, graphics=0.0, owners=()),
    )
    assert {mig: verdict.key for mig, verdict in both.items()} == {
        "": ("idle", "free"),
        "1": ("throttled", "hw-thermal"),
        "2": ("idle", "free"),
    }
    lost = both["1"].time.lost["throttled", "hw-thermal"]
    assert lost == pytest.approx(5.0 * (0.9 / 0.93) * (1 - 0.8e9 / 1.98e9 / 0.73), rel=0.02)


def test_low_cap_of_the_board_throttles_its_slices() -> None:
    """A lowered limit is read from the board, as the slice has none."""
    capped = board(
        sm_clock_hertz=1.0e9,
        reasons={"sw-power-cap": 1.0},
        power_limit_watts=300.0,
    )
    assert by_mig(capped, slice_())["1"].key == ("throttled", "power-cap")


def test_what_is_the_boards_is_counted_once() -> None:
    """Clock events, clocks, limits and power are exported with the board's row alone."""
    both = by_mig(board(reasons=REASON, reason_samples={"hw-thermal": 10}), slice_())
    assert both["1"].clock_events is None
    assert not {"sm_clock_hertz", "power_watts", "power_limit_watts"} & both["1"].signals.keys()
    assert not {"sm_clock_hertz", "power_watts", "power_limit_watts"} & both["1"].increments.keys()
    assert both[""].clock_events == {"hw-thermal": pytest.approx(2.5)}
    assert not {"sm_active_ratio", "tensor_active_ratio"} & both[""].signals.keys()


def test_board_of_another_gpu_says_nothing() -> None:
    """Two boards in one host: each slice has the clocks of its own."""
    other = replace(board(reasons=REASON, reason_samples={"hw-thermal": 10}), gpu=h200(1, split=True))
    verdicts = judge([board(), other, slice_()])
    assert verdicts[2].key == ("healthy", "compute")


def test_board_teaches_nothing() -> None:
    """What its bus carries for the slices is no idle floor."""
    learner = Learner()
    for _ in range(10):
        by_mig(board(pcie_receive_bytes_per_second=1e6), learner=learner)
    assert not learner._learnt
