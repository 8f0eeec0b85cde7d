"""MMA: monotonic multi-head attention."""

from waitinfo.systems.mma.system import MMA

__all__ = ["MMA"]
