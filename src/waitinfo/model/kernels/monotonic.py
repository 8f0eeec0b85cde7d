"""The recursions of monotonic attention: one pass over memory instead of many.

A program keeps a row of the source in registers and runs along it by scans. Formulas are in
`systems.mma`. Everything is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_SOURCES = 1024  # tokens of a row that fit into the registers of one program


@triton.jit
def _then(decay, x, next_decay, next_x):
    """Two steps of y = x + decay y as one."""
    return decay * next_decay, next_x + next_decay * x


@triton.jit
def _add(most, total, next_most, next_total):
    """Two sums of exponentials, each relative to its largest exponent, as one."""
    highest = tl.maximum(most, next_most)
    total = total * tl.exp(most - highest) + next_total * tl.exp(next_most - highest)
    return highest, total


@triton.jit
def _align(P, ARRIVING, ALPHA, targets, sources, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < sources
    before = tl.where(column == 0, 1.0, 0.0)  # the walk starts on the first token
    start = tl.program_id(0).to(tl.int64) * targets * sources
    for i in range(targets):
        row = start + i * sources + column
        passed = tl.load(P + row - 1, mask=inside & (column > 0), other=0.0)
        _, q = tl.associative_scan((1 - passed, before), 0, _then)
        before = tl.load(P + row, mask=inside, other=0.0) * q
        tl.store(ARRIVING + row, q, mask=inside)
        tl.store(ALPHA + row, before, mask=inside)


@triton.jit
def _align_back(P, ARRIVING, GRADIENT, OUT, targets, sources, BLOCK: tl.constexpr):
    # Columns run from the last token to the first. Gradients of alpha are kept for each token and
    # for the one after it, so that nothing has to move between threads.
    column = sources - 1 - tl.arange(0, BLOCK)
    inside = column >= 0
    inner = inside & (column < sources - 1)
    after = tl.zeros((BLOCK,), tl.float32)
    after_next = tl.zeros((BLOCK,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * targets * sources
    for step in range(targets):
        row = start + (targets - 1 - step) * sources + column
        p = tl.load(P + row, mask=inside, other=0.0)
        p_next = tl.load(P + row + 1, mask=inner, other=0.0)
        gradient = tl.load(GRADIENT + row, mask=inside, other=0.0) + after
        gradient_next = tl.load(GRADIENT + row + 1, mask=inner, other=0.0) + after_next
        x = tl.where(inner, p_next * gradient_next, 0.0)
        decay = tl.where(inner, 1 - p_next, 0.0)
        _, after_next = tl.associative_scan((decay, x), 0, _then)
        after = tl.where(inside, p * gradient + (1 - p) * after_next, 0.0)
        q = tl.load(ARRIVING + row, mask=inside, other=0.0)
        tl.store(OUT + row, q * (gradient - after_next), mask=inside)


class _FusedExpectedAlignment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        p = p.contiguous()
        arriving, alpha = torch.empty_like(p), torch.empty_like(p)
        targets, sources = p.shape[2:]
        grid, options = (p.shape[0] * p.shape[1],), _options(sources)
        _align[grid](p, arriving, alpha, targets, sources, **options)
        ctx.save_for_backward(p, arriving)
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        p, arriving = ctx.saved_tensors
        result = torch.empty_like(p)
        targets, sources = p.shape[2:]
        grid, options = (p.shape[0] * p.shape[1],), _options(sources)
        gradient = gradients[0].contiguous()
        _align_back[grid](p, arriving, gradient, result, targets, sources, **options)
        return result


def expected_alignment(p: Tensor) -> Tensor:
    """Probability of stopping at each token: p [B, H, T, S] -> [B, H, T, S], float32."""
    return _FusedExpectedAlignment.apply(p)


@triton.jit
def _shares(ENERGIES, row, column, inside, sources):
    """Share of each token in the softmax up to it, and 1 minus the share of the next token."""
    u = tl.load(ENERGIES + row, mask=inside, other=-1e30)
    most, total = tl.associative_scan((u, tl.where(inside, 1.0, 0.0)), 0, _add)
    up_to = most + tl.log(total)
    u_next = tl.load(ENERGIES + row + 1, mask=column < sources - 1, other=-1e30)
    return tl.exp(u - up_to), tl.where(column < sources - 1, tl.sigmoid(up_to - u_next), 0.0)


@triton.jit
def _look(ALPHA, ENERGIES, BETA, sources, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < sources
    row = tl.program_id(0).to(tl.int64) * sources + column
    share, decay = _shares(ENERGIES, row, column, inside, sources)
    alpha = tl.load(ALPHA + row, mask=inside, other=0.0)
    _, y = tl.associative_scan((decay, alpha), 0, _then, reverse=True)
    tl.store(BETA + row, share * y, mask=inside)


@triton.jit
def _look_back(
    ALPHA, ENERGIES, BETA, GRADIENT, OF_ALPHA, OF_ENERGIES, sources, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < sources
    row = tl.program_id(0).to(tl.int64) * sources + column
    share, decay = _shares(ENERGIES, row, column, inside, sources)
    gradient = tl.load(GRADIENT + row, mask=inside, other=0.0)
    # The mean gradient under the softmax up to each token.
    _, mean = tl.associative_scan((1 - share, share * gradient), 0, _then)
    alpha = tl.load(ALPHA + row, mask=inside, other=0.0)
    _, y = tl.associative_scan((decay, alpha * mean), 0, _then, reverse=True)
    beta = tl.load(BETA + row, mask=inside, other=0.0)
    tl.store(OF_ALPHA + row, mean, mask=inside)
    tl.store(OF_ENERGIES + row, gradient * beta - share * y, mask=inside)


class _Lookback(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, energies: Tensor) -> Tensor:
        alpha, energies = alpha.contiguous(), energies.contiguous()
        beta, sources = torch.empty_like(alpha), alpha.shape[-1]
        _look[(alpha.numel() // sources,)](alpha, energies, beta, sources, **_options(sources))
        ctx.save_for_backward(alpha, energies, beta)
        return beta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        alpha, energies, beta = ctx.saved_tensors
        results, sources = (torch.empty_like(alpha), torch.empty_like(energies)), alpha.shape[-1]
        gradient = gradients[0].contiguous()
        _look_back[(alpha.numel() // sources,)](
            alpha, energies, beta, gradient, *results, sources, **_options(sources)
        )
        return results


def lookback(alpha: Tensor, energies: Tensor) -> Tensor:
    """Weights of infinite lookback: alpha and energies [B, H, T, S] -> [B, H, T, S], float32."""
    return _Lookback.apply(alpha, energies)


def _options(sources: int) -> dict[str, int]:
    block = triton.next_power_of_2(max(sources, 2))
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 64))}
