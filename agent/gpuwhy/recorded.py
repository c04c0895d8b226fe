"""What Prometheus keeps recorded: levels, quantities, and the names of their series.

``render/recording.py`` writes the rules, alerts and dashboards read them, and so does the report. A level
is what is summed over; a quantity is what is summed. To add one, add a row to ``LEVELS`` or ``QUANTITIES``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwhy.catalog import PREFIX, WORKLOAD

WINDOW = "1h"


@dataclass(frozen=True, slots=True)
class Quantity:
    """Seconds that are summed: the counter's stem, the labels of its own that are kept, and what it is."""

    stem: str
    help: str
    by: tuple[str, ...] = ()
    workload: bool = False

    @property
    def counter(self) -> str:
        return f"{'workload_' if self.workload else ''}{self.stem}_seconds_total"

    @property
    def base(self) -> str:
        return f"{PREFIX}{self.stem}_seconds"


QUANTITIES = (
    Quantity("verdict", "seconds by verdict and cause", ("verdict", "cause")),
    Quantity("lost", "lost seconds by verdict and cause", ("verdict", "cause")),
    Quantity("useful", "useful seconds"),
    Quantity("headroom", "seconds of headroom"),
    Quantity("free", "seconds without a process"),
    Quantity("measured", "measured seconds"),
    Quantity("observed", "observed seconds"),
)
OF_WORKLOADS = (
    Quantity("verdict", "seconds held, by verdict", ("verdict",), workload=True),
    Quantity("lost", "lost seconds by verdict and cause", ("verdict", "cause"), workload=True),
    Quantity("useful", "useful seconds", workload=True),
    Quantity("measured", "measured seconds", workload=True),
)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the names ``level:metric:operation``: the labels that are kept there.

    ``of`` is the level that it sums up, "" for counters; ``weighs`` whether MIG slices are weighed on the
    way, so that seconds become those of whole GPUs; ``weeks`` whether weeks are recorded too.
    """

    name: str
    help: str
    by: tuple[str, ...]
    of: str = ""
    weighs: bool = False
    workload: bool = False
    weeks: bool = True

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return OF_WORKLOADS if self.workload else QUANTITIES

    @property
    def weekly(self) -> tuple[Quantity, ...]:
        """What weeks are recorded of. Of hosts and models no verdicts: they are many, and lost time says more."""
        spared = {"verdict"} if self.by and not self.workload else set()
        return tuple(each for each in self.quantities if self.weeks and each.stem not in spared)

    def quantity(self, stem: str) -> Quantity:
        """Raises StopIteration for a stem that is not recorded at this level."""
        return next(each for each in self.quantities if each.stem == stem)


ROW, HOST = "row", "host"  # replaced by the labels of the configuration
LEVELS = (
    Level("gpu", "each GPU or MIG instance, its own seconds", (ROW,), weeks=False),
    Level("instance", "each host", (HOST,), of="gpu", weighs=True),
    Level("model", "each model of GPU", ("model",), of="gpu", weighs=True),
    Level("fleet", "all hosts", (), of="instance"),
    Level("workload", "each workload, over all its GPUs", WORKLOAD, weighs=True, workload=True),
    Level("owner", "each owner of workloads", ("workload_owner",), of="workload", workload=True),
)
LEVEL = {level.name: level for level in LEVELS}


def hourly(level: str, stem: str) -> str:
    """The name of the seconds of an hour; raises for what is not recorded."""
    return f"{level}:{LEVEL[level].quantity(stem).base}:increase{WINDOW}"


def weekly(level: str, stem: str) -> str:
    """The name of the seconds of a week; raises for what is not recorded."""
    if LEVEL[level].quantity(stem) not in LEVEL[level].weekly:
        raise KeyError(f"weeks of {stem} are not recorded for level {level}")
    return f"{level}:{LEVEL[level].quantity(stem).base}:sum1w"


def efficiency(level: str, operation: str = f"ratio{WINDOW}") -> str:
    """The name of useful over measured seconds: ``ratio1h``, ``ratio1w``, or its change ``delta1w``."""
    return f"{LEVEL[level].name}:{PREFIX}efficiency:{operation}"
