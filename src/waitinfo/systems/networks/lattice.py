"""The lattice of READ and WRITE actions, and sums over all paths through it.

At point (i, j), i source tokens are read and j target tokens are written, 1 <= i <= n, 0 <= j < m.
A path starts at (1, 0), because one token is always read first. A READ leads to (i + 1, j), and a
WRITE to (i, j + 1). The path ends with the WRITE of the last token, at any i.

Tensors over the lattice are [B, S, T], with point (i, j) at index [b, i - 1, j].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

NEVER = -1e9  # log-probability of an impossible action; infinity times 0 would be NaN


def diagonal(n: Tensor, m: Tensor, written: Tensor) -> Tensor:
    """Source tokens on the diagonal after `written` = j target tokens: floor(j n / m)."""
    return torch.div(written * n, m, rounding_mode="floor")


def lattice_points(n: Tensor, m: Tensor, lead: float, band: int) -> Tensor:
    """Mask of points at most `band` from `lead` tokens ahead of the diagonal: [B, S, T].

    n, m [B]: lengths of source and target. Band 0 selects the whole lattice. The points of any band
    contain a path from the start to the end with the whole source read.
    """
    n, m = n[:, None], m[:, None]
    written = torch.arange(int(m.max()))
    read = torch.arange(1, int(n.max()) + 1)
    if band:
        centre = diagonal(n, m, written)
        first = torch.minimum(centre + math.floor(lead) - band, n).clamp_min(1)
        first[:, 0] = 1
        last = torch.minimum(centre + math.ceil(lead) + band, n).clamp_min(1)
        last = torch.where(written == m - 1, n, last)
        last[:, :-1] = torch.maximum(last[:, :-1], first[:, 1:])
    else:
        first, last = torch.ones_like(written).expand(len(n), -1), n.expand(-1, len(written))
    last = last.masked_fill(written >= m, 0)
    first, last, read = first[:, None].int(), last[:, None].int(), read[:, None].int()
    return (first <= read) & (read <= last)


def forward_scores(read: Tensor, write: Tensor) -> Tensor:
    """Log of the total weight of all paths to each point: alpha(i, j) [B, S, T + 1].

    read [B, S, T or T + 1], write [B, S, T]: log-weights of READ and WRITE at each point, NEVER
    where the action is impossible. alpha(1, 0) = 0, and

        exp alpha(i, j) = exp(alpha(i - 1, j) + read(i - 1, j))
                        + exp(alpha(i, j - 1) + write(i, j - 1))

    The result has no gradient.
    """
    with torch.no_grad():
        read = F.pad(read, (0, write.shape[2] + 1 - read.shape[2]), value=NEVER)
        batch, sources, targets = read.shape
        edges = _incoming(read, write, NEVER)
        alpha = read.new_full((len(edges), batch, sources + 1), NEVER)
        alpha[0, :, 1] = 0
        for before, edge, here in _diagonals(alpha, edges):
            torch.logaddexp(*edge.add_(before).unbind(1), out=here)
        return _by_point(alpha[..., 1:], targets)


def _visits(read: Tensor, write: Tensor, entering: Tensor) -> Tensor:
    """Expected number of paths through each point, [B, S, T], if entering(i, j) paths start there.

    read [B, S, T] and write [B, S, T - 1] are probabilities.
    """
    batch, sources, targets = read.shape
    edges = _incoming(read, write, 0)
    visits = read.new_zeros(len(edges), batch, sources + 1)
    _by_point(visits[..., 1:], targets).copy_(entering)
    for before, edge, here in _diagonals(visits, edges):
        here.addcmul_(before[:, 0], edge[:, 0]).addcmul_(before[:, 1], edge[:, 1])
    return _by_point(visits[..., 1:], targets)


# Points with the same i + j are independent of each other, so recursions run over anti-diagonals: a
# tensor [S + T - 1, …, S] stores the value of point (i, j), counted from 0, at [i + j, …, i].


def _by_point(diagonals: Tensor, targets: int) -> Tensor:
    """View anti-diagonals [S + T - 1, …, S] as points [..., S, T]."""
    step, *others, row = diagonals.stride()
    return diagonals.as_strided(
        (*diagonals.shape[1:], targets), (*others, row + step, step), diagonals.storage_offset()
    )


def _incoming(read: Tensor, write: Tensor, none: float) -> Tensor:
    """Weights of the READ and the WRITE that enter each point: [S + T - 1, B, 2, S].

    read [B, S, T] and write [B, S, T - 1] store them at the point that they leave.
    """
    batch, sources, targets = read.shape
    edges = read.new_full((sources + targets - 1, batch, 2, sources), none)
    by_point = _by_point(edges, targets)
    by_point[:, 0, 1:] = read[:, :-1]
    by_point[:, 1, :, 1:] = write
    return edges


def _diagonals(values: Tensor, edges: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Steps of a recursion: previous values [B, 2, S], incoming edges, and values to set [B, S].

    values [S + T - 1, B, S + 1] have an extra first row, because row 0 has no incoming READ.
    """
    before = values.unfold(-1, edges.shape[-1], 1)
    return zip(before[:-1].unbind(), edges[1:].unbind(), values[1:, :, 1:].unbind(), strict=True)


