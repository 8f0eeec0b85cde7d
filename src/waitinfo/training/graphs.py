"""CUDA graphs: updates of one shape are recorded once and then replayed as a whole.

A small model spends most of an update in launching kernels, hundreds of them, one by one from
Python. Batches have few shapes (like lengths together, padded to multiples), so the update of a
shape is recorded when it comes for the second time, and afterwards costs one launch. What changes
from update to update (tokens, dial, learning rate) is written into the recording's own inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from waitinfo.model.batch import Batch
from waitinfo.systems import System
from waitinfo.systems.base import DialValue

SEEN = 1  # how often a shape is computed normally before it is recorded
MOST = 128  # recordings of a stage

# Computes a batch's part of an update: batch, dial, share of the gradient; returns the losses.
Update = Callable[[Batch, Tensor | None, Tensor], dict[str, Tensor]]


def recordable(system: System) -> bool:
    """Whether all updates of one shape launch the same kernels."""
    return not system.plans_by_length


def stage(system: System, update: int) -> tuple[bool, ...]:
    """Which milestones of a system are ahead: within a stage its loss runs the same code."""
    return tuple(update < getattr(system.options, name) for name in system.milestones)


@dataclass
class RecordedUpdate:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    dial: Tensor | None
    share: Tensor
    losses: dict[str, Tensor]

    def replay(self, batch: Batch, dial: DialValue | None, share: float) -> dict[str, Tensor]:
        for name, tensor in vars(self.batch).items():
            if isinstance(tensor, Tensor):
                tensor.copy_(getattr(batch, name), non_blocking=True)
        if self.dial is not None and dial is not None:
            if isinstance(dial, tuple):
                self.dial.copy_(torch.tensor(dial))
            else:
                self.dial.fill_(dial)
        self.share.fill_(share)
        self.graph.replay()
        return self.losses


class GradientSums:
    """Sums of the gradients of an update's batches, in one place for all recordings.

    Parameters that have had no gradient in a stage have none in its updates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.used: dict[Hashable, list[int]] = {}

    def add(self, stage: Hashable) -> None:
        """Add the gradient of one batch."""
        grads = {n: p.grad for n, p in enumerate(self.parameters) if p.grad is not None}
        self.used[stage] = sorted({*self.used.get(stage, ()), *grads})
        torch._foreach_add_([self.sums[n] for n in grads], list(grads.values()))

    def hand_over(self, stage: Hashable) -> None:
        """Make the sums the gradients that the optimizer sees."""
        for parameter in self.parameters:
            parameter.grad = None
        for n in self.used[stage]:
            self.parameters[n].grad = self.sums[n]

    def clear(self) -> None:
        torch._foreach_zero_(self.sums)


class GraphedUpdates:
    """Runs updates, recording those whose shape comes again and again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seen: Counter[Hashable] = Counter()
        self.recordings: dict[tuple[Hashable, ...], RecordedUpdate] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def run(
        self, update: Update, batch: Batch, dial: DialValue | None, share: float, stage: Hashable
    ) -> dict[str, Tensor]:
        """One batch. Everything else that `update` does may depend only on the stage."""
        key = (tuple(batch.source.shape), tuple(batch.target_in.shape), dial is None, stage)
        if recording := self.recordings.get(key):
            return recording.replay(batch, dial, share)
        self.seen[key] += 1
        own = batch.to(self.device)
        dials = None if dial is None else torch.tensor(dial, device=self.device)
        shares = torch.tensor(share, device=self.device)
        recorded = sum(each[-1] == stage for each in self.recordings)
        if self.seen[key] <= SEEN or recorded >= MOST:
            return update(own, dials, shares)
        graph = torch.cuda.CUDAGraph()
        # Other threads prepare and pin batches meanwhile, which a stricter mode would forbid.
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            losses = update(own, dials, shares)
        self.recordings[key] = RecordedUpdate(graph, own, dials, shares, losses)
        return self.recordings[key].replay(batch, dial, share)
