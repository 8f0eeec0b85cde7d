"""The first half of a feed-forward layer (linear and ReLU), and its gradient."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from waitinfo.model.kernels.sums import sum_parts

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
