"""The report in Markdown, for wikis, issues and chats.

Names stand in code spans, in which nothing is a link, a mention or a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuwhy.report.weekly import words
from gpuwhy.report.weekly.types import Report

MOST_FIXES = 5
MOST_GROUPS = 10
TABLES = (("owner", "Owners"), ("workload", "Workloads"), ("instance", "Hosts"), ("model", "Models"))


def text(report: Report) -> str:
    return "\n".join(_lines(report)).rstrip("\n") + "\n"


def code(name: str) -> str:
    """A name as a code span, also inside a table."""
    shown = words.short(words.clean(name)).replace("|", r"\|").strip() or "-"
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def escaped(sentence: str) -> str:
    """Prose that holds names: what Markdown, HTML or a forge would take for its own is shown as it is."""
    shown = re.sub(r"([\\`*_{}\[\]<>|~&]|^[#+-])", r"\\\1", words.clean(sentence))
    # Mentions, references and bare addresses become links even so, unless something stands in between.
    return re.sub(r"(?i)([@#]|\b(?:https?|ftp|mailto)(?=:)|\bwww(?=\.))", "\\1\u200b", shown)


def _who(level: str, labels: Mapping[str, str], hosts: Sequence[str] = ()) -> str:
    said = code(words.name(level, labels))
    if level == "workload" and labels["workload_owner"]:
        said += f" of {code(labels['workload_owner'])}"
    return f"{said} on {code(words.folded(hosts))}" if hosts else said


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words_in: int = 1) -> Iterator[str]:
    """The first columns are words, and the others figures."""
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "| " + " | ".join("---" if number < words_in else "---:" for number in range(len(head))) + " |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _lines(report: Report) -> Iterator[str]:
    about, fleet = report.about, report.fleet.hours
    yield f"# GPU efficiency, {about.name}"
    yield ""
    yield f"**{escaped(report.headline)}**"
    yield ""
    yield f"{about.start} to {about.end} ({code(about.timezone)}), from {code(about.source)}."
    yield ""
    for note in report.notes:
        yield f"> {escaped(note)}"
        yield ">"
    if not report.empty:
        yield (
            f"{words.size(report)}; "
            f"{words.percent(words.share(fleet.measured, fleet.observed))} of the observed time was measured."
        )
        yield from _compared(report)
        yield from _fixes(report)
        yield from _losses(report)
        yield from _worse(report)
        yield from _small_tables(report)
        for level, title in TABLES:
            yield from _groups(report, level, title)
    yield ""
    yield "## How this is counted"
    yield ""
    yield from (f"- {said}" for said in report.definitions)
    yield ""
    yield f"Made by gpuwhy {about.version} on {about.generated}."


def _compared(report: Report) -> Iterator[str]:
    yield from _table(
        ("GPU-hours, or share", "now", "week before", "change", "median", "of weeks"),
        (
            (
                escaped(change.name),
                words.figure(change, change.now),
                words.figure(change, change.before),
                words.difference(change, change.before)[0],
                words.figure(change, change.median),
                f"{change.available} of {len(report.weeks)}",
            )
            for change in report.changes
        ),
    )


def _fixes(report: Report) -> Iterator[str]:
    yield "## What to fix first"
    yield ""
    if not report.fixes:
        yield "Nothing was lost to a cause."
    for number, fix in enumerate(report.fixes, start=1):
        money = f" ({words.money(fix.money, report.about.currency)})" if fix.money is not None else ""
        yield (
            f"{number}. **{words.hours(fix.loss.hours)} GPU-hours{money}**: "
            f"{_who(fix.level, fix.labels, fix.hosts)}, {code(words.cause(fix.loss))}."
        )
        if number <= MOST_FIXES:
            yield f"   {fix.meaning[:1].upper()}{fix.meaning[1:]}. {'; '.join(fix.evidence)}."
            yield from (f"   - {step}" for step in fix.steps)
            if fix.confirm:
                yield f"   - {fix.confirm}"
    if words.rest(report):
        yield ""
        yield f"{words.rest(report)}."
    yield ""


def _losses(report: Report) -> Iterator[str]:
    if not report.fleet.losses:
        return
    yield "## Lost hours by cause"
    price = report.about.price_per_gpu_hour
    yield from _table(
        ("cause", "GPU-hours", "of observed", "confirmed", "to investigate", *(["money"] if price else [])),
        (
            (
                code(words.cause(loss)),
                words.hours(loss.hours),
                words.percent(words.share(loss.hours, report.fleet.hours.observed)),
                words.hours(loss.confirmed),
                words.hours(loss.to_investigate),
                *([words.money(loss.hours * price, report.about.currency)] if price else []),
            )
            for loss in report.fleet.losses
        ),
    )


def _worse(report: Report) -> Iterator[str]:
    if not report.worse and not report.explained:
        return
    yield "## What got worse, and why"
    yield ""
    for each in report.explained[:1]:
        yield (
            f"The fleet's efficiency went from {words.percent(each.before)} in the week before to "
            f"{words.percent(each.now)}."
        )
        yield ""
    for each in report.explained:
        yield f"- By {words.LEVEL_NAMES[each.by]}: {escaped(words.explained(each))}."
    for worse in report.worse:
        if worse.explained:
            yield f"- {_who(worse.level, worse.labels)}: {escaped(words.explained(worse.explained))}."
    yield ""
    if report.worse:
        yield from _table(
            (
                "less efficient than its own past",
                "what",
                "now",
                "median before",
                "of weeks",
                "GPU-hours",
                "since",
            ),
            (
                (
                    _who(worse.level, worse.labels),
                    words.LEVEL_NAMES[worse.level],
                    words.percent(worse.efficiency),
                    words.percent(worse.past),
                    str(worse.weeks),
                    words.hours(worse.hours),
                    worse.since or "no day stands out",
                )
                for worse in report.worse
            ),
            words_in=2,
        )


def _small_tables(report: Report) -> Iterator[str]:
    if report.held:
        yield "## Held idle"
        yield from _table(
            ("GPUs that were held", "nothing ran", "little demand"),
            (
                (
                    _who(each.level, each.labels, each.hosts),
                    words.hours(each.held),
                    words.hours(each.no_demand),
                )
                for each in report.held
            ),
        )
    if report.throttling:
        yield "## Throttling by host and reason"
        yield from _table(
            ("host", "reason", "GPU-hours throttled", "lost by it"),
            (
                (code(each.host), code(each.cause), words.hours(each.hours), words.hours(each.lost))
                for each in report.throttling
            ),
            words_in=2,
        )


def _groups(report: Report, level: str, title: str) -> Iterator[str]:
    groups = report.of(level)
    if not groups:
        return
    held = "held" if level in {"workload", "owner"} else "observed"
    yield f"## {title}"
    yield from _table(
        (
            "most lost first",
            held,
            "measured",
            "useful",
            "lost",
            "headroom",
            "unattributed",
            "efficiency",
            "week before",
            "most lost to",
        ),
        (
            (
                _who(level, group.labels, group.hosts),
                words.hours(group.hours.observed),
                words.percent(words.share(group.hours.measured, group.hours.observed)),
                words.hours(group.hours.useful),
                words.hours(group.hours.lost),
                words.hours(group.hours.headroom),
                words.hours(group.hours.unattributed),
                words.percent(group.hours.efficiency),
                words.percent(group.before.efficiency if group.before else None),
                code(words.cause(group.losses[0])) if group.losses else "",
            )
            for group in groups[:MOST_GROUPS]
        ),
    )
    if len(groups) > MOST_GROUPS:
        yield f"And {len(groups) - MOST_GROUPS} more, in the formats json and csv."
        yield ""
