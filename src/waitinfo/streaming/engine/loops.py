"""Loops: a model that writes the same tokens again and again.

A loop is a stretch of at least 12 tokens in which the same n-gram, of at most 32 tokens, is written
three times or more in a row, and more often than any n-gram stands in a row in the source read so
far. "Sehr, sehr, sehr" is too short to be one, and whatever the speaker repeats may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

TIMES = 3
TOKENS = 12
LONGEST = 32


def loops(written: Sequence[int], token: int, source: Sequence[int], read: int) -> bool:
    """Whether a token after those written is part of a loop; `read` source tokens count."""
    length = len(written) + 1
    if length < TOKENS:
        return False
    for period in range(1, min(LONGEST, length // TIMES) + 1):
        if written[-period] != token:
            continue
        repeated = 1 + _run(written, period)
        times = (repeated + period) // period
        if times >= TIMES and repeated + period >= TOKENS and times > repeats(source[:read]):
            return True
    return False


def first_loop(written: Sequence[int], source: Sequence[int]) -> int | None:
    """The place of the first token that is part of a loop, after the whole source was read."""
    places = range(TOKENS - 1, len(written))
    return next((n for n in places if loops(written[:n], written[n], source, len(source))), None)


def repeats(tokens: Sequence[int]) -> int:
    """How often an n-gram stands in a row, the last one perhaps cut short; 1 if none does twice."""
    most = 1
    for period in range(1, min(LONGEST, len(tokens) - 1) + 1):
        run = longest = 0
        for earlier, later in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if earlier == later else 0
            longest = max(longest, run)
        if longest >= period:
            most = max(most, ceil((longest + period) / period))
    return most


def runs(tokens: Sequence[int]) -> list[int]:
    """For every period, how many tokens at the end equal the one a period before: [LONGEST]."""
    return [_run(tokens, period) for period in range(1, LONGEST + 1)]


def _run(tokens: Sequence[int], period: int) -> int:
    """How many tokens at the end equal the one `period` before."""
    count = 0
    for later in range(len(tokens) - 1, period - 1, -1):
        if tokens[later] != tokens[later - period]:
            break
        count += 1
    return count


class RepeatCounts:
    """`repeats` of every beginning of many sources, kept up as their tokens arrive."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.most = np.ones((slots, capacity + 1), np.int32)  # by number of tokens
        self._runs = np.zeros((slots, LONGEST), np.int32)
        self._counted = np.zeros(slots, np.int64)  # tokens
        self._periods = np.arange(1, LONGEST + 1, dtype=np.int32)

    def reset(self, slot: int) -> None:
        """Start a new source in a slot."""
        self._counted[slot] = 0
        self._runs[slot] = 0

    def extend(self, sources: np.ndarray, rows: np.ndarray, ends: np.ndarray) -> None:
        """Count the tokens of some different rows [R] of sources up to ends [R]."""
        starts = self._counted[rows]
        counts = ends - starts
        # Rows of similar counts go together, so that one long source pads no others.
        above, most = 0, 2
        while above < counts.max(initial=0):
            some = (counts > above) & (counts <= most)
            if some.any():
                self._extend(sources, rows[some], starts[some], counts[some])
            above, most = most, 2 * most

    def _extend(
        self, sources: np.ndarray, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> None:
        periods, turn = self._periods, np.arange(int(counts.max()), dtype=np.int32)
        at = np.minimum(starts[:, None] + turn, sources.shape[1] - 1)  # [R, T]
        earlier = at[:, :, None] - periods  # [R, T, P]
        now = sources[rows[:, None], at][:, :, None]
        same = (sources[rows[:, None, None], np.maximum(earlier, 0)] == now) & (earlier >= 0)
        # A run began behind the last token that was different.
        different = np.where(same, (-1 - self._runs[rows])[:, None], turn[:, None])
        runs = turn[:, None] - np.maximum.accumulate(different, 1)
        times = np.where(runs >= periods, (runs + 2 * periods - 1) // periods, 1).max(2)
        times[:, 0] = np.maximum(times[:, 0], self.most[rows, starts])
        real = turn < counts[:, None]
        every, column = real.nonzero()
        self.most[rows[every], starts[every] + column + 1] = np.maximum.accumulate(times, 1)[real]
        self._runs[rows] = runs[np.arange(len(rows)), counts - 1]
        self._counted[rows] = starts + counts
