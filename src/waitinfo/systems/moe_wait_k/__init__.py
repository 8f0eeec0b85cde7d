"""MoE wait-k: attention heads as experts for different lags."""

from waitinfo.systems.moe_wait_k.system import MoEWaitK

__all__ = ["MoEWaitK"]
