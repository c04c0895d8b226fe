"""What waits for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is true, ten seconds at most."""

    def wait(true: Callable[[], bool]) -> None:
        for _ in range(1000):
            if true():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it never came")

    return wait
