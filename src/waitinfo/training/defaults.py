"""Settings that fit the corpus, the machine and the time given, where the user chose none.

`TrainingConfig` and the options of systems have defaults for a large corpus and a long run, as in
the paper. They are kept where they fit. A small corpus gets smaller batches, and a short run a
shorter warm-up, shorter stages and more frequent validations. Nothing that was given is changed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import median
from typing import Any

import numpy as np
import torch

from waitinfo.model.config import SIZES
from waitinfo.systems import System
from waitinfo.text.corpus import Corpus
from waitinfo.training.batches import UpdateBatches, make_batch, plan_epoch
from waitinfo.training.building import build_model
from waitinfo.training.config import RunConfig, TrainingConfig
from waitinfo.training.distributed import ProcessGroup
from waitinfo.training.updates import Updater

STOCK = TrainingConfig()
WIDTH = 512  # of the model that the stock learning rate is for
SMALLEST_BATCH = 256
BATCHES_AN_EPOCH = 50  # at least, where batches of SMALLEST_BATCH allow it
EPOCHS = 60  # of a run without limits
FEWEST_UPDATES = 3000  # of a run without limits
TIMED_UPDATES = 1000  # of a timed run at least, where batches of SMALLEST_BATCH allow it
AVERAGED = 10  # the weights' average remembers this part of a run
TRAINING_TIME = 0.8  # share of a timed run that updates take; the rest validates and saves
CANDIDATES = ("tiny", "mini", "small", "base")  # in this order; "big" only if it was asked for
CLEARLY = 0.95  # a larger model must have a loss this much lower: a smaller one translates faster
MOST_PARAMETERS = 32  # for each token of the corpus: a larger model only learns it by heart
EXPONENT, OF_PARAMETERS, OF_TOKENS = 0.353, 521.0, 1488.0
REPEATS = 15.39  # as many repetitions of a text are worth two thirds as much as new text


@dataclass(frozen=True)
class Speed:
    """Seconds an update takes: some for itself, and some for each token of its batch."""

    update: float
    token: float

    def seconds(self, tokens: int) -> float:
        return self.update + self.token * tokens


@dataclass(frozen=True)
class Circumstances:
    """What settings must fit."""

    pairs: int
    tokens: int  # by the longer side of each pair, end-of-sentence counted
    width: int  # of the model
    processes: int = 1
    threads: int = 0  # CPU threads that are fastest; 0 if not measured
    speed: Speed | None = None  # measured for a timed run; else the limit in time is ignored


def choose_settings(
    given: RunConfig, names: Mapping[str, set[str]], circumstances: Circumstances
) -> dict[str, Any]:
    """Settings for whatever is not among the given `names` of the sections training and system.

    Returns values by section, as in a recipe. A timed run whose stages were chosen also gets
    `expected_updates`, so that stages end in time even if the machine becomes slower.
    """
    config = given.training
    chosen: dict[str, Any] = {}
    if "batch_tokens" not in names["training"]:
        chosen["batch_tokens"] = batch_tokens(config, circumstances)
    batch = chosen.get("batch_tokens", config.batch_tokens)
    if "updates" not in names["training"] and not config.max_minutes:
        chosen["updates"] = unlimited_updates(batch * config.accumulate, circumstances)
    expected = expected_updates(config, chosen.get("updates", config.updates), batch, circumstances)
    chosen |= {
        "lr": STOCK.lr * max(1.0, WIDTH / circumstances.width),
        "warmup": clamp(expected // 5, 1, STOCK.warmup),
        "validate_every": clamp(expected // 10, 20, STOCK.validate_every),
        "log_every": clamp(expected // 20, 5, STOCK.log_every),
    }
    if config.average == "ema":
        chosen["ema_decay"] = round(min(STOCK.ema_decay, max(0.5, 1 - AVERAGED / expected)), 4)
    if config.max_minutes:
        sentences = int(100 + 100 * config.max_minutes)
        chosen["validate_sentences"] = clamp(sentences, 100, STOCK.validate_sentences)
    if circumstances.threads:
        chosen["threads"] = circumstances.threads
    stages = stage_lengths(given.system, expected)
    found: dict[str, Any] = {
        "training": {n: value for n, value in chosen.items() if n not in names["training"]},
        "system": {n: value for n, value in stages.items() if n not in names["system"]},
    }
    if config.max_minutes and stages and found["system"] == stages:
        found["expected_updates"] = expected
    return found


def batch_tokens(config: TrainingConfig, circumstances: Circumstances) -> int:
    """As many as leave an epoch, and a timed run, enough updates."""
    parts = config.accumulate * circumstances.processes
    most = circumstances.tokens // (BATCHES_AN_EPOCH * parts)
    speed = circumstances.speed
    if speed and config.max_minutes:
        seconds = training_seconds(config) / TIMED_UPDATES / config.accumulate
        most = min(most, int((seconds - speed.update) / max(speed.token, 1e-12)))
    return clamp(most // 64 * 64, SMALLEST_BATCH, STOCK.batch_tokens)


def unlimited_updates(tokens: int, circumstances: Circumstances) -> int:
    """Of a run that is given neither updates nor time: some epochs, within limits."""
    epoch = circumstances.tokens / (tokens * circumstances.processes)
    return clamp(int(EPOCHS * epoch), FEWEST_UPDATES, STOCK.updates)


def expected_updates(
    config: TrainingConfig, updates: int, batch: int, circumstances: Circumstances
) -> int:
    """As many as were asked for, or as fit the time."""
    if not (config.max_minutes and circumstances.speed):
        return updates
    seconds = circumstances.speed.seconds(batch) * config.accumulate
    return clamp(int(training_seconds(config) / max(seconds, 1e-9)), 1, updates)


def training_seconds(config: TrainingConfig) -> float:
    return config.max_minutes * 60 * TRAINING_TIME


def stage_lengths(system: System, updates: int) -> dict[str, int]:
    """Lengths of a system's stages: at most two thirds of the run, or else a quarter of it."""
    stock = {name: getattr(type(system).Options(), name) for name in system.milestones}
    return {
        name: length if 3 * length <= 2 * updates else updates // 4
        for name, length in stock.items()
        if length
    }


