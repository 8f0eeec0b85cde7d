"""Alignment of two long texts with the fewest edits, by whole rows of the table at a time.

Neighbouring cells of the table of edit distances differ by at most one, so that a row is two sets
of columns: where it rises, and where it falls. A Python integer holds such a set, one bit for each
column, and a row follows from the row above by a few operations on these integers (Myers 1999,
Hyyrö 2003).

Every BLOCK-th row is kept. The rows between are computed again to trace the path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

Pairs = list[tuple[int | None, int | None]]  # reference word and translated word
BLOCK = 512


def similarity(one: str, other: str) -> float:
    return 0.0 if one == other else -1.0


class _Row(NamedTuple):
    """A row i of the table, without column 0; bit j is that of column j + 1."""

    rises: int  # by one from the column before
    falls: int
    equal_diagonal: int = 0  # the same distance as in row i - 1, one column before
    rises_below: int = 0  # by one from row i - 1


def _next(row: _Row, equal: int, full: int) -> _Row:
    """The row below, where a reference word equals the translated words in `equal`."""
    rises, falls = row.rises & full, row.falls & full
    diagonal = ((((equal & rises) + rises) ^ rises) | equal | falls) & full
    below = falls | (full & ~(diagonal | rises))
    above = diagonal & rises  # falls by one from the row above
    shifted = (below << 1 | 1) & full
    return _Row((above << 1 | (full & ~(diagonal | shifted))) & full, diagonal & shifted,
                diagonal, below)  # fmt: skip


def align(reference: Sequence[str], words: Sequence[str]) -> Pairs:
    """Align two texts with as few edits as possible."""
    places = _places(words, set(reference))
    j = len(words)
    full = (1 << j) - 1
    row, kept = _Row(full, 0), []
    for i, word in enumerate(reference):
        if i % BLOCK == 0:
            kept.append(row)
        row = _next(row, places.get(word, 0), full)
    pairs: Pairs = []
    for start in range(BLOCK * (len(kept) - 1), -1, -BLOCK):
        some = reference[start : start + BLOCK]
        for i, found in reversed(list(enumerate(_rows(kept.pop(), some, places, j), start))):
            j = _trace(pairs, i, j, found, places.get(reference[i], 0))
    pairs += [(None, rest) for rest in range(j - 1, -1, -1)]
    return pairs[::-1]


def _places(words: Sequence[str], wanted: Container[str]) -> dict[str, int]:
    """By word: its places, as bits."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for number, word in enumerate(words):
        if word in wanted:
            places[word].append(number)
    return {word: _bits(numbers, len(words)) for word, numbers in places.items()}


def _bits(numbers: Sequence[int], count: int) -> int:
    found = bytearray(count // 8 + 1)
    for number in numbers:
        found[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(found, "little")


def _rows(
    row: _Row, reference: Sequence[str], places: dict[str, int], columns: int
) -> Iterator[_Row]:
    """The rows below a row, in the first columns, which do not depend on those behind them."""
    full = (1 << columns) - 1
    for word in reference:
        row = _next(row, places.get(word, 0) & full, full)
        yield row


def _trace(pairs: Pairs, i: int, j: int, row: _Row, equal: int) -> int:
    """The pairs of a row on the way back from column j, and the column above where it leaves.

    A match goes before a word that is left out, and a reference word before a translated one.
    """
    while j:
        bit = j - 1
        if equal >> bit & 1 or not row.equal_diagonal >> bit & 1:
            pairs.append((i, bit))
            return bit
        if row.rises_below >> bit & 1:
            break
        pairs.append((None, bit))
        j = bit
    pairs.append((i, None))
    return j
