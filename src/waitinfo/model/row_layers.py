"""One position of every row through a model's layers, by fused kernels on caches in blocks.

Computes what `Transformer.extend` and `Transformer.step` compute, with half as many kernels or
fewer. For steps of few rows, the time of a step is the number of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import PAGED_WIDTHS, CrossAttention, SelfAttention
from waitinfo.model.cache import PagedCache
from waitinfo.model.info import TokenInfo
from waitinfo.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from waitinfo.model.transformer import Transformer

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class RowPositions(NamedTuple):
    """Where the new positions of R rows lie."""

    slot: Tensor  # [R]
    length: Tensor  # [R] positions, the new one included
    table: Tensor  # [slots, W] the blocks of all slots
    block: Tensor | None = None  # [R] of the new position; None if slots differ
    offset: Tensor | None = None  # [R] in its block


class Prefix(NamedTuple):
    """The source of R rows."""

    seen: Tensor  # [R] tokens that cross-attention sees
    table: Tensor  # [slots, W]
    info: Tensor | None  # [slots, S]


def fusible(model: Transformer) -> bool:
    """Whether there are kernels for a model: of usual shape, and Triton is installed."""
    config = model.config
    return (
        model.dtype in DTYPES
        and config.usual
        and config.cross_attention == CrossAttention.name
        and config.width // config.heads in PAGED_WIDTHS
        and _kernels() is not None
    )


def _kernels() -> Any:
    try:
        from waitinfo.model.kernels import rows
    except ImportError:  # Triton is not installed
        return None
    return rows


class RowLayers:
    """The layers of a model, for one new position per row."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.kernels = model, _kernels()
        config = model.config
        aware, crosses = config.info_self_attention, config.info_cross_attention
        has_info = model.source_info is not None
        self.self_kind = self.kernels.DIAGONAL if aware and has_info else self.kernels.NO_BIAS
        self.cross_kind = self.kernels.CONSISTENCY if crosses and has_info else self.kernels.NO_BIAS

    # Embedding

    def embed_source(
        self, tokens: Tensor, at: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [R] at positions [R]: embedded [R, d], and their info [R]."""
        return self._embed(self.model.source_embedding, self.model.source_info, tokens, at, table)

    def embed_target(
        self, tokens: Tensor, at: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The same for the target."""
        return self._embed(self.model.target_embedding, self.model.target_info, tokens, at, table)

    def _embed(
        self,
        embedding: nn.Embedding,
        token_info: TokenInfo | None,
        tokens: Tensor,
        at: Tensor,
        table: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        learned = token_info is not None and token_info.kind == "attention"
        x, squashed = self.kernels.embed(tokens, at, embedding.weight, table, learned)
        if token_info is None:
            return x, None
        if not learned:
            return x, token_info(tokens[:, None], x[:, None], embedding.weight)[:, 0]
        quantizer = token_info.quantizer
        hidden = self._product(squashed, quantizer.hidden)
        return x, self.kernels.info_of(hidden, quantizer.out.weight[0], tokens)

    # Layers

    def encode(
        self,
        x: Tensor,
        info: Tensor | None,
        place: RowPositions,
        caches: Sequence[PagedCache],
        memories: Sequence[PagedCache],
    ) -> Tensor:
        """Encode inputs [R, d] into the caches; the values of the first memory: [R, d]."""
        stream = _Residuals(self, x)
        for layer, cache in zip(self.model.encoder_layers, caches, strict=True):
            layer = cast("EncoderLayer", layer)
            self._attend(stream, layer.attention, layer.around_attention, info, place, cache)
            self._feed_forward(stream, layer.feed_forward, layer.around_feed_forward)
        states = stream.end(self.model.encoder_norm)
        found = [self._product(states, cross.project) for cross in self.model.crosses()]
        for projected, memory in zip(found, memories, strict=True):
            self.kernels.put(projected, memory, place.block, place.offset, 0)
        return found[0][:, x.shape[1] :]

    def decode(
        self,
        x: Tensor,
        info: Tensor | None,
        place: RowPositions,
        source: Prefix,
        caches: Sequence[PagedCache],
        memories: Sequence[PagedCache],
    ) -> Tensor:
        """Decode inputs [R, d] -> states [R, d]."""
        stream = _Residuals(self, x)
        layers = zip(self.model.decoder_layers, caches, memories, strict=True)
        for layer, cache, memory in layers:
            layer = cast("DecoderLayer", layer)
            attention = cast("SelfAttention", layer.attention)
            self._attend(stream, attention, layer.around_attention, info, place, cache)
            queries = stream.into(layer.around_cross, layer.cross.queries)
            mixed = self.kernels.attend_rows(
                queries, memory, source.table, place.slot, source.seen,
                self.cross_kind, info, source.info, False,
            )  # fmt: skip
            stream.y = self._product(mixed, layer.cross.out)
            self._feed_forward(stream, layer.feed_forward, layer.around_feed_forward)
        return stream.end(self.model.decoder_norm)

    def _attend(
        self,
        stream: _Residuals,
        attention: SelfAttention,
        around: Residual,
        info: Tensor | None,
        place: RowPositions,
        cache: PagedCache,
    ) -> None:
        projected = stream.into(around, attention.project)
        if place.block is not None:  # rows may see each other: store all of them first
            width = projected.shape[1] // 3
            self.kernels.put(projected, cache, place.block, place.offset, width)
        mixed = self.kernels.attend_rows(
            projected, cache, place.table, place.slot, place.length,
            self.self_kind, info, None, place.block is None,
        )  # fmt: skip
        stream.y = self._product(mixed, attention.out)

    def _feed_forward(self, stream: _Residuals, layer: FeedForward, around: Residual) -> None:
        stream.y = self._product(stream.into(around, layer.inner, relu=True), layer.out)

    def few(self, x: Tensor) -> bool:
        """Whether there are so few rows that products are computed by our own kernel."""
        return len(x) <= int(self.kernels.FEW_ROWS)

    def _product(self, x: Tensor, layer: nn.Linear) -> Tensor:
        if self.few(x):
            return cast("Tensor", self.kernels.linear(x, layer)[0])
        return F.linear(x, layer.weight, layer.bias)


class _Residuals:
    """The residual stream x, and the output y of the last sublayer, which is not added yet."""

    def __init__(self, layers: RowLayers, x: Tensor) -> None:
        self.layers, self.x = layers, x
        self.y: Tensor | None = None
        self._norm: nn.LayerNorm | None = None  # of the last sublayer, where it comes after it

    def into(self, residual: Residual, linear: nn.Linear, relu: bool = False) -> Tensor:
        """The first product of the next sublayer."""
        norm = residual.norm if residual.before else self._norm
        self._norm = residual.norm
        kernels = self.layers.kernels
        if self.layers.few(self.x):
            out, self.x = kernels.linear(self.x, linear, relu, self.y, norm, residual.before)
            return cast("Tensor", out)
        inputs = self.x
        if norm is not None:
            inputs, self.x = kernels.add_norm(self.x, self.y, norm, residual.before)
        if relu:
            return torch._addmm_activation(linear.bias, inputs, linear.weight.t())
        return F.linear(inputs, linear.weight, linear.bias)

    def end(self, last: nn.Module) -> Tensor:
        """The states after all layers; `last` is the norm of a model with norms before."""
        norm = last if isinstance(last, nn.LayerNorm) else self._norm
        return cast("Tensor", self.layers.kernels.add_norm(self.x, self.y, norm, False)[0])
