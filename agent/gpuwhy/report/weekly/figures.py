"""All that a report says, computed from the hours of history; the same for every source."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

import gpuwhy
from gpuwhy.catalog import IDENTITY, WORKLOAD
from gpuwhy.report.weekly import words
from gpuwhy.report.weekly.history import (
    FREE,
    HEADROOM,
    MEASURED,
    OBSERVED,
    USEFUL,
    WEEKS_BEFORE,
    History,
    Row,
    Stream,
    Window,
)
from gpuwhy.report.weekly.history import Group as Key
from gpuwhy.report.weekly.past import Measured, shifts, worse_since
from gpuwhy.report.weekly.periods import HOUR_S, SETTLED_S, Period
from gpuwhy.report.weekly.types import (
    SCHEMA,
    About,
    Change,
    Day,
    Explained,
    Fix,
    Group,
    Headline,
    HeatRow,
    Held,
    Hours,
    Loss,
    Part,
    Past,
    Report,
    Throttling,
    Week,
    Worse,
)
from gpuwhy.verdict.playbook import PLAY_BY_KEY
from gpuwhy.verdict.types import NO_DATA
from gpuwhy.verdict.vocabulary import CAUSE_BY_KEY, IDLE, STARVING, THROTTLED, VERDICTS

LABELS: dict[str, tuple[str, ...]] = {
    "fleet": (),
    "instance": ("host",),
    "model": ("model",),
    "owner": ("workload_owner",),
    "workload": WORKLOAD,
    "gpu": ("host", *IDENTITY),
}

# A loss is confirmed where its cause is named and so much of the judged time was measured with all signals.
CONFIRMED_MEASURED = 0.9
UNNAMED = {"undetermined", "unreported"}
# A week before counts if so much of its hours were seen; its hours are compared if as much of it was seen as of the
# period, or about as much: a half of a week has lost half as much.
SEEN = 0.5
ALIKE = 0.05
# Fewer measured GPU-hours than this are too few to call a group worse; and so much less efficient it has to be,
# both as a difference and against what it was.
LEAST_MEASURED_H = 12.0
LEAST_DROP, LEAST_DROP_SHARE = 0.05, 0.1

MOST_FIXES = 10
MOST_WORSE = 5  # of each level
MOST_HELD = 10
MOST_THROTTLING = 15
MOST_HEAT = 24
MOST_PARTS = 4
MOST_STEPS = 3

DEFINITIONS = tuple(
    " ".join(paragraph.split())
    for paragraph in f"""
GPU-hours are hours of whole GPUs; a MIG slice counts by its share of one.

Useful is time at the speed of light of compute pipes or DRAM; efficiency is useful over measured time. It is not
MFU.

Measured time has all signals that useful time needs. Elsewhere only gaps are charged, and the rest is
unattributed: no cause has it.

Headroom is slack while healthy or memory-bound. Nobody can be sure to win it, so it is no loss. Of workloads and
owners it is not known apart and counts as unattributed.

Free is time in which no process held the GPU. It is spare capacity, and no loss either.

A loss is confirmed in hours in which its cause is named and at least {100 * CONFIRMED_MEASURED:.0f} % of the time
judged on that host, or of that workload, was measured. All other loss is to be investigated first.

Where workloads share a GPU, each has losses of its own, so that their sum may exceed the GPU's. A cause is that of each
workload, which may be another than the GPU's: by cause, workloads need not add up to hosts and fleet.

Weeks before are the same days of the calendar, whole weeks earlier. One counts if at least
{100 * SEEN:.0f} % of its hours were seen; with its shares that is enough, with its hours only if it was seen for as
much of its time as this period, within {100 * ALIKE:.0f} %. Of those that count, up to {WEEKS_BEFORE}, the median is
taken.

Worse are groups whose efficiency is at least {100 * LEAST_DROP:.0f} points, and {100 * LEAST_DROP_SHARE:.0f} %, below
the median of their own weeks before, with {LEAST_MEASURED_H:.0f} measured GPU-hours or more in each. Since when is
the day that splits the daily efficiencies best into higher and lower, if at most 1 of 20 shuffles of these days has
a split as good.

