"""Decoder states of every point of the lattice, in bounded memory.

The state of (i, j) is the decoder state at target position j if every position up to j sees exactly
the first i source tokens. So each prefix of each sentence is a separate decoder row, which ends at
its last point in the lattice. Rows of similar length are computed together in groups; if there are
too few for a group, they join longer rows. If the activations of all groups do not fit into memory,
they are discarded and recomputed in the backward pass, so that only one group is stored at a time.
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

MULTIPLE = 8  # widths of a group are multiples of this: fused attention kernels need aligned rows
SPARE = 8192  # padding up to this many positions is cheaper than another group
LOGITS_AT_ONCE = 2**25  # 128 MiB in float32


@dataclass(frozen=True)
class PrefixGroup:
    """R decoder rows computed together, and the P positions in them that the lattice needs."""

    sentences: Tensor  # [R] index of the sentence in the batch
    prefixes: Tensor  # [R] visible source tokens
    targets: int  # target positions of each row
    sources: int  # source positions of each row
    wanted: Tensor  # [P] indices into [R * targets]
    points: Tensor  # [P] indices of the same points into the lattice [B * S * T]

    @property
    def positions(self) -> int:
        """Number of computed positions, including padding."""
        return len(self.sentences) * self.targets


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device without waiting for the device."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def send_groups(groups: list[PrefixGroup], device: torch.device) -> list[PrefixGroup]:
    """Copy groups from the host to the device in one transfer."""
    fields = [[x for x in vars(group).items() if isinstance(x[1], Tensor)] for group in groups]
    tensors = [tensor for items in fields for _, tensor in items]
    sent = iter(send(torch.cat(tensors), device).split([len(tensor) for tensor in tensors]))
    copies: list[dict[str, Any]] = [{name: next(sent) for name, _ in items} for items in fields]
    return [replace(group, **items) for group, items in zip(groups, copies, strict=True)]


def prefix_groups(inside: Tensor, positions: int) -> list[PrefixGroup]:
    """Group the rows of a lattice by length, with at most `positions` positions per group.

    inside [B, S, T], on the host: mask of the lattice's points. A single row that exceeds the limit
    forms its own group.
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
    stops = counts.cumsum()  # reorder points like their rows
    points = points[np.repeat(starts - stops + counts, counts) + np.arange(len(points))]
    groups = []
    for first, last, width in _runs(widths[order], positions):
        part = slice(first, last)
        selected = points[stops[first] - counts[first] : stops[last - 1]]
        shift = np.arange(last - first) * width - rows[part] * targets
        groups.append(
            PrefixGroup(
                sentences=torch.from_numpy(sentences[part]),
                prefixes=torch.from_numpy(read[part] + 1),
                targets=width,
                sources=_round_up(int(read[part].max()) + 1),
                wanted=torch.from_numpy(selected + np.repeat(shift, counts[part])),
                points=torch.from_numpy(selected),
            )
        )
    return groups


def _runs(widths: np.ndarray, positions: int) -> list[tuple[int, int, int]]:
    """Split rows into groups: first row, last row + 1, and the common width of each group.

    widths: of all rows, in increasing order. Narrow rows join wider ones if that adds little
    padding.
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
    """Start index of each run of equal values."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1]))


def _round_up(number: Any) -> Any:
    """Round a number or an array up to a multiple of MULTIPLE."""
    return -(-number // MULTIPLE) * MULTIPLE


def stack_memories(encoded: Encoded) -> Tensor:
    """Stack keys and values of all layers, to select from all at once: [B, 2 L, H, S, d/H]."""
    return torch.stack([x for memory in encoded.memories for x in (memory.keys, memory.values)], 1)


def prefix_states(
    model: Transformer, target: Embedded, memories: Tensor, group: PrefixGroup, keep: bool
) -> Tensor:
    """States of the wanted positions of a group: [P, d].

    memories: from `stack_memories`, for the whole batch; keep: store activations for the backward
    pass instead of recomputing them.
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
    """Model scores at P points of the lattice: [P] each, in float32 or better."""

    gold: Tensor  # log-probability of the next target token
    mean: Tensor  # mean log-probability over the vocabulary, for label smoothing
    write: Tensor  # log-odds of WRITE


def point_scores(model: Transformer, states: Tensor, tokens: Tensor, keep: bool) -> PointScores:
    """Scores of states [P, d] with next tokens [P].

    Logits are stored for a limited number of points at a time, and for fewer if `keep` is false,
    because memory is short then.
    """
    matrix = model.target_embedding.weight
    size = max(1, LOGITS_AT_ONCE * (4 if keep else 1) // len(matrix))
    gold, total = linear_log_probability(states, matrix, tokens, size)
    write = model.write_logits(states)
    assert write is not None
    # The mean of the logits equals the logit of the mean output vector.
    mean = (states.to(total.dtype) * matrix.mean(0, dtype=total.dtype)).sum(-1)
    return PointScores(gold, mean - total, write)


def _compute(keep: bool, function: Callable, *inputs: Tensor) -> Any:
    """function(*inputs), with activations kept for the backward pass or recomputed in it."""
    if keep or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
