"""The events of a round as columns: objects are made only for those who ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from waitinfo.streaming.engine.slots import READ, WRITE, Reason, TokenEvent

REASONS: tuple[Reason | None, ...] = (None, "loop", "length")
LOOP, LENGTH = 1, 2


@dataclass(frozen=True)
class TokenEvents(Sequence[TokenEvent]):
    """Tokens read and written, those of one slot in their order."""

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
