"""Starting a run, or resuming one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from waitinfo.training.advice import advice
from waitinfo.training.checkpoint import load_newest
from waitinfo.training.config import RunConfig
from waitinfo.training.display import Display, LineDisplay, SilentDisplay
from waitinfo.training.distributed import join_processes
from waitinfo.training.head_run import train_head, trains_head
from waitinfo.training.run_folder import begin_run, full_settings, stop_politely
from waitinfo.training.trainer import Trainer


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
