"""What passes through a model's layers besides states: views, memories, reports.

They hold torch's tensors, or the NumPy arrays of `model.integers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.cache import CacheRows


@dataclass(frozen=True)
class CachePosition:
    """The cache rows and positions that a step writes to."""

    rows: CacheRows
    at: Tensor  # [R, T] new positions of each row
    keys: int  # positions to attend to: one more than the largest position of any row


@dataclass(frozen=True)
class SelfView:
    """The positions that self-attention may attend to.

    `bias` None means plain causal attention, without info. With `position`, the keys are those of
    the cache, including the new ones.
    """

    bias: Tensor | None
    position: CachePosition | None = None


@dataclass(frozen=True)
class Memory:
    """Source keys and values of one decoder layer: [B, H, S, d/H] each."""

    keys: Tensor
    values: Tensor

    def select(self, rows: Tensor) -> Memory:
        return Memory(self.keys[rows], self.values[rows])


@dataclass(frozen=True)
class SourceView:
    """The source prefix that cross-attention may attend to, and the bias computed from it."""

    visible: Tensor  # [B, T] or [B, H, T]: source tokens each query sees
    bias: Tensor  # [B, 1 or H, T, S]
    k: Tensor | None = None  # [B] the latency dial, for attention that depends on it
    read_bias: Tensor | None = None  # [B, 1, T, S] over all tokens read, if heads see fewer
    at: Tensor | None = None  # [B, T] target positions of the queries
    before: Tensor | None = None  # [B, H] layer state after the previous position; None at first
    streaming: bool = False  # hard decisions, as in translation, instead of expectations
    weigh: bool = False  # report the weights of plain attention


@dataclass(frozen=True)
class AttentionReport:
    """Extra outputs of a cross-attention."""

    state: Tensor | None = None  # [B, H, T] source position of each head after each target position
    stopped: Tensor | None = None  # [B, H, T] whether a head stopped within the visible prefix
    alignment: Tensor | None = None  # [B, H, T, S] expected alignment, for a latency loss
    gates: Tensor | None = None  # [B, H, T] weight of each head
    weights: Tensor | None = None  # [B, H, T, S] what plain attention weighs the source with


@dataclass(frozen=True)
class Embedded:
    """Embedded source or target tokens, and their info."""

    x: Tensor  # [B, T, d]
    info: Tensor | None  # [B, T], None in a model without info
    at: Tensor  # [B, T] positions


@dataclass(frozen=True)
class Encoded:
    """An encoded source: keys and values for every decoder layer."""

    memories: list[Memory]
    info: Tensor | None  # [B, S]
    joint: Tensor | None = None  # [B, S, layers, 2, H, d/H]: all memories, if they are one tensor

    @property
    def width(self) -> int:
        """Number S of source positions."""
        return self.memories[0].keys.shape[2]

    def select(self, rows: Tensor) -> Encoded:
        info = None if self.info is None else self.info[rows]
        return Encoded([memory.select(rows) for memory in self.memories], info)


@dataclass(frozen=True)
class Decoded:
    """The output of the decoder."""

    states: Tensor  # [B, T, d]
    extras: list[AttentionReport | None]  # extra outputs of each layer's cross-attention

    def attention(self, last: Sequence[int] | None = None) -> Tensor:
        """[B, L, H, S] what one position weighs the source with, where that is reported.

        last: the position of each row; None: the last column.
        """
        found = [report.weights for report in self.extras if report is not None]
        every: Any = slice(None) if last is None else range(len(last))
        chosen: Any = -1 if last is None else list(last)
        layers = [weights[every, :, chosen] for weights in found if weights is not None]
        if isinstance(layers[0], np.ndarray):
            return np.stack(layers, 1)  # type: ignore[return-value]
        import torch

        return torch.stack(layers, 1)
