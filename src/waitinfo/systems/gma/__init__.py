"""GMA: Gaussian multi-head attention, centred on a predicted source position."""

from waitinfo.systems.gma.system import GMA

__all__ = ["GMA"]
