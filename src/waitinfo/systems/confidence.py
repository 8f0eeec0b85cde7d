"""Confidence: write when the best next token is probable enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays
from waitinfo.systems.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


class Confidence(Policy):
    name = "confidence"
    summary = "writes when the best token is probable enough; any plain model"
    dial = Dial(
        "probability", 0.5, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of a token that is written",
    )  # fmt: skip
    asks = ("logits",)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.read > 0

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return step.probability >= state.k
