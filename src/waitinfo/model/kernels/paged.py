"""Attention of one query per row to keys and values that lie in blocks.

Every row reads its own blocks up to its own length. So rows of any lengths share a launch without
padding, and nothing is copied together first. The reference implementation is `Pages.gather` and
`attend`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from waitinfo.model.cache import Pages

KEYS = 64  # keys of one turn: most sentences need one


@triton.jit
def blocks_of(
    TABLE, at, real, head, column,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Where the keys or values of positions [KEYS] lie: [KEYS, WIDTH]."""
    block = tl.load(TABLE + at // BLOCK, mask=real, other=0).to(tl.int64)
    return ((block * HEADS + head) * BLOCK + at % BLOCK)[:, None] * WIDTH + column[None, :]


@triton.jit
def fold(K, V, place, real, query, bias, largest, total, mixed):
    """Take the next keys into a softmax: its largest score, its total and the mixed values."""
    keys = tl.load(K + place, mask=real[:, None], other=0.0).to(tl.float32)
    scores = tl.where(real, tl.sum(keys * query[None, :], 1) + bias, -float("inf"))
    before = largest
    largest = tl.maximum(before, tl.max(scores, 0))
    weights = tl.exp(scores - largest)
    kept = tl.exp(before - largest)
    values = tl.load(V + place, mask=real[:, None], other=0.0).to(tl.float32)
    mixed = mixed * kept + tl.sum(values * weights[:, None], 0)
    return largest, total * kept + tl.sum(weights, 0), mixed


@triton.jit
def _attend(
    QUERIES, K, V, TABLE, COUNT, BIAS, OUT, query_row, query_head, table_row, bias_row, bias_head,
    scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    query = tl.load(QUERIES + row * query_row + head * query_head + column).to(tl.float32) * scale
    count = tl.load(COUNT + row).to(tl.int32)
    largest = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, count, KEYS):
        at = start + tl.arange(0, KEYS)
        real = at < count
        place = blocks_of(TABLE + row * table_row, at, real, head, column, HEADS, BLOCK, WIDTH)
        bias = tl.load(BIAS + row * bias_row + head * bias_head + at, mask=real, other=0.0)
        largest, total, mixed = fold(
            K, V, place, real, query, bias.to(tl.float32), largest, total, mixed
        )
    out = (row * HEADS + head) * WIDTH + column
    tl.store(OUT + out, (mixed / total).to(OUT.dtype.element_ty))


def paged_attention(queries: Tensor, keys: Pages, values: Pages, bias: Tensor) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v for one query per row: [R, H, 1, d/H] -> the same shape.

    bias [R, 1 or H, 1, L]. Of the keys, the first `keys.count` of a row are seen.
    """
    rows, heads, _, width = queries.shape
    out = torch.empty(rows, heads, 1, width, dtype=queries.dtype, device=queries.device)
    bias_head = bias.stride(1) if bias.shape[1] > 1 else 0
    bias_row = bias.stride(0) if bias.shape[0] > 1 else 0
    _attend[(rows, heads)](
        queries, keys.pool, values.pool, keys.table, keys.count.contiguous(), bias, out,
        queries.stride(0), queries.stride(1), keys.table.stride(0), bias_row, bias_head,
        width**-0.5,
        HEADS=heads, WIDTH=width, BLOCK=keys.pool.shape[2], KEYS=KEYS, num_warps=4,
    )  # fmt: skip
    return out
