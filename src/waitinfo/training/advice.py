"""What would help a run that ended too early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from waitinfo.training.config import RunConfig
from waitinfo.training.shape import CANDIDATES

RECENT = 1 / 3  # of a run
STEEP = 0.1  # fall of the development loss in the recent part of a run, in nats


def advice(run: RunConfig, out: Path, level: float) -> str | None:
    """A warning, where a run saw too little; `level` is a loss at which models know hardly more
    than how frequent words are."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    epochs = max((row["epoch"] for row in rows if "epoch" in row), default=0.0)
    losses = [(row["update"], row["validation_loss"]) for row in rows if "validation_loss" in row]
    problem = shortcoming(epochs, losses, level)
    return f"warning: {problem}; {'; or '.join(remedies(run, out, epochs))}" if problem else None


def shortcoming(epochs: float, losses: list[tuple[int, float]], level: float) -> str | None:
    """What a run lacked, given the epochs it saw and its development losses by update."""
    if epochs < 1:
        return f"the run saw only {epochs:.2f} of its text"
    if not losses:
        return None
    last, final = losses[-1]
    if final > level:
        return "the model has hardly learned to translate"
    # The latest one before the recent part of the run.
    before = [loss for update, loss in losses if update <= last * (1 - RECENT)]
    if before and before[-1] - final > STEEP:
        return f"the development loss still fell steeply, from {before[-1]:.2f} to {final:.2f}"
    return None


def remedies(run: RunConfig, out: Path, epochs: float) -> list[str]:
    """What would help, the most useful first."""
    longer = f"waitinfo train --out {out} --resume {_longer(run)}"
    found = [f"it gets better with more time: {longer}"]
    size = run.size
    if not run.sizes and size in CANDIDATES[1:] and epochs < 5:
        smaller = CANDIDATES[CANDIDATES.index(size) - 1]
        found.append(f"a smaller model learns faster: leave out --size, or --size {smaller}")
    return found


def _longer(run: RunConfig) -> str:
    config: Any = run.training
    if config.max_minutes:
        return f"--max-minutes {3 * config.max_minutes:g}"
    return f"--set training.updates={3 * config.updates}"
