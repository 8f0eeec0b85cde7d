"""Tensors on disk: safetensors files, never pickle. `stored` reads weights as arrays.

Weights are stored in one `model.safetensors` or, on request, in parts of bounded size named
`model-00001-of-00004.safetensors`. A tensor larger than a part is split along its first dimension
into pieces `name@0`, `name@1`, …
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from waitinfo.errors import WaitinfoError


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
