"""Chooses, per GPU and signal, among the sources of this host, and steps down and up as they go and come.

Each source is a rung with a thread of its own, so that one that hangs costs what it served and nothing
else. A signal is taken from the highest rung that served it of late; what rungs below say of it is left
out, and they are told so that they need not ask. To add a source, add its rung in ``daemon.rungs``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpuwhy.source.reading import (
    Capability,
    DriverMismatchError,
    GpuFacts,
    GpuReading,
    NoGpuError,
    Part,
    Reading,
    SourceError,
)

log = logging.getLogger(__name__)

Key = tuple[str, str]

RETRY_S, RETRY_MAX_S = 1.0, 60.0
PATIENCE = 0.25  # of a tick, for sources that answer in time
LOST_PERIODS = 3  # without news, after which the next rung takes over
SELDOM_S = 60.0  # the same for counters, some of which are read every ten seconds
REFUSE_S = 20.0  # without an answer, after which a source is none at the start
OPEN_S = 10.0  # some drivers take seconds to initialise
STAND_IN_S = 5.0  # of a lack, after which a stand-in is asked: its intervals are long
GRACE_S = 3.0  # that a start waits for better sources when one has opened
CLOSE_S = 0.3
PROVEN_S = 60.0  # that a source must have answered for its next failure to be retried soon
SETS = 64  # of signals whose raw names are kept
SAY_EVERY_S = 60.0  # the same loss
HANGS = 3  # ticks without an answer


class Source(Protocol):
    """What reads GPUs; all its methods are called from one thread, and any may hang.

    ``start`` and ``read`` raise SourceError; ``close`` never does. ``yielding`` says why its profiling
    values are away on purpose, "" while they are not.
    """

    name: str
    period_s: float
    yielding: str

    def start(self) -> tuple[GpuFacts, ...]: ...

    def read(self) -> Reading: ...

    def close(self) -> None: ...

    def capabilities(self) -> Mapping[Key, Mapping[str, Capability]]: ...

    def advice(self) -> tuple[str, ...]: ...


class Sparing(Protocol):
    """A source that need not ask what another one serves: raw names by GPU."""

    spared: Mapping[Key, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Rung:
    """A source's place.

    ``hint`` says where to look when it hangs. ``required``: without it there is no start. ``spares``: told what the rungs above it serve.
    ``stand_in``: asked only while some GPU lacks what the ladder ``needs``.
    """

    source: Source
    hint: str = "see the kernel log"
    required: bool = False
    spares: Sparing | None = None
    stand_in: bool = False


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source is.

    ``up`` = it answers; ``used`` = it has answered, or must; ``reason`` says why it does not;
    ``period_s`` is how often it has new values.
    """

    up: bool
    used: bool = True
    reason: str = ""
    period_s: float = field(default=0.0, compare=False)
    yielding: str = ""


