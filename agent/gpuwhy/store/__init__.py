"""Stage 6: local history.

The daemon hands each judged interval to a ``Writer``, whose thread adds them up by minute and hour in a
SQLite file; a ``Reader`` reads it back, also meanwhile.
"""

from gpuwhy.store.reader import Reader
from gpuwhy.store.types import Facts, GpuRow, Level, Span, StoreError, WorkloadRow
from gpuwhy.store.writer import Writer, WriterState

__all__ = [
    "Facts",
    "GpuRow",
    "Level",
    "Reader",
    "Span",
    "StoreError",
    "WorkloadRow",
    "Writer",
    "WriterState",
]
