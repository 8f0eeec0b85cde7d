"""Linear maps and embeddings computed with 8-bit integers.

x W^T is computed as s_x s_w (q_x q_w^T): weights have one scale per output, inputs one scale per
row, taken from that row alone. Sums of integers are exact, so a row's result is the same bit for
bit, whichever rows are computed with it and however many. That matters more than it seems: rounding
to 8 bits turns a difference in the last bit into one of a percent now and then, and a translation
would depend on the other streams.
"""

from __future__ import annotations

import numpy as np

from waitinfo.model.integers.packing import LEVELS, Array, Preparation, Rounding
from waitinfo.model.native import NativeMatrix, find_kernels

POSITIVE_LEVELS = 255  # of inputs that are never negative
_EXACT = 1 << 24  # the largest sum of whole numbers that float32 adds up exactly, in any order
_SMALLEST = 1e-30  # the least scale of a row, so that its inverse is a number


class IntegerMatrix:
    """Integers [out, in] with a factor, and perhaps a bias, per output.

    `positive`: inputs are never negative, and have as many levels for their one sign.
    `prepared`: inputs are centered, and some come several times; the bias allows for the center.
    Multiplies by compiled code where there is some, else as float32, in blocks of so few inputs
    that their sums are exact. Both give the same bits.
    """

    def __init__(
        self,
        weight: Array,
        factor: Array,
        bias: Array | None = None,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        self.size, self.outputs = weight.size, len(weight)
        self.factor, self.bias = factor, bias
        levels = POSITIVE_LEVELS if positive else LEVELS
        self.rounding = Rounding(levels, prepared)
        code = find_kernels()
        self.native: NativeMatrix | None = None
        if code is not None:
            self.native = NativeMatrix(code, weight, factor, bias, positive, prepared)
            return
        weight = weight if prepared is None else prepared.widen(weight)
        self.step = _EXACT // (levels * LEVELS)
        starts = range(0, weight.shape[1], self.step)
        self.blocks = [weight[:, i : i + self.step].T.astype(np.float32) for i in starts]

    def multiply(self, rows: Array) -> Array:
        """[R, in] whole numbers in -127 … 127, or 0 … 255 -> [R, out] in float32, without bias."""
        if self.native is not None:
            assert self.bias is None
            return self.native(rows, whole=True)
        if len(self.blocks) == 1:
            return (rows @ self.blocks[0]) * self.factor
        total = np.zeros((len(rows), self.outputs), np.int64)
        for number, block in enumerate(self.blocks):
            start = number * self.step
            total += (rows[:, start : start + self.step] @ block).astype(np.int64)
        return total.astype(np.float32) * self.factor

    def product(self, rows: Array) -> Array:
        """x W^T + b of floats [R, in], each row rounded to integers of its own scale."""
        if self.native is not None:
            return self.native(rows)
        whole, largest = self.rounding(rows, _SMALLEST)
        product = self.multiply(whole) * largest
        return product if self.bias is None else product + self.bias


class IntegerLinear(IntegerMatrix):
    """x W^T + b for integers W [out, in] with a scale per output."""

    def __init__(
        self,
        weight: Array,
        scale: Array,
        bias: Array | None,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        factor = scale.astype(np.float32) / np.float32(POSITIVE_LEVELS if positive else LEVELS)
        bias = None if bias is None else bias.astype(np.float32)
        if prepared is not None:
            shift = prepared.shift(weight, scale)
            bias = shift if bias is None else bias + shift
        super().__init__(weight, factor, bias, positive, prepared)

    def __call__(self, x: Array) -> Array:
        """[..., in] -> [..., out]."""
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        return self.product(rows).reshape(*x.shape[:-1], self.outputs)


class IntegerEmbedding:
    """Rows of integers [V, d] with a scale each; also the output matrix of the decoder."""

    def __init__(
        self,
        weight: Array,
        scale: Array,
        prepared: Preparation | None = None,
        bias: Array | None = None,
    ) -> None:
        """bias: of the output matrix."""
        self.scores = IntegerLinear(weight, scale, bias, prepared=prepared)
        self.weight, self.scale = weight.copy(), scale.astype(np.float32)[:, None]

    def __call__(self, tokens: Array) -> Array:
        """[B, T] -> [B, T, d]."""
        return self.weight[tokens].astype(np.float32) * self.scale[tokens]


class PreciseMatrix:
    """The product with a matrix [out, in], of inputs in -1 … 1, about as precise as in float32.

    Inputs, and weights that are not integers, are sums of parts of 8 bits; products of parts are
    exact.
    """

    PARTS = 3
    STEP = 2 * LEVELS  # from one part to the next

    def __init__(self, weight: Array, scale: Array | None = None) -> None:
        if scale is not None:
            weights, scales = [weight], [scale.astype(np.float32)]
        else:
            weight = weight.astype(np.float32)
            scale = np.maximum(np.abs(weight).max(1), np.float32(_SMALLEST))
            weights = [part.astype(np.int8) for part in self._split(weight / scale[:, None])]
            scales = [scale / np.float32(LEVELS) / self.STEP**i for i in range(len(weights))]
        self.outputs, self.weight_parts = len(weight), len(weights)
        factors = np.concatenate(scales).astype(np.float32) / np.float32(LEVELS)
        self.matrix = IntegerMatrix(np.concatenate(weights), factors)

    def _split(self, x: Array) -> list[Array]:
        """x in -1 … 1 as whole numbers p_0, p_1, …: LEVELS x is the sum of p_i / STEP^i."""
        rest = x * LEVELS
        parts = []
        for _ in range(self.PARTS):
            parts.append(rest.round())
            rest = (rest - parts[-1]) * self.STEP
        return parts

    def __call__(self, x: Array) -> Array:
        """[R, in] -> [R, out]."""
        products = self.matrix.multiply(np.concatenate(self._split(x)))
        total: Array = None
        for i, part in reversed(list(enumerate(np.split(products, self.PARTS)))):  # smallest first
            for piece in reversed(np.split(part, self.weight_parts, 1)):
                scaled = piece if i == 0 else piece / np.float32(self.STEP**i)
                total = scaled if total is None else total + scaled
        return total
