"""Wires the stages and keeps the tick: the only module that knows all of them.

Sources read in threads of their own and hand readings over a queue. The main thread judges, counts
and publishes; it never touches a device, so that a driver call that hangs costs readings, not the agent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import resource
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from gpuwhy.config import Config
from gpuwhy.exporter import web_config
from gpuwhy.exporter.exposition import Exposition
from gpuwhy.exporter.http import HttpServer
from gpuwhy.exporter.ledger import HostIncrements, Ledger
from gpuwhy.exporter.page import Page
from gpuwhy.exporter.snapshot import Health
from gpuwhy.exporter.strips import Strips
from gpuwhy.interval import MOST_PORTIONS, IntervalBuilder
from gpuwhy.notify import Notifier
from gpuwhy.sample import Normaliser, Workload
from gpuwhy.sample.signals import DEVICE, SIGNAL_OF_RAW
from gpuwhy.source import (
    DriverMismatchError,
    GpuFacts,
    GpuReading,
    HostReading,
    NoGpuError,
    Reading,
    SourceError,
)
from gpuwhy.source.ladder import Ladder, Rung, SourceState, name_thread
from gpuwhy.source.recorder import Recorder
from gpuwhy.source.replay import Recording, ReplaySource, load, paths
from gpuwhy.verdict import Verdict, judge
from gpuwhy.verdict.learn import Learner
from gpuwhy.verdict.now import Now
from gpuwhy.verdict.summary import document
from gpuwhy.workload import attribute
from gpuwhy.workload.directory import PENDING, Directory, Titled
from gpuwhy.workload.refreshed import Refreshed
from gpuwhy.workload.tables import Tables

if TYPE_CHECKING:
    from gpuwhy.source.host import HostSource
    from gpuwhy.store import Writer
    from gpuwhy.workload.resolver import Resolver

log = logging.getLogger("gpuwhy")

STATUS_WINDOW_S = 300.0
TICK_S = 1.0
FRESH_PERIODS = 2
SAY_EVERY_S = 60.0
SLOW_LOOKS = 3  # of the slowest source, that a watch must hold to say something
READY_TICKS = 64  # that a replay may be ahead of the stages
OPEN_FILES = 4096
OPEN_S = 10.0  # some drivers take seconds to initialise
FIRST_READING_S = 30.0
LESSONS_S = 3600.0  # after which learnt numbers are kept again
STOP_S = 0.5  # for a thread to end; a driver call that takes longer is left behind


@dataclass(frozen=True, slots=True)
class Judged:
    """One interval of one host: every GPU's verdict, and what the host's counters gained in it."""

    verdicts: tuple[Verdict, ...]
    host: HostIncrements | None


class Pipeline:
    """One host's readings to verdicts: sample, workload, interval, verdict."""

    def __init__(
        self,
        *,
        interval_s: float,
        profile: str = "unknown",
        cards: Mapping[str, Mapping[str, float]] | None = None,
        hold: bool = False,
        directory: Directory | None = None,
    ) -> None:
        self.normaliser = Normaliser()
        self._builder = IntervalBuilder(
            interval_s, hold=hold, name_of=(lambda _: None) if directory is None else directory.tenant
        )
        self._profile = profile
        self._cards = cards
        self._cpu: dict[str, float] = {}
        self._pressure: dict[str, float] = {}
        self._host: HostReading | None = None
        self._host_used = False
        self.learner = Learner()
        self._owners: dict[tuple[str, str], tuple[int, ...]] = {}
        self._directory = directory
        self._titled: dict[str, Directory] = {}  # by the name of a recording
        self._troubles = _Troubles()
        # The workloads of the last reading, by GPU.
        self.workloads: dict[GpuFacts, tuple[Workload, ...]] = {}

    @property
    def interval_s(self) -> float:
        """Length of the intervals now; slow sources make it longer."""
        return self._builder.length_s

    def feed(self, reading: Reading) -> list[Judged]:
        """The intervals that this reading completes, oldest first."""
        if reading.host is not None and not self.note_host(reading.host):
            reading = replace(reading, host=None)
        directory = self._directory
        if reading.workload:
            directory = self._titled.setdefault(reading.workload, Titled(reading.workload))
        if directory is not None:
            directory.follow(reading.gpus)
        samples = attribute(self.normaliser.samples(reading), self._owners, directory)
        self.workloads = {
            sample.gpu: tuple(share.workload for share in sample.shares if share.workload.kind != PENDING)[
                :MOST_PORTIONS
            ]
            for sample in samples
            if sample.shares
        }
        for gpu in reading.gpus:
            if gpu.owners is not None:
                self._owners[gpu.facts.key] = gpu.owners
        return self._judged(self._builder.add(reading, samples))

    def note_host(self, reading: HostReading) -> bool:
        """Counts what the host's counters gained, once for each reading; whether it could be used."""
        if reading is self._host:
            return self._host_used
        self._host, self._host_used = reading, False
        try:
            host = self.normaliser.host(reading)
            for total, gains in ((self._cpu, host.cpu_seconds), (self._pressure, host.pressure_seconds)):
                for name, seconds in gains.items():
                    total[name] = total.get(name, 0.0) + seconds
        except Exception:
            self._troubles.say("what the host said could not be used; please report it")
            return False
        self._host_used = True
        return True

    def advance(self, now_s: float, unix_s: float, period_s: float) -> list[Judged]:
        """Closes intervals that have ended with no reading: that time is ``unknown/no-data``."""
        return self._judged(self._builder.advance(now_s, unix_s, period_s))

    def finish(self) -> list[Judged]:
        """The last intervals of a source that has ended."""
        return self._judged(self._builder.finish())

    def _judged(self, closed: list[list[Any]]) -> list[Judged]:
        done: list[Judged] = []
        for intervals in closed:
            verdicts = judge(intervals, profile=self._profile, cards=self._cards, learner=self.learner)
            host = HostIncrements(self._cpu, self._pressure) if self._cpu or self._pressure else None
            self._cpu, self._pressure = {}, {}
            done.append(Judged(tuple(verdicts), host))
        return done


