"""Training for every latency: a new dial value is drawn for each batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.systems.base import DialValue, LossContext, SystemOptions


@dataclass(frozen=True)
class DrawnDialOptions(SystemOptions):
    k_min: int = 1
    k_max: int = 0  # 0: up to the batch's longest source
    draws: int = 1  # dials drawn for a batch; its sentences take them in turn
    # Updates, after those with the whole source, in which the lowest dial falls to k_min.
    curriculum_updates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_min < 1 or (self.k_max and self.k_max < self.k_min):
            raise WaitinfoError(
                f"system.k_min {self.k_min} and k_max {self.k_max}: need 1 <= k_min <= k_max"
            )

        if self.draws < 1:
            raise WaitinfoError(f"system.draws {self.draws}: must be at least 1")
        if self.curriculum_updates < 0:
            raise WaitinfoError(
                f"system.curriculum_updates {self.curriculum_updates}: must be 0 or more"
            )

    def draw(self, batch: Batch, context: LossContext) -> DialValue:
        """Draw dials uniformly from k_min to k_max; at first, from the long lags only."""
        highest = max(self.k_min, self.k_max or batch.longest_source)
        lowest = self.k_min
        done = max(0, context.update - self.whole_source_updates)
        if done < self.curriculum_updates:
            left = 1 - done / self.curriculum_updates
            lowest += math.floor(left * (highest - lowest) + 0.5)
        drawn = tuple(context.draw.randint(lowest, highest) for _ in range(self.draws))
        return drawn[0] if self.draws == 1 else drawn
