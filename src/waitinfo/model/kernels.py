"""The fused kernels of training on a GPU, in Triton, which comes with torch there.

Sentences are short: a whole attention of one head fits on one multiprocessor, and what is left of a
training step once its matrix products are fast is moving activations through memory. So each of
these does in one pass what would take many: attention with a bias and its gradient, a sublayer's
dropout, residual and layer norm, the first half of a feed-forward layer, and the cross-entropy of a
chunk of logits with its gradient.

What takes their place elsewhere, and defines them, is in `attention`, `layers` and `loss`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_KEYS = 128  # source or target positions of an attention held on chip
ROWS = 8  # of a layer norm, at a time
NORM_PROGRAMS = 528  # each sums its part of the gradient of a layer norm's weights
RELU_PROGRAMS, RELU_ROWS, RELU_COLUMNS = 128, 16, 512
VOCABULARY_BLOCK = 4096
VARYING = ["targets", "sources", "bias_b", "bias_h", "bias_t"]  # compiled for no value of these


@triton.jit
def _sum_parts(PARTS, OUT, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < width)
        at = row[:, None] * width + column[None, :]
        total += tl.sum(tl.load(PARTS + at, mask=inside, other=0.0), 0)
    tl.store(OUT + column, total, mask=column < width)


def _sum(parts: Tensor) -> Tensor:
    """The sum of what programs summed each: [programs, d] -> [d], float32."""
    rows, width = parts.shape
    out = parts.new_empty(width)
    _sum_parts[(triton.cdiv(width, 16),)](parts, out, rows, width, ROWS=256, COLUMNS=16)
    return out


# Attention


@triton.jit
def _scores(
    q, k, bias, t, s, targets, sources, bias_t, scale,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Scaled scores with a bias or a causal mask, -inf where there is nothing to see: [T, S]."""
    inside = (t[:, None] < targets) & (s[None, :] < sources)
    if HAS_BIAS:  # fetched while the product is computed
        at = bias + t[:, None] * bias_t + s[None, :]
        more = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    else:
        if CAUSAL:
            inside = inside & (s[None, :] <= t[:, None])
        more = tl.where(inside, 0.0, float("-inf"))
    return tl.dot(q, tl.trans(k)) * scale + more


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
    q = tl.load(Q + b * q_b + h * q_h + t[:, None] * q_t + d, mask=real, other=0.0)
    k = tl.load(K + b * k_b + h * k_h + s[:, None] * k_s + d, mask=seen, other=0.0)
    v = tl.load(V + b * v_b + h * v_h + s[:, None] * v_s + d, mask=seen, other=0.0)
    bias = BIAS + b * bias_b + h * bias_h
    scores = _scores(q, k, bias, t, s, targets, sources, bias_t, scale, HAS_BIAS, CAUSAL)
    most = tl.maximum(tl.max(scores, 1), -1e30)
    weights = tl.exp(scores - most[:, None])
    total = tl.maximum(tl.sum(weights, 1), 1e-30)
    mixed = tl.dot(weights.to(v.dtype), v) / total[:, None]
    tl.store(OUT + b * out_b + h * out_h + t[:, None] * out_t + d, mixed, mask=real)
    tl.store(TOTAL + row * targets + t, most + tl.log(total), mask=t < targets)