def pipeline(config: Config, *, hold: bool = False, directory: Directory | None = None) -> Pipeline:
    """A pipeline as the configuration wants it."""
    return Pipeline(
        interval_s=config.agent.interval_seconds,
        profile=config.agent.profile,
        cards=config.cards.numbers,
        hold=hold,
        directory=directory,
    )


def explain_recording(path: Path, config: Config) -> dict[str, Any]:
    """The ``gpuwhy-explain/1`` document of a recording, at its recorded times.

    Raises:
        SourceError: the file is no recording.

    """
    recording = load(path)
    window, judged = judge_recording(recording, config)
    by_gpu: dict[tuple[str, str], list[Verdict]] = {}
    for interval in judged:
        for verdict in interval.verdicts:
            by_gpu.setdefault(verdict.gpu.key, []).append(verdict)
    found = document(f"replay:{path}", window, list(by_gpu.values()))
    for entry in found["gpus"]:
        entry["workload"] = entry["workload"] or recording.workload
    return found


def judge_recording(recording: Recording, config: Config) -> tuple[float, list[Judged]]:
    """The seconds that a recording speaks for, and its intervals at their recorded times."""
    stages = pipeline(config, hold=True)
    window = 0.0
    judged: list[Judged] = []
    for reading in recording.readings():
        window += reading.span_s
        judged += stages.feed(reading)
    return window, judged + stages.finish()


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading on its way to the main thread: how long it took and how many ticks were missed before it.

    ``sources`` says how the sources were, ``degraded`` whether a lower one stands in for one that was lost.
    """

    reading: Reading
    duration_s: float = 0.0
    missed: int = 0
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The feed has nothing more; ``error`` is why, None for an end that was asked for or foreseen."""

    error: Exception | None = None


Ticks: TypeAlias = "queue.SimpleQueue[Tick | End]"


class KernelSource(Protocol):
    """What reads the host; never raises for what the host says."""

    def read(self, owners: Iterable[int]) -> HostReading: ...


class Feed(Protocol):
    """Hands readings over a queue, from threads of its own."""

    period_s: float

    @property
    def name(self) -> str:
        """The sources in use."""

    def start(self, stopping: Callable[[], bool]) -> None:
        """Begins; ``stopping`` says when to give up waiting. Raises SourceError if there is nothing to read."""

    def host(self) -> HostReading | None:
        """The newest look at the host that came with no device reading, None if there is none."""

    def sources(self) -> Mapping[str, SourceState]:
        """How the sources are now."""

    def stop(self) -> None:
        """Ends the threads, without waiting for one that hangs in a driver call."""


class _Troubles:
    """Logs an exception with its traceback the first time, and then once a minute with the number of them."""

    def __init__(self) -> None:
        self._count = 0
        self._said_s = -math.inf

    def say(self, message: str, *arguments: object) -> None:
        """Called while the exception is handled."""
        self._count += 1
        if time.monotonic() - self._said_s >= SAY_EVERY_S:
            self._said_s = time.monotonic()
            log.exception(f"{message} (%d so far)", *arguments, self._count)  # noqa: G004, LOG004  callers handle one


