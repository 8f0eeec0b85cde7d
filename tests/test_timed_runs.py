"""Runs that end by the clock, which is a fake one here: no time passes but what a test says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training_runs import FakeTime, idle_trainer, metrics, new_trainer, values
from waitinfo.training import trainer as trainer_module
from waitinfo.training.run import resume_from_checkpoint
from waitinfo.training.trainer import Trainer


class TimedRun:
    """A run whose updates, validations and checkpoints take as long as a test says."""

    def __init__(
        self, corpus: Path, out: Path, patch: pytest.MonkeyPatch, saves: dict[int, float],
        **training: object,
    ) -> None:  # fmt: skip
        """`saves` maps a checkpoint's number, from 0, to its seconds; others take 0.2."""
        self.time, self.out = FakeTime(), out
        save, numbers = trainer_module.save_checkpoint, iter(range(10**6))

        def slow_save(*given: object) -> None:
            save(*given)
            self.time.passes(saves.get(next(numbers), 0.2))

        patch.setattr(trainer_module, "save_checkpoint", slow_save)
        config = values(
            corpus, updates=10**6, validate_every=10**6, checkpoint_every=60, log_every=1,
            **training,
        )  # fmt: skip
        out.mkdir()
        self.trainer = idle_trainer(config, out, self.time, update=0.1, validation=0.5)

    def rates(self) -> list[float]:
        return [record["lr"] for record in metrics(self.out) if "lr" in record]


def test_a_timed_run_ends_in_time_with_its_rate_at_nothing(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TimedRun(toy_corpus, tmp_path / "run", monkeypatch, {}, max_minutes=0.25)
    summary = run.trainer.train()
    rates = run.rates()
    assert 14 < run.time() <= 15 and not summary["paused"]
    assert 100 < len(rates) < 140 and rates[-1] < 0.05 * max(rates)
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()
    assert list((tmp_path / "run" / "checkpoints").glob("0*"))


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_a_slow_checkpoint_does_not_cost_the_cool_down(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, seconds: float
) -> None:
    """The first checkpoint comes after a tenth of the time, the second at update 60."""
    run = TimedRun(toy_corpus, tmp_path / "run", monkeypatch, {slow: seconds}, max_minutes=0.25)
    run.trainer.train()
    rates = run.rates()
    assert rates[-1] < 0.3 * max(rates)
    falling = rates[rates.index(max(rates)) :]
    assert falling == sorted(falling, reverse=True)
    # No later than the time allows, but for the slow checkpoint, a few updates, and the end.
    assert run.time() < max(15.0, 6.0 + seconds) + 25 * 0.1 + 2.0


def test_more_time_takes_a_finished_run_on(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TimedRun(toy_corpus, tmp_path / "run", monkeypatch, {}, max_minutes=0.1)
    run.trainer.train()
    assert run.trainer.progress == 1
    config = values(toy_corpus, updates=10**6, log_every=1, max_minutes=0.2)
    again = idle_trainer(config, tmp_path / "run", run.time, update=0.1, validation=0.5)
    resume_from_checkpoint(again)
    assert again.update == run.trainer.update and 0.3 < again.progress < 0.8
    again.train()
    assert again.progress == 1 and 10 < run.time() <= 12.1


def test_resuming_within_the_cool_down_goes_on_with_it(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TimedRun(toy_corpus, tmp_path / "run", monkeypatch, {}, max_minutes=0.25)
    monkeypatch.setattr(Trainer, "_should_stop", lambda self: self.progress > 0.9, raising=True)
    assert run.trainer.train()["paused"]
    stopped = run.trainer.progress
    monkeypatch.undo()
    again = new_trainer(values(toy_corpus, max_minutes=0.25), tmp_path / "run", now=run.time)
    resume_from_checkpoint(again)
    assert again.progress == pytest.approx(stopped, abs=0.05)


def test_a_validation_without_translations_does_not_tell_how_long_the_end_takes(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TimedRun(toy_corpus, tmp_path / "run", monkeypatch, {}, max_minutes=1.0)
    run.trainer.validator.bleu = None
    run.trainer.train()
    clock = run.trainer.clock
    assert "checkpoint" in clock.durations and not clock.measured
    assert clock.reserve == pytest.approx(6.0), "a tenth of the time"
    validations = [row for row in metrics(tmp_path / "run") if "validation_loss" in row]
    assert len(validations) == 2, "after a tenth of the time, and at the end"
