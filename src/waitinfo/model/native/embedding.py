"""Embedded tokens and their info, by the kernels."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.native.kernels import Embedding, Library, Linear, address
from waitinfo.model.native.threads import divide, run
from waitinfo.text.special import BOS

if TYPE_CHECKING:
    from waitinfo.model.info import TokenInfo
    from waitinfo.model.integer import IntegerEmbedding


class NativeEmbedding:
    """An embedding of integers, and the info of its tokens.

    It holds addresses of the modules' weights, and so belongs to their model.
    """

    def __init__(self, code: Library, embedding: IntegerEmbedding, info: TokenInfo | None) -> None:
        self.code, self.has_info = code, info is not None
        vocabulary, width = embedding.weight.shape
        table = out = None
        hidden = Linear()
        if info is not None and info.kind == "attention":
            quantizer: Any = info.quantizer
            hidden = quantizer.hidden.matrix.native.linear
            out = quantizer.weight.contiguous().numpy()
        elif info is not None:
            values = info.table if info.kind == "frequency" else torch.ones(vocabulary)
            table = values.float().contiguous().numpy()
        arrays = (embedding.weight.contiguous().numpy(), embedding.scale.flatten().numpy())
        self._kept = (*arrays, table, out)
        self.width = width
        self.embedding = Embedding(
            *(address(array) for array in (*arrays, table, out)),
            hidden, width, BOS, math.sqrt(width),
        )  # fmt: skip

    @staticmethod
    def fits(info: TokenInfo | None) -> bool:
        """Whether the kernels can compute the info: not with a matrix that was stored as floats."""
        hidden: Any = None if info is None or info.kind != "attention" else info.quantizer.hidden
        return hidden is None or hidden.weight_parts == 1

    def __call__(self, tokens: Tensor, at: Tensor, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, T] at positions [B, T] -> [B, T, d], and their info [B, T]."""
        shape = tokens.shape
        flat, places = (part.reshape(-1).numpy().astype(np.int32) for part in (tokens, at))
        x = np.empty((len(flat), self.width), np.float32)
        info = np.empty(len(flat), np.float32) if self.has_info else None
        positions = address(table.numpy())

        def compute(part: slice) -> None:
            some = None if info is None else info[part]
            self.code.call(
                "waitinfo_embed", ctypes.byref(self.embedding), len(flat[part]),
                address(flat[part]), address(places[part]), 0, positions, address(x[part]),
                address(some),
            )  # fmt: skip

        run(divide(len(flat)), compute)
        values = None if info is None else torch.from_numpy(info).view(shape)
        return torch.from_numpy(x).view(*shape, -1), values
