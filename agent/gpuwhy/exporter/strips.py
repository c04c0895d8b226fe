"""The last hours of each GPU for the status page: what was judged, and the signals that it was judged by.

The last minutes have a row for each interval, and what is older one for each half minute, so that any interval
reaches back as far. A row is kept as the JSON that the page is sent, about 100 bytes: four hours of eight GPUs
stay below 1 MiB.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuwhy.exporter.snapshot import GpuKey
from gpuwhy.verdict.types import CauseKey, Verdict
from gpuwhy.verdict.vocabulary import CAUSES

RECENT_S = 240.0
MOST_RECENT = 240  # a fast replay has more
MERGED_S = 30.0
SPAN_S = 4 * 3600.0
MOST_ROWS = MOST_RECENT + int(SPAN_S / MERGED_S)
_GAP_S = 1.0  # rows that are further apart are not made one
CODE: dict[CauseKey, int] = {cause.key: code for code, cause in enumerate(CAUSES)}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A signal that is drawn under the verdicts: ``scale`` and ``digits`` make a row's number of its value.

    ``limit`` is the field of ``GpuFacts`` with the most that it can be, "" where the unit says that or nobody knows.
    """

    signal: str
    title: str
    unit: str
    scale: float = 1.0
    digits: int = 3
    limit: str = ""

    def number(self, value: float | None) -> float | None:
        """A value in the unit that is drawn."""
        return None if value is None or not math.isfinite(value) else self.rounded(value * self.scale)

    def rounded(self, number: float) -> float:
        """A number of that unit as rows have it."""
        return round(number, self.digits) if self.digits else round(number)


DRAWN: tuple[Drawn, ...] = (
    Drawn("gpu_util_ratio", "GPU-Util", "%", 100.0, 1),  # first: what people looked at until now
    Drawn("graphics_active_ratio", "Engine active", "%", 100.0, 1),
    Drawn("sm_active_ratio", "SMs active", "%", 100.0, 1),
    Drawn("tensor_active_ratio", "Tensor cores", "%", 100.0, 1),
    Drawn("dram_active_ratio", "DRAM active", "%", 100.0, 1),
    Drawn("power_watts", "Power", "W", 1.0, 0, "power_limit_watts"),
    Drawn("sm_clock_hertz", "SM clock", "MHz", 1e-6, 0, "sm_clock_max_hertz"),
    Drawn("process_tree_hottest_thread_cores", "Hottest thread", "cores", 1.0, 2),
)


@dataclass(frozen=True, slots=True)
class Strip:
    """One GPU: its newest interval, since when it is shown as it is (unix seconds), and its rows, oldest first."""

    latest: Verdict
    since_s: float
    rows: tuple[msgspec.Raw, ...]


