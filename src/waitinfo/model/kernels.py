"""The fused kernels of training on a GPU, in Triton, which comes with torch there.

Sentences are short: a whole attention of one head fits on one multiprocessor, and what is left of a
training step once its matrix products are fast is moving activations through memory. So each of
these does in one pass what would take many: attention with a bias and its gradient, a sublayer's
dropout, residual and layer norm, the first half of a feed-forward layer, and the cross-entropy of a
chunk of logits with its gradient.

What takes their place elsewhere, and defines them, is in `attention`, `layers` and `loss`. Block
sizes and numbers of programs are those that were fastest on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_KEYS = 128  # source or target positions of an attention held on chip
# By keys of an attention, rounded up: targets at a time, warps, stages of its loop.
FORWARD = {16: (64, 2, 1), 32: (64, 2, 1), 64: (64, 4, 1), 128: (64, 4, 1)}
BACKWARD = {16: (32, 2, 1), 32: (32, 2, 1), 64: (32, 4, 1), 128: (32, 8, 1)}
NORM_PROGRAMS, NORM_ROWS, NORM_WARPS = 1056, 4, 4
RELU_PROGRAMS, RELU_ROWS, RELU_COLUMNS = 128, 8, 512
VOCABULARY_BLOCK = 4096
VARYING = ["targets", "sources", "bias_b", "bias_h", "bias_t"]  # compiled for no value of these


@triton.jit
def _sum_parts(PARTS, OUT, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < width)
        total += tl.load(PARTS + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(OUT + column, tl.sum(total, 0), mask=column < width)


def _sum(parts: Tensor) -> Tensor:
    """The sum of what programs summed each: [programs, d] -> [d], float32."""
    rows, width = parts.shape
    out = parts.new_empty(width)
    _sum_parts[(triton.cdiv(width, 16),)](parts, out, rows, width, ROWS=256, COLUMNS=16)
    return out


# Attention


@triton.jit
def _bias_tile(bias, t, s, targets, sources, bias_t, HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr):
    """What is added to the scores of positions t and s, which broadcast: -inf where unseen."""
    inside = (t < targets) & (s < sources)
    if HAS_BIAS:
        return tl.load(bias + t * bias_t + s, mask=inside, other=float("-inf")).to(tl.float32)
    if CAUSAL:
        inside = inside & (s <= t)
    return tl.where(inside, 0.0, float("-inf"))


@triton.jit(do_not_specialize=VARYING)
def _attention_forward(
    Q, K, V, BIAS, OUT, TOTAL,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, out_b, out_h, out_t,
    heads, targets, sources, scale,
    T: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h = row // heads, row % heads
    t = tl.program_id(1) * T + tl.arange(0, T)
    s = tl.arange(0, S)
    d = tl.arange(0, D)
    real, seen = t[:, None] < targets, s[:, None] < sources
    q = tl.load((Q + b * q_b + h * q_h) + (t[:, None] * q_t + d), mask=real, other=0.0)
    k = tl.load((K + b * k_b + h * k_h) + (s[:, None] * k_s + d), mask=seen, other=0.0)
    bias = BIAS + b * bias_b + h * bias_h
    more = _bias_tile(bias, t[:, None], s[None, :], targets, sources, bias_t, HAS_BIAS, CAUSAL)
    v = tl.load((V + b * v_b + h * v_h) + (s[:, None] * v_s + d), mask=seen, other=0.0)
    scores = tl.dot(q, tl.trans(k)) * scale + more
    most = tl.maximum(tl.max(scores, 1), -1e30)
    weights = tl.exp(scores - most[:, None])
    total = tl.maximum(tl.sum(weights, 1), 1e-30)
    mixed = tl.dot(weights.to(v.dtype), v) / total[:, None]
    tl.store((OUT + b * out_b + h * out_h) + (t[:, None] * out_t + d), mixed, mask=real)
    tl.store((TOTAL + row * targets) + t, most + tl.log(total), mask=t < targets)


@triton.jit(do_not_specialize=VARYING)
def _attention_backward(
    Q, K, V, BIAS, OUT, TOTAL, GRADIENT, BY_Q, BY_K, BY_V, BY_BIAS,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, out_b, out_h, out_t,
    by_q_b, by_q_h, by_q_t, by_k_b, by_k_h, by_k_s,
    heads, targets, sources, scale,
    T: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, BIAS_LEARNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h = row // heads, row % heads
    s = tl.arange(0, S)
    d = tl.arange(0, D)
    seen = s[:, None] < sources
    k = tl.load((K + b * k_b + h * k_h) + (s[:, None] * k_s + d), mask=seen, other=0.0)
    v = tl.load((V + b * v_b + h * v_h) + (s[:, None] * v_s + d), mask=seen, other=0.0)
    # Where this head begins; offsets from there are small numbers.
    bias = BIAS + b * bias_b + h * bias_h
    queries, by_queries = Q + b * q_b + h * q_h, BY_Q + b * by_q_b + h * by_q_h
    outs, gradients = OUT + b * out_b + h * out_h, GRADIENT + b * out_b + h * out_h
    totals, by_biases = TOTAL + row * targets, BY_BIAS + row * targets * sources
    by_k = tl.zeros((S, D), tl.float32)
    by_v = tl.zeros((S, D), tl.float32)
    for start in range(0, targets, T):
        t = start + tl.arange(0, T)
        real = t[:, None] < targets
        q = tl.load(queries + (t[:, None] * q_t + d), mask=real, other=0.0)
        gradient = tl.load(gradients + (t[:, None] * out_t + d), mask=real, other=0.0)
        out = tl.load(outs + (t[:, None] * out_t + d), mask=real, other=0.0)
        total = tl.load(totals + t, mask=t < targets, other=0.0)
        more = _bias_tile(bias, t[None, :], s[:, None], targets, sources, bias_t, HAS_BIAS, CAUSAL)
        shared = tl.sum(gradient.to(tl.float32) * out.to(tl.float32), 1)
        # Source by target, so that weights go from one product into the next as they are.
        scores = tl.dot(k, tl.trans(q)) * scale + more
        weights = tl.exp(scores - total[None, :])
        by_v += tl.dot(weights.to(q.dtype), gradient)
        by_score = weights * (tl.dot(v, tl.trans(gradient)) - shared[None, :])
        scaled = (by_score * scale).to(q.dtype)
        by_k += tl.dot(scaled, q)
        by_q = tl.dot(tl.trans(scaled), k)
        tl.store(by_queries + (t[:, None] * by_q_t + d), by_q, mask=real)
        if BIAS_LEARNS:
            at = by_biases + (t[:, None] * sources + s[None, :])
            tl.store(at, tl.trans(by_score), mask=real & (s[None, :] < sources))
    tl.store((BY_K + b * by_k_b + h * by_k_h) + (s[:, None] * by_k_s + d), by_k, mask=seen)
    tl.store((BY_V + b * by_k_b + h * by_k_h) + (s[:, None] * by_k_s + d), by_v, mask=seen)


def _block(positions: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(positions)))


def _launch(
    queries: Tensor, keys: Tensor, bias: Tensor | None, causal: bool,
    choices: dict[int, tuple[int, int, int]],
) -> dict[str, Any]:  # fmt: skip
    """What an attention is launched with."""
    _, heads, targets, width = queries.shape
    block = _block(keys.shape[2], MOST_KEYS)
    most, warps, stages = choices[block]
    return {
        "heads": heads, "targets": targets, "sources": keys.shape[2], "scale": width**-0.5,
        "T": _block(targets, most), "S": block, "D": width, "HAS_BIAS": bias is not None,
        "CAUSAL": causal, "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    if bias is None:
        return 0, 0, 0
    b, h, t, _ = bias.stride()
    return b, 0 if bias.shape[1] == 1 else h, 0 if bias.shape[2] == 1 else t


def _by_head(queries: Tensor, keys: Tensor | None, values: Tensor | None) -> list[Tensor]:
    """Queries, keys and values as [B, H, T, d]; without keys, all are packed into the first."""
    if keys is None or values is None:
        return [part.transpose(1, 2) for part in queries.unbind(2)]
    return [part.transpose(1, 2) for part in (queries, keys, values)]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, given_keys: Tensor | None, given_values: Tensor | None,
        bias: Tensor | None, causal: bool,
    ) -> Tensor:  # fmt: skip
        queries, keys, values = _by_head(given, given_keys, given_values)
        b, heads, targets, width = queries.shape
        out = queries.new_empty(b, targets, heads, width)
        total = queries.new_empty(b, heads, targets, dtype=torch.float32)
        settings = _launch(queries, keys, bias, causal, FORWARD)
        _attention_forward[b * heads, triton.cdiv(targets, settings["T"])](
            queries, keys, values, out if bias is None else bias, out, total,
            *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *_bias_strides(bias),
            *out.transpose(1, 2).stride()[:3], **settings,
        )  # fmt: skip
        ctx.save_for_backward(given, given_keys, given_values, bias, out, total)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given, given_keys, given_values, bias, out, total = ctx.saved_tensors
        learns = ctx.needs_input_grad[3]
        queries, keys, values = _by_head(given, given_keys, given_values)
        by_given, by_keys, by_values = (
            None if x is None else x.new_empty(x.shape) for x in (given, given_keys, given_values)
        )
        by_q, by_k, by_v = _by_head(by_given, by_keys, by_values)  # type: ignore[arg-type]
        b, heads, targets, _ = queries.shape
        by_bias = out.new_empty((b, heads, targets, keys.shape[2]) if learns else (0,))
        settings = _launch(queries, keys, bias, ctx.causal, BACKWARD)
        _attention_backward[(b * heads,)](
            queries, keys, values, out if bias is None else bias, out, total,
            gradients[0].contiguous(), by_q, by_k, by_v, by_bias,
            *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *_bias_strides(bias),
            *out.transpose(1, 2).stride()[:3], *by_q.stride()[:3], *by_k.stride()[:3],
            BIAS_LEARNS=learns, **settings,
        )  # fmt: skip
        return by_given, by_keys, by_values, _fold(by_bias, bias) if learns else None, None


def _fold(gradient: Tensor, bias: Tensor) -> Tensor:
    """The gradient of a bias that heads or queries share: [B, H, T, S] summed over those."""
    if bias.shape[1] == 1:
        gradient = gradient.sum(1, keepdim=True, dtype=bias.dtype)
    if bias.shape[2] == 1:
        gradient = gradient.sum(2, keepdim=True)
    return gradient.to(bias.dtype)


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v: queries [B, T, H, d], the others [B, S, H, d].

    At most MOST_KEYS keys. The bias is [B, 1 or H, T or 1, S]; `causal` stands for a causal mask
    without one. All have a contiguous last dimension.
    """
    return _Attention.apply(queries, keys, values, bias, causal)


