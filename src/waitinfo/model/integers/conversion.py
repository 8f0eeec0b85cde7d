"""A Transformer computed with integers, from weights as `quantize` stores them.

Where there is compiled code for this CPU, embeddings and whole passes are computed by it
(`model.native`): the same numbers, several times as fast.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import CrossAttention, RecurrentUnit, SelfAttention
from waitinfo.model.cache import LayerCaches
from waitinfo.model.config import ModelConfig
from waitinfo.model.info import InfoQuantizer, TokenInfo
from waitinfo.model.integers.exact import (
    ExactCrossAttention,
    ExactNorm,
    ExactResidual,
    ExactSelfAttention,
    JointMemory,
    exact_sigmoid,
    exact_swish,
    value_bits,
)
from waitinfo.model.integers.matrix import (
    IntegerEmbedding,
    IntegerLinear,
    IntegerMatrix,
    PreciseMatrix,
)
from waitinfo.model.integers.packing import CENTER, REPEATED, SCALE, Preparation, dequantize
from waitinfo.model.layers import DecoderLayer, EncoderLayer
from waitinfo.model.native import Library, NativeEmbedding, NativeModel, find_kernels
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import Embedded, Encoded, Memory

MARGIN = 1.25  # on bounds of values, for the rounding of inputs and weights to 8 bits


class IntegerTransformer(Transformer):
    """A model whose matrices stay integers. Info is as precise as in float32: sums of it decide."""

    exact_bias = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.joint_memory: JointMemory | None = None  # of plain cross-attention
        self.native: NativeModel | None = None  # the same layers in compiled code
        self.native_source: NativeEmbedding | None = None
        self.native_target: NativeEmbedding | None = None

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def parameter_count(self) -> int:
        integers = [module for module in self.modules() if isinstance(module, IntegerMatrix)]
        return super().parameter_count() + sum(matrix.size for matrix in integers)

    def embed_source(
        self, tokens: Tensor, at: Tensor | None = None, table: Tensor | None = None
    ) -> Embedded:
        if self.native_source is None or at is None or table is None:
            return super().embed_source(tokens, at, table)
        return Embedded(*self.native_source(tokens, at, table), at)

    def embed_target(
        self, tokens: Tensor, at: Tensor | None = None, table: Tensor | None = None
    ) -> Embedded:
        if self.native_target is None or at is None or table is None:
            return super().embed_target(tokens, at, table)
        return Embedded(*self.native_target(tokens, at, table), at)

    def _encoded(self, x: Tensor, info: Tensor | None) -> Encoded:
        if self.joint_memory is None:
            return super()._encoded(x, info)
        joint = self.joint_memory(self.encoder_norm(x))
        layers = joint.permute(2, 3, 0, 4, 1, 5).unbind()  # [2, B, H, S, d/H] each
        return Encoded([Memory(layer[0], layer[1]) for layer in layers], info, joint)

    def new_caches(self, layers: int, rows: int, capacity: int) -> LayerCaches:
        heads, width = self.config.heads, self.config.width
        return LayerCaches.of(torch.zeros(layers, 2, rows, heads, capacity, width // heads))

    def new_memories(self, rows: int, capacity: int) -> LayerCaches:
        if self.joint_memory is None:
            return super().new_memories(rows, capacity)
        return self.new_caches(self.config.decoder_layers, rows, capacity)

    def logits(self, states: Tensor) -> Tensor:
        embedding = cast("IntegerEmbedding", self.target_embedding)
        scores = cast("Tensor", embedding.scores(states))
        return scores if self.output_bias is None else scores + self.output_bias


def native_model(model: Transformer) -> NativeModel | None:
    """The layers of a model in compiled code, if there are any."""
    return model.native if isinstance(model, IntegerTransformer) else None


def integer_model(config: ModelConfig, stored: dict[str, Tensor]) -> IntegerTransformer:
    """Build a model from integers."""
    with torch.device("meta"):
        model = IntegerTransformer(config)
    return _Conversion(model, dict(stored)).run()


class _Conversion:
    """Takes matrices out of `weights` as it converts them; what is left is loaded as floats."""

    def __init__(self, model: IntegerTransformer, weights: dict[str, Tensor]) -> None:
        self.model, self.weights = model, weights
        self.norms = {
            name: tensor.float().norm(dim=1) * weights[name + SCALE]
            for name, tensor in weights.items()
            if name + SCALE in weights
        }
        self.bound = self._input_bound()
        self.info = {
            name: (tensor, weights.get(name + SCALE))
            for name, tensor in weights.items()
            if name.endswith("quantizer.hidden.weight")
        }

    def run(self) -> IntegerTransformer:
        model = self.model
        source = self._embedding("source_embedding")
        joint = model.config.joint
        model.source_embedding = source  # type: ignore[assignment]
        target = source if joint else self._embedding("target_embedding")
        model.target_embedding = target  # type: ignore[assignment]
        if model.config.cross_attention == CrossAttention.name:
            model.joint_memory = self._joint_memory()
        for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
            for number, layer in enumerate(layers):
                self._layer(layer, f"{side}_layers.{number}")
        if model.config.norm == "pre":
            model.encoder_norm = ExactNorm(model.encoder_norm)  # type: ignore[arg-type,assignment]
            model.decoder_norm = ExactNorm(model.decoder_norm)  # type: ignore[arg-type,assignment]
        rest = {name: tensor.float() for name, tensor in dequantize(self.weights).items()}
        unexpected = model.load_state_dict(rest, strict=False, assign=True).unexpected_keys
        missing = [name for name, tensor in model.named_parameters() if tensor.is_meta]
        if missing or unexpected:
            raise KeyError((missing + unexpected)[0])
        self._exact_info(model.source_info, "source_info", source)
        self._exact_info(model.target_info, "target_info", target)
        for layer in model.decoder_layers:
            _widen(layer.cross)  # type: ignore[arg-type]
        if model.write_head is not None:
            model.write_head = model.write_head.double()
        code = find_kernels()
        fits = model.joint_memory is not None and NativeModel.fits(model.config)
        if code is not None and fits:
            model.native = NativeModel(model, code)
        if code is not None:
            model.native_source = _embedding(code, source, model.source_info)
            model.native_target = _embedding(code, target, model.target_info)
        return model.eval().requires_grad_(False)

    def _layer(self, layer: nn.Module, name: str) -> None:
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        layer.feed_forward.inner = self._linear(f"{name}.feed_forward.inner")  # type: ignore[assignment]
        layer.feed_forward.out = self._linear(  # type: ignore[assignment]
            f"{name}.feed_forward.out", positive=self.model.config.activation == "relu"
        )
        if self.model.config.activation != "relu":
            layer.feed_forward.activate = exact_swish
        if isinstance(layer.attention, RecurrentUnit):
            layer.attention.project = self._linear(f"{name}.attention.project")  # type: ignore[assignment]
            layer.attention.sigmoid = exact_sigmoid
        else:
            layer.attention = self._self_attention(layer.attention, f"{name}.attention")
        for around in ("around_attention", "around_cross", "around_feed_forward"):
            if (residual := getattr(layer, around, None)) is not None:
                setattr(layer, around, ExactResidual(residual.norm, residual.before))
        if isinstance(layer, DecoderLayer):
            layer.cross = self._cross_attention(layer.cross, f"{name}.cross")

    def _self_attention(self, attention: SelfAttention, name: str) -> ExactSelfAttention:
        bits = self._value_bits(f"{name}.project")
        self._scale_queries(f"{name}.project", attention.heads)
        project, out = (self._linear(f"{name}.{part}") for part in ("project", "out"))
        return ExactSelfAttention(project, out, attention.heads, bits)

    def _cross_attention(self, cross: CrossAttention, name: str) -> CrossAttention:
        if type(cross) is CrossAttention:
            self._scale_queries(f"{name}.queries", cross.heads)
            queries, out = (self._linear(f"{name}.{part}") for part in ("queries", "out"))
            return ExactCrossAttention(queries, out, cross.heads)
        # Other attention is computed in float64, where the order of sums hardly shows.
        cross.dtype = torch.float64
        for part in ("queries", "project"):
            setattr(cross, part, self._linear(f"{name}.{part}", torch.float64))
        cross.out = self._linear(f"{name}.out")  # type: ignore[assignment]
        return cross

    def _joint_memory(self) -> JointMemory:
        names = [f"decoder_layers.{i}.cross.project" for i in range(len(self.model.decoder_layers))]
        bits = [self._value_bits(name) for name in names]
        matrices = [self._matrix(f"{name}.weight") for name in names]
        weight, scale = (torch.cat(parts) for parts in zip(*matrices, strict=True))
        bias = torch.cat([self.weights.pop(f"{name}.bias") for name in names])
        prepared = self._prepared(f"{names[0]}.weight")  # all have the same inputs
        project = IntegerLinear(weight, scale, bias, prepared=prepared)
        return JointMemory(project, self.model.config.heads, bits)

    def _scale_queries(self, name: str, heads: int) -> None:
        """Multiply the rows that make the queries with the factor of the scores."""
        width = self.model.config.width
        factor = (width // heads) ** -0.5
        for part in (f"{name}.weight{SCALE}", f"{name}.bias"):
            scaled = self.weights[part].float().clone()
            scaled[:width] *= factor
            self.weights[part] = scaled

    def _linear(
        self, name: str, out: torch.dtype = torch.float32, positive: bool = False
    ) -> IntegerLinear:
        weight, scale = self._matrix(f"{name}.weight")
        bias = self.weights.pop(f"{name}.bias", None)
        prepared = None if positive else self._prepared(f"{name}.weight")
        return IntegerLinear(weight, scale, bias, out, positive, prepared)

    def _embedding(self, name: str) -> IntegerEmbedding:
        name = f"{name}.weight"
        return IntegerEmbedding(*self._matrix(name), self._prepared(name))

    def _matrix(self, name: str) -> tuple[Tensor, Tensor]:
        return self.weights.pop(name), self.weights.pop(name + SCALE)

    def _prepared(self, name: str) -> Preparation | None:
        if name + CENTER not in self.weights:
            return None
        center, repeated = self.weights[name + CENTER], self.weights[name + REPEATED]
        return Preparation(center.float(), repeated.to(torch.int32))

    def _exact_info(self, info: TokenInfo | None, name: str, embedding: IntegerEmbedding) -> None:
        if info is None:
            return
        if info.kind == "norm":
            info.tabulate(embedding.weight.float() * embedding.scale)
        elif info.kind == "attention":
            hidden = PreciseMatrix(*self.info[f"{name}.quantizer.hidden.weight"])
            info.quantizer = ExactInfoQuantizer(hidden, info.quantizer.out.weight[0])

    def _input_bound(self) -> float:
        """No input of a projection is longer: a normalised vector, or an embedded token."""
        width = self.model.config.width
        tokens = [norm.max() for name, norm in self.norms.items() if "embedding" in name]
        longest = math.sqrt(width) * float(max(tokens)) + math.sqrt(width / 2)
        for name, tensor in self.weights.items():
            if name.endswith("norm.weight"):
                shift = self.weights[name.removesuffix("weight") + "bias"]
                scaled = float(tensor.abs().max()) * math.sqrt(width) + float(shift.norm())
                longest = max(longest, scaled)
        return MARGIN * longest

    def _value_bits(self, name: str) -> int:
        """The rounding of an attention's values, which the last rows of a projection make."""
        width = self.model.config.width
        norms, bias = self.norms[f"{name}.weight"], self.weights[f"{name}.bias"]
        largest = norms[-width:].max() * self.bound + bias[-width:].abs().max()
        return value_bits(float(largest))


