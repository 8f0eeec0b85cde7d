"""Gaussian multi-head attention (Zhang and Feng 2022): a Gaussian around an aligned position.

Each layer predicts how far the aligned source position moves from target position i - 1 to i. A
Gaussian around it is a prior on the attention, and tokens more than delta beyond it are masked. The
system writes once the source is read up to there. As in the authors' code, all heads of a layer
share one position, and source tokens are counted from 0: p = 1 is the second token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import LossContext, System, SystemOptions, heads_stopped
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch


@dataclass(frozen=True)
class GMAOptions(SystemOptions):
    delta: float = 1.0  # tokens visible beyond the aligned position in training

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < math.inf:
            raise WaitinfoError(f"system.delta {self.delta:g}: must be 0 or more")


class GMA(System):
    name = "gma"
    summary = "aligns each token with a source position and reads delta tokens beyond it"
    dial = Dial(
        "delta", 1.0, minimum=0.0, whole=False, help="tokens read beyond the aligned position"
    )
    attentions = ("gma",)
    network = "waitinfo.systems.networks.monotonic_heads"
    Options = GMAOptions
    options: GMAOptions

    def trained_dial(self) -> float:
        return self.options.delta

    def draw_dial(self, batch: Batch, context: LossContext) -> float:
        return self.options.delta

    def dial_rows(self, batch: Batch, context: LossContext, k: float | Tensor | None) -> Tensor:
        from waitinfo.systems.networks.losses import dial_column

        # Without a dial the whole source is visible, at any distance from the position.
        return dial_column(batch, math.inf if k is None else k)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | True

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return heads_stopped(step)
