"""Averages of the weights over training: what is validated, kept as best, and published."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from waitinfo.model.transformer import Transformer
from waitinfo.trained.tensors import read_tensors, write_tensors
from waitinfo.training.config import TrainingConfig


class Average:
    """The weights themselves, of which there is no average."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def step(self, update: int) -> None:
        """After an update."""

    def snapshot(self, update: int) -> None:
        """At a checkpoint."""

    def weights(self) -> dict[str, Tensor]:
        """The average now."""
        return self.model.weights()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold to continue."""
        return {}

    def load(self, state: dict[str, Tensor], update: int) -> None:
        """Continue from a checkpoint."""

    def prune(self) -> None:
        """Once a checkpoint is safe: forget what it no longer needs."""


class MovingAverage(Average):
    """Exponential moving average, with a shorter memory at the start."""

    def __init__(self, model: Transformer, decay: float) -> None:
        super().__init__(model)
        self.decay = decay
        current = model.weights()  # shares memory with the model, which is updated in place
        self.mean = {name: tensor.detach().clone() for name, tensor in current.items()}
        self._pairs = (list(self.mean.values()), list(current.values()))

    @torch.no_grad()
    def step(self, update: int) -> None:
        weight = 1 - min(self.decay, (update + 1) / (update + 10))
        torch._foreach_lerp_(*self._pairs, weight)

    def weights(self) -> dict[str, Tensor]:
        return self.mean

    def state(self) -> dict[str, Tensor]:
        return self.mean

    def load(self, state: dict[str, Tensor], update: int) -> None:
        for name, tensor in self.mean.items():
            tensor.copy_(state[name])


class LastCheckpoints(Average):
    """Mean of the weights at the last checkpoints, as the paper averages its last five."""

    def __init__(self, model: Transformer, folder: Path, count: int, owner: bool) -> None:
        super().__init__(model)
        self.folder, self.count, self.owner = folder, count, owner

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("????????.safetensors"))

    def snapshot(self, update: int) -> None:
        if not self.owner:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        weights = {n: t.detach().cpu().contiguous() for n, t in self.model.weights().items()}
        fresh = self.folder / f".{update:08d}.safetensors"
        write_tensors(fresh, weights)
        fresh.rename(self.folder / f"{update:08d}.safetensors")

    def prune(self) -> None:
        for old in self._files()[: -self.count]:
            old.unlink()

    def weights(self) -> dict[str, Tensor]:
        files = self._files()[-self.count :]
        if not files:
            return self.model.weights()
        total: dict[str, Tensor] = {}
        for path in files:
            for name, tensor in read_tensors(path).items():
                total[name] = tensor.double() + total.get(name, 0.0)
        return {name: (tensor / len(files)).float() for name, tensor in total.items()}

    def load(self, state: dict[str, Tensor], update: int) -> None:
        for path in self._files():
            if self.owner and int(path.stem) > update:
                path.unlink()


def build_average(config: TrainingConfig, model: Transformer, run: Path, owner: bool) -> Average:
    if config.average == "ema":
        return MovingAverage(model, config.ema_decay)
    if config.average == "last":
        return LastCheckpoints(model, run / "snapshots", config.average_last, owner)
    return Average(model)
