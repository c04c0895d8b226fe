"""Can I believe the other dashboards? The agents, their sources and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwhy.render.dashboards import parts
from gpuwhy.render.dashboards.parts import RATE, total
from gpuwhy.render.panels import (
    Board,
    Column,
    Line,
    Lines,
    Number,
    Query,
    Section,
    Shown,
    Table,
    to_board,
)
from gpuwhy.render.promql import Promql, braces, by
from gpuwhy.verdict import colours

# Of the agent's own process, under the names that all exporters of prometheus_client share.
CPU, MEMORY = "process_cpu_seconds_total", "process_resident_memory_bytes"
STALE_SECONDS = 60
WHOLE = 'mig=""'
GOOD_IF_NONE = ((None, colours.GOOD), (1, colours.BAD))
NO_AGENT = "No agent of this selection answered in this range"


def build(promql: Promql) -> Board:
    here = _Agents(promql)
    return Board(
        since="6h",
        refresh="1m",
        variables=(parts.host_variable(promql, "build_info", several=True),),
        sections=(
            Section("", (Line(4, tuple(here.figures())), Line(10, (here.agents(),)))),
            Section("Ticks and readings", (Line(8, here.ticks()),)),
            Section("Sources", (Line(10, here.sources()),)),
            Section("GPUs, and what the agent costs", (Line(8, (here.gpus(), *here.cost())),)),
            Section("What was left out", (Line(8, here.left_out()),), closed=True),
        ),
    )


class _Agents:
    """The panels of the selected hosts."""

    def __init__(self, promql: Promql) -> None:
        self.promql = promql
        self.hosts = f'{promql.host}=~"$host"'
        self.key = (promql.host,)
        self.legend = f"{{{{{promql.host}}}}}"

    def raw(self, stem: str, *matchers: str) -> str:
        return self.promql.raw(stem, self.hosts, *matchers)

    def rate(self, stem: str, *matchers: str) -> str:
        return f"rate({self.promql.raw(stem, self.hosts, *matchers, window=RATE)})"

    def increase(self, stem: str) -> str:
        return self.promql.increase(stem, RATE, self.hosts)

    def seen(self) -> str:
        """The agents that answered at some time of the range."""
        return f"last_over_time({self.promql.raw('build_info', self.hosts, window='$__range')})"

    def process(self, name: str, window: str = "") -> str:
        """A series of the agent's process; other exporters of the host have the same."""
        series = f"{name}{braces(self.promql.options.selector, self.hosts)}"
        shown = f"rate({series}[{window}])" if window else series
        return f"{shown} and on (job, instance) {self.raw('build_info')}"

    def age(self) -> str:
        return f"time() - {self.raw('last_sample_timestamp_seconds')}"

    def figures(self) -> Iterator[Number]:
        up = total(self.raw("gpu_up", WHOLE))
        agents = f"count ({self.raw('build_info')})"
        gone = f"group{by(self.key)} ({self.seen()}) unless group{by(self.key)} ({self.raw('build_info')})"

        def number(
            title: str, about: str, advice: str, expr: str, *, good_if_none: bool = True, empty: str = ""
        ) -> Number:
            return Number(
                title=title,
                about=about,
                advice=advice,
                empty=empty or "no agent",
                unit="short",
                decimals=0,
                queries=(Query(expr, ""),),
                steps=GOOD_IF_NONE if good_if_none else (),
            )

        yield number(
            "Agents answering",
            "Agents that answered the last scrape.",
            "Fewer than hosts with GPUs: deploy it to the rest, and see that Prometheus finds it.",
            agents,
            good_if_none=False,
        )
        yield number(
            "Agents gone",
            "Hosts whose agent answered in this range and no longer does.",
            "Look at the service's log on the host; the table below names it.",
            f"count ({gone}) or 0 * count ({self.seen()})",
        )
        yield number(
            "Without fresh readings",
            f"Agents whose last device reading is older than {STALE_SECONDS} s.",
            "A driver call hangs, or every source is down: see the sources.",
            f"count ({self.age()} > {STALE_SECONDS}) or 0 * {agents}",
        )
        yield number(
            "GPUs up",
            "Whole GPUs that answer.",
            "Compare it with what you own.",
            up,
            good_if_none=False,
        )
        yield number(
            "GPUs missing",
            "Whole GPUs that answered no longer, or that agent.expected_gpus says there are.",
            "Look for Xid errors on the host's dashboard, and in the kernel's log.",
            f"sum ({self.missing()}) or 0 * {agents}",
        )
        yield number(
            "Stand-in sources",
            "Hosts on which a lower source stands in for one that was lost.",
            "Verdicts go on with fewer signals; the sources below say which is down.",
            total(self.raw("source_degraded")),
        )

    def missing(self) -> str:
        """By host, the greater of those that went and those that never came."""
        up = total(self.raw("gpu_up", WHOLE), self.key)
        down = f"count{by(self.key)} ({self.raw('gpu_up', WHOLE)} == 0)"
        expected = f"max{by(self.key)} ({self.raw('expected_gpus')})"
        return f"({expected} - {up} > 0) or {down}"

    def agents(self) -> Table:
        key = self.key

        def column(title: str, expr: str, unit: str, decimals: int, width: int) -> Column:
            return Column(title=title, expr=expr, unit=unit, decimals=decimals, width=width)

        return Table(
            title="Agents, those that are gone first",
            about="Every agent that answered in this range, with its version, its GPUs, its sources and its cost.",
            advice="Click a host to see its GPUs.",
            empty=NO_AGENT,
            worst="Agent",
            ascending=True,
            columns=(
                Column(
                    title="Host",
                    label=self.promql.host,
                    link=to_board("Open the host", parts.HOST, host="${__data.fields.Host}"),
                ),
                Column(
                    title="Agent",
                    expr=f"group{by(key)} ({self.raw('build_info')}) or 0 * group{by(key)} ({self.seen()})",
                    width=80,
                    texts={"0": Shown("gone", colours.BAD), "1": Shown("up", colours.GOOD)},
                ),
                Column(
                    title="Version",
                    label="version",
                    expr=f"group{by((*key, 'version'))} ({self.seen()})",
                    width=110,
                ),
                column("Last reading", f"max{by(key)} ({self.age()})", "s", 0, 110),
                column("GPUs up", total(self.raw("gpu_up", WHOLE), key), "short", 0, 80),
                column("Expected", f"max{by(key)} ({self.raw('expected_gpus')})", "short", 0, 80),
                column("Sources down", total(f"1 - {self.raw('source_up')}", key), "short", 0, 110),
                Column(
                    title="Stand-in",
                    expr=f"max{by(key)} ({self.raw('source_degraded')})",
                    width=80,
                    texts={"0": Shown("no", "transparent"), "1": Shown("yes", colours.BAD)},
                ),
                column("CPU", f"max{by(key)} ({self.process(CPU, '5m')})", "percentunit", 2, 80),
                column("Memory", f"max{by(key)} ({self.process(MEMORY)})", "bytes", 0, 90),
            ),
        )

    def _worst(self, title: str, about: str, advice: str, unit: str, each: str) -> Lines:
        """The five hosts with most at each point, and the median of all."""
        return Lines(
            title=title,
            about=f"{about} The five hosts with most at each point, and the median of all.",
            advice=advice,
            empty=NO_AGENT,
            unit=unit,
            queries=(
                Query(f"topk(5, max{by(self.key)} ({each}))", self.legend),
                Query(f"quantile(0.5, max{by(self.key)} ({each}))", "median", "dashed"),
            ),
        )

    def ticks(self) -> tuple[Lines, ...]:
        took, count = self.rate("tick_duration_seconds_sum"), self.rate("tick_duration_seconds_count")
        return (
            self._worst(
                "Tick",
                "How long reading and judging took, as the mean of ticks; there is one a second.",
                "Near a second, ticks are missed: a driver call is slow, or the host is starved of CPU.",
                "s",
                f"{took} / {count}",
            ),
            Lines(
                title="Missed ticks",
                about="Ticks that were left out because an earlier one took too long.",
                advice="A few at start are usual. Many: see how long ticks take.",
                empty="No tick was missed in this range, which is how it should be; or no agent answered",
                unit="short",
                bars=True,
                stacked=True,
                queries=(Query(f"{total(self.increase('ticks_missed_total'), self.key)} > 0", self.legend),),
            ),
            self._worst(
                "Age of the last reading",
                "Time since the last device reading.",
                "If it grows, a driver call hangs or every source is down.",
                "s",
                self.age(),
            ),
        )

    def sources(self) -> tuple[Table, Table, Lines]:
        rejected = self.promql.increase("reading_rejected_total", "$__interval", self.hosts)

        def column(title: str, expr: str) -> Column:
            return Column(title=title, expr=expr, unit="short", decimals=0, width=85)

        source = ("source",)
        return (
            Table(
                title="Sources",
                about="Hosts on which each source is in use, answers, failed, or yields its profiling to another tool.",
                advice="`gpuwhy doctor` on a host says what a source needs.",
                empty=NO_AGENT,
                width=9,
                worst="Down",
                columns=(
                    Column(title="Source", label="source"),
                    column("In use", f"count{by(source)} ({self.raw('source_info')})"),
                    column("Up", total(self.raw("source_up"), source)),
                    column("Down", total(f"1 - {self.raw('source_up')}", source)),
                    column("Yielding", total(self.raw("source_yielding"), source)),
                ),
            ),
            Table(
                title="Signals by source",
                about="GPUs and MIG instances for which each source served a signal in the last interval.",
                advice="A signal that is missing for some is not read there: `gpuwhy doctor` says how to get it.",
                empty=NO_AGENT,
                width=7,
                worst="Signal",
                ascending=True,
                columns=(
                    Column(title="Signal", label="signal"),
                    Column(title="Source", label="source", width=110),
                    column("Rows", f"count by (signal, source) ({self.raw('signal_source_info')})"),
                ),
            ),
            Lines(
                title="Readings rejected",
                about="Readings that were thrown away because they cannot be true, between one point and the next.",
                advice="Some are usual after a driver's restart. Many of one signal: report it with `gpuwhy record`.",
                empty="No reading was rejected in this range, which is how it should be; or no agent answered",
                unit="short",
                every="10m",  # hundreds of series a host
                bars=True,
                stacked=True,
                queries=(Query(f"{total(rejected, ('signal', 'reason'))} > 0", "{{signal}} {{reason}}"),),
            ),
        )

    def gpus(self) -> Lines:
        return Lines(
            title="GPUs up over time",
            about="Whole GPUs that answer, and where it is configured how many there should be.",
            advice="A step down is a GPU lost: see its host.",
            empty=NO_AGENT,
            unit="short",
            decimals=0,
            queries=(
                Query(total(self.raw("gpu_up", WHOLE)), "up"),
                Query(total(self.raw("expected_gpus")), "expected", "dashed"),
            ),
        )

    def cost(self) -> tuple[Lines, ...]:
        return (
            self._worst(
                "CPU of the agent",
                "CPU use of the agent's process; 100 % is one core.",
                "More than a few percent: report it with the number of processes on the host.",
                "percentunit",
                self.process(CPU, RATE),
            ),
            self._worst(
                "Memory of the agent",
                "Resident memory of the agent's process.",
                "If it grows for days, report it.",
                "bytes",
                self.process(MEMORY),
            ),
        )

    def left_out(self) -> tuple[Lines, ...]:
        rows = (
            (
                "Workloads counted as other",
                "workloads_overflowed_total",
                "Workloads that came when there were series for as many as are allowed.",
                "Raise workloads.most, or leave kinds out: docs/workloads.md.",
            ),
            (
                "Values dropped",
                "values_dropped_total",
                "Values that were no finite number or had no place in the vocabulary.",
                "It is a defect: report it with the agent's log.",
            ),
            (
                "Scrapes that failed in part",
                "exposition_errors_total",
                "Renderings, or pieces of one, that failed and were left out or answered from the last good one.",
                "It is a defect: report it with the agent's log.",
            ),
        )
        return tuple(
            Lines(
                title=title,
                about=f"{about} Counted between one point and the next.",
                advice=advice,
                empty="None in this range, which is how it should be; or no agent answered",
                unit="short",
                bars=True,
                stacked=True,
                queries=(Query(f"{total(self.increase(stem), self.key)} > 0", self.legend),),
            )
            for title, stem, about, advice in rows
        )
