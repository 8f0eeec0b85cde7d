"""Weights that a policy has of its own, as the veto's head: `policy.safetensors` in a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save, save_file

from waitinfo.errors import WaitinfoError

POLICY = "policy.safetensors"


def read_policy(folder: Path) -> dict[str, NDArray[Any]]:
    """The weights that a policy has of its own, if there are any."""
    path = folder / POLICY
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None


def write_policy(folder: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Store the weights that a policy has of its own."""
    path = folder / POLICY
    try:
        save_file(_in_order(tensors), path)
        path.chmod(0o644)  # as readable as the other files of the folder
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be written ({error})") from None


def checksum(tensors: dict[str, NDArray[Any]]) -> dict[str, str]:
    """The checksum of these weights as a setting that translations depend on; none without any."""
    if not tensors:
        return {}
    return {"policy": hashlib.sha256(save(_in_order(tensors))).hexdigest()}


def _in_order(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Row by row: safetensors writes the memory of an array as it lies there."""
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
