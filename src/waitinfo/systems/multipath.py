"""Efficient wait-k: one model for every k; training draws a new k for each batch."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.model.batch import Batch
from waitinfo.systems.base import Dial, DialValue, LossContext
from waitinfo.systems.drawn_dial import DrawnDialOptions
from waitinfo.systems.wait_k import WaitK, WaitKOptions


@dataclass(frozen=True)
class MultipathOptions(DrawnDialOptions, WaitKOptions):
    pass


class Multipath(WaitK):
    name = "multipath"
    summary = "efficient wait-k: one model for every k, which training draws for each batch"
    dial = Dial("k", 3, help="tokens the translation lags behind")
    Options = MultipathOptions
    options: MultipathOptions

    def draw_dial(self, batch: Batch, context: LossContext) -> DialValue:
        return self.options.draw(batch, context)
