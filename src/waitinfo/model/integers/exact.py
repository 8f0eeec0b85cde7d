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

import torch
from torch import Tensor, nn

from waitinfo.model.attention import CrossAttention, SelfAttention
from waitinfo.model.cache import KeyValueCache
from waitinfo.model.views import AttentionReport, Memory, SelfView, SourceView

SCORE_BITS = 8  # of queries and keys, relative to the largest of a head: 64 products make 22 bits
WEIGHT_BITS = 11  # of attention weights, whose sum is 1
VALUE_BITS = 12  # of values, relative to the largest there can be


def round_rows(x: Tensor) -> Tensor:
    """Round the last dimension to SCORE_BITS relative to its largest number."""
    c = x.abs().amax(-1, True).mul_(2.0 ** (24 - SCORE_BITS))
    return (x + c).sub_(c)


def rounding_constant(bits: int) -> float:
    """The c that rounds to multiples of 2^-bits."""
    return 1.5 * 2.0 ** (23 - bits)


_ROUND_WEIGHTS = rounding_constant(WEIGHT_BITS)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """softmax(q k + bias) v for rounded q, k and v [B, H, …]; without a bias, causal.

    Also returns the weights, which are rounded.
    """
    batch, heads, count, _ = queries.shape
    # Products of three dimensions are called more quickly; caches keep rows and heads together.
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)
    scores = torch.bmm(queries.reshape(batch * heads, count, -1), keys.transpose(1, 2))
    scores = scores.view(batch, heads, count, -1)
    if bias is None:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(future[-count:], -torch.inf)
    else:
        scores.add_(bias)
    # In float64, neither the order of a sum nor the kind of exp changes what float32 would show.
    weights = scores.sub_(scores.amax(-1, True)).double().exp_().float()
    weights.div_(weights.sum(-1, True, dtype=torch.float64).float())
    weights.add_(_ROUND_WEIGHTS).sub_(_ROUND_WEIGHTS)
    mixed = torch.bmm(weights.view(batch * heads, count, -1), values)
    return mixed.view(batch, heads, count, -1), weights


class ExactSelfAttention(SelfAttention):
    """Self-attention with exact sums, made from the projections of another one.

    The projection of queries includes the factor of the scores.
    """

    def __init__(self, project: nn.Module, out: nn.Module, heads: int, value_bits: int) -> None:
        nn.Module.__init__(self)
        self.heads, self.round_values = heads, rounding_constant(value_bits)
        self.project, self.out = project, out  # type: ignore[assignment]

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        """[B, T, d] -> [B, T, d]."""
        batch, count, width = x.shape
        parts = self.project.forward(x).view(batch, count, 3, self.heads, -1)
        c = parts.abs().amax(-1, True).mul_(2.0 ** (24 - SCORE_BITS))
        c[:, :, 2] = self.round_values
        parts.add_(c).sub_(c)
        queries = parts[:, :, 0].transpose(1, 2)
        if cache is None or view.position is None:
            keys, values = parts[:, :, 1].transpose(1, 2), parts[:, :, 2].transpose(1, 2)
            mixed, _ = attend(queries, keys, values, view.bias)
        else:
            rows = view.position.rows
            cache.put_both(parts[:, :, 1:], rows, view.position.at)
            keys, values = cache.view(rows, view.position.keys)
            mixed, _ = attend(queries, keys, values, view.bias)
        return self.out.forward(mixed.transpose(1, 2).reshape(batch, count, width))


class ExactCrossAttention(CrossAttention):
    """Plain cross-attention with exact sums. `JointMemory` makes its keys and values."""

    def __init__(self, queries: nn.Module, out: nn.Module, heads: int) -> None:
        nn.Module.__init__(self)
        self.heads = heads
        self.queries, self.out = queries, out  # type: ignore[assignment]

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        batch, count, width = x.shape
        queries = round_rows(self.queries.forward(x).view(batch, count, self.heads, -1))
        queries = queries.transpose(1, 2)
        mixed, weights = attend(queries, memory.keys, memory.values, view.bias)
        report = AttentionReport(weights=weights) if view.weigh else None
        return self.out.forward(mixed.transpose(1, 2).reshape(batch, count, width)), report


class JointMemory(nn.Module):
    """Keys and values of the source for all decoder layers, by one product."""

    def __init__(self, project: nn.Module, heads: int, value_bits: Sequence[int]) -> None:
        super().__init__()
        self.project, self.heads = project, heads
        constants = torch.tensor([rounding_constant(bits) for bits in value_bits])
        self.round_values: Tensor
        self.register_buffer("round_values", constants[:, None, None])

    def forward(self, states: Tensor) -> Tensor:
        """[B, S, d] -> [B, S, layers, 2, H, d/H], rounded."""
        batch, count, _ = states.shape
        shape = (batch, count, len(self.round_values), 2, self.heads, -1)
        parts = self.project.forward(states).view(shape)
        c = parts.abs().amax(-1, True).mul_(2.0 ** (24 - SCORE_BITS))
        c[:, :, :, 1] = self.round_values
        return parts.add_(c).sub_(c)


class ExactNorm(nn.Module):
    """Layer norm, made from another one, with sums in float64."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        normal = torch.layer_norm(x.double(), (x.shape[-1],), None, None, self.eps)
        return normal.float().mul_(self.weight).add_(self.bias)


class ExactResidual(nn.Module):
    """A residual connection with layer norm, made from another one, without dropout."""

    def __init__(self, norm: nn.LayerNorm, before: bool) -> None:
        super().__init__()
        self.norm, self.before = ExactNorm(norm), before

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.before:
            return x + sublayer(self.norm.forward(x))
        return self.norm.forward(sublayer(x) + x)


def exact_sigmoid(x: Tensor) -> Tensor:
    """In float64, the kind of exp does not change what float32 shows."""
    return x.double().sigmoid_().float()


def exact_swish(x: Tensor, linear: nn.Module) -> Tensor:
    """swish(x W^T + b): [..., d] -> [..., f]."""
    y: Tensor = linear.forward(x)
    return y.mul_(exact_sigmoid(y))


def value_bits(largest: float) -> int:
    """The bits behind the point that leave VALUE_BITS for the largest value there can be."""
    return VALUE_BITS - math.ceil(math.log2(largest))
