"""The history file, read: while an agent writes it, or a copy of it."""

# ruff: noqa: S608  names of tables and columns come from schema.py, values are bound

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from gpuwhy.sample import Workload
from gpuwhy.store import schema
from gpuwhy.store.schema import HOUR, MINUTE, SUMS, Resolution, of_signal
from gpuwhy.store.signals import KEPT, Kept
from gpuwhy.store.types import Facts, GpuRow, Level, Span, StoreError, WorkloadRow
from gpuwhy.verdict.types import CauseKey, TimeSplit

BUSY_S = 5.0
CHUNK_ROWS = 360  # of one GPU that are read at a time

_Causes = dict[tuple[int, int, int], tuple[dict[CauseKey, float], dict[CauseKey, float]]]


class Reader:
    """Reads one file; nothing is written to it.

    Every method raises StoreError, which names the file and the remedy, where it cannot be read; of an
    iterator each step does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._explained():
            self._database = self._connected()

    def __enter__(self) -> Reader:  # noqa: PYI034  Self comes with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        self._database.close()

    def span(self) -> Span | None:
        """What time it speaks of, None while it holds nothing."""
        with self._explained():
            row = self._database.execute(
                "SELECT (SELECT min(start) FROM hour), (SELECT min(start) FROM minute), "
                "(SELECT max(start) FROM minute), (SELECT max(start) FROM hour)"
            ).fetchone()
        first_hour, first_minute, last_minute, last_hour = row
        if first_hour is None:
            return None
        if first_minute is None:
            end = last_hour + HOUR.length_s
            return Span(first_hour, end, end)
        return Span(first_hour, first_minute, last_minute + MINUTE.length_s)

    def facts(self) -> tuple[Facts, ...]:
        """Every GPU that has rows, as it was, ordered by index."""
        with self._explained():
            return tuple(
                sorted(self._facts().values(), key=lambda each: (each.index, each.mig, each.first_unix))
            )

    def hours(self, start_unix: float, end_unix: float) -> Iterator[GpuRow]:
        """GPUs by hour: the hours that start in ``start_unix <= t < end_unix``, oldest first."""
        return self._read(HOUR, start_unix, end_unix, self._gpu_rows)

    def minutes(self, start_unix: float, end_unix: float) -> Iterator[GpuRow]:
        """The same by minute."""
        return self._read(MINUTE, start_unix, end_unix, self._gpu_rows)

    def workload_hours(self, start_unix: float, end_unix: float) -> Iterator[WorkloadRow]:
        """Workloads by hour."""
        return self._read(HOUR, start_unix, end_unix, self._workload_rows)

    def workload_minutes(self, start_unix: float, end_unix: float) -> Iterator[WorkloadRow]:
        """Workloads by minute."""
        return self._read(MINUTE, start_unix, end_unix, self._workload_rows)

    def _read(
        self,
        resolution: Resolution,
        start_unix: float,
        end_unix: float,
        rows: Callable[[Resolution, int, float], list[Any]],
    ) -> Iterator[Any]:
        """Reads a piece at a time, each in one transaction, so that a writer is never held up for long."""
        while True:
            with self._explained(), self._transaction():
                query = f"SELECT min(start) FROM {resolution.name} WHERE start >= ? AND start < ?"
                start = self._database.execute(query, (start_unix, end_unix)).fetchone()[0]
                if start is None:
                    return
                start_unix = start + CHUNK_ROWS * resolution.length_s
                found = rows(resolution, start, min(start_unix, end_unix))
            yield from found

    def _gpu_rows(self, resolution: Resolution, start: int, end: float) -> list[GpuRow]:
        facts, causes = self._facts(), self._causes(resolution, start, end)
        present = schema.columns(self._database, resolution.name)
        signals = [kept for kept in KEPT if kept.name in present]
        names = ", ".join(column for kept in signals for column in of_signal(kept.name))
        query = (
            f"SELECT start, gpu, read, energy, {', '.join(SUMS)}{', ' if names else ''}{names} "
            f"FROM {resolution.name} WHERE start >= ? AND start < ? ORDER BY start, gpu"
        )
        found = []
        for row in self._database.execute(query, (start, end)):
            at, gpu, read, energy = row[:4]
            numbers = row[4 + len(SUMS) :]
            found.append(
                GpuRow(
                    at,
                    resolution.length_s,
                    facts[gpu],
                    _split(row[4 : 4 + len(SUMS)], causes.get((at, gpu, 0))),
                    None if energy is None else float(energy),
                    {
                        kept.name: level
                        for place, kept in enumerate(signals)
                        if (level := _level(kept, read, *numbers[3 * place : 3 * place + 3])) is not None
                    },
                )
            )
        return found

    def _workload_rows(self, resolution: Resolution, start: int, end: float) -> list[WorkloadRow]:
        facts, causes = self._facts(), self._causes(resolution, start, end)
        names = {
            number: Workload(*texts)
            for number, *texts in self._database.execute(
                "SELECT id, kind, name, namespace, owner FROM workload"
            )
        }
        own, held, _ = resolution.tables
        query = (
            f"SELECT held.start, held.gpu, held.workload, own.read, {', '.join(f'held.{name}' for name in SUMS)} "
            f"FROM {held} AS held LEFT JOIN {own} AS own ON own.start = held.start AND own.gpu = held.gpu "
            "WHERE held.start >= ? AND held.start < ? ORDER BY held.start, held.gpu, held.workload"
        )
        found = []
        for at, gpu, workload, read, *sums in self._database.execute(query, (start, end)):
            time = _split(sums, causes.get((at, gpu, workload)))
            ratio = min(1.0, 1e3 * time.observed / read) if read else 0.0
            found.append(WorkloadRow(at, resolution.length_s, facts[gpu], names[workload], ratio, time))
        return found

    def _facts(self) -> dict[int, Facts]:
        return {
            number: Facts(*facts)
            for number, *facts in self._database.execute(
                "SELECT id, gpu_index, uuid, mig, model, driver, profile, share_ratio, host, source, first, last FROM gpu"
            )
        }

    def _causes(self, resolution: Resolution, start: int, end: float) -> _Causes:
        keys = {
            number: (verdict, cause)
            for number, verdict, cause in self._database.execute("SELECT id, verdict, cause FROM cause")
        }
        query = (
            f"SELECT start, gpu, workload, cause, verdict, lost FROM {resolution.tables[2]} "
            "WHERE start >= ? AND start < ?"
        )
        found: _Causes = {}
        for at, gpu, workload, cause, verdict, lost in self._database.execute(query, (start, end)):
            headline, losses = found.setdefault((at, gpu, workload), ({}, {}))
            if verdict:
                headline[keys[cause]] = verdict / 1e3
            if lost:
                losses[keys[cause]] = lost / 1e3
        return found

    def _connected(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise StoreError(f"{self._path} does not exist: let the agent run for a while, or name its file")
        if self._path.is_dir():
            raise StoreError(f"{self._path} is a folder: name the file in it")
        try:
            database = self._checked("mode=ro")
        except sqlite3.OperationalError as error:
            # A file that was closed well can be read where nothing beside it may be written.
            log = Path(f"{self._path}-wal")
            if "locked" in str(error) or (log.exists() and log.stat().st_size):
                raise
            database = self._checked("mode=ro&immutable=1")
        try:
            return self._understood(database)
        except BaseException:
            database.close()
            raise

    def _checked(self, options: str) -> sqlite3.Connection:
        database = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?{options}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            schema.version(database)
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def _understood(self, database: sqlite3.Connection) -> sqlite3.Connection:
        """The database in this version's tables; an older file is brought to them in memory."""
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{self._path} holds nothing yet: let the agent run for a while")
        if database.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION:
            raise StoreError(f"{self._path} is no history of gpuwhy: name another file")
        version = schema.version(database)
        if version > len(schema.MIGRATIONS):
            raise StoreError(
                f"{self._path} was written by a newer gpuwhy (version {version} of its tables, this one knows "
                f"{len(schema.MIGRATIONS)}): read it with that one"
            )
        if version == len(schema.MIGRATIONS):
            return database
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        database.backup(copy)
        database.close()
        schema.migrate(copy)
        return copy

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """One state of the file for all that is read in it."""
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self._path} cannot be read: {error}: {_remedy(str(error))}") from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self._path} is damaged ({error}): move it away, and restart the agent to begin a new one"
            ) from error
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be read: {error.strerror}: let this user read it"
            ) from error


def _remedy(text: str) -> str:
    if "locked" in text:
        return "another program holds it; try again when that has ended"
    return (
        "let this user read it and what is beside it, or copy it with its -wal file to a folder of your own"
    )


def _split(sums: Any, causes: tuple[dict[CauseKey, float], dict[CauseKey, float]] | None) -> TimeSplit:
    verdict, lost = causes or ({}, {})
    times = {name: milliseconds / 1e3 for name, milliseconds in zip(SUMS, sums, strict=True)}
    return TimeSplit(observed=sum(verdict.values()), lost=lost, verdict=verdict, **times)


def _level(kept: Kept, read: int, integral: int | None, unread: int | None, p95: int | None) -> Level | None:
    covered = read - (read if unread is None else unread)
    if integral is None or p95 is None or covered <= 0:
        return None
    return Level(mean=integral * kept.step / (covered / 1e3), p95=p95 * kept.step)
