"""The reference in docs/: every option, series and verdict there is.

Each table is a list of ``Column``: to show more of a row, add a column. To render another table,
add a function here and its row to ``TARGETS``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import yaml

import gpuwhy.verdict
from gpuwhy import catalog, config
from gpuwhy.catalog import Series
from gpuwhy.config import Option
from gpuwhy.render import recording
from gpuwhy.render.files import notice
from gpuwhy.render.recording import Level, Recording
from gpuwhy.sample import signals
from gpuwhy.verdict import cards, playbook, vocabulary
from gpuwhy.verdict.cards import Card
from gpuwhy.verdict.check import Limit
from gpuwhy.verdict.playbook import Play
from gpuwhy.verdict.vocabulary import Cause

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column's heading, and the Markdown of its cell in a row."""

    heading: str
    cell: Callable[[Row], str]


def _table(columns: Iterable[Column[Row]], rows: Iterable[Row]) -> str:
    columns = tuple(columns)
    lines = [[column.heading for column in columns], ["---"] * len(columns)]
    lines += [[column.cell(row).replace("|", "\\|").replace("\n", " ") for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _page(source: str, title: str, *blocks: str) -> str:
    return "\n\n".join([f"<!-- {notice(source)} -->", f"# {title}", *blocks]) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))


# --- docs/configuration.md

_OPTION: tuple[Column[Option], ...] = (
    Column("option", lambda row: _code(row.name)),
    Column("takes", lambda row: row.expected),
    Column("default", lambda row: _code(config.as_text(row.default))),
    Column("environment", lambda row: _code(row.environment)),
    Column("flag", lambda row: _code(row.flag)),
    Column("meaning", lambda row: row.description),
)
_ITEM: tuple[Column[Option], ...] = (
    Column("number", lambda row: _code(row.name)),
    Column("takes", lambda row: row.expected),
    Column("meaning", lambda row: row.description),
)


def configuration() -> str:
    """docs/configuration.md"""
    blocks = []
    for section in dict.fromkeys(row.section for row in config.options()):
        rows = [row for row in config.options() if row.section == section]
        blocks += [f"## {section}", _table(_OPTION, rows)]
        for row in rows:
            if row.items:
                blocks += [
                    f"What an entry of `{row.key}` may hold; what is left out stays as built in:",
                    _table(_ITEM, row.items),
                ]
    return _page(
        "`agent/gpuwhy/config.py`",
        "Configuration",
        f"""An option is taken from the first of these that has it: flag, environment, file, default.
The file is `{config.DEFAULT_PATH}`, which may be missing, or the one that `--config` names.
`gpuwhy check-config` prints every value in effect and where it came from, or all that is wrong.""",
        """A name that is not known, a value out of its bounds and options that do not go together stop the start.
In the environment a section and an option are joined by two underscores; other names that start with `GPUWHY_` are
ignored, because Kubernetes sets some. An option that is a mapping is written there as YAML, and replaces the file's.""",
        *blocks,
        "## Example",
        "A complete file, with the defaults and one override. A file needs only what it changes.",
        f"```yaml\n{example()}```",
    )


def example() -> str:
    """A complete configuration file."""
    lines = []
    for section in dict.fromkeys(row.section for row in config.options()):
        lines.append(f"{section}:")
        for row in config.options():
            if row.section == section:
                value = row.default if row.example is None else row.example
                value = int(value) if isinstance(value, float) and value.is_integer() else value
                text = yaml.safe_dump({row.name: value}, default_flow_style=False)
                lines += [f"  {line}" for line in [f"# {row.description}", *text.splitlines()]]
    return "\n".join(lines) + "\n"


# --- docs/metrics.md

_SERIES: tuple[Column[Series], ...] = (
    Column("series", lambda row: ", ".join(map(_code, row.sample_names))),
    Column("kind", lambda row: row.kind),
    Column("unit", lambda row: row.unit),
    Column(
        "labels",
        lambda row: ", ".join(
            (["identity"] if row.per_gpu else [])
            + (["workload"] if row.origin == "workload" else [])
            + [_code(each) for each in row.own_labels]
        ),
    ),
    Column("shown", lambda row: "workload" if row.origin == "workload" and row.life == "agent" else row.life),
    Column("meaning", lambda row: row.help),
)


