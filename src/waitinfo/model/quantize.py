"""Weights as 8-bit integers: a quarter of the size, one scale per row.

w ≈ q · s with q in -127 … 127 and s = max |w| / 127 of each row. A model computes with the integers
(`conversion`), or with the dequantized weights in any precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from waitinfo.model.inputs import CENTER, REPEATED

SCALE = ":scale"  # suffix of a matrix's name
_BESIDE = (SCALE, CENTER, REPEATED)


def quantize(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store every matrix as integers and one scale per row; keep other tensors unchanged.

    Matrices that are integers already stay as they are.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() != 2 or tensor.dtype == torch.int8:
            stored[name] = tensor
            continue
        exact = tensor.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        stored[name] = (exact / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


def dequantize(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Restore float32 matrices; tensors without a scale stay unchanged."""
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(_BESIDE):
            continue
        scale = stored.get(name + SCALE)
        weights[name] = tensor if scale is None else tensor.float().mul_(scale[:, None])
    return weights
