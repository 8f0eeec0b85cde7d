"""Linear maps and embeddings computed with 8-bit integers.

x W^T is computed as s_x s_w (q_x q_w^T): weights have one scale per output, inputs one scale per
row, taken from that row alone. Sums of integers are exact, so a row's result is the same bit for
bit, whichever rows are computed with it and however many. That matters more than it seems: rounding
to 8 bits turns a difference in the last bit into one of a percent now and then, and a translation
would depend on the other streams.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from waitinfo.model.integers.packing import LEVELS, Preparation, Rounding
from waitinfo.model.native import NativeMatrix, find_kernels

POSITIVE_LEVELS = 255  # of inputs that are never negative
EXACT_INPUTS = 512  # products of integers that float32 adds up exactly: 512 * 255 * 127 < 2^24
_SMALLEST = 1e-30  # the least scale of a row, so that its inverse is a number


class IntegerMatrix(nn.Module):
    """Integers [out, in] with a factor, and perhaps a bias, per output.

    `positive`: inputs are never negative, and have as many levels for their one sign.
    `prepared`: inputs are centered, and some come several times; the bias allows for the center.
    Multiplies by compiled code where there is some, else by the fastest way that torch has for this
    CPU. All of them give the same bits.
    """

    def __init__(
        self,
        weight: Tensor,
        factor: Tensor,
        bias: Tensor | None = None,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        super().__init__()
        self.positive = positive
        self.levels = torch.tensor(float(POSITIVE_LEVELS if positive else LEVELS))
        self.size = weight.numel()
        self.rounding = None if prepared is None else Rounding(prepared)
        self.weight: Tensor
        self.factor: Tensor
        self.bias: Tensor | None
        self.register_buffer("factor", factor)
        self.register_buffer("bias", bias)
        code = find_kernels()
        self.native = (
            None if code is None else NativeMatrix(code, weight, factor, bias, positive, prepared)
        )
        self._packed = None
        if self.native is None and prepared is not None:
            weight = prepared.widen(weight)
        if self.native is None and packed_product_works():
            self._packed = _pack(weight, factor)
        # Native and packed weights are copies.
        copied = self.native is not None or self._packed is not None
        self.register_buffer("weight", None if copied else weight)

    def multiply(self, rows: Tensor) -> Tensor:
        """[R, in] whole numbers in -127 … 127, or 0 … 255 -> [R, out] in float32, without bias."""
        if self.native is not None:
            assert self.bias is None
            return self.native(rows, whole=True)
        if self._packed is not None:
            return _multiply_packed(rows, self._packed, 0 if self.positive else LEVELS + 1)
        if integer_product_works():
            return _multiply_plain(rows, self.weight, self.positive).mul_(self.factor)
        return _multiply_as_floats(rows, self.weight).mul_(self.factor)

    def forward(self, rows: Tensor) -> Tensor:
        """x W^T + b of floats [R, in], each row rounded to integers of its own scale."""
        if self.native is not None:
            return self.native(rows)
        if self.rounding is not None:
            whole, largest = self.rounding(rows, _SMALLEST)
        else:
            largest = rows.abs().amax(-1, True).clamp_min_(_SMALLEST)
            whole = (rows * torch.div(self.levels, largest)).round_()
        product = self.multiply(whole).mul_(largest)
        return product if self.bias is None else product.add_(self.bias)


class IntegerLinear(IntegerMatrix):
    """x W^T + b for integers W [out, in] with a scale per output."""

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        out: torch.dtype = torch.float32,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        factor = scale.float() / (POSITIVE_LEVELS if positive else LEVELS)
        bias = None if bias is None else bias.float()
        if prepared is not None:
            shift = prepared.shift(weight, scale)
            bias = shift if bias is None else bias + shift
        super().__init__(weight, factor, bias, positive, prepared)
        self.out_dtype = out

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = x.reshape(-1, x.shape[-1]).float()
        return super().forward(rows).to(self.out_dtype).view(*x.shape[:-1], -1)


class IntegerEmbedding(nn.Module):
    """Rows of integers [V, d] with a scale each; also the output matrix of the decoder."""

    def __init__(self, weight: Tensor, scale: Tensor, prepared: Preparation | None = None) -> None:
        super().__init__()
        self.scores = IntegerLinear(weight, scale, None, prepared=prepared)
        self.weight: Tensor
        self.scale: Tensor
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.float()[:, None])

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, d]."""
        flat = tokens.flatten()
        rows = self.weight.index_select(0, flat).float()
        return rows.mul_(self.scale.index_select(0, flat)).view(*tokens.shape, -1)