_GROUPS = {
    "Seconds": """Where the time went: for alerts and planning.
Per GPU, observed seconds are the sum of all verdict seconds, and also of useful, lost, headroom, free and unattributed
seconds.""",
    "Now": "The last interval: for looking at.",
    "Driver counters": "What the driver counted since the agent's start.",
    "Host": "What the host did meanwhile. A process tree is a GPU's processes, with their descendants and cgroup.",
    "Workloads": """Whose time it was. The labels of a workload are `workload_kind`, `workload`, `workload_namespace` and
`workload_owner`; its name stays from run to run, and runs (pods, job ids, containers) are on
`gpuwhy_workload_info` alone. [workloads.md](workloads.md) says how they are found, shared and bounded.""",
    "Identity, and the agent itself": "What each row is, and whether to believe it.",
}
_LIVES = {
    "agent": "from the start, counters from 0",
    "cause": "from when the cause occurs, counters from 0",
    "read": "from the first time that it was read",
    "driver": "from the first time that it was read, and not while readings are stale",
    "now": "while the last interval has it, and not while readings are stale",
    "workload": "from when the workload is seen, counters from 0, until it is long gone",
}


class Values(NamedTuple):
    """A label with a closed list of values."""

    label: str
    about: str
    values: tuple[str, ...]


_VALUES: tuple[Column[Values], ...] = (
    Column("label", lambda row: _code(row.label)),
    Column("what", lambda row: row.about),
    Column("values", lambda row: _codes(row.values)),
)
_LABELS = (
    Values("verdict", "verdicts; their causes are in [verdicts.md](verdicts.md)", tuple(vocabulary.VERDICTS)),
    Values("unit", "parts of the GPU", catalog.ACTIVITY_UNITS),
    Values("sensor", "temperature sensors", catalog.TEMPERATURE_SENSORS),
    Values("reason", "why a clock is held", catalog.CLOCK_REASONS),
    Values("reason", "why a reading was rejected", catalog.REJECTION_REASONS),
    Values("workload_kind", "who knows the workload's name", catalog.WORKLOAD_KINDS),
    Values("mode", "what the host's CPUs did", catalog.HOST_CPU_MODES),
    Values("resource", "what tasks of the host waited for", catalog.PRESSURE_RESOURCES),
    Values(
        "source",
        "where readings come from; `nvml-gpm` stands for NVML's activity counters, of signals alone",
        catalog.SOURCES,
    ),
)


_LEVEL: tuple[Column[Level], ...] = (
    Column("level", lambda row: _code(row.name)),
    Column("of", lambda row: row.help),
    Column("labels", lambda row: _codes(Recording().labels(row))),
    Column("weeks", lambda row: "yes" if row.weeks else "no"),
)


class Recorded(NamedTuple):
    """A kind of recorded series: its name with LEVEL in place of the level, the labels that it adds, what it is."""

    name: str
    labels: tuple[str, ...]
    levels: tuple[str, ...]
    about: str


_RECORDED: tuple[Column[Recorded], ...] = (
    Column("series", lambda row: _code(row.name)),
    Column("adds", lambda row: _codes(row.labels)),
    Column("levels", lambda row: ", ".join(row.levels)),
    Column("meaning", lambda row: row.about),
)


def _recorded() -> list[Recorded]:
    """Every recorded series, those that differ by nothing but their level in one row."""
    rows: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    rules = Recording()
    for rule in (*rules.hours(), *rules.weeks()):
        level, _, rest = rule.record.partition(":")
        added = tuple(label for label in rule.labels if label not in rules.labels(recording.LEVEL[level]))
        about = rule.help.removeprefix(f"of {recording.LEVEL[level].help}: ")
        rows.setdefault((f"LEVEL:{rest}", added, about), []).append(level)
    return [Recorded(name, added, tuple(levels), about) for (name, added, about), levels in rows.items()]


def _group(row: Series) -> str:
    seconds, now, driver, host, workloads, itself = _GROUPS
    if row.origin == "workload":
        return workloads
    if row.origin in {"identity", "health", "agent", "exporter"} or "source" in row.own_labels:
        return itself
    if row.origin == "host" or row.name.startswith(f"{catalog.PREFIX}process_tree_"):
        return host
    if row.life == "now":
        return now
    return driver if row.origin == "increment" and row.life == "driver" else seconds


