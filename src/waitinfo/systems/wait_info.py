"""Wait-info: write when the info of the source read exceeds that of the target written by K."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.model.config import ModelConfig
from waitinfo.model.info import info_path
from waitinfo.systems.base import Dial, DialValue, LossContext, PolicyState, System, for_arrays
from waitinfo.systems.drawn_dial import DrawnDialOptions


@dataclass(frozen=True)
class WaitInfoOptions(DrawnDialOptions):
    whole_source_updates: int = 4000
    floor: bool = True  # g(i) >= i + 1, as in the authors' code but not in the paper


class WaitInfo(System):
    name = "wait-info"
    summary = "lags K info behind the source; one model for every K"
    dial = Dial("K", 5, minimum=0.0, whole=False, help="info the translation lags behind")
    model_defaults = MappingProxyType({"info": "attention"})
    Options = WaitInfoOptions
    options: WaitInfoOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if config.info == "none":
            raise WaitinfoError(
                "model.info none: wait-info requires info, which this model does not have"
            )

    def draw_dial(self, batch: Batch, context: LossContext) -> DialValue:
        return self.options.draw(batch, context)

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        assert source_info is not None and target_info is not None
        return info_path(source_info, target_info, k, batch.source_lengths, self.options.floor)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        enough = state.source_info >= state.k + state.target_info
        if self.options.floor:
            enough &= state.read >= state.written + 2
        return state.complete | enough
