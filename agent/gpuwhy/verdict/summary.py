"""Verdicts of one GPU over a window, summed up: which one won, on what evidence, where the time went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuwhy.sample import Workload
from gpuwhy.verdict.playbook import next_steps
from gpuwhy.verdict.types import CauseKey, Evidence, TimeSplit, Verdict, WorkloadVerdict

SCHEMA = "gpuwhy-explain/1"
MOST_TITLES = 4
MOST_WORKLOADS = 64  # of one GPU that are listed, those with most time
SHARED = frozenset({"utilization", "even"})


def winner(verdicts: Sequence[Verdict]) -> CauseKey:
    """The verdict with most seconds and, in it, the cause with most seconds; ties go to the later one."""
    return _winner([verdict.time for verdict in verdicts])


def _winner(splits: Iterable[TimeSplit]) -> CauseKey:
    by_verdict: dict[str, float] = {}
    by_cause: dict[CauseKey, float] = {}
    for split in splits:
        for key, seconds in split.verdict.items():
            # Re-inserting keeps the order of last appearance, so that max() below prefers the later of equals.
            by_verdict[key[0]] = by_verdict.pop(key[0], 0.0) + seconds
            by_cause[key] = by_cause.pop(key, 0.0) + seconds
    name = _latest_max(by_verdict)
    cause: CauseKey = _latest_max({key: seconds for key, seconds in by_cause.items() if key[0] == name})
    return cause


def _latest_max(seconds: dict[Any, float]) -> Any:
    best = max(seconds.values())
    return [key for key, value in seconds.items() if value >= best - 1e-9][-1]


def total(splits: Iterable[TimeSplit]) -> TimeSplit:
    """The sum of time splits."""
    lost: dict[CauseKey, float] = {}
    by_verdict: dict[CauseKey, float] = {}
    observed = measured = useful = headroom = free = 0.0
    for split in splits:
        observed += split.observed
        measured += split.measured
        useful += split.useful
        headroom += split.headroom
        free += split.free
        for target, source in ((lost, split.lost), (by_verdict, split.verdict)):
            for key, seconds in source.items():
                target[key] = target.get(key, 0.0) + seconds
    return TimeSplit(observed, measured, useful, headroom, free, lost, by_verdict)


def summarise(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """One GPU's entry in ``gpuwhy explain --format json`` and ``/api/v1/status``.

    ``verdicts`` are those of one GPU, oldest first, at least one.
    """
    key = winner(verdicts)
    time = total(verdict.time for verdict in verdicts)
    won = [verdict for verdict in verdicts if verdict.verdict == key[0]]
    weights = [verdict.end_s - verdict.start_s for verdict in won]
    weighted = sum(verdict.confidence * weight for verdict, weight in zip(won, weights, strict=True))
    # None where time without readings won, though no interval was as empty as to be called so.
    shown = next((verdict for verdict in reversed(won) if verdict.cause == key[1]), won[-1] if won else None)
    latest = shown or verdicts[-1]
    causes = {f"{verdict}/{cause}": round(seconds, 3) for (verdict, cause), seconds in time.verdict.items()}
    gpu = latest.gpu
    sources: dict[str, str] = {}
    for verdict in verdicts:
        sources.update(verdict.sources)
    pid = latest.owners[0] if latest.owners else None
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "mig": gpu.mig,
        "model": gpu.model,
        "workload": titles(latest.workloads),
        "verdict": key[0],
        "cause": key[1],
        "confidence": round(weighted / sum(weights), 4) if won else 0.0,
        "seconds": _by_name(time),
        "causes": causes,
        "observed_s": round(time.observed, 3),
        "measured_s": round(time.measured, 3),
        "useful_s": round(time.useful, 3),
        "headroom_s": round(time.headroom, 3),
        "free_s": round(time.free, 3),
        "unattributed_s": round(time.unattributed, 3),
        "lost": {f"{verdict}/{cause}": round(value, 3) for (verdict, cause), value in time.lost.items()},
        "flags": sorted(frozenset().union(*(verdict.flags for verdict in verdicts))),
        "reason": shown.reason if shown else "most of the time there was no reading of this GPU",
        "evidence": _evidence(shown.evidence if shown else ()),
        "next_steps": list(next_steps(*key, gpu_index=gpu.index, pid=pid)),
        "workloads": _workloads(verdicts),
        "means": {name: round(value, 6) for name, value in sorted(latest.signals.items())},
        "signals": dict(sorted(sources.items())),
    }


def _workloads(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """An entry for each workload that held the GPU in the window, the one with most of its time first."""
    by_workload: dict[Workload, list[WorkloadVerdict]] = {}
    for verdict in verdicts:
        for each in verdict.workloads:
            by_workload.setdefault(each.workload, []).append(each)
    observed = sum(verdict.time.observed for verdict in verdicts)
    entries = [_workload(parts, observed) for parts in by_workload.values()]
    return sorted(entries, key=lambda entry: -float(entry["observed_s"]))[:MOST_WORKLOADS]


def _workload(parts: Sequence[WorkloadVerdict], observed: float) -> dict[str, Any]:
    latest = parts[-1]
    time = total(part.time for part in parts)
    key = _winner([part.time for part in parts])
    shown = next((part for part in reversed(parts) if part.key == key), latest)
    won = [part for part in parts if part.verdict == key[0] and part.time.observed > 0]
    weight = sum(part.time.observed for part in won)
    confidence = sum(part.confidence * part.time.observed for part in won) / weight if won else 0.0
    return {
        "kind": latest.workload.kind,
        "workload": latest.workload.name,
        "namespace": latest.workload.namespace,
        "owner": latest.workload.owner,
        "runs": list(dict.fromkeys(tenant.run for part in parts for tenant in part.tenants if tenant.run)),
        "share_ratio": round(time.observed / observed, 4) if observed else 0.0,
        "basis": latest.basis,
        "shared": any(part.basis in SHARED for part in parts),
        "profile": latest.profile,
        "profile_from": latest.hint,
        "verdict": key[0],
        "cause": key[1],
        "confidence": round(confidence, 4),
        "seconds": _by_name(time),
        "lost": {f"{verdict}/{cause}": round(value, 3) for (verdict, cause), value in time.lost.items()},
        "observed_s": round(time.observed, 3),
        "measured_s": round(time.measured, 3),
        "useful_s": round(time.useful, 3),
        "evidence": _evidence(shown.evidence),
    }


def titles(workloads: Sequence[WorkloadVerdict]) -> str:
    """What people call those who hold a GPU, the first few of many."""
    names = [each.workload.title for each in workloads[:MOST_TITLES]]
    more = len(workloads) - len(names)
    return ", ".join([*names, f"{more} more"] if more else names)


def _by_name(time: TimeSplit) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for (name, _), value in time.verdict.items():
        seconds[name] = seconds.get(name, 0.0) + value
    return {name: round(value, 3) for name, value in seconds.items()}


def _evidence(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    return [{"signal": item.signal, "value": round(item.value, 6), "test": item.test} for item in evidence]


def document(source: str, window_s: float, gpus: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """The whole ``gpuwhy-explain/1`` document; ``gpus`` holds each GPU's verdicts, oldest first."""
    entries = [summarise(verdicts) for verdicts in gpus if verdicts]
    return {
        "schema": SCHEMA,
        "source": source,
        "window_s": round(window_s, 3),
        "observed_s": round(max((entry["observed_s"] for entry in entries), default=0.0), 3),
        "gpus": entries,
    }
