"""Kernels for steps of one position per row, which are limited by their number of kernels.

A product with few rows reads its weights once and does the residual connection and the layer norm
before it, too: every program computes the norm again, which is cheaper than a kernel of its own.
Attention stores the new keys and values, and computes the bias of info, in the same kernel.
The reference implementations are in `model.attention`, `model.layers` and `model.transformer`.

`paged_attention` alone is for steps of several positions: every row reads its own blocks up to its
own length, so rows of any lengths share a launch without padding, and nothing is copied together
first. Its reference implementation is `Pages.gather` and `attend`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from waitinfo.model.cache import PagedCache, Pages
from waitinfo.model.info import SMALLEST_WEIGHT
from waitinfo.text.special import BOS, PAD

FEW_ROWS = 4  # with at most this many rows, products are computed here
KEYS = 64  # keys of one turn: most sentences need one
TILE = 8192  # weights that a program holds
PROGRAMS = 128  # of a large product, about
CHOICES = 4096  # logits of one turn
NO_BIAS, DIAGONAL, CONSISTENCY = range(3)  # what attention adds to its scores


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
def _attend_pages(
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
    _attend_pages[(rows, heads)](
        queries, keys.pool, values.pool, keys.table, keys.count.contiguous(), bias, out,
        queries.stride(0), queries.stride(1), keys.table.stride(0), bias_row, bias_head,
        width**-0.5,
        HEADS=heads, WIDTH=width, BLOCK=keys.pool.shape[2], KEYS=KEYS, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _normal(x, WEIGHT, BIAS, at, real, width, epsilon):
    """Layer norm of one row [WIDTH]."""
    mean = tl.sum(x, 0) / width
    x = tl.where(real, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / width + epsilon)
    weight = tl.load(WEIGHT + at, mask=real, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + at, mask=real, other=0.0).to(tl.float32)
    return x * scale * weight + bias


@triton.jit
def _linear(
    X, Y, NORM_WEIGHT, NORM_BIAS, WEIGHT, BIAS, KEPT, OUT, width, outputs, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr,
    NORMS: tl.constexpr, KEEPS_SUM: tl.constexpr, SHIFTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real, inside = at < width, column < outputs
    weight = tl.load(
        WEIGHT + column[:, None] * width + at[None, :],
        mask=inside[:, None] & real[None, :],
        other=0.0,
    ).to(tl.float32)
    for row in tl.static_range(ROWS):
        place = row * width + at
        x = tl.load(X + place, mask=real, other=0.0).to(tl.float32)
        if ADDS:
            x += tl.load(Y + place, mask=real, other=0.0).to(tl.float32)
        kept = x
        if NORMS:
            x = _normal(x, NORM_WEIGHT, NORM_BIAS, at, real, width, epsilon)
            x = x.to(OUT.dtype.element_ty).to(tl.float32)
            if not KEEPS_SUM:
                kept = x
        if ADDS or NORMS:  # noqa: SIM102 - decided by the compiler
            if tl.program_id(0) == 0:
                tl.store(KEPT + place, kept.to(KEPT.dtype.element_ty), mask=real)
        found = tl.sum(weight * x[None, :], 1)
        if SHIFTS:
            found += tl.load(BIAS + column, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            found = tl.maximum(found, 0.0)
        tl.store(OUT + row * outputs + column, found.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm(
    X, Y, WEIGHT, BIAS, SUM, OUT, width, epsilon,
    WIDTH: tl.constexpr, ADDS: tl.constexpr, KEEPS_SUM: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    real = at < width
    place = tl.program_id(0) * width + at
    x = tl.load(X + place, mask=real, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(Y + place, mask=real, other=0.0).to(tl.float32)
    if KEEPS_SUM:
        tl.store(SUM + place, x.to(SUM.dtype.element_ty), mask=real)
    x = _normal(x, WEIGHT, BIAS, at, real, width, epsilon)
    tl.store(OUT + place, x.to(OUT.dtype.element_ty), mask=real)


@triton.jit
def _put(
    X, K, V, BLOCK_OF, OFFSET, key, value, row_size,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    block, offset = tl.load(BLOCK_OF + row).to(tl.int64), tl.load(OFFSET + row)
    place = ((block * HEADS + head) * BLOCK + offset) * WIDTH + column
    source = X + row * row_size + head * WIDTH + column
    tl.store(K + place, tl.load(source + key).to(K.dtype.element_ty))
    tl.store(V + place, tl.load(source + value).to(V.dtype.element_ty))


@triton.jit
def _bias(at, count, mine, THEIRS, real, SMALLEST: tl.constexpr, KIND: tl.constexpr):
    """Repeats `self_bias` (KIND 1) and `consistency` of `model.info` for keys [KEYS]."""
    if KIND == 1:
        bias = tl.where(at == count - 1, mine - 1.0, 0.0)
    else:
        theirs = tl.load(THEIRS + at, mask=real, other=0.0).to(tl.float32)
        bias = tl.log(tl.maximum(2.0 - tl.abs(mine - theirs), SMALLEST))
    return bias


@triton.jit
def _attend(
    Q, K, V, TABLE, SLOT, COUNT, INFO, THEIRS, OUT, row_size, table_row, theirs_row, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
    STORES: tl.constexpr, KIND: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    source = Q + row * row_size + head * WIDTH + column
    query = tl.load(source).to(tl.float32) * scale
    count = tl.load(COUNT + row).to(tl.int32)
    slot = tl.load(SLOT + row).to(tl.int64)
    TABLE += slot * table_row
    mine = 0.0
    if KIND > 0:
        mine = tl.load(INFO + row).to(tl.float32)
        THEIRS += slot * theirs_row
    before = count
    largest = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((WIDTH,), tl.float32)
    if STORES:  # queries, keys and values lie side by side
        before = count - 1
        key, value = tl.load(source + HEADS * WIDTH), tl.load(source + 2 * HEADS * WIDTH)
        own = tl.load(TABLE + before // BLOCK).to(tl.int64)
        there = ((own * HEADS + head) * BLOCK + before % BLOCK) * WIDTH + column
        tl.store(K + there, key.to(K.dtype.element_ty))
        tl.store(V + there, value.to(V.dtype.element_ty))
        score = tl.sum(query * key.to(tl.float32), 0)
        if KIND == 1:
            score += mine - 1.0
        largest = tl.maximum(largest, score)
        total += 1.0
        mixed += value.to(tl.float32)
    for start in range(0, before, KEYS):
        at = start + tl.arange(0, KEYS)
        real = at < before
        place = blocks_of(TABLE, at, real, head, column, HEADS, BLOCK, WIDTH)
        bias = tl.zeros((KEYS,), tl.float32)
        if KIND > 0:
            bias = _bias(at, count, mine, THEIRS, real, SMALLEST, KIND)
        largest, total, mixed = fold(K, V, place, real, query, bias, largest, total, mixed)
    out = (row * HEADS + head) * WIDTH + column
    tl.store(OUT + out, (mixed / total).to(OUT.dtype.element_ty))


@triton.jit
def _embed(
    TOKENS, AT, TABLE, POSITIONS, X, SQUASHED, width, scale,
    WIDTH: tl.constexpr, SQUASHES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    real = column < width
    token, at = tl.load(TOKENS + row).to(tl.int64), tl.load(AT + row).to(tl.int64)
    kind = X.dtype.element_ty
    x = tl.load(TABLE + token * width + column, mask=real, other=0.0).to(tl.float32) * scale
    x = x.to(kind).to(tl.float32)  # rounded where the reference rounds
    x += tl.load(POSITIONS + at * width + column, mask=real, other=0.0).to(tl.float32)
    x = x.to(kind)
    tl.store(X + row * width + column, x, mask=real)
    if SQUASHES:
        squashed = 2 * tl.sigmoid(2 * x.to(tl.float32)) - 1
        tl.store(SQUASHED + row * width + column, squashed.to(kind), mask=real)


@triton.jit
def _info(HIDDEN, WEIGHT, TOKENS, OUT, width, first, WIDTH: tl.constexpr):
    """Repeats the second half of `InfoQuantizer` of `model.info`."""
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    real = column < width
    hidden = tl.load(HIDDEN + row * width + column, mask=real, other=0.0).to(tl.float32)
    hidden = (2 * tl.sigmoid(2 * hidden) - 1).to(HIDDEN.dtype.element_ty).to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=real, other=0.0).to(tl.float32)
    found = 2 * tl.sigmoid(tl.sum(hidden * weight, 0))
    found = tl.where(tl.load(TOKENS + row) == first, 1.0, found)
    tl.store(OUT + row, found.to(OUT.dtype.element_ty))


@triton.jit
def _best(
    LOGITS, FORCED, TOKENS, FINITE, vocabulary,
    PAD: tl.constexpr, BOS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    row_logits = LOGITS + row.to(tl.int64) * vocabulary
    best = tl.full((COLUMNS,), -float("inf"), tl.float32)
    index = tl.zeros((COLUMNS,), tl.int32)
    broken = tl.zeros((COLUMNS,), tl.int32)
    for start in range(0, vocabulary, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        x = tl.load(row_logits + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        x = tl.where((at == PAD) | (at == BOS), -float("inf"), x)
        broken |= (x != x).to(tl.int32)  # noqa: PLR0124 - NaN
        better = x > best
        best, index = tl.where(better, x, best), tl.where(better, at, index)
    tl.store(row_logits + PAD, -float("inf"))
    tl.store(row_logits + BOS, -float("inf"))
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, index, vocabulary), 0)
    first = tl.minimum(first, vocabulary - 1)  # where nothing is a number
    forced = tl.load(FORCED + row)
    tl.store(TOKENS + row, tl.where(forced > 0, forced, first.to(tl.int64)))
    fine = (tl.max(broken, 0) == 0) & (tl.abs(top) < float("inf"))
    tl.store(FINITE + row, fine.to(tl.int8))


def _power(number: int) -> int:
    return triton.next_power_of_2(number)


def linear(
    x: Tensor, layer: nn.Linear, relu: bool = False, y: Tensor | None = None,
    norm: nn.LayerNorm | None = None, keeps_sum: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A product of few rows [R, d] -> [R, e], after norm(x + y); also x + y or its norm: [R, d]."""
    rows, width = x.shape
    outputs = layer.out_features
    out = x.new_empty(rows, outputs)
    kept = torch.empty_like(x) if y is not None or norm is not None else x
    columns = max(1, min(TILE // _power(width), _power(triton.cdiv(outputs, PROGRAMS))))
    _linear[(triton.cdiv(outputs, columns),)](
        x, x if y is None else y, x if norm is None else norm.weight,
        x if norm is None else norm.bias, layer.weight, layer.weight if layer.bias is None
        else layer.bias, kept, out, width, outputs, 0.0 if norm is None else norm.eps,
        ROWS=rows, WIDTH=_power(width), COLUMNS=columns, ADDS=y is not None,
        NORMS=norm is not None, KEEPS_SUM=keeps_sum, SHIFTS=layer.bias is not None, RELU=relu,
        num_warps=4,
    )  # fmt: skip
    return out, kept


def add_norm(
    x: Tensor, y: Tensor | None, norm: nn.LayerNorm, keeps_sum: bool
) -> tuple[Tensor, Tensor]:
    """norm(x + y) and, with `keeps_sum`, x + y, else the norm again: [R, d]."""
    rows, width = x.shape
    out = torch.empty_like(x)
    total = torch.empty_like(x) if keeps_sum else out
    _add_norm[(rows,)](
        x, x if y is None else y, norm.weight, norm.bias, total, out, width, norm.eps,
        WIDTH=_power(width), ADDS=y is not None, KEEPS_SUM=keeps_sum, num_warps=4,
    )  # fmt: skip
    return out, total


def put(x: Tensor, cache: PagedCache, block: Tensor, offset: Tensor, key: int) -> None:
    """Store keys and values, which lie side by side in x from column `key` on, in a cache."""
    _, heads, size, width = cache.keys.shape
    _put[(len(x), heads)](
        x, cache.keys, cache.values, block, offset, key, key + heads * width, x.shape[1],
        HEADS=heads, WIDTH=width, BLOCK=size, num_warps=1,
    )  # fmt: skip


def attend_rows(
    projected: Tensor, cache: PagedCache, table: Tensor, slot: Tensor, count: Tensor,
    kind: int, info: Tensor | None, theirs: Tensor | None, stores: bool,
) -> Tensor:  # fmt: skip
    """Attention of one query per row [R, …] to the first count [R] positions of its slot.

    The queries begin each row of `projected`. With `stores`, keys and values follow them and are
    stored as the last of these positions; then all slots have to differ. table [slots, W] holds the
    blocks of all slots, `theirs` [slots, S] the info of the keys.
    """
    _, heads, size, width = cache.keys.shape
    rows = len(projected)
    out = projected.new_empty(rows, heads * width)
    _attend[(rows, heads)](
        projected, cache.keys, cache.values, table, slot, count,
        out if info is None else info, out if theirs is None else theirs, out,
        projected.shape[1], table.stride(0), 0 if theirs is None else theirs.stride(0), width**-0.5,
        HEADS=heads, WIDTH=width, BLOCK=size, KEYS=KEYS, STORES=stores, KIND=kind,
        SMALLEST=SMALLEST_WEIGHT, num_warps=4,
    )  # fmt: skip
    return out


def embed(
    tokens: Tensor, at: Tensor, table: Tensor, positions: Tensor, squashes: bool
) -> tuple[Tensor, Tensor]:
    """Embeddings of tokens [R] at positions [R], and with `squashes` their tanh: [R, d]."""
    width = table.shape[1]
    x = table.new_empty(len(tokens), width)
    squashed = torch.empty_like(x) if squashes else x
    _embed[(len(tokens),)](
        tokens, at, table, positions, x, squashed, width, width**0.5,
        WIDTH=_power(width), SQUASHES=squashes, num_warps=4,
    )  # fmt: skip
    return x, squashed


def info_of(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """Info of tokens [R] from the quantizer's hidden layer [R, d], before its tanh."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    out = torch.empty(len(hidden), device=hidden.device, dtype=exact)
    _info[(len(hidden),)](
        hidden, weight, tokens, out, hidden.shape[1], BOS, WIDTH=_power(hidden.shape[1]),
        num_warps=4,
    )  # fmt: skip
    return out


def best_tokens(logits: Tensor, forced: Tensor) -> tuple[Tensor, Tensor]:
    """The best token [R] of logits [R, V], or the forced one if it is not 0; which are finite.

    Excludes tokens that are never written from the logits.
    """
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(rows, dtype=torch.int8, device=logits.device)
    _best[(rows,)](
        logits, forced, tokens, finite, vocabulary,
        PAD=PAD, BOS=BOS, COLUMNS=min(CHOICES, _power(vocabulary)), num_warps=8,
    )  # fmt: skip
    return tokens, finite.view(torch.bool)
