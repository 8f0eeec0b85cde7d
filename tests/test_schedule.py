"""Learning rates and clocks."""

from __future__ import annotations

import math

import pytest

from waitinfo.training import schedule
from waitinfo.training.config import TrainingConfig
from waitinfo.training.schedule import Clock, learning_rate


def test_inverse_square_root_is_the_textbooks() -> None:
    config = TrainingConfig(lr=5e-4, warmup=4000)
    for update in (1, 10, 3999, 4000, 4001, 20000):
        expected = 5e-4 * min(update / 4000, math.sqrt(4000 / update))
        assert learning_rate(config, update - 1, 0.0) == pytest.approx(expected)


def test_cosine_falls_to_nothing() -> None:
    config = TrainingConfig(schedule="cosine", lr=1.0, warmup=1)
    assert learning_rate(config, 10, 0.0) == pytest.approx(1.0)
    assert learning_rate(config, 10, 0.5) == pytest.approx(0.5)
    assert learning_rate(config, 10, 1.0) == pytest.approx(0.0)


def test_cooldown_covers_the_last_share() -> None:
    config = TrainingConfig(schedule="constant", lr=1.0, warmup=1, cooldown=0.2)
    rates = [learning_rate(config, 5, progress) for progress in (0.0, 0.8, 0.9, 1.0)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_a_timed_run_always_cools_down() -> None:
    assert learning_rate(TrainingConfig(max_minutes=5), 100, 1.0) == 0.0
    assert learning_rate(TrainingConfig(), 100, 1.0) > 0.0


def test_a_timed_run_too_short_for_its_warm_up_learns_all_the_same() -> None:
    config = TrainingConfig(max_minutes=1, warmup=4000, lr=1.0)
    assert learning_rate(config, 10, 0.05) == pytest.approx(0.5)
    assert learning_rate(config, 20, 0.2) == pytest.approx(1.0)


def test_clock_leaves_time_to_end(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(schedule.time, "monotonic", lambda: now[0])
    clock = Clock(TrainingConfig(max_minutes=2, pause_minutes=1), spent=30.0)
    assert clock.reserve == pytest.approx(12.0), "a guess before anything is known"
    now[0] += 2.0
    clock.updated()  # an update of two seconds
    clock.took("validation", 5.0)
    assert not clock.measured
    clock.took("checkpoint", 2.5)
    assert clock.measured
    assert clock.reserve == pytest.approx(1.2 * (5.0 + 2 * 2.5) + 2.0 + 0.5)
    now[0] += 58.0
    assert clock.spent == pytest.approx(90.0)
    assert clock.progress == pytest.approx(90 / 105.5)
    assert clock.paused
    now[0] += 15.5
    assert clock.progress == 1.0
