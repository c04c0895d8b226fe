"""Reads GPUs through a DCGM host engine: one that runs on this host or, only if told to, one in this process.

The engine reads the driver once a period, for all its clients; a tick here looks at what it has cached. To
read one more field, add its row to ``dcgm_fields``. How the engine is spoken to is in ``dcgm_bindings``,
what an answer means in ``dcgm_rows``, which GPUs there are in ``dcgm_facts``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from gpuwhy.source import dcgm_facts
from gpuwhy.source.dcgm_bindings import (
    GPU,
    GPU_INSTANCE,
    Answer,
    Bindings,
    Engine,
    EngineError,
    explained,
    find_engine,
)
from gpuwhy.source.dcgm_fields import FIELDS, SELDOM, Field
from gpuwhy.source.dcgm_rows import ACTS, DCGM, Act, Row, ends, passes
from gpuwhy.source.reading import Capability, GpuFacts, GpuReading, NoGpuError, Reading, SourceError

log = logging.getLogger(__name__)

LOOK_S = 10.0  # between looks for GPUs and MIG instances that come and go
RETRY_S = 30.0  # until what cannot be watched for the time being is tried again
SUSPECT_READS = 2  # without news of a GPU, after which the engine is asked what is wrong with it
STALE_READS = 5  # without news of any GPU

Fields = tuple[Field, ...]


@dataclass(slots=True)
class _Unit:
    """What is watched together: a GPU, or the MIG instances of one.

    ``owed`` is what cannot be watched for the time being, and why.
    """

    group: Any
    rows: list[Row]
    watched: list[Fields] = field(default_factory=list)
    owed: dict[Fields, str] = field(default_factory=dict)

    def deny(self, fields: Fields, code: str) -> None:
        if passes(code):
            self.owed[fields] = code
        for row in self.rows:
            row.deny([one.id for one in fields], code)

    def why(self, act: Act) -> str:
        """Why something is owed that ``act`` is about, "" = nothing is."""
        return next((explained(code) for code in self.owed.values() if ACTS.get(code) is act), "")


class DcgmSource:
    """All GPUs that a DCGM host engine shows, with their MIG instances.

    It never pauses or resumes anything. All methods must be called from one and the same thread; each
    may hang with the engine.
    """

    name = DCGM

    def __init__(
        self,
        *,
        address: str = "",
        bindings: str = "",
        library: str = "",
        embedded: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        period_s: float = 1.0,
        connect_timeout_s: float = 2.0,
    ) -> None:
        self.period_s = period_s
        self.yielding = ""
        self._address = address
        self._bindings = bindings
        self._library = library
        self._embedded = embedded
        self._clock = clock
        self._wall = wall
        self._timeout_s = connect_timeout_s
        self._engine: Engine | None = None
        self._where = ""
        self._units: dict[int, list[_Unit]] = {}
        self._layout: dict[int, tuple[dcgm_facts.Instance, ...]] = {}
        self._indices: dict[str, int] = {}
        self._disturbed = False
        self._last_s = self._look_s = self._retry_s = 0.0
        self._down: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()

    def start(self) -> tuple[GpuFacts, ...]:
        """Connects, and has the engine watch what is read. The facts of all rows, by index.

        Raises:
            NoGpuError: no engine runs here.
            SourceError: the engine, NVIDIA's bindings or their library refuse; names what was tried and
                the remedy.
        """
        self.close()
        address = "" if self._embedded else find_engine(self._address, self._timeout_s)
        if self._embedded:
            self._refuse_a_second_engine()
        self._where = f"DCGM host engine at {address}" if address else "DCGM engine in this process"
        bindings = Bindings(self._bindings, self._library, f"there is a {self._where}")
        now = self._clock()
        try:
            self._engine = Engine(bindings, address, self._timeout_s, self.period_s)
            self._look(self._engine, now)
            self._check_start(self._engine)
        except EngineError as error:
            self._give_up(error)
        except (AttributeError, TypeError) as error:
            self.close()
            raise SourceError(f"{self._where}: {error}; {explained('VER_MISMATCH')}") from None
        except BaseException:
            self.close()
            raise
        self._last_s, self._retry_s = now, now + RETRY_S
        log.info("%s: DCGM %s, %d GPUs", self._where, bindings.version, len(self._units))
        return tuple(row.facts for row in self._rows())

    def _refuse_a_second_engine(self) -> None:
        """NVIDIA supports one engine per host: a second may dead-lock the driver (DCGM issue 108)."""
        with suppress(NoGpuError):
            running = find_engine("", self._timeout_s)
            raise SourceError(
                f"a DCGM host engine runs at {running}, and NVIDIA supports one on a host; set agent.source to dcgm"
            )

    def read(self) -> Reading:
        """Takes what is new in the engine's cache.

        Raises:
            SourceError: the engine is gone or stands still, or this was not started.
        """
        engine = self._engine
        if engine is None:
            raise SourceError("DCGM is not connected: start() comes before read()")
        now = self._clock()
        try:
            gpus = self._read(engine, now)
            # Last, so that what is built has a period to be read for the first time.
            if now >= self._look_s:
                self._look(engine, now)
            if now >= self._retry_s:
                self._retry(engine, now)
        except EngineError as error:
            self._give_up(error)
        span_s, self._last_s = now - self._last_s, now
        return Reading(
            end_s=now,
            unix_s=self._wall(),
            span_s=span_s if span_s > 0 else self.period_s,
            period_s=self.period_s,
            gpus=gpus,
        )

    def close(self) -> None:
        """Takes back all that was made in the engine, and hangs up. Safe at any time, and more than once."""
        engine, self._engine = self._engine, None
        self._units, self._layout, self._down = {}, {}, {}
        self._disturbed, self.yielding = False, ""
        if engine is not None:
            engine.close()

    def advice(self) -> tuple[str, ...]:
        """What an engine lacks is named field by field; nothing else makes it say more."""
        return ()

    def capabilities(self) -> dict[tuple[str, str], dict[str, Capability]]:
        """By row and raw name: that this source carries it, or why it does not."""
        return {row.facts.key: row.capabilities(self._down.get(row.facts.uuid, "")) for row in self._rows()}

    def _give_up(self, error: EngineError) -> NoReturn:
        self.close()
        raise SourceError(f"{self._where}: {error}") from None

    def _rows(self) -> list[Row]:
        rows = [row for unit in self._all_units() for row in unit.rows]
        return sorted(rows, key=lambda row: (row.facts.index, int(row.facts.mig or -1)))

    def _all_units(self) -> list[_Unit]:
        return [unit for units in self._units.values() for unit in units]

    # --- one look at the engine's cache

    def _read(self, engine: Engine, now: float) -> tuple[GpuReading, ...]:
        for row, answers in self._answers(engine, self._rows()):
            row.take(answers, now, self.period_s)
        unwatched = next((row.unwatched for row in self._rows() if row.unwatched), "")
        if unwatched and not self._look(engine, now):
            raise EngineError("dcgmEntitiesGetLatestValues", unwatched)
        self._suspect(engine)
        self._note_yielding()
        readings = []
        for row in self._rows():
            down = bool(self._down[row.facts.uuid])
            part = None if down else row.part(now, self.period_s)
            readings.append(GpuReading(row.facts, () if part is None else (part,), up=not down))
        return tuple(readings)

    @staticmethod
    def _answers(engine: Engine, rows: Sequence[Row]) -> Iterator[tuple[Row, Sequence[Answer]]]:
        """Asks rows with the same fields in one call, and no row what it lacks: the engine logs that as an error."""
        alike: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            if row.live:
                alike.setdefault(tuple(sorted(row.live)), []).append(row)
        for fields, some in alike.items():
            answers = engine.values([row.entity for row in some], fields)
            for place, row in enumerate(some):
                yield row, answers[place * len(fields) : (place + 1) * len(fields)]

    def _suspect(self, engine: Engine) -> None:
        """Finds out which GPUs are down.

        Raises:
            EngineError: no GPU has had news for a while, and nothing explains it.
        """
        silent = True
        for gpu, units in self._units.items():
            rows = [row for unit in units for row in unit.rows]
            board = rows[0]
            down = next((row.down for row in rows if row.down), "") or units[0].why(Act.DOWN)
            if not down and board.live and board.stale >= SUSPECT_READS:
                status = engine.gpu_status(gpu)
                if status in dcgm_facts.DOWN_STATUS:
                    down = f"the engine calls it {dcgm_facts.DOWN_STATUS[status]}"
                elif status == dcgm_facts.PAUSED_STATUS:
                    board.busy = explained("PAUSED")
            self._tell_down(board.facts, down)
            if down or board.busy:
                board.stale = min(board.stale, SUSPECT_READS)  # counts anew when it is over
            silent = silent and all(row.stale >= STALE_READS for row in rows if row.live)
        if silent:
            raise EngineError("dcgmEntitiesGetLatestValues", "STALE_DATA")

    def _tell_down(self, facts: GpuFacts, down: str) -> None:
        if bool(down) != bool(self._down.get(facts.uuid)):
            state = f"is down: {down}" if down else "answers again"
            log.warning("%s: GPU %d (%s) %s", self._where, facts.index, facts.uuid, state)
        self._down[facts.uuid] = down

    def _note_yielding(self) -> None:
        reasons = [row.busy for row in self._rows()]
        reasons += [unit.why(Act.BUSY) for unit in self._all_units()]
        self.yielding = next((reason for reason in reasons if reason), "")

    # --- what is watched

    def _look(self, engine: Engine, now: float) -> bool:
        """Builds what has come, and drops what has gone; whether there was anything."""
        self._look_s = now + LOOK_S
        found = dcgm_facts.layout(engine, self._layout.keys())
        changed = [
            gpu
            for gpu in {**self._layout, **found}
            if self._layout.get(gpu) != found.get(gpu) or self._is_forgotten(gpu)
        ]
        boards: dict[int, GpuFacts] = {}
        for gpu in changed:
            self._drop(engine, gpu)
            if gpu in found:
                try:
                    boards[gpu] = dcgm_facts.board(engine, gpu, found[gpu])
                except EngineError as error:
                    self._pass_over(gpu, error)
        self._number(boards, found)
        for gpu, facts in boards.items():
            board = replace(facts, index=self._indices[facts.uuid])
            try:
                self._build(engine, gpu, board, found[gpu], now)
            except EngineError as error:
                self._drop(engine, gpu)
                self._pass_over(gpu, error)
        self._renew(engine)
        built = [row for gpu in boards for unit in self._units.get(gpu, ()) for row in unit.rows]
        for row, answers in self._answers(engine, built):
            row.seen = {answer.field: answer.ts for answer in answers}  # cached before, for whomever
        return bool(changed)

    def _is_forgotten(self, gpu: int) -> bool:
        """Whether the engine has had no news of a GPU that it calls well, as after its driver was bound anew."""
        rows = [row for unit in self._units.get(gpu, ()) for row in unit.rows]
        return bool(rows) and rows[0].stale >= STALE_READS and not self._down[rows[0].facts.uuid]

    def _number(self, boards: dict[int, GpuFacts], found: dcgm_facts.Layout) -> None:
        """Gives each new GPU an index for good: NVML's, where the engine tells it, or the next PCI address's."""
        told = {gpu: found[gpu][0].nvml_index for gpu in boards if found[gpu]}
        taken = set(self._indices.values())
        for gpu in sorted(boards, key=lambda gpu: (gpu not in told, boards[gpu].pci_bus_id, gpu)):
            index = told.get(gpu, 0)
            while index in taken:
                index += 1
            taken.add(self._indices.setdefault(boards[gpu].uuid, index))

    def _build(
        self, engine: Engine, gpu: int, board: GpuFacts, instances: Sequence[dcgm_facts.Instance], now: float
    ) -> None:
        wanted = tuple(one for one in FIELDS if not (board.split and one.slice))
        rows = [[Row(board, engine.entity(GPU, gpu), wanted, now)]]
        if instances:
            sliced = tuple(one for one in FIELDS if one.slice)
            rows.append(
                [
                    Row(
                        dcgm_facts.slice_of(engine, board, instance),
                        engine.entity(GPU_INSTANCE, instance.entity),
                        sliced,
                        now,
                    )
                    for instance in instances
                ]
            )
        self._units[gpu] = []
        for together in rows:
            unit = _Unit(engine.group([row.entity for row in together]), together)
            self._units[gpu].append(unit)
            self._watch_all(engine, unit)
        self._layout[gpu] = tuple(instances)
        self._down.setdefault(board.uuid, "")

    def _drop(self, engine: Engine, gpu: int) -> None:
        self._layout.pop(gpu, None)
        for unit in self._units.pop(gpu, ()):
            self._disturbed = True
            engine.drop(unit.group)

    def _watch_all(self, engine: Engine, unit: _Unit) -> None:
        """Watches what a unit's rows want: device, profiling, pipes and rates apart."""
        barred = ""
        wanted = unit.rows[0].wanted
        for kind in dict.fromkeys(one.group for one in wanted):
            fields = tuple(one for one in wanted if one.group == kind)
            if barred and fields[0].profiles:
                unit.deny(fields, barred)
                continue
            refused = self._watch(engine, unit, fields)
            barred = refused if kind == "profiling" else barred

    def _watch(self, engine: Engine, unit: _Unit, fields: Fields) -> str:
        """Watches ``fields`` or, where that is refused, as many of them as may be: "", or why none.

        Raises:
            EngineError: the connection is of no use.
        """
        unit.owed.pop(fields, None)
        try:
            every = SELDOM if fields[0].group == "seldom" else 1
            engine.watch(unit.group, tuple(one.id for one in fields), every)
        except EngineError as error:
            if ends(error):
                raise
            code = error.code
        else:
            unit.watched.append(fields)
            for row in unit.rows:
                row.allow(fields)
            return ""
        self._disturbed |= fields[0].profiles
        if len(fields) > 1 and ACTS.get(code) in {None, Act.NEVER}:
            half = len(fields) // 2
            codes = [self._watch(engine, unit, some) for some in (fields[:half], fields[half:])]
            return codes[0] if all(codes) else ""
        unit.deny(fields, code)
        self._tell(", ".join(one.name for one in fields), explained(code))
        return code

    def _renew(self, engine: Engine) -> None:
        """Watches profiling anew after a watch has ended or was refused.

        Before Hopper, the engine then has its profiling module end a client's watches, whichever their
        fields, while its cache waits for their values as before.
        """
        if self._disturbed:
            for unit in self._all_units():
                standing, unit.watched = unit.watched, []
                for fields in standing:
                    if fields[0].profiles:
                        self._watch(engine, unit, fields)
                    else:
                        unit.watched.append(fields)
        self._disturbed = False

    def _retry(self, engine: Engine, now: float) -> None:
        self._retry_s = now + RETRY_S
        for unit in self._all_units():
            for fields in list(unit.owed):
                if self._watch(engine, unit, fields):
                    break
        self._renew(engine)

    def _check_start(self, engine: Engine) -> None:
        """Sees that there is something to read.

        Raises:
            SourceError: there is not.
        """
        if not self._units:
            shown = len(engine.call("dcgmGetAllDevices"))
            raise SourceError(
                f"the {self._where} {f'can read none of its {shown} GPUs' if shown else 'shows no GPU'}; if "
                "nvidia-smi shows one, the engine was started before the driver, or has no access to it: "
                "`systemctl restart nvidia-dcgm`"
            )
        rows = self._rows()
        if not any(row.live for row in rows):
            reasons = dict.fromkeys(
                reason for row in rows for reason in (*row.refused.values(), *row.lacking.values())
            )
            raise SourceError(f"the {self._where} lets nothing be watched: {'; '.join(reasons)}")

    def _pass_over(self, gpu: int, error: EngineError) -> None:
        """Leaves a GPU out until the next look, unless the connection is of no use."""
        if ends(error):
            raise error
        self._tell(f"its GPU {gpu}", str(error))

    def _tell(self, what: str, reason: str) -> None:
        """Logs what cannot be read: once, however many GPUs lack it."""
        if (what, reason) not in self._told:
            self._told.add((what, reason))
            log.warning("%s: %s cannot be read: %s", self._where, what, reason)