class _Worker:
    """One rung's thread: opens its source, reads when told to, and tries again with back-off."""

    def __init__(self, rung: Rung, clock: Callable[[], float], changed: threading.Condition) -> None:
        self.rung = rung
        self.name = rung.source.name
        self.reading: Reading | None = None  # until it is taken
        self.up = self.seen = False
        self.settled = False  # the first start has come to an end
        self.error: BaseException | None = None
        self.fatal: BaseException | None = None
        self.asked_s: float | None = None  # when it was told to go, until it comes back
        self.hangs = False
        self.idle = rung.stand_in
        self.capabilities: Mapping[Key, Mapping[str, Capability]] = {}
        self.advice: tuple[str, ...] = ()
        self.wants_capabilities = False
        self._clock = clock
        self._changed = changed
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._retry_s = RETRY_S
        self._retry_at_s = 0.0
        self._up_since_s = 0.0
        self._told = ""
        self._told_s = -math.inf
        self._told_lost = False
        self.thread = threading.Thread(target=self._run, name=f"gpuwhy-{self.name}", daemon=True)

    def go(self) -> None:
        """Lets it read once, where it is not at it and what it read last has been taken."""
        resting = self.settled and (self.idle or (not self.up and self._clock() < self._retry_at_s))
        if self.asked_s is None and self.reading is None and not resting:
            self.asked_s = self._clock()
            self._wake.set()

    def take(self) -> Reading | None:
        """What it has read since this was asked last."""
        with self._changed:
            reading, self.reading = self.reading, None
        return reading

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def watch(self, longest_s: float) -> None:
        """Notes, and says once, that a call does not come back."""
        since = self.asked_s
        hangs = since is not None and self._clock() - since > longest_s
        if hangs and not self.hangs:
            log.error("%s does not answer: a call hangs; %s", self.name, self.rung.hint)
        elif self.hangs and not hangs and self.up:
            log.info("%s answers again", self.name)
        self.hangs = hangs

    def state(self) -> SourceState:
        up = self.up and not self.hangs
        idle = self.idle and self.settled
        used = (self.seen and not idle) or self.rung.required or self.hangs
        why = "a call hangs" if self.hangs else str(self.error or "")
        source = self.rung.source
        return SourceState(up, used, "" if up else why, source.period_s, source.yielding if up else "")

    def _run(self) -> None:
        name_thread()
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                if self._stop.is_set():
                    return
                try:
                    self._look()
                finally:
                    with self._changed:
                        self.asked_s = None
                        self._changed.notify_all()
        finally:
            self.rung.source.close()

    def _look(self) -> None:
        source = self.rung.source
        try:
            if not self.up:
                source.start()
            reading = source.read()
            if not self.up:
                self._came()
            if self.wants_capabilities:
                self.capabilities = source.capabilities()
                self.advice = source.advice()
            with self._changed:
                self.reading = reading
        except (Exception, SystemExit) as error:  # a library of others may call sys.exit
            self._went(error)

    def _came(self) -> None:
        if self._told_lost:
            log.info("%s answers again", self.name)
        self._told_lost = False
        with self._changed:
            self.up = self.seen = self.settled = True
            self.error = None
        self._up_since_s = self._clock()

    def _went(self, error: BaseException) -> None:
        now = self._clock()
        known = isinstance(error, SourceError)
        if self.up and now - self._up_since_s >= PROVEN_S:
            self._retry_s = RETRY_S
        news = str(error) != self._told or now - self._told_s >= SAY_EVERY_S
        if news and (self.up or not known):
            what = "is lost" if self.up else "cannot be opened; please report it"
            log.error("%s %s: %s", self.name, what, error, exc_info=None if known else error)
            self._told, self._told_s, self._told_lost = str(error), now, self.up
        self._retry_at_s = now + self._retry_s
        self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s)
        self.rung.source.close()
        with self._changed:
            self.up = False
            self.settled = True
            self.error = error
            if isinstance(error, DriverMismatchError):
                self.fatal = error


@dataclass(slots=True)
class _Served:
    """Which rung gave a signal last, until when that counts, and the highest that ever gave it."""

    rank: int
    until_s: float
    best: int


@dataclass(slots=True)
class _Gpu:
    facts: GpuFacts
    views: dict[int, GpuFacts] = field(default_factory=dict)  # by rung, of those that answer
    signals: dict[str, _Served] = field(default_factory=dict)
    lacks_s: float | None = None  # since when no source but a stand-in gives what is needed
    heard_s: float = 0.0  # when a source last said that it is there and answers
    shown_s: float = 0.0  # when a source last said anything of it
    device_uuids: tuple[str, ...] = ()


