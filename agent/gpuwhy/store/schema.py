"""The tables of a history file, and how an older file becomes a newer one.

Times are whole milliseconds and starts Unix seconds, so that sums are exact however often rows are added
to. ``minute`` and ``hour`` hold GPUs, ``*_workload`` what a workload held of one, ``*_cause`` the seconds by
verdict and cause of either (workload 0 = the GPU's own). Of a signal there are its integral over time (in
steps of ``signals.KEPT``), for how much of ``read`` it was not read, and its 95th percentile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from gpuwhy.store.signals import KEPT
from gpuwhy.store.types import HOUR_S, MINUTE_S

APPLICATION = 0x67707779  # "gpwy", by which the file is known as ours


@dataclass(frozen=True, slots=True)
class Resolution:
    """Rows of one length, and the tables that they stand in."""

    name: str
    length_s: int

    @property
    def tables(self) -> tuple[str, str, str]:
        return (self.name, f"{self.name}_workload", f"{self.name}_cause")


MINUTE = Resolution("minute", MINUTE_S)
HOUR = Resolution("hour", HOUR_S)
RESOLUTIONS = (MINUTE, HOUR)

SUMS = ("useful", "headroom", "free", "measured")


def _first(database: sqlite3.Connection) -> None:
    sums = " INTEGER NOT NULL, ".join(SUMS) + " INTEGER NOT NULL"
    database.execute(
        """CREATE TABLE gpu(id INTEGER PRIMARY KEY, gpu_index INTEGER NOT NULL, uuid TEXT NOT NULL,
        mig TEXT NOT NULL, model TEXT NOT NULL, driver TEXT NOT NULL, profile TEXT NOT NULL,
        share_ratio REAL NOT NULL, host TEXT NOT NULL, source TEXT NOT NULL,
        first INTEGER NOT NULL, last INTEGER NOT NULL,
        UNIQUE(uuid, mig, gpu_index, model, driver, profile, share_ratio, host, source))"""
    )
    database.execute(
        """CREATE TABLE workload(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL,
        namespace TEXT NOT NULL, owner TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        UNIQUE(name, namespace, kind, owner))"""
    )
    database.execute(
        "CREATE TABLE cause(id INTEGER PRIMARY KEY, verdict TEXT NOT NULL, cause TEXT NOT NULL, "
        "UNIQUE(verdict, cause))"
    )
    database.execute(
        """CREATE TABLE learnt(uuid TEXT NOT NULL, mig TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
        lessons INTEGER NOT NULL, PRIMARY KEY(uuid, mig, name)) WITHOUT ROWID"""
    )
    for resolution in RESOLUTIONS:
        own, workload, cause = resolution.tables
        database.execute(
            f"CREATE TABLE {own}(start INTEGER NOT NULL, gpu INTEGER NOT NULL, read INTEGER NOT NULL, {sums}, "
            "energy INTEGER, PRIMARY KEY(start, gpu)) WITHOUT ROWID"
        )
        database.execute(
            f"CREATE TABLE {workload}(start INTEGER NOT NULL, gpu INTEGER NOT NULL, workload INTEGER NOT NULL, "
            f"{sums}, PRIMARY KEY(start, gpu, workload)) WITHOUT ROWID"
        )
        database.execute(
            f"CREATE TABLE {cause}(start INTEGER NOT NULL, gpu INTEGER NOT NULL, workload INTEGER NOT NULL, "
            "cause INTEGER NOT NULL, verdict INTEGER NOT NULL, lost INTEGER NOT NULL, "
            "PRIMARY KEY(start, gpu, workload, cause)) WITHOUT ROWID"
        )


# What brings a file from each version to the next; an empty file is version 0. Only ever add to it.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first,)


def version(database: sqlite3.Connection) -> int:
    found: int = database.execute("PRAGMA user_version").fetchone()[0]
    return found


def columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def of_signal(name: str) -> tuple[str, str, str]:
    """Its columns: integral, time in which it was not read, and 95th percentile."""
    return (name, f"{name}_unread", f"{name}_p95")


def up_to_date(database: sqlite3.Connection) -> bool:
    wanted = {column for kept in KEPT for column in of_signal(kept.name)}
    return version(database) == len(MIGRATIONS) and all(
        wanted <= columns(database, resolution.name) for resolution in RESOLUTIONS
    )


def migrate(database: sqlite3.Connection) -> None:
    """Brings a file to this version, in the caller's transaction."""
    for step in MIGRATIONS[version(database) :]:
        step(database)
    for resolution in RESOLUTIONS:
        present = columns(database, resolution.name)
        for kept in KEPT:
            for column in of_signal(kept.name):
                if column not in present:
                    database.execute(f"ALTER TABLE {resolution.name} ADD COLUMN {column} INTEGER")
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
