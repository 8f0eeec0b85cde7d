"""Attention with a bias, and its gradient: one program per sentence and head."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_KEYS = 128  # key positions that fit on one multiprocessor
# By number of keys, rounded up: block of targets, warps, pipeline stages.
FORWARD = {16: (64, 2, 1), 32: (64, 2, 1), 64: (64, 4, 1), 128: (64, 4, 1)}
BACKWARD = {16: (32, 2, 1), 32: (32, 2, 2), 64: (16, 4, 1), 128: (16, 4, 1)}
VARYING = ["targets", "sources", "bias_b", "bias_h", "bias_t"]  # do not recompile for these


@triton.jit
def _bias_tile(bias, t, s, targets, sources, bias_t, HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr):
    """Bias of the scores of targets t and sources s, which broadcast: -inf where masked."""
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
    # Start of this head; offsets from it fit into 32 bits.
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
        # Scores are [S, T], so that the next product uses the weights without a transpose.
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
    """Launch settings of a kernel."""
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
    """Queries, keys and values as [B, H, T, d]; without keys, `queries` holds all three packed."""
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
    """Sum the gradient [B, H, T, S] over heads or queries that share the bias."""
    if bias.shape[1] == 1:
        gradient = gradient.sum(1, keepdim=True, dtype=bias.dtype)
    if bias.shape[2] == 1:
        gradient = gradient.sum(2, keepdim=True)
    return gradient.to(bias.dtype)


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v: queries [B, T, H, d], the others [B, S, H, d].

    At most MOST_KEYS keys. The bias is [B, 1 or H, T or 1, S]; `causal` applies a causal mask
    instead of a bias. The last dimension of every input is contiguous.
    """
    return _Attention.apply(queries, keys, values, bias, causal)


def self_attention(projected: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """`attention` with packed queries, keys and values: [B, T, 3, H, d] -> [B, T, H, d]."""
    return _Attention.apply(projected, None, None, bias, causal)
