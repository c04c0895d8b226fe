"""Stage 4: samples to features over a window. ``Interval`` out."""

from gpuwhy.interval.builder import DEFAULT_INTERVAL_S, IntervalBuilder
from gpuwhy.interval.interval import Interval, Portion, Stat

__all__ = ["DEFAULT_INTERVAL_S", "Interval", "IntervalBuilder", "Portion", "Stat"]
