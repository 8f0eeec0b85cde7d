"""Attention in float32 whose sums are exact, for models that are computed with integers.

The result of a matrix product in float32 depends on how many rows and columns are computed with it:
sums are added up in another order. Here every number is rounded to a few bits first, so that the
sums have no more than the 24 bits of a float32: the order does not matter, and a position's result
is the same bit for bit however the text arrived and whatever else is computed with it.

x + c - c rounds x to multiples of the last bit of c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from waitinfo.model.integers.cache import ArrayCache, ArrayStateCache
from waitinfo.model.integers.matrix import IntegerLinear
from waitinfo.model.integers.packing import Array
from waitinfo.model.views import AttentionReport, Memory, SelfView, SourceView

SCORE_BITS = 8  # of queries and keys, relative to the largest of a head: 64 products make 22 bits
WEIGHT_BITS = 11  # of attention weights, whose sum is 1
VALUE_BITS = 12  # of values, relative to the largest there can be


def round_rows(x: Array) -> Array:
    """Round the last dimension to SCORE_BITS relative to its largest number."""
    c = np.abs(x).max(-1, keepdims=True) * np.float32(2.0 ** (24 - SCORE_BITS))
    return (x + c) - c


def rounding_constant(bits: int) -> float:
    """The c that rounds to multiples of 2^-bits."""
    return 1.5 * 2.0 ** (23 - bits)


def round_to(x: Array, c: Array | float) -> Array:
    """Round to multiples of the last bit of a `rounding_constant`."""
    c = np.asarray(c, np.float32)
    return (x + c) - c


_ROUND_WEIGHTS = rounding_constant(WEIGHT_BITS)


def value_bits(largest: float) -> int:
    """The bits behind the point that leave VALUE_BITS for the largest value there can be."""
    return VALUE_BITS - math.ceil(math.log2(largest))


def attend(queries: Array, keys: Array, values: Array, bias: Array) -> tuple[Array, Array]:
    """softmax(q k + bias) v for rounded q, k and v [B, H, …]; also the weights, rounded."""
    scores = queries @ keys.swapaxes(-1, -2) + bias
    # In float64, neither the order of a sum nor the kind of exp changes what float32 would show.
    weights = np.exp((scores - scores.max(-1, keepdims=True)).astype(np.float64))
    weights = weights.astype(np.float32)
    weights /= weights.sum(-1, keepdims=True, dtype=np.float64).astype(np.float32)
    weights = round_to(weights, _ROUND_WEIGHTS)
    return weights @ values, weights


def split_heads(x: Array, heads: int) -> Array:
    """[B, T, d] -> [B, H, T, d/H]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """[B, H, T, d/H] -> [B, T, d]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


class ExactSelfAttention:
    """Self-attention with exact sums. The projection of queries includes the scores' factor."""

    def __init__(
        self, project: IntegerLinear, out: IntegerLinear, heads: int, value_bits: int
    ) -> None:
        self.heads, self.round_values = heads, rounding_constant(value_bits)
        self.project, self.out = project, out

    def __call__(self, x: Array, view: SelfView, cache: ArrayCache | None = None) -> Array:
        """[B, T, d] -> [B, T, d]."""
        queries, keys, values = np.split(self.project(x), 3, -1)
        queries, keys = (round_rows(split_heads(part, self.heads)) for part in (queries, keys))
        values = split_heads(round_to(values, self.round_values), self.heads)
        if cache is not None and view.position is not None:
            rows: Array = view.position.rows
            cache.put(keys, values, rows, view.position.at)
            keys, values = cache.view(rows, view.position.keys)
        mixed, _ = attend(queries, keys, values, view.bias)
        return self.out(merge_heads(mixed))


class ExactRecurrentUnit:
    """In the place of a decoder's self-attention: see `model.attention`."""

    def __init__(self, project: IntegerLinear) -> None:
        self.project = project

    def __call__(self, x: Array, view: SelfView, cache: ArrayStateCache | None = None) -> Array:
        """[B, T, d] -> [B, T, d]."""
        forget, fresh = np.split(self.project(x), 2, -1)
        forget = sigmoid(forget)
        fresh = (np.float32(1) - forget) * fresh
        position, count = view.position, x.shape[1]
        if cache is None or position is None:
            return np.maximum(_states(forget, fresh, np.zeros_like(x[:, 0])), 0)
        rows: Array = position.rows
        at: Array = position.at
        first = at[:, 0]
        states = _states(forget, fresh, cache.before(rows, first))
        # Padding is behind the positions of a row, and not at the place that would come next.
        follows = (at == first[:, None] + np.arange(count)).cumprod(1).sum(1)
        for back in (2, 1):
            last = follows - back
            kept = states[np.arange(len(x)), last.clip(0)]
            cache.keep(kept, rows, np.where(last < 0, -1, first + last))
        return np.maximum(states, 0)


def _states(forget: Array, fresh: Array, state: Array) -> Array:
    found = np.empty_like(fresh)
    for place in range(fresh.shape[1]):
        state = forget[:, place] * state + fresh[:, place]
        found[:, place] = state
    return found


class ExactCrossAttention:
    """Plain cross-attention with exact sums. `JointMemory` makes its keys and values."""

    def __init__(self, queries: IntegerLinear, out: IntegerLinear, heads: int) -> None:
        self.heads, self.queries, self.out = heads, queries, out

    def __call__(
        self, x: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        queries = round_rows(split_heads(self.queries(x), self.heads))
        keys: Array = memory.keys
        mixed, weights = attend(queries, keys, memory.values, view.bias)
        report = AttentionReport(weights=weights) if view.weigh else None
        return self.out(merge_heads(mixed)), report


class JointMemory:
    """Keys and values of the source for all decoder layers, by one product."""

    def __init__(self, project: IntegerLinear, heads: int, value_bits: Sequence[int]) -> None:
        self.project, self.heads = project, heads
        constants = [rounding_constant(bits) for bits in value_bits]
        self.round_values = np.array(constants, np.float32)

    def __call__(self, states: Array) -> Array:
        """[B, S, d] -> [B, S, layers, 2, H, d/H], rounded."""
        layers = len(self.round_values)
        shape = (*states.shape[:2], layers, 2, self.heads, -1)
        parts = self.project(states).reshape(shape)
        parts[:, :, :, 0] = round_rows(parts[:, :, :, 0])
        parts[:, :, :, 1] = round_to(parts[:, :, :, 1], self.round_values[:, None, None])
        return parts


class ExactNorm:
    """Layer norm with sums in float64."""

    def __init__(self, weight: Array, bias: Array, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Array) -> Array:
        far = x.astype(np.float64)
        far -= far.mean(-1, keepdims=True)
        variance = np.square(far).mean(-1, keepdims=True)
        normal = (far / np.sqrt(variance + self.eps)).astype(np.float32)
        return normal * self.weight + self.bias


class ExactResidual:
    """A residual connection with layer norm, before the sublayer or after it."""

    def __init__(self, norm: ExactNorm, before: bool) -> None:
        self.norm, self.before = norm, before

    def __call__(self, x: Array, sublayer: Callable[[Array], Array]) -> Array:
        if self.before:
            return x + sublayer(self.norm(x))
        return self.norm(sublayer(x) + x)


def sigmoid(x: Array) -> Array:
    """In float64, the kind of exp does not change what float32 shows."""
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def swish(x: Array) -> Array:
    return x * sigmoid(x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": relu, "swish": swish}
