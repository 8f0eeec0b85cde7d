"""Adaptive wait-k: of many wait-k models, the first with a confident next token writes it.

One multipath model replaces the set of models: given the source read so far, it acts as the wait-k
model of the current lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import SystemOptions
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays
from waitinfo.systems.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


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
    fall = (first - last) * (first > last)
    return first - fall * (lag - 1) / max(1, k_max - 1)


class AdaptiveWaitK(Policy):
    name = "adaptive-wait-k"
    summary = "writes when the best token is probable enough for the lag; a multipath model"
    dial = Dial(
        "rho_1", 0.3, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of a token written at lag 1",
    )  # fmt: skip
    asks = ("logits",)
    Options = AdaptiveWaitKOptions
    options: AdaptiveWaitKOptions

    @property
    def validation_lag(self) -> int:  # type: ignore[override]
        """The middle lag."""
        return (1 + self.options.k_max) // 2

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.read > state.written)

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        options, lag = self.options, state.read - state.written
        sure = step.probability >= threshold(lag, state.k, options.rho_last, options.k_max)
        return sure | (lag >= options.k_max)
