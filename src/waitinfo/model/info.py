"""Info: the amount of information in a token, and how attention uses and learns it.

Equation numbers are the paper's. Scaling softmax weights by w and renormalising is the same as
adding log w to the scores, so both info-aware attentions are plain attention with an additive bias.
Code in NumPy (`integers/info.py`), C (`native/embedding.h`) and Triton (`kernels/rows.py`) repeats
the functions here, and tests compare it with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from waitinfo.text.special import BOS

SMALLEST_WEIGHT = 1e-4  # lower bound of 2 - |difference|: its log stays finite in half precision


class InfoQuantizer(nn.Module):
    """Predicts a token's info in (0, 2) from its embedding (Eq. 4 and Eq. 5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T], in float32 or better, also under autocast."""
        hidden = torch.tanh(self.hidden(torch.tanh(x)))
        exact = torch.promote_types(self.out.weight.dtype, torch.float32)
        return 2 * torch.sigmoid((hidden.to(exact) * self.out.weight[0].to(exact)).sum(-1))


class TokenInfo(nn.Module):
    """Info of source or target tokens: learned, from frequency, from the norm, or fixed to 1."""

    def __init__(self, kind: str, vocabulary: int, width: int, fixed: bool) -> None:
        super().__init__()
        self.kind = "one" if fixed else kind
        self.scale: Tensor
        self.share: Tensor
        self.table: Tensor
        self._cached: tuple[list[Any], Tensor, list[Tensor]] | None = None
        if self.kind == "attention":
            self.quantizer = InfoQuantizer(width)
        elif self.kind == "frequency":
            self.register_buffer("table", torch.ones(vocabulary))
        elif self.kind == "norm":
            self.register_buffer("share", torch.full((vocabulary,), 1 / vocabulary))
            self.register_buffer("scale", torch.ones(()))

    def forward(self, tokens: Tensor, x: Tensor, embedding: Tensor) -> Tensor:
        """tokens [B, T], embeddings with positions x [B, T, d], embedding [V, d] -> [B, T]."""
        if self.kind == "attention":
            info = self.quantizer(x)
        elif self.kind == "frequency":
            info = self.table[tokens]
        elif self.kind == "norm":
            info = self._by_norm(embedding)[tokens]
        else:
            kind = embedding.dtype if embedding.is_floating_point() else x.dtype
            info = torch.ones(tokens.shape, device=x.device, dtype=kind)
        # Begin-of-sequence is not a target token; the first position always has info 1.
        return info.masked_fill(tokens == BOS, 1.0)

    def _by_norm(self, embedding: Tensor) -> Tensor:
        """Info of every token of the vocabulary, from the embedding [V, d]: [V].

        In evaluation mode the result is cached until one of its inputs changes. Training changes
        the embedding with every update, so nothing is cached there.
        """
        inputs = (embedding, self.share, self.scale)
        if self.training or any(tensor.is_inference() for tensor in inputs):
            return self._compute_by_norm(embedding)  # inference tensors do not track changes
        state = [(tensor.data_ptr(), tensor.dtype, tensor._version) for tensor in inputs]
        if self._cached is None or self._cached[0] != state:
            with torch.inference_mode(False):  # later passes may need gradients
                table = self._compute_by_norm(embedding)
            # References to the inputs keep their addresses from being reused.
            self._cached = state, table, [tensor.detach() for tensor in inputs]
        return self._cached[1]

    def _compute_by_norm(self, embedding: Tensor) -> Tensor:
        norms = embedding.detach().norm(dim=-1)
        return _in_range(self.scale * norms / (norms * self.share).sum())

    def fit(self, counts: Tensor, mean: float) -> None:
        """Fit the heuristic kinds to token counts [V], so that info is `mean` on average."""
        if self.kind == "frequency":
            frequency = (counts + 1).double() / (counts + 1).sum()
            surprise = -frequency.log()
            average = (surprise * frequency).sum()
            self.table.copy_(_in_range(mean * surprise / average))
        elif self.kind == "norm":
            self.share.copy_(counts / counts.sum())
            self.scale.fill_(mean)


def _in_range(info: Tensor) -> Tensor:
    return info.clamp(0.05, 1.95)


def self_bias(at: Tensor, keys: int, info: Tensor | None) -> Tensor:
    """Additive bias of causal self-attention, with info on the diagonal (Eq. 8).

    at [B, T]: position of each query; keys: number L of key positions; info [B, T] of the queries.
    Returns [B, 1, T, L].
    """
    columns = torch.arange(keys, device=at.device)
    distance = columns - at[:, None, :, None]  # [B, 1, T, L]
    future = distance > 0
    dtype = torch.float32 if info is None else info.dtype
    bias = torch.zeros(future.shape, device=at.device, dtype=dtype)
    if info is not None:
        bias = torch.where(distance == 0, info[:, None, :, None] - 1, bias)
    return bias.masked_fill(future, -torch.inf)


def consistency(source_info: Tensor, target_info: Tensor) -> Tensor:
    """log(2 - |I_tgt(i) - I_src(j)|) (Eq. 10): [B, S], [B, T] -> [B, 1, T, S]."""
    difference = (target_info[:, :, None] - source_info[:, None, :]).abs()
    return (2 - difference).clamp_min(SMALLEST_WEIGHT).log()[:, None]


def cross_bias(visible: Tensor, keys: int, weight: Tensor | None = None) -> Tensor:
    """Additive bias of cross-attention over a visible prefix.

    visible [B, T] or, per head, [B, H, T]: number of source tokens that each query sees;
    weight [B, 1, T, S]: bias of the visible tokens. Returns [B, 1 or H, T, S].
    """
    if visible.dim() == 2:
        visible = visible[:, None]
    hidden = torch.arange(keys, device=visible.device) >= visible[..., None]
    if weight is None:
        weight = torch.zeros(1, device=visible.device)
    return torch.where(hidden, -torch.inf, weight)


def info_sum_loss(
    source_info: Tensor,
    target_info: Tensor,
    source_mask: Tensor,
    target_mask: Tensor,
    total: str = "mean",
    norm: str = "sentence",
) -> Tensor:
    """How far the totals of info are from zeta on both sides, for the whole batch.

    The masks select the real tokens, without special tokens. zeta is the mean of both lengths, the
    source length n, or the target length m, as `total` says. The norm is of each sentence's total,
    |sum I - zeta|, added up (Eq. 6), or, as in the authors' code, one over the infos of the whole
    batch: of their distance to a fixed goal, the same infos scaled to add up to zeta.
    """
    n, m = source_mask.sum(-1), target_mask.sum(-1)
    zeta = {"mean": (n + m) / 2, "source": n, "target": m}[total].to(source_info.dtype)
    losses = []
    for info, mask in ((source_info, source_mask), (target_info, target_mask)):
        kept = info * mask
        sums = kept.sum(-1)
        if norm == "sentence":
            losses.append((sums - zeta).abs().sum())
        else:
            goal = kept * (zeta / sums.clamp_min(1e-6))[:, None]
            losses.append(torch.linalg.vector_norm(kept - goal.detach()))
    return losses[0] + losses[1]