@triton.jit(do_not_specialize=VARYING)
def _attention_backward(
    Q, K, V, BIAS, OUT, TOTAL, GRADIENT, BY_Q, BY_K, BY_V, BY_BIAS,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, bias_b, bias_h, bias_t, out_b, out_h, out_t,
    gradient_b, gradient_h, gradient_t, by_q_b, by_q_h, by_q_t, by_k_b, by_k_h, by_k_s,
    heads, targets, sources, scale,
    T: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, BIAS_LEARNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h = row // heads, row % heads
    s = tl.arange(0, S)
    d = tl.arange(0, D)
    seen = s[:, None] < sources
    k = tl.load(K + b * k_b + h * k_h + s[:, None] * k_s + d, mask=seen, other=0.0)
    v = tl.load(V + b * v_b + h * v_h + s[:, None] * v_s + d, mask=seen, other=0.0)
    bias = BIAS + b * bias_b + h * bias_h
    by_k = tl.zeros((S, D), tl.float32)
    by_v = tl.zeros((S, D), tl.float32)
    for start in range(0, targets, T):
        t = start + tl.arange(0, T)
        real = t[:, None] < targets
        q = tl.load(Q + b * q_b + h * q_h + t[:, None] * q_t + d, mask=real, other=0.0)
        at = b * out_b + h * out_h + t[:, None] * out_t + d
        out = tl.load(OUT + at, mask=real, other=0.0).to(tl.float32)
        at = b * gradient_b + h * gradient_h + t[:, None] * gradient_t + d
        gradient = tl.load(GRADIENT + at, mask=real, other=0.0)
        total = tl.load(TOTAL + row * targets + t, mask=t < targets, other=0.0)
        scores = _scores(q, k, bias, t, s, targets, sources, bias_t, scale, HAS_BIAS, CAUSAL)
        weights = tl.exp(scores - total[:, None])
        by_v += tl.dot(tl.trans(weights.to(q.dtype)), gradient)
        by_weight = tl.dot(gradient, tl.trans(v))
        shared = tl.sum(gradient.to(tl.float32) * out, 1)
        by_score = weights * (by_weight - shared[:, None])
        if BIAS_LEARNS:
            at = BY_BIAS + (row * targets + t[:, None]) * sources + s[None, :]
            tl.store(at, by_score, mask=real & (s[None, :] < sources))
        scaled = (by_score * scale).to(q.dtype)
        at = b * by_q_b + h * by_q_h + t[:, None] * by_q_t + d
        tl.store(BY_Q + at, tl.dot(scaled, k), mask=real)
        by_k += tl.dot(tl.trans(scaled), q)
    at = b * by_k_b + h * by_k_h + s[:, None] * by_k_s + d
    tl.store(BY_K + at, by_k, mask=seen)
    tl.store(BY_V + at, by_v, mask=seen)


def _block(positions: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(positions)))


