"""Residuals with norms, and linear maps with ReLU, with their gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_BLOCK = 2048


# Sums over rows, computed by many programs that each sum a part


@triton.jit
def _sum_kernel(PARTS, OUT, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < width)
        total += tl.load(PARTS + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(OUT + column, tl.sum(total, 0), mask=column < width)


def sum_parts(parts: Tensor) -> Tensor:
    """Add up the partial sums of all programs: [programs, d] -> [d], float32."""
    rows, width = parts.shape
    out = parts.new_empty(width)
    _sum_kernel[(triton.cdiv(width, 16),)](parts, out, rows, width, ROWS=256, COLUMNS=16)
    return out


# Dropout, residual connection and layer norm

NORM_PROGRAMS, NORM_ROWS, NORM_WARPS = 396, 4, 4


@triton.jit
def _mix(x):
    """Hash a number so that every input bit affects every output bit (end of MurmurHash3)."""
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _kept(seed, at, dropout):
    """Dropout factor of the element at each index: 0 or 1 / (1 - p)."""
    seed = seed.to(tl.uint32)
    drawn = _mix(_mix(at.to(tl.uint32) ^ seed) + seed)
    drawn = (drawn >> 8).to(tl.float32) / 16777216
    return tl.where(drawn >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _norm_forward(
    X, Y, SHIFT, WEIGHT, BIAS, SEED, OUT, NORMAL, SCALE, rows, width, dropout, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    real, inside = column < width, (row[:, None] < rows) & (column[None, :] < width)
    at = row[:, None] * width + column[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(SHIFT + column, mask=real, other=0.0).to(tl.float32)[None, :]
    if DROPS:
        y *= _kept(tl.load(SEED), at, dropout)
    x += y
    mean = tl.sum(x, 1) / width
    x = tl.where(real[None, :], x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / width + epsilon)
    normal = x * scale[:, None]
    weight = tl.load(WEIGHT + column, mask=real, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + column, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + at, normal * weight[None, :] + bias[None, :], mask=inside)
    tl.store(NORMAL + at, normal, mask=inside)
    tl.store(SCALE + row, scale, mask=row < rows)


@triton.jit
def _norm_backward(
    GRADIENT, NORMAL, SCALE, WEIGHT, SEED, BY_X, BY_Y, PARTS, rows, width, dropout,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    real = column < width
    weight = tl.load(WEIGHT + column, mask=real, other=0.0).to(tl.float32)
    by_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    by_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    by_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    step = tl.num_programs(0) * ROWS
    for start in range(tl.program_id(0) * ROWS, rows, step):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & real[None, :]
        at = row[:, None] * width + column[None, :]
        gradient = tl.load(GRADIENT + at, mask=inside, other=0.0).to(tl.float32)
        normal = tl.load(NORMAL + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(SCALE + row, mask=row < rows, other=0.0)
        by_weight += gradient * normal
        by_bias += gradient
        gradient *= weight[None, :]
        along = tl.sum(gradient * normal, 1) / width
        mean = tl.sum(gradient, 1) / width
        by_x = (gradient - normal * along[:, None] - mean[:, None]) * scale[:, None]
        tl.store(BY_X + at, by_x, mask=inside)
        if DROPS:
            by_x *= _kept(tl.load(SEED), at, dropout)
        tl.store(BY_Y + at, by_x, mask=inside)
        by_shift += by_x
    parts = PARTS + tl.program_id(0) * 3 * width + column
    tl.store(parts, tl.sum(by_shift, 0), mask=real)
    tl.store(parts + width, tl.sum(by_weight, 0), mask=real)
    tl.store(parts + 2 * width, tl.sum(by_bias, 0), mask=real)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, dropout: float,
        epsilon: float,
    ) -> Tensor:  # fmt: skip
        x, y = x.contiguous(), y.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        out, normal = torch.empty_like(y), torch.empty_like(y)
        scale = y.new_empty(rows, dtype=torch.float32)
        seed = torch.randint(2**31 - 1, (1,), device=x.device)
        _norm_forward[(triton.cdiv(rows, NORM_ROWS),)](
            x, y, shift, weight, bias, seed, out, normal, scale, rows, width, dropout, epsilon,
            ROWS=NORM_ROWS, WIDTH=triton.next_power_of_2(width), DROPS=dropout > 0,
            num_warps=NORM_WARPS,
        )  # fmt: skip
        ctx.save_for_backward(normal, scale, weight, seed)
        ctx.dropout, ctx.dtypes = dropout, (x.dtype, shift.dtype, weight.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        normal, scale, weight, seed = ctx.saved_tensors
        of_x, of_shift, of_weight = ctx.dtypes
        rows, width = len(scale), normal.shape[-1]
        by_x, by_y = torch.empty_like(normal, dtype=of_x), torch.empty_like(normal)
        programs = min(NORM_PROGRAMS, triton.cdiv(rows, NORM_ROWS))
        parts = scale.new_empty(programs, 3 * width)
        _norm_backward[(programs,)](
            gradients[0].contiguous(), normal, scale, weight, seed, by_x, by_y, parts, rows, width,
            ctx.dropout,
            ROWS=NORM_ROWS, WIDTH=triton.next_power_of_2(width), DROPS=ctx.dropout > 0,
            num_warps=NORM_WARPS,
        )  # fmt: skip
        by_shift, by_weight, by_bias = sum_parts(parts).view(3, width)
        by_weights = by_weight.to(of_weight), by_bias.to(of_weight)
        return by_x, by_y, by_shift.to(of_shift), *by_weights, None, None


def add_norm(
    x: Tensor, y: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, dropout: float,
    epsilon: float,
) -> Tensor:  # fmt: skip
    """norm(x + dropout(y + shift)), in the precision of y: [..., d]."""
    return _AddNorm.apply(x, y, shift, weight, bias, dropout, epsilon)


# Linear map and ReLU

RELU_PROGRAMS, RELU_ROWS, RELU_COLUMNS = 128, 8, 512


@triton.jit
def _relu_backward(
    GRADIENT, OUT, BY_IN, PARTS, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & real[None, :]
        at = row[:, None] * width + column[None, :]
        out = tl.load(OUT + at, mask=inside, other=0.0)
        gradient = tl.load(GRADIENT + at, mask=inside, other=0.0)
        gradient = tl.where(out > 0, gradient, 0.0)
        tl.store(BY_IN + at, gradient, mask=inside)
        by_bias += gradient.to(tl.float32)
    tl.store(PARTS + tl.program_id(0) * width + column, tl.sum(by_bias, 0), mask=real)


class _LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch.ops.aten._addmm_activation(bias, x, weight.T)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, out = ctx.saved_tensors
        rows, width = out.shape
        by_in = torch.empty_like(out)
        programs = min(RELU_PROGRAMS, triton.cdiv(rows, RELU_ROWS))
        parts = out.new_empty(programs, width, dtype=torch.float32)
        _relu_backward[programs, triton.cdiv(width, RELU_COLUMNS)](
            gradients[0].contiguous(), out, by_in, parts, rows, width,
            ROWS=RELU_ROWS, COLUMNS=RELU_COLUMNS,
        )  # fmt: skip
        return by_in @ weight, by_in.T @ x, sum_parts(parts).to(out.dtype)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x W^T + b), with all inputs of one dtype: [..., d] -> [..., f]."""
    return _LinearRelu.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


