"""Attention in float32 whose sums are exact, for models that are computed with integers.

The result of a matrix product in float32 depends on how many rows and columns are computed with it:
sums are added up in another order. Here every number is rounded to a few bits first, so that the
sums have no more than the 24 bits of a float32: the order does not matter, and a position's result
is the same bit for bit however the text arrived and whoever shares the pass.

x + c - c rounds x to multiples of the last bit of c.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from waitinfo.model.attention import (
    AttentionReport,
    CrossAttention,
    Memory,
    SelfAttention,
    SelfView,
    SourceView,
    merge_heads,
    split_heads,
    split_projection,
)
from waitinfo.model.cache import KeyValueCache

SCORE_BITS = 8  # of queries and keys, relative to the largest of a head: 64 products make 22 bits
WEIGHT_BITS = 11  # of attention weights, whose sum is 1
VALUE_BITS = 12  # of values, relative to the largest there can be


def round_rows(x: Tensor) -> Tensor:
    """Round the last dimension to SCORE_BITS relative to its largest number."""
    c = x.abs().amax(-1, keepdim=True) * 2.0 ** (24 - SCORE_BITS)
    return (x + c) - c


def round_to(x: Tensor, bits: int) -> Tensor:
    """Round to multiples of 2^-bits."""
    c = 1.5 * 2.0 ** (23 - bits)
    return (x + c) - c


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k + bias) v for rounded q, k and v; without a bias, causal."""
    scores = queries @ keys.transpose(-1, -2)
    if bias is None:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future[-scores.shape[-2] :], -torch.inf)
    else:
        scores = scores + bias
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    # In float64 the order of a sum changes nothing that float32 would show.
    total = weights.sum(-1, keepdim=True, dtype=torch.float64).float()
    return round_to(weights / total, WEIGHT_BITS) @ values


class ExactSelfAttention(SelfAttention):
    """Self-attention with exact sums, made from the projections of another one."""

    def __init__(self, project: nn.Module, out: nn.Module, heads: int, value_bits: int) -> None:
        nn.Module.__init__(self)
        self.heads, self.value_bits = heads, value_bits
        self.project, self.out = project, out  # type: ignore[assignment]

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, d] -> [B, T, d]."""
        queries, keys, values = split_projection(self.project(x), self.heads)
        queries = round_rows(queries * queries.shape[-1] ** -0.5)
        keys, values = round_rows(keys), round_to(values, self.value_bits)
        if cache is not None and view.position is not None:
            cache.put(keys, values, view.position.rows, view.position.at)
            keys, values = cache.view(view.position.rows, view.position.keys)
        return self.out(merge_heads(attend(queries, keys, values, view.bias)))


class ExactCrossAttention(CrossAttention):
    """Plain cross-attention with exact sums."""

    def __init__(
        self, queries: nn.Module, project: nn.Module, out: nn.Module, heads: int, value_bits: int
    ) -> None:
        nn.Module.__init__(self)
        self.heads, self.value_bits = heads, value_bits
        self.queries, self.project, self.out = queries, project, out  # type: ignore[assignment]

    def memory(self, states: Tensor) -> Memory:
        """Keys and values of encoder states [B, S, d]."""
        memory = super().memory(states)
        return Memory(round_rows(memory.keys), round_to(memory.values, self.value_bits))

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        queries = split_heads(self.queries(x), self.heads)
        queries = round_rows(queries * queries.shape[-1] ** -0.5)
        mixed = attend(queries, memory.keys, memory.values, view.bias)
        return self.out(merge_heads(mixed)), None


def value_bits(largest: float) -> int:
    """The bits behind the point that leave VALUE_BITS for the largest value there can be."""
    return VALUE_BITS - math.ceil(math.log2(largest))
