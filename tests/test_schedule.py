"""Learning rates and clocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.training_runs import FakeTime
from waitinfo.training.config import TrainingConfig
from waitinfo.training.schedule import RunClock, learning_rate, next_progress


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
    assert learning_rate(config, 10, 0.15) == pytest.approx(0.5)
    assert learning_rate(config, 20, 0.2) == pytest.approx(1.0)


def test_a_timed_run_warms_up_as_told_if_there_is_time() -> None:
    config = TrainingConfig(max_minutes=1, warmup=2000, lr=1.0)
    assert learning_rate(config, 0, 0.03) == pytest.approx(1 / 2000), "a slow start of the program"
    for update in (500, 1000, 1999):  # the warm-up is 15% of the run
        assert learning_rate(config, update, 0.15 * update / 2000) == (update + 1) / 2000


def test_clock_leaves_time_to_end() -> None:
    time = FakeTime(100.0)
    clock = RunClock(TrainingConfig(max_minutes=2, pause_minutes=1), time, spent=30.0)
    assert clock.reserve == pytest.approx(12.0), "a guess before anything is known"
    time.passes(2.0)
    clock.updated()  # an update of two seconds
    clock.took("validation", 5.0)
    assert not clock.measured
    clock.took("checkpoint", 2.5)
    assert clock.measured
    assert clock.reserve == pytest.approx(1.2 * (5.0 + 2 * 2.5) + 2.0 + 0.5)
    time.passes(58.0)
    assert clock.spent == pytest.approx(90.0)
    assert clock.progress == pytest.approx(90 / 105.5)
    assert clock.paused
    time.passes(15.5)
    assert clock.progress == 1.0


def test_an_end_that_takes_long_leaves_half_of_the_time() -> None:
    clock = RunClock(TrainingConfig(max_minutes=2), FakeTime())
    clock.took("validation", 1.0)
    clock.took("checkpoint", 300.0)
    assert clock.reserve == 60.0


def test_clock_forgets_a_slow_checkpoint() -> None:
    clock = RunClock(TrainingConfig(max_minutes=2), FakeTime())
    for seconds, expected in ((1.0, 1.0), (9.0, 9.0), (1.0, 5.0), (1.0, 3.0), (4.0, 4.0)):
        clock.took("checkpoint", seconds)
        assert clock.durations["checkpoint"] == pytest.approx(expected)


def run_by_the_clock(config: TrainingConfig, passes: Callable[[int], float]) -> list[float]:
    """Learning rates of a run in which update i ends at share passes(i) of its time."""
    rates: list[float] = []
    progress = next_progress(config, 0.0, 0.0, 0)
    while progress < 1:
        rates.append(learning_rate(config, len(rates), progress))
        progress = next_progress(config, progress, passes(len(rates)), len(rates))
    return rates


@pytest.mark.parametrize("schedule", ["constant", "inverse-sqrt", "cosine"])
def test_a_steady_run_follows_the_clock(schedule: str) -> None:
    config = TrainingConfig(max_minutes=1, warmup=10, schedule=schedule)
    rates = run_by_the_clock(config, lambda update: update / 400)
    assert rates == [learning_rate(config, i, i / 400) for i in range(400)]


@pytest.mark.parametrize("schedule", ["constant", "inverse-sqrt", "cosine"])
@pytest.mark.parametrize("at", [60, 150, 300, 390])
def test_a_slow_checkpoint_shortens_the_cool_down_but_does_not_end_it(
    schedule: str, at: int
) -> None:
    """After update `at` all the time is gone, or more; the rate goes down all the same."""
    config = TrainingConfig(max_minutes=1, warmup=10, schedule=schedule, lr=1.0)
    rates = run_by_the_clock(config, lambda update: update / 400 + 2.0 * (update >= at))
    steps = min(25, at // 5)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] <= 1 / steps
    assert at < len(rates) <= at + 25
    if schedule == "constant":
        drops = [before - after for before, after in pairwise(rates[20:])]
        assert max(drops) <= 1 / (steps + 1) + 1e-9


def test_even_a_run_of_a_few_slow_updates_cools_down() -> None:
    config = TrainingConfig(max_minutes=1, schedule="constant", lr=1.0, warmup=1)
    rates = run_by_the_clock(config, lambda update: update * 0.45)  # 27 seconds an update
    assert rates == pytest.approx([1.0, 1.0, 0.5])
    rates = run_by_the_clock(config, lambda update: update * 2.0)
    assert rates == pytest.approx([1.0, 0.5]), "two minutes an update"


def test_progress_never_goes_back() -> None:
    config = TrainingConfig(max_minutes=1)
    assert next_progress(config, 0.9, 0.4, 100) == 0.9
