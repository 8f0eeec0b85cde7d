"""Models packed as 8-bit integers: weights, and how the inputs of products are prepared.

Weights have one scale per row: w ≈ q · s with q in -127 … 127 and s = max |w| / 127. That is a
quarter of the size. A model computes with the integers (`conversion`), or with the dequantized
weights in any precision.

A row of inputs is rounded in steps of its largest number. In a trained model the same few inputs
are the largest in nearly every row, and make the steps of all others coarse. So the mean of every
input is subtracted before rounding, which the bias makes up for, and the largest inputs come
several times: what does not fit into one byte goes to the next, which has the same weights. Both
change no weight, and a model that computes with floats ignores them. `measuring` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any  # a NumPy array
Stored = Mapping[str, Array]

# Weights

SCALE = ":scale"  # suffix of a matrix's name
CENTER, REPEATED = ":center", ":repeated"  # of what is done to its inputs
_BESIDE = (SCALE, CENTER, REPEATED)
_TINY = np.finfo(np.float32).tiny


def quantize(weights: Stored) -> dict[str, Array]:
    """Store every matrix as integers and one scale per row; keep other arrays unchanged.

    Matrices that are integers already stay as they are.
    """
    stored: dict[str, Array] = {}
    for name, array in weights.items():
        if array.ndim != 2 or array.dtype == np.int8:
            stored[name] = array
            continue
        exact = array.astype(np.float32)
        scale = np.maximum(np.abs(exact).max(1) / np.float32(127), _TINY)
        stored[name] = (exact / scale[:, None]).round().clip(-127, 127).astype(np.int8)
        stored[name + SCALE] = scale
    return stored


def dequantize(stored: Stored) -> dict[str, Array]:
    """Restore float32 matrices; arrays without a scale stay unchanged."""
    weights = {}
    for name, array in stored.items():
        if name.endswith(_BESIDE):
            continue
        scale = stored.get(name + SCALE)
        weights[name] = array if scale is None else array.astype(np.float32) * scale[:, None]
    return weights


# Inputs

LEVELS = 127


@dataclass(frozen=True)
class Preparation:
    """What is done to the inputs of one product."""

    center: NDArray[np.float32]  # [in] subtracted
    repeated: NDArray[np.int32]  # [E] inputs that come again, behind the others

    def __post_init__(self) -> None:
        inputs, repeats = self.center.size, self.repeated.size
        if self.center.ndim != 1 or self.repeated.ndim != 1 or repeats > inputs:
            raise ValueError(f"{inputs} inputs cannot have {repeats} repetitions")
        if repeats and not 0 <= int(self.repeated.min()) <= int(self.repeated.max()) < inputs:
            raise ValueError(f"a repeated input is not one of {inputs}")

    @property
    def share(self) -> NDArray[np.float32]:
        """[in] 1 / how often each input comes."""
        times = 1 + np.bincount(self.repeated, minlength=len(self.center))
        return np.float32(1) / times.astype(np.float32)

    @property
    def before(self) -> NDArray[np.int32]:
        """[E] how much of an input the bytes before this repetition hold."""
        earlier = np.tril(self.repeated[:, None] == self.repeated).sum(1)
        return (LEVELS * earlier).astype(np.int32)

    def widen(self, weight: Array) -> Array:
        """Weights [out, in] for the inputs and their repetitions."""
        return np.concatenate([weight, weight[:, self.repeated]], 1)

    def shift(self, weight: Array, scale: Array) -> NDArray[np.float32]:
        """What the bias must add for the center."""
        if weight.shape[1] != len(self.center):
            raise ValueError(f"{weight.shape[1]} inputs, but {len(self.center)} are prepared")
        # Exact in any order, since `measure_inputs` leaves the center few bits. In parts, because
        # the embedding is large in float64.
        center, sums = self.center.astype(np.float64), np.empty(len(weight))
        for start in range(0, len(weight), 1024):
            part = slice(start, start + 1024)
            sums[part] = weight[part].astype(np.float64) @ center
        return (sums * scale.astype(np.float64)).astype(np.float32)


class Rounding:
    """Rounds rows of inputs to whole numbers, each row in steps of its largest number."""

    def __init__(self, levels: int, prepared: Preparation | None = None) -> None:
        self.levels, self.prepared = np.float32(levels), prepared
        if prepared is not None:
            self.center, self.share = prepared.center, prepared.share
            self.repeated, self.before = prepared.repeated, prepared.before.astype(np.float32)

    def __call__(self, rows: Array, smallest: float) -> tuple[Array, Array]:
        """[R, in] -> whole numbers [R, in + E] up to the levels, and the largest number [R, 1]."""
        if self.prepared is None:
            largest = np.maximum(np.abs(rows).max(-1, keepdims=True), np.float32(smallest))
            return (rows * (self.levels / largest)).round(), largest
        rows = rows - self.center
        largest = np.abs(rows * self.share).max(-1, keepdims=True)
        largest = np.maximum(largest, np.float32(smallest))
        whole = (rows * (self.levels / largest)).round()  # `/` would round twice
        again = whole[:, self.repeated]
        again = again - again.clip(-self.before, self.before)
        both = np.concatenate([whole, again], 1)
        return both.clip(-self.levels, self.levels), largest