def metrics() -> str:
    """docs/metrics.md"""
    blocks = []
    for heading, about in _GROUPS.items():
        blocks += [
            f"## {heading}",
            about,
            _table(_SERIES, (row for row in catalog.SERIES if _group(row) == heading)),
        ]
    return _page(
        "`agent/gpuwhy/catalog.py`",
        "Metrics",
        f"""Every series of gpuwhy that `/metrics` serves; besides them it serves `process_*` of the agent's own process, as
all of prometheus_client's exporters do. A value that was not read is absent, never zero.
The labels {_codes(catalog.IDENTITY)} are the identity of a row: NVML index, UUID, and MIG instance, which is empty for a
whole GPU. Join on them and `instance`; model and driver are on `{catalog.PREFIX}gpu_info` alone.""",
        f"""Efficiency is useful over measured seconds:
`sum(increase({catalog.PREFIX}useful_seconds_total[1h])) / sum(increase({catalog.PREFIX}measured_seconds_total[1h]))`.
It is not model FLOPs utilisation: the counters cannot tell FP8 from BF16, and count work that the model did not need.
Over a fleet with MIG, multiply seconds by `{catalog.PREFIX}gpu_share_ratio` before adding them up.""",
        "The column *shown* says when a series is there:",
        "\n".join(f"- {life}: {about}" for life, about in _LIVES.items()),
        *blocks,
        "## Label values",
        _table(_VALUES, _LABELS),
        "## Recorded series",
        f"""What `alerts/recording.rules.yaml` has Prometheus record every five minutes, and alerts, dashboards and reports
read. From the level of the host up, MIG slices are weighed: those are seconds of whole GPUs, and 3600 of them are a
GPU-hour. Series that would be 0 are left out. A longer time is the sum over full hours, whose windows neither overlap
nor leave gaps: `sum_over_time({recording.hourly("fleet", "useful")}[30d:1h])`.""",
        _table(_LEVEL, recording.LEVELS),
        _table(_RECORDED, _recorded()),
    )


# --- docs/verdicts.md

