"""Monotonic multi-head attention (Ma et al. 2020): heads that move forward through the source.

At target position i, a head starts at its position for i - 1. At each source token j it stops with
probability p_ij or moves to the next token. In translation, it stops at the first token with p_ij
at or above a threshold, and the model writes when all heads of all layers have stopped within the
source read so far: the slowest head determines the latency. Training takes the expectation over all
such walks. Positions are counted from 0 here. A head that does not stop earlier stays on the last
visible token, so p of that token is set to 1.

`GaussianAttention`, of GMA, moves forward as well, by a predicted distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from waitinfo.model.attention import CrossAttention, merge_heads, split_heads
from waitinfo.model.batch import Batch
from waitinfo.model.views import AttentionReport, Decoded, Memory, SourceView
from waitinfo.systems.base import LossContext, Losses

if TYPE_CHECKING:
    from waitinfo.systems.mma import MMAOptions

THRESHOLD = 0.5  # smallest p at which a head stops, if no dial is given


class _ExpectedAlignment(torch.autograd.Function):
    """The recursion of `expected_alignment`, which stores only p and q."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        before = torch.zeros_like(p[:, :, 0])  # alpha_i-1; the walk starts on the first token
        before[..., 0] = 1
        arriving = torch.empty_like(p)
        passing = F.pad(1 - p[..., :-1], (1, 0))  # from j - 1 to j
        for i in range(p.shape[2]):
            arriving[:, :, i] = _scan(before, passing[:, :, i])
            before = p[:, :, i] * arriving[:, :, i]
        ctx.save_for_backward(p, arriving)
        return p * arriving

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        p, arriving = ctx.saved_tensors
        after = torch.zeros_like(p[:, :, 0])  # gradient of alpha_i through alpha_i+1
        result = torch.empty_like(p)
        passing = F.pad(1 - p[..., :-1], (0, 1)).flip(-1)  # the adjoint runs from the end
        for i in range(p.shape[2] - 1, -1, -1):
            stopping = gradients[0][:, :, i] + after
            after = _scan((p[:, :, i] * stopping).flip(-1), passing[:, :, i]).flip(-1)
            # p_ij stops the mass that arrives at j, so that it does not reach j + 1.
            result[:, :, i] = arriving[:, :, i] * (stopping - F.pad(after[..., 1:], (0, 1)))
        return result


def expected_alignment(p: Tensor) -> Tensor:
    """Probability of stopping at each token: p [B, H, T, S] -> alpha [B, H, T, S]; rows sum to 1.

    q_ij = (1 - p_i,j-1) q_i,j-1 + alpha_i-1,j and alpha_ij = p_ij q_ij, for a walk that starts on
    the first token. p must be 1 at the last token, which receives all remaining mass.
    """
    return _ExpectedAlignment.apply(p)


class _DecayedSum(torch.autograd.Function):
    """y_j = x_j + decay_j y_j+1 over the last dimension, computed from its end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor) -> Tensor:
        y = _scan(x.flip(-1), decay.flip(-1)).flip(-1)
        ctx.save_for_backward(decay, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        decay, y = ctx.saved_tensors
        # The adjoint is the same sum, computed from the beginning.
        adjoint = _scan(gradients[0], F.pad(decay[..., :-1], (1, 0)))
        return adjoint, adjoint * F.pad(y[..., 1:], (0, 1))


def _scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_j = x_j + decay_j y_j-1 in log2(S) steps, each of which doubles the reach."""
    reach = 1
    while reach < x.shape[-1]:
        x = x + decay * F.pad(x[..., :-reach], (reach, 0))
        decay = decay * F.pad(decay[..., :-reach], (reach, 0))
        reach *= 2
    return x


def lookback(alpha: Tensor, energies: Tensor) -> Tensor:
    """Infinite lookback: beta_ij = sum over k >= j of alpha_ik exp(u_ij) / sum_{l<=k} exp(u_il).

    alpha and energies u are [B, H, T, S]. With L_k the log of the sum up to k, the terms are
    exp(u_j - L_j) exp(L_j - L_k), where no exponent is above 0.
    """
    total = energies.logcumsumexp(-1)
    decay = F.pad((total[..., :-1] - total[..., 1:]).exp(), (0, 1))
    return (energies - total).exp() * _DecayedSum.apply(alpha, decay)


