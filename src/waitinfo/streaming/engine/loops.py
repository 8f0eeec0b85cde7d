"""Loops: a model that writes the same tokens again and again.

A loop is a stretch of at least 12 tokens in which the same n-gram, of at most 32 tokens, is written
three times or more in a row, and more often than any n-gram stands in a row in the source read so
far. "Sehr, sehr, sehr" is too short to be one, and whatever the speaker repeats may be repeated.

A run is the number of tokens at the end of a sequence that equal the one a period before; there is
one for each of the periods 1 to 32. `run_after` and `is_loop` take arrays of any kind and are
compiled into kernels, as the functions of `decision` are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

LONGEST = 32  # tokens of a repeated n-gram
PERIODS = np.arange(1, LONGEST + 1, dtype=np.int32)


def run_after(same: "Any", run: "Any") -> "Any":
    """A run after one more token, which equals the one a period before or not."""
    return same * (run + 1)


def is_loop(run: "Any", period: "Any", most: "Any") -> "Any":
    """Whether a run is that of a loop; an n-gram stands `most` times in a row in the source."""
    tokens = run + period
    times = tokens // period
    return (run > 0) & (tokens >= 12) & (times >= 3) & (times > most)


def first_loop(written: Sequence[int], source: Sequence[int]) -> int | None:
    """The place of the first token that is part of a loop, after the whole source was read."""
    runs = all_runs(np.array(written, np.int64))
    if not is_loop(runs, PERIODS, 0).any():
        return None
    counts, length = RepeatCounts(1, len(source)), len(source)
    counts.extend(np.array([source]), np.zeros(1, np.int64), np.array([length]))
    found = is_loop(runs, PERIODS, counts.most[0, length]).any(1).nonzero()[0]
    return int(found[0]) if len(found) else None


def all_runs(tokens: np.ndarray) -> np.ndarray:
    """The runs of every beginning of a sequence [T]: [T, LONGEST]."""
    before = np.zeros((1, LONGEST), np.int32)
    first = np.zeros(1, np.int64)
    return _runs(tokens[None], first, first, np.arange(len(tokens)), before)[0]


def last_runs(tokens: np.ndarray) -> np.ndarray:
    """The runs of a whole sequence: [LONGEST]."""
    return all_runs(tokens)[-1] if len(tokens) else np.zeros(LONGEST, np.int32)


def _runs(
    sequences: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    turn: np.ndarray,
    before: np.ndarray,
) -> np.ndarray:
    """Runs [R, T, P] of some sequences after their tokens from `starts` [R] on, in `turn` [T].

    before: the runs [R, P] at the starts.
    """
    at = np.minimum(starts[:, None] + turn, sequences.shape[1] - 1)  # [R, T]
    earlier = at[:, :, None] - PERIODS  # [R, T, P]
    now = sequences[rows[:, None], at][:, :, None]
    same = (sequences[rows[:, None, None], np.maximum(earlier, 0)] == now) & (earlier >= 0)
    # A run began behind the last token that was different.
    different = np.where(same, (-1 - before)[:, None], turn[:, None])
    return turn[:, None] - np.maximum.accumulate(different, 1)


class RepeatCounts:
    """How often n-grams stand in a row in every beginning of many sources, as tokens arrive."""

    def __init__(self, slots: int, capacity: int) -> None:
        # By number of tokens; the last n-gram perhaps cut short; 1 if none stands twice in a row.
        self.most = np.ones((slots, capacity + 1), np.int32)
        self._runs = np.zeros((slots, LONGEST), np.int32)
        self.counted = np.zeros(slots, np.int64)  # tokens

    def reset(self, slot: int) -> None:
        """Start a new source in a slot."""
        self.counted[slot] = 0
        self._runs[slot] = 0

    def extend(self, sources: np.ndarray, rows: np.ndarray, ends: np.ndarray) -> None:
        """Count the tokens of some different rows [R] of sources up to ends [R]."""
        starts = self.counted[rows]
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
        turn = np.arange(int(counts.max()), dtype=np.int32)
        runs = _runs(sources, rows, starts, turn, self._runs[rows])
        times = np.where(runs >= PERIODS, (runs + 2 * PERIODS - 1) // PERIODS, 1).max(2)
        times[:, 0] = np.maximum(times[:, 0], self.most[rows, starts])
        real = turn < counts[:, None]
        every, column = real.nonzero()
        self.most[rows[every], starts[every] + column + 1] = np.maximum.accumulate(times, 1)[real]
        self._runs[rows] = runs[np.arange(len(rows)), counts - 1]
        self.counted[rows] = starts + counts
