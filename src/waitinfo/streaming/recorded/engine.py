"""Rounds over all slots, each of them one launch to encode and one to READ and WRITE.

The interface and the results are those of `streaming.engine.Engine`. The host hands over what has
arrived, launches, and learns what happened from one copy; it looks at no value in between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import PAGED_WIDTHS
from waitinfo.model.integer import IntegerEmbedding
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.base import BaseEngine
from waitinfo.streaming.engine.encoding import PASS_TOKENS, SMALLEST_SHARE
from waitinfo.streaming.engine.forcing import Path
from waitinfo.streaming.engine.slots import TokenEvent
from waitinfo.streaming.recorded.events import TokenEvents
from waitinfo.streaming.recorded.graphs import Recorder
from waitinfo.streaming.recorded.mail import STEPS, Mail
from waitinfo.streaming.recorded.paging import BLOCK, source_side, target_side
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
from waitinfo.systems.base import System

# Rows of a launch: slots that write, or tokens that are encoded.
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
WINDOWS = (8, 64)  # see `Bounds.window`
USUAL_TOKENS = 64  # that arrive at once, even for few streams
RESERVED = 64  # positions per slot, on either side, that memory is taken for at the start


def recordable(model: Transformer, system: System) -> bool:
    """Whether the steps of a system have shapes that do not depend on what is computed.

    Models computed with integers have an attention of their own, which does not know blocks.
    """
    integers = isinstance(model.target_embedding, IntegerEmbedding)
    return model.config.encoder == "causal" and not system.fresh_past and not integers


def smallest(choices: Sequence[int], least: int) -> int:
    """The smallest choice that is at least `least`, or the largest."""
    return choices[min(bisect_left(choices, least), len(choices) - 1)]


class RecordedEngine(BaseEngine):
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted.

    Memory is taken for RESERVED positions of every slot and grows when that is not enough. Not
    thread-safe.
    """

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
        self.host = HostState(slots, capacity)
        positions = self._longest_target = target_positions(capacity)
        blocks = [1 + slots * -(-min(reserved, n) // BLOCK) for n in (capacity, positions)]
        self.source = source_side(model, slots, capacity, blocks[0])
        self.target = target_side(model, slots, positions, blocks[1])
        device = DeviceState(model, slots, self.source.table.width * BLOCK)
        self.steps = Steps(model, system, self.guard, device, self.source, self.target)
        self.recorder = Recorder(model.device)
        self._mail = Mail(model.device, ROWS[-1], smallest(ROWS, slots))
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
    def free(self) -> list[int]:
        """Slots that are not in use."""
        return self.host.free

    @property
    def fed(self) -> np.ndarray:
        """By slot: whether its source is complete."""
        return self.host.fed

    @property
    def runnable(self) -> list[int]:
        """The slots of the next round."""
        return self._runnable().tolist()

    @property
    def busy(self) -> bool:
        """Whether a round would do something."""
        return bool((self.host.going & ~self.host.held).any())

    def _runnable(self) -> np.ndarray:
        return (self.host.going & ~self.host.held).nonzero()[0]

    def can_go_on(self, slot: int) -> bool:
        """Whether a slot has something to do without more input."""
        return bool(self.host.going[slot])

    def open(self, k: float) -> int:
        """A slot for a new stream."""
        slot = self.host.open()
        self.reset(slot, k)
        return slot

    def close(self, slot: int) -> None:
        """Give a slot back, whatever it is doing."""
        self._release(slot)
        self.host.close(slot)

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self._release(slot)
        self.host.reset(slot, k)

    @torch.inference_mode()
    def _release(self, slot: int) -> None:
        for side in (self.source, self.target):
            if slot in self.failed:
                side.clear(slot)
            side.table.release(slot)
        self.failed.discard(slot)

    def set_dial(self, slot: int, k: float) -> None:
        """Turn a slot's dial; counts from the next decision on."""
        if self.host.k[slot] != k:
            self.host.k[slot] = k
            self._wake(slot)

    def force(self, slot: int, path: Path) -> None:
        """Write these tokens first, each once so many source tokens are read."""
        self.host.forced.put(slot, path)

    def hold(self, slot: int) -> None:
        """Leave a slot out of the rounds until `resume`."""
        self.host.held[slot] = True

    def resume(self, slot: int) -> None:
        self.host.held[slot] = False

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.host.room(slot)

    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        """Source tokens that have arrived; `complete` adds end-of-sentence."""
        self.host.feed(slot, tokens, complete)
        self._wake(slot)

    def _wake(self, slot: int) -> None:
        host = self.host
        if host.active[slot] and host.length[slot] and slot not in self.failed:
            host.going[slot] = True

    # Rounds

    def advance(self, only: Iterable[int] | None = None) -> Sequence[TokenEvent]:
        """One round of all slots that can go on, or of some of them.

        If it raises, no token is lost or computed twice: the next round continues from there.
        """
        rows = self._runnable()
        if only is not None:
            rows = np.intersect1d(rows, np.fromiter(only, np.int64))
        events = [self._launch(some, counts) for some, counts in self._passes(rows)]
        return events[0] if len(events) == 1 else [event for some in events for event in some]

    def _passes(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Split a round into launches: rows, and how many source tokens each of them encodes."""
        if not len(rows):
            return
        counts = self.host.length[rows] - self.host.encoded[rows]
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
    def _launch(self, rows: np.ndarray, counts: np.ndarray) -> Sequence[TokenEvent]:
        host, mail = self.host, self._mail
        length, before, read, written = host.counts[:, rows]
        fed = host.fed[rows]
        encoded = before + counts
        # At the end of a source many words are released: take several steps before looking.
        ending = (fed & (encoded == length)).any()
        ahead = int((encoded - read).max())
        steps = STEPS if ending else min(2, max(1, ahead))
        if forced := host.forced:
            steps = 1  # the device knows one forced token at a time
        self._reserve(rows, encoded, written + steps)
        bounds = self._bounds(ahead, int(encoded.max()), int(written.max()) + steps)
        slots = rows.repeat(counts)
        tokens = smallest(ROWS, len(slots)) if len(slots) else 0
        width = smallest(ROWS, len(rows))
        self._record(tokens, width, bounds)
        if tokens:
            offsets = np.arange(len(slots)) - (counts.cumsum() - counts).repeat(counts)
            at = before.repeat(counts) + offsets
            mail.fill(mail.encode_in(tokens), self.slots, slots, at, host.sources[slots, at])
        flags = FED * fed + RESTARTED * host.restarted[rows]
        following = forced.following(rows) if forced else np.zeros((2, 1))
        columns = (rows, length, encoded, flags, host.k[rows], *following)
        mail.fill(mail.write_in(width), self.slots, *columns)
        steps = self._compute(tokens, width, bounds, steps)

        host.restarted[rows] = False
        if tokens:
            info, finite = mail.encode_out(tokens)[:, : len(slots)]
            host.receive(slots, at, offsets, info)
            if not finite.all():
                self._fail(np.unique(slots[finite == 0]))
            host.encoded[rows] = encoded
        found = [mail.write_out(width, step)[:, : len(rows)] for step in range(steps)]
        events = [self._settle(rows, out) for out in found]
        return events[0] if steps == 1 else [event for some in events for event in some]

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
        recorder.run(key, write)
        mail.fetch(tokens, width)
        taken = 1
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

    def _reserve(self, rows: np.ndarray, encoded: np.ndarray, written: np.ndarray) -> None:
        """Give rows room for so many source and target positions."""
        moved = self.source.reserve(rows, encoded)
        moved |= self.target.reserve(rows, np.minimum(written, self._longest_target))
        if moved:
            self.recorder.forget()
        self.source.table.upload()
        self.target.table.upload()

    def _bounds(self, ahead: int, source: int, target: int) -> Bounds:
        return Bounds(
            smallest(WINDOWS, ahead + 1),
            min(smallest(self._lengths, source), self.source.table.width * BLOCK),
            min(smallest(self._lengths, target), self.target.table.width * BLOCK),
        )

    def _record(self, tokens: int, width: int, bounds: Bounds) -> None:
        """Make the recordings of a launch that are missing, on rows of scratch."""
        encode, write = ("encode", tokens, bounds.source), ("write", width, bounds)
        if tokens and not self.recorder.knows(encode):
            self._mail.to_encode(tokens).copy_(self._scratch(ENCODE_IN))
            self.recorder.record(encode, partial(self._encode, tokens, bounds))
        if not self.recorder.knows(write):
            self._mail.to_write(width).copy_(self._scratch(WRITE_IN))
            self.recorder.record(write, partial(self._write, width, bounds))

    def _scratch(self, columns: int) -> Tensor:
        """Inputs [columns, 1] of a row that only fills a batch up."""
        return torch.tensor([[float(self.slots)], *[[0.0]] * (columns - 1)])

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
        self.host.going[slots] = False

    def _settle(self, rows: np.ndarray, out: np.ndarray) -> TokenEvents:
        """Take over what the device reports of some rows; their events."""
        host = self.host
        flags = out[2].astype(np.int64)
        self._fail(rows[(flags & BROKEN) > 0])
        if self.failed:
            fine = ~np.isin(rows, list(self.failed))
            rows, out, flags = rows[fine], out[:, fine], flags[fine]
        after = out[1].astype(np.int64)
        wrote, last = (flags & WROTE) > 0, (flags & LAST) > 0
        events = self._events(rows, after, wrote, last, out[3:])
        host.read[rows] = after
        host.written[rows] += wrote
        host.target_info[rows] = out[5]
        host.active[rows] &= ~last
        # Rows that cannot go on leave the rounds at once, without an empty round.
        able = (flags & MAY_WRITE) > 0
        if host.forced:
            host.forced.written(rows[wrote])
            complete = host.fed[rows] & (after == host.length[rows])
            again = complete | (host.forced.due(rows, after) & (after > 0))
            able = np.where(host.forced.mask(rows), again, able)
        able |= after < host.length[rows]
        host.going[rows] = able & host.active[rows]
        return events

    def _events(
        self,
        rows: np.ndarray,
        after: np.ndarray,
        wrote: np.ndarray,
        last: np.ndarray,
        written: np.ndarray,
    ) -> TokenEvents:
        """What each row READ and then, maybe, WROTE: `written` holds token, info and total."""
        host = self.host
        reads = after - host.read[rows]
        count = reads + wrote
        index = np.arange(len(rows)).repeat(count)
        nth = np.arange(len(index)) - (count.cumsum() - count).repeat(count)
        write = nth == reads[index]
        slot = rows[index]
        read = host.read[slot] + np.minimum(nth + 1, reads[index])
        total = host.received[slot, read]
        place = np.maximum(read - 1, 0)
        token = np.where(write, written[0, index].astype(np.int64), host.sources[slot, place])
        return TokenEvents(
            slot=slot,
            write=write,
            token=token,
            info=np.where(write, written[1, index], total - host.received[slot, place]),
            read=read,
            written=host.written[slot] + write,
            source_info=total,
            target_info=np.where(write, written[2, index], host.target_info[slot]),
            last=write & last[index],
        )
