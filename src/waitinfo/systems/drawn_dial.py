"""Training for every latency: a new dial value is drawn for each batch."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.systems.base import LossContext, SystemOptions


@dataclass(frozen=True)
class DrawnDialOptions(SystemOptions):
    k_min: int = 1
    k_max: int = 0  # 0: up to the batch's longest source

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_min < 1 or (self.k_max and self.k_max < self.k_min):
            raise WaitinfoError(
                f"system.k_min {self.k_min} and k_max {self.k_max}: need 1 <= k_min <= k_max"
            )

    def draw(self, batch: Batch, context: LossContext) -> int:
        """Draw a dial uniformly from k_min to k_max."""
        highest = self.k_max or batch.longest_source
        return context.draw.randint(self.k_min, max(self.k_min, highest))
