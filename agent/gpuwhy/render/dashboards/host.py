"""Why is this GPU not doing more useful work? Its verdicts over the joined signals of GPU and host."""

from __future__ import annotations

from gpuwhy.catalog import WORKLOAD
from gpuwhy.render.dashboards import parts
from gpuwhy.render.dashboards.parts import GPU, RATE, ratio, total
from gpuwhy.render.panels import (
    Board,
    Column,
    Line,
    Lines,
    Note,
    Number,
    Query,
    Section,
    Table,
    Timeline,
    Variable,
)
from gpuwhy.render.promql import Promql, by
from gpuwhy.verdict import colours

# States of longer ranges would be narrower than a pixel.
TIMELINE_SECONDS = 6 * 3600
RECENT = "5m"


def build(promql: Promql) -> Board:
    here = _Here(promql)
    return Board(
        since="3h",
        refresh="30s",
        variables=(
            parts.host_variable(promql, several=False),
            Variable(
                name="gpu",
                title="GPU",
                series=promql.raw("gpu_info", f'{promql.host}="$host"'),
                label="gpu",
            ),
        ),
        notes=(here.alerts(),),
        sections=(
            Section("", (Line(9, (here.now(), *here.figures())), Line(8, (here.timeline(),)))),
            Section("Where its time goes", (Line(8, (here.shares(), here.lost())),)),
            Section("What the GPU does", (Line(9, (here.activity(),)), Line(8, here.clocks()))),
            Section("What the host does meanwhile", (Line(8, here.machine()), Line(8, here.processes()))),
            Section("Activity of each GPU", (Line(8, here.units()), Line(8, here.limits())), closed=True),
            Section(
                "Temperature, links and memory",
                (Line(8, here.traffic()), Line(8, here.board())),
                closed=True,
            ),
            Section("Whose it was", (Line(8, (here.owners(),)),), closed=True),
        ),
    )


