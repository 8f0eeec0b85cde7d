"""Key-value caches: one row per stream, each row with its own length, or blocks shared by all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class CacheRows:
    """Some rows of a cache. Adjacent rows are selected by a slice, which copies nothing."""

    index: Tensor  # [R]
    span: slice | None

    @classmethod
    def of(cls, rows: Sequence[int], device: torch.device) -> CacheRows:
        together = all(b == a + 1 for a, b in pairwise(rows))
        span = slice(rows[0], rows[-1] + 1) if together else None
        return cls(torch.tensor(rows, device=device), span)

    def take(self, tensor: Tensor) -> Tensor:
        """Select these rows of a tensor."""
        return tensor[self.span] if self.span is not None else tensor.index_select(0, self.index)


class KeyValueCache:
    """Keys and values of the positions so far: [rows, H, capacity, d/H] each.

    Keys may be several times as wide, for attention with more than one key per token.

    Rows advance independently: each writes at its own position. Writing a position again replaces
    it, so a step that the policy rejects needs no rollback.
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        capacity: int,
        width: int,
        like: Tensor,
        key_vectors: int = 1,
    ) -> None:
        shape = (rows, heads, capacity)
        self.keys = like.new_zeros(*shape, key_vectors * width)
        self.values = like.new_zeros(*shape, width)

    def put(self, keys: Tensor, values: Tensor, rows: CacheRows, at: Tensor) -> None:
        """Store [R, H, T, d/H] at the positions at [R, T] of the given rows."""
        self.keys[rows.index[:, None], :, at] = keys.transpose(1, 2)
        self.values[rows.index[:, None], :, at] = values.transpose(1, 2)

    def view(self, rows: CacheRows, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` positions of the given rows: [R, H, length, d/H] each."""
        return rows.take(self.keys[:, :, :length]), rows.take(self.values[:, :, :length])

    def clear(self, row: int) -> None:
        """Set a row to zero."""
        self.keys[row] = 0
        self.values[row] = 0

    def reorder(self, index: Tensor) -> None:
        """Replace each row i with the former row index[i]."""
        self.keys, self.values = self.keys[index], self.values[index]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class Pages:
    """Keys or values of some rows, [R, H, L, d/H], that lie in blocks of a shared pool."""

    pool: Tensor  # [blocks, H, B, d/H]
    table: Tensor  # [R, W] the blocks of each row, in order; W * B >= L
    count: Tensor  # [R] positions that a row may see, at least 1; those behind are masked
    length: int  # L

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.table), self.pool.shape[1], self.length, self.pool.shape[3]))

    def gather(self) -> Tensor:
        """The same as one tensor: [R, H, L, d/H]."""
        blocks = -(-self.length // self.pool.shape[2])
        found = self.pool[self.table[:, :blocks]]  # [R, W, H, B, d/H]
        return found.transpose(1, 2).flatten(2, 3)[:, :, : self.length]


@dataclass(frozen=True)
class PagedRows(CacheRows):
    """Some rows of a paged cache, and the place of the one new position of each."""

    table: Tensor  # [R, W] the blocks of each row
    count: Tensor  # [R] positions of each row, the new one included
    block: Tensor  # [R] block of the new position
    offset: Tensor  # [R] its place in that block

    @classmethod
    def at(cls, index: Tensor, table: Tensor, position: Tensor, block_size: int) -> PagedRows:
        """Rows index [R] with blocks table [R, W], each with a new position [R]."""
        place = torch.div(position, block_size, rounding_mode="floor")
        block = table.gather(1, place[:, None])[:, 0]
        return cls(index, None, table, position + 1, block, position - place * block_size)


class PagedCache(KeyValueCache):
    """Keys and values in blocks of B positions: [blocks, H, B, d/H] each.

    A block table says which blocks belong to which row, so memory follows what rows use. A step
    writes one position of each row; several rows may be positions of one stream.
    """

    def __init__(self, storage: KeyValueCache) -> None:
        """On the storage of another cache, whose rows become blocks."""
        self.keys, self.values = storage.keys, storage.values

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def put(self, keys: Tensor, values: Tensor, rows: CacheRows, at: Tensor) -> None:
        """Store [R, H, 1, d/H] at the new positions of the rows."""
        assert isinstance(rows, PagedRows)
        self.keys[rows.block, :, rows.offset] = keys[:, :, 0].to(self.keys.dtype)
        self.values[rows.block, :, rows.offset] = values[:, :, 0].to(self.values.dtype)

    def view(self, rows: CacheRows, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` positions of the given rows, as pages."""
        assert isinstance(rows, PagedRows)
        return self.pages(rows.table, rows.count, length)

    def pages(self, table: Tensor, count: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Pages stand for tensors wherever `attend` is their only user."""
        keys = Pages(self.keys, table, count, length)
        values = Pages(self.values, table, count, length)
        return keys, values  # type: ignore[return-value]

    def grow(self, blocks: int) -> None:
        """Add blocks."""
        self.keys = torch.cat([self.keys, self.keys.new_zeros(blocks, *self.keys.shape[1:])])
        self.values = torch.cat(
            [self.values, self.values.new_zeros(blocks, *self.values.shape[1:])]
        )


class StateCache(KeyValueCache):
    """The state of a recurrent unit after the last two positions: [rows, 2, d].

    One more than the last, so that a position can be computed again. The state before the first
    position is zero, whatever is stored.
    """

    def __init__(self, rows: int, width: int, like: Tensor) -> None:
        self.states = like.new_zeros(rows, 2, width)
        self.position = 0  # of all rows, where they write in lockstep; not needed here

    def before(self, rows: CacheRows, at: Tensor) -> Tensor:
        """The states before the positions at [R]: [R, d]."""
        return self.states[rows.index, at % 2] * (at > 0)[:, None]

    def keep(self, states: Tensor, rows: CacheRows, at: Tensor) -> None:
        """Store the states [R, d] after the positions at [R]; nothing where that is negative."""
        kept = self.states[rows.index, (at + 1) % 2]
        self.states[rows.index, (at + 1) % 2] = torch.where(at[:, None] < 0, kept, states)

    def clear(self, row: int) -> None:
        self.states[row] = 0

    def reorder(self, index: Tensor) -> None:
        self.states = self.states[index]

    def resize(self, index: Tensor | None, capacity: int, length: int) -> None:
        """Keep some rows (None: all); states have no length."""
        if index is not None:
            self.reorder(index)

    @property
    def nbytes(self) -> int:
        return self.states.nbytes


class LayerCaches(list[KeyValueCache]):
    """The caches of all layers."""

    def erase(self, row: int) -> None:
        """Set a row of all layers to zero."""
        for cache in self:
            cache.clear(row)

    def take(self, rows: int) -> None:
        """Write to all memory: the system gives it only then."""
        for row in range(rows):
            self.erase(row)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self)
