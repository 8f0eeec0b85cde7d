"""Linear maps and embeddings computed with 8-bit integers.

x W^T is computed as s_x s_w (q_x q_w^T): weights have one scale per output, inputs one scale per
row, taken from that row alone. Sums of integers are exact, so a row's result is the same, bit for
bit, whichever rows are computed with it and however many. That matters more than it seems: rounding
to 8 bits turns a difference in the last bit into one of a percent now and then, and a translation
would depend on its company.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

LEVELS = 127
EXACT_INPUTS = 1024  # products of integers that float32 adds up exactly: 1024 * 127 * 127 < 2^24


class IntegerLinear(nn.Module):
    """x W^T + b for integers W [out, in] with a scale per output."""

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor | None, out: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.weight: Tensor
        self.factor: Tensor
        self.bias: Tensor | None
        self.out_dtype = out
        self.register_buffer("weight", weight)
        self.register_buffer("factor", scale.float() / LEVELS)
        self.register_buffer("bias", None if bias is None else bias.float())

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = x.reshape(-1, x.shape[-1]).float()
        largest = rows.abs().amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)
        integers = (rows * (LEVELS / largest)).round_()
        product = multiply(integers, self.weight) * largest
        if self.bias is None:
            product = product * self.factor
        else:
            product = torch.addcmul(self.bias, product, self.factor)
        return product.to(self.out_dtype).view(*x.shape[:-1], -1)


class IntegerEmbedding(nn.Module):
    """Rows of integers [V, d] with a scale each; also the output matrix of the decoder."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.scores = IntegerLinear(weight, scale, None)
        self.scale: Tensor
        self.register_buffer("scale", scale.float())

    @property
    def weight(self) -> Tensor:
        return self.scores.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, d]."""
        return self.weight[tokens].float() * self.scale[tokens][..., None]


def multiply(rows: Tensor, weight: Tensor) -> Tensor:
    """The exact product of rows of integers [R, in], held as floats, with integers [out, in].

    By integer instructions where torch has them for this CPU, else by float32, which is as exact.
    """
    if integer_product_works():
        return torch._int_mm(rows.to(torch.int8), weight.t())
    parts = zip(rows.split(EXACT_INPUTS, 1), weight.split(EXACT_INPUTS, 1), strict=True)
    products = [part @ matrix.float().t() for part, matrix in parts]
    return sum(product.to(torch.int32) for product in products[1:]) + products[0].to(torch.int32)


@lru_cache(maxsize=1)
def integer_product_works() -> bool:
    """Whether torch multiplies integers on this CPU, and exactly: some instructions saturate."""
    draw = torch.Generator().manual_seed(0)
    try:
        for rows in (1, 3, 40):
            a = torch.randint(-LEVELS, LEVELS + 1, (rows, 2048), generator=draw, dtype=torch.int8)
            b = torch.randint(-LEVELS, LEVELS + 1, (64, 2048), generator=draw, dtype=torch.int8)
            a[0], b[0] = LEVELS, LEVELS  # the largest sum
            if not torch.equal(torch._int_mm(a, b.t()).long(), a.long() @ b.long().t()):
                return False
    except (AttributeError, RuntimeError):
        return False
    return True
