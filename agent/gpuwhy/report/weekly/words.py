"""Figures and names in words, the same in every format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuwhy.report.weekly.types import About, Change, Explained, Fix, Group, Loss, Report

LEVEL_NAMES = {
    "gpu": "GPU",
    "instance": "host",
    "model": "model",
    "fleet": "fleet",
    "workload": "workload",
    "owner": "owner",
}
CURRENCIES = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}
NOT_KNOWN, MINUS = "\u2013", "\u2212"
UNKNOWN_NAME = "without a name"
LONGEST_NAME = 64
LEAST_MOVED = 0.0005  # of a ratio, to be worth a word


def hours(value: float | None) -> str:
    """GPU-hours for people: 1,344 or 12.5 or 0.03."""
    if value is None:
        return NOT_KNOWN
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 0.95:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.005 else "0"


def signed_hours(value: float) -> str:
    text = hours(abs(value))
    return text if text == "0" else f"{'+' if value > 0 else MINUS}{text}"


def percent(ratio: float | None) -> str:
    """A ratio for people: 31 % or 0.4 %; what is not all of it never reads 100 %."""
    if ratio is None:
        return NOT_KNOWN
    if 0 < abs(ratio) < 0.0005:
        return "<0.1 %"
    if 0 < abs(ratio) < 0.0995:
        return f"{100 * ratio:.1f} %"
    if 0.995 <= ratio < 1:
        return "99 %" if ratio < 0.9995 else "100 %"
    return f"{100 * ratio:.0f} %"


def points(difference: float) -> str:
    """A difference of two ratios, in percentage points."""
    text = f"{abs(100 * difference):.1f}"
    return "0 points" if text == "0.0" else f"{'+' if difference > 0 else MINUS}{text} points"


def money(value: float | None, currency: str | None) -> str:
    if value is None or currency is None:
        return ""
    amount = f"{value:,.0f}" if value >= 10 else f"{value:,.2f}"
    sign = CURRENCIES.get(currency)
    return f"{sign}{amount}" if sign else f"{amount} {currency}"


def share(part: float, whole: float) -> float | None:
    """None where there is no whole."""
    return part / whole if whole > 0 else None


def difference(change: Change, against: float | None) -> tuple[str, str]:
    """A change in words, and whether it is "good", "bad" or neither ("")."""
    if change.now is None or against is None:
        return NOT_KNOWN, ""
    moved = change.now - against
    said = points(moved) if change.unit == "ratio" else signed_hours(moved)
    little = 0.005 if change.unit == "ratio" else 0.02 * abs(against)
    if change.good is None or abs(moved) <= little:
        return said, ""
    return said, "good" if (moved > 0) == change.good else "bad"


def figure(change: Change, value: float | None) -> str:
    """A value of this figure."""
    return percent(value) if change.unit == "ratio" else hours(value)


def explained(change: Explained) -> str:
    """What moved an efficiency, in a sentence without its end."""
    said = f"mix {points(change.mix)}, rate {points(change.rate)}"
    if abs(change.mix) < LEAST_MOVED and abs(change.rate) < LEAST_MOVED:
        return f"{said}; nothing moved"
    if abs(change.rate) >= abs(change.mix):
        said += f"; the same work ran {'better' if change.rate > 0 else 'worse'}"
    else:
        said += f"; work that is {'more' if change.mix > 0 else 'less'} efficient took more of the time"
    parts = [
        f"{name(change.by, part.labels)} {points(part.mix + part.rate)} "
        f"({'mix' if abs(part.mix) > abs(part.rate) else 'rate'})"
        for part in change.parts
        if abs(part.mix + part.rate) >= LEAST_MOVED
    ]
    return f"{said}: {', '.join(parts)}" if parts else said


def size(report: Report) -> str:
    """How much of a fleet a report is of; GPUs may not be known apart."""
    hosts = f"{report.hosts:,} host{'' if report.hosts == 1 else 's'}"
    return f"{report.gpus:,} GPU{'' if report.gpus == 1 else 's'} on {hosts}" if report.gpus else hosts


def name(level: str, labels: Mapping[str, str]) -> str:
    """What people call a group."""
    if level == "workload":
        namespace, workload = labels["workload_namespace"], labels["workload"]
        return (f"{namespace}/" if namespace else "") + (workload or UNKNOWN_NAME)
    if level == "owner":
        return labels["workload_owner"] or "nobody named"
    if level == "gpu":
        values = list(labels.values())
        mig = f" MIG {labels['mig']}" if labels["mig"] else ""
        return f"{values[0]} GPU {labels['gpu']}{mig}"
    return next(iter(labels.values()), "") or (UNKNOWN_NAME if labels else "the fleet")


def full_name(level: str, labels: Mapping[str, str], hosts: Sequence[str] = ()) -> str:
    """The same with its owner and where it ran."""
    text = name(level, labels)
    if level == "workload" and labels["workload_owner"]:
        text += f" of {labels['workload_owner']}"
    return f"{text} on {folded(hosts)}" if hosts else text


def short(text: str, longest: int = LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def clean(text: str) -> str:
    """Without what a terminal, a page or a reader would obey: names come from pods, jobs and drivers."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def folded(hosts: Sequence[str], most: int = 4) -> str:
    """Hosts in few words: neighbours by number as h1..h4, and the rest counted."""
    runs: list[list[str]] = []
    for host in sorted(set(hosts), key=_by_number):
        if runs and _follows(runs[-1][-1], host):
            runs[-1].append(host)
        else:
            runs.append([host])
    named = [each for run in runs for each in (run if len(run) < 3 else [f"{run[0]}..{run[-1]}"])]
    if len(named) <= most:
        return ", ".join(named)
    return f"{', '.join(named[:most])} and {len(named) - most} more"


