"""Info: how much information a token carries, and how attention uses and teaches it.

Equation numbers are the paper's. Scaling softmax weights by w and renormalising equals adding
log w to the scores, so both special attentions are ordinary attention with an additive bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from waitinfo.text.special import BOS

SMALLEST_WEIGHT = 1e-4  # of 2 - |difference|: keeps its logarithm finite in half precision


class InfoQuantizer(nn.Module):
    """Predicts a token's info in (0, 2) from its embedding (Eq. 4, 5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, T], in float32 or better whatever the precision around it."""
        hidden = torch.tanh(self.hidden(torch.tanh(x)))
        exact = torch.promote_types(self.out.weight.dtype, torch.float32)
        return 2 * torch.sigmoid((hidden.to(exact) * self.out.weight[0].to(exact)).sum(-1))


class TokenInfo(nn.Module):
    """One side's info, from any of its sources: attention learning, frequency, norm, or fixed."""

    def __init__(self, kind: str, vocabulary: int, width: int, fixed: bool) -> None:
        super().__init__()
        self.kind = "one" if fixed else kind
        self.scale: Tensor
        self.share: Tensor
        self.table: Tensor
        self._kept: tuple[list[Any], Tensor, list[Tensor]] | None = None
        if self.kind == "attention":
            self.quantizer = InfoQuantizer(width)
        elif self.kind == "frequency":
            self.register_buffer("table", torch.ones(vocabulary))
        elif self.kind == "norm":
            self.register_buffer("share", torch.full((vocabulary,), 1 / vocabulary))
            self.register_buffer("scale", torch.ones(()))

    def forward(self, tokens: Tensor, x: Tensor, embedding: Tensor) -> Tensor:
        """tokens [B, T], their embeddings with positions x [B, T, d], matrix [V, d] -> [B, T]."""
        if self.kind == "attention":
            info = self.quantizer(x)
        elif self.kind == "frequency":
            info = self.table[tokens]
        elif self.kind == "norm":
            info = self._by_norm(embedding)[tokens]
        else:
            kind = embedding.dtype if embedding.is_floating_point() else x.dtype
            info = torch.ones(tokens.shape, device=x.device, dtype=kind)
        # The position that carries begin-of-sequence stands for no token yet.
        return info.masked_fill(tokens == BOS, 1.0)

    def _by_norm(self, embedding: Tensor) -> Tensor:
        """Info of every token, from the matrix [V, d]: [V].

        It is computed once for a trained model, and again when a tensor it depends on changes.
        Training changes the matrix with every update.
        """
        inputs = (embedding, self.share, self.scale)
        if self.training or any(tensor.is_inference() for tensor in inputs):
            return self._compute_by_norm(embedding)  # changes could not be seen
        state = [(tensor.data_ptr(), tensor.dtype, tensor._version) for tensor in inputs]
        if self._kept is None or self._kept[0] != state:
            with torch.inference_mode(False):  # later passes may need gradients
                table = self._compute_by_norm(embedding)
            # Holding on to the inputs keeps their addresses from being used again.
            self._kept = state, table, [tensor.detach() for tensor in inputs]
        return self._kept[1]

    def _compute_by_norm(self, embedding: Tensor) -> Tensor:
        norms = embedding.detach().norm(dim=-1)
        return _in_range(self.scale * norms / (norms * self.share).sum())

    def tabulate(self, embedding: Tensor) -> None:
        """Keep the info by norm as a table, for a matrix that will not change: [V, d]."""
        self.register_buffer("table", self._compute_by_norm(embedding))
        self.kind = "frequency"

    def fit(self, counts: Tensor, mean: float) -> None:
        """Set what the heuristic kinds need: token counts [V], and the average info they aim at."""
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

    at [B, T]: position of each query; keys: number of key positions L; info [B, T] of the queries.
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

    visible [B, T] or, per head, [B, H, T]: how many source tokens each query sees;
    weight [B, 1, T, S]: a bias for those it sees. Returns [B, 1 or H, T, S].
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
) -> Tensor:
    """|sum I_src - zeta| + |sum I_tgt - zeta| (Eq. 6), summed over the batch.

    The masks choose the real tokens, without special ones; zeta is by `total` the mean of the two
    lengths, the source length n, or the target length m.
    """
    n, m = source_mask.sum(-1), target_mask.sum(-1)
    zeta = {"mean": (n + m) / 2, "source": n, "target": m}[total].to(source_info.dtype)
    source = (source_info * source_mask).sum(-1)
    target = (target_info * target_mask).sum(-1)
    return ((source - zeta).abs() + (target - zeta).abs()).sum()


def info_path(
    source_info: Tensor, target_info: Tensor, k: Tensor | float, lengths: Tensor, floor: bool
) -> Tensor:
    """g_K(i): source tokens read before target token i is written (Eq. 12).

    source_info [B, S]; target_info [B, T] of the decoder's inputs (BOS, y_1, …), the first being 1;
    lengths [B] of the source, end-of-sentence counted. Returns [B, T] in 1 … n, non-decreasing.
    The target token about to be written is unknown, so only the info of those before it counts.
    """
    received = source_info.double().cumsum(-1)
    used = torch.nn.functional.pad(target_info[:, 1:], (1, 0)).double().cumsum(-1)
    dial = torch.as_tensor(k, device=used.device, dtype=torch.float64).reshape(-1, 1)
    threshold = dial + used
    # The number of prefixes that fall short, plus one, is the first that does not.
    path = torch.searchsorted(received.contiguous(), threshold.contiguous()) + 1
    if floor:
        path = torch.maximum(path, torch.arange(2, path.shape[1] + 2, device=path.device))
    return torch.minimum(path, lengths[:, None]).cummax(-1).values
