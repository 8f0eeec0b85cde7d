"""Alignment of two long texts by the similarity of their words.

`D[i, j]` is the best total similarity of the first i reference words and the first j translated
words; words that are not aligned cost nothing. The table of an hour has 10^10 cells, so

- only cells that an optimal path can pass are computed. A corridor around the diagonal gives a
  score that the optimum reaches at least. No path gains more than 1 with a word, so a path through
  a cell reaches at most `D[i, j]` plus the number of words left on the shorter side. Cells for
  which this is too little are left out. Every optimal path stays, so the alignment is that of the
  whole table, ties included;
- rows are computed with numpy in LANES: column j is `row[j % LANES, j // LANES]`, because a running
  maximum over lanes is much faster than one along a row;
- every TILE-th row and column is kept, and only the tiles on the path are computed again to trace
  it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waitinfo.evaluation.edit_alignment import Pairs

Floats = npt.NDArray[np.float64]

LANES = 16
ROWS = 64  # rows that are computed for the same columns
TILE = 1024  # a multiple of LANES and ROWS
CORRIDOR = 1024  # columns on each side of the diagonal
SLACK = 1e-3  # of scores; far more than the rounding of the sums
CACHED = 1 << 23  # similarities that are kept, of the most frequent reference words
MARKS = frozenset(".!?,;:-()。！？，；：—（）ー")  # these are not aligned with words


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of the letters; marks and words are never similar."""
    if (one in MARKS) != (other in MARKS):
        return -np.inf
    return len(set(one) & set(other)) / len(set(one) | set(other))


