"""Training: configuration, schedule, checkpoints, and the trainer."""

from waitinfo.training.config import RunConfig, TrainingConfig
from waitinfo.training.start import train

__all__ = ["RunConfig", "TrainingConfig", "train"]
