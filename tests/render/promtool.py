"""Scenes for promtool: series over minutes, and which alerts fire when. All other alerts have to be quiet."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuwhy.catalog import PREFIX

Labels = Mapping[str, str]
Series = dict[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps of a counter: how many, what it gains in each, and whether it is scraped."""

    steps: int
    gain: float = 0.0
    scraped: bool = True


RESTART = Piece(-1)  # the agent starts anew: its counters are 0
END = Piece(-2, scraped=False)  # and no more of it


def counter(*pieces: Piece, start: float = 0.0) -> str:
    """Values of a counter that is first seen at ``start``."""
    value, values = start, [f"{start:g}"]
    for piece in pieces:
        if piece is RESTART:
            value = 0.0
        elif piece is END:
            values.append("stale")
        for step in range(max(0, piece.steps)):
            value += piece.gain
            # A scrape that fails makes everything of its target stale.
            values.append(f"{value:g}" if piece.scraped else "_" if step else "stale")
    return " ".join(values)


def gauge(*values: tuple[int, float | None]) -> str:
    """Values of a gauge, each for so many steps; None is not scraped."""
    words = []
    for steps, value in values:
        words += ["stale" if value is None else f"{value:g}"]
        words += (["_"] if value is None else [f"{value:g}"]) * (steps - 1)
    return " ".join(words)


def series(name: str, values: str, **labels: str) -> Series:
    """One input of a test, with the prefix unless the name is a recorded one or ``up``."""
    own = ",".join(f'{label}="{value}"' for label, value in labels.items())
    full = name if name == "up" or ":" in name else PREFIX + name
    return {"series": f"{full}{{{own}}}", "values": values}


def verdict(row: Labels, verdict: str, cause: str, *pieces: Piece, start: float = 0.0) -> Series:
    """Seconds of a verdict."""
    values = counter(*pieces, start=start)
    return series("verdict_seconds_total", values, **row, verdict=verdict, cause=cause)


def gpu(host: str = "a", index: str = "0", mig: str = "") -> dict[str, str]:
    """The identity of a row."""
    return {"instance": host, "gpu": index, "uuid": f"GPU-{host}{index}", "mig": mig}


def agent(host: str = "a", steps: int = 200, step_s: int = 60, **target: str) -> list[Series]:
    """What an agent that is well always shows."""
    where = {"instance": host, "job": "gpuwhy", **target}
    return [
        series("up", f"1x{steps}", **where),
        series("build_info", f"1x{steps}", **where, version="1", python="3"),
        series("source_degraded", f"0x{steps}", **where),
        series("source_up", f"1x{steps}", **where, source="nvml"),
        series("last_sample_timestamp_seconds", f"0+{step_s}x{steps}", **where),
    ]


@dataclass(frozen=True, slots=True)
class Scene:
    """What happens, and by minute what fires: labels of each alert, by its name.

    ``like`` are the alerts of which this is a look-alike that has to stay quiet.
    """

    name: str
    inputs: Sequence[Series]
    fires: Mapping[int, Mapping[str, Sequence[Labels]]]
    like: tuple[str, ...] = ()
    interval: str = "1m"
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def test(self, rules: Sequence[Mapping[str, Any]], *, asked: bool) -> dict[str, Any]:
        """The test that promtool reads; rules' own labels are added to those that are expected.

        Where ``asked``, the rules' expressions are evaluated at these minutes and no others, which is
        quick over weeks, and sees neither how long they hold nor texts.
        """
        cases = [
            (f"{minute}m", rule, fires.get(rule["alert"], ()))
            for minute, fires in self.fires.items()
            for rule in rules
        ]
        return {
            "name": self.name,
            "interval": self.interval,
            "input_series": list(self.inputs),
            **(
                {"promql_expr_test": [_asked(*case) for case in cases]}
                if asked
                else {"alert_rule_test": [self._fired(*case) for case in cases]}
            ),
        }

    def _fired(self, time: str, rule: Mapping[str, Any], expected: Sequence[Labels]) -> dict[str, Any]:
        texts = {"exp_annotations": self.texts[rule["alert"]]} if rule["alert"] in self.texts else {}
        return {
            "eval_time": time,
            "alertname": rule["alert"],
            "exp_alerts": [
                {"exp_labels": _given({**labels, **rule["labels"]}), **texts} for labels in expected
            ],
        }


def _asked(time: str, rule: Mapping[str, Any], expected: Sequence[Labels]) -> dict[str, Any]:
    own = [",".join(f'{name}="{each}"' for name, each in _given(labels).items()) for labels in expected]
    return {
        "expr": f"0 * ({rule['expr']})",
        "eval_time": time,
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 0} for labels in own],
    }


def _given(labels: Labels) -> dict[str, str]:
    """Labels as Prometheus shows them, which has none that are empty."""
    return {name: each for name, each in labels.items() if each}


def without_texts(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Groups of rules without annotations, which promtool compares whole where there are any."""
    return [{**group, "rules": [{**rule, "annotations": {}} for rule in group["rules"]]} for group in groups]


def failures(
    promtool: str,
    folder: Path,
    groups: Sequence[Mapping[str, Any]],
    scenes: Sequence[Scene],
    every: str = "1m",
    *,
    asked: bool = False,
) -> str:
    """Has promtool play all scenes in one run; what was not as expected, "" for nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = [rule for group in groups for rule in group["rules"]]
    named = {alert for scene in scenes for fires in scene.fires.values() for alert in fires}
    missing = named - {rule["alert"] for rule in rules}
    if missing:
        return f"scenes expect {sorted(missing)}, which are not among the rules that are played"
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(groups)}, width=100_000))
    plan = {
        "rule_files": [] if asked else ["rules.yaml"],
        "evaluation_interval": every,
        "tests": [scene.test(rules, asked=asked) for scene in scenes],
    }
    (folder / "tests.yaml").write_text(yaml.dump(plan, Dumper=_Dumper, sort_keys=False, width=100_000))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


class _Dumper(yaml.SafeDumper):
    """Without anchors, which promtool need not know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
