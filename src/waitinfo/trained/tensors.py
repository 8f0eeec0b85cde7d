"""Models and weights as tensors of torch: models that compute with floats, and safetensors files.

Weights are stored in one `model.safetensors` or, on request, in parts of bounded size named
`model-00001-of-00004.safetensors`. A tensor larger than a part is split along its first dimension
into pieces `name@0`, `name@1`, …; `model.stored` reads them without torch. Never pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.model.transformer import Transformer
from waitinfo.threads import tell_torch


def save_weights(folder: Path, weights: dict[str, Tensor], part_bytes: int | None = None) -> None:
    """Write tensors as one safetensors file, or as parts of at most `part_bytes`."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    if part_bytes is None:
        write_tensors(folder / "model.safetensors", weights)
        return
    parts: list[dict[str, Tensor]] = [{}]
    room = part_bytes
    for name, tensor in weights.items():
        for piece_name, piece in _pieces(name, tensor, part_bytes):
            size = piece.numel() * piece.element_size()
            if size > room and parts[-1]:
                parts.append({})
                room = part_bytes
            parts[-1][piece_name] = piece
            room -= size
    for number, part in enumerate(parts, 1):
        write_tensors(folder / f"model-{number:05d}-of-{len(parts):05d}.safetensors", part)


def _pieces(name: str, tensor: Tensor, limit: int) -> list[tuple[str, Tensor]]:
    size = tensor.numel() * tensor.element_size()
    if size <= limit or tensor.dim() == 0:
        return [(name, tensor)]
    rows = max(1, limit // (size // tensor.shape[0]))
    return [(f"{name}@{i}", piece.contiguous()) for i, piece in enumerate(tensor.split(rows))]


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file and flush it to disk."""
    try:
        save_file(tensors, path)
        path.chmod(0o644)  # as readable as the other files of the folder
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be written ({error})") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None


def float_model(
    config: ModelConfig, weights: dict[str, NDArray[Any]], device: str, dtype: str
) -> Transformer:
    """A model of these weights, which are taken out of the mapping, on a device."""
    tell_torch()
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise WaitinfoError(f"device {device}: unknown; use auto, cpu, cuda or cuda:N") from None
    with torch.device("meta"):
        model = Transformer(config)
    tensors = {name: torch.from_numpy(weights.pop(name).astype(np.float32)) for name in [*weights]}
    model.load_weights(tensors, assign=True)
    model = model.to(getattr(torch, dtype))
    try:
        model = model.to(device=device).eval()
        torch.zeros((), device=device).item()  # fails on devices that cannot compute, as meta
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise WaitinfoError(f"device {device}: cannot be used ({reason})") from None
    return model
