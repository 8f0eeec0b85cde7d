"""A Transformer computed with integers, in NumPy and compiled code: it needs no torch.

It offers what a translation asks a `Transformer` for, by the same names. Where there is compiled
code for this CPU, embeddings and whole passes are computed by it (`model.native`): the same
numbers, many times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from waitinfo.model.architecture import Architecture
from waitinfo.model.config import ModelConfig
from waitinfo.model.integers import info
from waitinfo.model.integers.cache import ArrayCache, ArrayCaches, ArrayRows, ArrayStateCache
from waitinfo.model.integers.conversion import Parts, convert
from waitinfo.model.integers.crosses import SpecialAttention
from waitinfo.model.integers.info import ArrayInfo, LearnedInfo
from waitinfo.model.integers.packing import Array, Stored
from waitinfo.model.native import NativeEmbedding, NativeModel, find_kernels
from waitinfo.model.views import (
    CachePosition,
    Embedded,
    Encoded,
    Memory,
    SelfView,
)
from waitinfo.text.special import BOS, PAD


@dataclass(frozen=True)
class HostDevice:
    """Where models in NumPy are; named like a device of torch."""

    type: ClassVar[str] = "cpu"

    def __str__(self) -> str:
        return self.type


class IntegerModel(Architecture):
    """A model whose matrices stay integers. Info is as precise as in float32: sums of it decide."""

    device, numbers = HostDevice(), "numpy"
    biases = info

    def __init__(self, config: ModelConfig, stored: Stored) -> None:
        self.config = config
        self.parts: Parts = convert(config, stored)
        self.source_embedding, self.target_embedding = self.parts.source, self.parts.target
        self.source_info, self.target_info = self.parts.source_info, self.parts.target_info
        self.encoder_layers = self.parts.encoder
        self.decoder_layers = [layer.decode for layer in self.parts.decoder]
        self.encoder_norm, self.decoder_norm = self.parts.encoder_norm, self.parts.decoder_norm
        self.native: NativeModel | None = None  # the layers in compiled code
        self.native_source: NativeEmbedding | None = None
        self.native_target: NativeEmbedding | None = None
        code = find_kernels()
        if code is not None:
            if self.parts.memory is not None and NativeModel.fits(config):
                self.native = NativeModel(config, self.parts, code)
            if in_kernels(self.source_info):
                self.native_source = NativeEmbedding(code, self.parts.source, self.source_info)
            if in_kernels(self.target_info):
                self.native_target = NativeEmbedding(code, self.parts.target, self.target_info)

    def parameter_count(self) -> int:
        return self.parts.parameters

    # What else depends on the kind of a model's numbers

    @staticmethod
    def given(array: Array) -> Array:
        """An array as the model takes it."""
        return array.astype(np.float32) if array.dtype == np.float64 else array

    @staticmethod
    def shown(numbers: Array) -> Array:
        """Numbers of the model as an array."""
        return numbers

    @staticmethod
    def exact(numbers: Array) -> Array:
        """In float32 or better."""
        return numbers

    @staticmethod
    def finite(numbers: Array) -> list[bool]:
        """Whether all numbers of each row [R, …] are finite."""
        return np.isfinite(numbers.reshape(len(numbers), -1).sum(1)).tolist()

    @staticmethod
    def best(logits: Array) -> tuple[Array, Array]:
        """The best token of every row that may be written, and whether its logit is finite.

        Excludes tokens that are never written from the logits.
        """
        logits[:, [PAD, BOS]] = -np.inf
        tokens = logits.argmax(-1)
        return tokens, np.isfinite(logits[np.arange(len(logits)), tokens])

    @staticmethod
    def rows(rows: Sequence[int]) -> ArrayRows:
        """Some rows of caches."""
        return ArrayRows.of(rows)

    @staticmethod
    def computing() -> AbstractContextManager[Any]:
        """What passes run in. Damaged weights are noticed by what comes out."""
        return np.errstate(all="ignore")

    @staticmethod
    def building() -> AbstractContextManager[Any]:
        """What the state of an engine is made in."""
        return nullcontext()

    # Embedding

    def embed_source(
        self, tokens: Array, at: Array | None = None, table: Array | None = None
    ) -> Embedded:
        """Embed tokens [B, S] at positions at [B, S] (default 0, 1, …).

        table: position embeddings made by `position_table`, with a row for every position in `at`.
        """
        return self._embed(
            self.native_source, self.parts.source, self.source_info, tokens, at, table
        )

    def embed_target(
        self, tokens: Array, at: Array | None = None, table: Array | None = None
    ) -> Embedded:
        """Embed decoder inputs [B, T], which start with begin-of-sequence."""
        return self._embed(
            self.native_target, self.parts.target, self.target_info, tokens, at, table
        )

    def position_table(self, positions: int) -> Array:
        """Embeddings of the first positions, [positions, d], to look them up."""
        return sinusoids(
            np.arange(positions) + self.config.first_position,
            self.config.width,
            self.config.positions == "closed",
        )

    def _embed(
        self,
        native: NativeEmbedding | None,
        embedding: Any,
        token_info: Any,
        tokens: Array,
        at: Any,
        table: Array | None,
    ) -> Embedded:
        if at is None:
            at = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if table is None:
            table = self.position_table(int(at.max()) + 1)
        found: Any
        if native is not None:
            found = native(tokens, at, table)
        else:
            x = embedding(tokens) * np.float32(math.sqrt(self.config.width)) + table[at]
            found = x, None if token_info is None else token_info(tokens, x)
        x, infos = found
        return Embedded(x, infos, at)

    # Passes

    def _encoded(self, x: Array, source_info: Any) -> Encoded:
        states = self.parts.encoder_norm(x)
        if self.parts.memory is None:
            crosses: Any = [layer.cross for layer in self.parts.decoder]
            return Encoded([cross.memory(states) for cross in crosses], source_info)
        joint: Any = self.parts.memory(states)
        layers = np.moveaxis(joint, (2, 3, 4), (0, 1, 3))  # [layers, 2, B, H, S, d/H]
        return Encoded([Memory(layer[0], layer[1]) for layer in layers], source_info, joint)

    def _self_view(self, side: Embedded, position: CachePosition | None = None) -> SelfView:
        seen: Any = side.info if self.config.info_self_attention else None
        keys = np.shape(side.x)[1] if position is None else position.keys
        at: Any = side.at
        return SelfView(info.self_bias(at, keys, seen), position)  # type: ignore[arg-type]

    def _bidirectional_view(self, source: Embedded, lengths: Array) -> SelfView:
        seen: Any = source.info if self.config.info_self_attention else None
        bias: Any = info.whole_bias(lengths, np.shape(source.x)[1], seen)
        return SelfView(bias)

    def new_caches(self, layers: int, rows: int, capacity: int) -> ArrayCaches:
        """Empty caches, one per layer."""
        heads, width = self.config.heads, self.config.width // self.config.heads
        return ArrayCaches(ArrayCache(rows, heads, capacity, width, width) for _ in range(layers))

    def new_target_caches(self, rows: int, capacity: int) -> ArrayCaches:
        """Empty caches of what was written, one per decoder layer."""
        layers = self.config.decoder_layers
        if self.config.decoder == "attention":
            return self.new_caches(layers, rows, capacity)
        return ArrayCaches(ArrayStateCache(rows, self.config.width) for _ in range(layers))

    def new_memories(self, rows: int, capacity: int) -> ArrayCaches:
        """Empty caches of source keys and values, one per decoder layer."""
        if self.parts.memory is not None:
            return self.new_caches(self.config.decoder_layers, rows, capacity)
        heads, width = self.config.heads, self.config.width // self.config.heads
        return ArrayCaches(
            ArrayCache(rows, heads, capacity, width * cross.key_vectors, width, np.float64)
            for cross in self._special
        )

    def new_states(self, rows: int) -> list[Array]:
        """Initial states [rows, H] of each layer's cross-attention; empty if it has no state."""
        carrying = [cross for cross in self._special if cross.carries]
        return [np.zeros((rows, self.config.heads)) for _ in carrying]

    @property
    def _special(self) -> list[SpecialAttention]:
        crosses = [layer.cross for layer in self.parts.decoder]
        return [cross for cross in crosses if isinstance(cross, SpecialAttention)]

    def logits(self, states: Array) -> Array:
        """[..., d] -> [..., V]."""
        scores: Array = self.parts.target.scores(states)
        return scores

    def write_logits(self, states: Array) -> Array | None:
        """Log-odds of WRITE in float64, if the model has a head for it: [..., d] -> [...]."""
        if self.parts.write_head is None:
            return None
        weight, bias = self.parts.write_head
        return (states.astype(np.float64) * weight[0]).sum(-1) + bias[0]


def in_kernels(info: ArrayInfo | None) -> bool:
    """Whether compiled code can compute info: not with a matrix that was stored as floats."""
    return not isinstance(info, LearnedInfo) or info.hidden.weight_parts == 1


def sinusoids(at: Array, width: int, closed: bool = True) -> Array:
    """Sinusoidal position embeddings: [N] -> [N, d]. Positions have no upper limit.

    closed: the last rate is 1/10000; otherwise it would be the one after the last.
    """
    half = width // 2
    steps = np.arange(half, dtype=np.float32)
    exponents = steps * np.float32(-math.log(10000.0) / max(1, half - closed))
    rates = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (at[:, None].astype(np.float32) * rates).astype(np.float64)
    table = np.zeros((len(at), width), np.float32)
    table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return table
