"""MoE wait-k: heads of the cross-attention are experts for different lags (Zhang and Feng, 2021).

Every head attends to a prefix of its own length, and a gate weights the outputs of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import LossContext
from waitinfo.systems.interface import Dial, for_arrays, integers, like, smaller
from waitinfo.systems.wait_k import Multipath, MultipathOptions, lag_path

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch

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
def _column(lags: tuple[int, ...]) -> np.ndarray:
    """Lags as [H, 1], always the same array."""
    return np.array(lags)[:, None]


class MoEWaitK(Multipath):
    name = "moe-wait-k"
    summary = "wait-k with attention heads as experts for different lags; one model for every k"
    dial = Dial("k", 3, help="tokens the translation lags behind")
    attentions = ("moe",)
    network = "waitinfo.systems.networks.experts"
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

    @for_arrays
    def visible(self, read: Tensor, written: Tensor, k: Tensor, heads: int) -> Tensor:
        """Head h sees min(k_h, k) + i - 1 tokens: it lags behind wait-k by the amount k_h < k.

        If more was read than wait-k requires, it lags behind that: [B, H, T].
        """
        k = integers(k)
        lags = like(_column(self.lags(heads)), read)
        behind = k[:, None] - smaller(k[:, None], lags)  # [B, H, 1]
        path = lag_path(written, k, self.options.catch_up)
        reached = read + (path - read) * (path > read)
        return smaller(read[:, None], reached[:, None] - behind)

    def dial_rows(
        self, batch: Batch, context: LossContext, k: float | Tensor | None
    ) -> Tensor | None:
        # In stage one there is no k: experts have equal weight, and the gate is not trained.
        if context.k is None and context.update < self.options.equal_updates:
            return None
        return super().dial_rows(batch, context, k)
