"""Info of tokens and the biases it gives attention, in NumPy: what `model.info` computes in torch.

Numbers that decide are computed in float64 and shown in float32, so that neither the order of a sum
nor the kind of a function changes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from waitinfo.model.integers.matrix import IntegerEmbedding, PreciseMatrix
from waitinfo.model.integers.packing import Array
from waitinfo.model.native.library import Linear
from waitinfo.text.special import BOS

SMALLEST_WEIGHT = 1e-4  # lower bound of 2 - |difference|
SMALLEST, LARGEST = 0.05, 1.95  # info by norm


class LearnedInfo:
    """Info predicted from a token's embedding and position."""

    def __init__(self, hidden: PreciseMatrix, out: Array) -> None:
        self.hidden, self.weight = hidden, out.astype(np.float64)

    def native(self) -> tuple[Array, Any, Array]:
        """The table, the matrix and the weights that compiled code takes."""
        matrix = self.hidden.matrix.native
        assert matrix is not None
        return None, matrix.linear, self.weight

    def __call__(self, tokens: Array, x: Array) -> Array:
        """[B, T], [B, T, d] -> [B, T]."""
        rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
        hidden = self.hidden(np.tanh(rows).astype(np.float32))
        seen = np.tanh(hidden.astype(np.float64)).astype(np.float32)
        total = (seen * self.weight).sum(-1)
        info = (2 / (1 + np.exp(-total))).astype(np.float32).reshape(tokens.shape)
        return np.where(tokens == BOS, np.float32(1), info)


class TableInfo:
    """Info that is known for each token of the vocabulary."""

    def __init__(self, table: Array) -> None:
        self.table = table.astype(np.float32)

    def native(self) -> tuple[Array, Any, Array]:
        """The table, the matrix and the weights that compiled code takes."""
        return self.table, Linear(), None

    def __call__(self, tokens: Array, x: Array) -> Array:
        """[B, T], [B, T, d] -> [B, T]."""
        return np.where(tokens == BOS, np.float32(1), self.table[tokens])


ArrayInfo = LearnedInfo | TableInfo


def info_by_norm(embedding: IntegerEmbedding, share: Array, scale: Array) -> TableInfo:
    """From the norms of the embedding."""
    matrix = embedding.weight.astype(np.float64) * embedding.scale
    norms = np.sqrt(np.square(matrix).sum(-1))
    return TableInfo((scale * norms / (norms * share).sum()).clip(SMALLEST, LARGEST))


def self_bias(at: Array, keys: int, info: Array | None) -> Array:
    """Bias of causal self-attention, with info on the diagonal: [B, T] -> [B, 1, T, keys]."""
    distance = np.arange(keys) - at[:, None, :, None]
    bias = np.where(distance > 0, np.float32(-np.inf), np.float32(0))
    if info is not None:
        bias = np.where(distance == 0, info[:, None, :, None] - np.float32(1), bias)
    return bias


def whole_bias(lengths: Array, keys: int, info: Array | None) -> Array:
    """Bias of attention to whole sources of some lengths [B]: [B, 1, 1 or T, keys]."""
    hidden = np.arange(keys) >= lengths[:, None]
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None, None]
    if info is not None:
        bias = bias + np.eye(keys, dtype=np.float32) * (info - np.float32(1))[:, None, :, None]
    return bias


def consistency(source_info: Array, target_info: Array) -> Array:
    """log(2 - |difference|): [B, S], [B, T] -> [B, 1, T, S]."""
    difference = np.abs(target_info[:, :, None] - source_info[:, None, :])
    weight = np.maximum(np.float32(2) - difference, np.float32(SMALLEST_WEIGHT))
    return np.log(weight.astype(np.float64)).astype(np.float32)[:, None]


def cross_bias(visible: Array, keys: int, weight: Array | None = None) -> Array:
    """Bias of cross-attention to a visible prefix: [B, T] or [B, H, T] -> [B, 1 or H, T, keys]."""
    if visible.ndim == 2:
        visible = visible[:, None]
    hidden = np.arange(keys) >= visible[..., None]
    return np.where(hidden, np.float32(-np.inf), np.float32(0) if weight is None else weight)
