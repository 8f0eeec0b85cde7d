"""Sums over rows, computed by many programs that each sum a part."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


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
