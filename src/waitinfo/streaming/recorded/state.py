"""What is known of every slot: on the device what the policy decides from, on the host the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.base import Places
from waitinfo.streaming.engine.forcing import Path
from waitinfo.streaming.engine.loops import LONGEST, RepeatCounts
from waitinfo.streaming.engine.slots import length_limit
from waitinfo.text.special import BOS, EOS

READ_COUNT, WRITTEN, LEAST, REFUSED = range(4)  # columns of `DeviceState.counts`
SOURCE, TARGET = range(2)  # columns of `DeviceState.sums`


class DeviceState:
    """The policy's state on the device, one row per slot and one of scratch for padding."""

    @torch.no_grad()
    def __init__(self, model: Transformer, slots: int, capacity: int) -> None:
        rows, device = slots + 1, model.device
        exact = torch.promote_types(model.dtype, torch.float32)
        # Tokens read and written, tokens to read before the next attempt, and ends refused since
        # the last token.
        self.counts = torch.zeros(rows, 4, dtype=torch.long, device=device)
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
        self.periods = torch.arange(1, LONGEST + 1, dtype=torch.int32, device=device)

    def set(self, index: Tensor, counts: Tensor, sums: Tensor, targets: Tensor) -> None:
        """The state of shifted slots: counts [N, 4], sums [N, 2], tokens and runs [N, T + 32]."""
        positions = targets.shape[1] - LONGEST
        self.counts[index], self.sums[index] = counts, sums
        self.targets[index, :positions] = targets[:, :positions].int()
        self.runs[index] = targets[:, positions:].int()


class HostState(Places):
    """The same for the host, in arrays: what a slot was fed, has encoded, read and written."""

    fed: np.ndarray

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__(slots, capacity)
        self.sources = np.zeros((slots, capacity), np.int64)
        self.repeated = RepeatCounts(slots, capacity)
        positions = target_positions(capacity) + 1
        self.targets, self.paths = np.zeros((2, slots, positions), np.int32)
        # Source tokens fed, encoded and read, and target tokens written.
        self.counts = np.zeros((4, slots), np.int64)
        self.length, self.encoded, self.read, self.written = self.counts
        self.target_info = np.zeros(slots)
        self.fed = np.zeros(slots, bool)  # the source is complete
        self.active = np.zeros(slots, bool)  # something is left to write
        self.restarted = np.zeros(slots, bool)  # the device has still to forget the last source
        self.going = np.zeros(slots, bool)  # can go on without more input
        self.held = np.zeros(slots, bool)

    def close(self, slot: int) -> None:
        self.active[slot] = self.going[slot] = self.held[slot] = False
        self.length[slot] = self.encoded[slot] = 0
        self.shifted.discard(slot)
        self.forced.drop(slot)
        self.free.append(slot)

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self.length[slot] = self.encoded[slot] = self.read[slot] = self.written[slot] = 0
        self.target_info[slot] = 0
        self.fed[slot] = self.going[slot] = False
        self.active[slot] = self.restarted[slot] = True
        self.patience[slot] = 0
        self.repeated.reset(slot)
        self.shifted.discard(slot)
        self.k[slot] = k

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Start again without the first source and target tokens; the others stay read and written.

        They are computed again before the slot goes on.
        """
        length, _, read, written = (self.counts[:, slot] - (source, 0, source, target)).tolist()
        fed = self.fed[slot]
        self.reset(slot, k)
        for tokens, first, count in (
            (self.sources, source, length),
            (self.targets, target, written),
            (self.paths, target, written),
        ):
            tokens[slot, :count] = tokens[slot, first : first + count].copy()
        self.paths[slot, :written] = np.maximum(1, self.paths[slot, :written] - source)
        self.length[slot], self.read[slot], self.written[slot] = length, read, written
        self.fed[slot] = fed
        if read:
            self.shifted.add(slot)

    def begin(self, slot: int, path: Path, read: int) -> None:
        written = len(path)
        self.targets[slot, :written] = [token for token, _ in path]
        self.paths[slot, :written] = [seen for _, seen in path]
        self.read[slot], self.written[slot] = read, written
        if read:
            self.shifted.add(slot)

    def length_of(self, slot: int) -> int:
        return int(self.length[slot])

    def history(self, slot: int) -> tuple[list[int], list[int], list[int]]:
        read, written = int(self.read[slot]), int(self.written[slot])
        target, path = self.targets[slot, :written], self.paths[slot, :written]
        return self.sources[slot, :read].tolist(), target.tolist(), path.tolist()

    def feed(self, slot: int, tokens: Sequence[int], complete: bool) -> None:
        start = int(self.length[slot])
        end = start + len(tokens)
        self.check_length(end)
        self.sources[slot, start:end] = tokens
        if complete:
            self.sources[slot, end] = EOS
            self.fed[slot] = True
        self.length[slot] = end + complete

    def write(self, rows: np.ndarray, tokens: np.ndarray, path: np.ndarray) -> None:
        """One more target token each, after so many READs."""
        written = self.written[rows]
        self.targets[rows, written], self.paths[rows, written] = tokens, path
        self.written[rows] = written + 1

    def receive(
        self, slots: np.ndarray, at: np.ndarray, turn: np.ndarray, info: np.ndarray
    ) -> None:
        """Add the info of source tokens to the totals, in turn where a slot has several."""
        for nth in range(int(turn.max()) + 1):
            some = turn == nth
            slot, place = slots[some], at[some]
            self.received[slot, place + 1] = self.received[slot, place] + info[some]


def target_positions(capacity: int) -> int:
    """Positions that the target of a source of `capacity` tokens can take."""
    return length_limit(capacity) + 1
