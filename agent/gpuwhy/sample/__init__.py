"""Stage 2: one normalised, timestamped reading per GPU. ``Sample`` out."""

from gpuwhy.sample.normalise import Normaliser
from gpuwhy.sample.sample import (
    CgroupSample,
    HostSample,
    ProcessSample,
    Sample,
    Share,
    Tenant,
    Workload,
)
from gpuwhy.sample.signals import SIGNALS, Signal

__all__ = [
    "SIGNALS",
    "CgroupSample",
    "HostSample",
    "Normaliser",
    "ProcessSample",
    "Sample",
    "Share",
    "Signal",
    "Tenant",
    "Workload",
]
