"""Wait-info: write when the info of the source read exceeds that of the target written by K."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import DialValue, LossContext, System
from waitinfo.systems.interface import Dial, PolicyState, for_arrays
from waitinfo.systems.wait_k import DrawnDialOptions

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch

HIGHEST_RATE = 10.0


@dataclass(frozen=True)
class WaitInfoOptions(DrawnDialOptions):
    whole_source_updates: int = 4000
    floor: bool = True  # g(i) >= i + 1, as in the authors' code but not in the paper
    rate: float = 1.0  # info to receive for each info used; above 1, the lag grows
    # Info that the policy counts for every token of a side; 0: the token's own. Attention always
    # has the token's own.
    source_mean: float = 0.0
    target_mean: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= HIGHEST_RATE:
            raise WaitinfoError(
                f"system.rate {self.rate:g}: must be above 0, and {HIGHEST_RATE:g} at most"
            )
        for name in ("source_mean", "target_mean"):
            if not 0 <= getattr(self, name) <= 2:
                raise WaitinfoError(f"system.{name} {getattr(self, name):g}: must be from 0 to 2")


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
        return self.info_path(source_info, target_info, k, batch.source_lengths)

    def info_path(
        self, source_info: Tensor, target_info: Tensor, k: Tensor | float, lengths: Tensor
    ) -> Tensor:
        """g_K(i): source tokens read before target token i is written (Eq. 12).

        source_info [B, S]; target_info [B, T] of the decoder inputs (BOS, y_1, …), where the first
        is 1; lengths [B] of the source, including end-of-sentence. Returns [B, T] in 1 … n,
        non-decreasing.
        """
        import torch

        received = source_info.double().cumsum(-1)
        if self.options.source_mean:
            tokens = torch.arange(1, received.shape[1] + 1, device=received.device)
            received = tokens.to(received).expand(received.shape)
        written = torch.arange(target_info.shape[1], device=target_info.device)
        dials = dial_rows(k, target_info).expand(len(target_info), 1)
        needed = self._needed(dials, written, used_info(target_info))
        return shortest_prefixes(received, needed, lengths, self.options.floor)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        enough = self.margin(state) >= 0
        if self.options.floor:
            enough &= state.read >= state.written + 2
        return state.complete | enough

    def margin(self, state: PolicyState) -> Tensor:
        """[B] float64: what was received beyond the need of the next token, in info or tokens."""
        received = state.read if self.options.source_mean else state.source_info
        return received - self._needed(state.k, state.written, state.target_info)

    def _needed(self, k: Tensor, written: Tensor, used: Tensor) -> Tensor:
        """What must be received before the next token: info, or tokens of the mean info.

        In float64, as k is: an integer tensor times a number would be float32.
        """
        options = self.options
        if options.target_mean:
            used = (k * 0 + written) * options.target_mean
        needed = k + used * options.rate
        return needed / options.source_mean if options.source_mean else needed


def used_info(target_info: Tensor) -> Tensor:
    """[B, T] float64: info used when each target token is to be written.

    That token is unknown then, so only the info of earlier ones is summed.
    """
    from torch.nn import functional as F

    return F.pad(target_info[:, 1:], (1, 0)).double().cumsum(-1)


def dial_rows(k: Tensor | float, like: Tensor) -> Tensor:
    """The dial of each sentence, or one of all: [B or 1, 1] float64."""
    import torch

    return torch.as_tensor(k, device=like.device, dtype=torch.float64).reshape(-1, 1)


def shortest_prefixes(received: Tensor, needed: Tensor, lengths: Tensor, floor: bool) -> Tensor:
    """The path that reads until enough is received: [B, S], [B, T] float64, [B] -> [B, T]."""
    import torch

    # The shortest sufficient prefix is one longer than the number of insufficient prefixes.
    path = torch.searchsorted(received.contiguous(), needed.contiguous()) + 1
    if floor:
        path = torch.maximum(path, torch.arange(2, path.shape[1] + 2, device=path.device))
    return torch.minimum(path, lengths[:, None]).cummax(-1).values
