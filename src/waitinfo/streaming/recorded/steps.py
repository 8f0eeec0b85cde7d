"""What a round computes, all of it on the device and without a look at any value.

Shapes depend only on the number of rows and on a few bounds, so a step can be recorded. R rows
are slots; rows that fill a batch up belong to a slot of scratch. The policy is that of
`streaming.engine`: `Engine` is the reference for what is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from waitinfo.model.attention import CachePosition, Memory
from waitinfo.model.cache import PagedCache, PagedRows, Pages
from waitinfo.model.transformer import Embedded, Encoded, Transformer
from waitinfo.streaming.engine.slots import length_limit
from waitinfo.streaming.recorded.paging import BLOCK, Side
from waitinfo.streaming.recorded.state import (
    LEAST,
    READ_COUNT,
    SOURCE,
    TARGET,
    WRITTEN,
    DeviceState,
)
from waitinfo.systems.base import PolicyState, Step, System
from waitinfo.text.special import BOS, EOS, PAD

# Rows of the tables that travel between host and device.
ENCODE_IN = 3  # slot, position, token
ENCODE_OUT = 2  # info, whether finite
# Slot, source tokens fed, of these encoded, flags, dial; the next token if it is forced, else 0,
# and the source tokens to read before it.
WRITE_IN = 7
WRITE_OUT = 6  # tokens read before and after the step, flags, token, its info, total target info
FED, RESTARTED = 1, 2  # flags in
WROTE, LAST, BROKEN, MAY_WRITE = 1, 2, 4, 8  # flags out
NEVER = 1 << 40  # tokens to read before the next attempt of a row that has ended


class Bounds(NamedTuple):
    """What a recording is made for, besides its number of rows."""

    window: int  # one more than the source tokens that a row may READ in this step
    source: int  # source positions that attention may look at
    target: int  # target positions


@dataclass(frozen=True)
class Steps:
    """A model, a policy and the memory they work on."""

    model: Transformer
    system: System
    guard: bool
    state: DeviceState
    source: Side
    target: Side

    def encode(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        """Encode source tokens: inputs [3, M] -> out [2, M], float64.

        Each token is a row of its own. Tokens of one slot see each other, because a layer stores
        the keys of all rows before any row looks at them.
        """
        model, state = self.model, self.state
        slot, at, tokens = inputs.long().unbind(0)
        rows = PagedRows.at(slot, self.source.table.device[slot], at, BLOCK)
        place = CachePosition(rows, at[:, None], bounds.source)
        source = model.embed_source(tokens[:, None], place.at, state.source_positions)
        encoded = model.extend(source, list(self.source.caches), place)
        for cache, memory in zip(self.source.memories, encoded.memories, strict=True):
            cache.put(memory.keys, memory.values, rows, place.at)
        if encoded.info is not None:
            state.info[slot, at] = encoded.info[:, 0].to(state.info.dtype)
            out[0] = encoded.info[:, 0]
        else:
            out[0] = 0
        out[1] = encoded.memories[0].values.sum((1, 2, 3), dtype=torch.float32).isfinite()

    def write(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        """READ until the policy wants to WRITE, then compute and maybe WRITE the next token.

        inputs [7, R] -> out [6, R], float64. Rows without enough input only READ. The inputs are
        left ready for a second step after this one.
        """
        row = self._rows(inputs)
        inputs[3] %= RESTARTED
        ready = self._read_on(row, bounds.window)
        step = self._step(row, bounds)
        following = self._embed(step.tokens, row.written + 1)
        info = torch.zeros_like(row.target_info)
        if following.info is not None:
            info = following.info[:, 0].double()
        complete, finite = row.complete, step.logits.amax(-1).isfinite()
        accepted = complete | self.system.accept(row.policy(), step).to(complete.device)
        if self.guard:
            accepted &= complete | (step.tokens != EOS)
        accepted = accepted | row.is_forced
        usable = ready & finite
        wrote, refused = usable & accepted, usable & ~accepted
        before = row.read

        row.written = row.written + wrote
        row.target_info = row.target_info + torch.where(wrote, info, 0.0)
        full = complete & (row.written >= length_limit(before))
        last = wrote & ((step.tokens == EOS) | full)
        # A refused row needs at least one more source token for its next attempt.
        row.least = torch.where(refused, before + 1, row.least)
        row.least = torch.where(last, NEVER, row.least)
        more = refused & (before < row.encoded)
        row.source_info = row.source_info + torch.where(more, self._source_info(row), 0.0)
        row.read = before + more
        self._store(row, wrote, step, following)
        flags = wrote * WROTE + last * LAST + (ready & ~finite) * BROKEN
        flags = flags + self._may_write(row.policy(), row.least) * MAY_WRITE
        columns = (before, row.read, flags, step.tokens, info, row.target_info)
        torch.stack([column.double() for column in columns], out=out)

    def _rows(self, inputs: Tensor) -> _Row:
        state = self.state
        slot, length, encoded, flags = inputs[:4].long().unbind(0)
        fresh = (flags & RESTARTED).bool()[:, None]
        counts = torch.where(fresh, 0, state.counts[slot])
        sums = torch.where(fresh, 0.0, state.sums[slot])
        forced, due = inputs[5:].long().unbind(0)
        return _Row(
            slot=slot,
            forced=forced,
            due=due,
            length=torch.where((flags & FED).bool(), length, -1),
            encoded=encoded,
            k=inputs[4],
            read=counts[:, READ_COUNT],
            written=counts[:, WRITTEN],
            least=counts[:, LEAST],
            x=torch.where(fresh, state.first.x[0], state.next_x[slot]),
            info=self._next_info(slot, fresh[:, 0]),
            source_info=sums[:, SOURCE],
            target_info=sums[:, TARGET],
            carried=[torch.where(fresh, 0.0, carried[slot]) for carried in state.carried],
        )

    def _next_info(self, slot: Tensor, fresh: Tensor) -> Tensor | None:
        """Info of the decoder's next input, which is 1 for the first."""
        info = self.state.next_info
        return None if info is None else torch.where(fresh, 1.0, info[slot])

    def _read_on(self, row: _Row, window: int) -> Tensor:
        """READ as far as needed or possible; [R] which rows may WRITE then.

        The policy is asked about all numbers of tokens within the window at once.
        """
        offsets = torch.arange(window, device=row.slot.device)
        reads = row.read[:, None] + offsets  # [R, W]
        totals = row.source_info[:, None].expand(reads.shape)
        if self.model.source_info is not None:
            last = self.state.info.shape[1] - 1
            places = reads[:, :-1].clamp_max(last)
            infos = self.state.info[row.slot[:, None], places].double()
            totals = totals + F.pad(infos.cumsum(1), (1, 0))

        def spread(x: Tensor) -> Tensor:
            return x[:, None].expand(reads.shape).flatten()

        policy = PolicyState(
            k=spread(row.k),
            read=reads.flatten(),
            written=spread(row.written),
            complete=(reads == row.length[:, None]).flatten(),
            source_info=totals.flatten(),
            target_info=spread(row.target_info),
        )
        may = self._may_write(policy, spread(row.least)).view(reads.shape)
        may = torch.where(row.is_forced[:, None], self._may_repeat(policy, row, reads), may)
        may = may & (reads <= row.encoded[:, None])
        first = torch.where(may, offsets, window).amin(1)
        ready = first < window
        furthest = (row.encoded - row.read).clamp(0, window - 1)
        furthest = torch.where(row.least == NEVER, 0, furthest)
        moved = torch.where(ready, first, furthest)
        row.source_info = totals.gather(1, moved[:, None])[:, 0]
        row.read = row.read + moved
        return ready

    def _may_write(self, policy: PolicyState, least: Tensor) -> Tensor:
        within = (policy.read > 0) & (policy.written < length_limit(policy.read))
        ready = policy.complete | (within & self.system.ready(policy))
        return ready & (policy.read >= least)

    @staticmethod
    def _may_repeat(policy: PolicyState, row: _Row, reads: Tensor) -> Tensor:
        """[R, W] whether a forced token may be written after so many READs."""
        within = (policy.read > 0) & (policy.written < length_limit(policy.read))
        within = within.view(reads.shape) & (reads >= row.due[:, None])
        return policy.complete.view(reads.shape) | within

    def _step(self, row: _Row, bounds: Bounds) -> Step:
        """The best next token of every row, from the source it has read."""
        model, at = self.model, row.written[:, None]
        read, k = row.read.clamp_min(1)[:, None], row.k[:, None]
        visible = self.system.visible(read, at, k, model.config.heads)
        table = self.source.table.device[row.slot]
        memories = [self._memory(cache, table, read, bounds) for cache in self.source.memories]
        info = None
        if model.source_info is not None:
            info = self.state.info[row.slot, : bounds.source]
        rows = PagedRows.at(row.slot, self.target.table.device[row.slot], row.written, BLOCK)
        decoded = model.step(
            Embedded(row.x[:, None], None if row.info is None else row.info[:, None], at),
            Encoded(memories, info),
            visible,
            list(self.target.caches),
            CachePosition(rows, at, bounds.target),
            row.k.float(),
            read if visible.dim() == 3 else None,
            row.carried,
        )
        states = decoded.states[:, 0]
        logits = model.logits(states)
        for special in (PAD, BOS):
            logits[:, special] = -torch.inf
        tokens = torch.where(row.is_forced, row.forced, logits.argmax(-1))
        return Step(tokens, logits, decoded.extras, model.write_logits(states))

    def _memory(self, cache: PagedCache, table: Tensor, read: Tensor, bounds: Bounds) -> Memory:
        keys, values = cache.pages(table, read[:, 0], bounds.source)
        if self.model.config.cross_attention == "plain":
            return Memory(keys, values)
        assert isinstance(keys, Pages) and isinstance(values, Pages)
        return Memory(keys.gather(), values.gather())

    def _embed(self, tokens: Tensor, at: Tensor) -> Embedded:
        """Embed tokens [R] as inputs of the decoder at positions [R]."""
        table = self.state.target_positions
        return self.model.embed_target(tokens[:, None], at[:, None], table)

    def _source_info(self, row: _Row) -> Tensor:
        """Info of the next source token of every row."""
        if self.model.source_info is None:
            return torch.zeros_like(row.source_info)
        place = row.read.clamp_max(self.state.info.shape[1] - 1)
        return self.state.info[row.slot, place].double()

    def _store(self, row: _Row, wrote: Tensor, step: Step, following: Embedded) -> None:
        state = self.state
        state.counts[row.slot] = torch.stack([row.read, row.written, row.least], 1)
        state.sums[row.slot] = torch.stack([row.source_info, row.target_info], 1)
        state.next_x[row.slot] = torch.where(wrote[:, None], following.x[:, 0], row.x)
        if state.next_info is not None and row.info is not None and following.info is not None:
            state.next_info[row.slot] = torch.where(wrote, following.info[:, 0], row.info)
        if not state.carried:
            return
        for kept, before, report in zip(state.carried, row.carried, step.extras, strict=True):
            assert report is not None and report.state is not None
            after = report.state[:, :, -1].to(kept.dtype)
            kept[row.slot] = torch.where(wrote[:, None], after, before)


@dataclass
class _Row:
    """The state of R rows; [R] each."""

    slot: Tensor
    length: Tensor  # source tokens with end-of-sentence, -1 while the source is not complete
    encoded: Tensor
    k: Tensor
    read: Tensor
    written: Tensor
    least: Tensor
    x: Tensor  # [R, d] the decoder's next input, embedded
    info: Tensor | None  # its info
    source_info: Tensor
    target_info: Tensor
    carried: list[Tensor]
    forced: Tensor  # the next token, or 0
    due: Tensor  # source tokens to read before it

    @property
    def is_forced(self) -> Tensor:
        return self.forced > 0

    @property
    def complete(self) -> Tensor:
        return self.read == self.length

    def policy(self) -> PolicyState:
        return PolicyState(
            self.k, self.read, self.written, self.complete, self.source_info, self.target_info
        )