def _embedding(
    code: Library, embedding: IntegerEmbedding, info: TokenInfo | None
) -> NativeEmbedding | None:
    return NativeEmbedding(code, embedding, info) if NativeEmbedding.fits(info) else None


class ExactInfoQuantizer(InfoQuantizer):
    """Info in float32, the same bits whatever else is computed with it."""

    def __init__(self, hidden: PreciseMatrix, out: Tensor) -> None:
        nn.Module.__init__(self)
        self.hidden = hidden  # type: ignore[assignment]
        self.weight: Tensor
        self.register_buffer("weight", out.detach().double())

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T]."""
        # In float64, neither the order of a sum nor the kind of tanh changes what float32 shows.
        hidden = self.hidden.forward(x.reshape(-1, x.shape[-1]).double().tanh_().float())
        total = (hidden.double().tanh_().float() * self.weight).sum(-1).sigmoid_().mul_(2)
        return total.float().view(x.shape[:-1])


class DoubleLinear(nn.Linear):
    """A linear map that computes in float64 whatever its input is."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.double(), self.weight, self.bias)


def _widen(cross: CrossAttention) -> None:
    """Give special cross-attention its own parameters in float64."""
    if cross.dtype is None:
        return
    for parameter in cross.parameters():  # integers are buffers
        parameter.data = parameter.data.double()
    for module in cross.modules():
        if type(module) is nn.Linear:
            module.__class__ = DoubleLinear