def _both_ways(read: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """Batch a lattice with its reverse, which runs from the last point to the first."""
    back = read.roll(1, 1).flip(1, 2), write.flip(1, 2)
    return torch.cat([read, back[0]]), torch.cat([write, back[1]])


def _to_corner(read: Tensor, write: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Extend every complete path to (S, T): READs [B, S, T + 1] and WRITEs [B, S, T].

    After the end of a target, READs up to the last row and then WRITEs have weight 1.
    """
    columns = torch.arange(write.shape[2] + 1, device=write.device)
    end = m[:, None, None]
    read = F.pad(read, (0, 1), value=NEVER).masked_fill_(columns == end, 0)
    write = write.clone()
    write[:, -1:].masked_fill_(columns[:-1] >= end, 0)
    return read, write


class _LogMarginal(torch.autograd.Function):
    """The gradient is the posterior of each action, computed by sums of paths from both ends."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, write: Tensor, m: Tensor) -> Tensor:
        reads, writes = _to_corner(read.double(), write.double(), m)
        if not any(ctx.needs_input_grad):
            return forward_scores(reads, writes)[:, -1, -1].to(read.dtype)
        alpha, beta = forward_scores(*_both_ways(reads, writes)).chunk(2)
        beta = beta.flip(1, 2)
        total = alpha[:, -1, -1]
        alpha = alpha[..., :-1] - total[:, None, None]
        by_read = (alpha[:, :-1] + read[:, :-1] + beta[:, 1:, :-1]).exp()
        by_write = (alpha + write + beta[..., 1:]).exp()
        ctx.save_for_backward(F.pad(by_read, (0, 0, 0, 1)).to(read.dtype), by_write.to(write.dtype))
        return total.to(read.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_read, by_write = ctx.saved_tensors
        gradient = gradients[0][:, None, None]
        return by_read * gradient, by_write * gradient, None


def log_marginal(read: Tensor, write: Tensor, m: Tensor) -> Tensor:
    """Log of the total weight of all complete paths, for targets of length m [B]: [B].

    Beyond the last token of a sentence, both READ and WRITE must be NEVER.
    """
    return _LogMarginal.apply(read, write, m)


class _ExpectedCost(torch.autograd.Function):
    """An action's gradient: visits of its point, its probability and the cost ahead, multiplied."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, write: Tensor, cost: Tensor) -> Tensor:
        reads, writes, costs = read.double().exp(), write.double().exp(), cost.double()
        start = torch.zeros_like(costs)
        start[:, 0, 0] = 1
        entering = torch.cat([start, costs.flip(1, 2)])
        visits, ahead = _visits(*_both_ways(reads, writes[..., :-1]), entering).chunk(2)
        ahead = ahead.flip(1, 2)  # expected cost from each point on, including its own
        if any(ctx.needs_input_grad):
            by_read = F.pad((visits * reads)[:, :-1] * ahead[:, 1:], (0, 0, 0, 1))
            by_write = F.pad((visits * writes)[..., :-1] * ahead[..., 1:], (0, 1))
            ctx.save_for_backward(*(x.to(read.dtype) for x in (by_read, by_write, visits)))
        return ahead[:, 0, 0].to(cost.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        gradient = gradients[0][:, None, None]
        return tuple(saved * gradient for saved in ctx.saved_tensors)


def expected_cost(read: Tensor, write: Tensor, cost: Tensor) -> Tensor:
    """Expected total cost of a policy's path: [B].

    read, write [B, S, T]: log-probabilities of the actions at each point; cost [B, S, T]: cost of
    visiting it.
    """
    return _ExpectedCost.apply(read, write, cost)
