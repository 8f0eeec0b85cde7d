"""Checkpoints: written whole or not at all, verified before use.

A checkpoint is a folder named by its update: safetensors files and a `state.json` that holds their
checksums. It is written under another name, made durable, and renamed; only then are older ones
removed. Killing the process at any moment leaves the newest complete one in place.

Beside it, averages of the weights over training: what is validated, kept as best, and published.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from waitinfo.errors import WaitinfoError
from waitinfo.model.transformer import Transformer
from waitinfo.storage import recover_folder, swap_folder
from waitinfo.text.files import sha256
from waitinfo.trained.tensors import read_tensors, write_tensors
from waitinfo.training.config import TrainingConfig
from waitinfo.training.distributed import CPU
from waitinfo.training.updates import all_finite

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    update: int
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]  # by file name without suffix


def save_checkpoint(
    folder: Path,
    update: int,
    state: dict[str, Any],
    tensors: dict[str, dict[str, Tensor]],
    keep: int = 2,
) -> None:
    """Write checkpoint `update` and remove all but the newest `keep`."""
    fresh = folder / f".{update:08d}.partial"
    final = folder / f"{update:08d}"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name, group in tensors.items():
            whole = {key: tensor.detach().cpu().contiguous() for key, tensor in group.items()}
            write_tensors(fresh / f"{name}.safetensors", whole)
        sums = {f"{name}.safetensors": sha256(fresh / f"{name}.safetensors") for name in tensors}
        with (fresh / STATE).open("w", encoding="utf-8") as stream:
            json.dump({"update": update, "state": state, "sha256": sums}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        swap_folder(fresh, final)
    except (OSError, WaitinfoError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        kept = _existing(folder)
        rest = f"; checkpoint {kept[-1].name} is kept" if kept else ""
        raise WaitinfoError(f"{final}: checkpoint cannot be written ({error}){rest}") from None
    for old in _existing(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def _existing(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    for old in folder.glob(".*.old"):
        recover_folder(folder / old.name[1:-4])
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name.isdigit())


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest good checkpoint, and a complaint for each one passed over."""
    complaints: list[str] = []
    for path in reversed(_existing(folder)):
        try:
            return _load(path), complaints
        except WaitinfoError as error:
            complaints.append(str(error))
    if complaints:
        raise WaitinfoError("no intact checkpoint is left: " + "; ".join(complaints))
    return None, complaints


def discard_newer(folder: Path, update: int) -> None:
    """Remove checkpoints that were passed over, or they would be kept in place of good ones."""
    for path in _existing(folder):
        if int(path.name) > update:
            shutil.rmtree(path, ignore_errors=True)


def _load(path: Path) -> Checkpoint:
    try:
        record = json.loads((path / STATE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WaitinfoError(f"{path / STATE}: damaged ({error})") from None
    tensors = {}
    for name, expected in record["sha256"].items():
        file = path / name
        if not file.exists() or sha256(file) != expected:
            raise WaitinfoError(f"{file}: damaged (its checksum differs)")
        tensors[file.stem] = read_tensors(file)
        if not all_finite(tensors[file.stem].values(), CPU):
            raise WaitinfoError(f"{file}: holds numbers that are not finite")
    return Checkpoint(record["update"], record["state"], tensors)


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer by names."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


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
