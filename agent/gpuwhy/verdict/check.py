"""A test of one reading against one limit: whether it passed, by how much, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwhy.verdict.types import Evidence

FULL_MARGIN = 0.20  # this far beyond a limit, a reading decides as well as any


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold with the reason for its value. Rules keep theirs as module constants; the docs list them."""

    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome; false where it failed or the reading is missing. ``margin`` is 0.5 at the limit, 1 well beyond."""

    passed: bool
    margin: float = 0.0
    evidence: Evidence | None = None

    def __bool__(self) -> bool:
        return self.passed


MISSING = Check(passed=False)


def at_least(signal: str | None, value: float | None, limit: Limit | float) -> Check:
    return _check(signal, value, limit, ">=")


def below(signal: str | None, value: float | None, limit: Limit | float) -> Check:
    return _check(signal, value, limit, "<")


def shown(check: Check, *found: Evidence) -> Check:
    """The same outcome, with evidence in the unit of what was read in place of what was computed from it."""
    return replace(check, evidence=found[0] if found else None)


def _check(signal: str | None, value: float | None, limit: Limit | float, operator: str) -> Check:
    if signal is None or value is None:
        return MISSING
    threshold = limit.value if isinstance(limit, Limit) else limit
    beyond = (value - threshold) / threshold if threshold else float(value > threshold)
    if operator == "<":
        beyond = -beyond
    passed = beyond > 0 if operator == "<" else beyond >= 0
    margin = min(1.0, 0.5 + 0.5 * beyond / FULL_MARGIN) if passed else 0.0
    return Check(passed, margin, Evidence(signal, value, f"{operator} {threshold:.4g}"))


def margin(*checks: Check) -> float:
    """The weakest of the checks that passed; 1 where none did."""
    return min((check.margin for check in checks if check), default=1.0)


def evidence(*checks: Check) -> tuple[Evidence, ...]:
    return tuple(check.evidence for check in checks if check and check.evidence is not None)
