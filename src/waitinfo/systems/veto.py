"""Veto: wait-info that waits while one more token of the source still changes its mind.

Nothing is written before wait-info writes (its K and rate are the lower bound of the lag). Then the
next token is predicted twice: from what was read, and from one source token less. If both predict
the same token, it is written; else one more source token is read. At a margin of so many info above
the need of wait-info, the token is written in any case, so the lag is bounded above, too.

What was won by waiting is given up slowly: after a WRITE at margin m, the next needs a margin of
at least keep · m. Without this, a policy that has waited writes a burst, and each token of it sees
as little of the source ahead as it would have without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import System
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays
from waitinfo.systems.wait_info import WaitInfo, WaitInfoOptions

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch


@dataclass(frozen=True)
class VetoOptions(WaitInfoOptions):
    keep: float = 0.85  # share of the margin at a WRITE that the next one needs
    most: float = 5.0  # margin at which a token is written without agreement

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.keep <= 1:
            raise WaitinfoError(f"system.keep {self.keep:g}: must be from 0 to 1")
        if not self.most >= 0:
            raise WaitinfoError(f"system.most {self.most:g}: must be 0 or more")


class Veto(WaitInfo):
    name = "veto"
    summary = "wait-info that waits while one more source token changes its mind; any plain model"
    dial = Dial("K", 3, minimum=0.0, whole=False, help="info the translation lags behind at least")
    asks = ("before",)
    rereads = True
    memory = (0.0,)  # the margin at the last WRITE
    Options = VetoOptions
    options: VetoOptions

    def check_model(self, config: ModelConfig) -> None:
        System.check_model(self, config)
        if config.info == "none":  # every token counts 1, as in wait-k
            self.options = replace(self.options, source_mean=1.0, target_mean=1.0)

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        """That of wait-info: what agrees is not known in training."""
        if source_info is None or target_info is None:
            import torch

            source_info, target_info = map(torch.ones_like, (batch.source, batch.target_in))
        return super().path(batch, source_info, target_info, k)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        kept = self.margin(state) >= state.memory[:, 0] * self.options.keep
        return state.complete | (WaitInfo.ready(self, state) & kept)

    @for_arrays
    def earlier(self, state: PolicyState) -> Tensor:
        """One token less, or none where the token is written in any case."""
        asks = (state.complete == 0) & (self.margin(state) < self.options.most)
        return (state.read - 1) * asks

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return (step.tokens == step.before) | (self.margin(state) >= self.options.most)

    @for_arrays
    def remember(self, state: PolicyState, step: Step) -> Tensor:
        return self.margin(state)[:, None]
