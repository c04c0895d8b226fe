"""One GPU's interval as the rules see it: densities, clocks and power against what its card can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuwhy.interval import Interval, Portion
from gpuwhy.verdict.cards import Card
from gpuwhy.verdict.check import Limit
from gpuwhy.verdict.types import CauseKey, Evidence

PIPES = ("tensor", "fp64", "fp32", "fp16")
OF_THE_BOARD = frozenset({"sm_clock_hertz", "memory_clock_hertz", "power_limit_watts"})
INTEGER_FROM = Limit(
    0.5,
    "integer work runs beside every kernel (0.35 in a sort, 0.27 in training); only above half of the busy time is it the work itself",
)
STALLED_BY_DRAM = Limit(0.55, "as the upper bound of pseudo-peak: above it DRAM explains the busy time")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule concludes. ``margin`` is how far beyond its limits the weakest reading lies (0.5-1)."""

    verdict: str
    cause: str
    margin: float
    evidence: tuple[Evidence, ...]
    ceiling: float = 1.0
    reason: str | None = None

    @property
    def key(self) -> CauseKey:
        return (self.verdict, self.cause)


@dataclass(frozen=True, slots=True)
class Case:
    """Features of one interval; None = not known.

    Busy time is bounded by ``busy_low`` and ``busy_high``: both are graphics-engine activity where it
    was read (SM activity on a MIG slice). Else the busiest unit bounds it from below and GPU-Util from
    above. ``compute`` (S) is the busiest pipe and ``dram`` (D) the memory interface, each over its
    practical peak. ``board`` is the interval of the board that a MIG slice is cut from: its clocks and
    their events are the slice's, and are exported with the board's row alone. ``hint`` is where
    ``profile`` was said, "" for the host's own. ``part`` is that of one workload of several.
    """

    interval: Interval
    card: Card
    profile: str
    board: Interval | None = None
    hint: str = ""
    part: float = 1.0
    peers: Sequence[Case] = field(default=(), repr=False, compare=False)
    # Rules ask for the same few means over and over; adding up samples each time took most of the stage's time.
    means: Mapping[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, interval: Interval, card: Card, profile: str = "unknown", board: Interval | None = None
    ) -> Case:
        """The case of one GPU, without its peers."""
        means = {name: stat.mean for name, stat in interval.stats.items()}
        return cls(interval, card, profile, board, means=means)

    def mean(self, signal: str) -> float | None:
        """A signal's mean over the interval, None = not read."""
        if self.board is not None and signal in OF_THE_BOARD:
            return self.board.mean(signal)
        return self.means.get(signal)

    @property
    def granted(self) -> str:
        """Whose a GPU without a process is all the same, "" where it is nobody's."""
        named = [portion.workload for portion in self.interval.portions]
        return "" if self.owners else ", ".join(f"{each.kind} {each.title}" for each in named)

    def of_portion(self, portion: Portion, profile: str, hint: str) -> Case:
        """The case as one of several workloads on the GPU has it: with its own process tree and its part of
        what is counted for all of them, without the GPUs that others of them work with.
        """
        means = {name: mean for name, mean in self.means.items() if not name.startswith("process_tree_")}
        means |= {name: stat.mean for name, stat in portion.stats.items()}
        return replace(self, means=means, profile=profile, hint=hint, part=portion.ratio, peers=())

    @property
    def clocked(self) -> Interval:
        """The interval whose clock events hold here: the board's, for a slice of it."""
        return self.interval if self.board is None else self.board

    def covered_s(self, *signals: str | None) -> float:
        """Seconds of the interval for which all of some signals were read."""
        stats = [self.interval.stats.get(name) for name in signals if name is not None]
        found = [0.0 if stat is None else stat.covered_s for stat in stats]
        return min([self.interval.covered_s, *found])

    def evidence(self, signal: str | None, test: str) -> tuple[Evidence, ...]:
        """A reading as evidence, empty where it was not read."""
        value = None if signal is None else self.mean(signal)
        return () if signal is None or value is None else (Evidence(signal, value, test),)

    @property
    def exact_signal(self) -> str | None:
        """The counter that is busy time itself, None where it was not read."""
        name = "sm_active_ratio" if self.interval.gpu.mig else "graphics_active_ratio"
        return name if self.mean(name) is not None else None

    @property
    def low_signal(self) -> str | None:
        """The signal that ``busy_low`` is the mean of, None where nothing says that anything runs."""
        if self.exact_signal is not None:
            return self.exact_signal
        names = [f"{name}_active_ratio" for name in ("graphics", "sm", "dram", *PIPES)]
        units = {name: self.mean(name) for name in names}
        known = {name: value for name, value in units.items() if value is not None}
        return max(known, key=lambda name: known[name], default=None)

    @property
    def high_signal(self) -> str | None:
        """The signal that ``busy_high`` is the mean of, None where nothing bounds busy time from above."""
        if self.exact_signal is not None:
            return self.exact_signal
        util = self.mean("gpu_util_ratio")
        if util is None:
            on_slice = self.interval.gpu.mig and self.mean("graphics_active_ratio") is not None
            return "graphics_active_ratio" if on_slice else None
        return self.low_signal if self.low_signal is not None and self.busy_low > util else "gpu_util_ratio"

    @property
    def busy_read(self) -> float | None:
        """Busy time where a profiling counter says it."""
        return None if self.exact_signal is None else self.mean(self.exact_signal)

    @property
    def busy_low(self) -> float:
        """At least this much busy; 0 where nothing was read."""
        return 0.0 if self.low_signal is None else self.mean(self.low_signal) or 0.0

    @property
    def busy_high(self) -> float:
        """At most this much busy; 1 where nothing was read."""
        value = None if self.high_signal is None else self.mean(self.high_signal)
        if value is None:
            return 1.0
        if self.interval.gpu.mig and self.high_signal == "graphics_active_ratio":
            # A slice's engine activity may be given as a share of the whole GPU: it then tops at its share.
            return min(1.0, max(self.busy_low, value / self.interval.gpu.share_ratio))
        return value

    @property
    def profiled(self) -> bool:
        """Whether any profiling counter of the SMs or DRAM was read."""
        names = ("graphics", "sm", "tensor", "dram")
        return any(self.mean(f"{name}_active_ratio") is not None for name in names)

    def pipe(self, name: str) -> float | None:
        """A pipe's activity over its practical peak."""
        value = self.mean(f"{name}_active_ratio")
        return None if value is None else value / getattr(self.card, f"{name}_peak_ratio")

    @property
    def pipes(self) -> dict[str, float]:
        known = {name: self.pipe(name) for name in PIPES}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def busiest_pipe(self) -> str | None:
        pipes = self.pipes
        if not pipes:
            return None
        best = max(pipes, key=lambda name: pipes[name])
        integer, dram = self.pipe("int"), self.dram or 0.0
        if (
            integer is not None
            and integer > pipes[best]
            and integer >= INTEGER_FROM.value * self.busy_low
            and dram < STALLED_BY_DRAM.value * self.busy_low
        ):
            return "int"
        return best

    @property
    def compute(self) -> float | None:
        best = self.busiest_pipe
        return None if best is None else self.pipe(best)

    @property
    def dram(self) -> float | None:
        value = self.mean("dram_active_ratio")
        return None if value is None else value / self.card.dram_peak_ratio

    @property
    def all_pipes(self) -> bool:
        """Whether every pipe was read: else low compute may be work that was not seen."""
        return len(self.pipes) == len(PIPES)

    @property
    def measured(self) -> bool:
        """Whether useful time can be told: busy, DRAM and every pipe were read."""
        return self.exact_signal is not None and self.dram is not None and self.all_pipes

    def density(self, value: float | None) -> float | None:
        """``value`` per busy time, at least."""
        busy = self.busy_high
        return None if value is None or busy <= 0 else value / busy

    def density_at_most(self, value: float | None) -> float | None:
        """``value`` per busy time where busy time is as short as it can be."""
        busy = self.busy_low
        return None if value is None or busy <= 0 else value / busy

    @property
    def clock_max_hertz(self) -> float | None:
        return self.clocked.gpu.sm_clock_max_hertz or (
            self.card.sm_clock_max_hertz if self.card.known else None
        )

    @property
    def clock_ratio(self) -> float | None:
        clock, top = self.mean("sm_clock_hertz"), self.clock_max_hertz
        return None if clock is None or not top else clock / top

    @property
    def memory_clock_ratio(self) -> float | None:
        clock, top = self.mean("memory_clock_hertz"), self.clocked.gpu.memory_clock_max_hertz
        return None if clock is None or not top else clock / top

    @property
    def limit_ratio(self) -> float | None:
        """Enforced power limit over the default one, as both were read: a row holds cards of several defaults."""
        limit, default = self.mean("power_limit_watts"), self.clocked.gpu.default_power_limit_watts
        return None if limit is None or not default else limit / default

    @property
    def power_signal(self) -> str | None:
        """The signal that ``power_ratio`` rests on, None where power was not read."""
        for name in ("power_watts", "power_instant_watts"):
            if self.mean(name) is not None:
                return name
        return None

    @property
    def power_ratio(self) -> float | None:
        """Power above an idle context, as a share of what the limit leaves above it.

        None on a MIG slice: power is the whole board's.
        """
        if self.power_signal is None or self.interval.gpu.mig:
            return None
        power = self.mean(self.power_signal)
        default = self.interval.gpu.default_power_limit_watts or self.interval.gpu.power_limit_watts
        if default is None and self.card.known:
            default = self.card.default_power_watts
        limit = self.mean("power_limit_watts") or default
        if power is None or not limit or not default:
            return None
        idle = self.card.context_ratio * default
        return None if limit <= idle else max(0.0, (power - idle) / (limit - idle))

    def reason(self, name: str) -> float | None:
        """Share of time in a clock-event reason, None when reasons were not read."""
        reasons = self.clocked.reasons
        return None if reasons is None else reasons.get(name, 0.0)

    @property
    def host_read(self) -> bool:
        """Whether the process tree was seen."""
        return self.mean("process_tree_cpu_cores") is not None

    @property
    def owners(self) -> frozenset[int] | None:
        return self.interval.owners

    def rate_above_floor(self, signal: str) -> float | None:
        value = self.mean(signal)
        return None if value is None else max(0.0, value - self.card.receive_floor_bytes_per_second)

    @property
    def family_peers(self) -> list[Case]:
        """The other GPUs that work for the same job."""
        return [peer for peer in self.peers if peer.interval.family & self.interval.family]
