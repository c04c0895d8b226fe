"""The history file while it is written: one connection, used by one thread."""

# ruff: noqa: S608  names of tables and columns come from schema.py, values are bound

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwhy.store import schema
from gpuwhy.store.minutes import Cell, Subject, storable
from gpuwhy.store.schema import HOUR, MINUTE, RESOLUTIONS, SUMS, Resolution, of_signal
from gpuwhy.store.signals import KEPT
from gpuwhy.store.types import HOUR_S, StoreError
from gpuwhy.verdict.learn import Lessons

BUSY_S = 1.0  # that another's transaction is waited for
SETTLED_PAGES = 256  # of the write-ahead log, before they are moved into the file
LOG_BYTES = 2 << 20  # of the write-ahead log, when it is empty
FREED_PAGES = 512  # given back to the file system at a time
SLACK = 8  # free pages are kept for new rows up to this part of the file
CORRUPT_KEPT = 2
SIDES = ("", "-wal", "-shm")


class DamagedError(Exception):
    """What the file holds is no history, or no longer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept. Rows older than ``age_s`` go, and the oldest minutes while there are more than ``size_bytes``."""

    age_s: float
    size_bytes: int


class Database:
    """The open file, which no other agent may write meanwhile.

    Every method may raise StoreError, or DamagedError where the file should be set aside; the
    object is of no more use then but to be closed.
    """

    def __init__(self, path: Path, *, host: str, source: str) -> None:
        self.path = path
        self._host = host
        self._source = source
        self._ids: dict[tuple[object, ...], int] = {}
        self._ids_of = 0  # the hour in which they were looked up
        with contextlib.ExitStack() as undo:
            with _explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"{path} is in use by another agent: stop it, or give this one a store.path of its own"
                ) from None
            except OSError:
                pass  # a file system without locks: one agent to a file is then up to the user
            with _explained(path):
                self._database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
                undo.callback(self._database.close)
                self._open()
                self._identity = _identity(path)
            self._sides: dict[Path, tuple[int, int] | None] = {}
            self._note_sides()
            self._undo = undo.pop_all()

    def _open(self) -> None:
        database = self._database
        if _is_new(self.path, database):
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        elif (damage := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise DamagedError(damage)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint = {SETTLED_PAGES}")
        database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        database.execute("PRAGMA cache_size = -512")
        if not schema.up_to_date(database):
            with self._transaction():
                schema.migrate(database)

    def close(self) -> None:
        """Closes it, and lets another agent have it."""
        replaced = self.replaced()
        with contextlib.suppress(sqlite3.Error):
            self._undo.close()
        # SQLite leaves the log of a file that is gone, and would play it into the one in its place.
        for side, identity in self._sides.items() if replaced else ():
            if identity is not None and _identity(side) == identity:
                with contextlib.suppress(OSError):
                    side.unlink()

    def replaced(self) -> bool:
        """Whether the file was removed, or another one stands in its place."""
        return _identity(self.path) != self._identity

    def _note_sides(self) -> None:
        self._sides = {side: _identity(side) for name in SIDES[1:] for side in [Path(f"{self.path}{name}")]}

    def lessons(self) -> Lessons:
        """The learnt numbers that were kept last."""
        with _explained(self.path):
            rows = self._database.execute("SELECT uuid, mig, name, value, lessons FROM learnt").fetchall()
        return {(uuid, mig, name): (value, lessons) for uuid, mig, name, value, lessons in rows}

    def write(self, cells: Iterable[Cell], lessons: Lessons | None = None) -> None:
        """Adds cells to their minutes and hours, and replaces learnt numbers: all of it or nothing."""
        with _explained(self.path), self._transaction():
            for cell in cells:
                for resolution in RESOLUTIONS:
                    self._add(cell, resolution)
            for key, lesson in (lessons or {}).items():
                self._database.execute("INSERT OR REPLACE INTO learnt VALUES(?, ?, ?, ?, ?)", (*key, *lesson))
        self._note_sides()

    def tidy(self, bounds: Bounds, unix_s: float) -> None:
        """One step towards the bounds, short enough that nobody waits for it.

        A step drops the rows of one hour. So a clock that is wrong for a while costs a little of the
        oldest history, not all of it.
        """
        with _explained(self.path):
            oldest = self._oldest(HOUR, MINUTE)
            if oldest is None:
                return
            if oldest + HOUR_S <= unix_s - bounds.age_s:
                self._drop(RESOLUTIONS, oldest + HOUR_S)
            elif self._bytes()[1] > bounds.size_bytes:
                minute = self._oldest(MINUTE)
                if minute is not None:
                    self._drop((MINUTE,), minute + HOUR_S)
                else:
                    self._drop((HOUR,), oldest + HOUR_S)
            size, used = self._bytes()
            if size - used > size // SLACK or (used < size > bounds.size_bytes):
                # Python steps a statement without columns once, which frees one page; a script to its end.
                self._database.executescript(f"PRAGMA incremental_vacuum({FREED_PAGES})")

    def _oldest(self, *resolutions: Resolution) -> int | None:
        """The start of the hour of the oldest row."""
        found = [
            start
            for resolution in resolutions
            for (start,) in self._database.execute(f"SELECT min(start) FROM {resolution.name}")
            if start is not None
        ]
        return min(found) // HOUR_S * HOUR_S if found else None

    def _drop(self, resolutions: Iterable[Resolution], before: int) -> None:
        with self._transaction():
            for resolution in resolutions:
                for table in resolution.tables:
                    self._database.execute(f"DELETE FROM {table} WHERE start < ?", (before,))
            oldest = self._oldest(HOUR, MINUTE)
            for table in ("gpu", "workload"):
                self._database.execute(
                    f"DELETE FROM {table} WHERE last < ?", (before if oldest is None else oldest,)
                )
            self._ids.clear()

    def _bytes(self) -> tuple[int, int]:
        """Size of the file, and what of it is in use."""
        size, pages, free = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
        return pages * size, (pages - free) * size

    def _add(self, cell: Cell, resolution: Resolution) -> None:
        start = cell.start // resolution.length_s * resolution.length_s
        hour = cell.start // HOUR_S * HOUR_S
        gpu = self._gpu(cell.subject, hour)
        workload = 0
        own, held, spent = resolution.tables
        if cell.workload is None:
            signals = [number for measured in cell.signals for number in measured]
            self._database.execute(_ADD_GPU[own], (start, gpu, cell.read, *cell.sums, cell.energy, *signals))
        else:
            columns = ("kind", "name", "namespace", "owner")
            names = tuple(storable(getattr(cell.workload, column)) for column in columns)
            workload = self._id("workload", columns, names, hour)
            self._database.execute(_ADD_WORKLOAD[held], (start, gpu, workload, *cell.sums))
        for key, both in cell.causes.items():
            row = (start, gpu, workload, self._cause(key), *both)
            self._database.execute(_ADD_CAUSE[spent], row)

    def _gpu(self, subject: Subject, hour: int) -> int:
        names = ("gpu_index", "uuid", "mig", "model", "driver", "profile", "share_ratio", "host", "source")
        return self._id("gpu", names, (*subject, self._host, self._source), hour)

    def _cause(self, key: tuple[str, str]) -> int:
        name = ("cause", *key)
        known = self._ids.get(name)
        if known is None:
            self._database.execute(
                "INSERT INTO cause(verdict, cause) VALUES(?, ?) ON CONFLICT DO NOTHING", key
            )
            query = "SELECT id FROM cause WHERE verdict = ? AND cause = ?"
            known = self._ids[name] = self._database.execute(query, key).fetchone()[0]
        return known

    def _id(self, table: str, names: tuple[str, ...], values: tuple[object, ...], hour: int) -> int:
        """The id of what has these values, which was there in this hour."""
        if hour != self._ids_of:
            self._ids, self._ids_of = {}, hour
        name = (table, *values)
        known = self._ids.get(name)
        if known is None:
            marks = ", ".join("?" * (len(names) + 2))
            self._database.execute(
                f"INSERT INTO {table}({', '.join(names)}, first, last) VALUES({marks}) "
                f"ON CONFLICT({', '.join(names)}) DO UPDATE "
                "SET first = min(first, excluded.first), last = max(last, excluded.last)",
                (*values, hour, hour),
            )
            where = " AND ".join(f"{column} = ?" for column in names)
            row = self._database.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()
            known = self._ids[name] = row[0]
        return known

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            self._ids.clear()
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise


def set_aside(path: Path) -> Path:
    """Renames a damaged file, with what belongs to it, and returns its new name; only the last few are kept."""
    with _explained(path):
        aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        for side in SIDES:
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{side}").rename(f"{aside}{side}")
        names = {each.name for each in path.parent.glob(f"{path.name}.corrupt-*")}
        files = sorted(name for name in names if not name.endswith(SIDES[1:]))
        for name in files[:-CORRUPT_KEPT]:
            for side in SIDES:
                (path.parent / f"{name}{side}").unlink(missing_ok=True)
        return aside


def _is_new(path: Path, database: sqlite3.Connection) -> bool:
    """Whether the file is still empty.

    Raises:
        StoreError: it is not ours to write.

    """
    application = database.execute("PRAGMA application_id").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    found = schema.version(database)
    if application != schema.APPLICATION and (application or found or tables):
        raise StoreError(
            f"{path} is another program's database, and stays as it is: set store.path elsewhere"
        )
    if found > len(schema.MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer gpuwhy (version {found} of its tables, this one knows "
            f"{len(schema.MIGRATIONS)}), and stays as it is: upgrade, or move it away"
        )
    return not tables


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and the system say into a sentence with a remedy."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path}: {error}: {_remedy(str(error))}") from error
    except sqlite3.DatabaseError as error:
        # Python has no class of its own for what is no database, or a malformed one.
        if type(error) is sqlite3.DatabaseError:
            raise DamagedError(str(error)) from error
        raise
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}: make its folder one that this user may write to, or set store.path"
        ) from error


