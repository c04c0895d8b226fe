"""The verdict that is shown as "now": it follows a change after two agreeing intervals."""

from __future__ import annotations

from gpuwhy.verdict.types import Verdict
from gpuwhy.verdict.vocabulary import THROTTLED

AGREE = 2
AT_ONCE = frozenset({(THROTTLED, "hw-thermal"), (THROTTLED, "power-brake")})


class Now:
    """What each GPU is shown to be. Counters never use it: they credit each interval's own verdict."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Verdict] = {}
        self._candidate: dict[tuple[str, str], tuple[str, int]] = {}

    def update(self, verdict: Verdict) -> Verdict:
        """The verdict to show after ``verdict``: the newest interval with the shown name."""
        key = verdict.gpu.key
        shown = self._shown.get(key)
        name, count = self._candidate.get(key, ("", 0))
        count = count + 1 if name == verdict.verdict else 1
        self._candidate[key] = (verdict.verdict, count)
        if shown is None or shown.verdict == verdict.verdict or count >= AGREE or verdict.key in AT_ONCE:
            self._shown[key] = verdict
        return self._shown[key]

    def forget(self, key: tuple[str, str]) -> None:
        """Drops a GPU that is gone."""
        self._shown.pop(key, None)
        self._candidate.pop(key, None)
