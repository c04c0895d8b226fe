"""Where do my GPU-hours go?"""

from __future__ import annotations

from gpuwhy import recorded
from gpuwhy.render import colours
from gpuwhy.render.dashboards import parts
from gpuwhy.render.dashboards.parts import hours, or_zero, ratio, total
from gpuwhy.render.panels import Bars, Board, Column, Line, Lines, Number, Query, Section, Table, to_board
from gpuwhy.render.promql import Promql, over


def build(promql: Promql) -> Board:
    return Board(
        since="24h",
        refresh="5m",
        sections=(Section("", (Line(4, _figures()), _time(promql), _lost(), _worst(promql))),),
    )


def _hours(title: str, about: str, advice: str, expr: str) -> Number:
    return Number(
        title=title,
        about=about,
        advice=advice,
        empty=parts.NOT_RECORDED,
        unit=parts.HOURS_UNIT,
        decimals=1,
        queries=(Query(expr, ""),),
    )


def _figures() -> tuple[Number, ...]:
    observed = hours("fleet", "observed")
    return (
        Number(
            title="Efficiency",
            about="Useful over measured GPU time, in the full hours of this range. It is not model FLOPS utilisation.",
            advice="Compare it with its own past, on the weekly review; there is no number that is right for every load.",
            empty=parts.NOT_RECORDED,
            unit="percentunit",
            decimals=1,
            queries=(Query(ratio(hours("fleet", "useful"), hours("fleet", "measured")), ""),),
        ),
        _hours(
            "Observed GPU-hours",
            "GPU-hours in which an agent watched, in the full hours of this range; MIG slices count as their part.",
            "If it is less than you own, look at gpuwhy itself: hosts may have no agent.",
            observed,
        ),
        _hours(
            "Useful GPU-hours",
            "What compute pipes and memory really did, as hours at the card's practical peak.",
            "The rest of the observed time is lost, headroom, free, or was not measured.",
            or_zero(hours("fleet", "useful"), observed),
        ),
        _hours(
            "Lost GPU-hours",
            "GPU-hours charged to a cause that somebody can mend.",
            "Start with the longest bar of the top causes, and the first host of the table.",
            or_zero(hours("fleet", "lost"), observed),
        ),
        _hours(
            "Of it held idle",
            "GPU-hours in which a process or a grant held a GPU and nothing ran; a part of what is lost.",
            "Ask the owners on the dashboard Workloads to give them back.",
            or_zero(hours("fleet", "lost", 'verdict="idle"', 'cause="held"'), observed),
        ),
        _hours(
            "Free GPU-hours",
            "GPU-hours in which no process held the GPU; no loss of any workload.",
            "If jobs were waiting meanwhile, look at the scheduler.",
            or_zero(hours("fleet", "free"), observed),
        ),
    )


def _mean(stem: str) -> str:
    name = recorded.hourly("fleet", stem)
    return f"last_over_time({over(name, parts.NEWEST, 'VERDICT')}) / 3600"


def _time(promql: Promql) -> Line:
    weighed = f"{promql.raw('verdict', 'VERDICT')} * {parts.share(promql)}"
    return Line(
        9,
        (
            Lines(
                title="GPU time by verdict",
                about="GPUs by verdict, as the mean of the hour before each point; stacked, they are the GPUs observed.",
                advice="Follow a colour that grows to its cause below.",
                empty=parts.NO_RECORDS,
                unit="short",
                every=parts.EVERY_RECORD,
                width=15,
                stacked=True,
                means=True,
                beside=True,
                queries=parts.verdicts(total(_mean("verdict"))),
                colours=colours.VERDICTS,
            ),
            Bars(
                title="GPUs right now by verdict",
                about="GPUs by the verdict that holds at the end of this range; MIG slices count as their part.",
                advice="The hosts below lead to the evidence.",
                empty="No agent reports a verdict: see gpuwhy itself",
                unit="short",
                decimals=1,
                queries=parts.verdicts(total(weighed)),
                colours=colours.VERDICTS,
            ),
        ),
    )


def _lost() -> Line:
    lost = hours("fleet", "lost", labels=("verdict", "cause"))
    return Line(
        9,
        (
            Lines(
                title="Lost GPU time by cause",
                about="GPUs lost to each cause, as the mean of the hour before each point.",
                advice="docs/verdicts.md says for each cause what to look at first.",
                empty=parts.NO_RECORDS,
                unit="short",
                every=parts.EVERY_RECORD,
                width=15,
                stacked=True,
                means=True,
                beside=True,
                queries=parts.causes(total(_mean("lost"), ("verdict", "cause"))),
                colours=parts.LOST_COLOURS,
            ),
            Bars(
                title="Top causes, GPU-hours lost",
                about="GPU-hours lost to the ten causes that cost most, in the full hours of this range.",
                advice="The first is what to mend first; the dashboard Workloads says whose it is.",
                empty=parts.NO_RECORDS,
                unit=parts.HOURS_UNIT,
                decimals=1,
                queries=(Query(f"topk(10, {lost})", "{{verdict}}/{{cause}}"),),
                colours=parts.LOST_COLOURS,
            ),
        ),
    )


def _worst(promql: Promql) -> Line:
    return Line(
        11,
        (
            Table(
                title="Hosts, worst first",
                about="GPU-hours that each host lost in the full hours of this range, and to which cause most of them.",
                advice="Click a host to see the evidence.",
                empty=parts.NO_RECORDS,
                worst="Lost GPU-h",
                columns=(
                    Column(
                        title="Host",
                        label=promql.host,
                        link=to_board("Open the host", parts.HOST, host="${__data.fields.Host}"),
                    ),
                    *parts.losses(hours, "instance", (promql.host,)),
                ),
            ),
            Table(
                title="Models, worst first",
                about="The same by model of GPU.",
                advice="A model far behind the others on the same work may be the wrong one for it.",
                empty=parts.NO_RECORDS,
                worst="Lost GPU-h",
                columns=(Column(title="Model", label="model"), *parts.losses(hours, "model", ("model",))),
            ),
        ),
    )
