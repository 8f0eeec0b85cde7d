"""Puts fused kernels in the place of a model's slower parts, for training on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model import kernels
from waitinfo.model.attention import CrossAttention, SelfAttention, attend, self_attend
from waitinfo.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    linear_relu,
)
from waitinfo.model.transformer import Transformer
from waitinfo.systems.networks.monotonic_heads import (
    MonotonicAttention,
    expected_alignment,
    lookback,
)

HEAD_WIDTHS = (16, 32, 64, 128)
HALF = (torch.bfloat16, torch.float16)  # a GPU would round products of float32 to TF32


def fuse(model: Transformer, dtype: torch.dtype = torch.bfloat16) -> Callable[[], None]:
    """Let a model train with fused kernels, under autocast to half precision.

    Parameters and their names stay the same: optimizers and checkpoints notice nothing. Returns
    what to call before each loss.
    """
    before_loss = partial(_narrow_all, _replace_linears(model), dtype)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.attend = _self_attend
        elif isinstance(module, CrossAttention):
            module.attend = _attend
            if isinstance(module, MonotonicAttention):
                module.align, module.look_back = _align, _look_back
        elif isinstance(module, FeedForward) and module.activate is linear_relu:
            module.activate = _linear_relu
        if isinstance(module, EncoderLayer | DecoderLayer):
            if isinstance(module.attention, SelfAttention):
                _join(module.around_attention, module.attention.out)
            _join(module.around_feed_forward, module.feed_forward.out)
        if isinstance(module, DecoderLayer):
            _join(module.around_cross, module.cross.out)
    model.token_terms = kernels.token_terms
    return before_loss


class HalfLinear(nn.Linear):
    """A linear map by copies of its parameters in half precision, made before each loss."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # reuse the parameters instead of creating them
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name, parameter in linear._parameters.items():
            self.register_parameter(name, parameter)
        self.train(linear.training)
        self.copies: dict[str, Tensor] = {}  # by name of the parameter
        self.adds_bias = True  # otherwise the next operation adds it

    def forward(self, x: Tensor) -> Tensor:
        weight = self.copies["weight"]
        bias = self.copies.get("bias") if self.adds_bias else None
        return F.linear(x.to(weight.dtype), weight, bias)


def _replace_linears(model: nn.Module) -> list[HalfLinear]:
    """Replace every linear map of a model by a HalfLinear."""
    replaced = []
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                replaced.append(HalfLinear(child))
                setattr(module, name, replaced[-1])
    return replaced


def _join(residual: Residual, last: nn.Linear) -> None:
    """Let a residual add the bias of its sublayer's last linear map, norms after sublayers only."""
    if not residual.before:
        assert isinstance(last, HalfLinear)
        last.adds_bias = False
        residual.add_norm = partial(_add_norm, last)


class _Narrow(torch.autograd.Function):
    """All weights in half precision at once: one kernel, and one for their gradients."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        narrow = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(narrow, list(weights))
        ctx.set_materialize_grads(False)  # not every weight is used in half precision
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(narrow)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        given = [gradient for gradient in gradients if gradient is not None]
        wide = [
            None if gradient is None else gradient.new_empty(gradient.shape, dtype=dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        torch._foreach_copy_([gradient for gradient in wide if gradient is not None], given)
        return None, *wide


def _narrow_all(linears: list[HalfLinear], dtype: torch.dtype) -> None:
    """Give every linear map its copies for the loss to come."""
    for linear in linears:
        # Copies of the previous loss hold its graph, which belongs to another CUDA stream. A
        # recorded loss must not reuse them.
        linear.copies.clear()
    names = [(linear, name) for linear in linears for name, _ in linear.named_parameters()]
    weights = [getattr(linear, name) for linear, name in names]
    for (linear, name), narrow in zip(names, _Narrow.apply(dtype, *weights), strict=True):
        linear.copies[name] = narrow


def _fits(keys: int, width: int, dropout: float, *tensors: Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    return (
        keys <= kernels.MOST_KEYS
        and width in HEAD_WIDTHS
        and not dropout
        and (given[0].dtype in HALF or not given[0].is_cuda)
        and all(tensor.stride(-1) == 1 for tensor in given)
    )


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    if not _fits(keys.shape[2], queries.shape[3], dropout, queries, keys, values, bias):
        return attend(queries, keys, values, bias, causal, dropout)
    q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))
    return kernels.attention(q, k, v, bias, causal).transpose(1, 2)


def _self_attend(projected: Tensor, heads: int, bias: Tensor | None, dropout: float) -> Tensor:
    packed = projected.unflatten(-1, (3, heads, -1))
    if not _fits(packed.shape[1], packed.shape[-1], dropout, packed, bias):
        return self_attend(projected, heads, bias, dropout)
    return kernels.self_attention(packed, bias, bias is None).flatten(2)


def _align(p: Tensor) -> Tensor:
    return kernels.expected_alignment(p) if _short(p) else expected_alignment(p)


def _look_back(alpha: Tensor, energies: Tensor) -> Tensor:
    return (kernels.lookback if _short(alpha) else lookback)(alpha, energies)


def _short(p: Tensor) -> bool:
    return p.shape[-1] <= kernels.MOST_SOURCES and p.dtype == torch.float32


def _linear_relu(x: Tensor, linear: nn.Linear) -> Tensor:
    assert isinstance(linear, HalfLinear)
    weight, bias = linear.copies["weight"], linear.copies["bias"]
    return kernels.linear_relu(x.to(weight.dtype), weight, bias)


def _add_norm(last: nn.Linear, x: Tensor, y: Tensor, norm: nn.LayerNorm, dropout: float) -> Tensor:
    return kernels.add_norm(x, y, last.bias, norm.weight, norm.bias, dropout, norm.eps)
