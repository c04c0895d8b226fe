"""A recording gets the same verdicts however it is played."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest

from gpuwhy.interval import IntervalBuilder
from gpuwhy.sample import Normaliser
from gpuwhy.source import Reading
from gpuwhy.source.replay import ReplaySource, load
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.summary import winner
from gpuwhy.workload import attribute

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "recordings").glob("*.jsonl.gz"))


def verdicts(readings: Iterable[Reading], *, hold: bool) -> list[Verdict]:
    normaliser, builder = Normaliser(), IntervalBuilder(hold=hold)
    closed = []
    for reading in readings:
        closed += builder.add(reading, attribute(normaliser.samples(reading)))
    closed += builder.finish()
    assert not {reason for _, reason in normaliser.rejected} & {"backwards", "stale"}
    return [verdict for gpus in closed for verdict in judge(gpus)]


def shown(found: list[Verdict]) -> list[tuple[object, ...]]:
    """What is judged, apart from names and clocks: length, headline and where the time went."""
    return [
        (
            verdict.key,
            round(verdict.end_s - verdict.start_s, 6),
            round(verdict.time.useful, 6),
            verdict.confidence,
        )
        for verdict in found
    ]


def winners(found: list[Verdict]) -> list[tuple[str, str]]:
    by_gpu: dict[int, list[Verdict]] = {}
    for verdict in found:
        by_gpu.setdefault(verdict.gpu.index, []).append(verdict)
    return [winner(by_gpu[index]) for index in sorted(by_gpu)]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_played_as_recorded(path: Path) -> None:
    """Re-stamped, and over and over, a recording's intervals are judged as at its recorded times."""
    recorded = list(load(path).readings())
    explained = verdicts(recorded, hold=True)
    plain = verdicts(recorded, hold=False)
    looped = [reading for _, reading in islice(ReplaySource([path], loop=True).schedule(), 2 * len(recorded))]
    played = verdicts(looped, hold=False)
    assert shown(played) == shown(plain) * 2
    assert winners(played) == winners(explained)


def test_speed_does_not_judge() -> None:
    """At ten times the speed the same readings come, only sooner."""
    path = next(path for path in RECORDINGS if path.name.startswith("ddp"))
    slow, fast = (list(ReplaySource([path], speed=speed).schedule()) for speed in (1.0, 10.0))
    assert shown(verdicts((reading for _, reading in fast), hold=True)) == shown(
        verdicts((reading for _, reading in slow), hold=True)
    )
    assert fast[-1][0] == pytest.approx(slow[-1][0] / 10)


def test_side_by_side_hosts_are_judged_apart() -> None:
    """Recordings that play together get the verdicts that each gets alone."""
    paths = [path for path in RECORDINGS if path.name.startswith(("ddp", "allreduce", "idle"))]
    together = [reading for _, reading in ReplaySource(paths).schedule()]
    for origin, path in enumerate(paths):
        alone = verdicts(load(path).readings(), hold=True)
        mine = verdicts((reading for reading in together if reading.origin == origin), hold=True)
        assert shown(mine) == shown(alone)