def self_attention(projected: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """The same with queries, keys and values in one: [B, T, 3, H, d] -> [B, T, H, d]."""
    return _Attention.apply(projected, None, None, bias, causal)


# Dropout, residual and layer norm


@triton.jit
def _mix(x):
    """Every bit of a number into every other (the last steps of MurmurHash3)."""
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _kept(seed, at, dropout):
    """What dropout multiplies the element at each place with: 0 or 1 / (1 - p)."""
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
        by_shift, by_weight, by_bias = _sum(parts).view(3, width)
        by_weights = by_weight.to(of_weight), by_bias.to(of_weight)
        return by_x, by_y, by_shift.to(of_shift), *by_weights, None, None


def add_norm(
    x: Tensor, y: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, dropout: float,
    epsilon: float,
) -> Tensor:  # fmt: skip
    """norm(x + dropout(y + shift)), in the precision of y: [..., d]."""
    return _AddNorm.apply(x, y, shift, weight, bias, dropout, epsilon)


# Feed-forward


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
        return by_in @ weight, by_in.T @ x, _sum(parts).to(out.dtype)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x W^T + b), all of one precision: [..., d] -> [..., f]."""
    return _LinearRelu.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


# Cross-entropy


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
    """As `loss.token_terms`; the gradient takes the place of the logits."""
    loss, nll = logits.new_empty(2, len(logits), dtype=torch.float32).unbind()
    _terms[(len(logits),)](
        logits, target, real, loss, nll, logits.shape[1], smoothing,
        BLOCK=min(VOCABULARY_BLOCK, triton.next_power_of_2(logits.shape[1])), num_warps=8,
    )  # fmt: skip
    return loss.sum(), nll.sum(), logits
