"""Which alert silences which, so that one fault wakes once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwhy.recorded import HOST, ROW
from gpuwhy.render.promql import Promql

# Hosts of two clusters may share a name. Alertmanager takes a label that both lack as equal.
_ALWAYS = ("cluster",)
_ABOUT_A_GPU = (
    "GpuwhyStarving",
    "GpuwhyPseudoPeak",
    "GpuwhyMemoryBound",
    "GpuwhyThrottledByHardware",
    "GpuwhyThrottled",
    "GpuwhyClockLocked",
    "GpuwhyGpuHeld",
    "GpuwhyGpuLagging",
    "GpuwhyGpuRegression",
    "GpuwhyTelemetryFault",
)
_ABOUT_A_HOST = (
    "GpuwhyHostRegression",
    "GpuwhySourceDegraded",
    "GpuwhyReadingsStale",
    "GpuwhyGpusMissing",
    "GpuwhyAgentRestarts",
)


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While ``source`` fires, ``targets`` with the same labels ``equal`` are silent; ``why`` is a sentence."""

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    why: str

    def labels(self, promql: Promql) -> list[str]:
        named = {ROW: promql.row, HOST: (promql.host,)}
        return [label for name in (*self.equal, *_ALWAYS) for label in named.get(name, (name,))]


INHIBITIONS: tuple[Inhibition, ...] = (
    Inhibition(
        "GpuwhyAgentAbsent",
        ("GpuwhyAgentDown", "GpuwhyAgentGone"),
        (),
        "All agents are gone: each of them says no more.",
    ),
    *(
        Inhibition(
            source,
            ("GpuwhyGpuLost", *_ABOUT_A_HOST, *_ABOUT_A_GPU),
            (HOST,),
            "What was known of the host is old.",
        )
        for source in ("GpuwhyAgentDown", "GpuwhyAgentGone")
    ),
    Inhibition(
        "GpuwhyGpuLost",
        _ABOUT_A_GPU,
        (HOST, "uuid"),
        "A GPU that is gone has no readings, and what it did before does not matter now.",
    ),
    Inhibition(
        "GpuwhyGpuLost",
        # Not what is about readings: while one GPU waits for its repair, others may fail to be read.
        ("GpuwhyGpusMissing", "GpuwhyHostRegression", "GpuwhyGpuLagging"),
        (HOST,),
        "It says which of the host's GPUs is missing, and why its jobs stand still.",
    ),
    Inhibition(
        "GpuwhyReadingsStale",
        ("GpuwhyTelemetryFault", "GpuwhySourceDegraded"),
        (HOST,),
        "No source of the host answers: it is one fault, not one for each GPU.",
    ),
    Inhibition(
        "GpuwhyThrottledByHardware",
        ("GpuwhyThrottled",),
        (ROW,),
        "The driver often lowers the clock as well.",
    ),
    Inhibition(
        "GpuwhyThrottledByHardware",
        (
            "GpuwhyGpuLagging",
            "GpuwhyPseudoPeak",
            "GpuwhyGpuRegression",
            "GpuwhyHostRegression",
        ),
        (HOST,),
        "Its peers on the host wait for it.",
    ),
    Inhibition(
        "GpuwhyThrottled",
        ("GpuwhyGpuLagging", "GpuwhyGpuRegression"),
        (ROW,),
        "It says why this GPU is late or slower than it was.",
    ),
    Inhibition(
        "GpuwhyStarving",
        ("GpuwhyGpuLagging", "GpuwhyGpuRegression"),
        (ROW,),
        "It says why this GPU is late or slower than it was.",
    ),
    Inhibition(
        "GpuwhyPseudoPeak", ("GpuwhyGpuRegression",), (ROW,), "It says why this GPU is slower than it was."
    ),
    Inhibition(
        "GpuwhyGpuLagging",
        ("GpuwhyPseudoPeak",),
        (HOST,),
        "Those that wait look busy and do little; it says for whom they wait.",
    ),
    Inhibition(
        "GpuwhyGpuRegression",
        ("GpuwhyHostRegression",),
        (HOST,),
        "It says which of the host's GPUs it is.",
    ),
)


def rules(promql: Promql, rendered: frozenset[str]) -> list[dict[str, Any]]:
    """Alertmanager's ``inhibit_rules`` between the alerts that are rendered."""
    found = []
    for row in INHIBITIONS:
        targets = [target for target in row.targets if target in rendered]
        if row.source in rendered and targets:
            found.append(
                {
                    "source_matchers": [f'alertname="{row.source}"'],
                    "target_matchers": [f'alertname=~"{"|".join(targets)}"'],
                    "equal": row.labels(promql),
                }
            )
    return found
