"""Which workloads lose GPU-hours, and to what?"""

from __future__ import annotations

from gpuwhy import recorded
from gpuwhy.catalog import WORKLOAD
from gpuwhy.render.dashboards import parts
from gpuwhy.render.dashboards.parts import hours, or_zero, ratio, total
from gpuwhy.render.panels import (
    Bars,
    Board,
    Column,
    Line,
    Lines,
    Note,
    Number,
    Query,
    Section,
    Table,
    Variable,
    to_board,
)
from gpuwhy.render.promql import Promql, by, over

LEVEL = "workload"
SELECTED = (
    'workload_owner=~"$owner"',
    'workload_namespace=~"$namespace"',
    'workload=~"$workload"',
)
ONE = "{{workload}} ({{workload_owner}}) {{workload_namespace}}"


def build(promql: Promql) -> Board:
    return Board(
        since="24h",
        refresh="5m",
        variables=_variables(promql),
        notes=(_alerts(promql),),
        sections=(
            Section("", (Line(4, _figures(promql)), Line(11, (_worst(),)))),
            Section("How it went", (Line(9, _course()),)),
            Section("Where they run", (Line(10, _places(promql)),)),
        ),
    )


def _variables(promql: Promql) -> tuple[Variable, ...]:
    owner, namespace, _ = SELECTED
    steps = (
        ("owner", "Owner", "workload_owner", ()),
        ("namespace", "Namespace", "workload_namespace", (owner,)),
        ("workload", "Workload", "workload", (owner, namespace)),
    )
    return tuple(
        Variable(
            name=name,
            title=title,
            series=promql.raw("workload_measured_seconds_total", *matchers),
            label=label,
        )
        for name, title, label, matchers in steps
    )


_OF_A_GPU = 'gpu!=""'


def _alerts(promql: Promql) -> Note:
    """Those of the selected workloads, and of the GPUs that they held then."""
    held = promql.raw("workload_share_ratio", *SELECTED)
    gpus = f"{parts.firing(_OF_A_GPU)} and on ({', '.join(promql.row)}) {held}"
    own = parts.firing('gpu=""', 'workload!=""', *SELECTED)
    return parts.alerts(parts.of_gpus(promql, gpus), parts.of_others(promql, own))


def _figures(promql: Promql) -> tuple[Number, ...]:
    held = hours(LEVEL, "verdict", *SELECTED)
    shares = promql.raw("workload_share_ratio", *SELECTED)

    def number(title: str, about: str, advice: str, unit: str, expr: str) -> Number:
        return Number(
            title=title,
            about=about,
            advice=f"{advice} {parts.FIRST_HOUR}",
            empty=parts.NOT_RECORDED,
            unit=unit,
            decimals=1,
            queries=(Query(expr, ""),),
        )

    return (
        number(
            "Efficiency",
            "Useful over measured time of the selected workloads. It is not model FLOPS utilisation.",
            "Compare a workload with its own past; there is no number that is right for every load.",
            "percentunit",
            ratio(hours(LEVEL, "useful", *SELECTED), hours(LEVEL, "measured", *SELECTED)),
        ),
        number(
            "Lost GPU-hours",
            "GPU-hours that the selected workloads lost, in the full hours of this range.",
            "The table names who lost most, and to what.",
            parts.HOURS_UNIT,
            or_zero(hours(LEVEL, "lost", *SELECTED), held),
        ),
        number(
            "GPU-hours held",
            "GPU-hours that the selected workloads held, in the full hours of this range.",
            "Of a shared GPU each has its part.",
            parts.HOURS_UNIT,
            held,
        ),
        Number(
            title="Workloads",
            about="Workloads that held a GPU at the end of this range.",
            advice="Fewer than you expect: docs/workloads.md says how they are found.",
            empty="none held a GPU",
            unit="short",
            decimals=0,
            queries=(Query(f"count (count{by(WORKLOAD)} ({shares}))", ""),),
        ),
    )


