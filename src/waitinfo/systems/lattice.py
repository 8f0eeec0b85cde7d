"""The lattice of READ and WRITE: which of its points count, and the sum over all paths through it.

A point (i, j) has i source tokens read and j target tokens written, 1 <= i <= n and 0 <= j < m. A
path starts at (1, 0), for nothing is written before something is read. A READ leads to (i + 1, j)
and a WRITE to (i, j + 1); the path ends with the WRITE of the last token, wherever that is.

Tensors over the lattice are [B, S, T]: index [b, i - 1, j].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = -1e9  # log of no chance; infinity would make gradients of logaddexp NaN


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
    first, last, real = first[:, None], last[:, None], (written < m)[:, None]
    read = read[:, None]
    return (first <= read) & (read <= last) & (read <= n[:, None]) & real


def forward_scores(read: Tensor, write: Tensor) -> Tensor:
    """Log of the summed weight of all paths to each point: alpha(i, j) [B, S, T + 1].

    read, write [B, S, T]: log-weights of the READ and the WRITE at each point, NEVER where there
    is none. alpha(1, 0) = 0, and

        exp alpha(i, j) = exp(alpha(i - 1, j) + read(i - 1, j))
                        + exp(alpha(i, j - 1) + write(i, j - 1))

    Points with the same i + j do not depend on each other, so each anti-diagonal is one step.
    """
    batch, sources, targets = read.shape
    reads, writes = _skew(read).unbind(-1), _skew(write).unbind(-1)
    alpha = F.pad(read.new_zeros(batch, 1), (0, sources - 1), value=NEVER)
    steps = [alpha]
    for reading, writing in zip(reads, writes, strict=True):
        by_read = F.pad((alpha + reading)[:, :-1], (1, 0), value=NEVER)
        alpha = torch.logaddexp(by_read, alpha + writing)
        steps.append(alpha)
    rows = torch.arange(sources, device=read.device)[:, None]
    at = rows + torch.arange(targets + 1, device=read.device)  # [S, T + 1]: the step of each point
    return torch.stack(steps, -1).gather(-1, at.expand(batch, -1, -1))


def _skew(x: Tensor) -> Tensor:
    """Row i moved i places to the right, so that columns are anti-diagonals: [B, S, S + T - 1]."""
    batch, sources, targets = x.shape
    width = targets + sources - 1
    padded = F.pad(x, (0, sources), value=NEVER).flatten(1)
    return padded[:, : sources * width].view(batch, sources, width)


def log_marginal(read: Tensor, write: Tensor, m: Tensor) -> Tensor:
    """Log of the summed weight of all complete paths, of targets of length m [B]: [B].

    Beyond its own last token a sentence has neither READ nor WRITE.
    """
    alpha = forward_scores(read, write)
    ends = m[:, None, None].expand(-1, alpha.shape[1], 1)
    return alpha.gather(-1, ends)[..., 0].logsumexp(-1)
