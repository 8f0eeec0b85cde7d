"""Efficient wait-k: one model for every k, drawn anew for each training batch."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import Dial, Moment
from waitinfo.systems.wait_k import WaitK, WaitKOptions
from waitinfo.text.batches import Batch


@dataclass(frozen=True)
class MultipathOptions(WaitKOptions):
    k_min: int = 1
    k_max: int = 0  # 0: up to the batch's longest source

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_min < 1 or (self.k_max and self.k_max < self.k_min):
            raise WaitinfoError(
                f"system.k_min {self.k_min} and k_max {self.k_max}: need 1 <= k_min <= k_max"
            )


class Multipath(WaitK):
    name = "multipath"
    summary = "efficient wait-k: one model for every k, drawn for each training batch"
    dial = Dial("k", 3, help="tokens the translation lags behind")
    Options = MultipathOptions
    options: MultipathOptions

    def draw_dial(self, batch: Batch, moment: Moment) -> float:
        highest = self.options.k_max or batch.longest_source
        return moment.draw.randint(self.options.k_min, max(self.options.k_min, highest))
