"""What did the last seven days cost, what changed, and what should be mended first?"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwhy import recorded
from gpuwhy.catalog import WORKLOAD
from gpuwhy.render.dashboards import parts
from gpuwhy.render.dashboards.parts import hours, or_zero, total, week
from gpuwhy.render.panels import (
    Board,
    Column,
    Line,
    Lines,
    Link,
    Number,
    Query,
    Section,
    Table,
    to_board,
)
from gpuwhy.render.promql import Promql, over
from gpuwhy.verdict import colours

CAUSE = ("verdict", "cause")
WEEK = "7d:1h"
# The hours that end in a day, read at its last moment, whether or not a range holds its own beginning.
DAY = "23h59m:1h"
_HELD = ('verdict="idle"', 'cause="held"')
_THROTTLED = 'verdict="throttled"'
NO_WEEK = (
    "No hour of these seven days is recorded: load alerts/recording.rules.yaml. The first values come at the next full "
    "hour after it was loaded"
)
NO_WEEK_BEFORE = "no week before yet"


def build(promql: Promql) -> Board:
    here = _Week(promql)
    return Board(
        since="7d",
        refresh="",
        sections=(
            Section(
                "",
                (
                    Line(4, tuple(here.figures())),
                    Line(4, (parts.split(week, unread=parts.NOT_RECORDED), *here.costs())),
                    Line(12, (here.first(),)),
                ),
            ),
            Section("Where the time went", (Line(11, (here.days(), here.causes())),)),
            Section("Who and what", (Line(9, (here.owners(),)), Line(7, (here.models(),)))),
            Section("Held idle, and throttled", (Line(10, (here.held(), here.throttled())),)),
        ),
    )


def _before(level: str, stem: str, *labels: str) -> str:
    """GPU-hours in the week before, from its hours: its sums may not have been recorded."""
    return hours(level, stem, labels=labels, window=WEEK, ago="7d")


class _Week:
    """The panels of the seven days before the end of the range."""

    def __init__(self, promql: Promql) -> None:
        self.promql = promql
        self.options = promql.options

    def money(self, expr: str, title: str = "Lost") -> tuple[Column, ...]:
        """A column of what GPU-hours cost, where there is a price."""
        if not self.options.price_per_gpu_hour:
            return ()
        return (
            Column(
                title=f"{title}, {self.options.currency}",
                expr=self.priced(expr),
                unit=parts.price(self.options),
                decimals=1,
                width=110,
            ),
        )

    def priced(self, expr: str) -> str:
        return f"({expr}) * {self.options.price_per_gpu_hour:g}"

    def figures(self) -> Iterator[Number]:
        observed = week("fleet", "observed")
        lost = or_zero(week("fleet", "lost"), observed)
        before = or_zero(_before("fleet", "lost"), _before("fleet", "observed"))
        held = or_zero(week("fleet", "lost", *_HELD), observed)

        def number(
            title: str,
            about: str,
            advice: str,
            unit: str,
            expr: str,
            *,
            decimals: int = 1,
            first: bool = True,
        ) -> Number:
            return Number(
                title=title,
                about=about,
                advice=f"{advice} {parts.FIRST_HOUR}" if first else advice,
                empty=parts.NOT_RECORDED if first else NO_WEEK_BEFORE,
                unit=unit,
                decimals=decimals,
                queries=(Query(expr, ""),),
            )

        yield number(
            "Efficiency",
            "Useful over measured GPU time of the seven days before the end of this range. It is not model FLOPS "
            "utilisation.",
            "Set the goal by the change, not by the number: loads differ.",
            "percentunit",
            parts.newest(recorded.efficiency("fleet", "ratio1w")),
        )
        yield number(
            "Efficiency, change",
            "Efficiency less that of the seven days before those, in percentage points; empty until these have a day.",
            "Look at owners and models to see whether the mix changed or the efficiency did.",
            parts.POINTS,
            parts.change(f"100 * {parts.newest(recorded.efficiency('fleet', 'delta1w'))}", 0.1),
            first=False,
        )
        yield number(
            "Lost GPU-hours",
            "GPU-hours charged to a cause that somebody can mend, in these seven days.",
            "What to fix first is below.",
            parts.HOURS_UNIT,
            lost,
            decimals=0,
        )
        yield number(
            "Lost GPU-h, change",
            "Lost GPU-hours less those of the week before; more GPUs observed lose more.",
            "Compare it with the change of efficiency.",
            parts.HOURS_UNIT,
            parts.change(f"({lost}) - ({before})", 1),
            decimals=0,
            first=False,
        )
        yield number(
            "Held idle GPU-hours",
            "GPU-hours in which a process or a grant held a GPU and nothing ran; a part of what is lost.",
            "The table of what was held names the workloads.",
            parts.HOURS_UNIT,
            held,
            decimals=0,
        )
        yield number(
            "Headroom GPU-hours",
            "Slack of healthy and memory-bound time. It is no loss: nobody can be sure to win it.",
            "Do not plan with it.",
            parts.HOURS_UNIT,
            or_zero(week("fleet", "headroom"), observed),
            decimals=0,
        )

    def costs(self) -> tuple[Number, ...]:
        """What hours cost, where there is a price."""
        if not self.options.price_per_gpu_hour:
            return ()
        observed = week("fleet", "observed")
        rows = (
            ("observed", observed),
            ("lost", or_zero(week("fleet", "lost"), observed)),
            ("held idle", or_zero(week("fleet", "lost", *_HELD), observed)),
        )
        return (
            Number(
                title=f"What they cost, {self.options.currency}",
                about=f"GPU-hours at {self.options.price_per_gpu_hour:g} {self.options.currency} each.",
                advice="It is what the hours cost, not what mending would save at once. " + parts.FIRST_HOUR,
                empty=parts.NOT_RECORDED,
                unit=parts.price(self.options),
                decimals=1,
                width=7,
                queries=tuple(Query(self.priced(expr), name) for name, expr in rows),
            ),
        )

    def first(self) -> Table:
        keys = (*WORKLOAD, *CAUSE)
        lost = week("workload", "lost", labels=keys)
        before = _before("workload", "lost", *keys)
        worst = f"topk(20, {lost})"
        # A cause that is new to a workload of the week before has grown from nothing.
        known = f"on ({', '.join(WORKLOAD)}) {_before('workload', 'verdict', *WORKLOAD)}"
        more = f"({worst} - {before}) or ({worst} and {known})"
        runbook = self.options.runbook_url
        return Table(
            title="What to fix first",
            about="The twenty pairs of a workload and a cause that lost most GPU-hours in these seven days, and how much "
            "more than in the week before.",
            advice="Take the first with its owner; the cause has next steps in docs/verdicts.md and the runbook.",
            empty=NO_WEEK,
            worst="Lost GPU-h",
            columns=(
                self.workload(180),
                Column(title="Owner", label="workload_owner", width=115),
                Column(title="Namespace", label="workload_namespace", width=115),
                Column(
                    title="Cause",
                    label="leading",
                    width=195,
                    texts=parts.LEADING,
                ),
                Column(
                    title="What it means",
                    label="meaning",
                    texts=parts.MEANINGS,
                    link=Link("How to mend it", f"{runbook}#${{__value.raw}}") if runbook else None,
                ),
                Column(
                    title="Lost GPU-h",
                    expr=parts.explained(worst),
                    unit=parts.HOURS_UNIT,
                    decimals=1,
                    width=150,
                    bar=True,
                ),
                Column(
                    title="Change",
                    expr=parts.explained(parts.change(more, 0.1)),
                    unit=parts.HOURS_UNIT,
                    decimals=1,
                    width=90,
                ),
                *self.money(parts.explained(worst)),
            ),
        )

    def workload(self, width: int = 0) -> Column:
        link = parts.to_workload("Open the workload")
        return Column(title="Workload", label="workload", width=width, link=link)

    def days(self) -> Lines:
        seconds = over(recorded.hourly("fleet", "verdict"), DAY, "VERDICT")
        return Lines(
            title="GPU-hours a day by verdict",
            about="GPU-hours of each day (UTC) by verdict; a bar stands before the midnight that ends its day.",
            advice="Nights and weekends that are idle while jobs wait are the cheapest capacity to win.",
            empty=NO_WEEK,
            unit=parts.HOURS_UNIT,
            decimals=0,
            every="1d",
            width=12,
            stacked=True,
            bars=True,
            means=True,
            beside=True,
            queries=parts.verdicts(f"{total(f'sum_over_time({seconds})')} / 3600"),
            colours=colours.VERDICTS,
        )

    def causes(self) -> Table:
        now = week("fleet", "verdict", labels=CAUSE)
        before = _before("fleet", "verdict", *CAUSE)
        change = f"(({or_zero(now, before)}) - ({or_zero(before, now)}))"
        known = _before("fleet", "observed")
        return Table(
            title="By verdict and cause",
            about="GPU-hours of these seven days by verdict and cause, lost or not, and how they differ from the week before.",
            advice="A cause that grows while the fleet does not is new: see what to fix first.",
            empty=NO_WEEK,
            worst="GPU-h",
            columns=(
                Column(title="Cause", label="leading", width=195, texts=parts.LEADING),
                Column(
                    title="GPU-h",
                    expr=parts.named(now),
                    unit=parts.HOURS_UNIT,
                    decimals=1,
                    bar=True,
                ),
                Column(
                    title="Change",
                    expr=parts.named(parts.change(f"{change} and on () ({known})", 0.1)),
                    unit=parts.HOURS_UNIT,
                    decimals=1,
                    width=110,
                ),
            ),
        )

    def _by(self, level: str, label: str, base: str, *, title: str, heading: str, advice: str) -> Table:
        lost, *others = parts.losses(week, level, (label,), base=base)
        return Table(
            title=title,
            about="GPU-hours lost in these seven days, to which cause most of them, efficiency, and its change against the "
            "week before in percentage points.",
            advice=advice,
            empty=NO_WEEK,
            worst=lost.title,
            columns=(
                Column(title=heading, label=label),
                lost,
                *self.money(lost.expr),
                *others[:-1],
                Column(
                    title="Change",
                    expr=parts.change(f"100 * {parts.newest(recorded.efficiency(level, 'delta1w'))}", 0.1),
                    unit=parts.POINTS,
                    decimals=1,
                    width=90,
                ),
                others[-1],
            ),
        )

    def owners(self) -> Table:
        return self._by(
            "owner",
            "workload_owner",
            "verdict",
            title="Owners, worst first",
            heading="Owner",
            advice="An empty owner is time of workloads that nobody could be found for: docs/workloads.md.",
        )

    def models(self) -> Table:
        return self._by(
            "model",
            "model",
            "observed",
            title="Models, worst first",
            heading="Model",
            advice="A model far behind the others on the same work may be the wrong one for it.",
        )

    def held(self) -> Table:
        held = f"topk(20, {week('workload', 'lost', *_HELD, labels=WORKLOAD)})"
        return Table(
            title="Held idle",
            about="GPU-hours in which a workload held a GPU and nothing ran, in these seven days.",
            advice="Ask the owner to give it back; a time-out for idle sessions mends it for good.",
            empty=f"Nothing was held idle. Or: {NO_WEEK}",
            worst="Held GPU-h",
            columns=(
                self.workload(),
                Column(title="Owner", label="workload_owner", width=115),
                Column(title="Namespace", label="workload_namespace", width=115),
                Column(title="Held GPU-h", expr=held, unit=parts.HOURS_UNIT, decimals=1, width=150, bar=True),
                *self.money(held, "Held"),
            ),
        )

    def throttled(self) -> Table:
        keys = (self.promql.host, *CAUSE)
        lost = f"topk(20, {week('instance', 'lost', _THROTTLED, labels=keys)})"
        return Table(
            title="Throttled hosts",
            about="GPU-hours that hosts lost because clocks were held down harmfully, in these seven days.",
            advice="hw-thermal and power-brake are the data centre's: airflow, feeds. power-cap is a setting.",
            empty=f"No clock was held down harmfully. Or: {NO_WEEK}",
            worst="Lost GPU-h",
            columns=(
                Column(
                    title="Host",
                    label=self.promql.host,
                    link=to_board("Open the host", parts.HOST, host="${__data.fields.Host}"),
                ),
                Column(title="Cause", label="leading", width=190, texts=parts.LEADING),
                Column(
                    title="Lost GPU-h",
                    expr=parts.named(lost),
                    unit=parts.HOURS_UNIT,
                    decimals=1,
                    width=150,
                    bar=True,
                ),
                *self.money(parts.named(lost)),
            ),
        )
