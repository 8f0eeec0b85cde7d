"""Word order: alignments from the model's cross-attention, and how many of them cross."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from waitinfo.analysis.recording import Forced, Weights, decode_given
from waitinfo.progress import Progress, Silent
from waitinfo.trained.saving import LoadedModel


def alignments(
    loaded: LoadedModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    progress: Progress | None = None,
) -> list[list[int]]:
    """The source token that each target token attends to most, with the whole source visible.

    Attention is averaged over heads and layers; end-of-sentence is never chosen.
    """
    progress = progress or Silent()
    progress.stage("alignments", len(sources))
    found: dict[int, list[int]] = {}
    layers: list[Tensor] = []

    def keep(_: Forced, weights: Weights) -> None:
        if weights.kind == "cross":
            layers.append(weights.biased.mean(1))

    for forced in decode_given(loaded, sources, targets, keep):
        mean = torch.stack(layers).mean(0)  # [B, T, S]
        layers.clear()
        for row, i in enumerate(forced.index):
            n, m = len(sources[i]), len(targets[i])
            # The position that is given token i - 1 writes token i.
            found[i] = mean[row, :m, :n].argmax(-1).tolist() if n else []
        progress.advance(len(found))
    return [found[i] for i in range(len(sources))]


def crossing_share(alignment: Sequence[int]) -> float:
    """Share of pairs of target tokens whose source tokens come in the opposite order.

    Pairs with the same source token are left out; 0 where there is no other pair.
    """
    at = np.asarray(alignment)
    earlier, later = np.triu_indices(len(at), 1)
    crossed, parallel = (at[earlier] > at[later]).sum(), (at[earlier] < at[later]).sum()
    return float(crossed / (crossed + parallel)) if crossed + parallel else 0.0
