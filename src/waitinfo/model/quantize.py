"""Weights as 8-bit integers: a quarter of the size, one scale a row.

w ≈ q · s with q in -127 … 127 and s = max |w| / 127 of each row. Storage only: a model is computed
with what comes back, in any precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = ":scale"  # added to a matrix's name


def quantize(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as integers and a scale a row; all else as it is."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() != 2:
            stored[name] = tensor
            continue
        exact = tensor.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        stored[name] = (exact / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


def dequantize(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reverse, in float32; tensors without a scale are left as they are."""
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        scale = stored.get(name + SCALE)
        weights[name] = tensor if scale is None else tensor.float().mul_(scale[:, None])
    return weights
