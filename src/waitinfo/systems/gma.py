"""Gaussian multi-head attention (Zhang and Feng 2022): a Gaussian around an aligned position.

Each layer predicts how far the aligned source position moves from target position i - 1 to i. A
Gaussian around it is a prior on the attention, and tokens more than delta beyond it are masked. The
system writes once the source is read up to there. As in the authors' code, all heads of a layer
share one position, and source tokens are counted from 0: p = 1 is the second token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import (
    AttentionReport,
    CrossAttention,
    Memory,
    SourceView,
    merge_heads,
    split_heads,
)
from waitinfo.model.batch import Batch
from waitinfo.systems.base import LossContext, System, SystemOptions, dial_column, heads_stopped
from waitinfo.systems.interface import Dial, PolicyState, Step

NEAREST = 0.9  # smallest position; the Gaussian of position 0 would have no width
FARTHEST_STEP = 1000.0
DELTA = 1.0  # if no dial is given


def log_prior(positions: Tensor, keys: int) -> Tensor:
    """-(j - p)^2 / (2 (p / 2)^2) for each token j: positions [..., T] -> [..., T, S].

    Multiplying weights by a prior and renormalising is adding its logarithm to the scores.
    """
    columns = torch.arange(keys, device=positions.device)
    return -2 * (columns / positions[..., None] - 1).square()


def needed_tokens(positions: Tensor, delta: Tensor) -> Tensor:
    """Source tokens that must have been read, ceil(p + delta): [B, H, T], [B] -> [B, H, T]."""
    return (positions + delta.reshape(-1, 1, 1)).ceil()


class GaussianAttention(CrossAttention):
    """Cross-attention around a predicted position."""

    name = "gma"
    carries = True

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.step_hidden = nn.Linear(width, width, bias=False)
        self.step_out = nn.Linear(width, 1, bias=False)

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport]:
        """[B, T, d] -> [B, T, d]."""
        projected = self.queries(x)
        reached = self._reached(projected, view)  # [B, 1, T]
        positions = reached.clamp_min(NEAREST)
        delta = positions.new_full((len(x),), DELTA) if view.k is None else view.k
        needed = needed_tokens(positions, delta)
        columns = torch.arange(memory.keys.shape[2], device=x.device)
        prior = log_prior(positions, len(columns))
        bias = (view.bias + prior).masked_fill(columns >= needed[..., None], -torch.inf)
        queries = split_heads(projected, self.heads)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(queries, memory.keys, memory.values, bias, False, dropout)
        visible = view.visible if view.visible.dim() == 3 else view.visible[:, None]
        shape = (-1, self.heads, -1)
        report = AttentionReport(reached.expand(shape), (needed <= visible).expand(shape))
        return self.out(merge_heads(mixed)), report

    def _reached(self, projected: Tensor, view: SourceView) -> Tensor:
        """p_i = p_i-1 + exp(v · tanh(W h_i)), before it is clamped: [B, T, d] -> [B, 1, T].

        h_i is the scaled query of the attention scores. Computed in float32 or better, because
        rounding errors accumulate in the positions.
        """
        hidden = self.step_hidden(projected / math.sqrt(projected.shape[-1] // self.heads)).tanh()
        exact = torch.promote_types(self.step_out.weight.dtype, torch.float32)
        size = (hidden.to(exact) * self.step_out.weight[0].to(exact)).sum(-1)
        steps = size.clamp_max(math.log(FARTHEST_STEP)).exp()  # [B, T]
        assert view.at is not None
        steps = steps.masked_fill(view.at == 0, 0)  # the first token stays at the start
        if view.before is not None:
            steps = torch.cat([view.before[:, :1].to(exact), steps], 1)
            return steps.cumsum(1)[:, None, 1:]
        return steps.cumsum(1)[:, None]


@dataclass(frozen=True)
class GMAOptions(SystemOptions):
    delta: float = 1.0  # tokens visible beyond the aligned position in training

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < math.inf:
            raise WaitinfoError(f"system.delta {self.delta:g}: must be 0 or more")


class GMA(System):
    name = "gma"
    summary = "aligns each token with a source position and reads delta tokens beyond it"
    dial = Dial(
        "delta", 1.0, minimum=0.0, whole=False, help="tokens read beyond the aligned position"
    )
    attentions = (GaussianAttention,)
    Options = GMAOptions
    options: GMAOptions

    def trained_dial(self) -> float:
        return self.options.delta

    def draw_dial(self, batch: Batch, context: LossContext) -> float:
        return self.options.delta

    def dial_rows(self, batch: Batch, context: LossContext, k: float | Tensor | None) -> Tensor:
        # Without a dial the whole source is visible, at any distance from the position.
        return dial_column(batch, math.inf if k is None else k)

    def ready(self, state: PolicyState) -> Tensor:
        return torch.ones_like(state.complete)

    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return heads_stopped(step)
