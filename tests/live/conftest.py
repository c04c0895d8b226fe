"""Real programs over a replay: what these tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .history import Programs, kept, served
from .programs import Prometheus

REMEDY = "`make test` fetches it where apt-get works, or put it on PATH"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replaying two weeks takes longer than a unit test may."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def prometheus_program(require_program: Callable[[str, str], str]) -> str:
    """Path of Prometheus."""
    return require_program("prometheus", REMEDY)


@pytest.fixture(scope="session")
def alertmanager_program(require_program: Callable[[str, str], str]) -> str:
    """Path of Alertmanager."""
    return require_program("prometheus-alertmanager", REMEDY)


@pytest.fixture(scope="session")
def replayed(root: Path, promtool: str, prometheus_program: str) -> Iterator[Prometheus]:
    """A Prometheus that holds the replay of two weeks."""
    programs = Programs(promtool, prometheus_program)
    with served(programs, kept(root, programs)) as server:
        yield server
