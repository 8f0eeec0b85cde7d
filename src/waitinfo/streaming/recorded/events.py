"""The events of a round as columns: objects are made only for those who ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from waitinfo.streaming.engine.slots import READ, WRITE, Reason, TokenEvent
from waitinfo.streaming.recorded.state import HostState
from waitinfo.streaming.recorded.steps import LAST, LOOPED, WROTE
from waitinfo.text.special import EOS

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


def token_events(
    state: HostState, rows: np.ndarray, after: np.ndarray, flags: np.ndarray, written: np.ndarray
) -> TokenEvents:
    """What each row READ, `after` tokens in all, and then, maybe, WROTE.

    `written` holds token, info and total. `state` is that before the step.
    """
    reads = after - state.read[rows]
    count = reads + ((flags & WROTE) > 0)
    index = np.arange(len(rows)).repeat(count)
    nth = np.arange(len(index)) - (count.cumsum() - count).repeat(count)
    write = nth == reads[index]
    slot = rows[index]
    read = state.read[slot] + np.minimum(nth + 1, reads[index])
    total = state.received[slot, read]
    place = np.maximum(read - 1, 0)
    token = np.where(write, written[0, index].astype(np.int64), state.sources[slot, place])
    last, looped = write & ((flags & LAST) > 0)[index], (flags & LOOPED) > 0
    return TokenEvents(
        slot=slot,
        write=write,
        token=token,
        info=np.where(write, written[1, index], total - state.received[slot, place]),
        read=read,
        written=state.written[slot] + write,
        source_info=total,
        target_info=np.where(write, written[2, index], state.target_info[slot]),
        last=last,
        cut=np.where(looped[index] & last, LOOP, LENGTH * (last & (token != EOS))),
    )
