"""A history file to be, and another program that holds it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.db"


@contextlib.contextmanager
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        yield database


@pytest.fixture
def query() -> Callable[..., list]:
    """``query(file, sql)`` is what another program reads."""

    def ask(file: Path, sql: str) -> list:
        with connection(file) as database:
            return database.execute(sql).fetchall()

    return ask
