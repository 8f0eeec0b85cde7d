"""A Transformer computed with integers, from weights as `quantize` stores them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import CrossAttention, SelfAttention
from waitinfo.model.config import ModelConfig
from waitinfo.model.exact import ExactCrossAttention, ExactSelfAttention, value_bits
from waitinfo.model.info import InfoQuantizer, TokenInfo
from waitinfo.model.integer import IntegerEmbedding, IntegerLinear
from waitinfo.model.layers import DecoderLayer, EncoderLayer
from waitinfo.model.quantize import SCALE, dequantize
from waitinfo.model.transformer import Transformer

MARGIN = 1.25  # on bounds of values, for the rounding of inputs and weights to 8 bits


def integer_model(config: ModelConfig, stored: dict[str, Tensor]) -> Transformer:
    """Build a model whose matrices stay integers.

    Info is computed in float64 and given in float32, since sums of it decide.
    """
    with torch.device("meta"):
        model = Transformer(config)
    return _Conversion(model, dict(stored)).run()


class _Conversion:
    """Takes matrices out of `weights` as it converts them; what is left is loaded as floats."""

    def __init__(self, model: Transformer, weights: dict[str, Tensor]) -> None:
        self.model, self.weights = model, weights
        self.norms = {
            name: tensor.float().norm(dim=1) * weights[name + SCALE]
            for name, tensor in weights.items()
            if name + SCALE in weights
        }
        self.bound = self._input_bound()

    def run(self) -> Transformer:
        model = self.model
        source = self._embedding("source_embedding")
        joint = model.config.joint
        model.source_embedding = source  # type: ignore[assignment]
        target = source if joint else self._embedding("target_embedding")
        model.target_embedding = target  # type: ignore[assignment]
        for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
            for number, layer in enumerate(layers):
                self._layer(layer, f"{side}_layers.{number}")
        rest = {name: tensor.float() for name, tensor in dequantize(self.weights).items()}
        unexpected = model.load_state_dict(rest, strict=False, assign=True).unexpected_keys
        missing = [name for name, tensor in model.named_parameters() if tensor.is_meta]
        if missing or unexpected:
            raise KeyError((missing + unexpected)[0])
        self._exact_info(model.source_info, source)
        self._exact_info(model.target_info, target)
        for layer in model.decoder_layers:
            _widen(layer.cross)  # type: ignore[arg-type]
        if model.write_head is not None:
            model.write_head = model.write_head.double()
        return model.eval()

    def _layer(self, layer: nn.Module, name: str) -> None:
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        layer.feed_forward.inner = self._linear(f"{name}.feed_forward.inner")  # type: ignore[assignment]
        layer.feed_forward.out = self._linear(f"{name}.feed_forward.out")  # type: ignore[assignment]
        layer.attention = self._self_attention(layer.attention, f"{name}.attention")
        if isinstance(layer, DecoderLayer):
            layer.cross = self._cross_attention(layer.cross, f"{name}.cross")

    def _self_attention(self, attention: SelfAttention, name: str) -> ExactSelfAttention:
        bits = self._value_bits(f"{name}.project")
        project, out = (self._linear(f"{name}.{part}") for part in ("project", "out"))
        return ExactSelfAttention(project, out, attention.heads, bits)

    def _cross_attention(self, cross: CrossAttention, name: str) -> CrossAttention:
        if type(cross) is CrossAttention:
            bits = self._value_bits(f"{name}.project")
            queries, project, out = (
                self._linear(f"{name}.{part}") for part in ("queries", "project", "out")
            )
            return ExactCrossAttention(queries, project, out, cross.heads, bits)
        # Other attention is computed in float64, where the order of sums hardly shows.
        cross.dtype = torch.float64
        for part in ("queries", "project"):
            setattr(cross, part, self._linear(f"{name}.{part}", torch.float64))
        cross.out = self._linear(f"{name}.out")  # type: ignore[assignment]
        return cross

    def _linear(self, name: str, out: torch.dtype = torch.float32) -> IntegerLinear:
        weight, scale = self._matrix(f"{name}.weight")
        return IntegerLinear(weight, scale, self.weights.pop(f"{name}.bias", None), out)

    def _embedding(self, name: str) -> IntegerEmbedding:
        return IntegerEmbedding(*self._matrix(f"{name}.weight"))

    def _matrix(self, name: str) -> tuple[Tensor, Tensor]:
        return self.weights.pop(name), self.weights.pop(name + SCALE)

    def _exact_info(self, info: TokenInfo | None, embedding: IntegerEmbedding) -> None:
        if info is None:
            return
        if info.kind == "norm":
            info.tabulate(embedding.weight.float() * embedding.scale[:, None])
        elif info.kind == "attention":
            info.quantizer = ExactInfoQuantizer(info.quantizer)

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


class ExactInfoQuantizer(InfoQuantizer):
    """Info in float32, computed in float64: the same in any company."""

    def __init__(self, quantizer: InfoQuantizer) -> None:
        nn.Module.__init__(self)
        self.hidden, self.out = quantizer.hidden.double(), quantizer.out.double()

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T]."""
        return super().forward(x.double()).float()


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
