"""Embeddings, and the layers of encoder and decoder: sublayers with residuals and layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import RecurrentUnit, SelfAttention, cross_attention
from waitinfo.model.cache import KeyValueCache
from waitinfo.model.config import ModelConfig
from waitinfo.model.views import AttentionReport, Memory, SelfView, SourceView
from waitinfo.text.special import PAD


def sinusoids(at: Tensor, width: int, closed: bool = True) -> Tensor:
    """Sinusoidal position embeddings: at [B, T] -> [B, T, d]. Positions have no upper limit.

    closed: the last rate is 1/10000; otherwise it would be the one after the last.
    """
    half = width // 2
    steps = torch.arange(half, device=at.device, dtype=torch.float32)
    rates = torch.exp(steps * (-math.log(10000.0) / max(1, half - closed)))
    angles = at[..., None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width - 2 * half))


def token_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """Create an embedding; on the meta device, without initialising it.

    There, initialisation would import a compiler, which takes longer than loading the weights.
    """
    meta = torch.get_default_device().type == "meta"
    empty = torch.empty(vocabulary, width) if meta else None
    return nn.Embedding(vocabulary, width, PAD, _weight=empty)


LinearActivation = Callable[[Tensor, nn.Linear], Tensor]


def linear_relu(x: Tensor, linear: nn.Linear) -> Tensor:
    """relu(x W^T + b): [..., d] -> [..., f]."""
    return F.relu(linear(x))


def linear_swish(x: Tensor, linear: nn.Linear) -> Tensor:
    """swish(x W^T + b) with swish(y) = y sigmoid(y): [..., d] -> [..., f]."""
    return F.silu(linear(x))


ACTIVATIONS: dict[str, LinearActivation] = {"relu": linear_relu, "swish": linear_swish}


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.ffn)
        self.out = nn.Linear(config.ffn, config.width)
        self.dropout = nn.Dropout(config.activation_dropout)
        # Can be replaced by a fused kernel.
        self.activate: LinearActivation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(self.activate(x, self.inner)))


AddNorm = Callable[[Tensor, Tensor, nn.LayerNorm, float], Tensor]


def add_norm(x: Tensor, y: Tensor, norm: nn.LayerNorm, dropout: float) -> Tensor:
    """norm(x + dropout(y)), in the precision of y."""
    return norm(x + F.dropout(y, dropout, dropout > 0)).to(y.dtype)


class Residual(nn.Module):
    """x + sublayer(norm(x)) for norm "pre", or norm(x + sublayer(x)) for norm "post"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.before = config.norm == "pre"
        self.add_norm: AddNorm = add_norm  # can be replaced by a fused kernel

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.before:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.add_norm(x, sublayer(x), self.norm, self.dropout.p if self.training else 0.0)


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        x = self.around_attention(x, lambda h: self.attention(h, view, cache))
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = (
            SelfAttention(config.width, config.heads, config.attention_dropout)
            if config.decoder == "attention"
            else RecurrentUnit(config.width)
        )
        self.cross = cross_attention(config.cross_attention)(
            config.width, config.heads, config.attention_dropout
        )
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_cross = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,
        view: SelfView,
        memory: Memory,
        source: SourceView,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, AttentionReport | None]:
        reports: list[AttentionReport | None] = []

        def cross(h: Tensor) -> Tensor:
            mixed, report = self.cross(h, memory, source)
            reports.append(report)
            return mixed

        x = self.around_attention(x, lambda h: self.attention(h, view, cache))
        x = self.around_cross(x, cross)
        return self.around_feed_forward(x, self.feed_forward), reports[0]
