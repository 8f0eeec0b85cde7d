"""Decoder states of every point of the lattice, in bounded memory.

The state of (i, j) is the decoder's at target position j when every position up to j sees exactly
the first i source tokens. So each prefix of each sentence is a decoder row of its own, as long as
the furthest point it has in the lattice. Rows of like length are computed together, a group at a
time. Where that is too much to be kept, inner activations are thrown away and computed again when
gradients flow back, so that those of one group are all that is ever there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from waitinfo.model.attention import Memory
from waitinfo.model.transformer import Embedded, Encoded, Transformer

MULTIPLE = 8  # widths of a group are multiples of this: fused attention kernels want aligned rows
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

    def to(self, device: torch.device) -> PrefixGroup:
        tensors: dict[str, Any] = {
            name: send(value, device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting for what that is doing."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def prefix_groups(inside: Tensor, positions: int) -> list[PrefixGroup]:
    """The rows that a lattice needs, in groups of one length and at most so many positions.

    inside [B, S, T], on the host: the points of the lattice. A row that alone exceeds the limit is
    a group of its own.
    """
    targets = inside.shape[-1]
    furthest = (inside * torch.arange(1, targets + 1)).amax(-1)  # [B, S]: positions a row needs
    widths = _round_up(furthest).clamp_max(targets)
    groups = []
    for width in widths[widths > 0].unique().tolist():
        rows = (widths == width).T.nonzero()  # shorter prefixes first
        pieces = rows.split(max(1, positions // width))
        groups += [_group(inside, piece, width) for piece in pieces]
    return groups


def _group(inside: Tensor, rows: Tensor, width: int) -> PrefixGroup:
    """rows [R, 2]: prefix and sentence of each."""
    _, sources, targets = inside.shape
    read, sentences = rows.unbind(-1)
    row, written = inside[sentences, read, :width].nonzero().unbind(-1)
    return PrefixGroup(
        sentences=sentences,
        prefixes=read + 1,
        targets=width,
        sources=_round_up(int(read.max()) + 1),
        wanted=row * width + written,
        points=(sentences[row] * sources + read[row]) * targets + written,
    )


def _round_up(number: Any) -> Any:
    """A number, or a tensor of them, up to the next multiple."""
    return -(-number // MULTIPLE) * MULTIPLE


def prefix_states(
    model: Transformer, target: Embedded, encoded: Encoded, group: PrefixGroup, keep: bool
) -> Tensor:
    """States of the wanted positions of a group: [P, d]; `keep` what led to them for gradients."""
    memories = [
        Memory(memory.keys[:, :, : group.sources], memory.values[:, :, : group.sources])
        for memory in encoded.memories
    ]

    def states(x: Tensor, sentences: Tensor) -> Tensor:
        at = target.at[:, : group.targets][sentences]
        rows = Embedded(x[:, : group.targets][sentences], None, at)
        seen = Encoded(memories, None).select(sentences)
        decoded = model.decode(rows, seen, group.prefixes[:, None])
        return decoded.states.flatten(0, 1)[group.wanted]

    return _compute(keep, states, target.x, group.sentences)


@dataclass(frozen=True)
class PointScores:
    """What the model says at P points of the lattice: [P] each, in float32 or better."""

    gold: Tensor  # log-probability of the next target token
    mean: Tensor  # that of a token on average, for label smoothing
    write: Tensor  # log-odds of WRITE

    @classmethod
    def gather(cls, parts: list[PointScores]) -> PointScores:
        return cls(
            gold=torch.cat([part.gold for part in parts]),
            mean=torch.cat([part.mean for part in parts]),
            write=torch.cat([part.write for part in parts]),
        )


def point_scores(model: Transformer, states: Tensor, tokens: Tensor, keep: bool) -> PointScores:
    """Scores of states [P, d] whose next tokens are tokens [P].

    Unless it is to be kept, the distribution over the vocabulary is only there for a few points at
    a time.
    """

    def scores(some: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = model.logits(some)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = logits.logsumexp(-1)
        write = model.write_logits(some)
        assert write is not None
        return logits.gather(-1, gold[:, None])[:, 0] - total, logits.mean(-1) - total, write

    size = max(1, LOGITS_AT_ONCE // model.config.target_vocabulary)
    pieces = zip(states.split(size), tokens.split(size), strict=True)
    return PointScores.gather([PointScores(*_compute(keep, scores, *piece)) for piece in pieces])


def _compute(keep: bool, function: Callable, *inputs: Tensor) -> Any:
    """function(*inputs); what it computes on the way is kept for gradients, or computed again."""
    if keep or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
