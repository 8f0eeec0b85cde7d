"""GSiMT: latent READ and WRITE actions, summed over a lattice in training."""

from waitinfo.systems.gsimt.system import GSiMT

__all__ = ["GSiMT"]
