"""Realignment: which words of a long translation belong to which reference sentence.

Both methods align the whole translation with all references by dynamic programming:

`soft`  maximises the similarity of aligned words, without a cost for words that are not aligned
        (the SoftSegmenter of LongYAAL)
`mwer`  minimises the number of edited words (as mwerSegmenter, for StreamLAAL)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from waitinfo.errors import unknown
from waitinfo.evaluation import edit_alignment, soft_alignment
from waitinfo.evaluation.edit_alignment import Pairs


class Method(NamedTuple):
    align: Callable[[Sequence[str], Sequence[str]], Pairs]
    similarity: Callable[[str, str], float]


METHODS = {
    "soft": Method(soft_alignment.align, soft_alignment.similarity),
    "mwer": Method(edit_alignment.align, edit_alignment.similarity),
}


def realign(
    words: Sequence[str], references: Sequence[Sequence[str]], method: str = "soft"
) -> list[range]:
    """The words of each reference sentence, as ranges of indices that follow each other."""
    if method not in METHODS:
        raise unknown("realignment", method, METHODS)
    # A reference without words cannot get any.
    flat = [fold(word) for sentence in references for word in sentence]
    owner = [number for number, sentence in enumerate(references) for _ in sentence]
    counts = [0] * len(references)
    if flat and words:
        for place in _owners(flat, [fold(word) for word in words], METHODS[method]):
            counts[owner[place]] += 1
    return [range(start, end) for start, end in pairwise(accumulate(counts, initial=0))]


def fold(word: str) -> str:
    return unicodedata.normalize("NFKC", word).lower()


def _owners(reference: Sequence[str], words: Sequence[str], method: Method) -> Iterator[int]:
    """For each translated word the reference word that it belongs to.

    Words between two reference words belong to the first of them, until one is more similar to the
    second; it and those after it belong to the second.
    """
    passed = 0  # reference words before this pair
    ahead = False  # the words of this gap belong to the next reference word
    for i, j in method.align(reference, words):
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
                nearer = method.similarity(reference[passed], words[j])
                ahead = nearer > method.similarity(reference[last], words[j])
            place = passed if ahead else last
        yield place