A change of efficiency is mix + rate. Mix: other shares of the measured time, each at the mean of its efficiencies
before and now. Rate: other efficiencies, each at the mean of its shares.
""".strip().split("\n\n")
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a report is told besides its history; a price of 0 is none."""

    period: Period
    zone_name: str
    price_per_gpu_hour: float = 0.0
    currency: str = "USD"
    generated_unix: float = 0.0


def compute(history: History, settings: Settings) -> Report:
    """The report. Computes with whatever there is: nothing observed gives a report that says so."""
    return _Figures(history, settings).report()


class _Figures:
    def __init__(self, history: History, settings: Settings) -> None:
        self._history = history
        self._settings = settings
        self._now = history.period
        self._weeks = [self._week(window, number) for number, window in enumerate(history.before, start=1)]
        self._price = settings.price_per_gpu_hour or None

    def report(self) -> Report:
        groups = tuple(
            group for level in LABELS if level not in {"fleet", "gpu"} for group in self._groups(level)
        )
        groups += tuple(self._single_gpus())
        [fleet] = self._groups("fleet") or [
            Group("fleet", {}, (), _hours({}), (), (), None, tuple(None for _ in self._weeks))
        ]
        about = self._about()
        fixes = self._fixes(fleet, groups)
        return Report(
            schema=SCHEMA,
            about=about,
            headline=words.headline(fleet, fixes, about),
            notes=tuple(self._notes(about, fleet, groups)),
            definitions=DEFINITIONS,
            gpus=len({key[:3] for key in self._now.gpus}),
            hosts=len(self._now.table("instance")),
            fleet=fleet,
            changes=tuple(self._changes(fleet)),
            weeks=tuple(self._weeks),
            fixes=fixes,
            explained=tuple(filter(None, (self._explained(level) for level in ("workload", "model")))),
            worse=tuple(self._worse(groups)),
            held=tuple(self._held(groups)),
            throttling=tuple(self._throttling()),
            days=tuple(self._days()),
            heat=tuple(self._heat()),
            groups=groups,
        )

    # What it is of

    def _about(self) -> About:
        period, span = self._settings.period, self._now.span
        return About(
            name=period.name,
            start=span.start.isoformat(),
            end=span.end.isoformat(),
            timezone=self._settings.zone_name,
            complete=period.complete,
            hours_expected=span.hours,
            hours_seen=_seen(self._now),
            source=self._history.source,
            generated=datetime.fromtimestamp(self._settings.generated_unix, timezone.utc).isoformat(
                timespec="seconds"
            ),
            version=gpuwhy.__version__,
            price_per_gpu_hour=self._price,
            currency=self._settings.currency if self._price else None,
        )

    def _notes(self, about: About, fleet: Group, groups: Sequence[Group]) -> Iterator[str]:
        # Backticks are ours: they stand around commands.
        yield from (note.replace("`", "'") for note in self._history.notes)
        whole = self._settings.period.whole
        if not about.complete:
            over = self._settings.generated_unix >= whole.end_unix
            yield (
                f"The period's last hour ended just now and may not be kept yet: ask again in {SETTLED_S // 60} minutes. "
                if over
                else "The period is not over: "
            ) + f"{about.hours_expected} of its {whole.hours} hours are in this report."
        if not fleet.hours.observed:
            yield (
                f"No GPU was observed between {about.start} and {about.end}: the agent did not run, its first full hour is "
                "not over, or its history begins later."
            )
            return
        if about.hours_seen < about.hours_expected:
            yield (
                f"Something was observed in {about.hours_seen} of {about.hours_expected} hours; the others belong to "
                "nobody and are in no figure."
            )
        measured = fleet.hours.measured / fleet.hours.observed
        if measured < CONFIRMED_MEASURED:
            yield (
                f"{words.percent(measured)} of the observed time was measured with all signals. `gpuwhy doctor` says on "
                "each host which are missing, and how to get them."
            )
        if not any(week.available for week in self._weeks):
            yield "There is no week before that was seen for at least half, so nothing is compared."
        elif not self._weeks[0].available:
            yield "The week before was seen for less than half of its hours, so nothing is compared with it alone."
        elif not self._alike(self._weeks[0]):
            week = self._weeks[0]
            yield (
                f"The week before was seen in {week.hours_seen} of {week.hours_expected} hours, this period in "
                f"{about.hours_seen} of {about.hours_expected}: shares are compared, hours are not."
            )
        if not any(group.level == "workload" for group in groups):
            yield "No workload was named in this time, so losses are ranked by host."

    # Groups

    def _groups(self, level: str) -> list[Group]:
        table = self._now.table(level)
        befores = [window.table(level) for window in self._history.before]
        found = []
        for key, row in table.items():
            before = self._history.before[0].table(level).get(key) if self._comparable(0) else None
            found.append(
                Group(
                    level=level,
                    labels=dict(zip(LABELS[level], key, strict=True)),
                    hosts=self._history.places.get(key, ()) if level == "workload" else (),
                    hours=_hours(row),
                    losses=self._losses(level, row),
                    verdicts=tuple(
                        Headline(verdict, cause, hours)
                        for (_, verdict, cause), hours in _sorted_streams(row, "verdict")
                    ),
                    before=_past(before) if before else None,
                    efficiencies=tuple(
                        _hours(each[key]).efficiency if key in each and week.available else None
                        for each, week in zip(befores, self._weeks, strict=True)
                    ),
                )
            )
        return _worst_first(found)

    def _single_gpus(self) -> list[Group]:
        found = []
        for key, seconds in self._now.gpus.items():
            # As a row of one hour, which their sums are.
            row = {stream: array("d", [each]) for stream, each in seconds.items()}
            losses = [
                Loss(verdict, cause, hours, None, None)
                for (_, verdict, cause), hours in _sorted_streams(row, "lost")
            ]
            labels = dict(zip(LABELS["gpu"], key, strict=True))
            found.append(Group("gpu", labels, (key[0],), _hours(row), tuple(losses), (), None, ()))
        return _worst_first(found)

    def _comparable(self, number: int) -> bool:
        return len(self._weeks) > number and self._weeks[number].available

    def _alike(self, week: Week) -> bool:
        """Whether a week was seen for as much of its time as the period, so that hours can be compared."""
        now = _seen(self._now) / self._now.span.hours
        return week.available and abs(week.hours_seen / week.hours_expected - now) <= ALIKE

    def _losses(self, level: str, row: Row) -> tuple[Loss, ...]:
        if level == "fleet" and self._now.table("instance"):
            confirmed: dict[Stream, float] = {}
            for each in self._now.table("instance").values():
                for stream, hours in _confirmed(each).items():
                    confirmed[stream] = confirmed.get(stream, 0.0) + hours
        else:
            confirmed = _confirmed(row)
        return tuple(
            Loss(
                stream[1],
                stream[2],
                hours,
                min(hours, confirmed.get(stream, 0.0)),
                max(0.0, hours - confirmed.get(stream, 0.0)),
            )
            for stream, hours in _sorted_streams(row, "lost")
        )

    # What to fix

    def _fixes(self, fleet: Group, groups: Sequence[Group]) -> tuple[Fix, ...]:
        lost: dict[str, dict[str, float]] = {}  # by level and verdict
        for group in (fleet, *groups):
            sums = lost.setdefault(group.level, {})
            for loss in group.losses:
                sums[loss.verdict] = sums.get(loss.verdict, 0.0) + loss.hours
        # Heat and power are a matter of hosts; the rest of whoever's work it is, where that is mostly known.
        levels = {
            verdict: "workload"
            if verdict != THROTTLED and lost.get("workload", {}).get(verdict, 0.0) >= hours / 2
            else "instance"
            for verdict, hours in lost["fleet"].items()
        }
        ranked = sorted(
            (
                (group, loss)
                for group in groups
                for loss in group.losses
                if levels.get(loss.verdict) == group.level
            ),
            key=lambda pair: -pair[1].hours,
        )
        return tuple(self._fix(group, loss) for group, loss in ranked[:MOST_FIXES])

    def _fix(self, group: Group, loss: Loss) -> Fix:
        key = (loss.verdict, loss.cause)
        play, cause = PLAY_BY_KEY.get(key), CAUSE_BY_KEY.get(key)
        return Fix(
            level=group.level,
            labels=group.labels,
            hosts=group.hosts,
            loss=loss,
            money=loss.hours * self._price if self._price else None,
            meaning=cause.meaning if cause else "",
            evidence=tuple(self._evidence(group, loss)),
            steps=tuple(_readable(step) for step in play.steps[:MOST_STEPS]) if play else (),
            confirm=play.confirm if play else "",
            when_normal=play.when_normal if play else "",
        )

    def _evidence(self, group: Group, loss: Loss) -> Iterator[str]:
        row = self._now.table(group.level)[tuple(group.labels.values())]
        total = group.hours
        held = "held" if group.level == "workload" else "observed"
        lost = row["lost", loss.verdict, loss.cause]
        present = _present(row)
        yield (
            f"{words.percent(words.share(loss.hours, total.observed))} of the {words.hours(total.observed)} GPU-hours "
            f"{held}, in {sum(each > 0 for each in lost)} of {sum(present)} hours"
        )
        yield (
            f"efficiency {words.percent(total.efficiency)}, {words.percent(words.share(total.measured, total.observed))} "
            "of the time measured"
        )
        if loss.to_investigate is not None and loss.to_investigate > 0.005:
            yield f"{words.hours(loss.confirmed)} confirmed, {words.hours(loss.to_investigate)} to investigate"

    def _held(self, groups: Sequence[Group]) -> list[Held]:
        found = []
        level = "workload" if any(group.level == "workload" for group in groups) else "instance"
        for group in groups:
            if group.level == level:
                idle = {loss.cause: loss.hours for loss in group.losses if loss.verdict == IDLE}
                held, no_demand = idle.get("held", 0.0), idle.get("no-demand", 0.0)
                if held or no_demand:
                    found.append(Held(level, group.labels, group.hosts, held, no_demand))
        return sorted(found, key=lambda each: -(each.held + each.no_demand))[:MOST_HELD]

    def _throttling(self) -> list[Throttling]:
        found = []
        for (host, *_), row in self._now.table("instance").items():
            sums = {stream: hours for stream, hours in _sums(row).items() if stream[1] == THROTTLED}
            for cause in {stream[2] for stream in sums}:
                hours, lost = (sums.get((each, THROTTLED, cause), 0.0) for each in ("verdict", "lost"))
                found.append(Throttling(host, cause, hours, lost))
        return sorted(found, key=lambda each: (-each.lost, -each.hours, each.host, each.cause))[
            :MOST_THROTTLING
        ]

    # Against the past

    def _week(self, window: Window, number: int) -> Week:
        row = window.fleet
        seen = _seen(window)
        name = "the week before" if number == 1 else f"{number} weeks before"
        return Week(
            name=name,
            start=window.span.start.isoformat(),
            end=window.span.end.isoformat(),
            hours_expected=window.span.hours,
            hours_seen=seen,
            available=seen > 0 and seen >= SEEN * window.span.hours,
            hours=_hours(row),
            lost=_by_verdict(row),
        )

    def _changes(self, fleet: Group) -> Iterator[Change]:
        now = fleet.hours
        lost = _by_verdict(self._now.fleet)
        rows: list[tuple[str, str, bool | None, float | None, Sequence[float | None]]] = [
            ("efficiency", "ratio", True, now.efficiency, [week.hours.efficiency for week in self._weeks]),
            (
                "measured, of observed",
                "ratio",
                True,
                words.share(now.measured, now.observed),
                [words.share(week.hours.measured, week.hours.observed) for week in self._weeks],
            ),
            *(
                (name, "hours", good, getattr(now, name), [getattr(week.hours, name) for week in self._weeks])
                for name, good in (
                    ("observed", None),
                    ("useful", True),
                    ("lost", False),
                    ("headroom", None),
                    ("free", None),
                    ("unattributed", None),
                )
            ),
            *(
                (
                    f"lost to {each}",
                    "hours",
                    False,
                    lost.get(each, 0.0),
                    [week.lost.get(each, 0.0) for week in self._weeks],
                )
                for each in VERDICTS
                if lost.get(each) or any(week.lost.get(each) for week in self._weeks)
            ),
        ]
        for name, unit, good, value, befores in rows:
            counted = [
                before if week.available and (unit == "ratio" or self._alike(week)) else None
                for before, week in zip(befores, self._weeks, strict=True)
            ]
            known = [before for before in counted if before is not None]
            yield Change(
                name=name,
                unit=unit,
                good=good,
                now=value,
                before=counted[0] if counted else None,
                median=median(known) if known else None,
                available=len(known),
            )

    def _explained(self, level: str, within: Key | None = None) -> Explained | None:
        """The fleet's change against the week before, or that of one owner, by its parts at a level."""
        if not self._comparable(0):
            return None
        sides = []
        for window in (self._now, self._history.before[0]):
            table = {
                key: _measured(row)
                for key, row in window.table(level).items()
                if within is None or key[-1:] == within
            }
            if within is None:
                whole = _measured(window.fleet)
                rest = Measured(
                    whole.useful - sum(each.useful for each in table.values()),
                    whole.measured - sum(each.measured for each in table.values()),
                )
                if rest.measured > 0.001 * whole.measured:
                    table[tuple("" for _ in LABELS[level])] = rest
            sides.append(table)
        found = shifts(sides[0], sides[1])
        if not found or (level == "model" and len(found) < 2):
            return None
        parts = sorted(found.items(), key=lambda item: -max(abs(item[1].mix), abs(item[1].rate)))
        whole_now, whole_before = (
            Measured(sum(each.useful for each in side.values()), sum(each.measured for each in side.values()))
            for side in sides
        )
        return Explained(
            by=level,
            now=whole_now.efficiency,
            before=whole_before.efficiency,
            mix=sum(each.mix for each in found.values()),
            rate=sum(each.rate for each in found.values()),
            parts=tuple(
                Part(dict(zip(LABELS[level], key, strict=True)), shift.mix, shift.rate)
                for key, shift in parts[:MOST_PARTS]
            ),
        )

    def _worse(self, groups: Sequence[Group]) -> list[Worse]:
        found: list[Worse] = []
        for level in ("workload", "owner", "instance", "model"):
            candidates = [worse for group in groups if group.level == level for worse in self._against(group)]
            candidates.sort(key=lambda each: -each.hours)
            dated = [self._dated(each) for each in candidates[:MOST_WORSE]]
            # An owner of one workload would say the same again.
            found += [each for each in dated if each.explained is None or len(each.explained.parts) > 1]
        return sorted(found, key=lambda each: -each.hours)

    def _against(self, group: Group) -> Iterator[Worse]:
        key = tuple(group.labels.values())
        past = [
            efficiency
            for efficiency, window in zip(group.efficiencies, self._history.before, strict=True)
            if efficiency is not None
            and _measured(window.table(group.level).get(key, {})).measured >= LEAST_MEASURED_H * HOUR_S
        ]
        now = group.hours.efficiency
        if now is None or not past or group.hours.measured < LEAST_MEASURED_H:
            return
        level = median(past)
        if level - now >= max(LEAST_DROP, LEAST_DROP_SHARE * level):
            hours = (level - now) * group.hours.measured
            yield Worse(group.level, group.labels, now, level, len(past), hours, None, None)

    def _dated(self, worse: Worse) -> Worse:
        key = tuple(worse.labels.values())
        days = [
            (day, _measured(window.table(worse.level).get(key, {}), first, last))
            for window in (*reversed(self._history.before), self._now)
            for day, first, last in window.span.days()
        ]
        since = worse_since(days)
        return Worse(
            worse.level,
            worse.labels,
            worse.efficiency,
            worse.past,
            worse.weeks,
            worse.hours,
            since.isoformat() if since else None,
            self._explained("workload", key) if worse.level == "owner" else None,
        )

    # Pictures

    def _days(self) -> Iterator[Day]:
        row = self._now.fleet
        for day, first, last in self._now.span.days():
            yield Day(
                day.isoformat(),
                last - first,
                _hours(row, first, last),
                _by_verdict(row, first, last),
            )

    def _heat(self) -> list[HeatRow]:
        table = self._now.table("instance")
        most = sorted(table, key=lambda key: (-_hours(table[key]).lost, key))[:MOST_HEAT]
        return [_heat_row(key[0], table[key], self._now.span.hours) for key in most]


