"""Weights on disk as NumPy arrays: reading what `trained.tensors` writes, without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from waitinfo.errors import WaitinfoError

PART = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
HALF = "BF16"  # which NumPy does not have
KINDS = {"F64": "f8", "F32": "f4", "F16": "f2", HALF: "u2", "I64": "i8", "I32": "i4", "I8": "i1"}


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file; bfloat16 becomes float32, which has the same numbers.

    The others are views of the file, which take memory as they are read. Writing to them does not
    change the file, but a file that changes may change them: copy what is kept.
    """
    try:
        with safe_open(path, "numpy"):  # checks the header
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        numbers = np.asarray(np.memmap(path, np.uint8, "c", 8 + size))
    except (OSError, ValueError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None
    header.pop("__metadata__", None)
    return {name: _array(path, numbers, entry) for name, entry in header.items()}


def _array(path: Path, numbers: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[Any]:
    kind, (start, end) = entry["dtype"], entry["data_offsets"]
    if kind not in KINDS:
        raise WaitinfoError(f"{path}: holds numbers of type {kind}, which are not supported")
    array = numbers[start:end].view(f"<{KINDS[kind]}").reshape(entry["shape"])
    if kind == HALF:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array if array.flags.aligned else array.copy()


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
