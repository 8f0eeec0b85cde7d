"""What a round computes, all of it on the device and without a look at any value.

Shapes depend only on the number of rows and on a few bounds, so a step can be recorded. R rows
are slots; rows that fill a batch up belong to a slot of scratch. What is decided, `engine.decision`
says; `HostBackend` is the reference for the order in which it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from waitinfo.model.cache import PagedCache, PagedRows, Pages
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import AttentionReport, CachePosition, Decoded, Embedded, Encoded, Memory
from waitinfo.streaming.engine.decision import length_limit, may_write, verdict
from waitinfo.streaming.engine.loops import is_loop, run_after
from waitinfo.streaming.recorded.memory import (
    BLOCK,
    ENDED,
    LEAST,
    READ_COUNT,
    REFUSED,
    SOURCE,
    TARGET,
    WRITTEN,
    DeviceState,
    PagedSide,
)
from waitinfo.systems.base import System
from waitinfo.systems.interface import NONE, PolicyState, Step, two_best
from waitinfo.text.special import BOS, EOS, PAD

# Rows of the tables that travel between host and device.
ENCODE_IN = 4  # slot, position, token, how often an n-gram stands in a row up to here
ENCODE_OUT = 2  # info, whether finite
# Slot, source tokens fed, of these encoded, flags, dial, patience; the next token if it is forced,
# else 0, and the source tokens to read before it.
WRITE_IN = 8
WRITE_OUT = 6  # tokens read before and after the step, flags, token, its info, total target info
REWRITE_IN = 6  # slot, position, token, source tokens to see, dial, whether to go on from here
REWRITE_OUT = 1  # info
FED, RESTARTED = 1, 2  # flags in
WROTE, LAST, BROKEN, MAY_WRITE, LOOPED = 1, 2, 4, 8, 16  # flags out


class Bounds(NamedTuple):
    """Sizes that a recording is made for, in addition to its number of rows."""

    window: int  # one more than the source tokens that a row may READ in this step
    source: int  # source positions that attention may look at
    target: int  # target positions


@dataclass(frozen=True)
class Steps:
    """A model, a policy and the memory they work on."""

    model: Transformer
    system: System
    guard: bool
    cuts_loops: bool
    state: DeviceState
    source: PagedSide
    target: PagedSide

    def encode(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        """Encode source tokens: inputs [4, M] -> out [2, M], float64.

        Each token is a row of its own. Tokens of one slot see each other, because a layer stores
        the keys of all rows before any row looks at them.
        """
        model, state = self.model, self.state
        slot, at, tokens, repeats = inputs.long().unbind(0)
        state.repeats[slot, at + 1] = repeats.int()
        if state.sources.shape[1]:
            state.sources[slot, at] = tokens
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

        inputs [8, R] -> out [6, R], float64. Rows without enough input only READ. The inputs are
        left ready for a second step after this one.
        """
        row = self._rows(inputs)
        inputs[3] %= RESTARTED
        ready = self._read_on(row, bounds.window)
        before = row.read
        policy = self._policy(row)
        step, logits = self._step(row, policy, bounds)
        following = self._embed(step.tokens, row.written + 1)
        info = torch.zeros_like(row.target_info)
        if following.info is not None:
            info = following.info[:, 0].double()
        looping = self._looping(row, step.tokens)
        complete = row.complete
        accepted = self.system.accept(policy, step).to(complete.device)
        accepted, last, _, early = verdict(
            row.written, complete, step.tokens == EOS, accepted, looping, row.is_forced,
            row.refused, row.patience, self.guard, length_limit(before),
        )  # fmt: skip
        finite = logits.amax(-1).isfinite()
        usable = ready & finite
        wrote, refused, last = usable & accepted, usable & ~accepted, usable & last

        row.refused = torch.where(wrote, 0, row.refused + (early & ready))
        row.written = row.written + wrote
        row.target_info = row.target_info + torch.where(wrote, info, 0.0)
        row.ended = row.ended | last
        if self.system.memory:
            memory = self.system.remember(policy, step)
            row.memory = torch.where(wrote[:, None], memory, row.memory)
        # A refused row needs more source tokens for its next attempt.
        waits = self.system.wait(policy, step) if self.system.waits else 1
        row.least = torch.where(refused, before + waits, row.least)
        more = refused & (before < row.encoded)
        row.source_info = row.source_info + torch.where(more, self._source_info(row), 0.0)
        row.read = before + more
        self._store(row, wrote, step, following)
        flags = wrote * WROTE + last * LAST + (ready & ~finite) * BROKEN + looping * LOOPED
        wanted, limit = self.system.ready(self._policy(row)), length_limit(row.read)
        may = may_write(row.read, row.written, row.complete, row.least, wanted, limit) & ~row.ended
        tokens = torch.where(looping, EOS, step.tokens)
        columns = (before, row.read, flags + may * MAY_WRITE, tokens, info, row.target_info)
        torch.stack([column.double() for column in columns], out=out)

    def rewrite(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        """Compute tokens that were written before: inputs [6, M] -> out [1, M], float64.

        Each token is a row of its own, with as much of the source as it was written with. The last
        input of a slot is only kept for its next step.
        """
        state = self.state
        slot, at, tokens, read = inputs[:4].long().unbind(0)
        read = read.clamp_min(1)  # also of rows that only fill up
        final = inputs[5] > 0
        target = self._embed(tokens, at)
        begins = (at == 0)[:, None]
        carried = [torch.where(begins, 0.0, carried[slot]) for carried in state.carried]
        decoded = self._decode(slot, target, read, inputs[4], carried, bounds)
        out[0] = 0.0 if target.info is None else target.info[:, 0].double()
        scratch = len(state.counts) - 1
        place = torch.where(final, slot, scratch)
        state.next_x[place] = target.x[:, 0]
        if state.next_info is not None and target.info is not None:
            state.next_info[place] = target.info[:, 0]
        for kept, before, after in zip(
            state.carried, carried, _carried(decoded.extras), strict=False
        ):
            kept[slot] = torch.where(final[:, None], before, after.to(kept.dtype))

    def _rows(self, inputs: Tensor) -> _Rows:
        state = self.state
        slot, length, encoded, flags = inputs[:4].long().unbind(0)
        fresh = (flags & RESTARTED).bool()[:, None]
        counts = torch.where(fresh, 0, state.counts[slot])
        sums = torch.where(fresh, 0.0, state.sums[slot])
        patience, forced, due = inputs[5:].long().unbind(0)
        return _Rows(
            slot=slot,
            forced=forced,
            due=due,
            length=torch.where((flags & FED).bool(), length, -1),
            encoded=encoded,
            k=inputs[4],
            patience=patience,
            refused=counts[:, REFUSED],
            runs=torch.where(fresh, 0, state.runs[slot]),
            read=counts[:, READ_COUNT],
            written=counts[:, WRITTEN],
            least=counts[:, LEAST],
            ended=counts[:, ENDED] > 0,
            x=torch.where(fresh, state.first.x[0], state.next_x[slot]),
            info=self._next_info(slot, fresh[:, 0]),
            source_info=sums[:, SOURCE],
            target_info=sums[:, TARGET],
            carried=[torch.where(fresh, 0.0, carried[slot]) for carried in state.carried],
            memory=torch.where(fresh, state.first_memory, state.memory[slot]),
        )

    def _next_info(self, slot: Tensor, fresh: Tensor) -> Tensor | None:
        """Info of the decoder's next input, which is 1 for the first."""
        info = self.state.next_info
        return None if info is None else torch.where(fresh, 1.0, info[slot])

    def _read_on(self, row: _Rows, window: int) -> Tensor:
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
        memory = row.memory[:, None].expand(-1, window, -1).flatten(0, 1)
        policy.asked = self._asked(spread(row.slot), policy, memory)
        wanted = self.system.ready(policy).view(reads.shape) | row.is_forced[:, None]
        least = torch.where(row.is_forced, row.due, row.least)[:, None]
        complete, limit = policy.complete.view(reads.shape), length_limit(reads)
        may = may_write(reads, row.written[:, None], complete, least, wanted, limit)
        may = may & (reads <= row.encoded[:, None]) & ~row.ended[:, None]
        first = torch.where(may, offsets, window).amin(1)
        ready = first < window
        furthest = (row.encoded - row.read).clamp(0, window - 1)
        furthest = torch.where(row.ended, 0, furthest)
        moved = torch.where(ready, first, furthest)
        row.source_info = totals.gather(1, moved[:, None])[:, 0]
        row.read = row.read + moved
        return ready

    def _looping(self, row: _Rows, tokens: Tensor) -> Tensor:
        """[R] whether a token would go on with a loop; notes the runs with it."""
        state, periods = self.state, self.state.periods
        if not self.cuts_loops:
            return torch.zeros_like(row.is_forced)
        places = row.written[:, None] - periods  # [R, P]
        earlier = state.targets[row.slot[:, None], places.clamp_min(0)]
        runs = run_after((earlier == tokens[:, None]) & (places >= 0), row.runs)
        row.runs_after = runs
        most = state.repeats[row.slot, row.read][:, None]
        return is_loop(runs, periods, most).any(1) & ~row.is_forced

    def _policy(self, row: _Rows) -> PolicyState:
        """What the policy is asked about."""
        counts = row.k, row.read, row.written, row.complete, row.source_info, row.target_info
        policy = PolicyState(*counts)
        policy.asked = self._asked(row.slot, policy, row.memory)
        return policy

    def _asked(self, slot: Tensor, policy: PolicyState, memory: Tensor) -> dict[str, Tensor]:
        """What it asks about rows of these slots, besides counts."""
        asked, state = {}, self.state
        sides = ("source", state.sources, policy.read), ("target", state.targets, policy.written)
        for side, tokens, counts in sides:
            if side in self.system.asks:
                places = torch.arange(tokens.shape[1], device=slot.device)
                asked[side] = torch.where(places < counts[:, None], tokens[slot].long(), PAD)
        if self.system.memory:
            asked["memory"] = memory
        return asked

    def _step(self, row: _Rows, policy: PolicyState, bounds: Bounds) -> tuple[Step, Tensor]:
        """The best next token of every row, from the source it has read; and all logits."""
        model, asks, read = self.model, self.system.asks, row.read.clamp_min(1)
        info = None if row.info is None else row.info[:, None]
        target = Embedded(row.x[:, None], info, row.written[:, None])
        asked: dict[str, Tensor] = {}
        if "before" in asks:
            # What this stores of the input in the caches, the step itself replaces.
            earlier = self.system.earlier(policy).long()
            shorter = earlier.clamp_min(1)
            decoded = self._decode(row.slot, target, shorter, row.k, row.carried, bounds)
            tokens = self._logits(decoded.states[:, 0]).argmax(-1)
            asked["before"] = torch.where(earlier > 0, tokens, NONE)
        decoded = self._decode(row.slot, target, read, row.k, row.carried, bounds)
        states = decoded.states[:, 0]
        logits = self._logits(states)
        tokens = torch.where(row.is_forced, row.forced, logits.argmax(-1))
        for name, value in (("logits", logits), ("states", states)):
            if name in asks:
                asked[name] = value
        if "two_best" in asks:
            asked["two_best"] = two_best(logits)
        if "attention" in asks:
            asked["attention"] = decoded.attention()
        return Step(tokens, decoded.extras, model.write_logits(states), asked), logits

    def _logits(self, states: Tensor) -> Tensor:
        logits = self.model.logits(states)
        for special in (PAD, BOS):
            logits[:, special] = -torch.inf
        return logits

    def _decode(
        self,
        slot: Tensor,
        target: Embedded,
        read: Tensor,
        k: Tensor,
        carried: list[Tensor],
        bounds: Bounds,
    ) -> Decoded:
        """Decode one input [R, 1] of every row; `read` [R] is what each has read.

        Rows may be positions of one slot: a layer stores the keys of all rows before any looks.
        """
        model, at = self.model, target.at
        visible = self.system.visible(read[:, None], at, k[:, None], model.config.heads)
        table = self.source.table.device[slot]
        memories = [
            self._memory(cache, table, read[:, None], bounds) for cache in self.source.memories
        ]
        info = None
        if model.source_info is not None:
            info = self.state.info[slot, : bounds.source]
        rows = PagedRows.at(slot, self.target.table.device[slot], at[:, 0], BLOCK)
        return model.step(
            target,
            Encoded(memories, info),
            visible,
            list(self.target.caches),
            CachePosition(rows, at, bounds.target),
            k.float(),
            read[:, None] if visible.dim() == 3 else None,
            carried,
            weigh="attention" in self.system.asks,
        )

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

    def _source_info(self, row: _Rows) -> Tensor:
        """Info of the next source token of every row."""
        if self.model.source_info is None:
            return torch.zeros_like(row.source_info)
        place = row.read.clamp_max(self.state.info.shape[1] - 1)
        return self.state.info[row.slot, place].double()

    def _store(self, row: _Rows, wrote: Tensor, step: Step, following: Embedded) -> None:
        state = self.state
        columns = [row.read, row.written, row.least, row.refused, row.ended.long()]
        state.counts[row.slot] = torch.stack(columns, 1)
        state.sums[row.slot] = torch.stack([row.source_info, row.target_info], 1)
        state.next_x[row.slot] = torch.where(wrote[:, None], following.x[:, 0], row.x)
        if state.next_info is not None and row.info is not None and following.info is not None:
            state.next_info[row.slot] = torch.where(wrote, following.info[:, 0], row.info)
        if row.runs_after is not None:
            state.runs[row.slot] = torch.where(wrote[:, None], row.runs_after, row.runs)
        # Where nothing was written, the next token replaces this one.
        state.targets[row.slot, row.written - wrote.long()] = step.tokens.int()
        state.memory[row.slot] = row.memory
        if not state.carried:
            return
        after = _carried(step.extras)
        for kept, before, now in zip(state.carried, row.carried, after, strict=True):
            kept[row.slot] = torch.where(wrote[:, None], now.to(kept.dtype), before)


def _carried(extras: list[AttentionReport | None]) -> Iterator[Tensor]:
    """The state [R, H] of each layer's cross-attention after one position, if it has one."""
    for report in extras:
        if report is not None and report.state is not None:
            yield report.state[:, :, -1]


@dataclass
class _Rows:
    """The state of R rows; [R] each."""

    slot: Tensor
    length: Tensor  # source tokens with end-of-sentence, -1 while the source is not complete
    encoded: Tensor
    k: Tensor
    patience: Tensor  # ends to refuse before one counts, 0 for never
    refused: Tensor
    runs: Tensor  # [R, P], see `DeviceState.runs`
    read: Tensor
    written: Tensor
    least: Tensor
    ended: Tensor  # nothing is left to write
    x: Tensor  # [R, d] the decoder's next input, embedded
    info: Tensor | None  # its info
    source_info: Tensor
    target_info: Tensor
    carried: list[Tensor]
    memory: Tensor  # [R, M] of the policy
    forced: Tensor  # the next token, or 0
    due: Tensor  # source tokens to read before it
    runs_after: Tensor | None = None  # runs with the token that was computed

    @property
    def is_forced(self) -> Tensor:
        return self.forced > 0

    @property
    def complete(self) -> Tensor:
        return self.read == self.length
