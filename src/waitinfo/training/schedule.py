"""Learning rate by progress, and the clock that makes a timed run end in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from waitinfo.training.config import TrainingConfig

TIMED_COOLDOWN = 0.25
LONGEST_WARMUP = 0.2  # share of a run
COOLDOWN_STEPS = 25  # a cool-down takes this many updates, or a fifth of those before it
VALIDATION_SHARE = 0.1  # of a timed run's time, where the user did not say how often to validate
MOST_RESERVED = 0.5  # share of a timed run that may be kept for its end


def learning_rate(config: TrainingConfig, update: int, progress: float) -> float:
    """The rate for an update (0 is the first), with `progress` in [0, 1] of the whole run."""
    warm = min(1.0, (update + 1) / max(1, config.warmup))
    if config.max_minutes or config.updates < config.warmup:
        # A run too short for its warm-up would never learn, so the warm-up ends early. This begins
        # halfway: time passes before the first update, and a sudden start may spoil the weights.
        warm = max(warm, min(1.0, 2 * progress / LONGEST_WARMUP - 1))
    if config.schedule == "cosine":
        return config.lr * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    rate = config.lr * warm
    if config.schedule == "inverse-sqrt":
        rate *= math.sqrt(max(1, config.warmup) / max(config.warmup, update + 1))
    return rate * cooldown(config, progress)


def cooldown_share(config: TrainingConfig) -> float:
    """Last share of the run in which the learning rate falls to 0."""
    return config.cooldown or (TIMED_COOLDOWN if config.max_minutes else 0.0)


def cooldown(config: TrainingConfig, progress: float) -> float:
    """Falls linearly from 1 to 0 over the last share of the run."""
    share = cooldown_share(config)
    return 1.0 if not share else max(0.0, min(1.0, (1 - progress) / share))


def next_progress(config: TrainingConfig, before: float, timed: float, updates: int) -> float:
    """Progress of a timed run, given what it was before the latest of its updates.

    It follows the clock (`timed`, the share of the time that is gone) but goes through the
    cool-down in small steps. After a checkpoint or validation so slow that the time is up, the
    learning rate still falls to nothing, over a few updates more than the time allows.
    """
    share = cooldown_share(config)
    steps = max(1, min(COOLDOWN_STEPS, updates // 5))
    furthest = max(before, 1 - share) + share / (steps + 1)
    progress = max(before, min(timed, furthest))
    return 1.0 if progress > 1 - 1e-9 else progress  # steps may not quite add up to 1


def updates_apart(update: int, validated_at: int, progress: float) -> float:
    """Updates from the latest validation (-1: none), or to the end of the run if that is nearer."""
    left = update * (1 - progress) / max(progress, 1e-9)
    return min(left, update - validated_at) if validated_at >= 0 else left


def _estimate(before: float, seconds: float) -> float:
    """How long the next one will take: at least as the latest, soon forgetting a slow one."""
    return max(seconds, (before + seconds) / 2)


class RunClock:
    """Time spent on a run over all its calls, and time to be kept for ending it."""

    def __init__(
        self,
        config: TrainingConfig,
        now: Callable[[], float] = time.monotonic,
        started: float | None = None,
        spent: float = 0.0,
    ) -> None:
        """`spent` counts the seconds of earlier calls; this one began when `now` was `started`."""
        self.limit = config.max_minutes * 60
        self.pause = config.pause_minutes * 60
        self.spent_before = spent
        self.now = now
        self.started = now() if started is None else started
        # How long the end of a run takes, from how long its parts took before.
        self.durations: dict[str, float] = {}
        self.totals: dict[str, float] = {}  # in this call
        self._last_update = now()
        self._update = 0.0

    @property
    def here(self) -> float:
        """Seconds in this call."""
        return self.now() - self.started

    @property
    def spent(self) -> float:
        """Seconds in all calls."""
        return self.spent_before + self.here

    def took(self, what: str, seconds: float, whole: bool = True) -> None:
        """Learn how long a validation or a checkpoint takes, if it was a whole one."""
        if whole:
            self.durations[what] = _estimate(self.durations.get(what, 0.0), seconds)
        self.totals[what] = self.totals.get(what, 0.0) + seconds
        self._last_update = self.now()

    def affords(self, what: str) -> bool:
        """Whether one more of this kind stays within its share of the time so far."""
        planned = self.totals.get(what, 0.0) + self.durations.get(what, 0.0)
        return planned <= VALIDATION_SHARE * self.here

    def updated(self) -> None:
        """Learn how long an update takes."""
        now = self.now()
        self._update = _estimate(self._update, now - self._last_update)
        self._last_update = now

    @property
    def measured(self) -> bool:
        return {"validation", "checkpoint"} <= self.durations.keys()

    @property
    def reserve(self) -> float:
        """Seconds reserved for the end: an update, saving the model, a validation, a checkpoint."""
        if not self.measured:
            return 0.1 * self.limit
        known = self.durations["validation"] + 2 * self.durations["checkpoint"]
        return min(1.2 * known + self._update + 0.5, MOST_RESERVED * self.limit)

    @property
    def progress(self) -> float:
        """Share of the time that may be used for training; 0 in a run without limit."""
        if not self.limit:
            return 0.0
        return min(1.0, self.spent / max(1e-9, self.limit - self.reserve))

    @property
    def paused(self) -> bool:
        return bool(self.pause) and self.here >= self.pause - self.reserve
