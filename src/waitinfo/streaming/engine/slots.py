"""The state of every slot on the host: what it was fed, what it has read and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.systems.base import PolicyState
from waitinfo.text.special import BOS, EOS

Kind = Literal["READ", "WRITE"]
READ: Kind = "READ"
WRITE: Kind = "WRITE"


def length_limit(read: Tensor) -> Tensor:
    """The largest number of tokens that may be written once `read` source tokens were read."""
    return 2 * read + 10


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


class Slots:
    """`count` slots, each with room for a source of `capacity` tokens with end-of-sentence."""

    def __init__(self, count: int, capacity: int) -> None:
        self.count, self.capacity = count, capacity
        self.policy = _blank_policy(count)
        self.least = torch.zeros(count, dtype=torch.long)  # tokens to read before the next attempt
        self.inputs = torch.full((count,), BOS)  # the decoder's next input
        # Total info after 0, 1, … source tokens.
        self.received = torch.zeros(count, capacity + 1, dtype=torch.float64)
        self.sources: list[list[int]] = [[] for _ in range(count)]
        self.targets: list[list[int]] = [[] for _ in range(count)]
        self.encoded = [0] * count  # source tokens in the caches
        self.seen = [0] * count  # source tokens that the last step saw
        self.fed = [False] * count  # the source is complete
        self.active = [False] * count  # something is left to write
        self.free = list(range(count - 1, -1, -1))

    def open(self) -> int:
        if not self.free:
            raise WaitinfoError(
                f"all {self.count} streams are in use; close one, or load the model with more"
            )
        return self.free.pop()

    def close(self, slot: int) -> None:
        self.active[slot] = False
        self.sources[slot], self.targets[slot] = [], []
        self.encoded[slot] = 0
        self.free.append(slot)
        self.free.sort(reverse=True)  # handing out low slots first keeps rows together

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self.sources[slot], self.encoded[slot] = [], 0
        self.targets[slot], self.seen[slot] = [], 0
        self.fed[slot], self.active[slot] = False, True
        self.inputs[slot] = BOS
        self.least[slot] = 0
        for field in fields(PolicyState):
            getattr(self.policy, field.name)[slot] = 0
        self.policy.k[slot] = k

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.capacity - 1 - len(self.sources[slot])

    def feed(self, slot: int, tokens: Sequence[int], complete: bool) -> None:
        if len(tokens) > self.room(slot):
            raise WaitinfoError(
                f"a source of over {self.capacity - 1} tokens does not fit; "
                "split it, or load the model with a larger capacity"
            )
        self.sources[slot] += [*tokens, EOS] if complete else tokens
        self.fed[slot] |= complete

    def receive(self, slot: int, start: int, info: Tensor) -> None:
        """Add the info of the source tokens from `start` on to the running totals."""
        end = start + len(info)
        self.received[slot, start + 1 : end + 1] = info.cumsum(0) + self.received[slot, start]

    def select(self, rows: Tensor) -> PolicyState:
        """The policy state of some rows."""
        return PolicyState(
            **{f.name: getattr(self.policy, f.name)[rows] for f in fields(PolicyState)}
        )

    def read_next(self, rows: Tensor) -> list[TokenEvent]:
        """One more source token each."""
        policy = self.policy
        before = policy.source_info[rows]
        policy.read[rows] += 1
        read = policy.read[rows]
        policy.source_info[rows] = self.received[rows, read]
        infos = (policy.source_info[rows] - before).tolist()
        events = []
        for slot, count, info in zip(rows.tolist(), read.tolist(), infos, strict=True):
            policy.complete[slot] = self.fed[slot] and count == len(self.sources[slot])
            events.append(self._event(slot, READ, self.sources[slot][count - 1], info))
        return events

    def write(self, rows: Tensor, tokens: Tensor, infos: Tensor) -> list[TokenEvent]:
        """One more target token each."""
        policy = self.policy
        policy.written[rows] += 1
        policy.target_info[rows] += infos
        self.inputs[rows] = tokens
        full = policy.complete[rows] & (policy.written[rows] >= length_limit(policy.read[rows]))
        events = []
        values = zip(rows.tolist(), tokens.tolist(), infos.tolist(), full.tolist(), strict=True)
        for slot, token, info, at_limit in values:
            last = token == EOS or at_limit
            self.active[slot] = not last
            self.targets[slot].append(token)
            events.append(self._event(slot, WRITE, token, info, last))
        return events

    def _event(
        self, slot: int, kind: Kind, token: int, info: float, last: bool = False
    ) -> TokenEvent:
        policy = self.policy
        return TokenEvent(
            slot=slot,
            kind=kind,
            token=token,
            info=info,
            read=int(policy.read[slot]),
            written=int(policy.written[slot]),
            source_info=float(policy.source_info[slot]),
            target_info=float(policy.target_info[slot]),
            last=last,
        )


def _blank_policy(rows: int) -> PolicyState:
    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dtype=dtype)

    return PolicyState(
        k=zeros(torch.float64),
        read=zeros(torch.long),
        written=zeros(torch.long),
        complete=zeros(torch.bool),
        source_info=zeros(torch.float64),
        target_info=zeros(torch.float64),
    )
