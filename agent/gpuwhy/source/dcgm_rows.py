"""One row of what a DCGM engine has: what a code, a blank and an old value mean for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from gpuwhy.source.dcgm_bindings import Answer, EngineError, explained
from gpuwhy.source.dcgm_fields import FIELDS, Field
from gpuwhy.source.reading import Capability, GpuFacts, Part

DCGM = "dcgm"  # the part's name

PAUSED_READS = 3  # of profiling values that are all blank; one alone is a window that GPM has missed
EMPTY_READS = 15  # the same for a MIG instance, whose compute instances may have gone: a look tells


class Act(Enum):
    """What to do about an error code."""

    GONE = auto()  # the connection is dead, or of no use: begin anew
    UNWATCHED = auto()  # likewise; or a MIG instance is gone
    DOWN = auto()  # the GPU is gone
    BUSY = auto()  # not now: somebody else has the counters
    LATER = auto()  # not now
    ABSENT = auto()  # nothing of this kind, whichever field: the others need not be tried
    NEVER = auto()  # not this field


# By DCGM's names. A code that is not here costs a value, or at a watch the field.
ACTS: Mapping[str, Act] = {
    "CONNECTION_NOT_VALID": Act.GONE,
    "UNINITIALIZED": Act.GONE,
    "NVML_NOT_LOADED": Act.GONE,
    "MAX_LIMIT": Act.GONE,
    "DUPLICATE_KEY": Act.GONE,
    "NOT_WATCHED": Act.UNWATCHED,
    "INSTANCE_NOT_FOUND": Act.UNWATCHED,
    "COMPUTE_INSTANCE_NOT_FOUND": Act.UNWATCHED,
    "GPU_IS_LOST": Act.DOWN,
    "RESET_REQUIRED": Act.DOWN,
    "GPUS_DETACHED": Act.DOWN,
    "PROFILING_LIBRARY_ERROR": Act.BUSY,
    "IN_USE": Act.BUSY,
    "PAUSED": Act.BUSY,
    "GENERIC_ERROR": Act.LATER,
    "MEMORY": Act.LATER,
    "INSUFFICIENT_RESOURCES": Act.LATER,
    "NVML_ERROR": Act.LATER,
    "NVML_DRIVER_TIMEOUT": Act.LATER,
    "MODULE_NOT_LOADED": Act.ABSENT,
    "GPU_NOT_SUPPORTED": Act.ABSENT,
    "REQUIRES_ROOT": Act.ABSENT,
    "NO_PERMISSION": Act.ABSENT,
    "PROFILING_NOT_SUPPORTED": Act.NEVER,
    "NOT_SUPPORTED": Act.NEVER,
    "UNKNOWN_FIELD": Act.NEVER,
    "FIELD_UNSUPPORTED_BY_API": Act.NEVER,
    "FUNCTION_NOT_FOUND": Act.NEVER,
}
_PASSES = {Act.UNWATCHED, Act.DOWN, Act.BUSY, Act.LATER}

# What a blank means, as codes: base + 0..3 (dcgm_structs.h). An int64 field may hold an int32's blank.
BLANKS = ("NO_DATA", "NOT_FOUND", "NOT_SUPPORTED", "NO_PERMISSION")
_INT32_BLANK, _INT64_BLANK, _FP64_BLANK = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2.0**47


def passes(code: str) -> bool:
    """Whether what is refused with ``code`` is worth another try before the engine is another one."""
    return ACTS.get(code) in _PASSES


def ends(error: EngineError) -> bool:
    """Whether a call that failed says that the connection is of no use. A driver may time out, too."""
    return ACTS.get(error.code) is Act.GONE or error.code == "TIMEOUT"


def blank(value: Any) -> str:
    """Which of ``BLANKS`` a value of DCGM is, "" = it is a number."""
    if isinstance(value, float):
        if value < _FP64_BLANK:
            return ""
        kind = 0.0 if math.isnan(value) else value - _FP64_BLANK
    elif not isinstance(value, int):
        return BLANKS[0]
    elif value >= _INT64_BLANK:
        kind = value - _INT64_BLANK
    elif 0 <= value - _INT32_BLANK < len(BLANKS):
        kind = value - _INT32_BLANK
    else:
        return ""
    return BLANKS[int(kind)] if kind in {0, 1, 2, 3} else BLANKS[0]


@dataclass(slots=True, eq=False)
class Row:
    """A GPU, the board of one that is split, or a MIG instance.

    ``live`` are the fields that are asked. ``lacking`` and ``refused`` say why a field has no value: for
    now, and for good. ``seen`` is when the engine took what was handed on last.
    """

    facts: GpuFacts
    entity: Any
    wanted: tuple[Field, ...]
    fresh_s: float
    live: dict[int, Field] = field(default_factory=dict)
    lacking: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    down: str = ""
    busy: str = ""
    unwatched: str = ""
    stale: int = 0
    _news: dict[int, tuple[int, Any]] = field(default_factory=dict)
    _profiled: bool = False
    _unprofiled: int = 0
    _counted_s: float = -math.inf

    def allow(self, fields: Iterable[Field]) -> None:
        """Fields that are watched from now on."""
        for wanted in fields:
            if wanted.id not in self.refused:
                self.live[wanted.id] = wanted
                self.lacking.pop(wanted.id, None)

    def deny(self, numbers: Iterable[int], code: str) -> None:
        """Fields that are not to be asked."""
        for number in numbers:
            self.live.pop(number, None)
            (self.lacking if passes(code) else self.refused)[number] = explained(code)

    def take(self, answers: Sequence[Answer], now: float, period_s: float) -> None:
        """Looks through the engine's answers.

        Raises:
            EngineError: it no longer reads the driver.
        """
        self._news = {}
        self.down = self.busy = self.unwatched = ""
        values = profiling = 0
        for answer in answers:
            number = answer.field
            code = answer.status or blank(answer.value)
            if code:
                self._note(number, code)
                continue
            values += 1
            profiling += self.live[number].profiles
            if answer.ts != self.seen.get(number, 0):  # 0 = it has no time
                self._news[number] = (answer.ts, answer.value)
                self.lacking.pop(number, None)
        counts = now - self._counted_s >= period_s / 2  # one that comes sooner tells nothing more
        if counts:
            self._counted_s = now
        self.stale = 0 if self._news else self.stale + counts
        had = any(self.live[number].group == "profiling" for number in self.served & self.live.keys())
        self._unprofiled = self._unprofiled + counts if had and values and not profiling else 0
        if self._unprofiled >= (EMPTY_READS if self.facts.mig else PAUSED_READS):
            self.busy = self.busy or explained("PAUSED")

    def _note(self, number: int, code: str) -> None:
        act = ACTS.get(code)
        if act is Act.GONE:
            raise EngineError("dcgmEntitiesGetLatestValues", code)
        self.lacking[number] = explained(code)
        if act is Act.UNWATCHED:
            self.unwatched = code
        elif act is Act.DOWN:
            self.down = explained(code)
        elif act is Act.BUSY:
            self.busy = explained(code)
        elif act in {Act.ABSENT, Act.NEVER} and number not in self.served:
            # One that was served has met a number that looks like a blank, or what may pass.
            self.deny([number], code)

    def part(self, now: float, period_s: float) -> Part | None:
        """What is new, for the time since the last. When profiling values are late, all wait, for one tick."""
        news, self._news = self._news, {}
        if any(self.live[number].profiles for number in news):
            self._profiled = True
        elif self._profiled and now - self.fresh_s < 1.5 * period_s:
            return None
        else:
            self._profiled = False
        if not news:
            return None
        self.seen.update((number, when) for number, (when, _) in news.items())
        self.served.update(news)
        span_s, self.fresh_s = min(now - self.fresh_s, 2 * period_s), now
        values = {self.live[number].name: value for number, (_, value) in news.items()}
        return Part(DCGM, values, span_s=span_s if span_s > 0 else period_s)

    def capabilities(self, down: str) -> dict[str, Capability]:
        """By raw name: whether there is a value, or why not."""
        found = {}
        for any_field in FIELDS:
            number = any_field.id
            reason = down or self.refused.get(number) or self.lacking.get(number, "")
            if any_field not in self.wanted:
                reason = "each MIG instance has its own" if any_field.slice else "the whole board has it"
            elif not reason and number not in self.served:
                reason = "no value yet"
            found[any_field.name] = Capability(None, reason) if reason else Capability(DCGM)
        return found