class PreciseMatrix(nn.Module):
    """The product with a matrix [out, in], of inputs in -1 … 1, about as precise as in float32.

    Inputs, and weights that are not integers, are sums of parts of 8 bits; products of parts are
    exact.
    """

    PARTS = 3
    STEP = 2 * LEVELS  # from one part to the next

    def __init__(self, weight: Tensor, scale: Tensor | None = None) -> None:
        super().__init__()
        if scale is not None:
            weights, scales = [weight], [scale.float()]
        else:
            weight = weight.float()
            scale = weight.abs().amax(1).clamp_min(_SMALLEST)
            weights = [p.to(torch.int8) for p in self._split(weight / scale[:, None])]
            scales = [scale / LEVELS / self.STEP**i for i in range(len(weights))]
        self.outputs, self.weight_parts = len(weight), len(weights)
        self.matrix = IntegerMatrix(torch.cat(weights), torch.cat(scales) / LEVELS)

    def _split(self, x: Tensor) -> list[Tensor]:
        """x in -1 … 1 as whole numbers p_0, p_1, …: LEVELS x is the sum of p_i / STEP^i."""
        rest = x * LEVELS
        parts = []
        for _ in range(self.PARTS):
            parts.append(rest.round())
            rest = (rest - parts[-1]).mul_(self.STEP)
        return parts

    def forward(self, x: Tensor) -> Tensor:
        """[R, in] -> [R, out]."""
        products = self.matrix.multiply(torch.cat(self._split(x)))
        total: Tensor | None = None
        for i, part in reversed(list(enumerate(products.chunk(self.PARTS)))):  # smallest first
            for piece in reversed(part.chunk(self.weight_parts, 1)):
                scaled = piece if i == 0 else piece / self.STEP**i
                total = scaled if total is None else total + scaled
        assert total is not None
        return total


# Products of rows [R, in], integers held as floats, with integers [out, in]


def _pack(weight: Tensor, factor: Tensor) -> Any:
    """Weights in the layout of the packed product, with their factors."""
    engine = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a change of torch's quantization tools
        try:
            torch.backends.quantized.engine = "fbgemm"
            zeros = torch.zeros(len(factor), dtype=torch.long)
            matrix = torch._make_per_channel_quantized_tensor(weight, factor.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(matrix, None)
        finally:
            torch.backends.quantized.engine = engine


def _multiply_packed(rows: Tensor, packed: Any, zero: int) -> Tensor:
    """Multiplies with the factors in the same operation. Inputs are stored plus `zero`."""
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    return multiply(rows, 1.0, zero, packed)


def _multiply_plain(rows: Tensor, weight: Tensor, positive: bool) -> Tensor:
    if not positive:
        return torch._int_mm(rows.to(torch.int8), weight.t()).float()
    product = torch._int_mm((rows - 128).to(torch.int8), weight.t())
    return (product + 128 * weight.sum(1, dtype=torch.int32)).float()


def _multiply_as_floats(rows: Tensor, weight: Tensor) -> Tensor:
    """By float32, which is as exact for a limited number of inputs."""
    parts = zip(rows.split(EXACT_INPUTS, 1), weight.split(EXACT_INPUTS, 1), strict=True)
    products = [(part @ matrix.float().t()).to(torch.int32) for part, matrix in parts]
    return torch.stack(products).sum(0, dtype=torch.int32).float()


@lru_cache(maxsize=1)
def integer_product_works() -> bool:
    """Whether torch multiplies integers on this CPU, and exactly: some instructions saturate."""

    return _is_exact(lambda rows, weight: _multiply_plain(rows, weight, False))


@lru_cache(maxsize=1)
def packed_product_works() -> bool:
    """Whether torch has the packed product for this CPU, and it is exact."""

    def multiply(rows: Tensor, weight: Tensor) -> Tensor:
        return _multiply_packed(rows, _pack(weight, torch.ones(len(weight))), LEVELS + 1)

    return _is_exact(multiply)


def _is_exact(multiply: Any) -> bool:
    draw = torch.Generator().manual_seed(0)
    try:
        for rows in (1, 3, 40):
            a = torch.randint(-LEVELS, LEVELS + 1, (rows, 2048), generator=draw)
            b = torch.randint(-LEVELS, LEVELS + 1, (64, 2048), generator=draw, dtype=torch.int8)
            a[0], b[0] = LEVELS, LEVELS  # the largest sum
            if not torch.equal(multiply(a.float(), b), (a @ b.long().t()).float()):
                return False
    except (AttributeError, RuntimeError):
        return False
    return True
