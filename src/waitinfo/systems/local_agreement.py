"""Local agreement (Liu et al., 2020): write what two successive prefixes of the source agree on.

Prefixes grow by k tokens. A target token is written if the model predicts it both from the present
prefix and from the one before, each after the same target tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays
from waitinfo.systems.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


class LocalAgreement(Policy):
    name = "local-agreement"
    summary = "writes what two successive prefixes of the source agree on; any plain model"
    dial = Dial("k", 3, help="source tokens from one prefix to the next")
    asks = ("before",)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | ((state.read > state.k) & (state.read % state.k == 0))

    @for_arrays
    def earlier(self, state: PolicyState) -> Tensor:
        return state.read - state.k

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return step.tokens == step.before
