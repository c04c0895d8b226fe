"""Stage 5: what each interval means. ``Verdict`` out."""

from gpuwhy.verdict.engine import judge
from gpuwhy.verdict.types import CauseKey, Evidence, TimeSplit, Verdict

__all__ = ["CauseKey", "Evidence", "TimeSplit", "Verdict", "judge"]
