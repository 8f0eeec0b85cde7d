"""A batch: sentence pairs as padded tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from waitinfo.text.special import PAD

MULTIPLE = 4  # padded lengths are multiples of this: fewer shapes at the cost of some padding


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as padded tensors. n and m include end-of-sentence; S and T are padded.

    Numbers that a training step needs on the host (`pairs`, `tokens`, `longest_source`, `lengths`)
    are plain ints, so that reading them never waits for the device.
    """

    source: Tensor  # [B, S] x_1 … x_n, x_n = EOS
    source_lengths: Tensor  # [B] n
    target_in: Tensor  # [B, T] BOS, y_1 … y_m-1
    target_out: Tensor  # [B, T] y_1 … y_m, y_m = EOS
    target_lengths: Tensor  # [B] m
    pairs: int
    tokens: int  # target tokens, including end-of-sentence
    longest_source: int
    lengths: tuple[tuple[int, int], ...]  # (n, m) of each pair

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors: dict[str, Any] = {
            n: change(t) for n, t in vars(self).items() if isinstance(t, Tensor)
        }
        return replace(self, **tensors)


def round_up(number: Any) -> Any:
    """Round a number or an array up to a multiple of MULTIPLE."""
    return -(-number // MULTIPLE) * MULTIPLE


def pad_rows(
    flat: np.ndarray, lengths: npt.NDArray[np.int64], first: int | None, last: int | None
) -> Tensor:
    """Pad rows of tokens on the right, with an optional first and last token: [B, width]."""
    before = int(first is not None)
    width = round_up(int(lengths.max()) + before + int(last is not None))
    rows = np.full((len(lengths), width), PAD, np.int64)
    columns = np.arange(width)
    inside = (columns >= before) & (columns < lengths[:, None] + before)
    rows[inside] = flat
    if first is not None:
        rows[:, 0] = first
    if last is not None:
        rows[np.arange(len(lengths)), lengths + before] = last
    return torch.from_numpy(rows)