@triton.jit
def _terms(
    LOGITS, TARGET, REAL, LOSS, NLL, width, smoothing, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    target, real = tl.load(TARGET + row), tl.load(REAL + row).to(tl.float32)
    logits = LOGITS + row * width
    gold = tl.load(logits + target).to(tl.float32)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        inside = start + column < width
        x = tl.load(logits + start + column, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        safe = tl.maximum(higher, -1e30)
        total = total * tl.exp(most - safe) + tl.exp(x - safe)
        plain += tl.where(inside, x, 0.0)
        most = higher
    highest = tl.max(most, 0)
    log_total = highest + tl.log(tl.sum(total * tl.exp(most - highest), 0))
    nll = log_total - gold
    uniform = log_total - tl.sum(plain, 0) / width
    tl.store(NLL + row, nll * real)
    tl.store(LOSS + row, ((1 - smoothing) * nll + smoothing * uniform) * real)
    for start in range(0, width, BLOCK):
        inside = start + column < width
        x = tl.load(logits + start + column, mask=inside, other=0.0).to(tl.float32)
        right = tl.where(start + column == target, 1 - smoothing, 0.0)
        gradient = (tl.exp(x - log_total) - right - smoothing / width) * real
        tl.store(logits + start + column, gradient, mask=inside)


def token_terms(
    logits: Tensor, target: Tensor, real: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Like `loss.token_terms`, but the gradient overwrites the logits."""
    loss, nll = logits.new_empty(2, len(logits), dtype=torch.float32).unbind()
    _terms[(len(logits),)](
        logits, target, real, loss, nll, logits.shape[1], smoothing,
        BLOCK=min(VOCABULARY_BLOCK, triton.next_power_of_2(logits.shape[1])), num_warps=8,
    )  # fmt: skip
    return loss.sum(), nll.sum(), logits
