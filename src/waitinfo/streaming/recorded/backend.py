"""The backend that launches recorded steps: a round is one or two launches, however many streams.

The host hands over what has arrived, launches, and learns what happened from one copy; it looks at
no value in between. The device READs, WRITEs and refuses by itself (`steps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.model import IntegerModel, Network
from waitinfo.model.attention import PAGED_WIDTHS
from waitinfo.model.row_layers import fusible
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.backend import SMALLEST_SHARE, Backend, Events, Rules
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots, target_positions
from waitinfo.streaming.engine.token_events import LENGTH, LOOP, TokenEvents
from waitinfo.streaming.recorded.launches import (
    STEPS,
    LaunchRecorder,
    Tables,
    buffers,
    scratch_inputs,
    smallest,
)
from waitinfo.streaming.recorded.memory import (
    BLOCK,
    COUNTS,
    READ_COUNT,
    WRITTEN,
    DeviceState,
    source_side,
    target_side,
)
from waitinfo.streaming.recorded.steps import (
    BROKEN,
    ENCODE_IN,
    FED,
    LAST,
    LOOPED,
    MAY_WRITE,
    RESTARTED,
    REWRITE_IN,
    REWRITE_OUT,
    WRITE_IN,
    WROTE,
    Bounds,
    Steps,
)
from waitinfo.systems.base import System, by_head
from waitinfo.text.special import BOS, EOS

# Rows of a launch: slots that write, or tokens that are encoded.
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
WINDOWS = (8, 64)  # see `Bounds.window`
USUAL_TOKENS = 64  # that arrive at once, even for few streams
RESERVED = 64  # positions per slot, on either side, that memory is taken for at the start
LEAST_POSITIONS = 4096  # of all slots together, that memory is taken for at the start


def recordable(model: Network, system: System) -> bool:
    """Whether the steps of a system have shapes that do not depend on what is computed.

    Models computed with integers have an attention of their own, which does not know blocks.
    """
    integers = isinstance(model, IntegerModel)
    words = {"source_words", "target_words"}  # made on the host
    fits = not system.fresh_past and words.isdisjoint(system.asks)
    return model.config.encoder == "causal" and model.config.usual and fits and not integers


def _steps_for(model: Transformer, system: System) -> type[Steps]:
    """Fused steps where there are kernels for them: on a GPU, for usual models and systems."""
    usual = set(system.asks) <= {"logits", "states"} and not system.memory and not system.waits
    if model.device.type != "cuda" or by_head(model, system) or not usual or not fusible(model):
        return Steps
    from waitinfo.streaming.recorded.fused import FusedSteps

    return FusedSteps


class _Piece(NamedTuple):
    """Source tokens to encode in one launch, [M] each."""

    slots: np.ndarray
    at: np.ndarray  # positions
    turn: np.ndarray  # 0, 1, … for the tokens of a slot
    size: int  # rows of the launch, 0 for none


class RecordedBackend(Backend):
    """Memory is taken for `reserved` positions of every slot and grows when that is not enough."""

    name = "recorded"

    def __init__(
        self,
        model: Transformer,
        system: System,
        slots: Slots,
        rules: Rules,
        reserved: int = RESERVED,
    ) -> None:
        super().__init__(model, system, slots, rules)
        if not recordable(model, system):
            raise WaitinfoError(f"{system.name} with this model cannot be recorded; use Engine")
        count, capacity = slots.count, slots.capacity
        positions = self._longest_target = target_positions(capacity)
        blocks = [1 + count * -(-min(reserved, n) // BLOCK) for n in (capacity, positions)]
        self.source = source_side(model, count, capacity, blocks[0])
        self.target = target_side(model, count, positions, blocks[1])
        device = DeviceState(model, system, count, self.source.table.width * BLOCK)
        kind = _steps_for(model, system)
        self.steps = kind(
            model, system, rules.guard, rules.cuts_loops, device, self.source, self.target
        )
        self.recorder = LaunchRecorder(model.device)
        self._tables = Tables(model.device, ROWS[-1], smallest(ROWS, count))
        self._again_host, self._again = buffers(REWRITE_IN * ROWS[-1], model.device)
        self._again_out = torch.zeros(
            REWRITE_OUT * ROWS[-1], dtype=torch.float64, device=model.device
        )
        head = model.config.width // model.config.heads
        in_place = model.device.type == "cuda" and head in PAGED_WIDTHS
        # Where attention reads blocks in place, longer bounds cost little: few are recorded.
        self._lengths = [2**n for n in (range(9, 24, 2) if in_place else range(5, 24))]

    @property
    def nbytes(self) -> int:
        return self.source.nbytes + self.target.nbytes

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        for side in (self.source, self.target):
            if slot in self.slots.failed:
                side.clear(slot)
            side.table.release(slot)

    def remembered(self, slot: int) -> Numbers:
        fresh = self.slots.restarted[slot]
        return self.slots.memory[slot] if fresh else self.steps.state.memory[slot].cpu().numpy()

    # Rounds

    def encode(self, rows: Chosen) -> None:
        for some, counts in self._passes(rows):
            self._launch(some, counts, write=False)

    def step(self, rows: Chosen, found: Events) -> None:
        most = self._tables.rows
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            found += self._launch(some, np.zeros(len(some), np.int64))

    def advance(self, rows: Chosen, found: Events) -> None:
        """Both in one launch."""
        for some, counts in self._passes(rows):
            found += self._launch(some, counts)

    def _passes(self, rows: Chosen) -> Iterator[tuple[Chosen, Numbers]]:
        """Split a round into launches: rows, and how many source tokens each of them encodes."""
        slots = self.slots
        counts = slots.length[rows] - slots.encoded[rows]
        waiting = int(np.count_nonzero(counts))
        if waiting:
            share = max(SMALLEST_SHARE, self.rules.round_tokens // waiting)
            counts = np.minimum(counts, min(share, ROWS[-1]))
        most = self._tables.rows
        while len(rows):
            fits = int(counts.cumsum().searchsorted(ROWS[-1], side="right"))
            size = min(most, max(1, fits))
            yield rows[:size], counts[:size]
            rows, counts = rows[size:], counts[size:]

    @torch.inference_mode()
    def _launch(self, rows: Chosen, counts: Numbers, write: bool = True) -> list[TokenEvents]:
        """Encode the next tokens of some rows; then, if asked for, READ and WRITE."""
        slots, tables = self.slots, self._tables
        length, before, read, written = slots.counts[:, rows]
        fed, encoded = slots.fed[rows], before + counts
        ahead = int((encoded - read).max()) if write else 0
        steps = self._steps(rows, ahead, (fed & (encoded == length)).any()) if write else 0
        bounds = self._make_room(rows, encoded, written + max(1, steps), ahead)
        piece, width = self._piece(rows, counts), smallest(ROWS, len(rows)) if write else 0
        self._record(piece.size, width, bounds)
        if piece.size:
            at = (
                slots.sources[piece.slots, piece.at],
                slots.repeated.most[piece.slots, piece.at + 1],
            )
            tables.fill(tables.encode_in(piece.size), slots.count, piece.slots, piece.at, *at)
        if write:
            flags = FED * fed + RESTARTED * slots.restarted[rows]
            following = slots.forced.following(rows) if slots.forced else np.zeros((2, 1))
            columns = length, encoded, flags, slots.k[rows], slots.patience[rows], *following
            tables.fill(tables.write_in(width), slots.count, rows, *columns)
        steps = self._compute(piece.size, width, bounds, steps)

        if piece.size:
            info, finite = tables.encode_out(piece.size)[:, : len(piece.slots)]
            for nth in range(int(piece.turn.max()) + 1):  # where a slot has several tokens
                some = piece.turn == nth
                slots.receive_each(piece.slots[some], piece.at[some], info[some])
            slots.encoded[rows] += counts
            if not finite.all():
                slots.fail(np.unique(piece.slots[finite == 0]).tolist())
        if write:
            slots.restarted[rows] = False
        found = [tables.write_out(width, step)[:, : len(rows)] for step in range(steps)]
        return [self._settle(rows, out) for out in found]

    def _steps(self, rows: Chosen, ahead: int, ending: bool) -> int:
        """Steps to take in a row before looking; at the end of a source many words are released."""
        slots = self.slots
        if slots.forced or (slots.steered and not slots.steered.isdisjoint(rows.tolist())):
            return 1  # the device knows one forced token, and one dial, at a time
        return STEPS if ending else min(2, max(1, ahead))

    def _piece(self, rows: Chosen, counts: Numbers) -> _Piece:
        """The next source tokens of some rows, of each a given number."""
        slots = rows.repeat(counts)
        if not len(slots):
            return _Piece(slots, slots, slots, 0)
        turn = np.arange(len(slots)) - (counts.cumsum() - counts).repeat(counts)
        encoded = self.slots.encoded
        self.slots.repeated.extend(self.slots.sources, rows, encoded[rows] + counts)
        return _Piece(slots, encoded[slots] + turn, turn, smallest(ROWS, len(slots)))

    def _compute(self, tokens: int, width: int, bounds: Bounds, steps: int) -> int:
        """Run a launch: encode, then some steps in a row; how many were taken.

        An error in a later step ends the row of steps: the next round meets it again in its first
        step, which changes nothing before it is through.
        """
        tables, recorder = self._tables, self.recorder
        tables.send(tokens, width)
        if tokens:
            encode = partial(self._encode, tokens, bounds)
            recorder.run(("encode", tokens, bounds.source), encode)
        key, write = ("write", width, bounds), partial(self._write, width, bounds)
        if steps:
            recorder.run(key, write)
        tables.fetch(tokens, width)
        taken = min(steps, 1)
        with suppress(Exception):
            while taken < steps:
                recorder.run(key, write)
                tables.fetch_later(width, taken)
                taken += 1
        tables.wait()
        return taken

    def _encode(self, tokens: int, bounds: Bounds) -> None:
        tables = self._tables
        self.steps.encode(tables.to_encode(tokens), tables.from_encode(tokens), bounds)

    def _write(self, width: int, bounds: Bounds) -> None:
        tables = self._tables
        self.steps.write(tables.to_write(width), tables.from_write(width), bounds)

    def _make_room(self, rows: Chosen, encoded: Numbers, written: Numbers, ahead: int) -> Bounds:
        """Give rows room for more source and target positions, and bound a launch by them."""
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
        unused = self.slots.count
        encode, write = ("encode", tokens, bounds.source), ("write", width, bounds)
        if tokens and not self.recorder.knows(encode):
            self._tables.to_encode(tokens).copy_(scratch_inputs(ENCODE_IN, unused))
            self.recorder.record(encode, partial(self._encode, tokens, bounds))
        if width and not self.recorder.knows(write):
            self._tables.to_write(width).copy_(scratch_inputs(WRITE_IN, unused))
            self.recorder.record(write, partial(self._write, width, bounds))

    @torch.inference_mode()
    def prepare(self) -> int:
        """Record the usual launches ahead, so that no stream waits for it; how many there are."""
        source, target = self.source.table.width * BLOCK, self.target.table.width * BLOCK
        shortest = self._lengths[0]
        most = self._tables.rows
        for window in WINDOWS:
            bounds = Bounds(window, min(shortest, source), min(shortest, target))
            for rows in ROWS:
                tokens = rows if rows <= max(most, USUAL_TOKENS) else 0
                self._record(tokens, min(rows, most), bounds)
        return self.recorder.recorded

    def _settle(self, rows: Chosen, out: Numbers) -> TokenEvents:
        """Take over what the device reports of some rows; their events."""
        slots = self.slots
        flags = out[2].astype(np.int64)
        slots.fail(rows[(flags & BROKEN) > 0].tolist())
        if slots.failed:
            fine = ~np.isin(rows, list(slots.failed))
            rows, out, flags = rows[fine], out[:, fine], flags[fine]
        after = out[1].astype(np.int64)
        wrote = (flags & WROTE) > 0
        events = token_events(slots, rows, after, flags, out[3:])
        writers, written = rows[wrote], slots.written[rows[wrote]]
        slots.targets[writers, written] = out[3][wrote]
        slots.paths[writers, written] = after[wrote]
        slots.written[writers] += 1
        slots.read[rows], slots.target_info[rows] = after, out[5]
        slots.active[rows] &= (flags & LAST) == 0
        able = (flags & MAY_WRITE) > 0
        if slots.forced:
            slots.forced.written(writers.tolist())
            token, due = slots.forced.following(rows)
            complete = slots.fed[rows] & (after == slots.length[rows])
            able = np.where(token > 0, complete | ((after >= due) & (after > 0)), able)
        slots.settle(rows, able)
        return events

    # What is kept

    @torch.inference_mode()
    def rewrite(self, rows: Chosen) -> None:
        """All tokens of all slots are rows of one launch.

        Unless cross-attention carries state from one position to the next.
        """
        slots = self.slots
        written, read = slots.written[rows], slots.read[rows]
        bounds = self._make_room(rows, slots.encoded[rows], written + 1, 0)
        counts = written + 1  # begin-of-sequence comes first
        first = counts.cumsum() - counts
        index = rows.repeat(counts)
        at = np.arange(len(index)) - first.repeat(counts)
        final = at == slots.written[index]
        token = np.where(at > 0, slots.targets[index, at - 1], BOS)
        seen = np.where(final, slots.read[index], slots.paths[index, at])
        table = np.stack([index, at, token, seen, slots.k[index], final]).astype(np.float64)
        infos = np.zeros(len(index))
        for some in self._groups(at):
            infos[some] = self._compute_again(table[:, some], bounds)
        slots.target_info[rows] = np.add.reduceat(np.where(at > 0, infos, 0.0), first)
        told = np.zeros((len(rows), COUNTS), np.int64)
        told[:, READ_COUNT], told[:, WRITTEN] = read, written
        sums = np.stack([slots.source_info[rows], slots.target_info[rows]], 1)
        targets = slots.targets[rows, : int(written.max())], slots.runs[rows]
        arrays = rows, told, sums, *targets, slots.memory[rows]
        device = self._again.device
        self.steps.state.set(*(torch.from_numpy(array).to(device) for array in arrays))
        slots.restarted[rows] = False

    def _groups(self, at: Numbers) -> Iterator[Numbers]:
        """Rows that can be computed together, in their order."""
        if self.steps.state.carried:
            every = [(at == place).nonzero()[0] for place in range(int(at.max()) + 1)]
        else:
            every = [np.arange(len(at))]
        for some in every:
            for start in range(0, len(some), ROWS[-1]):
                yield some[start : start + ROWS[-1]]

    def _compute_again(self, table: Numbers, bounds: Bounds) -> Numbers:
        """Run a launch on inputs [6, M]; the info [M] of its tokens."""
        width, unused = smallest(ROWS, table.shape[1]), self.slots.count
        inputs = self._again[: REWRITE_IN * width].view(REWRITE_IN, width)
        out = self._again_out[: REWRITE_OUT * width].view(REWRITE_OUT, width)
        key, compute = ("rewrite", width, bounds), partial(self.steps.rewrite, inputs, out, bounds)
        if not self.recorder.knows(key):
            inputs.copy_(scratch_inputs(REWRITE_IN, unused))
            self.recorder.record(key, compute)
        host = self._again_host[: REWRITE_IN * width].view(REWRITE_IN, width)
        Tables.fill(host.numpy(), unused, *table)
        inputs.copy_(host, non_blocking=True)
        self.recorder.run(key, compute)
        return out[0, : table.shape[1]].cpu().numpy()


def new_backend(model: Transformer, system: System, slots: Slots, rules: Rules) -> RecordedBackend:
    """One with its usual launches recorded."""
    reserved = max(RESERVED, LEAST_POSITIONS // slots.count)
    backend = RecordedBackend(model, system, slots, rules, reserved)
    backend.prepare()
    return backend


def token_events(
    slots: Slots, rows: Chosen, after: Numbers, flags: Numbers, written: Numbers
) -> TokenEvents:
    """What each row READ, `after` tokens in all, and then, maybe, WROTE.

    `written` holds token, info and total. `slots` are those before the step.
    """
    reads = after - slots.read[rows]
    count = reads + ((flags & WROTE) > 0)
    index = np.arange(len(rows)).repeat(count)
    nth = np.arange(len(index)) - (count.cumsum() - count).repeat(count)
    write = nth == reads[index]
    slot = rows[index]
    read = slots.read[slot] + np.minimum(nth + 1, reads[index])
    total = slots.received[slot, read]
    place = np.maximum(read - 1, 0)
    token = np.where(write, written[0, index].astype(np.int64), slots.sources[slot, place])
    last, looped = write & ((flags & LAST) > 0)[index], (flags & LOOPED) > 0
    return TokenEvents(
        slot=slot,
        write=write,
        token=token,
        info=np.where(write, written[1, index], total - slots.received[slot, place]),
        read=read,
        written=slots.written[slot] + write,
        source_info=total,
        target_info=np.where(write, written[2, index], slots.target_info[slot]),
        last=last,
        cut=np.where(looped[index] & last, LOOP, LENGTH * (last & (token != EOS))),
    )