def clamp(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


# How fast this machine trains a model: measured briefly on a copy before a run

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
        """Median seconds of an update with one batch of `tokens` tokens.

        If the first update takes longer than `most`, its time is returned and no other is made.
        """
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


def may_choose_size(run: RunConfig) -> bool:
    """Whether nothing given depends on the size."""
    return not run.training.start_from and not run.model.keys() & SIZES["base"].keys()


def choose_size(
    run: RunConfig, settings: Callable[[RunConfig], tuple[dict[str, Any], Circumstances]]
) -> dict[str, Any]:
    """Settings for the size that should learn most in the time, and the size.

    The loss of a Transformer with N parameters in its layers that saw D tokens falls about as
    A / N^a + B / D^a (Hoffmann et al., 2022). A token that is seen again counts for less each time;
    the constants for that and those of the law are from Muennighoff et al. (2023). They were fitted
    to language models, so only the order of the sizes is used.

    `settings` chooses the rest for one size. Sizes are tried in order as long as each should learn
    more than the one before, so that no model is tried that is much too large for the machine.
    """
    best: dict[str, Any] = {}
    least, most, epochs = math.inf, math.inf, {}
    for size in CANDIDATES:
        parameters = layer_parameters(**SIZES[size])
        if parameters > most:
            break
        chosen, seen = settings(replace(run, size=size))
        tokens = tokens_seen(run, chosen, seen)
        epochs[size] = round(tokens / seen.tokens, 2)
        loss = expected_loss(parameters, tokens, seen.tokens)
        if loss > CLEARLY * least:
            break
        best, least, most = {**chosen, "size": size}, loss, MOST_PARAMETERS * seen.tokens
    return {**best, "sizes": epochs}


def tokens_seen(run: RunConfig, chosen: dict[str, Any], seen: Circumstances) -> int:
    """Tokens of all updates, by the longer side of each pair."""
    config = replace(run.training, **chosen["training"])
    updates = expected_updates(config, config.updates, config.batch_tokens, seen)
    return updates * config.batch_tokens * config.accumulate * seen.processes


def layer_parameters(
    width: int, ffn: int, encoder_layers: int, decoder_layers: int, heads: int
) -> int:
    """Weights of the matrices of a Transformer's layers."""
    del heads
    attention, forward = 4 * width**2, 2 * width * ffn
    return encoder_layers * (attention + forward) + decoder_layers * (2 * attention + forward)


def expected_loss(parameters: int, tokens: int, unique: int) -> float:
    """What is left to learn after so many tokens of a text with so many `unique` ones."""
    repeats = max(0.0, tokens / unique - 1)
    worth = min(tokens, unique) + unique * REPEATS * (1 - math.exp(-repeats / REPEATS))
    return OF_PARAMETERS / parameters**EXPONENT + OF_TOKENS / max(1.0, worth) ** EXPONENT
