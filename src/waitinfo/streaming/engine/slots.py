"""The state of every slot, of whatever backend: what it was fed, has encoded, read and written."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from operator import neg
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.engine.decision import length_limit
from waitinfo.streaming.engine.loops import (
    LONGEST,
    PERIODS,
    RepeatCounts,
    is_loop,
    last_runs,
    run_after,
)
from waitinfo.streaming.engine.token_events import READ, WRITE, Reason, TokenEvent
from waitinfo.systems.base import Side, System
from waitinfo.systems.interface import PolicyState
from waitinfo.text.special import EOS, PAD

Chosen = NDArray[np.int64]  # slots, ascending
Numbers = NDArray[Any]
Path = Sequence[tuple[int, int]]  # target tokens, each with the source tokens read before it


def target_positions(capacity: int) -> int:
    """Positions that the target of a source of `capacity` tokens can take."""
    return length_limit(capacity) + 1


class Slots:
    """`count` slots, each with room for a source of `capacity` tokens with end-of-sentence.

    Kept in NumPy arrays: on a few numbers they are several times as fast as tensors.
    """

    def __init__(self, count: int, capacity: int, memory: Sequence[float] = ()) -> None:
        """memory: what the policy remembers as a source begins."""
        self.count, self.capacity = count, capacity
        self.free = list(range(count - 1, -1, -1))
        positions = target_positions(capacity) + 1
        self.sources = np.zeros((count, capacity), np.int64)
        self.targets = np.zeros((count, positions), np.int32)
        self.paths = np.zeros((count, positions), np.int32)  # source tokens read before each target
        self.received = np.zeros((count, capacity + 1))  # info after 0, 1, … source tokens
        # Source tokens fed, encoded and read, and target tokens written.
        self.counts = np.zeros((4, count), np.int64)
        self.length, self.encoded, self.read, self.written = self.counts
        self.source_info, self.target_info = np.zeros((2, count))  # info read and written
        self.k = np.zeros(count)
        self.least = np.ones(count, np.int64)  # source tokens to read before the next attempt
        self.refused = np.zeros(count, np.int64)  # ends refused since the last token
        # The token that was last refused, and the source tokens read then; 0 after a WRITE.
        self.tried, self.tried_at = np.zeros((2, count), np.int64)
        self.first_memory = np.array(memory, np.float64)
        self.memory = np.tile(self.first_memory, (count, 1))  # of the policy, after the last WRITE
        self.patience = np.zeros(count, np.int64)  # refusals after which an end counts; 0 for never
        self.runs = np.zeros((count, LONGEST), np.int32)  # of the target, see `loops`
        self.repeated = RepeatCounts(count, capacity)  # of the source
        self.fed = np.zeros(count, bool)  # the source is complete
        self.active = np.zeros(count, bool)  # something is left to write
        self.going = np.zeros(count, bool)  # can go on without more input
        self.held = np.zeros(count, bool)  # left out of the rounds
        self.restarted = np.zeros(count, bool)  # a device has still to forget the last source
        self.woken = np.zeros(count, np.int64)  # turn in which it could go on again
        self._turn = 0
        self.failed: set[int] = set()  # their numbers are not finite, until they are reset
        self.shifted: set[int] = set()  # their kept tokens are not in the caches yet
        self.again: set[int] = set()  # they have to report what they had read
        self.steered: set[int] = set()  # their dial may change after every token
        self.forced = Forced()

    # Beginning and ending

    def open(self) -> int:
        if not self.free:
            raise WaitinfoError(
                f"all {self.count} streams are in use; close one, or load the model with more"
            )
        return self.free.pop()

    def close(self, slot: int) -> None:
        self.active[slot] = self.going[slot] = self.held[slot] = False
        self.length[slot] = self.encoded[slot] = 0
        self.forced.drop(slot)
        self.shifted.discard(slot)
        self.again.discard(slot)
        self.steered.discard(slot)
        self.failed.discard(slot)
        insort(self.free, slot, key=neg)  # handing out low slots first keeps rows together

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self.counts[:, slot] = 0
        self.source_info[slot] = self.target_info[slot] = 0
        self.least[slot] = 1
        self.refused[slot] = self.patience[slot] = self.tried_at[slot] = 0
        self.memory[slot] = self.first_memory
        self.fed[slot] = self.going[slot] = False
        self.active[slot] = self.restarted[slot] = True
        self.runs[slot] = 0
        self.repeated.reset(slot)
        self.failed.discard(slot)
        self.shifted.discard(slot)
        self.k[slot] = k

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Start again without the first source and target tokens; the others stay read and written.

        They are computed again, and info totals with them, before the slot goes on.
        """
        length, _, read, written = (self.counts[:, slot] - (source, 0, source, target)).tolist()
        fed, memory = self.fed[slot], self.memory[slot].copy()
        self.reset(slot, k)
        for tokens, first, count in (
            (self.sources, source, length),
            (self.targets, target, written),
            (self.paths, target, written),
        ):
            tokens[slot, :count] = tokens[slot, first : first + count].copy()
        self.paths[slot, :written] = np.maximum(1, self.paths[slot, :written] - source)
        self.length[slot], self.fed[slot] = length, fed
        self._keep(slot, read, written, memory)

    def begin(self, slot: int, path: Path, read: int, memory: Sequence[float] = ()) -> None:
        """The first tokens of the source are read and these are written, before they are there.

        memory: of the policy; without one, it is empty.
        """
        written = len(path)
        self.targets[slot, :written] = [token for token, _ in path]
        self.paths[slot, :written] = [seen for _, seen in path]
        self._keep(slot, read, written, np.array(memory or self.first_memory))
        if read:
            self.again.add(slot)

    def _keep(self, slot: int, read: int, written: int, memory: Numbers) -> None:
        self.read[slot], self.written[slot] = read, written
        self.runs[slot] = last_runs(self.targets[slot, :written])
        if read:
            self.shifted.add(slot)
            self.memory[slot] = memory

    # Source tokens

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.capacity - 1 - self.length.item(slot)

    def feed(self, slot: int, tokens: Sequence[int], complete: bool) -> None:
        start = self.length.item(slot)
        end = start + len(tokens)
        if end > self.capacity - 1:
            raise WaitinfoError(
                f"a source of over {self.capacity - 1} tokens does not fit; "
                "split it, or load the model with a larger capacity"
            )
        self.sources[slot, start:end] = tokens
        if complete:
            self.sources[slot, end] = EOS
            self.fed[slot] = True
        self.length[slot] = end + complete

    def receive(self, slot: int, start: int, info: Numbers) -> None:
        """Add the info of the source tokens from `start` on to the running totals."""
        end = start + len(info)
        self.received[slot, start + 1 : end + 1] = info.cumsum() + self.received[slot, start]

    def receive_each(self, rows: Chosen, starts: Chosen, info: Numbers) -> None:
        """The same for one token of each of several rows."""
        self.received[rows, starts + 1] = self.received[rows, starts] + info

    # Who can go on

    @property
    def runnable(self) -> Chosen:
        """The slots of the next round."""
        return (self.going & ~self.held).nonzero()[0]

    def wake(self, slot: int) -> None:
        """Take a slot into the next round, if it has something to do."""
        there = self.length[slot] >= max(1, self.read.item(slot))
        if self.active[slot] and there and slot not in self.failed and not self.going[slot]:
            self.going[slot] = True
            self._turn += 1
            self.woken[slot] = self._turn

    def settle(self, rows: Chosen, able: Numbers | bool) -> None:
        """Rows that cannot go on leave the rounds at once, without an empty round.

        able: [R] whether a row may WRITE once more.
        """
        if len(rows) == 1:  # plain numbers are faster than arrays
            slot = rows.item()
            more = bool(able) or self.read.item(slot) < self.length.item(slot)
            self.going[slot] = more and self.active.item(slot) and slot not in self.failed
            return
        self.going[rows] = (able | (self.read[rows] < self.length[rows])) & self.active[rows]
        if self.failed:
            self.going[list(self.failed)] = False

    def fail(self, slots: Iterable[int]) -> None:
        """The numbers of some slots are not finite."""
        for slot in slots:
            self.failed.add(slot)
            self.going[slot] = False

    # What the policy is asked, and what it decides

    def standing(self, rows: Chosen | int) -> PolicyState:
        """Where some rows stand, or one slot, in NumPy's numbers."""
        read = self.read[rows]
        complete = self.fed[rows] & (read == self.length[rows])
        written, infos = self.written[rows], (self.source_info[rows], self.target_info[rows])
        counts: Any = (self.k[rows], read, written, complete, *infos)
        return PolicyState(*counts)

    def asked(self, rows: Chosen | int, system: System) -> dict[str, Any]:
        """What the policy `asks` for about some rows, beyond the counts that it always gets.

        Of one slot by its number, that is its memory alone.
        """
        found: dict[str, Any] = {}
        if system.memory:
            found["memory"] = (
                self.memory[rows : rows + 1] if isinstance(rows, int) else self.memory[rows]
            )
        if isinstance(rows, int):
            return found
        sides: list[tuple[Side, Numbers, Numbers]] = [
            ("source", self.sources, self.read[rows]),
            ("target", self.targets, self.written[rows]),
        ]
        for side, tokens, counts in sides:
            if side in system.asks:
                found[side] = _first(tokens, rows, counts)
            if f"{side}_words" in system.asks:
                of_rows = zip(rows.tolist(), counts.tolist(), strict=True)
                ids = [tokens[slot, :count].tolist() for slot, count in of_rows]
                found[f"{side}_words"] = system.words(side, ids)
        return found

    def history(self, slot: int) -> tuple[list[int], list[int], list[int]]:
        """The source tokens a slot has read, the tokens written, and the READs before each."""
        read, written = self.read.item(slot), self.written.item(slot)
        target, path = self.targets[slot, :written], self.paths[slot, :written]
        return self.sources[slot, :read].tolist(), target.tolist(), path.tolist()

    def reads_again(self, rows: Chosen) -> list[TokenEvent]:
        """What resumed slots had read, token by token, before they do anything else."""
        events: list[TokenEvent] = []
        for slot in sorted(self.again.intersection(rows.tolist())):
            source, target, _ = self.history(slot)
            totals, used = self.received[slot].tolist(), self.target_info.item(slot)
            for read, token in enumerate(source, 1):
                info = totals[read] - totals[read - 1]
                after = (read, len(target), totals[read], used)
                events.append(TokenEvent(slot, READ, token, info, *after))
            self.again.discard(slot)
        return events

    def read_next(self, slots: Iterable[int]) -> list[TokenEvent]:
        """One more source token each."""
        events = []
        for slot in slots:
            read = self.read.item(slot) + 1
            before, total = self.source_info.item(slot), self.received.item(slot, read)
            self.read[slot], self.source_info[slot] = read, total
            state = (read, self.written.item(slot), total, self.target_info.item(slot))
            token = self.sources.item(slot, read - 1)
            events.append(TokenEvent(slot, READ, token, total - before, *state))
        return events

    def write(
        self,
        slot: int,
        token: int,
        info: float,
        runs: Numbers | None,
        last: bool,
        cut: Reason | None,
    ) -> TokenEvent:
        """Add a target token to a slot; `runs` are the repetitions after it, None for all 0."""
        read, written = self.read.item(slot), self.written.item(slot)
        used = self.target_info.item(slot) + info
        self.targets[slot, written], self.paths[slot, written] = token, read
        self.written[slot], self.target_info[slot] = written + 1, used
        self.runs[slot] = 0 if runs is None else runs
        self.refused[slot] = self.tried_at[slot] = 0
        self.active[slot] = not last
        if self.forced:
            self.forced.written([slot])
        after = (read, written + 1, self.source_info.item(slot), used)
        return TokenEvent(slot, WRITE, token, info, *after, last, cut)

    # Loops

    def runs_after(self, slot: int, token: int) -> Numbers | None:
        """The runs [LONGEST] of a target after one more token; None if all are 0."""
        written = self.written.item(slot)
        recent = self.targets[slot, max(0, written - LONGEST) : written]
        if token not in recent.tolist():
            return None
        recent = recent[::-1]
        runs = np.zeros(LONGEST, np.int32)
        runs[: len(recent)] = run_after(recent == token, self.runs[slot, : len(recent)])
        return runs

    def loops(self, slot: int, runs: Numbers | None) -> bool:
        """Whether a target with such runs ends in a loop."""
        if runs is None or not is_loop(runs, PERIODS, 0).any():
            return False
        one, read = np.array([slot]), self.read[slot]
        self.repeated.extend(self.sources, one, np.maximum(read, self.repeated.counted[one]))
        return bool(is_loop(runs, PERIODS, self.repeated.most[slot, read]).any())


