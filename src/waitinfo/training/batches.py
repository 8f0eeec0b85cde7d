"""Batches: sentences of similar length within a token budget, in an order set by the seed.

The order of batches over all epochs is one endless sequence, a function of the seed alone. An
update takes `share.count` consecutive batches of it and each of `share.processes` processes takes
its share of them in turn. So one process with two batches an update and two processes with one each
see the same data.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from waitinfo.model.batch import Batch, pad_rows, round_up
from waitinfo.text.corpus import Ints, Split
from waitinfo.text.special import BOS, EOS


def make_batch(split: Split, indices: Ints) -> Batch:
    """The batch of the given pairs."""
    source, source_lengths = split.gather(indices, 0)
    target, target_lengths = split.gather(indices, 1)
    return Batch(
        source=pad_rows(source, source_lengths, None, EOS),
        source_lengths=torch.from_numpy(source_lengths + 1),
        target_in=pad_rows(target, target_lengths, BOS, None),
        target_out=pad_rows(target, target_lengths, None, EOS),
        target_lengths=torch.from_numpy(target_lengths + 1),
        pairs=len(indices),
        tokens=int(target_lengths.sum()) + len(indices),
        longest_source=int(source_lengths.max()) + 1,
        lengths=tuple(
            zip((source_lengths + 1).tolist(), (target_lengths + 1).tolist(), strict=True)
        ),
    )


def plan_epoch(split: Split, budget: int, seed: int, epoch: int) -> list[Ints]:
    """An epoch's batches as index arrays: similar lengths together, otherwise shuffled.

    A batch holds as many pairs as fit when each is padded to the longest side of the longest pair;
    a pair longer than the budget is a batch of its own.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(split))
    longest = np.maximum(split.source_lengths, split.target_lengths)[order] + 1
    # A stable sort keeps the shuffled order among pairs of one length.
    by_length = np.lexsort((split.target_lengths[order], longest))
    order = order[by_length]
    longest = round_up(longest[by_length])
    batches = []
    start = 0
    while start < len(order):
        count = max(1, budget // int(longest[start]))
        last = min(start + count, len(order)) - 1
        while last > start and (last - start + 1) * int(longest[last]) > budget:
            last -= 1
        batches.append(order[start : last + 1])
        start = last + 1
    return [batches[i] for i in generator.permutation(len(batches))]


def sequential_batches(split: Split, budget: int) -> Iterator[Batch]:
    """All pairs once in a fixed order: for validation."""
    for indices in plan_epoch(split, budget, seed=0, epoch=0):
        yield make_batch(split, indices)


@dataclass(frozen=True)
class Share:
    """Which of the batches of an update this process takes."""

    count: int = 1  # batches per update, over all processes
    rank: int = 0
    processes: int = 1


@dataclass(frozen=True)
class UpdateBatches:
    """This process's batches of one update, and what all processes' batches add up to."""

    update: int
    epoch: float  # epochs completed after this update
    batches: list[tuple[int, Batch]]  # with each batch's index in the endless sequence
    tokens: int  # of all processes together


class BatchStream:
    """The endless sequence of updates, prepared ahead on a background thread."""

    def __init__(
        self,
        split: Split,
        budget: int,
        seed: int,
        share: Share | None = None,
        start: int = 0,
        pin: bool = False,
        ahead: int = 16,
    ) -> None:
        self.split, self.budget, self.seed = split, budget, seed
        self.share = share or Share()
        self.start, self.pin = start, pin
        self._queue: queue.Queue[UpdateBatches | BaseException] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="batches")
        self._thread.start()

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def __next__(self) -> UpdateBatches:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def __iter__(self) -> BatchStream:
        return self

    def _work(self) -> None:
        try:
            for update in self._updates():
                if self._stop.is_set():
                    return
                self._queue.put(update)
        except BaseException as error:  # passed to the consumer, which raises it
            self._queue.put(error)

    def _plan(self) -> Iterator[tuple[int, Ints, float]]:
        """The endless sequence: (place, indices, epochs completed)."""
        place = epoch = 0
        while True:
            batches = plan_epoch(self.split, self.budget, self.seed, epoch)
            for number, indices in enumerate(batches, 1):
                yield place, indices, epoch + number / len(batches)
                place += 1
            epoch += 1

    def _updates(self) -> Iterator[UpdateBatches]:
        plan = self._plan()
        update = 0
        while True:
            planned = [next(plan) for _ in range(self.share.count)]
            if update >= self.start:
                yield self._materialise(update, planned)
            update += 1

    def _materialise(self, update: int, planned: list[tuple[int, Ints, float]]) -> UpdateBatches:
        mine = []
        tokens = 0
        for number, (place, indices, _) in enumerate(planned):
            tokens += int(self.split.target_lengths[indices].sum()) + len(indices)
            if number % self.share.processes == self.share.rank:
                batch = make_batch(self.split, indices)
                mine.append((place, batch.pin() if self.pin else batch))
        return UpdateBatches(update, planned[-1][2], mine, tokens)
