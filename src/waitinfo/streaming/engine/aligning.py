"""Alignment of what was written with what was read, which says where a window may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from waitinfo.model.attention import CrossAttention
from waitinfo.model.transformer import Transformer
from waitinfo.text.special import BOS, EOS


def align(
    model: Transformer, source: Sequence[int], written: Sequence[int], path: Sequence[int]
) -> NDArray[Any]:
    """[T, S] how much each token written has looked at each source token read.

    By cross-attention; where that is of a special kind, by when each token was written.
    """
    tokens = [token for token in written if token != EOS]
    path = list(path[: len(tokens)])
    if not tokens or model.config.cross_attention != CrossAttention.name:
        return by_path(path, len(source))
    # Encoded again: the caches may hold other numbers than attention takes.
    device = model.device
    lengths = torch.tensor([len(source)], device=device)
    encoded = model.encode(model.embed_source(torch.tensor([source], device=device)), lengths)
    target = model.embed_target(torch.tensor([[BOS, *tokens[:-1]]], device=device))
    visible = torch.tensor([path], device=device)
    return model.alignment(target, encoded, visible)[0].double().cpu().numpy()


def by_path(path: Sequence[int], read: int) -> NDArray[Any]:
    """[T, S] each token on the source token that it would follow without the initial wait."""
    found = np.zeros((len(path), read))
    for row, seen in enumerate(path):
        found[row, max(0, seen - path[0])] = 1
    return found
