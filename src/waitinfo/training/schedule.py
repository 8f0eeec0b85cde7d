"""Learning rate by progress, and the clock that makes a timed run end in time."""

from __future__ import annotations

import math
import time

from waitinfo.training.config import TrainingConfig

TIMED_COOLDOWN = 0.25
TIMED_WARMUP = 0.1


def learning_rate(config: TrainingConfig, update: int, progress: float) -> float:
    """The rate for an update (0 is the first), with `progress` in [0, 1] of the whole run."""
    warm = min(1.0, (update + 1) / max(1, config.warmup))
    if config.max_minutes or config.updates < config.warmup:
        # A run too short for its warm-up would never learn: a tenth of it is enough.
        warm = max(warm, min(1.0, progress / TIMED_WARMUP))
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
        # What the end of a run takes, learned from how long the like took before.
        self.durations: dict[str, float] = {}
        self._last_update = self.started
        self._longest_update = 0.0

    @property
    def here(self) -> float:
        """Seconds in this call."""
        return time.monotonic() - self.started

    @property
    def spent(self) -> float:
        """Seconds in all calls."""
        return self.spent_before + self.here

    def took(self, what: str, seconds: float) -> None:
        """Learn how long a validation or a checkpoint takes."""
        self.durations[what] = max(self.durations.get(what, 0.0), seconds)
        self._last_update = time.monotonic()

    def updated(self) -> None:
        """Learn how long an update takes."""
        now = time.monotonic()
        self._longest_update = max(self._longest_update, now - self._last_update)
        self._last_update = now

    @property
    def measured(self) -> bool:
        return {"validation", "checkpoint"} <= self.durations.keys()

    @property
    def reserve(self) -> float:
        """Seconds kept for the end: an update, saving the model, a validation, a checkpoint."""
        if not self.measured:
            return 0.1 * self.limit
        known = self.durations["validation"] + 2 * self.durations["checkpoint"]
        return 1.2 * known + self._longest_update + 0.5

    @property
    def progress(self) -> float:
        """Share of the time that may be used for training; 0 in a run without limit."""
        if not self.limit:
            return 0.0
        return min(1.0, self.spent / max(1e-9, self.limit - self.reserve))

    @property
    def paused(self) -> bool:
        return bool(self.pause) and self.here >= self.pause - self.reserve