def _worst() -> Table:
    keys = WORKLOAD
    last_week = ratio(
        hours(LEVEL, "useful", *SELECTED, labels=keys, ago="7d"),
        hours(LEVEL, "measured", *SELECTED, labels=keys, ago="7d"),
    )
    this_week = ratio(
        hours(LEVEL, "useful", *SELECTED, labels=keys), hours(LEVEL, "measured", *SELECTED, labels=keys)
    )
    losses = parts.losses(hours, LEVEL, keys, *SELECTED, base="verdict")
    return Table(
        title="Workloads, worst first",
        about="GPU-hours that each workload lost in the full hours of this range, to which cause most of them, and how "
        "its efficiency differs from the same hours a week before, in percentage points.",
        advice="Click a workload to see it alone.",
        empty=parts.NO_HOURS,
        worst="Lost GPU-h",
        columns=(
            Column(
                title="Workload",
                label="workload",
                link=parts.to_workload("This workload alone"),
            ),
            Column(title="Namespace", label="workload_namespace"),
            Column(title="Owner", label="workload_owner"),
            Column(title="Kind", label="workload_kind", width=110),
            *losses[:-1],
            Column(
                title="Against a week ago",
                expr=parts.change(f"100 * (({this_week}) - ({last_week}))", 0.1),
                unit=parts.POINTS,
                decimals=1,
                width=150,
            ),
            losses[-1],
        ),
    )


def _course() -> tuple[Lines, ...]:
    lost = over(recorded.hourly(LEVEL, "lost"), parts.HOURS, *SELECTED)
    # The same ten at each point: those that lost most until the end of the range.
    ten = f"topk(10, sum{by(WORKLOAD)} (sum_over_time({lost} @ end())))"
    efficiency = parts.newest(recorded.efficiency(LEVEL), *SELECTED)
    mean = parts.newest(recorded.hourly(LEVEL, "lost"), "VERDICT", *SELECTED)
    return (
        Lines(
            title="Efficiency of the ten that lose most",
            about="Useful over measured time of the hour before each point.",
            advice="A step down that stays is a regression: what was deployed then?",
            empty=parts.NO_HOURS,
            unit="percentunit",
            maximum=1,
            every=parts.EVERY_RECORD,
            queries=(Query(f"{efficiency} and on ({', '.join(WORKLOAD)}) {ten}", ONE),),
        ),
        Lines(
            title="GPUs lost by cause, hourly means",
            about="GPUs that the selected workloads lost to each cause, as the mean of the hour before each point.",
            advice="docs/verdicts.md says for each cause what to look at first.",
            empty=parts.NO_POINTS,
            unit="short",
            every=parts.EVERY_RECORD,
            stacked=True,
            queries=parts.causes(f"{total(mean, ('verdict', 'cause'))} / 3600"),
            colours=parts.LOST_COLOURS,
        ),
    )


def _places(promql: Promql) -> tuple[Table, Bars]:
    keys = (*promql.row, *WORKLOAD)
    part = f"max{by(keys)} ({promql.raw('workload_share_ratio', *SELECTED)})"
    runs = f"max{by((*keys, 'run', 'profile'))} ({promql.raw('workload_info', *SELECTED)})"
    host = Column(
        title="Host",
        label=promql.host,
        link=to_board("Open the GPU", parts.HOST, host="${__data.fields.Host}", gpu="${__data.fields.GPU}"),
    )
    return (
        Table(
            title="GPUs they hold",
            about="The GPUs of each run (pod, job, container) at the end of this range, and which part of each is its workload's.",
            advice="Click a host to see the evidence for that GPU.",
            empty="No workload of this selection held a GPU at the end of this range",
            width=16,
            worst="Workload",
            ascending=True,
            columns=(
                host,
                Column(title="GPU", label="gpu", width=60),
                Column(title="MIG", label="mig", width=60),
                Column(title="Workload", label="workload"),
                Column(title="Namespace", label="workload_namespace", width=110),
                Column(title="Run", label="run"),
                Column(title="Profile", label="profile", width=100),
                Column(
                    title="Part of the GPU",
                    expr=f"{runs} * on ({', '.join(keys)}) group_left () {part}",
                    unit="percentunit",
                    decimals=0,
                    width=130,
                    bar=True,
                    maximum=1,
                ),
            ),
        ),
        Bars(
            title="Parts of shared GPUs",
            about="GPUs that several workloads share at the end of this range, and each one's part.",
            advice="Losses of neighbours can be each other's doing: look at them together.",
            empty="No GPU of this selection is shared",
            unit="percentunit",
            decimals=0,
            maximum=1,
            queries=(
                Query(
                    f"{part} < 1",
                    f"{{{{{promql.host}}}}} {parts.GPU} {{{{workload}}}} {{{{workload_namespace}}}}",
                ),
            ),
        ),
    )
