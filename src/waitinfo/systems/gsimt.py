"""GSiMT: READ and WRITE as latent actions, summed over in training (Miao et al., 2021).

At every point (i, j) of the lattice, the model writes the next token with probability w_ij and
reads with probability 1 - w_ij. Once the whole source is read, it always writes. The loss is
-log p(y | x), where

    p(y | x) = sum over paths  prod over READs (1 - w_ij)  prod over WRITEs w_ij p(y_j+1 | i, j)

plus the KL divergence of the policy from a prior that reads about zeta tokens ahead.

The decoder state of (i, j) is that at target position j if every position up to j sees exactly the
first i source tokens. So each prefix of each sentence is a separate decoder row, which ends at its
last point in the lattice. Rows of similar length are computed together in groups; if there are too
few for a group, they join longer rows. If the activations of all groups do not fit into memory,
they are discarded and recomputed in the backward pass, so that only one group is stored at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import LossContext, Losses, System, SystemOptions
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays, sigmoid

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch
    from waitinfo.model.transformer import Transformer


@dataclass(frozen=True)
class GSiMTOptions(SystemOptions):
    zeta: float = 4.0  # source tokens that the prior reads ahead
    prior_weight: float = 1.0
    band: int = 8  # leave out lattice points further from reading zeta ahead; 0: keep all points
    positions_at_once: int = 8192  # decoder positions stored in memory at a time

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("zeta", "prior_weight", "band"):
            if not 0 <= getattr(self, name) < math.inf:
                raise WaitinfoError(f"system.{name} {getattr(self, name):g}: must be 0 or more")
        if self.positions_at_once < 1:
            raise WaitinfoError(
                f"system.positions_at_once {self.positions_at_once}: must be at least 1"
            )


class GSiMT(System):
    name = "gsimt"
    summary = "latent READ and WRITE, summed over in training; one model for each zeta"
    dial = Dial(
        "threshold", 0.5, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of WRITE to write a token",
    )  # fmt: skip
    trains_bias = False
    model_defaults = MappingProxyType({"write_head": True})
    fresh_past = True
    plans_by_length = True  # groups of prefixes depend on the lengths
    Options = GSiMTOptions
    options: GSiMTOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if not config.write_head:
            raise WaitinfoError("model.write_head false: gsimt requires a write head; set it true")
        if config.info != "none":
            raise WaitinfoError(f"model.info {config.info}: gsimt does not use info; choose none")

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        if context.k is None and context.update < self.options.whole_source_updates:
            return super().loss(model, batch, context)
        from waitinfo.systems.networks.generative import lattice_loss

        return lattice_loss(self.options, model, batch, context)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | True

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        assert step.write is not None
        return sigmoid(step.write) >= state.k
