"""Integer matrices in the order that the kernels read them in."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from waitinfo.model.native.kernels import Library, Linear, address
from waitinfo.model.native.memory import weight_memory
from waitinfo.model.native.threads import divide, run

if TYPE_CHECKING:
    from waitinfo.model.inputs import Preparation


class NativeMatrix:
    """Integers [out, in] with a factor and a bias per output; see `IntegerMatrix`."""

    def __init__(
        self,
        code: Library,
        weight: Tensor,
        factor: Tensor,
        bias: Tensor | None,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        self.code = code
        outputs, inputs = weight.shape
        self._prepared = [] if prepared is None else _arrays(prepared)
        repeated = None if prepared is None else self._prepared[2]
        repeats = 0 if repeated is None else len(repeated)
        size = code.code.waitinfo_packed_size(outputs, inputs + repeats)
        self.weights = weight_memory(size)
        # An address keeps no array alive: these are copies where tensors are not contiguous.
        plain, *scaling = (
            None if part is None else part.contiguous().numpy() for part in (weight, factor, bias)
        )
        code.code.waitinfo_pack(
            address(plain), outputs, inputs, address(repeated), repeats, int(positive),
            *map(address, scaling), address(self.weights),
        )  # fmt: skip
        self.linear = Linear(
            self.weights.ctypes.data, inputs, outputs, -(-(inputs + repeats) // 4), positive,
            *(array.ctypes.data for array in self._prepared),
        )  # fmt: skip
        self.linear.repeats = repeats

    def __call__(self, x: Tensor, whole: bool = False) -> Tensor:
        """x W^T + b for rows x [R, in]; `whole`: of whole numbers, which are not scaled."""
        rows = x.contiguous().numpy()
        result = np.empty((len(rows), self.linear.outputs), np.float32)
        pointer = ctypes.byref(self.linear)

        def compute(part: slice) -> None:
            self.code.call(
                "waitinfo_linear", pointer, len(rows[part]), address(rows[part]),
                address(result[part]), int(whole),
            )  # fmt: skip

        run(divide(len(rows)), compute)
        return torch.from_numpy(result)

    def best(
        self, rows: NDArray[Any], never: NDArray[np.int32], scores: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32] | None]:
        """The best output of every row [R, in] but those in `never`, its score, and all scores."""
        count = len(rows)
        best, value = np.empty(count, np.int32), np.empty(count, np.float32)
        everything = np.empty((count, self.linear.outputs), np.float32) if scores else None

        def compute(part: slice) -> None:
            numbers = (best, value, everything)
            some = [address(None if array is None else array[part]) for array in numbers]
            self.code.call(
                "waitinfo_best", ctypes.byref(self.linear), len(rows[part]), address(rows[part]),
                address(never), len(never), *some,
            )  # fmt: skip

        run(divide(count), compute)
        return best.astype(np.int64), value, everything


def _arrays(prepared: Preparation) -> list[NDArray[Any]]:
    """In the order of `Linear`."""
    tensors = (prepared.center, prepared.share, prepared.repeated, prepared.before)
    return [tensor.contiguous().numpy() for tensor in tensors]