_REMEDIES = (
    ("locked", "another program holds it; end that program's transaction"),
    ("full", "make room on its file system, or lower store.most_mebibytes"),
    ("readonly", "make it writable for this user, or set store.path"),
    ("unable to open", "make its folder one that this user may write to, or set store.path"),
    ("I/O", "look for a full file system, a quota or a failing disk"),
)


def _remedy(text: str) -> str:
    return next((remedy for part, remedy in _REMEDIES if part in text), "see the log of the system")


def _upsert(table: str, keys: tuple[str, ...], changes: Mapping[str, str]) -> str:
    """An INSERT that adds to a row where there is one; ``changes`` says how, by column."""
    key, names = ", ".join(keys), [*keys, *changes]
    sets = ", ".join(f"{name} = {change}" for name, change in changes.items())
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {table}({', '.join(names)}) VALUES({marks}) ON CONFLICT({key}) DO UPDATE SET {sets}"


def _sum(name: str) -> str:
    return f"{name} + excluded.{name}"


def _sum_of_known(name: str) -> str:
    return f"coalesce({name} + excluded.{name}, {name}, excluded.{name})"


def _signal_changes() -> Iterator[tuple[str, str]]:
    for kept in KEPT:
        integral, unread, p95 = of_signal(kept.name)
        yield integral, _sum_of_known(integral)
        # A row older than the column has not read it at all.
        yield unread, f"coalesce({unread}, read) + excluded.{unread}"
        yield p95, f"coalesce(max({p95}, excluded.{p95}), {p95}, excluded.{p95})"


_SUMS = {name: _sum(name) for name in SUMS}


def _add_gpu() -> dict[str, str]:
    changes = {"read": _sum("read"), **_SUMS, "energy": _sum_of_known("energy"), **dict(_signal_changes())}
    return {each.name: _upsert(each.name, ("start", "gpu"), changes) for each in RESOLUTIONS}


_ADD_GPU = _add_gpu()
_ADD_WORKLOAD = {
    resolution.tables[1]: _upsert(resolution.tables[1], ("start", "gpu", "workload"), _SUMS)
    for resolution in RESOLUTIONS
}
_ADD_CAUSE = {
    resolution.tables[2]: _upsert(
        resolution.tables[2],
        ("start", "gpu", "workload", "cause"),
        {name: _sum(name) for name in ("verdict", "lost")},
    )
    for resolution in RESOLUTIONS
}
