"""Rounds over all slots, each of them one launch to encode and one to READ and WRITE.

The interface and the results are those of `streaming.engine.Engine`. The host hands over what has
arrived, launches, and learns what happened from one copy; it looks at no value in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import PAGED_WIDTHS
from waitinfo.model.integers.conversion import IntegerTransformer
from waitinfo.model.row_layers import fusible
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.again import reads_again
from waitinfo.streaming.engine.base import BaseEngine, check_tokens
from waitinfo.streaming.engine.encoding import PASS_TOKENS, SMALLEST_SHARE
from waitinfo.streaming.engine.slots import TokenEvent
from waitinfo.streaming.recorded.events import TokenEvents, token_events
from waitinfo.streaming.recorded.graphs import Recorder
from waitinfo.streaming.recorded.mail import STEPS, Mail, scratch_inputs, smallest
from waitinfo.streaming.recorded.paging import BLOCK, source_side, target_side
from waitinfo.streaming.recorded.rewriting import Rewriter
from waitinfo.streaming.recorded.state import DeviceState, HostState, target_positions
from waitinfo.streaming.recorded.steps import (
    BROKEN,
    ENCODE_IN,
    FED,
    LAST,
    MAY_WRITE,
    RESTARTED,
    WRITE_IN,
    WROTE,
    Bounds,
    Steps,
)
from waitinfo.systems.base import System, by_head

# Rows of a launch: slots that write, or tokens that are encoded.
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
WINDOWS = (8, 64)  # see `Bounds.window`
USUAL_TOKENS = 64  # that arrive at once, even for few streams
RESERVED = 64  # positions per slot, on either side, that memory is taken for at the start


def recordable(model: Transformer, system: System) -> bool:
    """Whether the steps of a system have shapes that do not depend on what is computed.

    Models computed with integers have an attention of their own, which does not know blocks.
    """
    integers = isinstance(model, IntegerTransformer)
    return model.config.encoder == "causal" and not system.fresh_past and not integers


def _steps_for(model: Transformer, system: System) -> type[Steps]:
    """Fused steps where there are kernels for them: on a GPU, for usual models and systems."""
    if model.device.type != "cuda" or by_head(model, system) or not fusible(model):
        return Steps
    from waitinfo.streaming.recorded.fused import FusedSteps

    return FusedSteps


class _Piece(NamedTuple):
    """Source tokens to encode in one launch, [M] each."""

    slots: np.ndarray
    at: np.ndarray  # positions
    turn: np.ndarray  # 0, 1, … for the tokens of a slot
    size: int  # rows of the launch, 0 for none


class RecordedEngine(BaseEngine):
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted.

    Memory is taken for RESERVED positions of every slot and grows when that is not enough. Not
    thread-safe.
    """

    state: HostState

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
        reserved: int = RESERVED,
    ) -> None:
        super().__init__(model, system, slots, capacity, ending)
        if not recordable(model, system):
            raise WaitinfoError(f"{system.name} with this model cannot be recorded; use Engine")
        self.round_tokens = round_tokens
        self.state = HostState(slots, capacity)
        positions = self._longest_target = target_positions(capacity)
        blocks = [1 + slots * -(-min(reserved, n) // BLOCK) for n in (capacity, positions)]
        self.source = source_side(model, slots, capacity, blocks[0])
        self.target = target_side(model, slots, positions, blocks[1])
        device = DeviceState(model, slots, self.source.table.width * BLOCK)
        kind = _steps_for(model, system)
        self.steps = kind(
            model, system, self.guard, self.cuts_loops, device, self.source, self.target
        )
        self.recorder = Recorder(model.device)
        self._mail = Mail(model.device, ROWS[-1], smallest(ROWS, slots))
        self._rewriter = Rewriter(self.steps, self.recorder, self.state, ROWS)
        head = model.config.width // model.config.heads
        in_place = model.device.type == "cuda" and head in PAGED_WIDTHS
        # Where attention reads blocks in place, longer bounds cost little: few are recorded.
        self._lengths = [2**n for n in (range(9, 24, 2) if in_place else range(5, 24))]

    # Slots

    @property
    def bytes_per_slot(self) -> int:
        """Memory that a slot takes on average."""
        return (self.source.nbytes + self.target.nbytes) // self.slots

    @property
    def runnable(self) -> list[int]:
        return self._runnable().tolist()

    @property
    def busy(self) -> bool:
        return bool((self.state.going & ~self.state.held).any())

    def _runnable(self) -> np.ndarray:
        return (self.state.going & ~self.state.held).nonzero()[0]

    def can_go_on(self, slot: int) -> bool:
        return bool(self.state.going[slot])

    def close(self, slot: int) -> None:
        self._release(slot)
        self.steered.discard(slot)
        self.again.discard(slot)
        self.state.close(slot)

    def reset(self, slot: int, k: float) -> None:
        self._release(slot)
        self.state.reset(slot, k)

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        self._release(slot)
        self.state.shift(slot, k, source, target)
        self._wake(slot)

    @torch.inference_mode()
    def _release(self, slot: int) -> None:
        for side in (self.source, self.target):
            if slot in self.failed:
                side.clear(slot)
            side.table.release(slot)
        self.failed.discard(slot)

    def hold(self, slot: int) -> None:
        self.state.held[slot] = True

    def resume(self, slot: int) -> None:
        self.state.held[slot] = False

    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        check_tokens(tokens, self.model.config.source_vocabulary)
        self.state.feed(slot, tokens, complete)
        self._wake(slot)

    def _wake(self, slot: int) -> None:
        state = self.state
        there = state.length[slot] >= max(1, state.read[slot])
        if state.active[slot] and there and slot not in self.failed:
            state.going[slot] = True

    # Rounds

    def advance(self, only: Iterable[int] | None = None) -> Sequence[TokenEvent]:
        rows = self._runnable()
        if only is not None:
            rows = np.intersect1d(rows, np.fromiter(only, np.int64))
        if self.state.shifted:
            rows = self._restore(rows)
        again = reads_again(self.state, self.again.intersection(rows.tolist()))
        events = [self._launch(some, counts) for some, counts in self._passes(rows)]
        if again:
            self.again.difference_update(rows.tolist())
            events.insert(0, again)
        return events[0] if len(events) == 1 else [event for some in events for event in some]

    def _passes(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Split a round into launches: rows, and how many source tokens each of them encodes."""
        if not len(rows):
            return
        counts = self.state.length[rows] - self.state.encoded[rows]
        waiting = int(np.count_nonzero(counts))
        if waiting:
            share = max(SMALLEST_SHARE, self.round_tokens // waiting)
            counts = np.minimum(counts, min(share, ROWS[-1]))
        most = self._mail.rows
        while len(rows):
            fits = int(counts.cumsum().searchsorted(ROWS[-1], side="right"))
            size = min(most, max(1, fits))
            yield rows[:size], counts[:size]
            rows, counts = rows[size:], counts[size:]

    @torch.inference_mode()
    def _restore(self, rows: np.ndarray) -> np.ndarray:
        """Compute the kept tokens of shifted rows; the rows that can go on in this round."""
        state = self.state
        waiting = rows[np.isin(rows, list(state.shifted))]
        for some, counts in self._passes(waiting):
            piece = self._piece(some, counts)
            bounds = self._make_room(some, state.encoded[some] + counts, state.written[some] + 1, 0)
            self._record(piece.size, 0, bounds)
            self._mail_source(piece)
            self._compute(piece.size, 0, bounds, 0)
            self._receive(some, counts, piece)
        fine = rows[~np.isin(rows, list(self.failed))]
        waiting = np.intersect1d(waiting, fine)
        done = waiting[state.encoded[waiting] >= state.read[waiting]]
        if len(done):
            bounds = self._make_room(done, state.encoded[done], state.written[done] + 1, 0)
            self._rewriter.run(done, bounds)
            state.shifted.difference_update(done.tolist())
        return fine[~np.isin(fine, list(state.shifted))]

    @torch.inference_mode()
    def _launch(self, rows: np.ndarray, counts: np.ndarray) -> Sequence[TokenEvent]:
        state, mail = self.state, self._mail
        length, before, read, written = state.counts[:, rows]
        fed = state.fed[rows]
        encoded = before + counts
        ahead = int((encoded - read).max())
        # At the end of a source many words are released: take several steps before looking.
        ending = (fed & (encoded == length)).any()
        steps = STEPS if ending else min(2, max(1, ahead))
        if state.forced or (self.steered and not self.steered.isdisjoint(rows.tolist())):
            steps = 1  # the device knows one forced token, and one dial, at a time
        bounds = self._make_room(rows, encoded, written + steps, ahead)
        piece, width = self._piece(rows, counts), smallest(ROWS, len(rows))
        self._record(piece.size, width, bounds)
        self._mail_source(piece)
        flags = FED * fed + RESTARTED * state.restarted[rows]
        following = state.forced.following(rows) if state.forced else np.zeros((2, 1))
        columns = (length, encoded, flags, state.k[rows], state.patience[rows], *following)
        mail.fill(mail.write_in(width), self.slots, rows, *columns)
        steps = self._compute(piece.size, width, bounds, steps)

        state.restarted[rows] = False
        self._receive(rows, counts, piece)
        found = [mail.write_out(width, step)[:, : len(rows)] for step in range(steps)]
        events = [self._settle(rows, out) for out in found]
        return events[0] if steps == 1 else [event for some in events for event in some]

    def _piece(self, rows: np.ndarray, counts: np.ndarray) -> _Piece:
        """The next source tokens of some rows, so many of each."""
        slots = rows.repeat(counts)
        if not len(slots):
            return _Piece(slots, slots, slots, 0)
        turn = np.arange(len(slots)) - (counts.cumsum() - counts).repeat(counts)
        at = self.state.encoded[slots] + turn
        self.state.repeated.extend(self.state.sources, rows, self.state.encoded[rows] + counts)
        return _Piece(slots, at, turn, smallest(ROWS, len(slots)))

    def _mail_source(self, piece: _Piece) -> None:
        if piece.size:
            state, slots, at = self.state, piece.slots, piece.at
            columns = (slots, at, state.sources[slots, at], state.repeated.most[slots, at + 1])
            self._mail.fill(self._mail.encode_in(piece.size), self.slots, *columns)

    def _receive(self, rows: np.ndarray, counts: np.ndarray, piece: _Piece) -> None:
        """Take over what the device reports of encoded tokens."""
        if piece.size:
            info, finite = self._mail.encode_out(piece.size)[:, : len(piece.slots)]
            self.state.receive(piece.slots, piece.at, piece.turn, info)
            if not finite.all():
                self._fail(np.unique(piece.slots[finite == 0]))
            self.state.encoded[rows] += counts

    def _compute(self, tokens: int, width: int, bounds: Bounds, steps: int) -> int:
        """Run a launch: encode, then some steps in a row; how many were taken.

        An error in a later step ends the row of steps: the next round meets it again in its first
        step, which changes nothing before it is through.
        """
        mail, recorder = self._mail, self.recorder
        mail.send(tokens, width)
        if tokens:
            encode = partial(self._encode, tokens, bounds)
            recorder.run(("encode", tokens, bounds.source), encode)
        key, write = ("write", width, bounds), partial(self._write, width, bounds)
        if steps:
            recorder.run(key, write)
        mail.fetch(tokens, width)
        taken = min(steps, 1)
        with suppress(Exception):
            while taken < steps:
                recorder.run(key, write)
                mail.fetch_later(width, taken)
                taken += 1
        mail.wait()
        return taken

    def _encode(self, tokens: int, bounds: Bounds) -> None:
        mail = self._mail
        self.steps.encode(mail.to_encode(tokens), mail.from_encode(tokens), bounds)

    def _write(self, width: int, bounds: Bounds) -> None:
        mail = self._mail
        self.steps.write(mail.to_write(width), mail.from_write(width), bounds)

    def _make_room(
        self, rows: np.ndarray, encoded: np.ndarray, written: np.ndarray, ahead: int
    ) -> Bounds:
        """Give rows room for so many source and target positions, and bound a launch by them."""
        moved = self.source.reserve(rows, encoded)
        moved |= self.target.reserve(rows, np.minimum(written, self._longest_target))
        if moved:
            self.recorder.forget()
        sides, most = (self.source, self.target), (int(encoded.max()), int(written.max()))
        for side in sides:
            side.table.upload()
        lengths = [
            min(smallest(self._lengths, length), side.table.width * BLOCK)
            for side, length in zip(sides, most, strict=True)
        ]
        return Bounds(smallest(WINDOWS, ahead + 1), *lengths)

    def _record(self, tokens: int, width: int, bounds: Bounds) -> None:
        """Make the recordings of a launch that are missing, on rows of scratch."""
        encode, write = ("encode", tokens, bounds.source), ("write", width, bounds)
        if tokens and not self.recorder.knows(encode):
            self._mail.to_encode(tokens).copy_(scratch_inputs(ENCODE_IN, self.slots))
            self.recorder.record(encode, partial(self._encode, tokens, bounds))
        if width and not self.recorder.knows(write):
            self._mail.to_write(width).copy_(scratch_inputs(WRITE_IN, self.slots))
            self.recorder.record(write, partial(self._write, width, bounds))

    @torch.inference_mode()
    def prepare(self) -> int:
        """Record the usual launches ahead, so that no stream waits for it; how many there are."""
        source, target = self.source.table.width * BLOCK, self.target.table.width * BLOCK
        shortest = self._lengths[0]
        most = self._mail.rows
        for window in WINDOWS:
            bounds = Bounds(window, min(shortest, source), min(shortest, target))
            for rows in ROWS:
                tokens = rows if rows <= max(most, USUAL_TOKENS) else 0
                self._record(tokens, min(rows, most), bounds)
        return self.recorder.recorded

    def _fail(self, slots: np.ndarray) -> None:
        self.failed.update(slots.tolist())
        self.state.going[slots] = False

    def _settle(self, rows: np.ndarray, out: np.ndarray) -> TokenEvents:
        """Take over what the device reports of some rows; their events."""
        state = self.state
        flags = out[2].astype(np.int64)
        self._fail(rows[(flags & BROKEN) > 0])
        if self.failed:
            fine = ~np.isin(rows, list(self.failed))
            rows, out, flags = rows[fine], out[:, fine], flags[fine]
        after = out[1].astype(np.int64)
        wrote = (flags & WROTE) > 0
        events = token_events(state, rows, after, flags, out[3:])
        state.write(rows[wrote], out[3][wrote], after[wrote])
        state.read[rows] = after
        state.target_info[rows] = out[5]
        state.active[rows] &= (flags & LAST) == 0
        # Rows that cannot go on leave the rounds at once, without an empty round.
        able = (flags & MAY_WRITE) > 0
        if state.forced:
            state.forced.written(rows[wrote].tolist())
            complete = state.fed[rows] & (after == state.length[rows])
            again = complete | (state.forced.due(rows, after) & (after > 0))
            able = np.where(state.forced.mask(rows), again, able)
        able |= after < state.length[rows]
        state.going[rows] = able & state.active[rows]
        return events
