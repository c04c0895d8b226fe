"""Recording rules: the hourly sums that alerts, dashboards and the weekly report share.

A level is what is summed over; a quantity is what is summed. To add one, add a row to ``LEVELS`` or
``QUANTITIES``. Every rule reads counters or the level below, sums before it divides, and is valid in
PromQL from Prometheus 2.42 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from gpuwhy.catalog import IDENTITY, PREFIX, WORKLOAD
from gpuwhy.render.files import notice

EVERY = "5m"
WINDOW = "1h"
ROW = ("instance", *IDENTITY)
_ON = f"on ({', '.join(ROW)})"
# Of what is constant the newest of the hour: a GPU or host that was lost within it still counts.
_SHARE = f"max by ({', '.join(ROW)}) (last_over_time({PREFIX}gpu_share_ratio[{WINDOW}]))"
_MODEL = f"max by ({', '.join(ROW)}, model) (last_over_time({PREFIX}gpu_info[{WINDOW}]))"


@dataclass(frozen=True, slots=True)
class Quantity:
    """Seconds that are summed: the counter's stem, and the labels of its own that are kept."""

    stem: str
    by: tuple[str, ...] = ()
    workload: bool = False

    @property
    def counter(self) -> str:
        return f"{PREFIX}{'workload_' if self.workload else ''}{self.stem}_seconds_total"

    @property
    def base(self) -> str:
        return f"{PREFIX}{self.stem}_seconds"


QUANTITIES = (
    Quantity("verdict", ("verdict", "cause")),
    Quantity("lost", ("verdict", "cause")),
    Quantity("useful"),
    Quantity("headroom"),
    Quantity("measured"),
    Quantity("observed"),
)
OF_WORKLOADS = (
    Quantity("verdict", ("verdict",), workload=True),
    Quantity("lost", ("verdict", "cause"), workload=True),
    Quantity("useful", workload=True),
    Quantity("measured", workload=True),
)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the names ``level:metric:operation``: the labels that are kept there.

    ``of`` is the level that it sums up, "" for counters; ``weighs`` whether MIG slices are weighed on the
    way, so that seconds become those of whole GPUs.
    """

    name: str
    by: tuple[str, ...]
    of: str = ""
    weighs: bool = False
    workload: bool = False

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return OF_WORKLOADS if self.workload else QUANTITIES


LEVELS = (
    Level("gpu", ROW),
    Level("instance", ("instance",), of="gpu", weighs=True),
    Level("model", ("model",), of="gpu", weighs=True),
    Level("fleet", (), of="instance"),
    Level("workload", WORKLOAD, weighs=True, workload=True),
    Level("owner", ("workload_owner",), of="workload", workload=True),
)


def record(level: str, quantity: Quantity) -> str:
    """The name of a recorded sum."""
    return f"{level}:{quantity.base}:increase{WINDOW}"


def efficiency(level: str) -> str:
    """The name of a level's useful over measured seconds."""
    return f"{level}:{PREFIX}efficiency:ratio{WINDOW}"


def _sum(level: Level, quantity: Quantity) -> str:
    by = (*level.by, *quantity.by)
    if level.of:
        inner = record(level.of, quantity)
    elif level.workload:
        # The gain of each GPU first: a workload is weighed on each of its rows.
        inner = f"increase({quantity.counter}[{WINDOW}])"
    else:
        return f"sum by ({', '.join(by)}) (increase({quantity.counter}[{WINDOW}])) > 0"
    if level.weighs:
        inner = f"{inner} * {_ON} group_left () {_SHARE}"
    if "model" in level.by:
        inner = f"{inner} * {_ON} group_left (model) {_MODEL}"
    outer = f"sum by ({', '.join(by)})" if by else "sum"
    return f"{outer} ({inner}) > 0"


def _ratio(level: Level) -> str:
    useful, measured = (record(level.name, Quantity(stem)) for stem in ("useful", "measured"))
    # An hour in which nothing was useful has no useful series: it is 0, not unknown.
    return f"({useful} or 0 * {measured}) / {measured}"


def _rules(level: Level) -> Iterator[dict[str, str]]:
    for quantity in level.quantities:
        yield {"record": record(level.name, quantity), "expr": _sum(level, quantity)}
    yield {"record": efficiency(level.name), "expr": _ratio(level)}


def groups() -> list[dict[str, Any]]:
    """One group, whose rules are evaluated in order: each reads what the ones before recorded."""
    rules = [rule for level in LEVELS for rule in _rules(level)]
    return [{"name": "gpuwhy.recording", "interval": EVERY, "rules": rules}]


def rule_file() -> str:
    """alerts/recording.rules.yaml"""
    body = yaml.safe_dump({"groups": groups()}, sort_keys=False, width=1000)
    return f"# {notice('`agent/gpuwhy/render/recording.py`')}\n{body}"
