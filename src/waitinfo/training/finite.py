"""Updates without a finite gradient are skipped and counted; weights are checked before saving.

The decision stays on the device, so that a GPU is not asked after each update: fused optimizers
take it as `found_inf`, the flag that gradient scalers set. All processes decide alike, because
gradients are averaged over them before the norm is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Skips(NamedTuple):
    """Updates that were skipped."""

    total: int
    in_a_row: int  # up to the latest update; 0 if that one was applied


class FiniteGuard:
    """Decides from the norm of the gradient whether an update is applied."""

    def __init__(self, device: torch.device) -> None:
        # Written in place: recorded updates refer to these very tensors.
        self.skip = torch.zeros((), device=device)  # 1 if the latest update is skipped, else 0
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    def judge(self, norm: Tensor) -> None:
        """Decide about an update by the norm of its gradient."""
        self.skip.copy_(~norm.isfinite())
        skip = self.skip.long()
        self._counts.copy_(torch.stack([self._counts[0] + skip, (self._counts[1] + 1) * skip]))

    def keep(self, value: Tensor) -> Tensor:
        """A value of the latest update; 0 if that was skipped."""
        return torch.where(self.skip.bool(), torch.zeros_like(value), value)

    def used(self, amount: int) -> Tensor:
        """How much of an amount the latest update used: all or nothing."""
        return (1 - self.skip.double()) * amount

    def counts(self) -> Skips:
        """Wait for the device and fetch the counts."""
        return Skips(*self._counts.tolist())

    def restore(self, total: int) -> None:
        self._counts.copy_(torch.tensor([total, 0]))


def all_finite(tensors: Iterable[Tensor], device: torch.device) -> bool:
    """Whether no tensor holds infinity or NaN."""
    found = [tensor.isfinite().all().to(device) for tensor in tensors]
    return not found or bool(torch.stack(found).all())
