"""The report for a terminal: readable in 80 columns and without colour."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwhy.report.terminal import COLOURS
from gpuwhy.report.weekly import words
from gpuwhy.report.weekly.types import Report

MOST_STEPS_OF = 3  # fixes that are shown with what to do next
MOST_GROUPS = 8
TABLES = (("owner", "Owners"), ("workload", "Workloads"), ("instance", "Hosts"))


def text(report: Report) -> str:
    """Plain, for files and pipes."""
    out = io.StringIO()
    print_report(report, Console(file=out, width=80, highlight=False, color_system=None))
    return out.getvalue()


def print_report(report: Report, console: Console) -> None:
    with console.capture() as captured:
        _print(report, console)
    for line in captured.get().splitlines():
        # Tables pad every line to their width; a pasted output should not.
        console.file.write(line.rstrip() + "\n")


def _print(report: Report, console: Console) -> None:
    about, fleet = report.about, report.fleet.hours
    console.print(Text(f"GPU efficiency, {about.name} ({words.clean(about.timezone)})", style="dim"))
    console.print(Text(words.clean(report.headline), style="bold"))
    for note in report.notes:
        console.print(Text(f"! {words.clean(note).replace('`', '')}", style=COLOURS["starving"]))
    if report.empty:
        return
    measured = words.percent(words.share(fleet.measured, fleet.observed))
    console.print(
        Text(
            f"{words.size(report)}; {measured} of the observed time was measured.",
            style="dim",
        )
    )
    _changes(report, console)
    _fixes(report, console)
    _losses(report, console)
    _worse(report, console)
    _held_and_throttled(report, console)
    for level, title in TABLES:
        _groups(report, level, title, console)
    console.print()
    console.print(Text("How this is counted stands in the formats html, markdown and json.", style="dim"))


def _table(
    console: Console, head: Sequence[str], rows: Iterable[Sequence[str | Text]], words_in: int = 1
) -> None:
    """The first columns are words and wrap, the others figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(head):
        if number < words_in:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(each) if isinstance(each, str) else each for each in row))
    console.print(Padding(table, (0, 0, 0, 2)))


def _heading(title: str, console: Console) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _changes(report: Report, console: Console) -> None:
    _heading("GPU-hours, and shares", console)
    _table(
        console,
        ("", "now", "week before", "change", "median", "weeks"),
        (
            (
                words.clean(change.name),
                words.figure(change, change.now),
                words.figure(change, change.before),
                _coloured(*words.difference(change, change.before)),
                words.figure(change, change.median),
                f"{change.available} of {len(report.weeks)}",
            )
            for change in report.changes
        ),
    )


def _coloured(said: str, kind: str) -> Text:
    return Text(said, style={"good": COLOURS["healthy"], "bad": COLOURS["throttled"]}.get(kind, ""))


def _fixes(report: Report, console: Console) -> None:
    _heading("What to fix first", console)
    if not report.fixes:
        console.print(Text("  Nothing was lost to a cause."))
    for number, fix in enumerate(report.fixes, start=1):
        money = f", {words.money(fix.money, report.about.currency)}" if fix.money is not None else ""
        head = Text(f"{number}. ")
        head.append(words.short(words.clean(words.full_name(fix.level, fix.labels, fix.hosts))), style="bold")
        head.append("  ")
        head.append(words.clean(words.cause(fix.loss)), style=COLOURS.get(fix.loss.verdict, ""))
        head.append(f"  {words.hours(fix.loss.hours)} GPU-hours{money}")
        console.print(Padding(head, (0, 0, 0, 2)))
        if number <= MOST_STEPS_OF:
            console.print(Padding(Text("; ".join(fix.evidence), style="dim"), (0, 0, 0, 5)))
            for step in fix.steps[:2]:
                console.print(Padding(Text(f"- {step.replace('`', '')}"), (0, 0, 0, 5)))
    if words.rest(report):
        console.print(Padding(Text(words.rest(report), style="dim"), (0, 0, 0, 5)))


def _losses(report: Report, console: Console) -> None:
    if report.fleet.losses:
        _heading("Lost GPU-hours by cause", console)
        _table(
            console,
            ("", "hours", "of observed", "confirmed", "to investigate"),
            (
                (
                    words.clean(words.cause(loss)),
                    words.hours(loss.hours),
                    words.percent(words.share(loss.hours, report.fleet.hours.observed)),
                    words.hours(loss.confirmed),
                    words.hours(loss.to_investigate),
                )
                for loss in report.fleet.losses
            ),
        )


def _worse(report: Report, console: Console) -> None:
    if not report.worse and not report.explained:
        return
    _heading("What got worse, and why", console)
    for each in report.explained[:1]:
        went = f"from {words.percent(each.before)} in the week before to {words.percent(each.now)}"
        console.print(Padding(Text(f"The fleet's efficiency went {went}."), (0, 0, 0, 2)))
    for each in report.explained:
        said = f"By {words.LEVEL_NAMES[each.by]}: {words.clean(words.explained(each))}."
        console.print(Padding(Text(said), (0, 0, 0, 2)))
    if report.worse:
        _table(
            console,
            ("less efficient than its past", "now", "before", "GPU-hours", "since"),
            (
                (
                    f"{words.LEVEL_NAMES[worse.level]} {words.short(words.clean(words.name(worse.level, worse.labels)))}",
                    words.percent(worse.efficiency),
                    words.percent(worse.past),
                    words.hours(worse.hours),
                    worse.since or "?",
                )
                for worse in report.worse
            ),
        )


def _held_and_throttled(report: Report, console: Console) -> None:
    if report.held:
        _heading("Held idle", console)
        _table(
            console,
            ("", "nothing ran", "little demand"),
            (
                (
                    words.clean(words.short(words.full_name(each.level, each.labels, each.hosts))),
                    words.hours(each.held),
                    words.hours(each.no_demand),
                )
                for each in report.held
            ),
        )
    if report.throttling:
        _heading("Throttling", console)
        _table(
            console,
            ("host", "reason", "throttled", "lost by it"),
            (
                (
                    words.clean(each.host),
                    words.clean(each.cause),
                    words.hours(each.hours),
                    words.hours(each.lost),
                )
                for each in report.throttling
            ),
            words_in=2,
        )


def _groups(report: Report, level: str, title: str, console: Console) -> None:
    groups = report.of(level)
    if not groups:
        return
    _heading(f"{title}, most lost first", console)
    held = "held" if level in {"workload", "owner"} else "observed"
    _table(
        console,
        ("", held, "measured", "useful", "lost", "unattr.", "eff.", "before"),
        (
            (
                words.short(words.clean(words.name(level, group.labels)), 28),
                words.hours(group.hours.observed),
                words.percent(words.share(group.hours.measured, group.hours.observed)),
                words.hours(group.hours.useful),
                words.hours(group.hours.lost),
                words.hours(group.hours.unattributed),
                words.percent(group.hours.efficiency),
                words.percent(group.before.efficiency if group.before else None),
            )
            for group in groups[:MOST_GROUPS]
        ),
    )
    if len(groups) > MOST_GROUPS:
        console.print(Text(f"  and {len(groups) - MOST_GROUPS} more", style="dim"))
