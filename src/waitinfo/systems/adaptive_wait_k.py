"""Adaptive wait-k: of many wait-k models, the first with a confident next token writes it.

One multipath model replaces the set of models: given the source read so far, it acts as the wait-k
model of the current lag. Training is that of multipath, and any multipath model can be decoded this
way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.model.transformer import Transformer
from waitinfo.systems.base import (
    Dial,
    DialValue,
    LossContext,
    Losses,
    PolicyState,
    Step,
    System,
    SystemOptions,
    for_arrays,
)
from waitinfo.systems.wait_k import Multipath


@dataclass(frozen=True)
class AdaptiveWaitKOptions(SystemOptions):
    rho_last: float = 0.0  # threshold at lag k_max, unless rho_1 is lower
    k_max: int = 10  # lag from which every token is written

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rho_last <= 1:
            raise WaitinfoError(f"system.rho_last {self.rho_last:g}: must be from 0 to 1")
        if self.k_max < 1:
            raise WaitinfoError(f"system.k_max {self.k_max}: must be at least 1")


def threshold(lag: Tensor, first: Tensor, last: float, k_max: int) -> Tensor:
    """rho_lag: linear from rho_1 = first at lag 1 to rho_kmax = min(first, last).

    lag [B]; first [B]. The threshold never rises, so that a lower dial never waits longer.
    """
    fall = (first - last).clamp_min(0)
    return first - fall * (lag - 1) / max(1, k_max - 1)


class AdaptiveWaitK(System):
    name = "adaptive-wait-k"
    summary = "writes when the best token is probable enough for the lag; a multipath model"
    dial = Dial(
        "rho_1", 0.3, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of a token written at lag 1",
    )  # fmt: skip
    Options = AdaptiveWaitKOptions
    options: AdaptiveWaitKOptions

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        common = {field.name: getattr(self.options, field.name) for field in fields(SystemOptions)}
        self.models = Multipath(common)

    def training_dial(self, batch: Batch, context: LossContext) -> DialValue | Tensor | None:
        return self.models.training_dial(batch, context)

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        """The loss of multipath; with a fixed dial, its loss at the middle lag.

        The path of this policy depends on the predicted tokens, so it is not known in training.
        """
        if context.k is not None:
            context = replace(context, k=(1 + self.options.k_max) // 2)
        return self.models.loss(model, batch, context)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.read > state.written)

    def accept(self, state: PolicyState, step: Step) -> Tensor:
        lag = state.read - state.written
        exact = torch.promote_types(step.logits.dtype, torch.float32)
        probability = step.logits.to(exact).softmax(-1).amax(-1).to(lag.device)
        sure = probability >= threshold(lag, state.k, self.options.rho_last, self.options.k_max)
        return sure | (lag >= self.options.k_max)
