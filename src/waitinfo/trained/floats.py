"""Models that compute with floats: with torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.model.transformer import Transformer
from waitinfo.threads import tell_torch


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
