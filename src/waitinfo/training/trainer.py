"""The trainer: batches, updates, clocks and files. It does not know any system.

Everything random in an update is a function of the seed and of the batch's place in the sequence
of all batches, never of what happened before. So a resumed run repeats an uninterrupted one, and
two processes repeat one.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.transformer import Transformer
from waitinfo.systems import check_dial
from waitinfo.text.corpus import Corpus
from waitinfo.trained.saving import save_model
from waitinfo.training.batches import BatchStream, Share, UpdateBatches
from waitinfo.training.building import build_model, compile_model
from waitinfo.training.checkpoint import (
    Checkpoint,
    build_average,
    discard_newer,
    load_optimizer,
    optimizer_tensors,
    save_checkpoint,
)
from waitinfo.training.config import RunConfig
from waitinfo.training.display import Display, MetricsFile
from waitinfo.training.distributed import ProcessGroup, Tally
from waitinfo.training.schedule import RunClock, learning_rate, next_progress, updates_apart
from waitinfo.training.updates import Skips, Updater, all_finite
from waitinfo.training.validation import Validator

VALIDATION_LIMIT = 0.02  # share of a timed run that one validation may take
MEASURE_AT = 0.1  # share of a timed run after which it has validated and saved once
MOST_SKIPPED = 20  # updates in a row without a finite gradient before a run gives up


class Trainer:
    """One call of a run."""

    def __init__(
        self,
        run: RunConfig,
        corpus: Corpus,
        out: Path,
        processes: ProcessGroup,
        display: Display,
        now: Callable[[], float] = time.monotonic,
        started: float | None = None,
    ) -> None:
        """`now` is the clock, and `started` the time on it from which the run counts."""
        self.run, self.config, self.corpus, self.out = run, run.training, corpus, out
        self.processes, self.display = processes, display
        self.system = run.system
        self.device = processes.device
        self.model = build_model(run, corpus, self.device)
        if self.config.compile:
            compile_model(self.model, display.note)
        self.averaged = Transformer(self.model.config).to(self.device)  # holds averages to validate
        self.updater = Updater(self.model, self.system, self.config, processes)
        self._use_kernels()
        self.optimizer = self.updater.optimizer
        self.average = build_average(self.config, self.model, out, processes.leads)
        self.validator = Validator(
            corpus,
            self.system,
            check_dial(self.system, self.config.validate_k),
            self.config.validate_sentences,
            60 * self.config.max_minutes * VALIDATION_LIMIT if self._frugal else None,
        )
        self.metrics = MetricsFile(out / "metrics.jsonl", processes.leads)
        self.now, self.started = now, now() if started is None else started
        self.clock = RunClock(self.config, now, self.started)
        self.update = 0  # updates done
        self.progress = 0.0  # share of the run that is done
        self.best: float | None = None
        self.interrupted = False
        self.validated_at = self.snapshot_at = self.saved_at = -1  # updates
        self._saved_time = now()
        self._due: set[str] = set()  # what to save after the next update that is not skipped
        self.tally = Tally(now())

    def _use_kernels(self) -> None:
        """Train with fused kernels where there are any, and no compiler makes its own."""
        wanted = self.config.kernels and not self.config.compile and self.updater.half
        if wanted and self.device.type == "cuda" and importlib.util.find_spec("triton"):
            from waitinfo.training.fusing import fuse

            self.updater.before_loss = fuse(self.model)

    # The loop

    def train(self) -> dict[str, Any]:
        """Run to the end (or to a pause); returns a summary."""
        with self.batches() as stream:
            self.tally.clear(self.now())
            self._loop(stream)
        paused = self.progress < 1
        self._finish(paused)
        skipped = self.updater.guard.counts().total
        return {"updates": self.update, "best": self.best, "skipped": skipped, "paused": paused}

    def batches(self) -> BatchStream:
        """The updates from here on."""
        share = Share(
            self.config.accumulate * self.processes.size, self.processes.rank, self.processes.size
        )
        cuda = self.device.type == "cuda"
        return BatchStream(
            self.corpus.train, self.config.batch_tokens, self.config.seed, share, self.update, cuda
        )

    def _loop(self, stream: BatchStream) -> None:
        for item in stream:
            self.progress = self._next_progress()
            if self.progress >= 1 or self._should_stop():
                return
            self.step(item, self.progress)
            self._after_update(item)

    def interrupt(self, *_: object) -> None:
        """Asked to stop (Ctrl-C, SIGTERM): end after this update, with a checkpoint."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.display.note("stopping after this update; once more to stop at once")

    def _next_progress(self) -> float:
        by_updates = self.update / self.config.updates
        if not self.clock.limit:
            return by_updates
        timed = self.processes.agree(self.clock.progress)
        return max(by_updates, next_progress(self.config, self.progress, timed, self.update))

    def _should_stop(self) -> bool:
        """Whether to end this call; all processes must end after the same update."""
        return bool(self.processes.agree(float(self.interrupted or self.clock.paused)))

    def step(self, item: UpdateBatches, progress: float = 0.0) -> None:
        """One update; `progress` of the run decides the learning rate."""
        self.model.train()
        self.lr = learning_rate(self.config, self.update, progress)
        losses = self.updater.run(item, self._position(), self.lr)
        used = self.updater.guard.used(sum(batch.tokens for _, batch in item.batches))
        self.tally.add(losses, used, item.tokens)
        self.average.step(self.update)
        self.update += 1
        self.clock.updated()

    def _position(self) -> int:
        """The update that decides about stages; a later one if time goes by faster than updates."""
        return max(self.update, int(self.progress * self.run.expected_updates))

    # Between updates

    def _after_update(self, item: UpdateBatches) -> None:
        config = self.config
        if self.update % config.log_every == 0 or self.update == 1:
            self._log(item.epoch)
        # A timed run must know early how long its end will take.
        unmeasured = bool(self.clock.limit) and "checkpoint" not in self.clock.durations
        early = unmeasured and self.progress >= MEASURE_AT
        first = early and self.validated_at < 0
        if self.update % config.checkpoint_every == 0:
            self._due |= {"snapshot", "checkpoint"}
        elif early or self._overdue():
            self._due.add("checkpoint")
        validate = (self.update % config.validate_every == 0 and self._affordable()) or first
        if validate or self._due:
            self._validate_and_save(validate)

    def _validate_and_save(self, validate: bool) -> None:
        """What is due, but nothing is saved while updates are skipped: they may have diverged."""
        settled = self._check_finite()
        if settled and "snapshot" in self._due:
            self._snapshot()
        # The checkpoint must include this update's validation in the best score.
        if validate:
            self._validate()
        if settled and "checkpoint" in self._due:
            self._checkpoint()
        if settled:
            self._due.clear()

    @property
    def _frugal(self) -> bool:
        """Whether validations must fit a timed run."""
        return bool(self.config.max_minutes) and "validate_every" in self.run.chosen

    def _affordable(self) -> bool:
        """Whether a validation fits a timed run, unless the user said how often to validate."""
        if not self._frugal:
            return True
        apart = updates_apart(self.update, self.validated_at, self.progress)
        fits = self.clock.affords("validation") and apart > self.config.validate_every / 2
        return bool(self.processes.agree(float(fits)))

    def _overdue(self) -> bool:
        """Whether more time than the user would want to lose has passed since a checkpoint."""
        minutes = self.config.checkpoint_minutes
        if not minutes or self.update % self.config.log_every:
            return False
        return bool(self.processes.agree(float(self.now() - self._saved_time > 60 * minutes)))

    def _log(self, epoch: float) -> None:
        skips = self.updater.guard.counts()
        self._check_skips(skips)
        means = self.tally.means(self.processes)
        if means is None:
            return  # no loss to show yet
        if not math.isfinite(means["loss"]):
            raise self._diverged(f"the loss is {means['loss']} at update {self.update}")
        seconds = self.now() - self.tally.began
        record = {
            "update": self.update,
            "epoch": round(epoch, 4),
            **{name: round(value, 6) for name, value in means.items()},
            "tokens_per_second": round(self.tally.tokens / max(seconds, 1e-9), 1),
            "lr": self.lr,
            "skipped": skips.total,
            "minutes": round(self.clock.spent / 60, 4),
            "minutes_left": self._minutes_left(seconds),
        }
        self.metrics.add(record)
        self.display.progress(record)
        self.tally.clear(self.now())

    def _minutes_left(self, seconds: float) -> float:
        by_updates = (self.config.updates - self.update) * seconds / self.tally.updates / 60
        if not self.clock.limit:
            return by_updates
        return min(by_updates, max(0.0, self.clock.limit - self.clock.spent) / 60)

    def _validate(self) -> None:
        """Validate the averaged weights; keep them if they are the best so far."""
        began = self.now()
        found = None
        if self.processes.leads:
            self.averaged.load_weights(self.average.weights())
            found = self.validator(self.averaged)
        loss = self.processes.agree(found.loss if found else 0.0)
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss} in validation at update {self.update}")
        if found:
            bleu = found.bleu if self.config.best_by == "bleu" else None
            score = -found.loss if bleu is None else bleu
            # Of equal scores keep the later: at the start all are 0.
            improved = self.best is None or score >= self.best
            record = {
                "update": self.update,
                "validation_loss": round(found.loss, 6),
                "bleu": found.bleu,
                "k": found.k,
                "dial": self.system.dial.name if self.system.dial else None,
                "best": improved,
                "minutes": round(self.clock.spent / 60, 4),
            }
            if improved:
                self.best = score
                self._save_averaged("best")
            self.metrics.add(record)
            self.display.validated(record)
            if self.validator.missing:
                self.display.note(f"no BLEU: {self.validator.missing}")
        self.validated_at = self.update
        self.processes.wait()
        whole = found is None or found.bleu is not None or not self.validator.translates
        self._took("validation", self.now() - began, whole)

    def _took(self, what: str, seconds: float, whole: bool = True) -> None:
        self.clock.took(what, seconds, whole)
        self.tally.began += seconds  # the display's speed is that of training alone

    def _save_averaged(self, name: str) -> None:
        weights = self.averaged.weights()
        if not all_finite(weights.values(), self.device):
            raise self._diverged(f"the averaged weights are not finite at update {self.update}")
        save_model(
            self.out / name,
            self.averaged,
            weights,
            self.system,
            self.corpus.vocabulary,
            self.config.weights_dtype,
            int(min(self.config.part_mib, 2**40) * 2**20) or None,
            self.corpus.languages,
        )

    # Checkpoints

    def _snapshot(self) -> None:
        self.average.snapshot(self.update)
        self.snapshot_at = self.update

    def _checkpoint(self) -> None:
        began = self.now()
        if self.processes.leads:
            state = {
                "spent": self.clock.spent,
                "progress": self.progress,
                "best": self.best,
                "durations": self.clock.durations,
                "skipped": self.updater.guard.counts().total,
            }
            save_checkpoint(
                self.out / "checkpoints",
                self.update,
                state,
                self._tensors(),
                self.config.keep_checkpoints,
            )
            self.average.prune()
        self.processes.wait()
        self.saved_at = self.update
        self._saved_time = self.now()
        self._took("checkpoint", self._saved_time - began)

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that an update changes."""
        return {
            "weights": self.model.weights(),
            "optimizer": optimizer_tensors(self.optimizer),
            "average": self.average.state(),
        }

    def _check_finite(self) -> bool:
        """Raise if the run has diverged in any process; False if the latest update was skipped."""
        skips = self.updater.guard.counts()
        self._check_skips(skips)
        tensors = [t for group in self._tensors().values() for t in group.values()]
        broken = torch.tensor(float(not all_finite(tensors, self.device)), device=self.device)
        if self.processes.total(broken):
            raise self._diverged(f"the weights are not finite at update {self.update}")
        return skips.in_a_row == 0

    def _check_skips(self, skips: Skips) -> None:
        if skips.in_a_row >= MOST_SKIPPED:
            raise self._diverged(
                f"the loss is not finite at update {self.update}, nor was it in the "
                f"{skips.in_a_row - 1} updates before"
            )

    @staticmethod
    def _diverged(what: str) -> WaitinfoError:
        return WaitinfoError(f"{what}; lower training.lr or raise training.warmup, and resume")

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.model.load_weights(checkpoint.tensors["weights"])
        load_optimizer(self.optimizer, checkpoint.tensors["optimizer"])
        self.average.load(checkpoint.tensors["average"], checkpoint.update)
        self.updater.guard.restore(checkpoint.state.get("skipped", 0))
        self.update = self.saved_at = checkpoint.update
        self.best = checkpoint.state["best"]
        self.clock = RunClock(self.config, self.now, self.started, checkpoint.state["spent"])
        self.clock.durations.update(checkpoint.state["durations"])
        # A run that was given more time goes back to before its cool-down.
        progress = min(checkpoint.state.get("progress", 0.0), self.clock.progress)
        self.progress = self.processes.agree(progress)
        self.metrics.rewind(self.update)
        self.processes.wait()  # every process has read what it needs
        if self.processes.leads:
            discard_newer(self.out / "checkpoints", self.update)

    def start_over(self) -> None:
        """Resume a run that was stopped before its first checkpoint."""
        self.metrics.rewind(0)
        self.average.load(self.average.state(), 0)

    def _finish(self, paused: bool) -> None:
        settled = self._check_finite()
        if paused:
            self._pause(settled)
            return
        if self.snapshot_at != self.update:
            self._snapshot()
        if self.processes.leads:
            self.averaged.load_weights(self.average.weights())
            self._save_averaged("last")
        if self.validated_at != self.update:
            self._validate()
        if self.saved_at != self.update:
            self._checkpoint()

    def _pause(self, settled: bool) -> None:
        if not settled:
            self.display.note("not saved, because the latest update had no finite gradient")
        elif self.saved_at != self.update:
            self._checkpoint()
        self.display.note(f"stopped after update {self.update:,}; continue with --resume")
