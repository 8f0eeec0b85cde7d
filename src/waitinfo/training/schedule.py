"""Learning rate by progress, and the clock that makes a timed run end in time."""

from __future__ import annotations

import math
import time

from waitinfo.training.config import TrainingConfig

TIMED_COOLDOWN = 0.25


def learning_rate(config: TrainingConfig, update: int, progress: float) -> float:
    """The rate for an update (0 is the first), with `progress` in [0, 1] of the whole run."""
    warm = min(1.0, (update + 1) / max(1, config.warmup))
    if config.schedule == "cosine":
        return config.lr * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    rate = config.lr * warm
    if config.schedule == "inverse-sqrt":
        rate *= math.sqrt(max(1, config.warmup) / max(config.warmup, update + 1))
    return rate * cooldown(config, progress)


def cooldown(config: TrainingConfig, progress: float) -> float:
    """Falls linearly from 1 to 0 over the last share of the run."""
    share = config.cooldown or (TIMED_COOLDOWN if config.max_minutes else 0.0)
    return 1.0 if not share else max(0.0, min(1.0, (1 - progress) / share))


class Clock:
    """Time spent on a run over all its calls, and time to be kept for ending it."""

    def __init__(self, config: TrainingConfig, spent: float = 0.0) -> None:
        self.limit = config.max_minutes * 60
        self.pause = config.pause_minutes * 60
        self.spent_before = spent
        self.started = time.monotonic()
        # Validating and saving at the end takes time too; learned from how long it took before.
        self.reserve = min(10.0, 0.05 * self.limit)

    @property
    def here(self) -> float:
        """Seconds in this call."""
        return time.monotonic() - self.started

    @property
    def spent(self) -> float:
        """Seconds in all calls."""
        return self.spent_before + self.here

    def took(self, seconds: float) -> None:
        """Learn how long a validation with saving takes."""
        self.reserve = max(self.reserve, 1.5 * seconds + 1.0)

    @property
    def progress(self) -> float:
        """Share of the time that may be used for training; 0 in a run without limit."""
        if not self.limit:
            return 0.0
        return min(1.0, self.spent / max(1e-9, self.limit - self.reserve))

    @property
    def paused(self) -> bool:
        return bool(self.pause) and self.here >= self.pause - self.reserve