class ReplayFeed:
    """Plays recordings in real time."""

    def __init__(self, source: ReplaySource, ticks: Ticks) -> None:
        self.name = "replay"
        self.period_s = source.period_s
        self._source = source
        self._ticks = ticks
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="gpuwhy-replay", daemon=True)

    def start(self, stopping: Callable[[], bool]) -> None:  # noqa: ARG002  nothing here can hang
        self._thread.start()

    def host(self) -> HostReading | None:
        return None

    def sources(self) -> Mapping[str, SourceState]:
        return {self.name: SourceState(up=True)}

    def stop(self) -> None:
        self._stop.set()

    def _play(self) -> None:
        error: Exception | None = None
        try:
            start = time.monotonic()
            for due_s, reading in self._source.schedule():
                if self._stop.wait(max(0.0, start + due_s - time.monotonic())):
                    break
                self._ticks.put(Tick(replace(reading, unix_s=time.time()), sources=self.sources()))
                while self._ticks.qsize() > READY_TICKS and not self._stop.wait(0.01):
                    pass  # faster than the stages: the replay waits, memory does not grow
        except Exception as failure:
            error = failure
        self._ticks.put(End(error))


class LiveFeed:
    """Reads this host once a second: devices in one thread, the kernel in another.

    A driver call that hangs stops device readings only; what the host says goes on.
    """

    def __init__(self, device: Ladder, host: KernelSource, ticks: Ticks, *, period_s: float = TICK_S) -> None:
        self.period_s = period_s
        self._device = device
        self._host = host
        self._ticks = ticks
        self._stop = threading.Event()
        self._opened = threading.Event()
        self._refusal: Exception | None = None
        self._troubles = _Troubles()
        self._host_troubles = _Troubles()
        self._newest: HostReading | None = None
        self._owners: frozenset[int] = frozenset()
        self._threads = [
            threading.Thread(target=self._read_devices, name="gpuwhy-device", daemon=True),
            threading.Thread(target=self._read_host, name="gpuwhy-host", daemon=True),
        ]

    @property
    def name(self) -> str:
        return self._device.name

    def sources(self) -> Mapping[str, SourceState]:
        return self._device.states()

    def start(self, stopping: Callable[[], bool]) -> None:
        self._threads[0].start()
        patience = time.monotonic() + OPEN_S
        while not self._opened.wait(0.1) and not stopping() and time.monotonic() < patience:
            pass
        if self._refusal is not None:
            raise self._refusal
        self._threads[1].start()

    def host(self) -> HostReading | None:
        newest = self._newest
        # What a reader that hangs said last is no evidence of now.
        fresh = newest is not None and time.monotonic() - newest.end_s <= FRESH_PERIODS * self.period_s
        return newest if fresh else None

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_S)

    def _read_devices(self) -> None:
        name_thread()
        try:
            self._device.start()
        except Exception as failure:
            self._refusal = failure
            self._ticks.put(End(failure))
            return
        finally:
            self._opened.set()
        error: Exception | None = None
        try:
            try:
                for missed in _deadlines(self.period_s, self._stop):
                    began = time.monotonic()
                    try:
                        reading = replace(self._device.read(), host=self.host())
                        self._owners = frozenset(pid for gpu in reading.gpus for pid in gpu.owners or ())
                    except (DriverMismatchError, NoGpuError):
                        raise
                    except Exception:
                        self._troubles.say("%s could not be read; that costs this reading", self.name)
                        continue
                    took = time.monotonic() - began
                    self._ticks.put(Tick(reading, took, missed, self.sources(), self._device.degraded))
            finally:
                self._device.close()
        except Exception as failure:
            error = failure
        self._ticks.put(End(error))

    def _read_host(self) -> None:
        name_thread()
        for _ in _deadlines(self.period_s, self._stop):
            try:
                self._newest = self._host.read(self._owners)
            except Exception:
                self._newest = None
                self._host_troubles.say("the host could not be read; please report it")


def _deadlines(period_s: float, stop: threading.Event) -> Iterator[int]:
    """Yields at absolute deadlines until ``stop``: how many were missed since the one before."""
    due = time.monotonic()
    missed = 0
    while not stop.is_set():
        yield missed
        due += period_s
        late = time.monotonic() - due
        missed = max(0, math.ceil(late / period_s)) if late > 0 else 0
        due += missed * period_s
        if stop.wait(max(0.0, due - time.monotonic())):
            return