def _sums(row: Row, first: int = 0, last: int | None = None) -> dict[Stream, float]:
    """Hours of each stream."""
    return {stream: sum(values[first:last]) / HOUR_S for stream, values in row.items()}


def _sorted_streams(row: Row, quantity: str) -> list[tuple[Stream, float]]:
    found = [(stream, hours) for stream, hours in _sums(row).items() if stream[0] == quantity and hours > 0]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def _hours(row: Row, first: int = 0, last: int | None = None) -> Hours:
    sums = _sums(row, first, last)
    useful, measured = sums.get(USEFUL, 0.0), sums.get(MEASURED, 0.0)
    lost = sum(hours for (quantity, *_), hours in sums.items() if quantity == "lost")
    headroom: float | None = None
    free: float | None = None
    # Workloads have no observed time; a row without anything is of no use either way.
    if OBSERVED in sums or not sums:
        observed = sums.get(OBSERVED, 0.0)
        headroom, free = sums.get(HEADROOM, 0.0), sums.get(FREE, 0.0)
    else:
        observed = sum(hours for (quantity, *_), hours in sums.items() if quantity == "verdict")
    rest = observed - useful - lost - (headroom or 0.0) - (free or 0.0)
    return Hours(
        observed=observed,
        measured=measured,
        useful=useful,
        lost=lost,
        headroom=headroom,
        free=free,
        unattributed=max(0.0, rest),
        efficiency=useful / measured if measured > 0 else None,
    )


