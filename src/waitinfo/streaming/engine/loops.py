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


NO_RUNS = [0] * LONGEST


class Repeats:
    """How often n-grams stand in a row in a sequence, kept up as it grows."""

    def __init__(self) -> None:
        self.counted = 0  # tokens
        self.runs = NO_RUNS  # by period: tokens at the end that equal the one a period before
        # How often an n-gram stands in a row, the last one perhaps cut short; 1 if none does twice.
        self.most = 1

    def after(self, tokens: Sequence[int], token: int) -> list[int]:
        """What `runs` will be if a token follows those that were counted, which `tokens` are."""
        recent = tokens[: -LONGEST - 1 : -1]
        if token not in recent:
            return NO_RUNS
        pairs = zip(self.runs, recent, strict=False)  # the first tokens have fewer before them
        longer = [run + 1 if token == other else 0 for run, other in pairs]
        return longer + NO_RUNS[len(longer) :]

    def extend(self, tokens: Sequence[int]) -> None:
        """Count all of these tokens, which begin with those that were counted."""
        for at in range(self.counted, len(tokens)):
            self.runs = self.after(tokens[max(0, at - LONGEST) : at], tokens[at])
            if self.runs is not NO_RUNS:
                for period, run in enumerate(self.runs, 1):
                    if run >= period:
                        self.most = max(self.most, ceil((run + period) / period))
        self.counted = len(tokens)


class LoopWatch:
    """Looks for loops in one translation. It sees every token once, however often it is asked."""

    def __init__(self) -> None:
        self.written, self.read = Repeats(), Repeats()

    def loops(self, written: Sequence[int], token: int, source: Sequence[int], read: int) -> bool:
        """Whether a token after those written is part of a loop; `read` source tokens count.

        Both sequences only grow.
        """
        self.written.extend(written)
        if len(written) + 1 < TOKENS:
            return False
        runs = self.written.after(written, token)
        if runs is NO_RUNS:
            return False
        for period, run in enumerate(runs, 1):
            times = (run + period) // period
            if times >= TIMES and run + period >= TOKENS:
                self.read.extend(source[:read])
                if times > self.read.most:
                    return True
        return False


def first_loop(written: Sequence[int], source: Sequence[int]) -> int | None:
    """The place of the first token that is part of a loop, after the whole source was read."""
    watch, read = LoopWatch(), len(source)
    for place, token in enumerate(written):
        if watch.loops(written[:place], token, source, read):
            return place
    return None


def runs(tokens: Sequence[int]) -> list[int]:
    """For every period, how many tokens at the end equal the one a period before: [LONGEST]."""
    counted = Repeats()
    counted.extend(tokens)
    return counted.runs


class RepeatCounts:
    """`Repeats.most` of every beginning of many sources, kept up as their tokens arrive."""

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
