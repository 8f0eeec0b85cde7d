"""Weights on disk as NumPy arrays: reading what `tensors` writes, without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from waitinfo.errors import WaitinfoError

PART = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
HALF = "BF16"  # which NumPy does not have


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file; bfloat16 becomes float32, which has the same numbers."""
    try:
        with safe_open(path, "numpy") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            if HALF not in kinds.values():
                return {name: file.get_tensor(name) for name in kinds}
        return {name: _array(stored) for name, stored in deserialize(path.read_bytes())}
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None


_KINDS = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I8": "i1", HALF: "u2"}


def _array(stored: dict[str, Any]) -> NDArray[Any]:
    kind = stored["dtype"]
    if kind not in _KINDS:
        raise SafetensorError(f"numbers of type {kind}")
    array = np.frombuffer(stored["data"], f"<{_KINDS[kind]}").reshape(stored["shape"])
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == HALF else array


def load_stored(folder: Path) -> dict[str, NDArray[Any]]:
    """Load all arrays of a model folder as they are stored, with split ones restored."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise WaitinfoError(f"{folder}: contains no model.safetensors")
    if (match := PART.fullmatch(files[0].name)) and len(files) != int(match.group(2)):
        raise WaitinfoError(
            f"{folder}: found only {len(files)} of {int(match.group(2))} weight files"
        )
    weights: dict[str, NDArray[Any]] = {}
    pieces: dict[str, dict[int, NDArray[Any]]] = {}
    for path in files:
        for name, array in read_arrays(path).items():
            base, split, number = name.partition("@")
            if split:
                pieces.setdefault(base, {})[int(number)] = array
            else:
                weights[name] = array
    for name, found in pieces.items():
        weights[name] = np.concatenate([found[i] for i in sorted(found)])
    return weights
