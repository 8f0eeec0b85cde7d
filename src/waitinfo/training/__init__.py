"""Training: configuration, schedule, checkpoints, and the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waitinfo.lazy import lazy_names

if TYPE_CHECKING:
    from waitinfo.training.config import RunConfig, TrainingConfig
    from waitinfo.training.run import train

__all__ = ["RunConfig", "TrainingConfig", "train"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "RunConfig": "waitinfo.training.config",
        "TrainingConfig": "waitinfo.training.config",
        "train": "waitinfo.training.run",
    },
)
