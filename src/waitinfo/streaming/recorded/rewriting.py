"""Shifted slots: the target that a slot keeps is computed again, once its source is encoded.

The reference is `streaming.engine.shifting`. All tokens of all shifted slots are rows of one
launch, unless cross-attention carries state from one position to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from waitinfo.streaming.engine.loops import LONGEST, runs
from waitinfo.streaming.recorded.graphs import Recorder
from waitinfo.streaming.recorded.mail import Mail, buffers, scratch_inputs, smallest
from waitinfo.streaming.recorded.state import HostState
from waitinfo.streaming.recorded.steps import REWRITE_IN, REWRITE_OUT, Bounds, Steps
from waitinfo.text.special import BOS


class Rewriter:
    """Computes kept targets; launches have one of the given numbers of rows."""

    def __init__(
        self, steps: Steps, recorder: Recorder, state: HostState, sizes: Sequence[int]
    ) -> None:
        self.steps, self.recorder, self.state, self.sizes = steps, recorder, state, sizes
        device = steps.model.device
        self._in_host, self._in = buffers(REWRITE_IN * sizes[-1], device)
        self._out = torch.zeros(REWRITE_OUT * sizes[-1], dtype=torch.float64, device=device)

    def run(self, slots: np.ndarray, bounds: Bounds) -> None:
        """Bring the decoder's caches and the policy's state of some slots up to date."""
        state = self.state
        written, read = state.written[slots], state.read[slots]
        counts = written + 1  # begin-of-sequence comes first
        first = counts.cumsum() - counts
        rows = slots.repeat(counts)
        at = np.arange(len(rows)) - first.repeat(counts)
        final = at == state.written[rows]
        token = np.where(at > 0, state.targets[rows, at - 1], BOS)
        seen = np.where(final, state.read[rows], state.paths[rows, at])
        table = np.stack([rows, at, token, seen, state.k[rows], final]).astype(np.float64)
        infos = np.zeros(len(rows))
        for some in self._groups(at):
            infos[some] = self._compute(table[:, some], bounds)
        state.target_info[slots] = np.add.reduceat(np.where(at > 0, infos, 0.0), first)
        zero = np.zeros_like(read)
        sums = [state.received[slots, read], state.target_info[slots]]
        self.steps.state.set(
            *self._to_device(
                slots,
                np.stack([read, written, zero, zero], 1),
                np.stack(sums, 1),
                self._told(slots),
            )
        )
        state.restarted[slots] = False

    def _groups(self, at: np.ndarray) -> Iterator[np.ndarray]:
        """Rows that can be computed together, in their order."""
        if self.steps.state.carried:
            every = [(at == place).nonzero()[0] for place in range(int(at.max()) + 1)]
        else:
            every = [np.arange(len(at))]
        most = self.sizes[-1]
        for some in every:
            for start in range(0, len(some), most):
                yield some[start : start + most]

    def _compute(self, table: np.ndarray, bounds: Bounds) -> np.ndarray:
        """Run a launch on inputs [6, M]; the info [M] of its tokens."""
        width = smallest(self.sizes, table.shape[1])
        inputs = self._in[: REWRITE_IN * width].view(REWRITE_IN, width)
        out = self._out[: REWRITE_OUT * width].view(REWRITE_OUT, width)
        key, compute = ("rewrite", width, bounds), partial(self.steps.rewrite, inputs, out, bounds)
        unused = self.state.count
        if not self.recorder.knows(key):
            inputs.copy_(scratch_inputs(REWRITE_IN, unused))
            self.recorder.record(key, compute)
        host = self._in_host[: REWRITE_IN * width].view(REWRITE_IN, width)
        Mail.fill(host.numpy(), unused, *table)
        inputs.copy_(host, non_blocking=True)
        self.recorder.run(key, compute)
        return out[0, : table.shape[1]].cpu().numpy()

    def _told(self, slots: np.ndarray) -> np.ndarray:
        """[N, T + LONGEST] the kept tokens of each slot, padded, and their runs."""
        state = self.state
        width = int(state.written[slots].max())
        found = np.zeros((len(slots), width + LONGEST), np.int64)
        for row, slot in zip(found, slots.tolist(), strict=True):
            kept = state.targets[slot, : state.written[slot]].tolist()
            row[: len(kept)], row[width:] = kept, runs(kept)
        return found

    def _to_device(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to(self._in.device) for array in arrays]
