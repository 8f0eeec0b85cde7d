"""MMA: every head of every layer moves through the source independently.

The model writes when all heads have stopped within the source read so far, so the slowest head
determines the latency.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.model.transformer import Decoded, Embedded, Transformer
from waitinfo.systems.base import (
    Dial,
    LossContext,
    Losses,
    PolicyState,
    Step,
    System,
    SystemOptions,
    heads_stopped,
)
from waitinfo.systems.mma.attention import LookbackAttention, MonotonicAttention


@dataclass(frozen=True)
class MMAOptions(SystemOptions):
    latency_weight: float = 0.1  # lambda of the expected lag: larger gives lower latency
    variance_weight: float = 0.0  # lambda of the variance of the heads' delays
    latency_after: int = 1000  # number of first updates without both losses

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("latency_weight", "variance_weight", "latency_after"):
            if not getattr(self, name) >= 0:
                raise WaitinfoError(f"system.{name} {getattr(self, name)}: must be 0 or more")


def expected_delays(alignment: Tensor) -> Tensor:
    """Expected number of source tokens read when a head stops: [B, H, T, S] -> [B, H, T]."""
    read = torch.arange(1, alignment.shape[-1] + 1, device=alignment.device)
    return (alignment * read).sum(-1)


def slowest_delays(delays: Tensor) -> Tensor:
    """A smooth maximum over heads, softmax(g) · g: [B, H, T] -> [B, T]."""
    return (delays.softmax(1) * delays).sum(1)


def expected_lags(delays: Tensor, batch: Batch) -> Tensor:
    """Lag of each token in differentiable average lagging, 0 at padding: [B, T] -> [B, T].

    With g'_i = max(g_i, g'_i-1 + n/m), the lag g'_i - (i - 1) n/m is the running maximum of
    g_l - (l - 1) n/m over l <= i.
    """
    rate = batch.source_lengths / batch.target_lengths
    written = torch.arange(delays.shape[1], device=delays.device)
    lags = (delays - written * rate[:, None]).cummax(-1).values
    return lags * (written < batch.target_lengths[:, None])


def delay_variance(delays: Tensor, batch: Batch) -> Tensor:
    """Variance of the heads' delays, averaged over real target positions: [B, H, T] -> [B]."""
    variance = delays.var(1, correction=0)
    written = torch.arange(variance.shape[1], device=variance.device)
    real = written < batch.target_lengths[:, None]
    return (variance * real).sum(-1) / batch.target_lengths


class MMA(System):
    name = "mma"
    summary = "heads move through the source; writes when all of them have stopped"
    dial = Dial(
        "threshold",
        0.5,
        minimum=0.0,
        whole=False,
        help="probability of stopping at which a head stops",
        maximum=1.0,
    )
    attentions = (LookbackAttention, MonotonicAttention)
    milestones = ("whole_source_updates", "latency_after")
    Options = MMAOptions
    options: MMAOptions

    def combine(
        self,
        model: Transformer,
        batch: Batch,
        source: Embedded,
        target: Embedded,
        decoded: Decoded,
        context: LossContext,
    ) -> Losses:
        """L = L_ce + lambda_avg DAL of the slowest heads + lambda_var variance of all heads."""
        losses = super().combine(model, batch, source, target, decoded, context)
        found = [report.alignment for report in decoded.extras if report is not None]
        alignments = [alignment for alignment in found if alignment is not None]
        if not alignments:  # a fixed threshold gives hard decisions, not expectations
            return losses
        active = context.update >= self.options.latency_after
        delays = torch.cat([expected_delays(alignment) for alignment in alignments], 1)
        lags = expected_lags(slowest_delays(delays), batch)
        total = losses.total
        if active and self.options.latency_weight:
            lag = (lags.sum(-1) / batch.target_lengths).sum()
            total = total + self.options.latency_weight * lag
        if active and self.options.variance_weight:
            variance = delay_variance(delays, batch).sum()
            total = total + self.options.variance_weight * variance
        return Losses(total, {**losses.parts, "lag": lags.detach().sum()})

    def ready(self, state: PolicyState) -> Tensor:
        return torch.ones_like(state.complete)

    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return heads_stopped(step)