def _first(tokens: Numbers, rows: Chosen, counts: Numbers) -> Numbers:
    """[R, T] the first tokens of some rows, of each a given number [R], padded."""
    width = max(1, int(counts.max()))
    return np.where(np.arange(width) < counts[:, None], tokens[rows, :width], PAD).astype(np.int64)


class Forced:
    """By slot, tokens that it has to write: the translation of an interrupted stream, once more.

    A stream that continues elsewhere writes what was already accepted, at the same places, and goes
    on by itself after that. Rounding that differs between machines cannot change what was accepted.
    """

    def __init__(self) -> None:
        self._paths: dict[int, deque[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def __contains__(self, slot: int) -> bool:
        """Whether the next token of a slot is forced."""
        return slot in self._paths

    def put(self, slot: int, path: Path) -> None:
        if path:
            self._paths[slot] = deque(path)

    def drop(self, slot: int) -> None:
        self._paths.pop(slot, None)

    def following(self, rows: Chosen) -> Numbers:
        """[2, R] the next token of each row and the tokens to read before it; 0 if not forced."""
        found = [self._paths[slot][0] if slot in self._paths else (0, 0) for slot in rows.tolist()]
        return np.array(found, dtype=np.int64).T

    def written(self, slots: Iterable[int]) -> None:
        """The next token of these slots was written."""
        for slot in slots:
            if slot in self._paths:
                self._paths[slot].popleft()
                if not self._paths[slot]:
                    del self._paths[slot]