def _launch(queries: Tensor, keys: Tensor, bias: Tensor | None, causal: bool) -> dict[str, Any]:
    """What both directions of an attention are launched with."""
    return {
        "heads": queries.shape[1], "targets": queries.shape[2], "sources": keys.shape[2],
        "scale": queries.shape[3] ** -0.5, "S": _block(keys.shape[2], MOST_KEYS),
        "D": queries.shape[3], "HAS_BIAS": bias is not None, "CAUSAL": causal,
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


@torch.library.custom_op("waitinfo::attention", mutates_args=())
def _attention(
    given: Tensor, given_keys: Tensor | None, given_values: Tensor | None, bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    queries, keys, values = _by_head(given, given_keys, given_values)
    b, heads, targets, width = queries.shape
    out = queries.new_empty(b, targets, heads, width)
    total = queries.new_empty(b, heads, targets, dtype=torch.float32)
    settings = _launch(queries, keys, bias, causal)
    block = _block(targets, 64)
    _attention_forward[b * heads, triton.cdiv(targets, block)](
        queries, keys, values, out if bias is None else bias, out, total,
        *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *_bias_strides(bias),
        *out.transpose(1, 2).stride()[:3],
        T=block, num_warps=2 if settings["S"] <= 32 else 4, **settings,
    )  # fmt: skip
    return out, total


@_attention.register_fake
def _(
    given: Tensor, given_keys: Tensor | None, given_values: Tensor | None, bias: Tensor | None,
    causal: bool,
) -> Any:  # fmt: skip
    queries = _by_head(given, given_keys, given_values)[0]
    total = queries.new_empty(queries.shape[:3], dtype=torch.float32)
    return queries.new_empty(queries.transpose(1, 2).shape), total


def _gradients(
    given: Tensor, keys: Tensor | None, values: Tensor | None, total: Tensor, bias_learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for the gradients of an attention's inputs; empty for those it has not."""
    by_keys, by_values = (given.new_empty(0 if x is None else x.shape) for x in (keys, values))
    sources = given.shape[1] if keys is None else keys.shape[1]
    by_bias = given.new_empty((*total.shape, sources) if bias_learns else (0,))
    return given.new_empty(given.shape), by_keys, by_values, by_bias


@torch.library.custom_op("waitinfo::attention_gradient", mutates_args=())
def _attention_gradient(
    gradient: Tensor, given: Tensor, given_keys: Tensor | None, given_values: Tensor | None,
    bias: Tensor | None, out: Tensor, total: Tensor, causal: bool, bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    queries, keys, values = _by_head(given, given_keys, given_values)
    found = _gradients(given, given_keys, given_values, total, bias_learns)
    packed = given_keys is None
    by_q, by_k, by_v = _by_head(found[0], *((None, None) if packed else found[1:3]))
    gradient = gradient.contiguous()
    b, heads, targets, _ = queries.shape
    settings = _launch(queries, keys, bias, causal)
    _attention_backward[(b * heads,)](
        queries, keys, values, out if bias is None else bias, out, total, gradient,
        by_q, by_k, by_v, found[3],
        *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *_bias_strides(bias),
        *out.transpose(1, 2).stride()[:3], *gradient.transpose(1, 2).stride()[:3],
        *by_q.stride()[:3], *by_k.stride()[:3],
        BIAS_LEARNS=bias_learns, T=_block(targets, 32), num_warps=max(2, settings["S"] // 16),
        **settings,
    )  # fmt: skip
    return found


@_attention_gradient.register_fake
def _(
    gradient: Tensor, given: Tensor, given_keys: Tensor | None, given_values: Tensor | None,
    bias: Tensor | None, out: Tensor, total: Tensor, causal: bool, bias_learns: bool,
) -> Any:  # fmt: skip
    return _gradients(given, given_keys, given_values, total, bias_learns)


def _attention_setup(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.causal = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _attention_backwards(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
    given, keys, values, bias, out, total = ctx.saved_tensors
    learns = ctx.needs_input_grad[3]
    by_given, by_keys, by_values, by_bias = _attention_gradient(
        gradient, given, keys, values, bias, out, total, ctx.causal, learns
    )
    if keys is None:
        by_keys = by_values = None
    if not learns:
        return by_given, by_keys, by_values, None, None
    if bias.shape[1] == 1:
        by_bias = by_bias.sum(1, keepdim=True, dtype=bias.dtype)
    if bias.shape[2] == 1:
        by_bias = by_bias.sum(2, keepdim=True)
    return by_given, by_keys, by_values, by_bias.to(bias.dtype), None


_attention.register_autograd(_attention_backwards, setup_context=_attention_setup)


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v: queries [B, T, H, d], the others [B, S, H, d].

    At most MOST_KEYS keys. The bias is [B, 1 or H, T or 1, S]. All have a contiguous last
    dimension.
    """
    return _attention(queries, keys, values, bias, causal)[0]


def self_attention(projected: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """The same with queries, keys and values in one: [B, T, 3, H, d] -> [B, T, H, d]."""
    return _attention(projected, None, None, bias, causal)[0]


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
    X, Y, WEIGHT, BIAS, SEED, OUT, NORMAL, SCALE, rows, width, dropout, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    real, inside = column < width, (row[:, None] < rows) & (column[None, :] < width)
    at = row[:, None].to(tl.int64) * width + column[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
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
    by_weight = tl.zeros((WIDTH,), tl.float32)
    by_bias = tl.zeros((WIDTH,), tl.float32)
    step = tl.num_programs(0) * ROWS
    for start in range(tl.program_id(0) * ROWS, rows, step):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & real[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        gradient = tl.load(GRADIENT + at, mask=inside, other=0.0).to(tl.float32)
        normal = tl.load(NORMAL + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(SCALE + row, mask=row < rows, other=0.0)
        by_weight += tl.sum(gradient * normal, 0)
        by_bias += tl.sum(gradient, 0)
        gradient *= weight[None, :]
        along = tl.sum(gradient * normal, 1) / width
        mean = tl.sum(gradient, 1) / width
        by_x = (gradient - normal * along[:, None] - mean[:, None]) * scale[:, None]
        tl.store(BY_X + at, by_x, mask=inside)
        if DROPS:
            by_x *= _kept(tl.load(SEED), at, dropout)
        tl.store(BY_Y + at, by_x, mask=inside)
    parts = PARTS + tl.program_id(0) * 2 * width
    tl.store(parts + column, by_weight, mask=real)
    tl.store(parts + width + column, by_bias, mask=real)


@torch.library.custom_op("waitinfo::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, y = x.contiguous(), y.contiguous()
    width = x.shape[-1]
    rows = x.numel() // width
    out, normal = torch.empty_like(y), torch.empty_like(y)
    scale = y.new_empty(rows, dtype=torch.float32)
    _norm_forward[(triton.cdiv(rows, ROWS),)](
        x, y, weight, bias, seed, out, normal, scale, rows, width, dropout, epsilon,
        ROWS=ROWS, WIDTH=triton.next_power_of_2(width), DROPS=dropout > 0,
    )  # fmt: skip
    return out, normal, scale


@_add_norm.register_fake
def _(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> Any:
    rows = y.numel() // y.shape[-1]
    out = y.new_empty(y.shape)
    return out, torch.empty_like(out), y.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("waitinfo::add_norm_gradient", mutates_args=())
def _add_norm_gradient(
    gradient: Tensor, normal: Tensor, scale: Tensor, weight: Tensor, seed: Tensor, dropout: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    gradient = gradient.contiguous()
    rows, width = len(scale), normal.shape[-1]
    by_x, by_y = torch.empty_like(normal, dtype=dtype), torch.empty_like(normal)
    programs = min(NORM_PROGRAMS, triton.cdiv(rows, ROWS))
    parts = scale.new_empty(programs, 2 * width)
    _norm_backward[(programs,)](
        gradient, normal, scale, weight, seed, by_x, by_y, parts, rows, width, dropout,
        ROWS=ROWS, WIDTH=triton.next_power_of_2(width), DROPS=dropout > 0,
    )  # fmt: skip
    by_weight, by_bias = _sum(parts).to(weight.dtype).view(2, width)
    return by_x, by_y, by_weight.clone(), by_bias.clone()


@_add_norm_gradient.register_fake
def _(
    gradient: Tensor, normal: Tensor, scale: Tensor, weight: Tensor, seed: Tensor, dropout: float,
    dtype: torch.dtype,
) -> Any:  # fmt: skip
    by_x = torch.empty_like(normal, dtype=dtype)
    return by_x, torch.empty_like(normal), torch.empty_like(weight), torch.empty_like(weight)


def _add_norm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, weight, _, seed, ctx.dropout, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.dtype = x.dtype
    ctx.save_for_backward(output[1], output[2], weight, seed)


def _add_norm_backwards(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
    normal, scale, weight, seed = ctx.saved_tensors
    gradients = _add_norm_gradient(gradient, normal, scale, weight, seed, ctx.dropout, ctx.dtype)
    return (*gradients, None, None, None)


_add_norm.register_autograd(_add_norm_backwards, setup_context=_add_norm_setup)


def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, dropout: float, epsilon: float
) -> Tensor:
    """norm(x + dropout(y)), in the precision of y: [..., d]."""
    seed = torch.randint(2**31 - 1, (1,), device=x.device)
    return _add_norm(x, y, weight, bias, seed, dropout, epsilon)[0]


# Feed-forward


@triton.jit
def _relu_backward(
    GRADIENT, OUT, BY_IN, BY_BIAS, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    by_bias = tl.zeros((COLUMNS,), tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & real[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        out = tl.load(OUT + at, mask=inside, other=0.0)
        gradient = tl.load(GRADIENT + at, mask=inside, other=0.0)
        gradient = tl.where(out > 0, gradient, 0.0)
        tl.store(BY_IN + at, gradient, mask=inside)
        by_bias += tl.sum(gradient.to(tl.float32), 0)
    tl.store(BY_BIAS + tl.program_id(0) * width + column, by_bias, mask=real)


@torch.library.custom_op("waitinfo::relu_gradient", mutates_args=())
def _relu_gradient(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    gradient = gradient.contiguous()
    rows, width = out.shape
    by_in = torch.empty_like(out)
    programs = min(RELU_PROGRAMS, triton.cdiv(rows, RELU_ROWS))
    by_bias = out.new_empty(programs, width, dtype=torch.float32)
    _relu_backward[programs, triton.cdiv(width, RELU_COLUMNS)](
        gradient, out, by_in, by_bias, rows, width, ROWS=RELU_ROWS, COLUMNS=RELU_COLUMNS
    )
    return by_in, _sum(by_bias).to(out.dtype)


@_relu_gradient.register_fake
def _(gradient: Tensor, out: Tensor) -> Any:
    return torch.empty_like(out), out.new_empty(out.shape[1])


@torch.library.custom_op("waitinfo::linear_relu", mutates_args=())
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.aten._addmm_activation(bias, x, weight.T)


@_linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return x.new_empty(len(x), len(weight))


def _linear_relu_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _linear_relu_backwards(ctx: Any, gradient: Tensor) -> Any:
    x, weight, out = ctx.saved_tensors
    by_in, by_bias = _relu_gradient(gradient, out)
    return by_in @ weight, by_in.T @ x, by_bias


_linear_relu.register_autograd(_linear_relu_backwards, setup_context=_linear_relu_setup)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x W^T + b), all of one precision: [..., d] -> [..., f]."""
    return _linear_relu(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


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
