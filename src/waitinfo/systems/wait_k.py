"""Wait-k: read k tokens, then alternate WRITE and READ, with optional catch-up.

`full` is its end, where the whole sentence is read first; `multipath` is one model for every k, for
which training draws a new k for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import DialValue, LossContext, System, SystemOptions
from waitinfo.systems.interface import Dial, PolicyState, for_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch


@dataclass(frozen=True)
class DrawnDialOptions(SystemOptions):
    k_min: int = 1
    k_max: int = 0  # 0: up to the batch's longest source
    draws: int = 1  # dials drawn for a batch; its sentences take them in turn

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_min < 1 or (self.k_max and self.k_max < self.k_min):
            raise WaitinfoError(
                f"system.k_min {self.k_min} and k_max {self.k_max}: need 1 <= k_min <= k_max"
            )
        if self.draws < 1:
            raise WaitinfoError(f"system.draws {self.draws}: must be at least 1")

    def draw(self, batch: Batch, context: LossContext) -> DialValue:
        """Draw dials uniformly from k_min to k_max."""
        highest = max(self.k_min, self.k_max or batch.longest_source)
        drawn = tuple(context.draw.randint(self.k_min, highest) for _ in range(self.draws))
        return drawn[0] if self.draws == 1 else drawn


@dataclass(frozen=True)
class WaitKOptions(SystemOptions):
    k: int = 3  # the lag that the model is trained for
    catch_up: int = 0  # c: one more READ after every c written tokens, -c: one fewer; 0 for none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise WaitinfoError(f"system.k {self.k}: must be at least 1")
        if self.catch_up == -1:
            raise WaitinfoError("system.catch_up -1: would never READ on; give -2 or less, or 0")


def lag_path(written: Tensor, k: Tensor | float, catch_up: int = 0) -> Tensor:
    """Source tokens to read before target token i: k + i - 1, with i - 1 tokens written (Eq. 3).

    Catch-up c > 0 reads one more after every c written tokens, for sources longer than targets;
    c < 0 reads one fewer after every -c written tokens, for targets longer than sources.
    """
    more = written // abs(catch_up) if catch_up else 0
    return written + (more if catch_up > 0 else -more) + k


class WaitK(System):
    name = "wait-k"
    summary = "lags k tokens behind the source; one model for each k"
    dial = Dial("k", 3, help="tokens the translation lags behind")
    rereads = True
    Options = WaitKOptions
    options: WaitKOptions

    def trained_dial(self) -> float:
        return self.options.k

    def draw_dial(self, batch: Batch, context: LossContext) -> DialValue:
        return self.options.k

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        import torch

        written = torch.arange(batch.target_in.shape[1], device=batch.source.device)
        lag = k.long() if isinstance(k, torch.Tensor) else int(k)
        path = lag_path(written, lag, self.options.catch_up)
        return torch.minimum(path, batch.source_lengths[:, None])

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        needed = lag_path(state.written, state.k, self.options.catch_up)
        return state.complete | (state.read >= needed)


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


class Full(System):
    name = "full"
    summary = "waits for the whole sentence; bidirectional encoder, supports beam search"
    simultaneous = False
    model_defaults = MappingProxyType({"encoder": "bidirectional"})
