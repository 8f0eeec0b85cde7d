"""Log-probabilities of single tokens without storing all logits, for losses that weight tokens.

Logits are computed for one chunk of tokens at a time and discarded. The weight of each token in the
loss is known only in the backward pass, which computes the logits of each chunk again and turns
them into their own gradient in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from waitinfo.model.precision import product_dtype


class _LinearLogProbability(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, tokens: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        dtype = product_dtype(states)
        exact = torch.promote_types(dtype, torch.float32)
        scores, totals = [], []
        with torch.autocast(states.device.type, enabled=False):
            narrow, matrix = states.to(dtype), weight.to(dtype)
            for h, gold in zip(narrow.split(size), tokens[:, None].split(size), strict=True):
                logits = h @ matrix.T
                score = logits.log_softmax(-1, dtype=exact).gather(-1, gold)
                scores.append(score)
                totals.append(logits.gather(-1, gold) - score)
        found, total = torch.cat(scores)[:, 0], torch.cat(totals)[:, 0]
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(narrow, matrix, tokens, total)
            ctx.size, ctx.kinds = size, (states.dtype, weight.dtype)
        return found, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        narrow, matrix, tokens, total = ctx.saved_tensors
        by_found, by_total = (gradient[:, None] for gradient in gradients)
        by_state, by_weight = torch.empty_like(narrow), torch.zeros_like(matrix, dtype=total.dtype)
        columns = (narrow, by_state, tokens[:, None], total[:, None], by_found, by_total - by_found)
        for h, out, gold, sums, right, share in zip(
            *(column.split(ctx.size) for column in columns), strict=True
        ):
            gradient = (h @ matrix.T - sums).exp_().mul_(share).scatter_add_(-1, gold, right)
            gradient = gradient.to(h.dtype)
            torch.mm(gradient, matrix, out=out)
            by_weight += gradient.T @ h
        return by_state.to(ctx.kinds[0]), by_weight.to(ctx.kinds[1]), None, None


def linear_log_probability(
    states: Tensor, weight: Tensor, tokens: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Log-probability of one token per state, and the log of the softmax denominator: [N] each.

    states [N, d], output matrix [V, d], tokens [N]. Logits are stored for `size` states at a time.
    """
    return _LinearLogProbability.apply(states, weight, tokens, size)
