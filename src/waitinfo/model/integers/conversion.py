"""The parts of a model that computes with integers, made from weights as `quantize` stores them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import PLAIN, ModelConfig
from waitinfo.model.integers.crosses import SPECIAL, SpecialAttention
from waitinfo.model.integers.exact import (
    ACTIVATIONS,
    ExactCrossAttention,
    ExactNorm,
    ExactRecurrentUnit,
    ExactResidual,
    ExactSelfAttention,
    JointMemory,
    value_bits,
)
from waitinfo.model.integers.info import ArrayInfo, LearnedInfo, TableInfo, info_by_norm
from waitinfo.model.integers.matrix import IntegerEmbedding, IntegerLinear, PreciseMatrix
from waitinfo.model.integers.packing import (
    CENTER,
    REPEATED,
    SCALE,
    Array,
    Preparation,
    Stored,
    dequantize,
)
from waitinfo.model.views import AttentionReport, Memory, SelfView, SourceView

EMBEDDING = "_embedding.weight"
ROWS = 1024  # of a matrix that are floats at a time
MARGIN = 1.25  # on bounds of values, for the rounding of inputs and weights to 8 bits


@dataclass(frozen=True)
class IntegerFeedForward:
    inner: IntegerLinear
    out: IntegerLinear
    activate: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        return self.out(self.activate(self.inner(x)))


@dataclass(frozen=True)
class IntegerLayer:
    """A layer of the encoder, or with cross-attention one of the decoder."""

    attention: ExactSelfAttention | ExactRecurrentUnit
    feed_forward: IntegerFeedForward
    around_attention: ExactResidual
    around_feed_forward: ExactResidual
    cross: ExactCrossAttention | SpecialAttention | None = None
    around_cross: ExactResidual | None = None

    def __call__(self, x: Array, view: SelfView, cache: Any = None) -> Array:
        x = self.around_attention(x, lambda h: self.attention(h, view, cache))
        return self.around_feed_forward(x, self.feed_forward)

    def decode(
        self, x: Array, view: SelfView, memory: Memory, source: SourceView, cache: Any = None
    ) -> tuple[Array, AttentionReport | None]:
        reports: list[AttentionReport | None] = []

        def cross(h: Array) -> Array:
            assert self.cross is not None
            mixed, report = self.cross(h, memory, source)
            reports.append(report)
            return mixed

        assert self.around_cross is not None
        x = self.around_attention(x, lambda h: self.attention(h, view, cache))
        x = self.around_cross(x, cross)
        return self.around_feed_forward(x, self.feed_forward), reports[0]


@dataclass(frozen=True)
class Parts:
    """Everything that a model computes with."""

    source: IntegerEmbedding
    target: IntegerEmbedding
    source_info: ArrayInfo | None
    target_info: ArrayInfo | None
    encoder: list[IntegerLayer]
    decoder: list[IntegerLayer]
    encoder_norm: Callable[[Array], Array]
    decoder_norm: Callable[[Array], Array]
    memory: JointMemory | None  # of plain cross-attention
    write_head: tuple[Array, Array] | None
    parameters: int


def can_convert(config: ModelConfig) -> bool:
    """Whether a model of this shape can compute with integers."""
    return config.cross_attention in (PLAIN, *SPECIAL)


def convert(config: ModelConfig, stored: Stored) -> Parts:
    if not can_convert(config):
        raise WaitinfoError(
            f"model.cross_attention {config.cross_attention}: cannot be computed with integers; "
            "use dtype float32"
        )
    return _Conversion(config, stored).run()


class _Conversion:
    """Takes weights out of `weights` as it converts them; none must be left."""

    def __init__(self, config: ModelConfig, stored: Stored) -> None:
        self.config, self.weights = config, dict(stored)
        beside = (SCALE, CENTER, REPEATED, ".table", ".share", ".scale")
        sizes = [array.size for name, array in stored.items() if not name.endswith(beside)]
        self.parameters = sum(sizes)
        self.bound = self._input_bound()

    def run(self) -> Parts:
        config = self.config
        bias = self._output_bias()
        if config.joint:
            source = self._embedding("source_embedding", config.source_vocabulary, bias)
            target = source
        else:
            source = self._embedding("source_embedding", config.source_vocabulary)
            target = self._embedding("target_embedding", config.target_vocabulary, bias)
        memory = self._joint_memory() if config.cross_attention == PLAIN else None
        encoder = [self._layer(f"encoder_layers.{i}") for i in range(config.encoder_layers)]
        decoder = [
            self._layer(f"decoder_layers.{i}", config.decoder == "ssru", True)
            for i in range(config.decoder_layers)
        ]
        parts = Parts(
            source, target,
            self._info("source_info", config.source_info, source),
            self._info("target_info", config.target_info, target),
            encoder, decoder, self._last_norm("encoder_norm"), self._last_norm("decoder_norm"),
            memory, self._write_head(), self.parameters,
        )  # fmt: skip
        if left := sorted(filter(_is_weight, self.weights)):
            raise KeyError(left[0])
        return parts

    def _layer(self, name: str, recurrent: bool = False, decodes: bool = False) -> IntegerLayer:
        config, before = self.config, self.config.norm == "pre"
        width = config.width
        attention: ExactSelfAttention | ExactRecurrentUnit
        if recurrent:
            project = self._linear(f"{name}.attention.project", 2 * width)
            attention = ExactRecurrentUnit(project)
        else:
            bits = self._value_bits(f"{name}.attention.project")
            self._scale_queries(f"{name}.attention.project")
            project = self._linear(f"{name}.attention.project", 3 * width)
            out = self._linear(f"{name}.attention.out", width)
            attention = ExactSelfAttention(project, out, config.heads, bits)
        inner = self._linear(f"{name}.feed_forward.inner", config.ffn)
        positive = config.activation == "relu"
        outer = self._linear(f"{name}.feed_forward.out", width, config.ffn, positive)
        return IntegerLayer(
            attention, IntegerFeedForward(inner, outer, ACTIVATIONS[config.activation]),
            ExactResidual(self._norm(f"{name}.around_attention.norm"), before),
            ExactResidual(self._norm(f"{name}.around_feed_forward.norm"), before),
            self._cross(f"{name}.cross") if decodes else None,
            ExactResidual(self._norm(f"{name}.around_cross.norm"), before) if decodes else None,
        )  # fmt: skip

    def _cross(self, name: str) -> ExactCrossAttention | SpecialAttention:
        heads, width = self.config.heads, self.config.width
        if self.config.cross_attention == PLAIN:
            self._scale_queries(f"{name}.queries")
            queries, out = (self._linear(f"{name}.{part}", width) for part in ("queries", "out"))
            return ExactCrossAttention(queries, out, heads)
        kind = SPECIAL[self.config.cross_attention]
        keys = kind.key_vectors
        sizes = {"queries": keys * width, "project": (keys + 1) * width, "out": width}
        linear = {part: self._linear(f"{name}.{part}", size) for part, size in sizes.items()}
        shapes = kind.own_shapes(width, heads)
        own = {part: self._take(f"{name}.{part}", shape) for part, shape in shapes.items()}
        return kind(heads, linear.__getitem__, own)

    def _joint_memory(self) -> JointMemory:
        names = [f"decoder_layers.{i}.cross.project" for i in range(self.config.decoder_layers)]
        bits = [self._value_bits(name) for name in names]
        prepared = self._prepared(f"{names[0]}.weight")  # all have the same inputs
        width = self.config.width
        matrices = [self._matrix(f"{name}.weight", 2 * width, width) for name in names]
        weight, scale = (np.concatenate(parts) for parts in zip(*matrices, strict=True))
        bias = np.concatenate([self._pop(f"{name}.bias", (2 * width,)) for name in names])
        project = IntegerLinear(weight, scale, bias, prepared=prepared)
        return JointMemory(project, self.config.heads, bits)

    def _scale_queries(self, name: str) -> None:
        """Multiply the rows that make the queries with the factor of the scores."""
        width = self.config.width
        factor = np.float32((width // self.config.heads) ** -0.5)
        for part in (f"{name}.weight{SCALE}", f"{name}.bias"):
            scaled = self.weights[part].astype(np.float32)
            scaled[:width] *= factor
            self.weights[part] = scaled

    def _linear(
        self, name: str, outputs: int, inputs: int | None = None, positive: bool = False
    ) -> IntegerLinear:
        prepared = None if positive else self._prepared(f"{name}.weight")
        weight, scale = self._matrix(f"{name}.weight", outputs, inputs or self.config.width)
        bias = self._pop(f"{name}.bias", (outputs,))
        return IntegerLinear(weight, scale, bias, positive, prepared)

    def _embedding(self, name: str, vocabulary: int, bias: Array | None = None) -> IntegerEmbedding:
        prepared = self._prepared(f"{name}.weight")
        matrix = self._matrix(f"{name}.weight", vocabulary, self.config.width)
        return IntegerEmbedding(*matrix, prepared, bias)

    def _matrix(self, name: str, outputs: int, inputs: int) -> tuple[Array, Array]:
        weight, scale = self._pop(name, (outputs, inputs)), self._pop(name + SCALE, (outputs,))
        if weight.dtype != np.int8:
            raise ValueError(f"{name}: is {weight.dtype}, not int8")
        return weight, scale

    def _pop(self, name: str, shape: tuple[int, ...]) -> Array:
        """Compiled code trusts in the shapes."""
        found = self.weights.pop(name)
        if found.shape != shape:
            raise ValueError(f"{name}: is {found.shape}, not {shape}")
        return found

    def _take(self, name: str, shape: tuple[int, ...]) -> Array:
        """A weight as floats."""
        some = {name: self._pop(name, shape)}
        if name + SCALE in self.weights:
            some[name + SCALE] = self._pop(name + SCALE, shape[:1])
        return dequantize(some)[name].astype(np.float32)

    def _prepared(self, name: str) -> Preparation | None:
        if name + CENTER not in self.weights:
            return None
        center, repeated = self.weights[name + CENTER], self.weights[name + REPEATED]
        return Preparation(center.astype(np.float32), repeated.astype(np.int32))

    def _norm(self, name: str) -> ExactNorm:
        shape = (self.config.width,)
        weight, bias = (self._take(f"{name}.{part}", shape) for part in ("weight", "bias"))
        return ExactNorm(weight, bias, self.config.epsilon)

    def _last_norm(self, name: str) -> Callable[[Array], Array]:
        return self._norm(name) if self.config.norm == "pre" else _same

    def _info(self, name: str, kind: str, embedding: IntegerEmbedding) -> ArrayInfo | None:
        if self.config.info == "none":
            return None
        vocabulary, width = embedding.weight.shape
        if kind == "one":
            return TableInfo(np.ones(vocabulary, np.float32))
        if self.config.info == "frequency":
            return TableInfo(self._take(f"{name}.table", (vocabulary,)))
        if self.config.info == "norm":
            share, scale = (
                self._take(f"{name}.share", (vocabulary,)),
                self._take(f"{name}.scale", ()),
            )
            return info_by_norm(embedding, share, scale)
        hidden = f"{name}.quantizer.hidden.weight"
        if hidden + SCALE in self.weights:
            matrix = PreciseMatrix(*self._matrix(hidden, width, width))
        else:
            matrix = PreciseMatrix(self._take(hidden, (width, width)))
        out = self._take(f"{name}.quantizer.out.weight", (1, width))
        return LearnedInfo(matrix, out[0])

    def _output_bias(self) -> Array | None:
        shape = (self.config.target_vocabulary,)
        return self._take("output_bias", shape) if self.config.output_bias else None

    def _write_head(self) -> tuple[Array, Array] | None:
        if not self.config.write_head:
            return None
        weight = self._take("write_head.weight", (1, self.config.width))
        bias = self._take("write_head.bias", (1,))
        return weight.astype(np.float64), bias.astype(np.float64)

    def _input_bound(self) -> float:
        """No input of a projection is longer: a normalised vector, or an embedded token."""
        width = self.config.width
        tokens = [self._norms(name).max() for name in self.weights if name.endswith(EMBEDDING)]
        longest = math.sqrt(width) * float(max(tokens)) + math.sqrt(width / 2)
        for name, array in self.weights.items():
            if name.endswith("norm.weight"):
                shift = np.linalg.norm(self.weights[name.removesuffix("weight") + "bias"])
                scaled = float(np.abs(array).max()) * math.sqrt(width) + float(shift)
                longest = max(longest, scaled)
        return MARGIN * longest

    def _value_bits(self, name: str) -> int:
        """The rounding of an attention's values, which the last rows of a projection make."""
        width = self.config.width
        norms, bias = self._norms(f"{name}.weight"), self.weights[f"{name}.bias"]
        largest = norms[-width:].max() * self.bound + np.abs(bias[-width:]).max()
        return value_bits(float(largest))

    def _norms(self, name: str) -> Array:
        """The norm of every row of a matrix. In parts: floats take more memory than integers."""
        integers, scale = self.weights[name], self.weights[name + SCALE]
        squares = np.empty(len(integers), np.float32)
        for start in range(0, len(integers), ROWS):
            part = integers[start : start + ROWS].astype(np.float32)
            squares[start : start + ROWS] = np.einsum("ij,ij->i", part, part)
        return np.sqrt(squares) * scale


def _is_weight(name: str) -> bool:
    return not name.endswith((SCALE, CENTER, REPEATED))


def _same(x: Array) -> Array:
    return x
