"""Monotonic multi-head attention (Ma et al. 2020): heads that move forward through the source.

At target position i, a head starts at its position for i - 1. At each source token j it stops with
probability p_ij or moves to the next token. In translation, it stops at the first token with p_ij
at or above a threshold, and the model writes when all heads of all layers have stopped within the
source read so far: the slowest head determines the latency. Training takes the expectation over all
such walks. Positions are counted from 0 here. A head that does not stop earlier stays on the last
visible token, so p of that token is set to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import LossContext, Losses, System, SystemOptions, heads_stopped
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch
    from waitinfo.model.transformer import Transformer
    from waitinfo.model.views import Decoded, Embedded


@dataclass(frozen=True)
class MMAOptions(SystemOptions):
    latency_weight: float = 0.1  # lambda of the expected lag: larger gives lower latency
    variance_weight: float = 0.0  # lambda of the variance of the heads' delays
    latency_after: int = 1000  # number of first updates without both losses

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("latency_weight", "variance_weight", "latency_after"):
            if not getattr(self, name) >= 0:
                raise WaitinfoError(f"system.{name} {getattr(self, name)}: must be 0 or more")


class MMA(System):
    name = "mma"
    summary = "heads move through the source; writes when all of them have stopped"
    dial = Dial(
        "threshold",
        0.5,
        minimum=0.0,
        whole=False,
        help="probability of stopping at which a head stops",
        maximum=1.0,
    )
    attentions = ("mma", "mma-hard")
    network = "waitinfo.systems.networks.monotonic_heads"
    milestones = ("whole_source_updates", "latency_after")
    Options = MMAOptions
    options: MMAOptions

    def combine(
        self,
        model: Transformer,
        batch: Batch,
        source: Embedded,
        target: Embedded,
        decoded: Decoded,
        context: LossContext,
    ) -> Losses:
        """L = L_ce + lambda_avg DAL of the slowest heads + lambda_var variance of all heads."""
        from waitinfo.systems.networks.monotonic_heads import with_latency

        losses = super().combine(model, batch, source, target, decoded, context)
        return with_latency(losses, self.options, batch, decoded, context)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | True

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return heads_stopped(step)
