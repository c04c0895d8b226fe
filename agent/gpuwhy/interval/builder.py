"""Samples to intervals: tumbling windows on the monotonic clock, the same for all GPUs of a host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwhy.interval.interval import Interval, Portion, Stat
from gpuwhy.sample import Sample, Share, Tenant, Workload
from gpuwhy.sample.signals import DEVICE
from gpuwhy.source import GpuFacts, Reading
from gpuwhy.workload.directory import BROKER, OTHER, PENDING, UNKNOWN

DEFAULT_INTERVAL_S = 5.0
STEADY = 0.2  # of a slow source's period: how far it may wander
SILENT_PERIODS = 3  # after which a slow source is waited for no more
MOST_PORTIONS = 64  # of one GPU: what is more is other
TAIL = 0.5  # of an interval: a shorter end joins the interval before it
_DUST_S = 1e-6  # Unix times, the clock of rows without another one, have steps of 2.4e-7

Key = tuple[str, str]
NameOf = Callable[[int], Tenant | None]


_OF_DEVICES = frozenset(signal.name for signal in DEVICE)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a sample that falls into an interval: seconds, and their share of all it speaks for."""

    sample: Sample
    seconds: float
    share: float


@dataclass(slots=True)
class _Span:
    """An interval in the making, all GPUs of the host."""

    start_s: float
    end_s: float
    unix_end_s: float
    pieces: dict[Key, list[_Piece]]
    gpus: Mapping[Key, GpuFacts]
    up: frozenset[Key]

    def join(self, tail: _Span) -> None:
        for key, pieces in tail.pieces.items():
            self.pieces.setdefault(key, []).extend(pieces)
        self.gpus = {**self.gpus, **tail.gpus}
        self.end_s, self.unix_end_s, self.up = tail.end_s, tail.unix_end_s, tail.up

    def intervals(self, name_of: NameOf) -> list[Interval]:
        return [_interval(self, key, self.pieces.get(key, ()), name_of) for key in self.gpus]


