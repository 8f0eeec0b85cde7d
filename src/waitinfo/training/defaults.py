"""Settings that fit the corpus, the machine and the time given, where the user chose none.

`TrainingConfig` and the options of systems have defaults for a large corpus and a long run, as in
the paper. They are kept where they fit. A small corpus gets smaller batches, and a short run a
shorter warm-up, shorter stages and more frequent validations. Nothing that was given is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waitinfo.systems import System
from waitinfo.training.config import RunConfig, TrainingConfig

STOCK = TrainingConfig()
WIDTH = 512  # of the model that the stock learning rate is for
SMALLEST_BATCH = 256
BATCHES_AN_EPOCH = 50  # at least, where batches of SMALLEST_BATCH allow it
EPOCHS = 60  # of a run without limits
FEWEST_UPDATES = 3000  # of a run without limits
TIMED_UPDATES = 1000  # of a timed run at least, where batches of SMALLEST_BATCH allow it
TRAINING_TIME = 0.8  # share of a timed run that updates take; the rest validates and saves


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
    """A system's stages as they are if they leave a third of the run, else a quarter of it."""
    stock = {name: getattr(type(system).Options(), name) for name in system.milestones}
    return {
        name: length if 3 * length <= 2 * updates else updates // 4
        for name, length in stock.items()
        if length
    }


def clamp(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
