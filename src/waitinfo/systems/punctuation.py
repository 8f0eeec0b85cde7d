"""Punctuation: read up to a punctuation mark or k words, then write as far as was read.

A chunk of the source ends with a punctuation mark, or after k words, which is known once the next
word begins. After it, target tokens are written until there are as many as source tokens up to the
end of the chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from waitinfo.systems.interface import Dial, PolicyState, for_arrays, largest, lookup
from waitinfo.systems.policy import Policy
from waitinfo.text.tokenizer import SPACE, Tokenizer, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

MARKS = frozenset(".,;:!?…–—。，、；：！？।؟،؛")
MOST = 1 << 18  # token ids of the tables without a vocabulary


class Punctuation(Policy):
    """Until `prepare` is called, no token is punctuation and each is a word."""

    name = "punctuation"
    summary = "writes at punctuation, or after k words; any plain model"
    dial = Dial("k", 5, help="words after which it writes without punctuation")
    asks = ("source",)
    marks, starts = np.zeros(MOST, bool), np.ones(MOST, bool)  # [V] by token id

    def prepare(self, vocabulary: Vocabulary) -> None:
        super().prepare(vocabulary)
        source = vocabulary.source
        tokens = range(len(source))
        self.marks = np.array([is_mark(source, token) for token in tokens])
        self.starts = np.array([source.starts_word(token) for token in tokens])

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.written < self.chunk_end(state))

    def chunk_end(self, state: PolicyState) -> Tensor:
        """[B] source tokens up to the end of the last chunk that is complete."""
        place = (state.source * 0 + 1).cumsum(-1)  # [B, S] 1, 2, …
        read = place <= state.read[:, None]
        last = largest(place * (lookup(self.marks, state.source) & read))
        begins = lookup(self.starts, state.source) & read & (place > last[:, None])
        before = begins.cumsum(-1) - 1  # words of the chunks after the last mark
        full = begins & (before > 0) & (before % state.k[:, None] == 0)
        end = largest(full * (place - 1))
        return end + (last - end) * (last > end)


def is_mark(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token is punctuation that ends a clause."""
    return bool(text := tokenizer.piece(token).removeprefix(SPACE)) and set(text) <= MARKS
