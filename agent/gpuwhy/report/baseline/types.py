"""What a baseline is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from gpuwhy.catalog import ACTIVITY_UNITS
from gpuwhy.verdict.types import TimeSplit

SCHEMA = "gpuwhy-baseline/1"

# The signals that are kept, by name.
SIGNALS = (
    *(f"{unit}_active_ratio" for unit in ACTIVITY_UNITS),
    "gpu_util_ratio",
    "power_watts",
    "sm_clock_hertz",
    "gpu_temperature_celsius",
    "verdict_confidence_ratio",
)

# How far reading has come: steps done, and steps in all.
Steps: TypeAlias = Callable[[int, int], None]


class BaselineError(Exception):
    """A baseline cannot be taken, kept or compared; the message says why and what to do."""


class AskedError(BaselineError):
    """What was asked for cannot be meant; the message says what can."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU over one interval, minute or scrape.

    ``seconds`` are those that were observed of the GPU: what ``signals`` and ``energy_joules`` speak for.
    ``time`` is the GPU's, or the chosen workload's part of it. Absent = not read.
    """

    end_unix: float
    seconds: float
    time: TimeSplit
    energy_joules: float | None = None
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG row: what it was, who held it, and its samples, oldest first.

    "" and None = not known. ``sources`` are those of its signals; ``warm_up_s`` the seconds in which its
    process was young.
    """

    host: str
    index: int
    uuid: str
    mig: str = ""
    model: str = ""
    driver: str = ""
    profile: str = ""
    share_ratio: float = 1.0
    power_limit_watts: float | None = None
    sm_clock_max_hertz: float | None = None
    sources: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    warm_up_s: float = 0.0
    samples: tuple[Sample, ...] = ()

    @property
    def title(self) -> str:
        """What people call it."""
        return f"GPU {self.index}" + (f" MIG {self.mig}" if self.mig else "")


@dataclass(frozen=True, slots=True)
class Progress:
    """What the work itself says of its pace, one value for each time that it was measured."""

    name: str
    values: tuple[float, ...]
    higher_is_better: bool

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A window of some GPUs, with its conditions.

    ``source`` is "live", "store", "replay:FILE" or the address of a Prometheus; ``workload`` the one that was
    chosen, "" = all that ran; ``version`` that of the gpuwhy that judged, "" = not known. Times are unix
    seconds; ``saved_unix`` is when it was taken.
    """

    name: str
    source: str
    saved_unix: float
    version: str
    gpus: tuple[Gpu, ...]
    note: str = ""
    workload: str = ""
    progress: tuple[Progress, ...] = ()

    @property
    def start_unix(self) -> float:
        return min(sample.end_unix - sample.seconds for gpu in self.gpus for sample in gpu.samples)

    @property
    def end_unix(self) -> float:
        return max(sample.end_unix for gpu in self.gpus for sample in gpu.samples)

    @property
    def step_s(self) -> float:
        """How long a sample is, as a rule."""
        return median(sample.seconds for gpu in self.gpus for sample in gpu.samples)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are taken: of these GPUs (index or UUID), hosts, and this workload; empty = any."""

    gpus: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    workload: str = ""

    def takes(self, host: str, index: int, uuid: str) -> bool:
        return (not self.hosts or host in self.hosts) and (
            not self.gpus or str(index) in self.gpus or uuid in self.gpus
        )

    def is_of(self, name: str, namespace: str) -> bool:
        """Whether it is the chosen workload, which is named as it is, or with its namespace."""
        return self.workload in {name, f"{namespace}/{name}"}

    @property
    def words(self) -> str:
        """The choice as a clause, empty if everything is taken."""
        parts = [f"host {' or '.join(self.hosts)}"] if self.hosts else []
        parts += [f"GPU {' or '.join(self.gpus)}"] if self.gpus else []
        parts += [f"workload {self.workload}"] if self.workload else []
        return f" of {', '.join(parts)}" if parts else ""


def checked(gpus: Sequence[Gpu], where: str, chosen: Choice) -> tuple[Gpu, ...]:
    """Those GPUs that have anything, by host and index.

    Raises:
        BaselineError: none has.

    """
    found = sorted((gpu for gpu in gpus if gpu.samples), key=lambda gpu: (gpu.host, gpu.index, gpu.mig))
    if not found:
        raise BaselineError(
            f"{where} has nothing{chosen.words} in that window: check times and choice"
            + (", and that it was the workload's name" if chosen.workload else "")
        )
    return tuple(found)
