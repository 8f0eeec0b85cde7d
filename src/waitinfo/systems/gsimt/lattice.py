"""The lattice of READ and WRITE: which of its points count, and the sum over all paths through it.

A point (i, j) has i source tokens read and j target tokens written, 1 <= i <= n and 0 <= j < m. A
path starts at (1, 0), for nothing is written before something is read. A READ leads to (i + 1, j)
and a WRITE to (i, j + 1); the path ends with the WRITE of the last token, wherever that is.

Tensors over the lattice are [B, S, T]: index [b, i - 1, j].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

NEVER = -1e9  # log of no chance; infinity times 0 would be NaN


def diagonal(n: Tensor, m: Tensor, written: Tensor) -> Tensor:
    """Source tokens due once so many target tokens are written, at an even pace: floor(j n / m)."""
    return torch.div(written * n, m, rounding_mode="floor")


def lattice_points(n: Tensor, m: Tensor, lead: float, band: int) -> Tensor:
    """Points at most `band` away from reading `lead` tokens ahead of the diagonal: [B, S, T].

    n, m [B]: lengths of source and target. Band 0 is the whole lattice. However narrow the band,
    a path can start, can go on, and can end with the whole source read.
    """
    n, m = n[:, None], m[:, None]
    written = torch.arange(int(m.max()))
    read = torch.arange(1, int(n.max()) + 1)
    if band:
        due = diagonal(n, m, written)
        first = torch.minimum(due + math.floor(lead) - band, n).clamp_min(1)
        first[:, 0] = 1
        last = torch.minimum(due + math.ceil(lead) + band, n).clamp_min(1)
        last = torch.where(written == m - 1, n, last)
        last[:, :-1] = torch.maximum(last[:, :-1], first[:, 1:])
    else:
        first, last = torch.ones_like(written).expand(len(n), -1), n.expand(-1, len(written))
    last = last.masked_fill(written >= m, 0)
    first, last, read = first[:, None].int(), last[:, None].int(), read[:, None].int()
    return (first <= read) & (read <= last)


def forward_scores(read: Tensor, write: Tensor) -> Tensor:
    """Log of the summed weight of all paths to each point: alpha(i, j) [B, S, T + 1].

    read [B, S, T or T + 1], write [B, S, T]: log-weights of the READ and the WRITE at each point,
    NEVER where there is none. alpha(1, 0) = 0, and

        exp alpha(i, j) = exp(alpha(i - 1, j) + read(i - 1, j))
                        + exp(alpha(i, j - 1) + write(i, j - 1))

    No gradient flows through it.
    """
    with torch.no_grad():
        read = F.pad(read, (0, write.shape[2] + 1 - read.shape[2]), value=NEVER)
        batch, sources, targets = read.shape
        ways = _ways(read, write, NEVER)
        alpha = read.new_full((len(ways), batch, sources + 1), NEVER)
        alpha[0, :, 1] = 0
        for before, way, here in _diagonals(alpha, ways):
            torch.logaddexp(*way.add_(before).unbind(1), out=here)
        return _by_point(alpha[..., 1:], targets)


def _visits(read: Tensor, write: Tensor, entering: Tensor) -> Tensor:
    """How often paths come to each point, [B, S, T]: entering(i, j) of them begin there.

    read [B, S, T] and write [B, S, T - 1] are probabilities.
    """
    batch, sources, targets = read.shape
    ways = _ways(read, write, 0)
    visits = read.new_zeros(len(ways), batch, sources + 1)
    _by_point(visits[..., 1:], targets).copy_(entering)
    for before, way, here in _diagonals(visits, ways):
        here.addcmul_(before[:, 0], way[:, 0]).addcmul_(before[:, 1], way[:, 1])
    return _by_point(visits[..., 1:], targets)


# Points with the same i + j do not depend on each other, so recursions go by anti-diagonals: a
# tensor [S + T - 1, …, S] has at [i + j, …, i] what belongs to the point (i, j), counted from 0.


def _by_point(diagonals: Tensor, targets: int) -> Tensor:
    """A view of anti-diagonals [S + T - 1, …, S] as points [..., S, T]."""
    step, *others, row = diagonals.stride()
    return diagonals.as_strided(
        (*diagonals.shape[1:], targets), (*others, row + step, step), diagonals.storage_offset()
    )


def _ways(read: Tensor, write: Tensor, none: float) -> Tensor:
    """Weights of the READ and the WRITE that lead to each point: [S + T - 1, B, 2, S].

    read [B, S, T] and write [B, S, T - 1] have them where they start from.
    """
    batch, sources, targets = read.shape
    ways = read.new_full((sources + targets - 1, batch, 2, sources), none)
    by_point = _by_point(ways, targets)
    by_point[:, 0, 1:] = read[:, :-1]
    by_point[:, 1, :, 1:] = write
    return ways


def _diagonals(values: Tensor, ways: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Each step of a recursion: values where the ways begin [B, 2, S], ways, and values [B, S].

    values [S + T - 1, B, S + 1] have a place before the first row, whence no READ comes.
    """
    before = values.unfold(-1, ways.shape[-1], 1)
    return zip(before[:-1].unbind(), ways[1:].unbind(), values[1:, :, 1:].unbind(), strict=True)


def _both_ways(read: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """A lattice and, behind it in the batch, the same walked from its last point to its first."""
    back = read.roll(1, 1).flip(1, 2), write.flip(1, 2)
    return torch.cat([read, back[0]]), torch.cat([write, back[1]])


def _to_corner(read: Tensor, write: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """READs [B, S, T + 1] and WRITEs [B, S, T] by which every complete path goes on to (S, T).

    Where a target ends, READs are free up to the last row, and then WRITEs.
    """
    columns = torch.arange(write.shape[2] + 1, device=write.device)
    end = m[:, None, None]
    read = F.pad(read, (0, 1), value=NEVER).masked_fill_(columns == end, 0)
    write = write.clone()
    write[:, -1:].masked_fill_(columns[:-1] >= end, 0)
    return read, write


class _LogMarginal(torch.autograd.Function):
    """The gradient is the posterior of each action, for which paths are summed from both ends."""

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
    """Log of the summed weight of all complete paths, of targets of length m [B]: [B].

    Beyond its own last token a sentence has neither READ nor WRITE.
    """
    return _LogMarginal.apply(read, write, m)


class _ExpectedCost(torch.autograd.Function):
    """What an action adds: coming there, times its probability, times the cost still ahead."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, write: Tensor, cost: Tensor) -> Tensor:
        reads, writes, costs = read.double().exp(), write.double().exp(), cost.double()
        start = torch.zeros_like(costs)
        start[:, 0, 0] = 1
        entering = torch.cat([start, costs.flip(1, 2)])
        visits, ahead = _visits(*_both_ways(reads, writes[..., :-1]), entering).chunk(2)
        ahead = ahead.flip(1, 2)  # from each point on, its own cost included
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
    """What a policy pays on its way, on average: [B].

    read, write [B, S, T]: log-probabilities of the actions at each point; cost [B, S, T] of coming
    there.
    """
    return _ExpectedCost.apply(read, write, cost)