class Ladder:
    """All sources of a host as one; ``rungs`` best first.

    ``signal_of`` names the signal that a raw name carries; ``steady`` are the signals that have a value
    at each reading, ``needs`` those for whose lack a stand-in is asked. ``read`` never hangs, however
    the sources do; ``start`` waits for the first that opens.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        *,
        signal_of: Mapping[str, str],
        steady: Iterable[str] = (),
        needs: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        period_s: float = 1.0,
    ) -> None:
        self.period_s = period_s
        self._clock = clock
        self._wall = wall
        self._changed = threading.Condition()
        self._workers = [_Worker(rung, clock, self._changed) for rung in rungs]
        self._signal_of = signal_of
        self._steady = frozenset(steady)
        self._needs = frozenset(needs)
        self._gpus: dict[Key, _Gpu] = {}
        # The sets of signals are few, and the same for most ticks.
        self._raws_of = functools.lru_cache(SETS)(
            lambda signals: frozenset(raw for raw, signal in signal_of.items() if signal in signals)
        )
        self._last_s: float | None = None
        self._degraded = False

    @property
    def name(self) -> str:
        """The sources in use, best first, as in "dcgm+nvml"."""
        states = self.states()
        used = [name for name, state in states.items() if state.used]
        return "+".join([name for name in used if states[name].up] or used or states)

    @property
    def degraded(self) -> bool:
        """Whether some signal of a GPU that answers comes from a lower source than it did, or from none."""
        return self._degraded

    def states(self) -> dict[str, SourceState]:
        """By source, best first."""
        return {worker.name: worker.state() for worker in self._workers}

    def capabilities(self) -> dict[str, Mapping[Key, Mapping[str, Capability]]]:
        """By source: what it gives of each GPU, as of the reading after this was first asked for."""
        for worker in self._workers:
            worker.wants_capabilities = True
        return {worker.name: worker.capabilities for worker in self._workers}

    def advice(self) -> dict[str, tuple[str, ...]]:
        """By source: what would make it say more, a line each; for people."""
        return {worker.name: worker.advice for worker in self._workers}

    def start(self) -> None:
        """Opens all sources; returns when one has opened and the better ones have had their time.

        Raises:
            SourceError: a required source, or every source, cannot be opened.
        """
        for worker in self._workers:
            worker.thread.start()
            worker.go()
        began = self._clock()
        with self._changed:
            while not self._is_open(began):
                self._changed.wait(0.1)
                for worker in self._workers:
                    worker.watch(OPEN_S)
        for worker in self._workers:
            if worker.rung.required and not worker.up and worker.error is not None:
                if isinstance(worker.error, NoGpuError) and worker.rung.spares is None:
                    raise SourceError(str(worker.error))  # NVML alone knows that there is no GPU
                raise worker.error
        if not any(worker.up for worker in self._workers):
            raise self._refusal()
        for worker in self._workers:
            if worker.error is not None and not worker.up:
                log.info("%s is not used: %s", worker.name, worker.error)
        self._last_s = self._clock()

    def _is_open(self, began: float) -> bool:
        for worker in self._workers:
            # NVML is waited for: a driver may take long. A server that does not answer is none.
            silent = not worker.settled and self._clock() - began >= REFUSE_S
            if silent and worker.rung.spares is None:
                worker.error = SourceError(f"{worker.name} does not answer: a call hangs; {worker.rung.hint}")
                worker.settled = True
        if any(worker.rung.required and worker.settled and not worker.up for worker in self._workers):
            return True
        if all(worker.settled for worker in self._workers):
            return True
        required = all(worker.up for worker in self._workers if worker.rung.required)
        return required and any(worker.up for worker in self._workers) and self._clock() - began >= GRACE_S

    def _refusal(self) -> BaseException:
        """The error that says most: of NVML, which knows whether there is a GPU, and why the others are not used."""
        errors = {worker.name: worker.error for worker in self._workers if worker.error is not None}
        told = errors.get("nvml") or next(iter(errors.values()))
        if isinstance(told, DriverMismatchError) or len(errors) == 1:
            return told
        others = "".join(f"\n{name}: {error}" for name, error in errors.items() if error is not told)
        kind = NoGpuError if isinstance(told, NoGpuError) else SourceError
        return kind(f"{told}{others}")

    def read(self) -> Reading:
        """What all sources have said since the last reading, the best of it per GPU and signal.

        Raises:
            SourceError: not started.
            DriverMismatchError: this process cannot read GPUs any more, and no other source has ever answered.
        """
        if self._last_s is None:
            raise SourceError("no source is open: start() comes before read()")
        late = [worker.take() for worker in self._workers]  # what did not come in time for the tick before
        for worker in self._workers:
            worker.go()
        self._wait()
        for worker in self._workers:
            worker.watch(HANGS * self.period_s)
        now = self._clock()
        news = [_followed(old, worker.take()) for old, worker in zip(late, self._workers, strict=True)]
        fatal = next((worker.fatal for worker in self._workers if worker.fatal is not None), None)
        if fatal is not None and not any(worker.seen for worker in self._workers if worker.fatal is None):
            raise fatal
        told = [(rank, reading) for rank, reading in enumerate(news) if reading is not None]
        gpus = self._merged(now, told)
        self._spare(now)
        reading = Reading(
            end_s=now,
            unix_s=self._wall(),
            span_s=max(now - self._last_s, 1e-3),
            period_s=self.period_s,
            gpus=gpus,
        )
        self._last_s = now
        return reading

    def close(self) -> None:
        """Ends all sources; one that hangs is left behind."""
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + CLOSE_S
        for worker in self._workers:
            if worker.thread.ident is not None:
                worker.thread.join(max(0.0, deadline - time.monotonic()))
                if worker.thread.is_alive():
                    log.warning("%s: a call has not come back; its shutdown is skipped", worker.name)

    def _wait(self) -> None:
        """Until every source that answers as a rule has done so, a part of a tick at most."""
        deadline = time.monotonic() + PATIENCE * self.period_s
        with self._changed:
            while any(
                worker.up and not worker.hangs and worker.asked_s is not None for worker in self._workers
            ):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _merged(self, now: float, told: Sequence[tuple[int, Reading]]) -> tuple[GpuReading, ...]:
        views: dict[Key, list[tuple[int, Reading, GpuReading]]] = {}
        for rank, reading in told:
            for gpu in reading.gpus:
                views.setdefault(gpu.facts.key, []).append((rank, reading, gpu))
        for key, seen in views.items():
            known = self._gpus.get(key)
            if known is None:
                _, _, first = min(seen, key=lambda view: self._place(view[0]))
                known = self._gpus[key] = _Gpu(self._placed(first.facts), heard_s=now)
            self._describe(known, {rank: gpu.facts for rank, _, gpu in seen})
            known.shown_s = now
        self._drop_slices(now)
        readings = [self._one(now, gpu, views.get(key, [])) for key, gpu in self._gpus.items()]
        self._degraded = any(
            self._stepped_down(now, self._gpus[reading.facts.key]) for reading in readings if reading.up
        )
        return tuple(sorted(readings, key=lambda gpu: (gpu.facts.index, len(gpu.facts.mig), gpu.facts.mig)))

    def _place(self, rank: int) -> tuple[bool, int]:
        """A rung's place among those that describe a GPU: NVML is first, as its indices are everybody's."""
        return (self._workers[rank].rung.spares is None, rank)

    def _describe(self, known: _Gpu, told: Mapping[int, GpuFacts]) -> None:
        """Joins what the sources that answer say of a GPU."""
        views = {rank: facts for rank, facts in known.views.items() if self._workers[rank].up}
        views.update(told)
        if views == known.views:
            return
        facts = _joined([views[rank] for rank in sorted(views, key=self._place)])
        if facts.split is not known.facts.split:
            known.signals.clear()
        known.views = views
        known.facts = replace(_joined([facts, known.facts]), index=known.facts.index)

    def _placed(self, facts: GpuFacts) -> GpuFacts:
        """``facts`` with an index that no other board has; a slice has its board's."""
        others = {gpu.facts.uuid: gpu.facts.index for gpu in self._gpus.values()}
        if facts.uuid in others:
            return replace(facts, index=others[facts.uuid])
        taken = set(others.values())
        return facts if facts.index not in taken else replace(facts, index=max(taken) + 1)

    def _drop_slices(self, now: float) -> None:
        """Lets go of MIG instances that no source shows any more, while their boards are shown."""
        for key, gpu in list(self._gpus.items()):
            board = self._gpus.get((key[0], ""))
            gone = now - gpu.shown_s > LOST_PERIODS * self.period_s
            if key[1] and gone and (board is None or board.shown_s > gpu.shown_s):
                del self._gpus[key]

    def _stepped_down(self, now: float, gpu: _Gpu) -> bool:
        """Whether some signal comes from a lower rung than it did, or from none while others come."""
        lapsed = heard = False
        for signal, served in gpu.signals.items():
            if signal in self._steady:
                if served.until_s < now:
                    lapsed = True
                elif served.rank > served.best:
                    return True
                else:
                    heard = True
        # A slice without a compute instance has no activity, and nothing is wrong with that.
        return lapsed and heard and not gpu.facts.mig

    def _one(self, now: float, gpu: _Gpu, views: Sequence[tuple[int, Reading, GpuReading]]) -> GpuReading:
        """One GPU's reading: of each signal what the best source says, of its processes what any does."""
        parts: list[Part] = []
        for rank, reading, view in views:
            for part in view.parts:
                taken = self._taken(now, gpu, rank, part, part.period_s or reading.period_s)
                if taken:
                    span = reading.span_s if part.span_s is None else part.span_s
                    parts.append(replace(part, values=taken, span_s=span))
        if any(view.up for _, _, view in views):
            gpu.heard_s = now
        devices = (view.device_uuids for _, _, view in views if view.device_uuids)
        gpu.device_uuids = next(devices, gpu.device_uuids)
        lost = bool(views) and not any(view.up for _, _, view in views)
        silent = now - gpu.heard_s > LOST_PERIODS * self.period_s
        return GpuReading(
            gpu.facts,
            tuple(parts),
            owners=next((view.owners for _, _, view in views if view.owners is not None), None),
            up=not (lost or silent),
            holder=next((view.holder for _, _, view in views if view.holder), ""),
            process_use=next(
                (view.process_use for _, _, view in views if view.process_use is not None), None
            ),
            device_uuids=gpu.device_uuids,
        )

    def _taken(self, now: float, gpu: _Gpu, rank: int, part: Part, period_s: float) -> dict[str, object]:
        """The values of a part that no better source has served of late."""
        taken: dict[str, object] = {}
        lapse = LOST_PERIODS * max(period_s, self.period_s)
        for raw, value in part.values.items():
            if value is None:
                continue
            signal = self._signal_of.get(raw)
            if signal is not None:
                patience = lapse if signal in self._steady else max(lapse, SELDOM_S)
                served = gpu.signals.get(signal)
                if served is None:
                    gpu.signals[signal] = _Served(rank, now + patience, rank)
                elif self._is_above(now, served, rank):
                    continue
                else:
                    served.rank, served.until_s = rank, now + patience
                    served.best = min(rank, served.best)
            taken[raw] = value
        return taken

    def _is_above(self, now: float, served: _Served, rank: int) -> bool:
        """Whether a signal is served by a rung above ``rank`` that answers, and had news of late."""
        if served.rank >= rank or served.until_s < now:
            return False
        worker = self._workers[served.rank]
        return worker.up and not worker.hangs

    def _spare(self, now: float) -> None:
        """Tells the rungs that can spare themselves calls what is served above them, and whether to stand in."""
        for rank, worker in enumerate(self._workers):
            if worker.rung.spares is not None:
                worker.rung.spares.spared = {
                    key: self._raws_of(
                        frozenset(
                            signal
                            for signal, served in gpu.signals.items()
                            # Two readings missed: who is to take over needs one to begin with.
                            if self._is_above(now + self.period_s, served, rank)
                        )
                    )
                    for key, gpu in self._gpus.items()
                }
            if worker.rung.stand_in and self._needs:
                for gpu in self._gpus.values():
                    lacks_s = now if gpu.lacks_s is None else gpu.lacks_s
                    gpu.lacks_s = None if self._is_served(now, gpu, rank) else lacks_s
                lacking = [gpu.lacks_s for gpu in self._gpus.values() if gpu.lacks_s is not None]
                worker.idle = not any(now - since >= STAND_IN_S for since in lacking)

    def _is_served(self, now: float, gpu: _Gpu, rank: int) -> bool:
        """Whether sources above ``rank`` give all that is needed of a GPU; a board gives no activity."""
        return gpu.facts.split or all(
            (served := gpu.signals.get(signal)) is not None and self._is_above(now, served, rank)
            for signal in self._needs
        )


