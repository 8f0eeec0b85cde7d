"""Starting a run, or resuming one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from waitinfo.training.checkpoint import load_newest
from waitinfo.training.config import RunConfig
from waitinfo.training.defaults import CANDIDATES
from waitinfo.training.display import Display, LineDisplay, SilentDisplay
from waitinfo.training.distributed import join_processes
from waitinfo.training.head import train_head, trains_head
from waitinfo.training.run_folder import begin_run, full_settings, stop_politely
from waitinfo.training.trainer import Trainer

RECENT = 1 / 3  # of a run
STEEP = 0.1  # fall of the development loss in the recent part of a run, in nats


def train(
    values: dict[str, Any],
    out: Path,
    resume: bool = False,
    display: Display | None = None,
    recipe: Path | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Train as `waitinfo train` does; `values` are the settings as given.

    The time of the run counts from `started`, on the clock `time.monotonic`.
    """
    started = time.monotonic() if started is None else started
    settings, _ = full_settings(values, out, resume)
    if trains_head(settings):
        return train_head(settings, out, resume, display or LineDisplay(), recipe)
    with join_processes(RunConfig.from_values(settings).training.device) as processes:
        display = (display or LineDisplay()) if processes.leads else SilentDisplay()
        with begin_run(values, out, resume, recipe, processes) as (run, corpus):
            if run.training.threads:
                torch.set_num_threads(run.training.threads)
            trainer = Trainer(run, corpus, out, processes, display, started=started)
            if resume:
                resume_from_checkpoint(trainer)
            display.start(f"training {run.system.name} ({run.size}) into {out}", _facts(trainer))
            try:
                with stop_politely(trainer.interrupt):
                    summary = trainer.train()
                if not summary["paused"]:
                    display.note(_farewell(out, summary))
                    if warning := advice(run, out, trainer.validator.level):
                        display.note(warning)
                return summary
            finally:
                display.close()


def resume_from_checkpoint(trainer: Trainer) -> None:
    """Continue from the newest good checkpoint, or from the beginning if there is none yet."""
    checkpoint, complaints = load_newest(trainer.out / "checkpoints")
    for complaint in complaints:
        trainer.display.note(f"passed over a checkpoint: {complaint}")
    if checkpoint:
        trainer.restore(checkpoint)
        trainer.display.note(f"resuming after update {checkpoint.update:,}")
    else:
        trainer.start_over()
        trainer.display.note("no checkpoint yet: starting over")


def _farewell(out: Path, summary: dict[str, Any]) -> str:
    model = "best" if (out / "best").exists() else "last"
    skipped = f" ({summary['skipped']:,} skipped)" if summary["skipped"] else ""
    return (
        f"finished after update {summary['updates']:,}{skipped}; the model is {out / model}: "
        f"waitinfo translate --model {out} …"
    )


def _facts(trainer: Trainer) -> list[str]:
    corpus, config = trainer.corpus.manifest, trainer.config
    tokens = config.batch_tokens * config.accumulate * trainer.processes.size
    chosen = ", ".join(f"{name} {_shown(value)}" for name, value in trainer.run.chosen.items())
    return [
        f"{corpus['splits']['train']['pairs']:,} sentence pairs, "
        f"vocabulary {len(trainer.corpus.vocabulary.target):,}",
        f"{trainer.model.parameter_count():,} parameters on {trainer.device}, "
        f"{tokens:,} tokens an update",
        *([_size(trainer)] if trainer.run.sizes else []),
        *([f"chosen to fit: {chosen}"] if chosen else []),
    ]


def _size(trainer: Trainer) -> str:
    """Why the size is what it is."""
    seen = ", ".join(f"{size} {epochs:g}" for size, epochs in trainer.run.sizes.items())
    minutes = trainer.config.max_minutes
    given = f"{minutes:g} minutes on this machine" if minutes else "this text"
    return f"size {trainer.run.size}: should learn most from {given} (epochs it sees: {seen})"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


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
