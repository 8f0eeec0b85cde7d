"""Small training runs: their settings, their command lines, and what they recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig
from waitinfo.training.display import LineDisplay, SilentDisplay
from waitinfo.training.distributed import join_processes
from waitinfo.training.trainer import Trainer
from waitinfo.training.validation import Validation

SETTINGS = {
    "updates": 60, "batch_tokens": 200, "lr": 3e-3, "warmup": 10, "validate_every": 30,
    "validate_sentences": 10, "checkpoint_every": 10, "log_every": 5, "threads": 1,
    "device": "cpu", "ema_decay": 0.999,
}  # fmt: skip


def values(corpus: Path, **training: object) -> dict:
    return {
        "data": str(corpus),
        "size": "tiny",
        "system": {"name": "wait-info", "whole_source_updates": 10},
        "model": {"width": 32, "ffn": 32, "dropout": 0.2},
        "training": {**SETTINGS, **training},
    }


def command(out: Path, config: dict | None = None, *more: str) -> list[str]:
    """The command line for these settings."""
    arguments = ["-m", "waitinfo", "train", "--out", str(out), *more]
    if config:
        arguments += ["--data", config["data"], "--size", config["size"]]
        arguments += ["--system", config["system"]["name"], "--set"]
        for section in ("system", "model", "training"):
            arguments += [f"{section}.{k}={v}" for k, v in config[section].items() if k != "name"]
    return arguments


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_tensors(a: Path, b: Path) -> None:
    left, right = load_file(a), load_file(b)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


class FakeTime:
    """A clock that tests set."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


def new_trainer(
    config: dict,
    out: Path,
    display: LineDisplay | None = None,
    now: Callable[[], float] = time.monotonic,
    chosen: dict | None = None,
) -> Trainer:
    """A trainer with settings as given, and others as chosen, without the run's files."""
    run = RunConfig.from_values(config, chosen)
    with join_processes(run.training.device) as processes:
        return Trainer(run, Corpus(run.data), out, processes, display or SilentDisplay(), now)


@dataclass
class IdleValidator:
    """Takes its time and has its answer."""

    clock: FakeTime
    seconds: float
    bleu: float | None = 1.0
    missing: None = None
    translates: bool = True

    def __call__(self, model: object) -> Validation:
        self.clock.passes(self.seconds)
        return Validation(1.0, self.bleu, 1.0)


def idle_trainer(
    config: dict,
    out: Path,
    clock: FakeTime,
    update: float,
    validation: float,
    chosen: dict | None = None,
) -> Trainer:
    """A trainer that computes nothing; its updates and validations take so many seconds."""
    trainer = new_trainer(config, out, now=clock, chosen=chosen)

    def run(*given: object) -> dict[str, torch.Tensor]:
        clock.passes(update)
        return {"loss": torch.ones(())}

    trainer.updater.run = run  # type: ignore[method-assign]
    trainer.validator = IdleValidator(clock, validation)  # type: ignore[assignment]
    return trainer
