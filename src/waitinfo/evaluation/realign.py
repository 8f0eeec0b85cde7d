"""Realignment: which words of a long translation belong to which reference sentence.

Both methods align the whole translation with all references by dynamic programming:

`soft`  maximises the similarity of aligned words, without a cost for words that are not aligned
        (the SoftSegmenter of LongYAAL)
`mwer`  minimises the number of edited words (as mwerSegmenter, for StreamLAAL)

The table is computed row by row with numpy. Only every BLOCK-th row is kept; the rows between are
computed again when the path through them is traced, so that documents of hours fit into memory.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from waitinfo.errors import unknown

Floats = npt.NDArray[np.float64]
BLOCK = 512
MATCH, SKIP_REFERENCE, SKIP_WORD = 0, 1, 2
MARKS = frozenset(".!?,;:-()。！？，；：—（）ー")  # these are not aligned with words

Pairs = list[tuple[int | None, int | None]]  # reference word and translated word


class Similarity:
    """Similarity of reference words to the translated words, each of which has a number."""

    gap: float  # cost of a word that is not aligned

    def __init__(self, words: Sequence[str]) -> None:
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(word, len(numbers)) for word in words]
        self.ids, self.numbers = np.array(ids, int), numbers
        self._rows: dict[str, Floats] = {}

    def row(self, word: str) -> Floats:
        """Of a reference word to the translated words in their order: [m]."""
        if word not in self._rows:
            self._rows[word] = self.compare(word)
        return self._rows[word][self.ids]

    def compare(self, word: str) -> Floats:
        """Of a reference word to the different translated words, by their numbers."""
        raise NotImplementedError


class SoftSimilarity(Similarity):
    """Jaccard similarity of the letters; marks and words are never similar."""

    gap = 0.0

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        letters = sorted({letter for word in self.numbers for letter in word})
        self._columns = {letter: column for column, letter in enumerate(letters)}
        self._has = np.zeros((len(letters), len(self.numbers)), bool)
        for word, number in self.numbers.items():
            for letter in word:
                self._has[self._columns[letter], number] = True
        self._sizes = self._has.sum(0)
        self._marks = np.array([word in MARKS for word in self.numbers], bool)

    def compare(self, word: str) -> Floats:
        letters = set(word)
        rows = [self._columns[letter] for letter in sorted(letters) if letter in self._columns]
        common = self._has[rows].sum(0)
        found = common / (len(letters) + self._sizes - common)
        found[self._marks != (word in MARKS)] = -np.inf
        return found


class ExactSimilarity(Similarity):
    """0 for equal words, -1 for others: less the gaps, the number of edits with a minus sign."""

    gap = 1.0

    def compare(self, word: str) -> Floats:
        found = np.full(len(self.numbers), -1.0)
        if word in self.numbers:
            found[self.numbers[word]] = 0.0
        return found


METHODS: dict[str, type[Similarity]] = {"soft": SoftSimilarity, "mwer": ExactSimilarity}


def realign(
    words: Sequence[str], references: Sequence[Sequence[str]], method: str = "soft"
) -> list[range]:
    """The words of each reference sentence, as ranges of indices that follow each other."""
    if method not in METHODS:
        raise unknown("realignment", method, METHODS)
    # A reference without words cannot get any.
    flat = [fold(word) for sentence in references for word in sentence]
    owner = [number for number, sentence in enumerate(references) for _ in sentence]
    folded = [fold(word) for word in words]
    counts = [0] * len(references)
    if flat and folded:
        similarity = METHODS[method](folded)
        for place in _owners(align(flat, similarity), flat, similarity):
            counts[owner[place]] += 1
    ends = np.cumsum([0, *counts]).tolist()
    return [range(start, end) for start, end in pairwise(ends)]


def fold(word: str) -> str:
    return unicodedata.normalize("NFKC", word).lower()


def align(reference: Sequence[str], similarity: Similarity) -> Pairs:
    """Align two sequences so that the similarity, less the cost of gaps, is largest."""
    pairs: Pairs = []
    j = len(similarity.ids)
    for i, choices in _Table(reference, similarity).rows_from_the_end():
        while j and choices[j - 1] == SKIP_WORD:
            j -= 1
            pairs.append((None, j))
        if j and choices[j - 1] == MATCH:
            j -= 1
            pairs.append((i, j))
        else:
            pairs.append((i, None))
    pairs += [(None, rest) for rest in range(j - 1, -1, -1)]
    return pairs[::-1]


class _Table:
    """The table of best scores; row i is that of the first i reference words: [m + 1]."""

    def __init__(self, reference: Sequence[str], similarity: Similarity) -> None:
        self.reference, self.similarity, self.gap = reference, similarity, similarity.gap
        self.gaps: Floats = self.gap * np.arange(len(similarity.ids) + 1, dtype=np.float64)

    def _next(self, above: Floats, word: str) -> tuple[Floats, npt.NDArray[Any]]:
        """The row below, and for each of its cells but the first how it is reached."""
        match = above[:-1] + self.similarity.row(word)
        skip = above[1:] - self.gap
        row = np.concatenate([above[:1] - self.gap, np.maximum(match, skip)])
        # A cell may also be reached from its left neighbour, at the cost of a gap.
        row = np.maximum.accumulate(row + self.gaps) - self.gaps
        left = row[:-1] - self.gap
        choices = np.where(skip >= left, SKIP_REFERENCE, SKIP_WORD)
        choices[(match >= skip) & (match >= left)] = MATCH
        return row, choices.astype(np.int8)

    def rows_from_the_end(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Index of each reference word and the choices in its row, from the last to the first."""
        kept: list[Floats] = []
        row: Floats = -self.gaps
        for i, word in enumerate(self.reference):
            if i % BLOCK == 0:
                kept.append(row)
            row, _ = self._next(row, word)
        for start in range(BLOCK * (len(kept) - 1), -1, -BLOCK):
            row, choices = kept.pop(), []
            for word in self.reference[start : start + BLOCK]:
                row, choice = self._next(row, word)
                choices.append(choice)
            for i in range(len(choices) - 1, -1, -1):
                yield start + i, choices[i]


def _owners(pairs: Pairs, reference: Sequence[str], similarity: Similarity) -> Iterator[int]:
    """For each translated word the reference word that it belongs to.

    Words between two reference words belong to the first of them, until one is more similar to the
    second; it and those after it belong to the second.
    """
    passed = 0  # reference words before this pair
    ahead = False  # the words of this gap belong to the next reference word
    for i, j in pairs:
        if i is not None:
            passed += 1
            ahead = False
        if j is None:
            continue
        place = i
        if place is None:
            last = passed - 1
            if last < 0:
                ahead = True
            elif passed < len(reference) and not ahead:
                nearer = similarity.row(reference[passed])[j]
                ahead = bool(nearer > similarity.row(reference[last])[j])
            place = passed if ahead else last
        yield place
