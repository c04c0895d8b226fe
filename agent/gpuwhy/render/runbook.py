"""alerts/RUNBOOK.md: what to do about each alert and each cause, from the rows of alerts and of the playbook."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwhy.config import RenderConfig
from gpuwhy.render import alerts
from gpuwhy.render.alerts import Alert, anchor
from gpuwhy.render.files import notice
from gpuwhy.verdict import playbook, vocabulary
from gpuwhy.verdict.vocabulary import Cause

_SOURCE = "`agent/gpuwhy/render/alerts/table.py` and `agent/gpuwhy/verdict/playbook.py`"
_INTRO = """A heading for each alert, then one for each cause that an alert's text may name.
In commands, GPU is the index of the GPU and PID a process that owns it; `gpuwhy explain` fills them in. Commands only
look. Numbers are those that the rules here were rendered with; [the page on alerts](../docs/alerts.md) says how to
render them with your own.

`critical` wakes someone, `warning` is for working hours, `info` is for those who look."""


def render(options: RenderConfig) -> str:
    """The whole runbook, of disabled alerts too."""
    settled = alerts.settled(options)
    blocks = [f"<!-- {notice(_SOURCE)} -->", "# Runbook", _INTRO, "## Alerts", _contents(settled)]
    for alert in settled:
        blocks += [f"### {alert.name}", *_alert(alert)]
    blocks.append("## Causes")
    for cause in vocabulary.CAUSES:
        blocks += [f"### {heading(cause)}", *_cause(cause)]
    return "\n\n".join(blocks) + "\n"


def heading(cause: Cause) -> str:
    """A cause's heading, which alerts name."""
    return f"{cause.verdict}/{cause.name}"


def _link(text: str) -> str:
    return f"[{text}](#{anchor(text)})"


def _contents(settled: tuple[Alert, ...]) -> str:
    lines = ["| alert | severity | says |", "| --- | --- | --- |"]
    for alert in settled:
        severity = alert.severity if alert.enabled else f"{alert.severity}, off"
        lines.append(f"| {_link(alert.name)} | {severity} | {alert.summary} |")
    return "\n".join(lines)


def _parts(means: str, confirm: str, fixes: str, normal: str) -> list[str]:
    return [
        f"**What it means.** {means}",
        f"**Confirm in two minutes.** {confirm}",
        f"**What usually fixes it.** {fixes}",
        f"**When it is normal.** {normal}",
    ]


def _alert(alert: Alert) -> Iterator[str]:
    off = "" if alert.enabled else " It is off until you enable it."
    yield f"{alert.summary}. Severity `{alert.severity}`.{off}"
    yield f"**It fires when:** {alert.fires}"
    yield from _parts(alert.means, alert.confirm, alert.fixes, alert.normal)
    yield f"**Next step.** {alert.next_step}"
    own = causes(alert)
    if own:
        yield f"**Causes:** {', '.join(_link(heading(cause)) for cause in own)}"
    yield _options(alert)


def _options(alert: Alert) -> str:
    """The options that change it, with their values."""
    values = [f"`severity: {alert.severity}`"]
    if alert.threshold:
        values.append(f"`threshold: {alert.threshold.value:g}` ({alert.threshold.meaning})")
    if alert.window_s:
        values.append(f"`window_seconds: {alert.window_s}`")
    values += [f"`for_seconds: {alert.for_s}`", f"`enabled: {str(alert.enabled).lower()}`"]
    return f"**Options of `render.alerts.{alert.name}`:** {', '.join(values)}."


def _cause(cause: Cause) -> Iterator[str]:
    play = playbook.PLAY_BY_KEY[cause.key]
    first, *others = (step.replace("{gpu}", "GPU").replace("{pid}", "PID") for step in play.steps)
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(others, 1))
    yield from _parts(
        f"{cause.meaning[0].upper()}{cause.meaning[1:]}.",
        f"{first} {play.confirm}",
        f"In this order:\n\n{steps}" if others else first,
        play.when_normal,
    )
    named = [alert.name for alert in alerts.ALERTS if cause in causes(alert)]
    if named:
        yield f"**Alerts:** {', '.join(map(_link, named))}"


def causes(alert: Alert) -> tuple[Cause, ...]:
    """The causes that an alert is about."""
    return tuple(
        cause
        for cause in vocabulary.CAUSES
        if cause.verdict == alert.verdict and (not alert.causes or cause.name in alert.causes)
    )
