"""Gaussian cross-attention, of GMA: with torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from waitinfo.model.attention import CrossAttention, merge_heads, split_heads
from waitinfo.model.views import AttentionReport, Memory, SourceView

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