def _raise_file_limit() -> None:
    """Lets the host source keep the files of many processes open, as far as the hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_feed(config: Config, ticks: Ticks, *, period_s: float = TICK_S) -> Feed:
    """The feed that ``agent.source`` asks for.

    Raises:
        SourceError: a recording cannot be read.

    """
    agent = config.agent
    if agent.replay_paths:
        source = ReplaySource(paths(agent.replay_paths), speed=agent.replay_speed, loop=agent.replay_loop)
        return ReplayFeed(source, ticks)
    return LiveFeed(make_ladder(config, period_s=period_s), make_host(config), ticks, period_s=period_s)


def make_host(config: Config) -> HostSource:
    """What reads this host, of which as many files are kept open as the system allows."""
    from gpuwhy.source.host import HostSource  # noqa: PLC0415  a replay needs none

    _raise_file_limit()
    return HostSource(proc=on_host(config, "proc"), cgroup=on_host(config, "sys/fs/cgroup"))


def on_host(config: Config, path: str) -> Path:
    """Where a path of the host lies: below ``agent.host_root`` where that has its folder, or it."""
    below, usual = Path(config.agent.host_root, path.lstrip("/")), Path("/", path)
    # What comes and goes, as sockets do, is looked for where its folder is.
    return below if below.exists() or (below.parent.is_dir() and not usual.exists()) else usual


def make_resolver(config: Config) -> Resolver:
    """What finds out whose the processes and GPUs of this host are."""
    # Imported here: a replay needs none.
    from gpuwhy.source.containers import Containers  # noqa: PLC0415
    from gpuwhy.source.device_files import device_minors  # noqa: PLC0415
    from gpuwhy.source.identity import Identities  # noqa: PLC0415
    from gpuwhy.source.kubernetes import Kubelet, KubernetesApi, PodFolders, node_name  # noqa: PLC0415
    from gpuwhy.source.slurm import Slurm  # noqa: PLC0415
    from gpuwhy.workload.resolver import Resolver  # noqa: PLC0415

    options = config.workloads
    proc, cgroup = on_host(config, "proc"), on_host(config, "sys/fs/cgroup")
    if not Path(config.agent.host_root).is_dir():
        log.warning(
            "agent.host_root: %s is no folder; the host's files are read at their usual places",
            config.agent.host_root,
        )
    passwd = Path(config.agent.host_root, "etc/passwd") if config.agent.host_root != "/" else None
    passwd = passwd if passwd is not None and passwd.exists() else None
    identities, node = Identities(proc, passwd=passwd), node_name(os.environ)
    folder = on_host(config, options.slurm_job_folder) if options.slurm_job_folder else None
    readers: dict[str, Refreshed] = {
        "jobs": Refreshed(
            Slurm(
                cgroup, proc, identities, mapping_folder=folder, scontrol=options.slurm_scontrol, node=node
            ),
            {},
        ),
        "containers": Refreshed(Containers(Path(config.agent.host_root)), {}),
        "folders": Refreshed(PodFolders(on_host(config, "var/log/pods"), cgroup), {}),
    }
    if options.kubelet_socket:
        socket = on_host(config, str(Path(options.kubelet_socket).parent)) / Path(options.kubelet_socket).name
        readers["grants"] = Refreshed(Kubelet(socket), ())
    if options.kubernetes_api:
        api = KubernetesApi(node, owner_label=options.owner_label, profile_label=options.profile_label)
        readers["pods"] = Refreshed(api, {})
    return Resolver(
        identities,
        readers,
        fixed=Tables(
            node=node,
            owner_label=options.owner_label,
            profile_label=options.profile_label,
        ),
        minors=lambda: device_minors(proc),
        profiles=options.profiles,
        label_length=options.label_length,
    )


def make_store(config: Config) -> Writer | None:
    """What keeps history, None where it is switched off; a replay's is kept only in a file that was named."""
    options, replays = config.store, bool(config.agent.replay_paths)
    if not options.enabled or (replays and not options.path):
        return None
    # Imported here: who keeps none does not pay for SQLite.
    from gpuwhy.source.kubernetes import node_name  # noqa: PLC0415
    from gpuwhy.store import Writer  # noqa: PLC0415
    from gpuwhy.store.database import Bounds  # noqa: PLC0415
    from gpuwhy.store.place import make as make_place  # noqa: PLC0415

    return Writer(
        lambda: make_place(options, os.environ, root=os.geteuid() == 0),
        Bounds(age_s=options.retention_days * 86400.0, size_bytes=options.most_mebibytes << 20),
        host=node_name(os.environ),
        source="replay" if replays else "live",
        most_workloads=config.workloads.most,
    )


# Signals that have a value at each reading; for those of the second a dcgm-exporter is asked.
STEADY = frozenset([*(signal.name for signal in DEVICE if signal.kind == "gauge"), "clock_event_reasons"])
NEEDS = frozenset(f"{unit}_active_ratio" for unit in ("graphics", "sm", "tensor", "dram"))


