"""Where do my GPU-hours go?"""

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
    to_board,
)
from gpuwhy.render.promql import Promql, by, over
from gpuwhy.verdict import colours


def build(promql: Promql) -> Board:
    return Board(
        since="24h",
        refresh="5m",
        notes=(_alerts(promql),),
        sections=(
            Section("", (Line(4, _figures()), _time(promql), _lost(), _worst(promql), _power(promql))),
        ),
    )


def _alerts(promql: Promql) -> Note:
    # One mark for all GPUs of a host.
    of = ("alertname", "severity", "verdict", promql.host, *WORKLOAD)
    return parts.alerts(parts.of_others(promql, f"max{by(of)} ({parts.firing()})"))


def _figures() -> tuple[Number, ...]:
    observed = hours("fleet", "observed")
    return (
        Number(
            title="Efficiency",
            about="Useful over measured GPU time, in the full hours of this range. It is not model FLOPS utilisation.",
            advice="Compare it with its own past, on the weekly review; there is no number that is right for every load. "
            + parts.FIRST_HOUR,
            empty=parts.NOT_RECORDED,
            unit="percentunit",
            decimals=1,
            width=4,
            queries=(Query(ratio(hours("fleet", "useful"), hours("fleet", "measured")), ""),),
        ),
        parts.split(hours, unread=parts.NOT_RECORDED),
        Number(
            title="Held idle GPU-hours",
            about="GPU-hours in which a process or a grant held a GPU and nothing ran; a part of what is lost.",
            advice="Ask the owners on the dashboard Workloads to give them back. " + parts.FIRST_HOUR,
            empty=parts.NOT_RECORDED,
            unit=parts.HOURS_UNIT,
            decimals=1,
            width=4,
            queries=(Query(or_zero(hours("fleet", "lost", 'verdict="idle"', 'cause="held"'), observed), ""),),
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
                title="GPUs by verdict, hourly means",
                about="GPUs by verdict, as the mean of the hour before each point; stacked, they are the GPUs observed.",
                advice="Follow a colour that grows to its cause below.",
                empty=parts.NO_POINTS,
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
                about="GPUs by the verdict that holds at the end of this range. MIG slices count as fractions of their GPU, so that "
                "the bars add up to whole GPUs.",
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
                title="GPUs lost by cause, hourly means",
                about="GPUs lost to each cause, as the mean of the hour before each point.",
                advice="docs/verdicts.md says for each cause what to look at first.",
                empty=parts.NO_POINTS,
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
                empty=parts.NO_HOURS,
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
                empty=parts.NO_HOURS,
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
                empty=parts.NO_HOURS,
                worst="Lost GPU-h",
                columns=(Column(title="Model", label="model"), *parts.losses(hours, "model", ("model",))),
            ),
        ),
    )


def _power(promql: Promql) -> Line:
    def watts(stem: str) -> str:
        # Of a GPU and its MIG instances, each of which may tell the power of the whole.
        board = f"max{by((promql.host, 'gpu'))} (avg_over_time({promql.raw(stem, window=parts.RATE)}))"
        return total(board)

    return Line(
        7,
        (
            Lines(
                title="Power of all GPUs",
                about="Board power of all GPUs, and the sum of the limits that are enforced; the latest, and the mean.",
                advice="Much power while little is useful is paid for nothing: see the causes above. Energy is on Host and GPU.",
                empty=parts.NO_READINGS,
                unit="watt",
                means=True,
                latest=True,
                beside=True,
                queries=(
                    Query(watts("power_watts"), "power"),
                    Query(watts("power_limit_watts"), "limits", "dashed"),
                ),
            ),
        ),
    )
