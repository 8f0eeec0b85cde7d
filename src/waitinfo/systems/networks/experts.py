"""Cross-attention whose heads are experts, of MoE wait-k: with torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.model.attention import CrossAttention, merge_heads, split_heads
from waitinfo.model.views import AttentionReport, Memory, SourceView

DIAL_UNIT = 10.0  # k is divided by this, to be of the same order as the gate's other inputs


class Gate(nn.Module):
    """The weight of every expert: H softmax(tanh(W [mass, k/10] + b)).

    Its parameters are initialised to zero, which gives every expert the weight 1. So a model with
    an untrained gate equals the model with equal weights.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, heads + 1))
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, mass: Tensor, k: Tensor) -> Tensor:
        """mass [B, H, T], k [B] -> [B, H, T], in float32 or better, also under autocast."""
        with torch.autocast(mass.device.type, enabled=False):
            dial = (k.to(mass.dtype) / DIAL_UNIT)[:, None, None].expand(-1, mass.shape[2], 1)
            inputs = torch.cat([mass.transpose(1, 2), dial], -1)  # [B, T, H + 1]
            scores = F.linear(inputs, self.weight.to(mass.dtype), self.bias.to(mass.dtype))
            gates = len(self.bias) * torch.tanh(scores).softmax(-1)
        return gates.transpose(1, 2)


class ExpertAttention(CrossAttention):
    """Cross-attention over one prefix per head; reports its gates.

    Without a dial k, which the gate needs, all experts have equal weight.
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
        """Mean weight of a token in the expert's prefix, if attention covers all tokens read.

        scores [B, H, T, S]; seen [B, H, T, S]: scores with the bias of the experts' prefixes.
        Returns [B, H, T].
        """
        everything = seen if view.read_bias is None else scores + view.read_bias
        share = (seen.logsumexp(-1) - everything.logsumexp(-1)).exp()
        visible = view.visible if view.visible.dim() == 3 else view.visible[:, None]
        return share / visible