def make_ladder(config: Config, *, period_s: float = TICK_S) -> Ladder:
    """The sources that ``agent.source`` asks for, best first.

    Plain NVML stands above a dcgm-exporter, whose values of the same name are older and fewer; what NVML
    lacks, as activity before Hopper, comes from there.
    """
    # Imported here: a replay needs no driver library.
    from gpuwhy.source.dcgm import DcgmSource  # noqa: PLC0415
    from gpuwhy.source.exporter import ExporterSource  # noqa: PLC0415
    from gpuwhy.source.nvml import NvmlSource  # noqa: PLC0415

    agent = config.agent
    wanted = agent.source
    rungs: list[Rung] = []
    if wanted in {"auto", "dcgm", "dcgm-embedded"}:
        dcgm = DcgmSource(
            address=agent.dcgm_address,
            bindings=agent.dcgm_bindings,
            library=agent.dcgm_library,
            embedded=wanted == "dcgm-embedded",
            period_s=period_s,
        )
        rungs.append(
            Rung(dcgm, "is the engine stopped? see `systemctl status nvidia-dcgm`", wanted != "auto")
        )
    # Processes come from NVML whatever the source: DCGM does not list them.
    nvml = NvmlSource(period_s=period_s, lists_only=wanted not in {"auto", "nvml"})
    rungs.append(Rung(nvml, required=wanted == "nvml", spares=nvml))
    if wanted in {"auto", "dcgm-exporter"}:
        exporter = ExporterSource(url=agent.exporter_url)
        rungs.append(
            Rung(exporter, "is dcgm-exporter stopped?", required=wanted != "auto", stand_in=wanted == "auto")
        )
    return Ladder(rungs, signal_of=SIGNAL_OF_RAW, steady=STEADY, needs=NEEDS, period_s=period_s)


def watch(config: Config, seconds: float, progress: Callable[[float], None]) -> dict[str, Any]:
    """The ``gpuwhy-explain/1`` document of this host, watched for ``seconds``; ``progress`` gets the seconds seen.

    Raises:
        SourceError: no GPU, or the source cannot go on.

    """
    source = ""
    by_gpu: dict[tuple[str, str], list[Verdict]] = {}
    for source, interval in watched(config, seconds, progress):  # noqa: B007  the name as last known
        for verdict in interval.verdicts:
            by_gpu.setdefault(verdict.gpu.key, []).append(verdict)
    return document(source, seconds, list(by_gpu.values()))


def watched(
    config: Config, seconds: float, progress: Callable[[float], None]
) -> Iterator[tuple[str, Judged]]:
    """The intervals of this host while it is watched, each with the sources' names. Raises as ``watch`` does."""
    by_origin: dict[int, Pipeline] = {}
    source, slow = "", (0.0, "")
    resolver = None if config.agent.replay_paths else make_resolver(config)
    if resolver is not None:
        resolver.start()
    try:
        for name, tick in live_ticks(config, seconds, progress):
            source = name
            stages = by_origin.setdefault(
                tick.reading.origin, pipeline(config, hold=True, directory=resolver)
            )
            for interval in stages.feed(tick.reading):
                yield source, interval
            # As last known: a period is a guess until some have passed.
            slow = max(
                ((each.period_s, kind) for kind, each in tick.sources.items() if each.used), default=slow
            )
    finally:
        if resolver is not None:
            resolver.stop()
    if SLOW_LOOKS * slow[0] > seconds:
        log.warning(
            "%s has new values each %.0f s only: watch for longer (--seconds %.0f)",
            slow[1],
            slow[0],
            4 * slow[0],
        )
    for stages in by_origin.values():
        for interval in stages.finish():
            yield source, interval


def record(
    config: Config, recorder: Recorder, seconds: float, progress: Callable[[float], None], *, period_s: float
) -> None:
    """Writes what this host says for ``seconds``.

    Raises:
        SourceError: no GPU, or the file cannot be written.

    """
    if config.agent.replay_paths:
        raise SourceError("record writes what this host says; a replay is a recording already")
    ticks = live_ticks(config, seconds, progress, period_s=period_s)
    next(ticks, None)  # it only starts the counters: a row speaks for the time since the one before
    for _, tick in ticks:
        recorder.write(tick.reading)


def live_ticks(
    config: Config, seconds: float, progress: Callable[[float], None], *, period_s: float = TICK_S
) -> Iterator[tuple[str, Tick]]:
    """The first tick of this host, and those of ``seconds`` after it, each with the feed's name."""
    ticks: Ticks = queue.SimpleQueue()
    feed = make_feed(config, ticks, period_s=period_s)
    feed.start(lambda: False)
    began: float | None = None
    deadline = time.monotonic() + seconds + FIRST_READING_S
    try:
        while began is None or time.monotonic() < began + seconds:
            try:
                tick = ticks.get(timeout=period_s)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"{feed.name} did not answer within {FIRST_READING_S:.0f} s; a driver call may hang: see the kernel log"
                    ) from None
                continue
            if isinstance(tick, End):
                if tick.error is not None:
                    raise tick.error
                return
            began = time.monotonic() if began is None else began
            yield feed.name, tick
            progress(min(seconds, time.monotonic() - began))
    finally:
        feed.stop()


