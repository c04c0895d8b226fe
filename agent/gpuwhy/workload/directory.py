"""Who holds each GPU, as far as it is known at this moment: what attribution asks, and never waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source import GpuReading
from gpuwhy.workload.label import clean
from gpuwhy.workload.tables import Key

TITLE_LENGTH = 128
PENDING = "pending"  # no kind that is ever exported

# Somebody of whom nothing can be said: a process in another pid namespace, or one that came and went.
UNKNOWN = Tenant(Workload("unknown", "unknown"))

# Those for which there is no place, all together.
OTHER = Workload("other", "other")
# A process that holds a context for others, as the MPS server does for its clients: nobody's work.
BROKER = Tenant(Workload("unknown", "broker"))


def pending(pid: int) -> Workload:
    """Stands for a process until it is known whose it is, or until its interval closes."""
    return Workload(PENDING, str(pid))


class Directory(Protocol):
    """Answers at once, from what it has."""

    def follow(self, gpus: Sequence[GpuReading]) -> None:
        """Takes note of the GPUs and their owners, which it will be asked about."""

    def tenant(self, pid: int) -> Tenant | None:
        """Whose process it is: ``UNKNOWN`` where that cannot be said, ``BROKER`` where it is another's
        means, None while it is being found out.
        """

    def granted(self, key: Key) -> tuple[Tenant, ...]:
        """To whom a scheduler gave this GPU or MIG instance."""

    def holder(self, name: str) -> Tenant:
        """Whom a source names, as one of ``GpuReading.holder``."""


class Titled:
    """The directory of a recording: all that works in it is the workload that its header names."""

    def __init__(self, title: str) -> None:
        name = clean(title, TITLE_LENGTH)
        self._tenant = Tenant(Workload("replay", name)) if name else UNKNOWN

    def follow(self, gpus: Sequence[GpuReading]) -> None:
        pass

    def tenant(self, pid: int) -> Tenant | None:  # noqa: ARG002  there is one only
        return self._tenant

    def granted(self, key: Key) -> tuple[Tenant, ...]:  # noqa: ARG002
        return ()

    def holder(self, name: str) -> Tenant:  # noqa: ARG002
        return self._tenant
