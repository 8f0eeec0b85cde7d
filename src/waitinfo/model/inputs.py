"""Inputs of integer products, prepared so that rounding them to 8 bits loses less.

A row of inputs is rounded in steps of its largest number. In a trained model the same few inputs
are the largest in nearly every row, and make the steps of all others coarse. So the mean of every
input is subtracted before rounding, which the bias makes up for, and the largest inputs come
several times: what does not fit into one byte goes to the next, which has the same weights. Both
change no weight, and a model that computes with floats ignores them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CENTER, REPEATED = ":center", ":repeated"  # suffixes of a matrix's name
LEVELS = 127


@dataclass(frozen=True)
class Preparation:
    """What is done to the inputs of one product."""

    center: Tensor  # [in] subtracted; float32
    repeated: Tensor  # [E] inputs that come again, behind the others; int32

    def __post_init__(self) -> None:
        inputs, repeats = self.center.numel(), self.repeated.numel()
        if self.center.dim() != 1 or self.repeated.dim() != 1 or repeats > inputs:
            raise ValueError(f"{inputs} inputs cannot have {repeats} repetitions")
        if repeats and not 0 <= int(self.repeated.min()) <= int(self.repeated.max()) < inputs:
            raise ValueError(f"a repeated input is not one of {inputs}")

    @property
    def share(self) -> Tensor:
        """[in] 1 / how often each input comes."""
        return 1 / (1 + torch.bincount(self.repeated.long(), minlength=len(self.center))).float()

    @property
    def before(self) -> Tensor:
        """[E] how much of an input the bytes before this repetition hold."""
        earlier = torch.tril(self.repeated[:, None] == self.repeated).sum(1)
        return LEVELS * earlier.to(torch.int32)

    def widen(self, weight: Tensor) -> Tensor:
        """Weights [out, in] for the inputs and their repetitions."""
        return torch.cat([weight, weight.index_select(1, self.repeated.long())], 1)

    def shift(self, weight: Tensor, scale: Tensor) -> Tensor:
        """What the bias must add for the center."""
        if weight.shape[1] != len(self.center):
            raise ValueError(f"{weight.shape[1]} inputs, but {len(self.center)} are prepared")
        # Exact in any order, since `measure_inputs` leaves the center few bits. In small parts,
        # because the embedding is large in float64.
        center = self.center.double()
        products = torch.cat([(part * center).sum(1) for part in weight.split(64)])
        return (products * scale.double()).float()


class Rounding:
    """Rounds rows of prepared inputs, by torch."""

    def __init__(self, prepared: Preparation) -> None:
        self.center, self.share = prepared.center, prepared.share
        self.repeated, self.before = prepared.repeated.long(), prepared.before.float()
        self.levels = torch.tensor(float(LEVELS))

    def __call__(self, rows: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
        """[R, in] -> whole numbers [R, in + E] in -127 … 127, and the largest number [R, 1]."""
        rows = rows - self.center
        largest = (rows * self.share).abs_().amax(-1, True).clamp_min_(smallest)
        whole = rows.mul_(torch.div(self.levels, largest)).round_()  # `/` would round twice
        again = whole.index_select(1, self.repeated)
        again = again - again.clamp(-self.before, self.before)
        return torch.cat([whole, again], 1).clamp_(-LEVELS, LEVELS), largest