class _Here:
    """The panels for the selected GPUs of the selected host."""

    def __init__(self, promql: Promql) -> None:
        self.promql = promql
        self.host = f'{promql.host}="$host"'
        self.gpus = (self.host, 'gpu=~"$gpu"')

    def raw(self, stem: str, *matchers: str) -> str:
        return self.promql.raw(stem, *self.gpus, *matchers)

    def rate(self, stem: str, *matchers: str) -> str:
        return f"rate({self.promql.raw(stem, *self.gpus, *matchers, window=RATE)})"

    def mean(self, stem: str, *matchers: str) -> str:
        return f"avg_over_time({self.promql.raw(stem, *self.gpus, *matchers, window=RATE)})"

    def weighed(self, expr: str) -> str:
        return f"{expr} * {parts.share(self.promql, *self.gpus)}"

    def each(self, expr: str, *labels: str) -> str:
        return total(expr, ("gpu", "mig", *labels))

    def gained(self, stem: str, *matchers: str) -> str:
        """GPU-seconds in the range."""
        # Over the range: a host that is down at its end had its hours.
        share = parts.share(self.promql, *self.gpus, window="$__range")
        return total(f"{self.promql.increase(stem, '$__range', *self.gpus, *matchers)} * {share}")

    def occurring(self, expr: str, stem: str, *labels: str) -> str:
        """What of ``expr`` occurred in the range, without the holes that leaving out zeros would make."""
        gained = f"increase({self.promql.raw(stem, *self.gpus, window='$__range')} @ end())"
        return f"{expr} and on ({', '.join(labels)}) ({total(gained, labels)} > 0)"

    def alerts(self) -> Note:
        """Those of the selected GPUs, and of the host."""
        gpus = parts.firing(*self.gpus, 'gpu!=""')
        others = parts.firing(self.host, 'gpu=""')
        return parts.alerts(parts.of_gpus(self.promql, gpus), parts.of_others(self.promql, others))

    # --- verdicts

    def now(self) -> Table:
        keys = ("gpu", "mig")
        recent = self.promql.increase("verdict_seconds_total", RECENT, *self.gpus)
        return Table(
            title="GPUs now",
            about="The verdict that holds at the end of this range, and the cause with most seconds in the five minutes before.",
            advice="docs/verdicts.md has the next steps for each cause; `gpuwhy explain` on the host shows the evidence.",
            empty="No agent of this host reports a verdict: see gpuwhy itself",
            width=14,
            worst="GPU",
            ascending=True,
            columns=(
                Column(title="GPU", label="gpu", width=60),
                Column(title="MIG", label="mig", width=60),
                Column(
                    title="Verdict now",
                    expr=total(parts.now_code(self.promql, *self.gpus), keys),
                    width=130,
                    texts=parts.CODES,
                ),
                Column(
                    title="Leading cause",
                    label="leading",
                    expr=parts.leading(f"{total(recent, (*keys, 'verdict', 'cause'))} > 0", keys),
                    texts=parts.LEADING,
                    width=195,
                ),
                Column(
                    title="Confidence",
                    expr=self.each(self.raw("verdict_confidence_ratio")),
                    unit="percentunit",
                    decimals=0,
                    width=95,
                ),
                Column(
                    title="Speed of light",
                    expr=self.each(self.raw("speed_of_light_ratio")),
                    unit="percentunit",
                    decimals=0,
                    width=150,
                    bar=True,
                    maximum=1,
                ),
                Column(
                    title="Model",
                    label="model",
                    expr=f"max{by((*keys, 'model'))} ({self.raw('gpu_info')})",
                ),
            ),
        )

    def figures(self) -> tuple[Number, ...]:
        observed = self.gained("observed_seconds_total")
        return (
            Number(
                title="Efficiency",
                about="Useful over measured time of the selected GPUs in this range. It is not model FLOPS utilisation.",
                advice="Compare it with the same load at another time; there is no number that is right for every load.",
                empty="nothing measured",
                unit="percentunit",
                decimals=1,
                width=4,
                queries=(
                    Query(
                        ratio(self.gained("useful_seconds_total"), self.gained("measured_seconds_total")), ""
                    ),
                ),
            ),
            Number(
                title="GPU-hours",
                about="GPU-hours observed, lost to a cause, and free, of the selected GPUs in this range.",
                advice="What is lost has its causes below.",
                empty="nothing observed",
                unit=parts.HOURS_UNIT,
                decimals=1,
                queries=(
                    Query(f"{observed} / 3600", "observed"),
                    Query(f"{self.gained('lost_seconds_total')} / 3600", "lost"),
                    Query(f"{self.gained('free_seconds_total')} / 3600", "free"),
                ),
            ),
            Number(
                title="Energy",
                about="Energy that the selected GPUs used in this range.",
                advice="With the hours beside, it says what the lost ones cost in power. Only cards that count it show it.",
                empty="no reading",
                unit="kwatth",
                decimals=1,
                queries=(Query(f"{total(self.energy())} / 3.6e6", ""),),
            ),
        )

    def energy(self) -> str:
        """Joules in the range by GPU: each of its MIG instances may tell the energy of the whole."""
        gained = self.promql.increase("energy_joules_total", "$__range", *self.gpus)
        return f"max{by((self.promql.host, 'gpu'))} ({gained})"

    def timeline(self) -> Timeline:
        return Timeline(
            title="Verdicts",
            about="The verdict of each GPU over time, for ranges of up to six hours.",
            advice="Look at the signals below where the colour changes; the crosshair is shared.",
            empty="Shown for ranges of up to six hours; beyond, the shares below say the same. Or no agent of this "
            "host reported a verdict",
            unit="string",
            texts=parts.CODES,
            queries=(
                Query(
                    f"{total(parts.now_code(self.promql, *self.gpus), ('gpu', 'mig'))} "
                    f"and on () (vector($__range_s) <= {TIMELINE_SECONDS})",
                    GPU,
                ),
            ),
        )

    def shares(self) -> Lines:
        part = total(self.weighed(self.rate("verdict_seconds_total", "VERDICT")))
        whole = total(self.weighed(self.rate("observed_seconds_total")))
        return Lines(
            title="Share of time by verdict",
            about="Time of the selected GPUs by verdict, from the seconds counters, which miss nothing at any range.",
            advice="What is not green has its causes beside.",
            empty=parts.NO_READINGS,
            unit="percentunit",
            decimals=0,
            maximum=1,
            stacked=True,
            queries=parts.verdicts(f"{part} / {whole}"),
            colours=colours.VERDICTS,
        )

    def lost(self) -> Lines:
        lost = total(self.weighed(self.rate("lost_seconds_total", "VERDICT")), ("verdict", "cause"))
        return Lines(
            title="GPUs lost by cause",
            about="GPUs lost to each cause: 1 is a whole GPU that does nothing useful.",
            advice="Take the widest band first; its cause has next steps in docs/verdicts.md.",
            empty=parts.NO_READINGS,
            unit="short",
            stacked=True,
            queries=parts.causes(self.occurring(lost, "lost_seconds_total", "verdict", "cause")),
            colours=parts.LOST_COLOURS,
        )

    # --- the GPU

    def activity(self) -> Lines:
        def mean(unit: str) -> str:
            return f"avg ({self.rate('activity_seconds_total', parts.equals('unit', unit))})"

        others = self.rate("activity_seconds_total", 'unit=~"fp64|fp32|fp16|int"')
        return Lines(
            title="What GPU-Util says, and what is behind it",
            about="Activity as the mean over the selected GPUs, from exact counters. GPU-Util only says that something "
            "was on the device; engine, SMs, pipes and memory say what it did.",
            advice="A gap between GPU-Util or SMs and tensor or DRAM is time that looks busy and is not.",
            empty=parts.NO_READINGS,
            unit="percentunit",
            maximum=1,
            means=True,
            beside=True,
            queries=(
                Query(f"avg ({self.mean('gpu_util_ratio')})", "GPU-Util", "dashed"),
                Query(mean("graphics"), "engine busy"),
                Query(mean("sm"), "SMs with work"),
                Query(mean("tensor"), "tensor cores"),
                Query(mean("dram"), "DRAM"),
                Query(
                    f"avg (max{by(self.promql.row)} ({others}))",
                    "busiest other pipe",
                ),
                Query(f"avg ({self.mean('speed_of_light_ratio')})", "speed of light"),
            ),
        )

    def clocks(self) -> tuple[Lines, ...]:
        reasons = self.rate("clock_event_seconds_total", 'reason!="gpu-idle"')
        return (
            Lines(
                title="Power",
                about="Board power, and the limits that are enforced.",
                advice="At the limit under full load is healthy; little power at a busy GPU points to pseudo-peak.",
                empty=parts.NO_READINGS,
                unit="watt",
                queries=(
                    Query(self.each(self.mean("power_watts")), GPU),
                    Query(f"max ({self.mean('power_limit_watts')})", "highest limit", "dashed"),
                    Query(f"min ({self.mean('power_limit_watts')})", "lowest limit", "dashed"),
                ),
            ),
            Lines(
                title="SM clock",
                about="Mean SM clock, and the highest that the cards offer.",
                advice="Below the maximum is usual at full load; with a thermal or brake reason beside, it is not.",
                empty=parts.NO_READINGS,
                unit="hertz",
                queries=(
                    Query(self.each(self.mean("sm_clock_hertz")), GPU),
                    Query(f"max ({self.mean('sm_clock_max_hertz')})", "maximum", "dashed"),
                ),
            ),
            Lines(
                title="Why clocks are held",
                about="Share of time in which the driver named a reason, as the mean over the selected GPUs; reasons overlap.",
                advice="hw-thermal and hw-power-brake need a person; sw-power-cap alone at full load needs nobody.",
                empty=parts.NO_READINGS,
                unit="percentunit",
                maximum=1,
                queries=(
                    Query(
                        self.occurring(f"avg by (reason) ({reasons})", "clock_event_seconds_total", "reason"),
                        "{{reason}}",
                    ),
                ),
            ),
        )

    # --- the host

    def _host_rate(self, stem: str, *matchers: str) -> str:
        return f"rate({self.promql.raw(stem, self.host, *matchers, window=RATE)})"

    def machine(self) -> tuple[Lines, ...]:
        return (
            Lines(
                title="CPUs of the host",
                about="CPUs of the host by what they did.",
                advice="A host far from its limit can still starve a GPU by one busy thread: see the hottest thread.",
                empty=parts.NO_READINGS,
                unit="short",
                stacked=True,
                queries=(
                    Query(
                        total(self._host_rate("host_cpu_seconds_total", 'mode!="idle"'), ("mode",)),
                        "{{mode}}",
                    ),
                    Query(total(self._host_rate("host_cpu_seconds_total")), "all CPUs", "dashed"),
                ),
            ),
            Lines(
                title="Pressure",
                about="Share of time in which some task of the host waited for CPU, storage or memory.",
                advice="I/O pressure along with starving points to storage, CPU pressure to neighbours or quotas.",
                empty=parts.NO_READINGS,
                unit="percentunit",
                queries=(
                    Query(
                        total(self._host_rate("host_pressure_seconds_total"), ("resource",)), "{{resource}}"
                    ),
                ),
            ),
        )

    def processes(self) -> tuple[Lines, ...]:
        return (
            Lines(
                title="CPUs used by the GPU's processes",
                about="CPU use of the processes that own the GPU, and of their helpers.",
                advice="Near the cores that they are allowed, preprocessing limits the GPU.",
                empty=parts.NO_READINGS,
                unit="short",
                queries=(Query(self.each(self.rate("process_tree_cpu_seconds_total")), GPU),),
            ),
            Lines(
                title="Hottest thread",
                about="CPU use of the busiest thread among them; 1 is a whole core.",
                advice="At 1 with gaps on the GPU, one thread holds it up. At 1 on a full GPU it only spins.",
                empty=parts.NO_READINGS,
                unit="short",
                queries=(Query(self.each(self.mean("process_tree_hottest_thread_cores")), GPU),),
            ),
            Lines(
                title="Waiting for a core",
                about="Time that these processes were ready and waited for a CPU, or a quota held them, as a share of the time that passed; several threads add up.",
                advice="Above 15 % with gaps on the GPU the host is contended: raise the quota or move the neighbour.",
                empty=parts.NO_READINGS,
                unit="percentunit",
                queries=(
                    Query(
                        self.each(self.rate("process_tree_runqueue_wait_seconds_total")), f"{GPU} run queue"
                    ),
                    Query(self.each(self.rate("process_tree_throttled_seconds_total")), f"{GPU} quota"),
                ),
            ),
        )

    # --- each GPU

    def _unit(self, title: str, units: str, about: str, advice: str) -> Lines:
        rate = self.rate("activity_seconds_total", f'unit=~"{units}"')
        return Lines(
            title=title,
            about=about,
            advice=advice,
            empty=parts.NO_READINGS,
            unit="percentunit",
            maximum=1,
            queries=(Query(f"max by (gpu, mig) ({rate})", GPU),),
        )

    def units(self) -> tuple[Lines, ...]:
        return (
            self._unit(
                "SMs with work",
                "sm",
                "Share of SMs with a warp resident.",
                "High with idle pipes and DRAM is waiting, not work.",
            ),
            self._unit(
                "Tensor cores",
                "tensor",
                "Activity of the tensor cores.",
                "Near nothing under a model that should use them: look at precision and shapes.",
            ),
            self._unit(
                "DRAM",
                "dram",
                "Activity of the memory interface.",
                "Near its practical peak the load is memory-bound: fuse, quantise, or batch.",
            ),
        )

    def limits(self) -> tuple[Lines, ...]:
        return (
            self._unit(
                "Busiest other pipe",
                "fp64|fp32|fp16|int",
                "The busiest of the FP64, FP32, FP16 and integer pipes.",
                "High with idle tensor cores: the work runs off the tensor cores.",
            ),
            Lines(
                title="Speed of light",
                about="Nearness to the card's practical peak: the busier of compute pipes and DRAM.",
                advice="Near 1 only other work, or less of it, makes it faster.",
                empty=parts.NO_READINGS,
                unit="percentunit",
                maximum=1,
                queries=(Query(self.each(self.mean("speed_of_light_ratio")), GPU),),
            ),
            Lines(
                title="Confidence of the verdict",
                about="How sure the verdict that holds is.",
                advice="Low for long: signals are missing. `gpuwhy doctor` says which, and how to get them.",
                empty=parts.NO_READINGS,
                unit="percentunit",
                maximum=1,
                queries=(Query(self.each(self.mean("verdict_confidence_ratio")), GPU),),
            ),
        )

    def _both_ways(self, title: str, stem: str, about: str, advice: str) -> Lines:
        return Lines(
            title=title,
            about=about,
            advice=advice,
            empty=parts.NO_READINGS,
            unit="Bps",
            minimum=None,
            queries=(
                Query(self.each(self.rate(f"{stem}_receive_bytes_total")), f"{GPU} in"),
                Query(self.each(self.rate(f"{stem}_transmit_bytes_total")), f"{GPU} out", "mirrored"),
            ),
        )

    def traffic(self) -> tuple[Lines, ...]:
        return (
            self._both_ways(
                "PCIe, out below zero",
                "pcie",
                "Traffic between host and device.",
                "Gigabytes a second while SMs stand still: copies starve the GPU.",
            ),
            self._both_ways(
                "NVLink, out below zero",
                "nvlink",
                "Traffic between GPUs, over all links.",
                "High with idle pipes: communication leads, overlap it or send less.",
            ),
        )

    def board(self) -> tuple[Lines, ...]:
        return (
            Lines(
                title="Temperature",
                about="Temperature of GPU and memory.",
                advice="A GPU far above its neighbours: look at airflow, fans and seating.",
                empty=parts.NO_READINGS,
                unit="celsius",
                minimum=None,
                queries=(
                    Query(self.each(self.mean("temperature_celsius"), "sensor"), f"{GPU} {{{{sensor}}}}"),
                ),
            ),
            Lines(
                title="Device memory held",
                about="Device memory that processes hold, and what the largest card has.",
                advice="Held with nothing running for long is idle/held: ask the owner.",
                empty=parts.NO_READINGS,
                unit="bytes",
                queries=(
                    Query(self.each(self.mean("memory_used_bytes")), GPU),
                    Query(f"max ({self.mean('memory_total_bytes')})", "there is", "dashed"),
                ),
            ),
            Lines(
                title="Xid errors",
                about="Errors that the driver reported, by code, between one point and the next.",
                advice="Look the code up in NVIDIA's list of Xid errors; some need a reset or a replacement.",
                empty="No Xid error in this range, which is how it should be",
                unit="short",
                bars=True,
                stacked=True,
                queries=(
                    Query(
                        f"{self.each(self._xids(), 'xid')} > 0",
                        f"{GPU} Xid {{{{xid}}}}",
                    ),
                ),
            ),
        )

    def _xids(self) -> str:
        # The first of a code comes with its series, of which no increase is seen.
        counted = self.promql.raw("xid_events_total", *self.gpus)
        gained = self.promql.increase("xid_events_total", RATE, *self.gpus)
        return f"{gained} > 0 or ({counted} unless {counted} offset {RATE})"

    def owners(self) -> Table:
        keys = ("gpu", "mig", *WORKLOAD)
        return Table(
            title="Workloads on these GPUs",
            about="Who held the selected GPUs at the end of this range, and which part of each GPU was theirs.",
            advice="Click a workload to see all its GPUs.",
            empty="No workload held these GPUs at the end of this range",
            worst="GPU",
            ascending=True,
            columns=(
                Column(title="GPU", label="gpu", width=70),
                Column(title="MIG", label="mig", width=70),
                Column(
                    title="Workload",
                    label="workload",
                    link=parts.to_workload("Open the workload"),
                ),
                Column(title="Namespace", label="workload_namespace"),
                Column(title="Owner", label="workload_owner"),
                Column(title="Kind", label="workload_kind", width=110),
                Column(
                    title="Part of the GPU",
                    expr=total(self.raw("workload_share_ratio"), keys),
                    unit="percentunit",
                    decimals=0,
                    width=180,
                    bar=True,
                    maximum=1,
                ),
            ),
        )
