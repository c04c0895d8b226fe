"""What an alert is, and what the user's options make of it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gpuwhy.config import AlertOverride, ConfigError, RenderConfig, Severity
from gpuwhy.recorded import HOST, ROW
from gpuwhy.render.promql import Promql, duration


@dataclass(frozen=True, slots=True)
class Threshold:
    """The number that an alert compares with: what it is, its unit, and between what it makes sense."""

    value: float
    meaning: str
    unit: Literal["ratio", "seconds", "count"]
    least: float
    most: float

    def __str__(self) -> str:
        return duration(self.value) if self.unit == "seconds" else f"{self.value:.4g}"


def share_of_window(value: float) -> Threshold:
    """A dose: it grows and shrinks with the window, so that either may be changed alone."""
    return Threshold(value, "share of the window that the verdict has to hold for", "ratio", 0.01, 0.95)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, as it is rendered.

    ``by`` are the labels that tell its instances apart; ``ROW`` and ``HOST`` stand for those of the
    configuration. ``expr`` and ``description`` read the numbers of the alert that they are given.
    ``claim`` says when it fires; it may hold ``{threshold}``, ``{window}``, ``{dose}`` (the share of the
    window, in seconds) and ``{hold}``. ``verdict`` and ``causes`` are what it is about, "" and none where it
    is about something else; ``said`` is how the text says that, "" for "was" and the verdict. ``window_s`` is 0 for an alert that looks at now only, ``least_window_s`` the
    shortest window that has data. ``summary`` and ``next_step`` hold no number; ``means``, ``confirm``,
    ``fixes`` and ``normal`` are its part of the runbook.
    """

    name: str
    severity: Severity
    summary: str
    by: tuple[str, ...]
    claim: str
    expr: Callable[[Alert, Promql], str]
    description: Callable[[Alert, Promql], str]
    next_step: str
    means: str
    confirm: str
    fixes: str
    normal: str
    verdict: str = ""
    said: str = ""
    causes: tuple[str, ...] = ()
    threshold: Threshold | None = None
    window_s: int = 0
    least_window_s: int = 10
    for_s: int = 0
    enabled: bool = True
    dashboard: Literal["host", "workloads", "itself"] = "host"
    every: str = "1m"

    @property
    def window(self) -> str:
        return duration(self.window_s)

    @property
    def limit(self) -> float:
        """The threshold's number; raises where there is none."""
        if self.threshold is None:
            raise ValueError(f"{self.name} compares with nothing")
        return self.threshold.value

    @property
    def dose_s(self) -> float:
        """The seconds that a share of the window is."""
        return round(self.limit * self.window_s, 3)

    @property
    def fires(self) -> str:
        """The claim, with its numbers."""
        threshold = self.threshold
        return self.claim.format(
            threshold=threshold,
            window=self.window,
            dose=duration(self.dose_s) if threshold else "",
            hold=duration(self.for_s),
        )

    def labels(self, promql: Promql) -> tuple[str, ...]:
        """The labels of its instances, without the fixed ones."""
        named = {ROW: promql.row, HOST: (promql.host,)}
        return tuple(label for name in self.by for label in named.get(name, (name,)))

    def overridden(self, options: AlertOverride) -> Alert:
        """Itself with what the user says is different; a threshold needs one to replace."""
        threshold = self.threshold
        if threshold is not None and options.threshold is not None:
            threshold = replace(threshold, value=options.threshold)
        return replace(
            self,
            enabled=self.enabled if options.enabled is None else options.enabled,
            severity=options.severity or self.severity,
            threshold=threshold,
            window_s=options.window_seconds or self.window_s,
            for_s=self.for_s if options.for_seconds is None else options.for_seconds,
        )


def settle(alerts: Iterable[Alert], options: RenderConfig) -> tuple[Alert, ...]:
    """The alerts under the options, in their order, disabled ones too.

    Raises ConfigError with every override that fits no alert.
    """
    by_name = {alert.name: alert for alert in alerts}
    problems = [
        problem for name, each in options.alerts.items() for problem in _problems(name, each, by_name)
    ]
    if problems:
        raise ConfigError(problems)
    same = AlertOverride()
    return tuple(alert.overridden(options.alerts.get(alert.name, same)) for alert in by_name.values())


def _problems(name: str, given: AlertOverride, known: dict[str, Alert]) -> Iterator[str]:
    key = f"render.alerts.{name}"
    if name not in known:
        near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
        hint = f"write {near[0]}" if near else f"use any of {', '.join(known)}"
        yield f"{key} is not known: {hint}, or remove it"
        return
    alert = known[name]
    threshold, window = given.threshold, given.window_seconds
    if threshold is not None and alert.threshold is None:
        yield f"{key}.threshold is set, and that alert compares with none: remove it"
    elif threshold is not None and alert.threshold is not None:
        least, most = alert.threshold.least, alert.threshold.most
        if not least <= threshold <= most:
            yield f"{key}.threshold is {threshold:g}, the {alert.threshold.meaning}: set it between {least:g} and {most:g}"
    if window is not None and not alert.window_s:
        yield f"{key}.window_seconds is set, and that alert looks at now only: remove it"
    elif window is not None and window < alert.least_window_s:
        yield f"{key}.window_seconds is {window}, which has no data: set it to {alert.least_window_s} or more"
