"""Cross-attention whose heads are experts, mixed by a gate (Zhang and Feng, 2021).

Every head attends to a prefix of its own length, and the gate weighs what the heads found.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import (
    AttentionReport,
    CrossAttention,
    Memory,
    SourceView,
    merge_heads,
    split_heads,
)

DIAL_UNIT = 10.0  # k enters the gate in tens, of the order of its other inputs


class Gate(nn.Module):
    """The weight of every expert: H softmax(tanh(W [mass, k/10] + b)).

    It begins at zero, which weighs all experts with 1. So a model whose gate has not been trained
    yet is the model with equal weights, in training and wherever it is loaded.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, heads + 1))
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, mass: Tensor, k: Tensor) -> Tensor:
        """mass [B, H, T], k [B] -> [B, H, T], in float32 or better whatever is around it."""
        with torch.autocast(mass.device.type, enabled=False):
            dial = (k.to(mass.dtype) / DIAL_UNIT)[:, None, None].expand(-1, mass.shape[2], 1)
            inputs = torch.cat([mass.transpose(1, 2), dial], -1)  # [B, T, H + 1]
            scores = F.linear(inputs, self.weight.to(mass.dtype), self.bias.to(mass.dtype))
            gates = len(self.bias) * torch.tanh(scores).softmax(-1)
        return gates.transpose(1, 2)


class ExpertAttention(CrossAttention):
    """Cross-attention over one prefix a head; reports its gates.

    Without a dial k the gate has nothing to go by, and all experts weigh the same.
    """

    name = "moe"

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.gate = Gate(heads)

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        queries = split_heads(self.queries(x), self.heads)
        scores = queries @ memory.keys.transpose(-2, -1)  # [B, H, T, S]
        exact = torch.promote_types(scores.dtype, torch.float32)
        scores = scores.to(exact) * queries.shape[-1] ** -0.5
        seen = scores + view.bias
        weights = F.dropout(seen.softmax(-1), self.dropout, self.training)
        mixed = weights.to(memory.values.dtype) @ memory.values  # [B, H, T, d/H]
        if view.k is None:
            return self.out(merge_heads(mixed)), None
        gates = self.gate(self._mass(scores, seen, view), view.k)
        return self.out(merge_heads(mixed * gates[..., None].to(mixed.dtype))), AttentionReport(
            gates=gates
        )

    @staticmethod
    def _mass(scores: Tensor, seen: Tensor, view: SourceView) -> Tensor:
        """What an attention to all that was read gives a token the expert sees, on average.

        scores [B, H, T, S]; seen: with the bias of the experts' prefixes -> [B, H, T].
        """
        everything = seen if view.read_bias is None else scores + view.read_bias
        share = (seen.logsumexp(-1) - everything.logsumexp(-1)).exp()
        visible = view.visible if view.visible.dim() == 3 else view.visible[:, None]
        return share / visible
