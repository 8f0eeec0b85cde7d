"""How fast this machine trains a model: measured briefly on a copy before a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from statistics import median

import numpy as np
import torch

from waitinfo.text.corpus import Corpus
from waitinfo.training.batches import UpdateBatches, make_batch, plan_epoch
from waitinfo.training.building import build_model
from waitinfo.training.config import RunConfig
from waitinfo.training.defaults import Circumstances, Speed
from waitinfo.training.distributed import ProcessGroup
from waitinfo.training.updates import Updater

UPDATES = 3  # timed, after one warm-up update
TRIAL = 10**9  # parameters times tokens of the larger of the two batches that are timed
GAIN = 1.1  # more threads are used only if they are this many times as fast
HEAVY = 10**10  # parameters times tokens of an update that keeps all threads busy
AFTER_ALL_STAGES = 10**9  # an update


def observe(
    run: RunConfig, corpus: Corpus, processes: ProcessGroup, timed: bool, free: bool
) -> Circumstances:
    """What the settings of a run must fit.

    The speed is measured if the run is `timed`, and the best number of threads if it is `free`.
    """
    split = corpus.train
    tokens = int(np.maximum(split.source_lengths, split.target_lengths).sum()) + len(split)
    config = run.model_config(corpus)
    known = Circumstances(len(split), tokens, config.width, processes.size)
    free = (
        free
        and processes.size == 1
        and processes.device.type == "cpu"
        and torch.get_num_threads() > 1
    )
    if not (timed or free):
        return known
    trial = Trial(run, corpus, processes)
    work = trial.parameters * run.training.batch_tokens * run.training.accumulate
    threads = fastest_threads(trial.seconds, idle_threads()) if free and work < HEAVY else 0
    with_threads = torch.get_num_threads()
    torch.set_num_threads(threads or with_threads)
    speed = trial.speed() if timed else None
    torch.set_num_threads(with_threads)
    return replace(known, threads=threads, speed=speed)


class Trial:
    """Updates of a copy of the model."""

    def __init__(self, run: RunConfig, corpus: Corpus, processes: ProcessGroup) -> None:
        self.processes, self.split = processes, corpus.train
        self.model = build_model(run, corpus, processes.device).train()
        self.parameters = self.model.parameter_count()
        config = replace(run.training, graphs=False)
        self.updater = Updater(self.model, run.system, config, processes)
        self.tokens = max(64, min(1024, TRIAL // self.parameters))

    def seconds(self, tokens: int | None = None, most: float | None = None) -> float:
        """An update with one batch takes so long; if the first takes longer than `most`, that."""
        plan = plan_epoch(self.split, tokens or self.tokens, seed=0, epoch=0)
        found: list[float] = []
        for indices in islice(cycle(plan), 1 + UPDATES):
            batch = make_batch(self.split, indices)
            item = UpdateBatches(0, 0.0, [(0, batch)], batch.tokens * self.processes.size)
            began = time.monotonic()
            losses = self.updater.run(item, AFTER_ALL_STAGES, lr=1e-6)
            float(losses["loss"])  # waits for the device
            found.append(time.monotonic() - began)
            if most is not None and found[0] > most:
                break
        return median(found[1:] or found)

    def speed(self) -> Speed:
        """From batches of two sizes; the same in all processes."""
        small, large = self.tokens // 4, self.tokens
        first, second = (self.processes.agree(self.seconds(size)) for size in (small, large))
        token = max(0.0, second - first) / (large - small)
        return Speed(max(0.0, first - token * small), token)


def idle_threads() -> int:
    """Threads that other processes leave free: on a busy core a thread makes all others wait."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, round(torch.get_num_threads() - busy))


def fastest_threads(seconds: Callable[..., float], most: int) -> int:
    """Doubles the number of threads, up to `most`, as long as that makes updates faster."""
    available = torch.get_num_threads()
    best, count = 1, 1
    try:
        torch.set_num_threads(1)
        shortest = seconds() if most > 1 else 0.0
        while count < most:
            count = min(2 * count, most)
            torch.set_num_threads(count)
            found = seconds(most=2 * shortest)
            if found * GAIN > shortest:
                break
            best, shortest = count, found
    finally:
        torch.set_num_threads(available)
    return best
