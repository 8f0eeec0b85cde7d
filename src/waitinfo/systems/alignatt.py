"""AlignAtt (Papi et al., 2023): write while attention stays away from the newest source tokens.

The next target token is aligned with the source token that cross-attention weighs most. If that is
one of the last f tokens read, the token may need more of the source, and is not written yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import SystemOptions
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays
from waitinfo.systems.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AlignAttOptions(SystemOptions):
    layer: int = 0  # of the decoder, from 1, whose attention decides; 0: the mean of all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer < 0:
            raise WaitinfoError(f"system.layer {self.layer}: must be 0 or more")


class AlignAtt(Policy):
    name = "alignatt"
    summary = "writes while attention stays away from the last f source tokens; any plain model"
    dial = Dial("f", 4, help="newest source tokens that attention must stay away from")
    asks = ("attention",)
    Options = AlignAttOptions
    options: AlignAttOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if self.options.layer > config.decoder_layers:
            raise WaitinfoError(
                f"system.layer {self.options.layer}: the decoder has {config.decoder_layers} layers"
            )

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.read > state.k)

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        layer, weights = self.options.layer, step.attention  # [B, L, H, S]
        chosen = weights[:, layer - 1] if layer else weights.mean(1)
        return chosen.mean(1).argmax(-1) < state.read - state.k