class Strips:
    """Bounded rings, one per GPU, filled by the daemon and read by requests; safe from any thread.

    A row is ``[serial, unix end, seconds, place in CAUSES, a number or null per DRAWN]``. One that was merged has
    the last serial of its intervals, the verdict that had most of its seconds, and means over those seconds that
    the signal was read in. Serials grow over all GPUs; they count within one ``run``, which is a name that no
    other start of the agent has.
    """

    def __init__(self) -> None:
        self.run = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._serial = 0
        self._gpus: dict[GpuKey, _Ring] = {}

    def add(self, verdicts: Sequence[Verdict], shown: Mapping[GpuKey, Verdict]) -> None:
        """Keeps one interval; ``shown`` is what each GPU is shown to be after it."""
        with self._lock:
            for verdict in verdicts:
                self._add(verdict, shown.get(verdict.gpu.key, verdict))

    def forget(self, key: GpuKey) -> None:
        """Drops a GPU that is gone."""
        with self._lock:
            self._gpus.pop(key, None)

    def newer(self, serial: int = 0) -> tuple[int, dict[GpuKey, Strip]]:
        """The newest serial, and each GPU with its rows after ``serial``."""
        with self._lock:
            newest = self._serial
            copies = {key: (ring.latest, ring.since_s, ring.rows()) for key, ring in self._gpus.items()}
        return newest, {
            key: Strip(latest, since_s, _after(rows, serial))
            for key, (latest, since_s, rows) in copies.items()
        }

    def _add(self, verdict: Verdict, shown: Verdict) -> None:
        length = verdict.end_s - verdict.start_s
        ring = self._gpus.get(verdict.gpu.key)
        if ring is not None and ring.latest.unix_end_s < verdict.unix_end_s:
            # A fast replay has seconds of the recording in less time than that.
            length = min(length, verdict.unix_end_s - ring.latest.unix_end_s)
        began = verdict.unix_end_s - length
        if ring is None:
            ring = self._gpus[verdict.gpu.key] = _Ring(verdict, began, shown.verdict, began)
        if ring.latest.verdict != verdict.verdict:
            ring.began_s = began
        ring.latest = verdict
        if ring.shown != shown.verdict:
            # A change is shown some intervals late: it began with the first of those that made it.
            ring.shown, ring.since_s = shown.verdict, ring.began_s
        self._serial += 1
        numbers = (drawn.number(verdict.signals.get(drawn.signal)) for drawn in DRAWN)
        code = CODE.get(verdict.key)
        ring.add((self._serial, round(verdict.unix_end_s, 1), round(length, 1), code, *numbers))


@dataclass(slots=True)
class _Ring:
    """One GPU; ``began_s`` is when its intervals became what the latest is, ``since_s`` when ``shown`` did."""

    latest: Verdict
    began_s: float
    shown: str
    since_s: float
    recent: deque[bytes] = field(default_factory=deque)
    merging: list[list[Any]] = field(default_factory=list)
    merged: deque[bytes] = field(default_factory=lambda: deque(maxlen=int(SPAN_S / MERGED_S)))

    def add(self, row: tuple[float | None, ...]) -> None:
        self.recent.append(msgspec.json.encode(row))
        now_s = self.latest.unix_end_s
        while len(self.recent) > MOST_RECENT or _numbers(self.recent[0])[1] < now_s - RECENT_S:
            self._merge(msgspec.json.decode(self.recent.popleft()))
        while self.merged and _numbers(self.merged[0])[1] < now_s - SPAN_S:
            self.merged.popleft()

    def rows(self) -> tuple[bytes, ...]:
        """All of them, oldest first."""
        return (*self.merged, *([_as_one(self.merging)] if self.merging else []), *self.recent)

    def _merge(self, row: list[Any]) -> None:
        if self.merging:
            _, end, *_ = self.merging[-1]
            if end // MERGED_S != row[1] // MERGED_S or row[1] - row[2] > end + _GAP_S:
                self.merged.append(_as_one(self.merging))
                self.merging = []
        self.merging.append(row)


def _as_one(rows: list[list[Any]]) -> bytes:
    seconds: Counter[int | None] = Counter()
    for row in rows:
        seconds[row[3]] += row[2]
    numbers = [_mean([(row[4 + place], row[2]) for row in rows], drawn) for place, drawn in enumerate(DRAWN)]
    serial, end, *_ = rows[-1]
    code = max(seconds, key=seconds.__getitem__)
    return msgspec.json.encode((serial, end, round(sum(seconds.values()), 1), code, *numbers))


def _mean(values: list[tuple[float | None, float]], drawn: Drawn) -> float | None:
    read = [(value, seconds) for value, seconds in values if value is not None and seconds]
    if not read:
        return None
    return drawn.rounded(sum(value * s for value, s in read) / sum(s for _, s in read))


def _after(rows: tuple[bytes, ...], serial: int) -> tuple[msgspec.Raw, ...]:
    start = len(rows) if serial else 0
    while start and _numbers(rows[start - 1])[0] > serial:
        start -= 1
    return tuple(map(msgspec.Raw, rows[start:]))


def _numbers(row: bytes) -> tuple[int, float]:
    """The serial and the end of a row."""
    serial, end, _ = row[1:].split(b",", 2)
    return int(serial), float(end)
