"""GMA: writes once the source is read up to delta tokens beyond the aligned position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.systems.base import (
    Dial,
    LossContext,
    PolicyState,
    Step,
    System,
    SystemOptions,
    dial_column,
    heads_stopped,
)
from waitinfo.systems.gma.attention import GaussianAttention


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
    attentions = (GaussianAttention,)
    Options = GMAOptions
    options: GMAOptions

    def trained_dial(self) -> float:
        return self.options.delta

    def draw_dial(self, batch: Batch, context: LossContext) -> float:
        return self.options.delta

    def dial_rows(self, batch: Batch, context: LossContext, k: float | Tensor | None) -> Tensor:
        # Without a dial the whole source is visible, at any distance from the position.
        return dial_column(batch, math.inf if k is None else k)

    def ready(self, state: PolicyState) -> Tensor:
        return torch.ones_like(state.complete)

    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return heads_stopped(step)