class IntervalBuilder:
    """Cuts one host's samples into intervals; every GPU of the host has the same borders.

    Intervals lie end to end from the first reading's start, and again from where the clock itself began
    anew. ``interval_s`` is stretched to twice the source's period. A restart ends an interval early, so
    that none mixes two runs. Where some source is slower than the readings, an interval closes that much
    later, because what that source says of it comes as late. With ``hold`` the newest interval is kept back until the next is whole, so
    that a short tail can be joined to it; without, a tail is an interval of its own.
    """

    def __init__(
        self, interval_s: float = DEFAULT_INTERVAL_S, *, hold: bool = False, name_of: NameOf = lambda _: None
    ) -> None:
        """``name_of`` says whose a pid is that was not known when its sample was taken."""
        self._interval_s = interval_s
        self._name_of = name_of
        self._hold = hold
        self._held: _Span | None = None
        self._start_s: float | None = None
        self._length_s = interval_s
        self._last_s = 0.0
        self._pieces: dict[Key, list[_Piece]] = {}
        self._pending: list[_Piece] = []  # of intervals to come
        self._slow: dict[tuple[Key, str], tuple[float, float]] = {}  # by source: its period, waited for until
        self._newest: Reading | None = None
        self._gpus: dict[Key, GpuFacts] = {}
        self._seen: dict[Key, tuple[float, float]] = {}  # by row: from when to when it was there
        self._up: frozenset[Key] = frozenset()

    @property
    def length_s(self) -> float:
        """Length of the interval in the making."""
        return self._length_s

    def add(self, reading: Reading, samples: Sequence[Sample]) -> list[list[Interval]]:
        """The intervals that this reading completes, oldest first, each a list of all GPUs."""
        end = reading.end_s
        if not math.isfinite(end):
            return []
        done: list[list[Interval]] = []
        if reading.restart:
            done = self._cut()
            if end <= self._last_s:
                self._start_s = None
        if self._start_s is None:
            self._start_s = self._last_s = end - min(reading.span_s, 2 * reading.period_s)
        if end <= self._last_s:
            return done
        self._note_slow(reading, samples)
        self._note_gpus(reading)
        # The processes, which are many, are not needed any more.
        self._pending += [
            _Piece(replace(sample, host=None), sample.end_s - max(sample.start_s, self._start_s), 1.0)
            for sample in samples
        ]
        self._last_s, self._newest = end, replace(reading, gpus=(), host=None)
        return done + self._close_until(end - self._lag_s)

    def advance(self, now_s: float, unix_s: float, period_s: float) -> list[list[Interval]]:
        """Closes what has ended by ``now_s`` though no reading came: that time is a gap.

        What a reading that comes now could still speak for stays open.
        """
        end = now_s - 2 * period_s
        if self._start_s is None or end < self._start_s + self._length_s:
            return []
        return self.add(Reading(end, unix_s - 2 * period_s, period_s, period_s, gpus=()), [])

    def _note_slow(self, reading: Reading, samples: Sequence[Sample]) -> None:
        """Remembers sources that are slower than the readings, for as long as they have something to say."""
        before = self._lag_s
        for sample in samples:
            for source in set(sample.sources.values()):
                if sample.period_s > reading.period_s:
                    until = reading.end_s + SILENT_PERIODS * sample.period_s
                    # Measured, and never the same twice: intervals keep their length until it really changes.
                    period, _ = self._slow.get((sample.gpu.key, source), (sample.period_s, 0.0))
                    if abs(period - sample.period_s) > STEADY * period:
                        period = sample.period_s
                    self._slow[sample.gpu.key, source] = (period, until)
                elif self._slow:
                    self._slow.pop((sample.gpu.key, source), None)
        if self._slow:
            self._slow = {key: slow for key, slow in self._slow.items() if slow[1] >= reading.end_s}
        if self._lag_s < before and self._start_s is not None:
            # What was begun for a slower source ends here, if it is longer than it need be.
            self._length_s = max(self._length(reading), self._last_s - self._start_s)

    def _note_gpus(self, reading: Reading) -> None:
        if not self._gpus:
            self._length_s = self._length(reading)
        present = {gpu.facts.key: gpu.facts for gpu in reading.gpus}
        self._gpus.update(present)
        for key in present:
            first, _ = self._seen.get(key, (reading.end_s - reading.span_s, 0.0))
            self._seen[key] = (first, reading.end_s)
        if present:
            self._up = frozenset(gpu.facts.key for gpu in reading.gpus if gpu.up)

    def finish(self) -> list[list[Interval]]:
        """The last intervals. A tail of less than half an interval joins the one before it, if that is held."""
        done = self._cut()
        self._start_s = None
        return done

    def _length(self, reading: Reading) -> float:
        return max(self._interval_s, 2 * max(reading.period_s, self._lag_s))

    @property
    def _lag_s(self) -> float:
        """Period of the slowest source, 0 where none is slower than the readings."""
        return max((period for period, _ in self._slow.values()), default=0.0)

    def _close_until(self, late_s: float) -> list[list[Interval]]:
        """Closes what had ended at ``late_s``; what was read of later times stays pending."""
        done: list[list[Interval]] = []
        reading = self._newest
        if reading is None or self._start_s is None:
            return done
        while late_s >= (border := self._start_s + self._length_s) - _DUST_S:
            self._pending = self._put(self._pending, border)
            done += self._close(self._start_s, border, reading)
            # A gap of any length is one interval of no data, not one for each five seconds of it.
            first = min((piece.sample.end_s - piece.seconds for piece in self._pending), default=late_s)
            whole = int((min(first, late_s) - border + _DUST_S) // self._length_s)
            if whole > 1:
                done += self._close(border, border + whole * self._length_s, reading)
        return done

    def _put(self, pieces: Sequence[_Piece], border: float) -> list[_Piece]:
        """Takes what of each piece lies before ``border`` into the interval, and returns what lies after."""
        later: list[_Piece] = []
        for piece in pieces:
            sample, beyond = piece.sample, piece.sample.end_s - border
            if beyond >= piece.seconds - _DUST_S:
                later.append(piece)
                continue
            mine = piece
            if beyond > _DUST_S:
                share = piece.share * beyond / piece.seconds
                mine = _Piece(sample, piece.seconds - beyond, piece.share - share)
                later.append(_Piece(sample, beyond, share))
            self._pieces.setdefault(sample.gpu.key, []).append(mine)
        return later

    def _close(self, start_s: float, border: float, reading: Reading) -> list[list[Interval]]:
        self._length_s = self._length(reading)
        return self._emit(self._span(start_s, border, reading.unix_s - (reading.end_s - border)))

    def _cut(self) -> list[list[Interval]]:
        """Ends the interval in the making where the last reading ended, and lets go of all."""
        done = self._close_until(self._last_s)
        self._pending = self._put(self._pending, math.inf)
        if self._newest is not None and self._start_s is not None and self._last_s - self._start_s > _DUST_S:
            short = self._last_s - self._start_s < TAIL * self._length_s
            tail = self._span(self._start_s, self._last_s, self._newest.unix_s)
            if self._held is not None and short:
                self._held.join(tail)
            else:
                done += self._emit(tail)
        if self._held is not None:
            done.append(self._held.intervals(self._name_of))
        self._held, self._pieces, self._pending, self._gpus, self._seen = None, {}, [], {}, {}
        self._slow = {}
        return done

    def _span(self, start_s: float, end_s: float, unix_end_s: float) -> _Span:
        gpus = {key: facts for key, facts in list(self._gpus.items()) if self._was_there(key, start_s, end_s)}
        span = _Span(start_s, end_s, unix_end_s, self._pieces, gpus, self._up)
        self._start_s, self._pieces = end_s, {}
        return span

    def _was_there(self, key: Key, start_s: float, end_s: float) -> bool:
        """Whether a row is of this time: a MIG slice may be younger, or have been taken apart before.

        A board without one of its slices has lost it for good; a GPU that does not answer stays.
        """
        first, last = self._seen[key]
        board = self._seen.get((key[0], ""))
        if not key[1] or board is None:
            return True
        if board[1] > last and last <= start_s + _DUST_S:
            del self._gpus[key], self._seen[key]
            return False
        return first < end_s - _DUST_S

    def _emit(self, span: _Span) -> list[list[Interval]]:
        if self._hold:
            held, self._held = self._held, span
            return [] if held is None else [held.intervals(self._name_of)]
        return [span.intervals(self._name_of)]


def _interval(span: _Span, key: Key, pieces: Sequence[_Piece], name_of: NameOf) -> Interval:
    values: dict[str, list[float]] = {}
    weights: dict[str, list[float]] = {}
    gains: dict[str, float] = {}
    sources: dict[str, str] = {}
    set_s: dict[str, float] = {}  # by reason, from the bits
    set_in: dict[str, int] = {}
    counted: dict[str, tuple[float, float]] = {}  # by reason, from the counters: in it, read
    read_s = 0.0
    owners: set[int] | None = None
    family: set[str] = set()
    for piece in pieces:
        sample, seconds = piece.sample, piece.seconds
        for name, value in sample.values.items():
            values.setdefault(name, []).append(value)
            weights.setdefault(name, []).append(seconds)
        for name, gain in sample.gains.items():
            gains[name] = gains.get(name, 0.0) + gain * piece.share
        for reason, gain in sample.reason_seconds.items():
            before = counted.get(reason, (0.0, 0.0))
            counted[reason] = (before[0] + gain * min(1.0, seconds / sample.span_s), before[1] + seconds)
        if sample.reasons is not None:
            read_s += seconds
            for reason in sample.reasons:
                set_s[reason] = set_s.get(reason, 0.0) + seconds
                set_in[reason] = set_in.get(reason, 0) + 1
        sources.update(sample.sources)
        if sample.owners is not None:
            owners = (owners or set()).union(sample.owners)
        family |= sample.family
    # The driver's counters see what falls between samples, the bits see what has no counter.
    reasons = {reason: seconds / read_s for reason, seconds in set_s.items()}
    for reason, (seconds, of) in counted.items():
        reasons[reason] = max(reasons.get(reason, 0.0), min(1.0, seconds / of))
    # A signal has one source at a time, so that its seconds are counted once; who owns the GPU is no reading of it.
    device_s = [sum(of) for name, of in weights.items() if name in _OF_DEVICES]
    covered_s = max([*device_s, read_s])
    return Interval(
        gpu=span.gpus[key],
        start_s=span.start_s,
        end_s=span.end_s,
        unix_end_s=span.unix_end_s,
        covered_s=min(covered_s, span.end_s - span.start_s),
        samples=len(pieces),
        stats={name: Stat(tuple(values[name]), tuple(weights[name])) for name in values},
        gains=gains,
        sources=sources,
        reasons=dict(sorted(reasons.items())) if read_s > 0 or counted else None,
        reason_samples=set_in if read_s > 0 else None,
        owners=None if owners is None else frozenset(owners),
        family=frozenset(family),
        portions=_portions(pieces, name_of, covered_s),
        up=key in span.up,
    )


def _portions(pieces: Sequence[_Piece], name_of: NameOf, covered_s: float) -> tuple[Portion, ...]:
    """The parts of workloads in the time for which it is known who held the GPU.

    Where that is less than half of what was read, the rest is nobody's.
    """
    decided = [piece for piece in pieces if piece.sample.shares is not None]
    total = sum(piece.seconds for piece in decided)
    if total < covered_s / 2:
        total = covered_s
    held: dict[Workload, dict[str, float]] = {}
    tenants: dict[Workload, dict[Tenant, None]] = {}
    whose: dict[Workload, list[tuple[float, Share]]] = {}
    for piece in decided:
        for share in _settled(piece.sample.shares or (), name_of):
            workload, runs = share.workload, share.tenants
            by_basis = held.setdefault(workload, {})
            by_basis[share.basis] = by_basis.get(share.basis, 0.0) + share.ratio * piece.seconds
            tenants.setdefault(workload, {}).update(dict.fromkeys(runs))
            whose.setdefault(workload, []).append((piece.seconds, share))
    portions = [
        Portion(
            workload,
            min(1.0, sum(by_basis.values()) / total),
            max(by_basis, key=lambda basis: by_basis[basis]),
            tuple(tenants[workload]),
            # Alone its signals are the interval's.
            _stats(whose[workload]) if len(held) > 1 else {},
        )
        for workload, by_basis in held.items()
    ]
    if len(portions) <= MOST_PORTIONS:
        return tuple(portions)
    portions.sort(key=lambda portion: -portion.ratio)
    rest = sum(portion.ratio for portion in portions[MOST_PORTIONS - 1 :])
    return (*portions[: MOST_PORTIONS - 1], Portion(OTHER, min(1.0, rest), portions[-1].basis))


def _settled(shares: Sequence[Share], name_of: NameOf) -> Sequence[Share]:
    """The shares with those named who were being found out when the sample was taken."""
    if all(share.workload.kind != PENDING for share in shares):
        return shares
    settled: list[Share] = []
    for share in shares:
        if share.workload.kind != PENDING:
            settled.append(share)
            continue
        tenant = name_of(int(share.workload.name)) or UNKNOWN
        # Who cannot be seen may be whom the GPU was granted to.
        stands_for = share.tenants if tenant is UNKNOWN else (tenant,)
        if tenant is not BROKER:
            settled.append(replace(share, workload=stands_for[0].workload, tenants=stands_for))
    left = sum(share.ratio for share in settled)
    return [replace(share, ratio=share.ratio / left) for share in settled] if left > 0 else settled


def _stats(shares: Sequence[tuple[float, Share]]) -> dict[str, Stat]:
    values: dict[str, tuple[list[float], list[float]]] = {}
    for seconds, share in shares:
        for name, value in share.values.items():
            of, weights = values.setdefault(name, ([], []))
            of.append(value)
            weights.append(seconds)
    return {name: Stat(tuple(of), tuple(weights)) for name, (of, weights) in values.items()}
