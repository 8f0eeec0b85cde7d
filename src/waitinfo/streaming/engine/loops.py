"""Loops: a model that writes the same tokens again and again.

A loop is a stretch of at least 12 tokens in which the same n-gram, of at most 32 tokens, is written
three times or more in a row, and more often than any n-gram stands in a row in the source read so
far. "Sehr, sehr, sehr" is too short to be one, and whatever the speaker repeats may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

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


def _run(tokens: Sequence[int], period: int) -> int:
    """How many tokens at the end equal the one `period` before."""
    count = 0
    for later in range(len(tokens) - 1, period - 1, -1):
        if tokens[later] != tokens[later - period]:
            break
        count += 1
    return count
