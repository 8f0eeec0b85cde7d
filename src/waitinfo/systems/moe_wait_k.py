"""MoE wait-k: heads of the cross-attention are experts for different lags (Zhang and Feng, 2021).

Every head attends to a prefix of its own length, and a gate weights the outputs of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import (
    AttentionReport,
    CrossAttention,
    Memory,
    SourceView,
    merge_heads,
    split_heads,
)
from waitinfo.model.batch import Batch
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import LossContext
from waitinfo.systems.interface import Dial
from waitinfo.systems.wait_k import Multipath, MultipathOptions, lag_path

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


LONGEST_LAG = 16
PUBLISHED_LAGS = {8: (1, 3, 5, 7, 9, 11, 13, 15)}  # differs from the even spread


@dataclass(frozen=True)
class MoEWaitKOptions(MultipathOptions):
    lags: str = ""  # k_h of every head, as in "1,6,11,16"; empty for an even spread over 1 … 16
    equal_updates: int = 2000  # stage one: number of first updates with equal expert weights

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.equal_updates < 0:
            raise WaitinfoError(f"system.equal_updates {self.equal_updates}: must be 0 or more")
        if self.lags:
            parse_lags(self.lags)


def parse_lags(text: str) -> tuple[int, ...]:
    try:
        lags = tuple(int(part) for part in text.split(","))
    except ValueError:
        lags = ()
    if not lags or min(lags) < 1:
        raise WaitinfoError(
            f"system.lags '{text}': must be whole numbers of at least 1, as in 1,6,11,16"
        )
    return lags


def spread_lags(heads: int) -> tuple[int, ...]:
    """k_h of every head: the authors' values for 4, 8 and 16 heads, else evenly from 1 to 16."""
    if heads == 1:
        return (LONGEST_LAG,)
    even = tuple(1 + (LONGEST_LAG - 1) * head // (heads - 1) for head in range(heads))
    return PUBLISHED_LAGS.get(heads, even)


@lru_cache(maxsize=8)
def _column(lags: tuple[int, ...], device: torch.device) -> Tensor:
    """Lags as [H, 1], cached per device, because a copy from the host would wait for the device."""
    return torch.tensor(lags, device=device)[:, None]


class MoEWaitK(Multipath):
    name = "moe-wait-k"
    summary = "wait-k with attention heads as experts for different lags; one model for every k"
    dial = Dial("k", 3, help="tokens the translation lags behind")
    attentions = (ExpertAttention,)
    milestones = ("whole_source_updates", "equal_updates")
    Options = MoEWaitKOptions
    options: MoEWaitKOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        lags = self.lags(config.heads)
        if len(lags) != config.heads:
            raise WaitinfoError(
                f"system.lags {self.options.lags}: {len(lags)} lags for {config.heads} heads; "
                "give one for each"
            )

    def lags(self, heads: int) -> tuple[int, ...]:
        """k_h of every head."""
        return parse_lags(self.options.lags) if self.options.lags else spread_lags(heads)

    def visible(self, read: Tensor, written: Tensor, k: Tensor, heads: int) -> Tensor:
        """Head h sees min(k_h, k) + i - 1 tokens: it lags behind wait-k by the amount k_h < k.

        If more was read than wait-k requires, it lags behind that: [B, H, T].
        """
        k = k.long()
        lags = _column(self.lags(heads), read.device)
        behind = k[:, None] - torch.minimum(k[:, None], lags)  # [B, H, 1]
        reached = torch.maximum(read, lag_path(written, k, self.options.catch_up))
        return torch.minimum(read[:, None], reached[:, None] - behind)

    def dial_rows(
        self, batch: Batch, context: LossContext, k: float | Tensor | None
    ) -> Tensor | None:
        # In stage one there is no k: experts have equal weight, and the gate is not trained.
        if context.k is None and context.update < self.options.equal_updates:
            return None
        return super().dial_rows(batch, context, k)