def _joined(views: Sequence[GpuFacts]) -> GpuFacts:
    """The first of several views of one GPU, with what it lacks from the others."""
    facts, *others = views
    for other in others:
        lacking = {
            name: getattr(other, name)
            for name in GpuFacts.__slots__
            if getattr(facts, name) in {None, ""} and getattr(other, name) not in {None, ""}
        }
        facts = replace(facts, **lacking)
    return facts


def _followed(older: Reading | None, newer: Reading | None) -> Reading | None:
    """The newer of two readings of a source, for the time and with the events of both."""
    if older is None or newer is None:
        return newer or older
    events = {
        gpu.facts.key: tuple(
            Part(part.source, {raw: value})
            for part in gpu.parts
            for raw, value in part.values.items()
            if isinstance(value, tuple)
        )
        for gpu in older.gpus
    }
    gpus = tuple(replace(gpu, parts=gpu.parts + events.get(gpu.facts.key, ())) for gpu in newer.gpus)
    return replace(newer, gpus=gpus, span_s=older.span_s + newer.span_s)


def name_thread() -> None:
    """Gives the thread its name in ``top -H`` and /proc too; Python itself does so from 3.14 on."""
    with contextlib.suppress(OSError):
        name = threading.current_thread().name
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15], encoding="ascii")
