"""Stage 3: whose work it is. Adds to each ``Sample`` what the GPU's processes did."""

from gpuwhy.workload.tree import attribute

__all__ = ["attribute"]
