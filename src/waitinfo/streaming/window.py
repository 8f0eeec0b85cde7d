"""The window of a stream without sentence ends: what the model sees, and where it moves on.

When the window is full, or the model has ended a sentence inside it, source and target are cut
together: what lies before the cut is forgotten, what lies behind stays in view. The target is cut
where the model has ended a sentence, else in its middle. The source is cut where it fits best, by
the weights of cross-attention: words that the forgotten part looked at go with it, words that the
rest looked at stay. If all of the target is forgotten, the source is up to the last word that it
looked at. A word that had not been read when the last forgotten token was written always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

Weights = np.ndarray  # [T, S] cross-attention of each target token
AFTER = 3  # tokens written after a sentence end that show where the next sentence begins


class Boundary(IntEnum):
    """What ends after a target token."""

    NOTHING = 0
    WORD = 1
    SENTENCE = 2


class Cut(NamedTuple):
    """Tokens that leave the window."""

    source: int
    target: int


class Window:
    """The source and target tokens of the present sentence or window."""

    def __init__(self) -> None:
        self.words: list[str | None] = []  # by source token: the word it ends
        self.starts: list[bool] = []  # by source token: whether it starts a word
        self.marks: list[Boundary] = []  # by target token
        self.reads: list[int] = []  # by target token: source tokens read before it
        self.shown: list[int] = []  # by target token: words that ended with it and were shown
        self.kept = 0  # target tokens that were already written when the window began

    def read(self, word: str | None, tokens: int) -> None:
        """The tokens of a word, or of a part of it that has no text of its own."""
        complete = not self.words or self.words[-1] is not None  # no word or character is open
        self.words += [None] * (tokens - 1) + [word]
        self.starts += [complete] + [False] * (tokens - 1)

    def write(self, read: int) -> None:
        self.marks.append(Boundary.NOTHING)
        self.reads.append(read)
        self.shown.append(0)

    def mark(self, back: int, mark: Boundary, words: int = 1) -> None:
        """Some words are shown, which end `back` tokens before the last one."""
        if back < len(self.marks):
            self.marks[-1 - back] = mark
            self.shown[-1 - back] += words

    def drop(self, cut: Cut) -> None:
        """Move on."""
        self.words, self.starts = self.words[cut.source :], self.starts[cut.source :]
        self.marks, self.shown = self.marks[cut.target :], self.shown[cut.target :]
        self.reads = [max(1, read - cut.source) for read in self.reads[cut.target :]]
        self.kept = len(self.marks)

    def words_kept(self, read: int) -> tuple[int, int]:
        """Source words among the first `read` tokens, each from its first on; and words shown."""
        words = self.words[:read]
        begun = sum(not n or words[n - 1] is not None for n in range(len(words)))
        return begun, sum(self.shown)

    # Where to cut

    def cut_full(self, weights: Weights, least: int) -> Cut | None:
        """Where a full window moves on by at least `least` source tokens; None for nowhere."""
        if len(self.marks) == self.kept:
            return None  # nothing was written: no more of the source is translated than before
        for target in self._places():
            source = self._source_cut(weights, target)
            if source is not None and source >= least:
                return Cut(source, target)
        return None

    def cut_ended(self, weights: Weights) -> Cut:
        """Where the window moves on after the model has ended a sentence: its target is all told.

        The last token is end-of-sentence, which has no row in the weights.
        """
        target = len(self.marks)
        read = self.reads[-2] if target > 1 else self.reads[-1]
        places = [place for place in self._boundaries() if place <= read]
        if not places:
            return Cut(read, target)
        # Translated is what lies before the last word that any token looked at most. The sum of
        # attention is a worse sign: few tokens see late words, and all see early ones.
        last = int(weights.argmax(1).max()) if len(weights) else 0
        return Cut(next((place for place in places if place > last), places[-1]), target)

    def _places(self) -> list[int]:
        """Where the target may be cut, best first."""
        count = len(self.marks)
        ends = [
            i for i, mark in enumerate(self.marks, 1) if mark is Boundary.SENTENCE and i < count
        ]
        settled = [end for end in ends if end + AFTER <= count]
        words = [i for i, mark in enumerate(self.marks, 1) if mark and i < count]
        middle = sorted(words, key=lambda place: (abs(2 * place - count), place))
        return [*settled[-1:], *ends[-1:], *middle[:1], *words[-1:]]

    def _source_cut(self, weights: Weights, target: int) -> int | None:
        """The source cut that separates the attention of both parts best.

        A target that stays needs at least one source token that was read.
        """
        read = min(self.reads[target - 1], weights.shape[1] - 1)
        places = [place for place in self._boundaries() if place <= read]
        if not places:
            return None
        before = np.concatenate([[0.0], np.cumsum(weights[:target].sum(0))])
        after = np.concatenate([[0.0], np.cumsum(weights[target:].sum(0))])
        return max(places, key=lambda place: (before[place] - after[place], -place))

    def _boundaries(self) -> Sequence[int]:
        """Ends of source words."""
        found = [i for i, start in enumerate(self.starts) if start and i]
        whole = bool(self.words) and self.words[-1] is not None
        return [*found, len(self.starts)] if whole else found