class Agent:
    """The running agent: takes ticks off the queue, judges, counts, publishes."""

    def __init__(self, config: Config, feed: Callable[[Config, Ticks], Feed] | None = None) -> None:
        self._config = config
        self._ticks: Ticks = queue.SimpleQueue()
        self._stopped_by = ""
        self._unseen = False
        self._began_s = time.monotonic()
        self._pipelines: dict[int, Pipeline] = {}
        self._rejected: dict[int, dict[tuple[str, str], int]] = {}
        self._ledger = Ledger(
            most_workloads=config.workloads.most, retention_s=config.workloads.retention_seconds
        )
        self._resolver = None if config.agent.replay_paths else make_resolver(config)
        self._store = make_store(config)
        self._lessons_s = time.monotonic()
        self._now = Now()
        self._shown: dict[tuple[str, str], Verdict] = {}
        self._profiles: dict[tuple[str, str], str] = {}
        self._taken_apart: set[tuple[str, str]] = set()
        self._gpus_of: dict[int, set[tuple[str, str]]] = {}
        self._recent: dict[tuple[str, str], deque[Verdict]] = {}
        self._health = _HealthState(expected_gpus=config.agent.expected_gpus)
        self._status_lock = threading.Lock()
        self._troubles = _Troubles()
        self._exposition = Exposition()
        self._strips = Strips()
        page = Page(self._exposition, self._strips)
        self._web = web_config.load(config.http.web_config_file)
        self._http = HttpServer(config.http.address, self._exposition, self.status, page=page, web=self._web)
        self._feed = (feed or make_feed)(config, self._ticks)
        self._last_tick_s = time.monotonic()
        self._manager = Notifier()

    def run(self) -> None:
        """Serves until the source ends or SIGTERM or SIGINT comes.

        Raises:
            SourceError: the source cannot start or go on.
            ListenError: the address cannot be listened on.

        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, self._on_signal)
        self._feed.start(lambda: bool(self._stopped_by))
        if self._resolver is not None:
            self._resolver.start()
        if self._store is not None:
            self._store.start()
        self._note_sources(self._feed.sources(), degraded=False)
        self._publish()
        try:
            self._serve()
        finally:
            self._feed.stop()
            if self._resolver is not None:
                self._resolver.stop()
            if self._store is not None:
                self._keep_lessons()
                self._store.close()

    def _serve(self) -> None:
        host, port = self._http.start()
        self._exposition.start()
        everywhere = host in {"0.0.0.0", "::"}
        shown = "127.0.0.1" if everywhere else f"[{host}]" if ":" in host else host
        locks = web_config.NO_SETTINGS if self._web is None else self._web.current()
        log.info("listening on http%s://%s:%d", "s" if locks.context else "", shown, port)
        missing = [
            name
            for name, there in (("TLS", locks.context), ("authentication", locks.needs_proof))
            if not there
        ]
        if everywhere and missing:
            log.warning(
                "served to every address of this host, without %s; --listen 127.0.0.1:%d keeps it local, "
                "--web-config-file switches on what is missing",
                " or ".join(missing),
                port,
            )
        if self._config.agent.replay_paths:
            log.info("REPLAY of %s: what is shown is recorded, not this host", self._config.agent.source)
        self._manager.ready()
        try:
            self._loop()
        finally:
            self._manager.stopping()
            self._http.stop()
            self._exposition.stop()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # No logging here: the signal may have come in the middle of a log line.
        self._stopped_by = signal.Signals(number).name
        self._ticks.put(End())

    def _loop(self) -> None:
        while True:
            if self._http.is_alive():
                self._manager.alive()  # whatever the devices do: a hung driver is no reason to start anew
            try:
                tick = self._ticks.get(timeout=min(self._feed.period_s, TICK_S))
            except queue.Empty:
                self._wait_for_device()
                continue
            if self._stopped_by:
                log.info("%s: stopping", self._stopped_by)
                break
            if isinstance(tick, End):
                if tick.error is not None:
                    raise tick.error
                log.info("%s has ended", self._feed.name)
                break
            self._take(tick)
        for stages in self._pipelines.values():
            for judged in stages.finish():
                self._credit(judged)
        self._publish()

    def _wait_for_device(self) -> None:
        """What goes on while a device call hangs: the host's counters, and time that is no-data."""
        now = time.monotonic()
        host = self._feed.host()
        if self._config.agent.replay_paths:
            return
        self._note_sources(self._feed.sources(), degraded=self._health.degraded)
        self._note_host(answers=host is not None)
        closed: list[Judged] = []
        for stages in self._pipelines.values():
            if host is not None:
                stages.note_host(host)
            closed += stages.advance(now, time.time(), self._feed.period_s)
        for judged in closed:
            for verdict in judged.verdicts:
                self._health.gpu_up[verdict.gpu.key] = False
            self._credit(judged)
        if closed or self._unseen:
            self._publish()
            self._unseen = False

    def _take(self, tick: Tick) -> None:
        """One tick through the stages. What a stage raises costs this tick's reading only."""
        reading = tick.reading
        self._last_tick_s = time.monotonic()
        self._note_sources(tick.sources, degraded=tick.degraded)
        self._note_host(answers=reading.host is not None)
        try:
            stages = self._pipelines.get(reading.origin)
            if stages is None:
                stages = self._pipelines[reading.origin] = pipeline(self._config, directory=self._resolver)
            judged = stages.feed(reading)
            self._note(reading, stages)
            self._show(stages.workloads.items())
            for interval in judged:
                self._credit(interval)
        except Exception:
            # The stages go on with the next reading: this one's time becomes a gap.
            self._troubles.say("a reading was lost to an error in gpuwhy; please report it")
            return
        if judged or self._unseen:
            # A new GPU's counters must be scraped at 0 before they count, or their first gain is lost.
            self._publish()
            self._unseen = False
        self._ledger.tick(tick.duration_s + time.monotonic() - self._last_tick_s, tick.missed)

    def _note_sources(self, sources: Mapping[str, SourceState], *, degraded: bool) -> None:
        """Keeps how the sources are; those that were found once stay, others are no concern of this host."""
        health = self._health
        if self._resolver is not None:
            sources = {**sources, **self._resolver.states()}
        used = {name: state for name, state in sources.items() if state.used}
        up = {name: state.up for name, state in used.items()}
        yielding = {name: bool(state.yielding) for name, state in used.items()}
        before = {name: is_up for name, is_up in health.source_up.items() if name != "host"}
        if (up, yielding, degraded) == (before, health.source_yielding, health.degraded):
            return
        for name, state in used.items():
            if state.yielding and not health.source_yielding.get(name):
                log.warning("%s: %s; other sources stand in", name, state.yielding)
            elif not state.yielding and health.source_yielding.get(name):
                log.info("%s: profiling is back", name)
        if degraded is not health.degraded:
            how = "some come from a lower source than before, or from none" if degraded else "all are back"
            log.info("signals: %s; sources that answer: %s", how, ", ".join(n for n in up if up[n]) or "none")
        host = {name: is_up for name, is_up in health.source_up.items() if name == "host"}
        health.source_up = up | host
        health.source_yielding = yielding
        health.degraded = degraded
        self._unseen = True  # a source that went or came is to be seen at once

    def _note_host(self, *, answers: bool) -> None:
        """Keeps whether the host is read; a replay's host is part of the replay."""
        if self._config.agent.replay_paths or self._health.source_up.get("host") is answers:
            return
        if not answers and "host" in self._health.source_up:
            log.error("the host has not been read of late: verdicts are judged without it")
        young = time.monotonic() - self._began_s < self._config.agent.interval_seconds
        if answers or ("host" in self._health.source_up) or not young:
            self._health.source_up["host"] = answers
            self._unseen = True

    def _note(self, reading: Reading, stages: Pipeline) -> None:
        present = {gpu.facts.key for gpu in reading.gpus}
        if reading.restart:
            for key in self._gpus_of.get(reading.origin, set()) - present:
                self._retire(key)
            self._gpus_of[reading.origin] = set(present)
        for key in self._gpus_of.setdefault(reading.origin, set(present)) - present:
            self._health.gpu_up[key] = False
            if key[1] and (key[0], "") in present:
                self._taken_apart.add(key)  # a MIG instance that is no more
        self._taken_apart -= present
        self._gpus_of[reading.origin] |= present
        for gpu in reading.gpus:
            if self._profiles.setdefault(gpu.facts.key, gpu.facts.profile) != gpu.facts.profile:
                self._retire(gpu.facts.key)  # another MIG instance under the id of one that is no more
                self._profiles[gpu.facts.key] = gpu.facts.profile
            if gpu.facts.key not in self._health.gpu_up:
                self._ledger.add_gpu(gpu.facts)
                self._unseen = True
            self._health.gpu_up[gpu.facts.key] = gpu.up
            for code in xids(gpu):
                log.warning("GPU %d (%s): Xid %d; see dmesg", gpu.facts.index, gpu.facts.uuid, code)
                self._ledger.xid(gpu.facts.key, code)
        if any(gpu.up for gpu in reading.gpus):
            self._health.last_sample_unix_s = reading.unix_s
        before = self._rejected.setdefault(reading.origin, {})
        for key, count in stages.normaliser.rejected.items():
            if count != before.get(key, 0):
                self._ledger.reject(*key, count - before.get(key, 0))
                before[key] = count

    def _show(self, workloads: Iterable[tuple[GpuFacts, Iterable[Workload]]]) -> None:
        """Shows workloads of GPUs, and publishes those that are new at 0, before anything of them counts."""
        added = [self._ledger.add_workloads(gpu, each) for gpu, each in workloads]
        if any(added):
            self._publish()

    def _retire(self, key: tuple[str, str]) -> None:
        """Forgets a row for good."""
        self._ledger.retire_gpu(key)
        self._now.forget(key)
        self._strips.forget(key)
        self._shown.pop(key, None)
        self._health.gpu_up.pop(key, None)
        self._profiles.pop(key, None)
        with self._status_lock:
            self._recent.pop(key, None)

    def _credit(self, judged: Judged) -> None:
        for key in self._taken_apart - {verdict.gpu.key for verdict in judged.verdicts}:
            self._retire(key)
            self._taken_apart.discard(key)
            for known in self._gpus_of.values():
                known.discard(key)
        # One that was named only as its interval closed has not been shown at 0 yet.
        self._show(
            (verdict.gpu, [each.workload for each in verdict.workloads]) for verdict in judged.verdicts
        )
        for verdict in judged.verdicts:
            self._shown[verdict.gpu.key] = self._now.update(verdict)
        self._strips.add(judged.verdicts, self._shown)
        self._ledger.credit(judged.verdicts, judged.host, self._shown, scraped=self._exposition.scraped)
        self._record(judged)
        with self._status_lock:
            for verdict in judged.verdicts:
                recent = self._recent.setdefault(verdict.gpu.key, deque())
                recent.append(verdict)
                while recent[0].end_s < verdict.end_s - STATUS_WINDOW_S:
                    recent.popleft()

    def _record(self, judged: Judged) -> None:
        """Hands an interval to history, and learnt numbers from and to it."""
        if self._store is None:
            return
        self._store.credit(judged.verdicts)
        found = None if self._config.agent.replay_paths else self._store.found()
        if found is not None:
            for stages in self._pipelines.values():
                stages.learner.restore(found)
        if time.monotonic() - self._lessons_s >= LESSONS_S:
            self._keep_lessons()

    def _keep_lessons(self) -> None:
        self._lessons_s = time.monotonic()
        # What a recording teaches is not of this host.
        if self._store is not None and not self._config.agent.replay_paths:
            for stages in self._pipelines.values():
                self._store.keep(stages.learner.lessons())

    def _publish(self) -> None:
        store = None if self._store is None else self._store.state()
        self._health.store_up = None if store is None else store.up
        self._health.store_dropped_s = None if store is None else store.dropped_s
        self._exposition.publish(
            self._ledger.snapshot(
                self._health.frozen(),
                taken_s=time.monotonic(),
                interval_s=max(
                    (stages.interval_s for stages in self._pipelines.values()),
                    default=self._config.agent.interval_seconds,
                ),
            )
        )

        self._manager.status(self._summary())

    def _summary(self) -> str:
        """What is found, in a line."""
        counts = Counter(verdict.verdict for verdict in self._shown.values())
        found = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        gpus = "GPU" if counts.total() == 1 else "GPUs"
        about = f"{counts.total()} {gpus}: {found}" if counts else "no interval judged yet"
        return f"replay, {about}" if self._config.agent.replay_paths else about

    def status(self) -> bytes:
        """The JSON of ``/api/v1/status``: ``gpuwhy-explain/1`` over the last minutes. Safe from any thread."""
        with self._status_lock:
            recent = [list(verdicts) for verdicts in self._recent.values()]
        observed = max((sum(verdict.time.observed for verdict in gpu) for gpu in recent), default=0.0)
        source = self._config.agent.source
        recent.sort(key=lambda gpu: (gpu[-1].gpu.index, gpu[-1].gpu.mig))
        return msgspec.json.encode(document(source, observed, recent))


def xids(gpu: GpuReading) -> list[int]:
    """The Xid errors that a GPU's reading reports."""
    found = [code for part in gpu.parts for code in part.values.get("xid_events") or ()]
    return [code for code in found if isinstance(code, int)]


@dataclass(slots=True)
class _HealthState:
    gpu_up: dict[tuple[str, str], bool] = field(default_factory=dict)
    source_up: dict[str, bool] = field(default_factory=dict)
    source_yielding: dict[str, bool] = field(default_factory=dict)
    degraded: bool = False
    last_sample_unix_s: float | None = None
    expected_gpus: int = 0
    store_up: bool | None = None
    store_dropped_s: float | None = None

    def frozen(self) -> Health:
        return Health(
            dict(self.gpu_up),
            dict(self.source_up),
            self.degraded,
            self.last_sample_unix_s,
            dict(self.source_yielding),
            self.expected_gpus,
            self.store_up,
            self.store_dropped_s,
        )


def run(config: Config) -> None:
    """Runs the agent until it is told to stop."""
    Agent(config).run()