def _worst_first(groups: list[Group]) -> list[Group]:
    return sorted(
        groups, key=lambda group: (-group.hours.lost, -group.hours.observed, *group.labels.values())
    )


def _past(row: Row) -> Past:
    hours = _hours(row)
    return Past(hours.measured, hours.useful, hours.lost, hours.efficiency)


def _measured(row: Row, first: int = 0, last: int | None = None) -> Measured:
    none: Sequence[float] = ()
    return Measured(sum(row.get(USEFUL, none)[first:last]), sum(row.get(MEASURED, none)[first:last]))


def _by_verdict(row: Row, first: int = 0, last: int | None = None) -> dict[str, float]:
    """Lost hours by verdict, in the order of the vocabulary."""
    sums: dict[str, float] = {}
    for (quantity, verdict, _), hours in _sums(row, first, last).items():
        if quantity == "lost" and hours > 0:
            sums[verdict] = sums.get(verdict, 0.0) + hours
    return {
        verdict: sums[verdict] for verdict in (*VERDICTS, *sorted(sums.keys() - VERDICTS)) if verdict in sums
    }


def _seen(window: Window) -> int:
    """Hours in which anything was observed."""
    return sum(seconds > 0 for seconds in window.fleet.get(OBSERVED, ()))


def _judged(row: Row) -> list[float]:
    """Seconds of each hour for which there were readings."""
    judged = [values for stream, values in row.items() if stream[0] == "verdict" and stream[1:] != NO_DATA]
    return _added(judged or [row[OBSERVED]] if OBSERVED in row else judged)


