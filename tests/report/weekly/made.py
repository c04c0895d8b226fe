"""Histories made by hand, hour by hour, for what is computed and shown of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from gpuwhy.report.weekly import periods
from gpuwhy.report.weekly.figures import Settings, compute
from gpuwhy.report.weekly.history import Gatherer, History, Window
from gpuwhy.report.weekly.periods import Period
from gpuwhy.report.weekly.types import Report

HOUR = 3600.0
UTC = ZoneInfo("UTC")
NOW = datetime(2026, 11, 30, 9, 30, tzinfo=timezone.utc).timestamp()
TRAIN = ("slurm", "train-resnet", "", "ann")
SERVE = ("kubernetes", "chat", "prod", "platform")
COPY, HELD, BRAKE, UNDETERMINED = (
    ("starving", "copy"),
    ("idle", "held"),
    ("throttled", "power-brake"),
    ("starving", "undetermined"),
)
COMPUTE, FREE = ("healthy", "compute"), ("idle", "free")


class Made:
    """The hours of a period and of four weeks before it; everything is put in GPU-seconds of an hour."""

    def __init__(
        self, period: str = "2026-W48", zone: ZoneInfo = UTC, now: float = NOW, weeks: int = 4
    ) -> None:
        self.period: Period = periods.parse(period, zone, now)
        self.zone = zone
        self.now = now
        span = self.period.span
        self.spans = (span, *(span.before(number) for number in range(1, weeks + 1)))
        self.gatherers = [Gatherer(each.hours) for each in self.spans]
        self.gpus: dict[tuple[str, ...], dict[tuple[str, str, str], float]] = {}
        self.places: dict[tuple[str, ...], tuple[str, ...]] = {}

    def put(
        self,
        hours: Iterable[int],
        *,
        week: int = 0,
        host: str = "h1",
        gpu: int = 0,
        mig: str = "",
        model: str = "NVIDIA H200",
        workload: tuple[str, str, str, str] | None = None,
        share: float = 1.0,
        observed: float = HOUR,
        measured: float | None = None,
        useful: float = 0.0,
        headroom: float = 0.0,
        free: float = 0.0,
        lost: Mapping[tuple[str, str], float] | None = None,
        verdict: tuple[str, str] = COMPUTE,
    ) -> None:
        """Each of these hours of one GPU, at every level."""
        into = self.gatherers[week]
        time = {
            "observed": observed,
            "measured": observed if measured is None else measured,
            "useful": useful,
            "headroom": headroom,
            "free": free,
        }
        streams = [((name, "", ""), seconds * share) for name, seconds in time.items()]
        streams += [(("lost", *key), seconds * share) for key, seconds in (lost or {}).items()]
        named = [*streams, (("verdict", *verdict), observed * share)]
        for hour in hours:
            if not week:
                sums = self.gpus.setdefault((host, str(gpu), f"GPU-{host}-{gpu}", mig), {})
                for stream, seconds in streams:
                    sums[stream] = sums.get(stream, 0.0) + seconds
            for level, group in (("instance", (host,)), ("model", (model,)), ("fleet", ())):
                into.add(level, group, named, hour)
            if workload:
                own = [each for each in named if each[0][0] in {"measured", "useful", "lost"}]
                own.append((("verdict", verdict[0], ""), observed * share))
                into.add("workload", workload, own, hour)
                into.add("owner", workload[-1:], own, hour)

    def history(self, *notes: str) -> History:
        windows = [
            Window(span, gatherer.tables, {} if number else self.gpus)
            for number, (span, gatherer) in enumerate(zip(self.spans, self.gatherers, strict=True))
        ]
        return History("made by hand", windows[0], tuple(windows[1:]), self.places, notes)

    def report(self, *, price: float = 0.0, currency: str = "EUR", notes: tuple[str, ...] = ()) -> Report:
        settings = Settings(self.period, str(self.zone), price, currency, self.now)
        return compute(self.history(*notes), settings)


def a_week() -> Made:
    """A week of three hosts that has something of everything, and three weeks before it."""
    made = Made()
    made.places[TRAIN] = ("h1", "h2")
    made.places[SERVE] = ("h3",)
    for week in range(4):
        for hour in range(168):
            by_day = 8 <= hour % 24 < 20 and hour < 120
            late = week == 0 and hour >= 48
            for host in ("h1", "h2"):
                lost = {COPY: 2700.0 if late else 900.0} if by_day else {}
                made.put(
                    [hour],
                    week=week,
                    host=host,
                    workload=TRAIN,
                    lost=lost,
                    useful=3000.0 - sum(lost.values()),
                    headroom=300.0,
                    verdict=COPY if late and by_day else COMPUTE,
                )
            made.put([hour], week=week, host="h3", gpu=0, workload=SERVE, lost={HELD: HOUR}, verdict=HELD)
            made.put([hour], week=week, host="h3", gpu=1, free=HOUR, verdict=FREE)
        made.put(
            range(10),
            week=week,
            host="h3",
            gpu=2,
            model="NVIDIA L4",
            measured=0.0,
            useful=0.0,
            lost={BRAKE: 300.0, UNDETERMINED: 600.0},
            verdict=BRAKE,
        )
    return made
