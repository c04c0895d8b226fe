"""Stage 1: reads what devices and the kernel say. One file per source, ``Reading`` out."""

from gpuwhy.source.reading import (
    Capability,
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
    "Capability",
    "DriverMismatchError",
    "GpuFacts",
    "GpuReading",
    "HostReading",
    "NoGpuError",
    "Part",
    "Reading",
    "SourceError",
]