def walk(stops: Tensor, visible: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Position of each head, and whether it stopped there by itself: [B, H, T] each.

    stops [B, H, T, S]: tokens to stop at; visible [B, 1 or H, T]; before [B, H]: start positions.
    """
    columns = torch.arange(stops.shape[-1], device=stops.device)
    stops = stops & (columns < visible[..., None])
    # First stop at or after each token.
    following = torch.where(stops, columns, stops.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    last = (visible - 1).expand(stops.shape[:-1])
    at = torch.zeros_like(last[:, :, 0]) if before is None else before.long()
    positions, found = [], []
    for i in range(stops.shape[2]):
        stop = following[:, :, i].gather(-1, at[..., None])[..., 0]
        found.append(stop < stops.shape[-1])
        at = torch.minimum(stop, last[:, :, i])
        positions.append(at)
    return torch.stack(positions, -1), torch.stack(found, -1)


class MonotonicAttention(CrossAttention):
    """Hard monotonic attention: a head sees only the token it stops at."""

    name = "mma-hard"
    carries = True
    energy_bias_start: ClassVar[float] = -2.0  # p = 0.12: untrained heads rather read than stop

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.energy_bias = nn.Parameter(torch.full((heads,), self.energy_bias_start))
        # Can be replaced by fused kernels.
        self.align: Callable[[Tensor], Tensor] = expected_alignment
        self.look_back: Callable[[Tensor, Tensor], Tensor] = lookback

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport]:
        """[B, T, d] -> [B, T, d]."""
        queries = split_heads(self.queries(x), self.heads)
        energies = self._energies(queries, memory.keys)
        visible = view.visible if view.visible.dim() == 3 else view.visible[:, None]
        if view.streaming:
            threshold = energies.new_tensor(THRESHOLD) if view.k is None else view.k
            stops = energies.sigmoid() >= threshold.reshape(-1, 1, 1, 1)
            positions, found = walk(stops, visible, view.before)
            mixed = self._attend_at(queries, memory, view, positions)
            report = AttentionReport(positions.to(energies.dtype), found)
            return self.out(merge_heads(mixed)), report
        if self.training:
            # Noise makes the network learn energies far from 0, which give clear decisions.
            energies = energies + torch.randn_like(energies)
        alpha = self.align(stop_probability(energies, visible))
        weights = self._expected_weights(queries, memory, view, alpha).to(memory.values.dtype)
        if self.training:
            weights = F.dropout(weights, self.dropout)
        return self.out(merge_heads(weights @ memory.values)), AttentionReport(alignment=alpha)

    def _energies(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies of stopping, [B, H, T, S], in float32 or better for the recursions."""
        scores = _scores(queries, keys)
        return scores + self.energy_bias.to(scores.dtype)[:, None, None]

    def _attend_at(
        self, queries: Tensor, memory: Memory, view: SourceView, positions: Tensor
    ) -> Tensor:
        """Output of heads that stopped at positions [B, H, T]: [B, H, T, d/H]."""
        index = positions[..., None].expand(*positions.shape, memory.values.shape[-1])
        return memory.values.gather(2, index)

    def _expected_weights(
        self, queries: Tensor, memory: Memory, view: SourceView, alpha: Tensor
    ) -> Tensor:
        return alpha


class LookbackAttention(MonotonicAttention):
    """Monotonic attention with infinite lookback: a head sees all tokens up to where it stops.

    A second set of queries and keys gives the attention weights over these tokens.
    """

    name = "mma"
    key_vectors = 2

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.queries = nn.Linear(width, 2 * width)
        self.project = nn.Linear(width, 3 * width)

    def from_plain(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Both sets of queries and keys begin as those of plain attention."""
        doubled = dict(weights)
        for part in ("weight", "bias"):
            keys, values = weights[f"project.{part}"].chunk(2)
            doubled[f"queries.{part}"] = self._twice(weights[f"queries.{part}"])
            doubled[f"project.{part}"] = torch.cat([self._twice(keys), values])
        return doubled

    def _twice(self, rows: Tensor) -> Tensor:
        """The rows of each head twice: [d, …] -> [2 d, …]."""
        return rows.unflatten(0, (self.heads, -1)).repeat_interleave(2, 0).flatten(0, 1)

    def memory(self, states: Tensor) -> Memory:
        width = states.shape[-1]
        keys, values = self.project(states).split([2 * width, width], dim=-1)
        return Memory(split_heads(keys, self.heads), split_heads(values, self.heads))

    def _energies(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super()._energies(queries.chunk(2, -1)[0], keys.chunk(2, -1)[0])

    def _attend_at(
        self, queries: Tensor, memory: Memory, view: SourceView, positions: Tensor
    ) -> Tensor:
        columns = torch.arange(memory.keys.shape[2], device=positions.device)
        bias = view.bias.masked_fill(columns > positions[..., None], -torch.inf)
        soft_queries, soft_keys = queries.chunk(2, -1)[1], memory.keys.chunk(2, -1)[1]
        return self.attend(soft_queries, soft_keys, memory.values, bias, False, 0.0)

    def _expected_weights(
        self, queries: Tensor, memory: Memory, view: SourceView, alpha: Tensor
    ) -> Tensor:
        energies = _scores(queries.chunk(2, -1)[1], memory.keys.chunk(2, -1)[1])
        # alpha is 0 beyond the visible prefix, so only the finite part of the bias matters.
        return self.look_back(alpha, energies + view.bias.masked_fill(view.bias.isinf(), 0))


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """q k / sqrt(d), in float32 or better: [B, H, T, S]."""
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(keys.shape[-1])
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def stop_probability(energies: Tensor, visible: Tensor) -> Tensor:
    """p [B, H, T, S] from energies; 1 at the last visible token and 0 beyond it."""
    columns = torch.arange(energies.shape[-1], device=energies.device)
    last = visible[..., None] - 1
    p = energies.sigmoid()
    return torch.where(columns < last, p, (columns == last).to(p.dtype))


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


def with_latency(
    losses: Losses, options: MMAOptions, batch: Batch, decoded: Decoded, context: LossContext
) -> Losses:
    """With the lag of the slowest heads, and the variance of all, added as the options say."""
    found = [report.alignment for report in decoded.extras if report is not None]
    alignments = [alignment for alignment in found if alignment is not None]
    if not alignments:  # a fixed threshold gives hard decisions, not expectations
        return losses
    active = context.update >= options.latency_after
    delays = torch.cat([expected_delays(alignment) for alignment in alignments], 1)
    lags = expected_lags(slowest_delays(delays), batch)
    total = losses.total
    if active and options.latency_weight:
        lag = (lags.sum(-1) / batch.target_lengths).sum()
        total = total + options.latency_weight * lag
    if active and options.variance_weight:
        variance = delay_variance(delays, batch).sum()
        total = total + options.variance_weight * variance
    return Losses(total, {**losses.parts, "lag": lags.detach().sum()})


NEAREST = 0.9  # smallest position; the Gaussian of position 0 would have no width
FARTHEST_STEP = 1000.0
DELTA = 1.0  # if no dial is given


def log_prior(positions: Tensor, keys: int) -> Tensor:
    """-(j - p)^2 / (2 (p / 2)^2) for each token j: positions [..., T] -> [..., T, S].

    Multiplying weights by a prior and renormalising is adding its logarithm to the scores.
    """
    columns = torch.arange(keys, device=positions.device)
    return -2 * (columns / positions[..., None] - 1).square()


def needed_tokens(positions: Tensor, delta: Tensor) -> Tensor:
    """Source tokens that must have been read, ceil(p + delta): [B, H, T], [B] -> [B, H, T]."""
    return (positions + delta.reshape(-1, 1, 1)).ceil()


class GaussianAttention(CrossAttention):
    """Cross-attention around a predicted position."""

    name = "gma"
    carries = True

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.step_hidden = nn.Linear(width, width, bias=False)
        self.step_out = nn.Linear(width, 1, bias=False)

    def forward(
        self, x: Tensor, memory: Memory, view: SourceView
    ) -> tuple[Tensor, AttentionReport]:
        """[B, T, d] -> [B, T, d]."""
        projected = self.queries(x)
        reached = self._reached(projected, view)  # [B, 1, T]
        positions = reached.clamp_min(NEAREST)
        delta = positions.new_full((len(x),), DELTA) if view.k is None else view.k
        needed = needed_tokens(positions, delta)
        columns = torch.arange(memory.keys.shape[2], device=x.device)
        prior = log_prior(positions, len(columns))
        bias = (view.bias + prior).masked_fill(columns >= needed[..., None], -torch.inf)
        queries = split_heads(projected, self.heads)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(queries, memory.keys, memory.values, bias, False, dropout)
        visible = view.visible if view.visible.dim() == 3 else view.visible[:, None]
        shape = (-1, self.heads, -1)
        report = AttentionReport(reached.expand(shape), (needed <= visible).expand(shape))
        return self.out(merge_heads(mixed)), report

    def _reached(self, projected: Tensor, view: SourceView) -> Tensor:
        """p_i = p_i-1 + exp(v · tanh(W h_i)), before it is clamped: [B, T, d] -> [B, 1, T].

        h_i is the scaled query of the attention scores. Computed in float32 or better, because
        rounding errors accumulate in the positions.
        """
        hidden = self.step_hidden(projected / math.sqrt(projected.shape[-1] // self.heads)).tanh()
        exact = torch.promote_types(self.step_out.weight.dtype, torch.float32)
        size = (hidden.to(exact) * self.step_out.weight[0].to(exact)).sum(-1)
        steps = size.clamp_max(math.log(FARTHEST_STEP)).exp()  # [B, T]
        assert view.at is not None
        steps = steps.masked_fill(view.at == 0, 0)  # the first token stays at the start
        if view.before is not None:
            steps = torch.cat([view.before[:, :1].to(exact), steps], 1)
            return steps.cumsum(1)[:, None, 1:]
        return steps.cumsum(1)[:, None]
