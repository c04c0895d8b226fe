"""Stage 4: samples to features over a window. ``Interval`` out."""

from gpuwhy.interval.builder import DEFAULT_INTERVAL_S, MOST_PORTIONS, IntervalBuilder
from gpuwhy.interval.interval import Interval, Portion, Stat

__all__ = ["DEFAULT_INTERVAL_S", "MOST_PORTIONS", "Interval", "IntervalBuilder", "Portion", "Stat"]
