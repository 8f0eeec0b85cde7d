"""What the device keeps of every slot: caches in blocks of positions, and the policy's state.

Block tables say which slot owns which blocks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.cache import PagedCache
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.loops import LONGEST, PERIODS
from waitinfo.streaming.engine.slots import target_positions
from waitinfo.systems.base import System
from waitinfo.text.special import BOS

BLOCK = 16  # positions of a block
SCRATCH = 0  # the block of rows that only pad a batch; owned by no slot


class BlockTable:
    """Which blocks belong to which slot, on the host and on the device.

    Every slot may own up to `width` blocks; `blocks` in all exist, and more can be added.
    """

    def __init__(self, slots: int, positions: int, blocks: int, device: torch.device) -> None:
        self.width = -(-positions // BLOCK)
        self.blocks = blocks
        self.owned = np.zeros(slots + 1, np.int64)
        self._free = list(range(blocks - 1, SCRATCH, -1))
        shape = (slots + 1, self.width)
        pinned = device.type == "cuda"
        self._host = torch.full(shape, SCRATCH, dtype=torch.int64, pin_memory=pinned)
        self._table = self._host.numpy()
        self.device = self._host.to(device)  # the same memory on a CPU
        self._changed = False

    @property
    def largest(self) -> int:
        """Blocks that all slots together can use."""
        return len(self.owned) * self.width

    @property
    def free(self) -> int:
        """Blocks that no slot owns."""
        return len(self._free)

    def assign(self, slots: np.ndarray, more: np.ndarray) -> None:
        """Give each of some different slots more of the free blocks."""
        total = int(more.sum())
        rows = slots.repeat(more)
        nth = np.arange(total) - (more.cumsum() - more).repeat(more)
        self._table[rows, self.owned[rows] + nth] = self._free[-total:]
        del self._free[-total:]
        self.owned[slots] += more
        self._changed = True

    def owned_by(self, slot: int) -> list[int]:
        return self._table[slot, : self.owned[slot]].tolist()

    def release(self, slot: int) -> None:
        """Take all blocks of a slot back."""
        if self.owned[slot]:
            self._free += self.owned_by(slot)
            # Unused places name the scratch block, so that no row touches another's numbers.
            self._table[slot] = SCRATCH
            self.owned[slot] = 0
            self._changed = True

    def add(self, blocks: int) -> None:
        self._free[:0] = range(self.blocks + blocks - 1, self.blocks - 1, -1)
        self.blocks += blocks

    def upload(self) -> None:
        """Bring the device's table up to date."""
        if self._changed and self.device is not self._host:
            self.device.copy_(self._host, non_blocking=True)
        self._changed = False


class PagedSide:
    """The caches of one side, source or target; they share one block table."""

    def __init__(
        self, table: BlockTable, caches: list[PagedCache], memories: list[PagedCache]
    ) -> None:
        self.table, self.caches, self.memories = table, caches, memories

    @property
    def all(self) -> list[PagedCache]:
        return [*self.caches, *self.memories]

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.all)

    def reserve(self, slots: np.ndarray, positions: np.ndarray) -> bool:
        """Give slots room for more positions; returns whether memory was moved."""
        more = -(-positions // BLOCK) - self.table.owned[slots]
        if more.max() <= 0:
            return False
        more = more.clip(0)
        lacking = int(more.sum()) - self.table.free
        if lacking > 0:
            blocks = self.table.blocks
            added = min(max(lacking, blocks), self.table.largest - blocks + 1)
            for cache in self.all:
                cache.grow(added)
            self.table.add(added)
        self.table.assign(slots, more)
        return lacking > 0

    def clear(self, slot: int) -> None:
        """Set the blocks of a slot to zero: a stored NaN would spread even from masked places."""
        blocks = self.table.owned_by(slot)
        for cache in self.all:
            cache.keys[blocks] = 0
            cache.values[blocks] = 0


def source_side(model: Transformer, slots: int, positions: int, blocks: int) -> PagedSide:
    """Encoder caches and the keys and values of cross-attention."""
    caches = model.new_caches(model.config.encoder_layers, blocks, BLOCK)
    memories = model.new_memories(blocks, BLOCK)
    table = BlockTable(slots, positions, blocks, model.device)
    return PagedSide(table, [PagedCache(c) for c in caches], [PagedCache(m) for m in memories])


def target_side(model: Transformer, slots: int, positions: int, blocks: int) -> PagedSide:
    """Decoder caches."""
    caches = model.new_caches(model.config.decoder_layers, blocks, BLOCK)
    table = BlockTable(slots, positions, blocks, model.device)
    return PagedSide(table, [PagedCache(cache) for cache in caches], [])


READ_COUNT, WRITTEN, LEAST, REFUSED, ENDED, COUNTS = range(6)  # columns of `DeviceState.counts`
SOURCE, TARGET = range(2)  # columns of `DeviceState.sums`


class DeviceState:
    """The policy's state on the device, one row per slot and one of scratch for padding."""

    @torch.no_grad()
    def __init__(self, model: Transformer, system: System, slots: int, capacity: int) -> None:
        rows, device = slots + 1, model.device
        exact = torch.promote_types(model.dtype, torch.float32)
        # Tokens read and written, tokens to read before the next attempt, ends refused since the
        # last token, and whether nothing is left to write.
        self.counts = torch.zeros(rows, COUNTS, dtype=torch.long, device=device)
        self.sums = torch.zeros(rows, 2, dtype=torch.float64, device=device)  # info
        self.info = torch.ones(rows, capacity + 1, dtype=exact, device=device)  # of source tokens
        self.carried = model.new_states(rows)  # by cross-attention, after the last token
        self.source_positions = model.position_table(capacity)
        self.target_positions = model.position_table(target_positions(capacity) + 1)
        # The decoder's next input: embedded when it was chosen, since its info was needed then.
        start = torch.tensor([[BOS]], device=device)
        self.first = model.embed_target(start, torch.zeros_like(start), self.target_positions)
        self.next_x = self.first.x[0].repeat(rows, 1)
        first_info = self.first.info
        self.next_info = None if first_info is None else first_info[0].repeat(rows)
        # For loops: tokens written; for each period, how many tokens at the end equal the one a
        # period before; and how often an n-gram stands in a row in the first 0, 1, … source tokens.
        positions = target_positions(capacity) + 1
        self.targets = torch.zeros(rows, positions, dtype=torch.int32, device=device)
        self.runs = torch.zeros(rows, LONGEST, dtype=torch.int32, device=device)
        self.repeats = torch.ones(rows, capacity + 1, dtype=torch.int32, device=device)
        self.periods = torch.from_numpy(PERIODS).to(device)
        # For policies that ask: the source tokens, and what they remember.
        seen = capacity + 1 if "source" in system.asks else 0
        self.sources = torch.zeros(rows, seen, dtype=torch.long, device=device)
        self.first_memory = torch.tensor(system.memory, dtype=torch.float64, device=device)
        self.memory = self.first_memory.repeat(rows, 1)

    def set(
        self,
        index: Tensor,
        counts: Tensor,
        sums: Tensor,
        targets: Tensor,
        runs: Tensor,
        memory: Tensor,
    ) -> None:
        """The state of shifted slots.

        counts [N, COUNTS], sums [N, 2], tokens [N, T] and runs, memory [N, M].
        """
        self.counts[index], self.sums[index], self.memory[index] = counts, sums, memory
        self.targets[index, : targets.shape[1]] = targets
        self.runs[index] = runs