def _present(row: Row) -> list[bool]:
    return [
        seconds > 0 for seconds in _added(values for stream, values in row.items() if stream[0] == "verdict")
    ]


def _added(series: Iterable[array[float]]) -> list[float]:
    return [sum(hour) for hour in zip(*series, strict=True)]


def _confirmed(row: Row) -> dict[Stream, float]:
    """Hours of losses with a named cause, in hours that were measured well."""
    judged, measured = _judged(row), row.get(MEASURED)
    if measured is None or not judged:
        return {}
    # A second's slack: both are what counters gained, each in its own rounding.
    well = [
        part > 0 and part + 1 >= CONFIRMED_MEASURED * whole
        for part, whole in zip(measured, judged, strict=True)
    ]
    return {
        stream: sum(seconds for seconds, good in zip(values, well, strict=True) if good) / HOUR_S
        for stream, values in row.items()
        if stream[0] == "lost" and stream[2] not in UNNAMED
    }


def _readable(step: str) -> str:
    return step.replace("{gpu}", "GPU").replace("{pid}", "PID")


def _heat_row(host: str, row: Row, hours: int) -> HeatRow:
    observed = row.get(OBSERVED)
    by_verdict: dict[str, list[float]] = {}
    for (quantity, verdict, _), values in row.items():
        if quantity == "lost":
            into = by_verdict.setdefault(verdict, [0.0] * hours)
            for hour, seconds in enumerate(values):
                into[hour] += seconds
    verdicts, lost = [], []
    for hour in range(hours):
        whole = observed[hour] if observed else 0.0
        sums = {verdict: values[hour] for verdict, values in by_verdict.items()}
        leading = max(sums, key=lambda verdict: sums[verdict], default=STARVING)
        total = sum(sums.values())
        verdicts.append(leading if total > 0 else "")
        lost.append(min(1.0, total / whole) if whole > 0 else None)
    return HeatRow(host, tuple(verdicts), tuple(lost))
