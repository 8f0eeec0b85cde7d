"""Training for every latency: a new dial value is drawn for each batch."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.systems.base import DialValue, LossContext, SystemOptions


@dataclass(frozen=True)
class DrawnDialOptions(SystemOptions):
    k_min: int = 1
    k_max: int = 0  # 0: up to the batch's longest source
    draws: int = 1  # dials drawn for a batch; its sentences take them in turn

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_min < 1 or (self.k_max and self.k_max < self.k_min):
            raise WaitinfoError(
                f"system.k_min {self.k_min} and k_max {self.k_max}: need 1 <= k_min <= k_max"
            )
        if self.draws < 1:
            raise WaitinfoError(f"system.draws {self.draws}: must be at least 1")

    def draw(self, batch: Batch, context: LossContext) -> DialValue:
        """Draw dials uniformly from k_min to k_max."""
        highest = max(self.k_min, self.k_max or batch.longest_source)
        drawn = tuple(context.draw.randint(self.k_min, highest) for _ in range(self.draws))
        return drawn[0] if self.draws == 1 else drawn