def _by_number(host: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", host))


_NUMBERED = re.compile(r"^(.*?)(\d+)(\D*)$", re.DOTALL)


def _follows(first: str, second: str) -> bool:
    one, two = _NUMBERED.match(first), _NUMBERED.match(second)
    return (
        one is not None
        and two is not None
        and (one[1], one[3]) == (two[1], two[3])
        and int(two[2]) == int(one[2]) + 1
    )


def rest(report: Report) -> str:
    """What is lost beside what to fix first, "" for nothing to speak of."""
    left = report.fleet.hours.lost - sum(fix.loss.hours for fix in report.fixes)
    return f"and {hours(left)} GPU-hours in smaller items" if report.fixes and left >= 0.05 else ""


def headline(fleet: Group, fixes: Sequence[Fix], about: About) -> str:
    """The report in one sentence."""
    total = fleet.hours
    if not total.observed:
        return f"No data for {about.name}."
    if not total.measured:
        first = f"{hours(total.observed)} GPU-hours were observed, and what was useful of them could not be measured"
    else:
        first = (
            f"{hours(total.useful)} of {hours(total.observed)} GPU-hours "
            f"({percent(total.useful / total.observed)}) were useful"
        )
        measured = total.measured / total.observed
        if measured < 0.9:
            first += f", as far as measured ({percent(measured)} of the time)"
    free = total.free or 0.0
    if free >= 0.005 * total.observed:
        first += f", {hours(free)} ({percent(free / total.observed)}) were free"
    by_verdict: dict[str, float] = {}
    for loss in fleet.losses:
        by_verdict[loss.verdict] = by_verdict.get(loss.verdict, 0.0) + loss.hours
    if not by_verdict:
        return f"{first}; nothing was lost to a cause."
    verdict = max(by_verdict, key=lambda each: by_verdict[each])
    price = about.price_per_gpu_hour
    spent = f" ({money(by_verdict[verdict] * price, about.currency)})" if price else ""
    text = f"{first}; {verdict} cost {hours(by_verdict[verdict])} GPU-hours{spent}"
    leading = next((fix for fix in fixes if fix.loss.verdict == verdict), None)
    if leading is None:
        return f"{text}."
    part = leading.loss.hours / by_verdict[verdict]
    how = "most of it" if part > 0.5 else "the largest part of it"
    where = full_name(leading.level, leading.labels, leading.hosts)
    return f"{text}, {how} {clean(where)} ({leading.loss.cause})."


def cause(loss: Loss) -> str:
    return f"{loss.verdict} / {loss.cause}"