class Similarities:
    """Similarity of the reference words to all different translated words."""

    def __init__(self, reference: Sequence[str], words: Sequence[str]) -> None:
        numbers: dict[str, int] = {}
        self.ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.intp)
        letters = sorted({letter for word in numbers for letter in word})
        self._columns = {letter: column for column, letter in enumerate(letters)}
        # One more word, to which nothing is similar, stands for columns without a word.
        self._has = np.zeros((len(letters), len(numbers) + 1), np.uint8)
        for word, number in numbers.items():
            for letter in word:
                self._has[self._columns[letter], number] = 1
        self._sizes: Floats = self._has.sum(0, dtype=np.float64)
        marks = np.array([word in MARKS for word in numbers] + [True], bool)
        self._marks, self._words = np.flatnonzero(marks), np.flatnonzero(~marks)
        frequent = Counter(reference).most_common(CACHED // (len(numbers) + 1))
        self._cached = {word: self._compare(word) for word, count in frequent if count > 1}

    def to(self, word: str) -> Floats:
        """Similarity of a word to every different translated word, then -inf: [V + 1]."""
        found = self._cached.get(word)
        return self._compare(word) if found is None else found

    def _compare(self, word: str) -> Floats:
        letters = set(word)
        rows = [self._columns[letter] for letter in sorted(letters) if letter in self._columns]
        common: Floats = self._has[rows].sum(0, dtype=_counter(len(rows))).astype(np.float64)
        found: Floats = common / (len(letters) + self._sizes - common)
        found[self._words if word in MARKS else self._marks] = -np.inf
        found[-1] = -np.inf
        return found


def _counter(most: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type that can count to this number."""
    return np.uint8 if most < 256 else np.uint32


class _Part(NamedTuple):
    """Part of a row in lanes, from column LANES * first on: [LANES, A]."""

    first: int
    values: Floats

    @property
    def stop(self) -> int:
        return self.first + self.values.shape[1]

    def move(self, first: int, stop: int) -> _Part:
        """The same row in other columns; those that it does not have are -inf."""
        values = np.full((LANES, stop - first), -np.inf)
        start, end = max(first, self.first), min(stop, self.stop)
        if start < end:
            values[:, start - first : end - first] = self.values[
                :, start - self.first : end - self.first
            ]
        return _Part(first, values)

    def columns(self, start: int, stop: int) -> Floats:
        """Columns in their order."""
        lanes = self.move(start // LANES, -(-stop // LANES))
        return lanes.values.T.ravel()[start % LANES :][: stop - start]


def align(reference: Sequence[str], words: Sequence[str]) -> Pairs:
    """Align two texts so that the total similarity is largest."""
    if not words:
        return [(i, None) for i in range(len(reference))]
    return _Scores(reference, words).path()


class _Scores:
    """The best scores; row i is that of the first i reference words."""

    def __init__(self, reference: Sequence[str], words: Sequence[str]) -> None:
        self.reference, self.words = reference, words
        self.similarities = Similarities(reference, words)
        self.n, self.m = len(reference), len(words)
        self.width = self.m // LANES + 1  # of a row in lanes
        # Column 0 and the columns behind the last one have no word.
        ids = np.full(LANES * self.width, self.similarities.ids.max() + 1)
        ids[1 : self.m + 1] = self.similarities.ids
        self._ids = ids.reshape(self.width, LANES).T
        left = self.m - np.arange(LANES * self.width, dtype=np.float64)
        self._left = left.reshape(self.width, LANES).T  # translated words behind a column
        start = _Part(0, np.zeros((LANES, self.width)))
        self.rows: list[_Part] = [start]  # every TILE-th
        self.columns: Floats = np.zeros((self.n + 1, 1))  # every TILE-th
        if self.n > TILE or self.m > TILE:
            least = self._score(start, self._corridor)
            self.rows = []
            self.columns = np.full((self.n + 1, self.m // TILE + 1), -np.inf)
            self._score(start, self._hopeful(least - SLACK), keep=True)

    # Scores

    def _score(
        self, row: _Part, choose: Callable[[int, _Part], tuple[int, int]], keep: bool = False
    ) -> float:
        """The score of the best path within the columns that are chosen for each block of rows."""
        for start in range(0, self.n, ROWS):
            if keep and start % TILE == 0:
                self.rows.append(row)
            row = row.move(*choose(start, row))
            row = self._block(row, start, min(start + ROWS, self.n), keep)
        return float(row.columns(self.m, self.m + 1)[0])

    def _block(self, part: _Part, start: int, stop: int, keep: bool) -> _Part:
        """Row `stop` computed from row `start`, in the columns of row `start`."""
        first, old = part
        ids = np.ascontiguousarray(self._ids[:, first : part.stop])
        new = np.empty_like(old)
        number, step = -(-first * LANES // TILE), TILE // LANES
        place = number * step - first
        for i in range(start, stop):
            if keep:
                column = old[0, place::step]
                self.columns[i, number : number + len(column)] = column
            _next_row(old, self.similarities.to(self.reference[i]).take(ids), new)
            old, new = new, old
        if keep:
            column = old[0, place::step]
            self.columns[stop, number : number + len(column)] = column
        return _Part(first, old)

    # Which columns

    def _corridor(self, start: int, row: _Part) -> tuple[int, int]:
        """Columns around the diagonal, in lanes."""
        first = start * self.m // self.n - CORRIDOR
        last = (start + ROWS) * self.m // self.n + CORRIDOR
        return max(0, first // LANES), min(self.width, last // LANES + 1)

    def _hopeful(self, least: float) -> Callable[[int, _Part], tuple[int, int]]:
        """Columns through which a path may reach a score, in lanes."""

        def choose(start: int, row: _Part) -> tuple[int, int]:
            most = row.values + np.minimum(self.n - start, self._left[:, row.first : row.stop])
            first = int(np.argmax((most >= least).any(0)))
            # The rows of the block may add one each, wherever they go on to the right.
            later = np.flatnonzero((most + ROWS >= least).any(0))
            last = row.first + int(later[-1])
            furthest = self.m + ROWS + float(row.values[-1, -1]) - least
            if last + 1 == row.stop:
                last = max(last, int(furthest) // LANES)
            return row.first + first, min(self.width, last + 1)

        return choose

    # The path

    def path(self) -> Pairs:
        """The alignment: a match before a word that is left out, a reference word before others."""
        pairs: Pairs = []
        i, j = self.n, self.m
        while i and j:
            top, left = (i - 1) // TILE * TILE, (j - 1) // TILE * TILE
            tile = list(self._tile(top, left, i, j))
            while i > top and j > left:
                above, row, place = tile[i - top - 1], tile[i - top], j - left
                match = above[place - 1] + similarity(self.reference[i - 1], self.words[j - 1])
                if match >= max(above[place], row[place - 1]):
                    i, j = i - 1, j - 1
                    pairs.append((i, j))
                elif above[place] >= row[place - 1]:
                    i -= 1
                    pairs.append((i, None))
                else:
                    j -= 1
                    pairs.append((None, j))
        pairs += [(rest, None) for rest in range(i - 1, -1, -1)]
        pairs += [(None, rest) for rest in range(j - 1, -1, -1)]
        return pairs[::-1]

    def _tile(self, top: int, left: int, bottom: int, right: int) -> Iterator[Floats]:
        """The rows of a tile."""
        row = self.rows[top // TILE].columns(left, right + 1)
        yield row
        ids = self.similarities.ids[left:right]
        for i in range(top, bottom):
            above, row = row, np.empty_like(row)
            row[0] = self.columns[i + 1, left // TILE]
            np.add(above[:-1], self.similarities.to(self.reference[i])[ids], out=row[1:])
            np.maximum(row[1:], above[1:], out=row[1:])
            np.maximum.accumulate(row, out=row)
            yield row


def _next_row(old: Floats, similar: Floats, new: Floats) -> None:
    """The row below `old`, in lanes. The first column has no match."""
    np.add(old[:-1], similar[1:], out=new[1:])
    np.add(old[-1, :-1], similar[0, 1:], out=new[0, 1:])
    new[0, 0] = -np.inf
    np.maximum(new, old, out=new)
    for lane in range(1, LANES):
        np.maximum(new[lane], new[lane - 1], out=new[lane])
    best = np.maximum.accumulate(new[-1])
    np.maximum(new[:, 1:], best[:-1], out=new[:, 1:])
