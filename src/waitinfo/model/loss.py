"""Losses over a vocabulary without storing all logits.

For 32,000 tokens and 16,000 words the logits alone take two gigabytes, and autograd stores them
twice. Here they are computed for one chunk of tokens at a time and discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with x: autocast's dtype if autocast is on, else x's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


# Cross-entropy: the logits of a chunk become their own gradient at once

CHUNK_ELEMENTS = 2**27  # logits stored at a time

Terms = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]


def token_terms(
    logits: Tensor, target: Tensor, real: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and gradient for the logits of some tokens.

    logits [N, V], target [N], real [N] (0 for padding) -> sums [] and [], gradient [N, V], which
    overwrites the logits.
    The label-smoothed loss is -(1 - e) log p(y) - e mean_v log p(v).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    gold = target[:, None]
    score, mean, top = logits.gather(-1, gold), logits.mean(-1), logits.amax(-1, keepdim=True)
    gradient = logits.sub_(top).exp_()  # in place: a chunk of logits fills a hundred megabytes
    sums = gradient.sum(-1, keepdim=True)
    total = top + sums.log()
    nll = ((total - score)[:, 0] * real).sum()
    loss = nll
    if smoothing:
        uniform = ((total[:, 0] - mean) * real).sum()
        loss = (1 - smoothing) * nll + smoothing * uniform
    gradient.div_(sums).scatter_add_(-1, gold, torch.full_like(total, smoothing - 1))
    return loss, nll, gradient.sub_(smoothing / logits.shape[-1]).mul_(real[:, None])


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, target: Tensor, real: Tensor, smoothing: float,
        terms: Terms,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype = product_dtype(states)
        exact = torch.promote_types(dtype, torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            narrow, matrix = states.to(dtype), weight.to(dtype)
            learns = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
            by_state = torch.empty_like(narrow) if learns else None
            by_weight = torch.zeros_like(weight, dtype=exact) if learns else None
            loss = nll = torch.zeros((), device=states.device, dtype=exact)
            size = max(1, CHUNK_ELEMENTS // weight.shape[0])
            for start in range(0, len(states), size):
                part = slice(start, start + size)
                h = narrow[part]
                more, plain, gradient = terms(h @ matrix.T, target[part], real[part], smoothing)
                loss, nll = loss + more, nll + plain
                if by_state is not None and by_weight is not None:
                    gradient = gradient.to(dtype)
                    by_state[part] = gradient @ matrix
                    by_weight += gradient.T @ h
        if by_state is not None and by_weight is not None:
            ctx.save_for_backward(by_state.to(states.dtype), by_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_state, by_weight = ctx.saved_tensors
        return by_state * gradients[0], by_weight * gradients[0], None, None, None, None


def linear_cross_entropy(
    states: Tensor,
    weight: Tensor,
    target: Tensor,
    real: Tensor,
    smoothing: float = 0.0,
    terms: Terms | None = None,
) -> tuple[Tensor, Tensor]:
    """Label-smoothed loss and negative log-likelihood, summed over real tokens.

    states [..., d], output matrix [V, d], target [...], real [...]. The second result is for
    display only and has no gradient.
    """
    flat = states.reshape(-1, states.shape[-1])
    mask = real.reshape(-1).to(torch.promote_types(states.dtype, torch.float32))
    return _LinearCrossEntropy.apply(
        flat, weight, target.reshape(-1), mask, smoothing, terms or token_terms
    )


# Log-probabilities of single tokens, for losses that weight tokens


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
