"""Recording rules: the sums that alerts, dashboards and the weekly report share.

What is recorded and what it is called stands in ``gpuwhy/recorded.py``; here is how. Every rule reads
counters or what was recorded before it, sums before it divides, and is valid in PromQL from Prometheus 2.42
on. Hours are recorded from the counters, weeks from the hours.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpuwhy.catalog import PREFIX
from gpuwhy.config import RenderConfig
from gpuwhy.recorded import (
    HOST,
    LEVEL,
    LEVELS,
    OF_WORKLOADS,
    QUANTITIES,
    ROW,
    WINDOW,
    Level,
    Quantity,
    efficiency,
    hourly,
    weekly,
)
from gpuwhy.render.files import notice
from gpuwhy.render.promql import Promql, by, over

# Less than Prometheus' lookback of five minutes is no need: who reads "now" looks back for two of these.
EVERY = "5m"
# Aligned hours: their windows neither overlap nor leave gaps. The millisecond is for evaluations at a full hour,
# which would take in an hour more in Prometheus 2, where both ends of a range belong to it.
WEEK = ("7d:1h", "1ms")
WEEK_BEFORE = ("7d:1h", "7d1ms")
SHARE = f"gpu:{PREFIX}share:avg{WINDOW}"
LATELY = "10m"  # two evaluations
_EVERY_STEM = {quantity.stem for quantity in (*QUANTITIES, *OF_WORKLOADS)}
# A week before that has fewer hours than this is no week to compare with.
HOURS_OF_A_WEEK = 24


@dataclass(frozen=True, slots=True)
class Rule:
    """A recorded series, in words for the reference."""

    record: str
    expr: str
    help: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording rules of one configuration."""

    promql: Promql = field(default_factory=Promql)

    def labels(self, level: Level, quantity: Quantity | None = None) -> tuple[str, ...]:
        """The labels of a recorded series."""
        named = {ROW: self.promql.row, HOST: (self.promql.host,)}
        own = tuple(label for name in level.by for label in named.get(name, (name,)))
        return (*own, *(quantity.by if quantity else ()))

    def share(self) -> Rule:
        """What each row weighs, and its model, which the seconds of higher levels are multiplied with."""
        row, with_model = self.promql.row, (*self.promql.row, "model")
        # Over the hour, since a GPU or host that was lost within it still counts, and MIG may have been turned on.
        share = f"max{by(row)} (avg_over_time({self.promql.raw('gpu_share_ratio', window=WINDOW)}))"
        info = f"max{by(with_model)} (last_over_time({self.promql.raw('gpu_info', window=WINDOW)}))"
        on = f"on ({', '.join(row)})"
        return Rule(
            SHARE,
            # One model of each row, also while a driver gives it another name.
            f"{share} * {on} group_left (model) topk{by(row)} (1, {info}) or {on} {share}",
            f"of {LEVEL['gpu'].help}: the part of a whole GPU that it was in the last hour, and its model",
            with_model,
        )

    def hours(
        self, levels: Iterable[Level] = LEVELS, stems: Container[str] = _EVERY_STEM, *, ratio: bool = True
    ) -> Iterator[Rule]:
        """What rows weigh where all levels are asked for, and of each level seconds of an hour, and efficiency."""
        if levels is LEVELS:
            yield self.share()
        for level in levels:
            for quantity in level.quantities:
                if quantity.stem not in stems:
                    continue
                yield Rule(
                    hourly(level.name, quantity.stem),
                    self._hour(level, quantity),
                    f"of {level.help}: {quantity.help} in the last hour",
                    self.labels(level, quantity),
                )
            if not ratio:
                continue
            useful, measured = (hourly(level.name, stem) for stem in ("useful", "measured"))
            yield Rule(
                efficiency(level.name),
                # An hour in which nothing was useful has no useful series: it is 0, not unknown.
                f"({useful} or 0 * {measured}) / {measured}",
                f"of {level.help}: useful over measured seconds of the last hour",
                self.labels(level),
            )

    def weeks(self) -> Iterator[Rule]:
        """Seconds of a week, efficiency, and its change against the week before."""
        for level in LEVELS:
            if not level.weeks:
                continue
            for quantity in level.weekly:
                yield Rule(
                    weekly(level.name, quantity.stem),
                    f"sum_over_time({_in(WEEK, hourly(level.name, quantity.stem))})",
                    f"of {level.help}: {quantity.help} in the last seven days",
                    self.labels(level, quantity),
                )
            useful, measured = (weekly(level.name, stem) for stem in ("useful", "measured"))
            yield Rule(
                efficiency(level.name, "ratio1w"),
                f"({useful} or 0 * {measured}) / {measured}",
                f"of {level.help}: useful over measured seconds of the last seven days",
                self.labels(level),
            )
            yield Rule(
                efficiency(level.name, "delta1w"),
                f"{efficiency(level.name, 'ratio1w')} - {self._before(level)}",
                f"of {level.help}: efficiency of the last seven days less that of the seven before, where those "
                f"have {HOURS_OF_A_WEEK} measured hours or more",
                self.labels(level),
            )

    def _hour(self, level: Level, quantity: Quantity) -> str:
        if level.of:
            inner = hourly(level.of, quantity.stem)
        else:
            # The gain of each row first: a workload is weighed on each of its rows. Most children are 0: they
            # are dropped before they are grouped.
            inner = f"({self.promql.increase(quantity.counter, WINDOW)} > 0)"
        if level.weighs:
            row, kept = ", ".join(self.promql.row), "model" if "model" in level.by else ""
            # Two models for ten minutes, when it got another name.
            share = f"topk{by(self.promql.row)} (1, last_over_time({over(SHARE, LATELY)}))"
            inner = f"{inner} * on ({row}) group_left ({kept}) {share}"
        total = f"sum{by(self.labels(level, quantity))}"
        # A board whose slices have it all weighs nothing.
        return (
            f"{total} ({inner}) > 0"
            if level.weighs
            else f"{total} {inner}"
            if not level.of
            else f"{total} ({inner})"
        )

    def _before(self, level: Level) -> str:
        useful, measured = (
            f"sum_over_time({_in(WEEK_BEFORE, hourly(level.name, stem))})" for stem in ("useful", "measured")
        )
        hours = f"count_over_time({_in(WEEK_BEFORE, hourly(level.name, 'measured'))})"
        return f"(({useful} or 0 * {measured}) / ({measured} and {hours} >= {HOURS_OF_A_WEEK}))"

    def groups(self) -> list[dict[str, Any]]:
        """Groups, which Prometheus evaluates side by side; in each, rules read what the ones before recorded.

        Verdicts are half of the work and are compared with nothing, so that they may be minutes apart.
        """
        gpus = [level for level in LEVELS if not level.workload]
        workloads = [level for level in LEVELS if level.workload]
        return [
            {
                "name": f"gpuwhy.{name}",
                "interval": EVERY,
                "rules": [{"record": rule.record, "expr": rule.expr} for rule in rules],
            }
            for name, rules in (
                ("gpus", (self.share(), *self.hours(gpus, _EVERY_STEM - {"verdict"}))),
                ("verdicts", self.hours(gpus, {"verdict"}, ratio=False)),
                ("workloads", self.hours(workloads)),
                ("weeks", self.weeks()),
            )
        ]


def _in(week: tuple[str, str], name: str) -> str:
    window, back = week
    return f"{over(name, window)} offset {back}"


def rule_file(options: RenderConfig) -> str:
    """alerts/recording.rules.yaml"""
    return as_yaml("`agent/gpuwhy/render/recording.py`", {"groups": Recording(Promql(options)).groups()})


def as_yaml(source: str, *documents: Any) -> str:
    """Documents under the notice that they are rendered; long expressions stay on one line."""
    bodies = (yaml.safe_dump(each, sort_keys=False, width=100_000, allow_unicode=True) for each in documents)
    return f"# {notice(source)}\n" + "---\n".join(bodies)


__all__ = [
    "EVERY",
    "HOST",
    "HOURS_OF_A_WEEK",
    "LEVEL",
    "LEVELS",
    "OF_WORKLOADS",
    "QUANTITIES",
    "ROW",
    "WEEK",
    "WINDOW",
    "Level",
    "Quantity",
    "Recording",
    "Rule",
    "as_yaml",
    "efficiency",
    "hourly",
    "rule_file",
    "weekly",
]
