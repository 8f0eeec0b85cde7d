"""Sampling of tokens that depends on the sentence and the position, never on the batch.

Every draw is a hash of the seed, the sentence, the copy and the position. So the same sentence gets
the same translations in any batch, on any number of processes, and after resuming.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

# The constants of SplitMix64 (Steele et al., 2014), as signed numbers.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
SHIFTS = (30, 27, 31)


def mix(numbers: Tensor) -> Tensor:
    """A hash of 64-bit integers, each alone; products wrap around."""
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        # A shift of a negative number keeps its sign; the mask makes it the shift of its bits.
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers


def combine(key: Tensor, number: Tensor | int) -> Tensor:
    """The hash of a key and one more number."""
    return mix(key + GOLDEN * (torch.as_tensor(number, device=key.device) + 1))


def uniform(key: Tensor) -> Tensor:
    """Numbers in [0, 1) in float64 from the upper 53 bits of keys."""
    return ((key >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def sentence_keys(seed: int, sentences: Iterable[tuple[int, int]], copies: int) -> Tensor:
    """A key for each copy of each sentence, given as (line, part of the line)."""
    places = torch.from_numpy(np.array(list(sentences), np.int64).reshape(-1, 2))
    key = combine(torch.zeros((), dtype=torch.int64), seed).expand(len(places))
    key = combine(combine(key, places[:, 0]), places[:, 1])
    return combine(key[:, None], torch.arange(copies)[None]).flatten()


class Sampler:
    """Draws tokens from softmax(logits / temperature), among the `top_k` best if it is not 0."""

    def __init__(self, keys: Tensor, temperature: float, top_k: int) -> None:
        self.keys, self.temperature, self.top_k = keys, temperature, top_k

    def __call__(self, logits: Tensor, rows: Tensor, position: int) -> Tensor:
        """Choose from logits [R, V]; `rows` [R] says whose keys to use."""
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tokens = None
        if 0 < self.top_k < logits.shape[1]:
            # In the order of the vocabulary, which does not depend on equal scores.
            tokens = exact.topk(self.top_k).indices.sort(-1).values
            exact = exact.gather(1, tokens)
        shares = (exact.double() / self.temperature).softmax(-1).cumsum(-1)
        drawn = uniform(combine(self.keys[rows], position))[:, None] * shares[:, -1:]
        # The first token whose cumulated share is above the drawn number.
        chosen = (shares <= drawn).sum(-1, keepdim=True).clamp_max(shares.shape[1] - 1)
        return (chosen if tokens is None else tokens.gather(1, chosen))[:, 0]
