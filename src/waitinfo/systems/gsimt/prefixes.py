"""Decoder states of every point of the lattice, in bounded memory.

The state of (i, j) is the decoder's at target position j when every position up to j sees exactly
the first i source tokens. So each prefix of each sentence is a decoder row of its own, as long as
the furthest point it has in the lattice. Rows of like length are computed together, a group at a
time; those too few for a group of their own go with longer ones. Where that is too much to be kept,
inner activations are thrown away and computed again when gradients flow back, so that those of one
group are all that is ever there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from waitinfo.model.attention import Memory
from waitinfo.model.likelihood import linear_log_probability
from waitinfo.model.transformer import Embedded, Encoded, Transformer

MULTIPLE = 8  # widths of a group are multiples of this: fused attention kernels want aligned rows
SPARE = 8192  # positions: computing so many in vain is no slower than another group
LOGITS_AT_ONCE = 2**25  # numbers: 128 MiB in float32


@dataclass(frozen=True)
class PrefixGroup:
    """Decoder rows computed together, R of them, and the P of their positions that are wanted."""

    sentences: Tensor  # [R] which sentence of the batch
    prefixes: Tensor  # [R] how many of its source tokens are seen
    targets: int  # positions of each row
    sources: int  # source positions to look at
    wanted: Tensor  # [P] places in [R * targets]
    points: Tensor  # [P] the same as places in the lattice [B * S * T]

    @property
    def positions(self) -> int:
        """How many are computed, padding counted."""
        return len(self.sentences) * self.targets


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting for what that is doing."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def send_groups(groups: list[PrefixGroup], device: torch.device) -> list[PrefixGroup]:
    """Groups of the host on the device, in one copy."""
    kept = [[x for x in vars(group).items() if isinstance(x[1], Tensor)] for group in groups]
    tensors = [tensor for items in kept for _, tensor in items]
    sent = iter(send(torch.cat(tensors), device).split([len(tensor) for tensor in tensors]))
    there: list[dict[str, Any]] = [{name: next(sent) for name, _ in items} for items in kept]
    return [replace(group, **items) for group, items in zip(groups, there, strict=True)]


def prefix_groups(inside: Tensor, positions: int) -> list[PrefixGroup]:
    """The rows that a lattice needs, in groups of like length and at most so many positions.

    inside [B, S, T], on the host: the points of the lattice. A row that alone exceeds the limit is
    a group of its own.
    """
    _, sources, targets = inside.shape
    points = np.flatnonzero(inside.numpy())
    row_of = points // targets
    starts = _changes(row_of)
    ends = np.append(starts[1:], len(points))
    rows = row_of[starts]
    widths = np.minimum(_round_up(points[ends - 1] - rows * targets + 1), targets)
    sentences, read = np.divmod(rows, sources)
    order = np.argsort(widths * sources + read, kind="stable")  # shorter prefixes first
    rows, sentences, read, starts = rows[order], sentences[order], read[order], starts[order]
    counts = ends[order] - starts
    stops = counts.cumsum()  # points, too, in the order of their rows
    points = points[np.repeat(starts - stops + counts, counts) + np.arange(len(points))]
    groups = []
    for first, last, width in _runs(widths[order], positions):
        part = slice(first, last)
        there = points[stops[first] - counts[first] : stops[last - 1]]
        shift = np.arange(last - first) * width - rows[part] * targets
        groups.append(
            PrefixGroup(
                sentences=torch.from_numpy(sentences[part]),
                prefixes=torch.from_numpy(read[part] + 1),
                targets=width,
                sources=_round_up(int(read[part].max()) + 1),
                wanted=torch.from_numpy(there + np.repeat(shift, counts[part])),
                points=torch.from_numpy(there),
            )
        )
    return groups


def _runs(widths: np.ndarray, positions: int) -> list[tuple[int, int, int]]:
    """Groups as their first row, the one after their last, and a width for all of these.

    widths: of all rows, increasing. Narrow rows go with wider ones where that wastes little.
    """
    spare = min(SPARE, positions // 16)
    runs: list[tuple[int, int, int]] = []
    stop, first, width, wasted = len(widths), len(widths), int(widths[-1]), 0
    for start in _changes(widths).tolist()[::-1]:
        kind = int(widths[start])
        wasted += (first - start) * (width - kind)
        if wasted > spare:
            runs.append((first, stop, width))
            stop, width, wasted = first, kind, 0
        first = start
    runs.append((first, stop, width))
    return [
        (start, min(start + size, stop), width)
        for first, stop, width in reversed(runs)
        for size in [max(1, positions // width)]
        for start in range(first, stop, size)
    ]


def _changes(values: np.ndarray) -> np.ndarray:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1]))


def _round_up(number: Any) -> Any:
    """A number, or an array of them, up to the next multiple."""
    return -(-number // MULTIPLE) * MULTIPLE


def stack_memories(encoded: Encoded) -> Tensor:
    """Keys and values of all layers, to be selected from at once: [B, 2 L, H, S, d/H]."""
    return torch.stack([x for memory in encoded.memories for x in (memory.keys, memory.values)], 1)


def prefix_states(
    model: Transformer, target: Embedded, memories: Tensor, group: PrefixGroup, keep: bool
) -> Tensor:
    """States of the wanted positions of a group: [P, d]; `keep` what led to them for gradients.

    memories: stacked, of the whole batch.
    """
    at = target.at[:1, : group.targets].expand(len(group.sentences), -1)

    def states(x: Tensor, sources: Tensor, sentences: Tensor) -> Tensor:
        rows = Embedded(x[sentences], None, at)
        seen = sources[sentences].unbind(1)
        layers = [Memory(*pair) for pair in zip(seen[::2], seen[1::2], strict=True)]
        decoded = model.decode(rows, Encoded(layers, None), group.prefixes[:, None])
        return decoded.states.flatten(0, 1)[group.wanted]

    x, sources = target.x[:, : group.targets], memories[..., : group.sources, :]
    return _compute(keep, states, x, sources, group.sentences)


@dataclass(frozen=True)
class PointScores:
    """What the model says at P points of the lattice: [P] each, in float32 or better."""

    gold: Tensor  # log-probability of the next target token
    mean: Tensor  # that of a token on average, for label smoothing
    write: Tensor  # log-odds of WRITE


def point_scores(model: Transformer, states: Tensor, tokens: Tensor, keep: bool) -> PointScores:
    """Scores of states [P, d] whose next tokens are tokens [P].

    The distribution over the vocabulary is only there for some points at a time, for fewer where
    memory is so short that nothing is kept.
    """
    matrix = model.target_embedding.weight
    size = max(1, LOGITS_AT_ONCE * (4 if keep else 1) // len(matrix))
    gold, total = linear_log_probability(states, matrix, tokens, size)
    write = model.write_logits(states)
    assert write is not None
    # The mean of the logits is the logit of the mean.
    mean = (states.to(total.dtype) * matrix.mean(0, dtype=total.dtype)).sum(-1)
    return PointScores(gold, mean - total, write)


def _compute(keep: bool, function: Callable, *inputs: Tensor) -> Any:
    """function(*inputs); what it computes on the way is kept for gradients, or computed again."""
    if keep or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