_CAUSE: tuple[Column[Cause], ...] = (
    Column("cause", lambda row: f"[`{row.name}`](#{row.verdict}-{row.name})"),
    Column("meaning", lambda row: row.meaning),
)
_CARD: tuple[Column[Card], ...] = (
    Column("card", lambda row: row.name),
    Column("DRAM peak", lambda row: f"{row.dram_peak_ratio:g}"),
    Column("tensor peak", lambda row: f"{row.tensor_peak_ratio:g}"),
    Column("FP64 peak", lambda row: f"{row.fp64_peak_ratio:g}"),
    Column("FP32 peak", lambda row: f"{row.fp32_peak_ratio:g}"),
    Column("FP16 peak", lambda row: f"{row.fp16_peak_ratio:g}"),
    Column("clock at full load", lambda row: f"{row.full_load_clock_ratio:g}"),
    Column("power with a context", lambda row: f"{row.context_ratio:g}"),
    Column("source", lambda row: row.source),
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A named limit of the verdict stage, and the module that holds it."""

    module: str
    name: str
    limit: Limit


_THRESHOLD: tuple[Column[Threshold], ...] = (
    Column("where", lambda row: _code(row.module)),
    Column("threshold", lambda row: row.name.strip("_").lower().replace("_", " ")),
    Column("value", lambda row: f"{row.limit.value:g}"),
    Column("why", lambda row: row.limit.why),
)


def thresholds() -> Iterator[Threshold]:
    """Every ``Limit`` that is a constant of a module of the verdict stage, module by module."""
    package = gpuwhy.verdict
    for found in sorted(
        pkgutil.walk_packages(package.__path__, f"{package.__name__}."), key=lambda each: each.name
    ):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if isinstance(value, Limit):
                yield Threshold(found.name.removeprefix(f"{package.__name__}."), name, value)


_METHOD = """## How a verdict is reached

Samples are cut into intervals of 5 s (twice the source's period where that is longer), the same for all GPUs of a
host, and each interval is judged by itself, its peers being evidence. An interval of which readings cover less than
60 % is not judged. The first of these that holds gives the headline:

1. the readings contradict each other: `unknown`;
2. the clock is held down harmfully while the GPU is busy: `throttled`;
3. nobody holds the GPU: `idle`; or there is a gap, the engine standing still for 40 % of the time or more (70 %
   under the profile `latency`): `starving` or `idle`, by what the host does;
4. else the busy part decides, by densities: activity over the card's practical peak, per busy time. With S the
   busiest pipe and D the DRAM, `memory-bound` where D leads and is high, `healthy` where S is high or both together
   are, `pseudo-peak` where both are low, `unknown` between those.

Busy is the activity of the graphics engine (on a MIG slice, of its SMs), never GPU-Util. Where no profiling counter is
read, GPU-Util stands in as an upper bound: a low value proves a gap, a high one proves nothing, and the busy part is
judged from power and clocks with little confidence.

## How sure it is

Confidence is a ceiling times a margin. The margin is 0.5 where a reading just passes its threshold and 1 from 20 %
beyond it. The ceiling is 0.95 with all signals; 0.7 without the host, SM activity or an FP pipe; 0.6 on an unknown
card; and 0.45 for what is a guess: `starving` and `idle` without the host, anything without profiling counters,
`throttled` without clock event reasons, a busy verdict without a clock, and causes for which evidence against them was
not read. Below 0.35 the verdict is `unknown/insufficient-evidence`, and the reason names what fits best.

## Where the time goes

With gr the busy time, and S and D as above over their peaks, an interval in which all of them were read (*measured*
time) is split so that nothing is counted twice:

| part | share of the interval | is |
| --- | --- | --- |
| speed of light | `min(1, max(S, D))` | how close the nearest limit is |
| used | `max(speed of light, min(gr, S + D))` | |
| busy | `max(gr, used)` | |
| gap | `1 - busy` | lost to the `starving` or `idle` cause; `idle/free` is kept apart; under 0.05 it is nobody's |
| slack | `busy - used` | lost to the `pseudo-peak` cause; *headroom* under `healthy` and `memory-bound` |
| throttled | `used x (1 - k)` | lost to the `throttled` cause, whatever else holds |
| useful | `used x k` | |

k is 1 unless clocks are held down; then it is the clock over the one expected (the card's at full load where S leads
and is high, else its maximum; the memory clock where D leads). Below a busy time of 0.05 slack counts as gap.
Where a signal is missing only the gap is charged. What `unknown` covers loses nothing. Whatever is left is
`unattributed = observed - useful - lost - headroom - free`.

`useful / measured` is the *efficiency* of everything in gpuwhy. It is no model FLOPS utilisation: the counters see a
busy tensor core, not whether it multiplies FP8 or BF16, nor whether the result was needed."""


def verdicts() -> str:
    """docs/verdicts.md"""
    blocks = []
    for verdict, meaning in vocabulary.VERDICTS.items():
        causes = [cause for cause in vocabulary.CAUSES if cause.verdict == verdict]
        blocks += [f"## {verdict}", f"{_sentence(meaning)}", _table(_CAUSE, causes)]
        for cause in causes:
            blocks += [
                f"### {verdict}: {cause.name}",
                _sentence(cause.meaning),
                _play(playbook.PLAY_BY_KEY[cause.key]),
            ]
    return _page(
        "`agent/gpuwhy/verdict/` (vocabulary, playbook, rules and cards)",
        "Verdicts",
        """Each interval of each GPU gets one verdict with one cause. The names are label values of the
[metrics](metrics.md) and stand in the JSON of `gpuwhy explain`.
In commands, GPU is the index of the GPU and PID a process that owns it; `gpuwhy explain` fills them in.""",
        _METHOD,
        *blocks,
        "## Thresholds",
        "What the rules compare with. Activities are densities, shares of the time in which the GPU was busy, unless said.",
        _table(_THRESHOLD, thresholds()),
        "## Evidence",
        """The signals that evidence names. Where one is exported, [metrics](metrics.md) has its series; those of the process
tree are of the GPU's processes, their descendants and the rest of their job's cgroup.""",
        _table(_SIGNAL, (*signals.SIGNALS.values(), *DERIVED)),
        "## Cards",
        """What each card can really reach, and what it draws and clocks: the first row that matches the model's name.
Peaks are shares of full activity, clocks shares of the maximum SM clock, power is a share of the default limit.
`cards.overrides` in the [configuration](configuration.md) replaces single numbers.""",
        _table(_CARD, (*cards.CARDS, cards.UNKNOWN_CARD)),
    )


DERIVED: tuple[signals.Signal, ...] = (
    signals.Signal("clock_event_ratio:REASON", (), maximum=1.0, help="share of time in a clock-event reason"),
    signals.Signal(
        "pcie_receive_bytes_per_busy_second", (), help="bytes received above the idle floor, per busy second"
    ),
    signals.Signal(
        "pcie_receive_bytes_per_cpu_second",
        (),
        help="bytes received above the idle floor, per CPU second of the owners",
    ),
    signals.Signal("processes", (), help="processes with a context on the GPU"),
    signals.Signal("coverage", (), maximum=1.0, help="share of the interval for which readings speak"),
)
_SIGNAL: tuple[Column[signals.Signal], ...] = (
    Column("signal", lambda row: _code(row.name)),
    Column("is", lambda row: row.help),
)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def _play(play: Play) -> str:
    steps = [step.replace("{gpu}", "GPU").replace("{pid}", "PID") for step in play.steps]
    return "\n".join(
        [
            *(f"{number}. {step}" for number, step in enumerate(steps, 1)),
            "",
            f"*Confirmed or not:* {play.confirm}",
            "",
            f"*When it is normal:* {play.when_normal}",
            "",
            f"*Source:* {play.source}",
        ]
    )
