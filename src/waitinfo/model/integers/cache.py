"""Caches of a model in NumPy: one row per stream, each row with its own length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from waitinfo.model.integers.packing import Array


@dataclass(frozen=True)
class ArrayRows:
    """Some rows of a cache. Adjacent rows are selected by a slice, which copies nothing."""

    index: Array  # [R]
    span: slice | None

    @classmethod
    def of(cls, rows: Sequence[int]) -> ArrayRows:
        together = all(b == a + 1 for a, b in pairwise(rows))
        return cls(np.array(rows), slice(rows[0], rows[-1] + 1) if together else None)

    def take(self, array: Array) -> Array:
        """Select these rows of an array."""
        return array[self.span] if self.span is not None else array[self.index]


class ArrayCache:
    """Keys and values of the positions so far: [rows, H, capacity, d/H] each.

    Rows advance independently: each writes at its own position. Writing a position again replaces
    it, so a step that the policy rejects needs no rollback.
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        capacity: int,
        keys: int,
        values: int,
        kind: type[np.floating] = np.float32,
    ) -> None:
        self.keys = np.zeros((rows, heads, capacity, keys), kind)
        self.values = np.zeros((rows, heads, capacity, values), kind)

    def put(self, keys: Array, values: Array, rows: ArrayRows, at: Array) -> None:
        """Store [R, H, T, d/H] at the positions at [R, T] of the given rows."""
        self.keys[rows.index[:, None], :, at] = keys.swapaxes(1, 2)
        self.values[rows.index[:, None], :, at] = values.swapaxes(1, 2)

    def view(self, rows: ArrayRows, length: int) -> tuple[Array, Array]:
        """The first `length` positions of the given rows: [R, H, length, d/H] each."""
        return rows.take(self.keys[:, :, :length]), rows.take(self.values[:, :, :length])

    def fill(self, number: float, row: int | slice) -> None:
        self.keys[row] = self.values[row] = number

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class ArrayStateCache:
    """The state of a recurrent unit after the last two positions: [rows, 2, d].

    One more than the last, so that a position can be computed again. The state before the first
    position is zero, whatever is stored.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.states = np.zeros((rows, 2, width), np.float32)

    def before(self, rows: ArrayRows, at: Array) -> Array:
        """The states before the positions at [R]: [R, d]."""
        return self.states[rows.index, at % 2] * (at > 0)[:, None]

    def keep(self, states: Array, rows: ArrayRows, at: Array) -> None:
        """Store the states [R, d] after the positions at [R]; nothing where that is negative."""
        some = at >= 0
        self.states[rows.index[some], (at[some] + 1) % 2] = states[some]

    def fill(self, number: float, row: int | slice) -> None:
        self.states[row] = number

    @property
    def nbytes(self) -> int:
        return self.states.nbytes


class ArrayCaches(list[ArrayCache | ArrayStateCache]):
    """The caches of all layers."""

    def erase(self, row: int) -> None:
        """Set a row of all layers to zero."""
        for cache in self:
            cache.fill(0, row)

    def take(self, rows: int) -> None:
        """Write to all memory: the system gives it only then."""
        for cache in self:
            cache.fill(0, slice(rows))

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self)
