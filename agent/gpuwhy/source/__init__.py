"""Stage 1: reads what devices and the kernel say. One file per source, ``Reading`` out."""

from gpuwhy.source.reading import (
    DriverMismatchError,
    GpuFacts,
    GpuReading,
    HostReading,
    NoGpuError,
    Part,
    Reading,
    SourceError,
)

__all__ = [
    "DriverMismatchError",
    "GpuFacts",
    "GpuReading",
    "HostReading",
    "NoGpuError",
    "Part",
    "Reading",
    "SourceError",
]
