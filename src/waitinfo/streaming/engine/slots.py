"""The state of every slot on the host: what it was fed, what it has read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from waitinfo.streaming.engine.base import Places
from waitinfo.streaming.engine.forcing import Path
from waitinfo.streaming.engine.loops import LoopWatch
from waitinfo.systems.base import PolicyState
from waitinfo.text.special import EOS

Kind = Literal["READ", "WRITE"]
Reason = Literal["loop", "length"]
READ: Kind = "READ"
WRITE: Kind = "WRITE"
Rows = NDArray[np.int64]  # slots, ascending
Numbers = NDArray[Any]


def length_limit(read: Any) -> Any:
    """The largest number of tokens that may be written once `read` source tokens were read."""
    return 2 * read + 10


class TokenEvent(NamedTuple):
    """One token read or written by a slot."""

    slot: int
    kind: Kind
    token: int
    info: float
    read: int  # source tokens read so far, this one included
    written: int
    source_info: float  # info read so far
    target_info: float  # info written so far
    last: bool = False  # nothing more will be written for this source
    cut: Reason | None = None  # why it is the last, if the model did not end by itself


class Standing(NamedTuple):
    """Where some rows stand: a `PolicyState` in NumPy arrays, or in numbers for one row."""

    k: Any
    read: Any
    written: Any
    complete: Any
    source_info: Any
    target_info: Any

    def tensors(self) -> PolicyState:
        return PolicyState(*map(torch.from_numpy, self))


class Slots(Places):
    """`count` slots, each with room for a source of `capacity` tokens with end-of-sentence.

    Kept in NumPy arrays: on a few numbers they are several times as fast as tensors.
    """

    fed: list[bool]

    def __init__(self, count: int, capacity: int) -> None:
        super().__init__(count, capacity)
        self.source_info, self.target_info = np.zeros((2, count))
        self.read, self.written = np.zeros((2, count), dtype=np.int64)
        self.complete = np.zeros(count, dtype=bool)
        self.least = np.ones(count, dtype=np.int64)  # tokens to read before the next attempt
        self.sources: list[list[int]] = [[] for _ in range(count)]
        self.targets: list[list[int]] = [[] for _ in range(count)]
        self.paths: list[list[int]] = [[] for _ in range(count)]  # tokens read before each target
        self.encoded = np.zeros(count, dtype=np.int64)  # source tokens in the caches
        self.seen = [0] * count  # source tokens that the last step saw
        self.fed = [False] * count  # the source is complete
        self.active = [False] * count  # something is left to write
        self.refused = np.zeros(count, dtype=np.int64)  # ends refused since the last token
        self.watches = [LoopWatch() for _ in range(count)]

    def close(self, slot: int) -> None:
        self.active[slot] = False
        self.forced.drop(slot)
        self.sources[slot], self.targets[slot], self.paths[slot] = [], [], []
        self.encoded[slot] = 0
        self.watches[slot] = LoopWatch()
        self.shifted.discard(slot)
        self.free.append(slot)
        self.free.sort(reverse=True)  # handing out low slots first keeps rows together

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self.sources[slot], self.encoded[slot] = [], 0
        self.targets[slot], self.paths[slot], self.seen[slot] = [], [], 0
        self.patience[slot] = 0
        self.refused[slot] = 0
        self.watches[slot] = LoopWatch()
        self.shifted.discard(slot)
        self.fed[slot], self.active[slot] = False, True
        self.read[slot], self.written[slot], self.complete[slot] = 0, 0, False
        self.least[slot] = 1
        self.source_info[slot] = self.target_info[slot] = 0
        self.k[slot] = k

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Start again without the first source and target tokens; the others stay read and written.

        Info totals are computed once the kept tokens are encoded.
        """
        sources, targets = self.sources[slot][source:], self.targets[slot][target:]
        path = [max(1, read - source) for read in self.paths[slot][target:]]
        read, fed = int(self.read[slot]) - source, self.fed[slot]
        self.reset(slot, k)
        self.sources[slot], self.targets[slot], self.paths[slot] = sources, targets, path
        self.read[slot], self.written[slot] = read, len(targets)
        self.complete[slot] = fed and read == len(sources)
        self.fed[slot] = fed
        if read:
            self.shifted.add(slot)

    def begin(self, slot: int, path: Path, read: int) -> None:
        self.watches[slot] = LoopWatch()
        self.targets[slot] = [token for token, _ in path]
        self.paths[slot] = [seen for _, seen in path]
        self.read[slot], self.written[slot] = read, len(path)
        if read:
            self.shifted.add(slot)

    def length_of(self, slot: int) -> int:
        return len(self.sources[slot])

    def history(self, slot: int) -> tuple[list[int], list[int], list[int]]:
        read = int(self.read[slot])
        return self.sources[slot][:read], list(self.targets[slot]), list(self.paths[slot])

    def feed(self, slot: int, tokens: Sequence[int], complete: bool) -> None:
        self.check_length(len(self.sources[slot]) + len(tokens))
        self.sources[slot] += [*tokens, EOS] if complete else tokens
        self.fed[slot] |= complete

    def receive(self, slot: int, start: int, info: Numbers) -> None:
        """Add the info of the source tokens from `start` on to the running totals."""
        end = start + len(info)
        self.received[slot, start + 1 : end + 1] = info.cumsum() + self.received[slot, start]

    def receive_one(self, rows: Rows, starts: Rows, info: Numbers) -> None:
        """The same for one token of each of several rows."""
        self.received[rows, starts + 1] = self.received[rows, starts] + info

    def standing(self, rows: Rows | int) -> Standing:
        """Where some rows stand, or one slot, in NumPy's numbers."""
        return Standing(
            self.k[rows], self.read[rows], self.written[rows], self.complete[rows],
            self.source_info[rows], self.target_info[rows],
        )  # fmt: skip

    def read_next(self, slots: Sequence[int]) -> list[TokenEvent]:
        """One more source token each."""
        events = []
        for slot in slots:
            source, read = self.sources[slot], self.read.item(slot) + 1
            before, total = self.source_info.item(slot), self.received.item(slot, read)
            self.read[slot], self.source_info[slot] = read, total
            if self.fed[slot] and read == len(source):
                self.complete[slot] = True
            state = (read, self.written.item(slot), total, self.target_info.item(slot))
            events.append(TokenEvent(slot, READ, source[read - 1], total - before, *state))
        return events

    def write(self, slot: int, token: int, info: float, looping: bool) -> TokenEvent:
        """One more target token of a slot; if it is `looping`, the end, in place of another."""
        read, written = self.read.item(slot), self.written.item(slot) + 1
        used = self.target_info.item(slot) + info
        self.written[slot], self.target_info[slot], self.refused[slot] = written, used, 0
        full = self.complete.item(slot) and written >= length_limit(read)
        cut: Reason | None = "loop" if looping else "length" if full and token != EOS else None
        self.active[slot] = not (last := full or token == EOS)
        self.targets[slot].append(token)
        self.paths[slot].append(read)
        if slot in self.forced:
            self.forced.written([slot])
        state = (read, written, self.source_info.item(slot), used)
        return TokenEvent(slot, WRITE, token, info, *state, last, cut)
