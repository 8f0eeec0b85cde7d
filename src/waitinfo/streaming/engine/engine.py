"""Rounds over all slots.

Source tokens are fed as they arrive. A round encodes what has arrived for all slots in one pass,
lets every slot READ until its system wants to WRITE, and computes the next target token of all
slots that do in one pass. Slots join, leave and restart at any time; rows differ in length and are
never padded again.

A slot sees only what it has read. Input that is already there is encoded ahead, in one pass; with
a causal encoder that is the same as encoding it token by token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.again import reads_again
from waitinfo.streaming.engine.base import BaseEngine, check_tokens
from waitinfo.streaming.engine.encoding import PASS_TOKENS, SourceEncoder
from waitinfo.streaming.engine.native import NativeWriter, native_for
from waitinfo.streaming.engine.shifting import Shifter
from waitinfo.streaming.engine.slots import (
    Numbers,
    Rows,
    Slots,
    Standing,
    TokenEvent,
    length_limit,
)
from waitinfo.streaming.engine.writing import Candidates, TargetWriter
from waitinfo.systems.base import System
from waitinfo.text.special import EOS

NOT_FINITE = (
    "the model computed values that are not finite; its weights may be damaged, or dtype too narrow"
)


class Engine(BaseEngine):
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted.

    A round encodes about `round_tokens` source tokens, so that one long text does not delay the
    other slots. Not thread-safe.
    """

    state: Slots

    @torch.no_grad()
    @torch.inference_mode(False)  # slots are also changed outside of it
    def __init__(
        self,
        model: Transformer,
        system: System,
        slots: int = 32,
        capacity: int = 256,
        ending: str = "guard",
        round_tokens: int = PASS_TOKENS,
    ) -> None:
        super().__init__(model, system, slots, capacity, ending)
        self.state = Slots(slots, capacity)
        native = native_for(model, system)
        self.source = SourceEncoder(model, self.state, round_tokens, native)
        writer = TargetWriter if native is None else NativeWriter
        self.target = writer(model, system, self.state, self.source)
        self.shifter = Shifter(model, system, self.state, self.source, self.target)
        self._for_arrays = getattr(system.ready, "for_arrays", False)
        self._runnable: dict[int, None] = {}  # slots that can go on, longest waiting first
        self._held: set[int] = set()
        self._events: list[TokenEvent] = []  # of the round under way

    # Slots

    @property
    def bytes_per_slot(self) -> int:
        """Memory that a slot takes, used or not."""
        caches = (self.source.caches, self.source.memory, self.target.caches)
        return sum(cache.nbytes for cache in caches) // self.slots

    @property
    def runnable(self) -> list[int]:
        return [slot for slot in self._runnable if slot not in self._held]

    @property
    def busy(self) -> bool:
        return any(slot not in self._held for slot in self._runnable)

    def can_go_on(self, slot: int) -> bool:
        return slot in self._runnable

    def close(self, slot: int) -> None:
        self._rest(slot)
        self._held.discard(slot)
        self.steered.discard(slot)
        self.again.discard(slot)
        self.state.close(slot)

    def reset(self, slot: int, k: float) -> None:
        if slot in self.failed:
            self.source.clear(slot)
            self.target.clear(slot)
            self.failed.discard(slot)
        self._rest(slot)
        self.state.reset(slot, k)
        self.target.reset(slot)

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        self._rest(slot)
        self.state.shift(slot, k, source, target)
        self.target.reset(slot)
        self._wake(slot)

    def hold(self, slot: int) -> None:
        self._held.add(slot)

    def resume(self, slot: int) -> None:
        self._held.discard(slot)

    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        check_tokens(tokens, self.model.config.source_vocabulary)
        self.state.feed(slot, tokens, complete)
        self.source.preview(slot)
        self._wake(slot)

    def _wake(self, slot: int) -> None:
        state = self.state
        there = len(state.sources[slot]) >= max(1, state.read[slot])
        if state.active[slot] and there and slot not in self.failed:
            self._runnable[slot] = None

    def _rest(self, slot: int) -> None:
        self._runnable.pop(slot, None)

    # Rounds

    def advance(self, only: Iterable[int] | None = None) -> list[TokenEvent]:
        rows = self.runnable
        if only is not None:
            chosen = set(only)
            rows = [slot for slot in rows if slot in chosen]
        if rows:
            self._fail(self.source.advance(rows))
            rows = self.shifter.restore(sorted(slot for slot in rows if slot not in self.failed))
        if rows:
            if self.again:
                self._events += reads_again(self.state, self.again.intersection(rows))
                self.again.difference_update(rows)
            index = np.array(rows)
            ready = self._read_on(index)
            if len(ready):
                self._write(ready)
            self._settle(index, ready)
        events, self._events = self._events, []
        return events

    def _fail(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.failed.add(slot)
            self._rest(slot)

    def _settle(self, rows: Rows, attempted: Rows) -> None:
        """Rows that cannot go on leave the rounds at once, without an empty round.

        Rows that have not attempted to WRITE could not, and nothing has changed for them.
        """
        state = self.state
        able = set(attempted[self._may_write(attempted)].tolist()) if len(attempted) else set()
        for slot in rows.tolist():
            more = slot in able or state.read.item(slot) < len(state.sources[slot])
            if not (more and state.active[slot]):
                self._rest(slot)

    def _read_on(self, rows: Rows) -> Rows:
        """Let rows READ until they may WRITE or have no more input; the rows that may."""
        state, available = self.state, self.source.available(rows)
        if self._alone(rows):
            slot, most = rows.item(), available.item()
            while not (may := self._may(slot)) and state.read.item(slot) < most:
                self._events += state.read_next([slot])
            return rows if may else rows[:0]
        while True:
            ready = self._may_write(rows)
            hungry = ~ready & (state.read[rows] < available)
            if not hungry.any():
                return rows[ready]
            self._events += state.read_next(rows[hungry].tolist())

    def _alone(self, rows: Rows) -> bool:
        """Whether there is one row, of which numbers tell all: they are faster than arrays."""
        return len(rows) == 1 and self._for_arrays and not self.state.forced

    def _may_write(self, rows: Rows) -> Numbers:
        """[R] whether rows compute their next token now."""
        if self._alone(rows):
            return np.array([self._may(rows.item())])
        may, state = self._may(rows), self.state
        if state.forced:
            read = state.read[rows]
            within = (read > 0) & (state.written[rows] < length_limit(read))
            again = state.complete[rows] | (within & state.forced.due(rows, read))
            may = np.where(state.forced.mask(rows), again, may)
        return may

    def _may(self, rows: Rows | int) -> Any:
        """Whether the system would compute the next token of some rows, or of one slot, now."""
        standing, least = self.state.standing(rows), self.state.least[rows]
        ready: Any = self.system.ready
        wanted = ready(standing) if self._for_arrays else ready(standing.tensors()).numpy()
        within = standing.written < length_limit(standing.read)
        return standing.complete | (wanted & within & (standing.read >= least))

    def _write(self, rows: Rows) -> None:
        """Compute the next token of all rows in one pass; keep those that are accepted."""
        state, standing = self.state, self.state.standing(rows)
        found = self.target.step(rows, standing)
        accepted = self._accepted(standing, found)
        kept: list[tuple[int, int, float, bool]] = []
        numbers, refused = [], []  # rows of the pass; slots
        for number, slot in enumerate(rows.tolist()):
            token, must = found.tokens[number], slot in state.forced
            if not found.finite[number]:
                self._fail([slot])
                continue
            if looping := not must and self._loops(slot, token):
                token = EOS
            early = token == EOS and self._ends_too_early(slot, looping)
            if must or (accepted[number] and not early):
                kept.append((slot, token, found.infos[number], looping))
                numbers.append(number)
            else:
                refused.append(slot)
        self.target.keep([slot for slot, *_ in kept], numbers, found)
        self._events += [state.write(*choice) for choice in kept]
        if refused:
            self._read_after_refusal(np.array(refused))

    def _accepted(self, standing: Standing, found: Candidates) -> Sequence[bool]:
        """[R] whether the system takes the computed tokens."""
        if found.step is None:
            return [True] * len(found.tokens)
        decided: list[bool] = self.system.accept(standing.tensors(), found.step).tolist()
        complete = standing.complete.tolist()
        return [a or b for a, b in zip(complete, decided, strict=True)]

    def _loops(self, slot: int, token: int) -> bool:
        """Whether a token would go on with a loop; such a translation ends instead."""
        state = self.state
        if not self.cuts_loops:
            return False
        target, source, read = state.targets[slot], state.sources[slot], state.read.item(slot)
        return state.watches[slot].loops(target, token, source, read)

    def _ends_too_early(self, slot: int, looping: bool) -> bool:
        """Whether to refuse an end because the source goes on."""
        state = self.state
        if state.complete[slot]:
            return False
        patience = state.patience.item(slot)
        if not (looping or patience > 0 or self.guard):
            return False
        if patience > 0 and state.refused[slot] >= patience and state.written[slot] > 0:
            return False
        state.refused[slot] += 1
        return True

    def _read_after_refusal(self, rows: Rows) -> None:
        """A refused row needs at least one more source token for its next attempt."""
        read = self.state.read[rows]
        self.state.least[rows] = read + 1
        more = read < self.source.available(rows)
        if more.any():
            self._events += self.state.read_next(rows[more].tolist())
