"""The info-aware Transformer: one network for every system, for training and streaming.

`architecture` says what is computed from what; here are the layers, and what embeds tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model import info
from waitinfo.model.architecture import Architecture
from waitinfo.model.attention import CrossAttention, without_cudnn_attention
from waitinfo.model.cache import CacheRows, KeyValueCache, LayerCaches, StateCache
from waitinfo.model.config import ModelConfig
from waitinfo.model.info import TokenInfo
from waitinfo.model.layers import DecoderLayer, EncoderLayer, sinusoids, token_embedding
from waitinfo.model.loss import Terms, product_dtype, token_terms
from waitinfo.model.views import CachePosition, Embedded, Encoded, SelfView
from waitinfo.text.special import BOS, PAD


class Transformer(Architecture, nn.Module):
    """The network; `integers.model` has one that computes with 8-bit integers, in NumPy."""

    numbers: ClassVar[str] = "torch"
    biases = info

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = token_embedding(config.source_vocabulary, config.width)
        self.target_embedding = (
            self.source_embedding
            if config.joint
            else token_embedding(config.target_vocabulary, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.source_info = self._token_info(config.source_vocabulary, config.source_info)
        self.target_info = self._token_info(config.target_vocabulary, config.target_info)
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(config) for _ in range(config.encoder_layers)
        )
        self.decoder_layers = nn.ModuleList(
            DecoderLayer(config) for _ in range(config.decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(config.width, config.epsilon) if config.norm == "pre" else nn.Identity()
            for _ in range(2)
        )
        bias = torch.zeros(config.target_vocabulary) if config.output_bias else None
        self.output_bias = None if bias is None else nn.Parameter(bias)
        self.write_head = nn.Linear(config.width, 1) if config.write_head else None
        self.token_terms: Terms = token_terms  # of the loss; can be replaced by a fused kernel
        self._initialise()

    def _token_info(self, vocabulary: int, kind: str) -> TokenInfo | None:
        if self.config.info == "none":
            return None
        return TokenInfo(self.config.info, vocabulary, self.config.width, kind == "one")

    def _initialise(self) -> None:
        if self.device.type == "meta":
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.width**-0.5)
                nn.init.zeros_(module.weight[PAD])
        if self.config.encoder == "bidirectional" and self.config.norm == "post":
            self._shrink_encoder()

    @torch.no_grad()
    def _shrink_encoder(self) -> None:
        """Begin with small sublayers, so that the positions of a sentence stay distinct.

        With norms after the sublayers and every position attending to all others, their states
        become equal within the first updates, and cross-attention cannot learn where to look.
        """
        gain = 1 / (2 * self.config.encoder_layers)  # of all sublayers together: 1
        for layer in self.encoder_layers:
            for part in ("attention", "feed_forward"):
                getattr(layer, part).out.weight.mul_(gain)

    def weights(self) -> dict[str, Tensor]:
        """Tensors to save, with a shared embedding stored once."""
        state = self.state_dict()
        if self.config.joint:
            del state["target_embedding.weight"]
        return state

    def load_weights(self, weights: dict[str, Tensor], assign: bool = False) -> None:
        """Load tensors as returned by `weights`."""
        if self.config.joint:
            weights = {**weights, "target_embedding.weight": weights["source_embedding.weight"]}
        self.load_state_dict(weights, assign=assign)
        if self.config.joint:  # `assign` has made two of it
            self.target_embedding = self.source_embedding

    @property
    def device(self) -> torch.device:
        return self.source_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What activations are computed in."""
        return self.source_embedding.weight.dtype

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    # What else depends on the kind of a model's numbers; models with integers have it for arrays

    @property
    def exact_dtype(self) -> torch.dtype:
        """float32 or better."""
        return torch.promote_types(self.dtype, torch.float32)

    def given(self, array: NDArray[Any]) -> Tensor:
        """An array as the model takes it."""
        tensor = torch.from_numpy(array).to(self.device)
        return tensor.to(self.exact_dtype) if tensor.is_floating_point() else tensor

    @staticmethod
    def shown(numbers: Tensor) -> NDArray[Any]:
        """Numbers of the model as an array."""
        numbers = numbers.detach().cpu()
        return (numbers if numbers.dtype.itemsize > 2 else numbers.float()).numpy()

    def exact(self, numbers: Tensor) -> Tensor:
        """In float32 or better."""
        return numbers.to(self.exact_dtype)

    @staticmethod
    def finite(numbers: Tensor) -> list[bool]:
        """Whether all numbers of each row [R, …] are finite."""
        return numbers.flatten(1).sum(1, dtype=torch.float32).isfinite().tolist()

    @staticmethod
    def best(logits: Tensor) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The best token of every row that may be written, and whether its logit is finite.

        Excludes tokens that are never written from the logits.
        """
        logits[:, [PAD, BOS]] = -torch.inf
        if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
            values = logits.numpy()  # its argmax is many times as fast as torch's
            tokens = values.argmax(-1)
            return tokens, np.isfinite(values[np.arange(len(values)), tokens])
        top = logits.max(-1)
        return top.indices.cpu().numpy(), top.values.isfinite().cpu().numpy()

    def rows(self, rows: Sequence[int]) -> CacheRows:
        """Some rows of caches."""
        return CacheRows.of(rows, self.device)

    @staticmethod
    def computing() -> AbstractContextManager[Any]:
        """What passes run in."""
        return torch.inference_mode()

    @staticmethod
    @contextmanager
    def building() -> Iterator[None]:
        """What the state of an engine is made in: it is also changed outside of passes."""
        with torch.inference_mode(False), torch.no_grad():
            yield

    # Embedding

    def embed_source(
        self, tokens: Tensor, at: Tensor | None = None, table: Tensor | None = None
    ) -> Embedded:
        """Embed tokens [B, S] at positions at [B, S] (default 0, 1, …).

        table: position embeddings made by `position_table`, with a row for every position in `at`.
        """
        return self._embed(self.source_embedding, self.source_info, tokens, at, table)

    def embed_target(
        self, tokens: Tensor, at: Tensor | None = None, table: Tensor | None = None
    ) -> Embedded:
        """Embed decoder inputs [B, T], which start with begin-of-sequence."""
        return self._embed(self.target_embedding, self.target_info, tokens, at, table)

    def position_table(self, positions: int) -> Tensor:
        """Embeddings of the first positions, [positions, d], to look them up."""
        row = torch.arange(positions, device=self.device)[None]
        return self._positions(row)[0].to(self.dtype)

    def _positions(self, at: Tensor) -> Tensor:
        config = self.config
        return sinusoids(at + config.first_position, config.width, config.positions == "closed")

    def _embed(
        self,
        embedding: nn.Embedding,
        token_info: TokenInfo | None,
        tokens: Tensor,
        at: Tensor | None,
        table: Tensor | None,
    ) -> Embedded:
        x = embedding(tokens) * math.sqrt(self.config.width)
        if at is not None and table is not None:
            positions = table[at]
        elif at is None:
            row = torch.arange(tokens.shape[1], device=tokens.device)[None]
            positions, at = self._positions(row), row.expand(tokens.shape)
        else:
            positions = self._positions(at)
        x = x + positions.to(x.dtype)
        whole = x.to(product_dtype(x))
        x = self.dropout(whole)
        seen = x if self.config.info_dropout else whole
        found = None if token_info is None else token_info(tokens, seen, embedding.weight)
        return Embedded(x, found, at)

    # Passes

    encode = without_cudnn_attention(Architecture.encode)
    extend = without_cudnn_attention(Architecture.extend)
    decode = without_cudnn_attention(Architecture.decode)
    step = without_cudnn_attention(Architecture.step)

    def _encoded(self, x: Tensor, source_info: Tensor | None) -> Encoded:
        states = self.encoder_norm(x)
        return Encoded([cross.memory(states) for cross in self.crosses()], source_info)

    def crosses(self) -> list[CrossAttention]:
        return [cast("DecoderLayer", layer).cross for layer in self.decoder_layers]

    def _self_view(self, side: Embedded, position: CachePosition | None = None) -> SelfView:
        seen = side.info if self.config.info_self_attention else None
        if position is not None:
            return SelfView(info.self_bias(position.at, position.keys, seen), position)
        return SelfView(None if seen is None else info.self_bias(side.at, side.x.shape[1], seen))

    def _bidirectional_view(self, source: Embedded, lengths: Tensor) -> SelfView:
        padding = torch.arange(source.x.shape[1], device=lengths.device) >= lengths[:, None]
        bias = torch.zeros(padding.shape, device=lengths.device)
        bias = bias.masked_fill(padding, -torch.inf)[:, None, None]  # [B, 1, 1, S]
        if self.config.info_self_attention and source.info is not None:  # as in `self_bias`
            bias = bias + torch.diag_embed(source.info - 1)[:, None]
        return SelfView(bias)

    def new_caches(self, layers: int, rows: int, capacity: int) -> LayerCaches:
        """Empty caches, one per layer."""
        heads, like = self.config.heads, torch.empty(0, device=self.device, dtype=self.dtype)
        width = self.config.width // heads
        return LayerCaches(KeyValueCache(rows, heads, capacity, width, like) for _ in range(layers))

    def new_target_caches(self, rows: int, capacity: int) -> LayerCaches:
        """Empty caches of what was written, one per decoder layer."""
        layers = self.config.decoder_layers
        if self.config.decoder == "attention":
            return self.new_caches(layers, rows, capacity)
        like = torch.empty(0, device=self.device, dtype=self.dtype)
        return LayerCaches(StateCache(rows, self.config.width, like) for _ in range(layers))

    def new_memories(self, rows: int, capacity: int) -> LayerCaches:
        """Empty caches of source keys and values, one per decoder layer."""
        heads, like = self.config.heads, torch.empty(0, device=self.device, dtype=self.dtype)
        width = self.config.width // heads
        return LayerCaches(
            KeyValueCache(rows, heads, capacity, width, like, cross.key_vectors)
            for cross in self.crosses()
        )

    def new_states(self, rows: int) -> list[Tensor]:
        """Initial states [rows, H] of each layer's cross-attention; empty if it has no state."""
        exact = torch.promote_types(self.dtype, torch.float32)
        return [
            torch.zeros(rows, self.config.heads, device=self.device, dtype=exact)
            for cross in self.crosses()
            if cross.carries
        ]

    def logits(self, states: Tensor) -> Tensor:
        """[..., d] -> [..., V]; the output matrix is the target embedding."""
        return F.linear(states, self.target_embedding.weight, self.output_bias)

    def write_logits(self, states: Tensor) -> Tensor | None:
        """Log-odds of WRITE, if the model has a head for it: [..., d] -> [...].

        Computed in float32 or better, also under autocast, because a threshold is applied to them.
        """
        if self.write_head is None:
            return None
        weight, bias = self.write_head.weight[0], self.write_head.bias[0]
        exact = torch.promote_types(weight.dtype, torch.float32)
        return (states.to(exact) * weight.to(exact)).sum(-1) + bias.to(exact)
