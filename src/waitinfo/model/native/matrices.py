"""Integer matrices in the order that the kernels read them in."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from waitinfo.model.native.kernels import BLOCK, Library, Linear, address
from waitinfo.model.native.memory import weight_memory
from waitinfo.model.native.threads import divide, run

if TYPE_CHECKING:
    from waitinfo.model.inputs import Preparation


class NativeMatrix:
    """Integers [out, in] with a factor and a bias per output; see `IntegerMatrix`.

    Weights have columns for the repetitions of prepared inputs, too.
    """

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
        outputs, columns = weight.shape
        groups, blocks = -(-columns // 4), -(-outputs // BLOCK)
        self.weights = weight_memory(blocks * groups * BLOCK * 4)
        self.shift = np.empty(outputs, np.int32)
        plain = weight.contiguous().numpy()
        code.code.waitinfo_pack(
            address(plain),
            outputs,
            columns,
            int(positive),
            address(self.weights),
            address(self.shift),
        )
        self.factor = factor.contiguous().numpy()
        self.bias = np.zeros(outputs, np.float32) if bias is None else bias.contiguous().numpy()
        arrays = (self.weights, self.shift, self.factor, self.bias)
        inputs = columns if prepared is None else len(prepared.center)
        self.linear = Linear(
            *(array.ctypes.data for array in arrays), inputs, outputs, groups, positive
        )
        if prepared is not None:
            tensors = (prepared.center, prepared.share, prepared.repeated, prepared.before)
            self._prepared = [tensor.contiguous().numpy() for tensor in tensors]
            for name, array in zip(
                ("center", "share", "repeated", "before"), self._prepared, strict=True
            ):
                setattr(self.linear, name, array.ctypes.data)
            self.linear.repeats = columns - inputs

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
        best, value = np.empty(count, np.int64), np.empty(count, np.float32)
        everything = np.empty((count, self.linear.outputs), np.float32) if scores else None

        def compute(part: slice) -> None:
            numbers = (best, value, everything)
            some = [address(None if array is None else array[part]) for array in numbers]
            self.code.call(
                "waitinfo_best", ctypes.byref(self.linear), len(rows[part]), address(rows[part]),
                address(never), len(never), *some,
            )  # fmt: skip

        run(divide(count), compute)
        return best, value, everything
