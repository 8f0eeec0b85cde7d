"""Tokens that slots have read and written: one by one, or the columns of a whole round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import numpy as np

Kind = Literal["READ", "WRITE"]
Reason = Literal["loop", "length"]
READ: Kind = "READ"
WRITE: Kind = "WRITE"
REASONS: tuple[Reason | None, ...] = (None, "loop", "length")
LOOP, LENGTH = 1, 2


class TokenEvent(NamedTuple):
    """One token read or written by a slot."""

    slot: int
    kind: Kind
    token: int
    info: float
    read: int  # source tokens read so far, this one included
    written: int
    source_info: float  # info read so far
    target_info: float  # info written so far
    last: bool = False  # nothing more will be written for this source
    cut: Reason | None = None  # why it is the last, if the model did not end by itself


@dataclass(frozen=True)
class TokenEvents(Sequence[TokenEvent]):
    """The same as columns; iterating makes the objects. Events of one slot are in order."""

    slot: np.ndarray
    write: np.ndarray  # bool: WRITE, else READ
    token: np.ndarray
    info: np.ndarray
    read: np.ndarray
    written: np.ndarray
    source_info: np.ndarray
    target_info: np.ndarray
    last: np.ndarray
    cut: np.ndarray  # place in REASONS

    def __len__(self) -> int:
        return len(self.slot)

    def __iter__(self) -> Iterator[TokenEvent]:
        kinds = [WRITE if write else READ for write in self.write.tolist()]
        columns = [
            self.slot, self.token, self.info, self.read, self.written, self.source_info,
            self.target_info, self.last,
        ]  # fmt: skip
        slot, *others = (column.tolist() for column in columns)
        cuts = [REASONS[cut] for cut in self.cut.tolist()]
        return map(TokenEvent, slot, kinds, *others, cuts)

    @overload
    def __getitem__(self, index: int) -> TokenEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenEvent]: ...

    def __getitem__(self, index: int | slice) -> TokenEvent | list[TokenEvent]:
        return list(self)[index]
