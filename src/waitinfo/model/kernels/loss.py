"""Cross-entropy of a chunk of logits, whose gradient overwrites the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_BLOCK = 2048


@triton.jit
def _terms(
    LOGITS, TARGET, REAL, LOSS, NLL, width, smoothing, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    target, real = tl.load(TARGET + row), tl.load(REAL + row).to(tl.float32)
    logits = LOGITS + row * width
    gold = tl.load(logits + target).to(tl.float32)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        inside = start + column < width
        x = tl.load(logits + start + column, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        safe = tl.maximum(higher, -1e30)
        total = total * tl.exp(most - safe) + tl.exp(x - safe)
        plain += tl.where(inside, x, 0.0)
        most = higher
    highest = tl.max(most, 0)
    log_total = highest + tl.log(tl.sum(total * tl.exp(most - highest), 0))
    nll = log_total - gold
    uniform = log_total - tl.sum(plain, 0) / width
    tl.store(NLL + row, nll * real)
    tl.store(LOSS + row, ((1 - smoothing) * nll + smoothing * uniform) * real)
    for start in range(0, width, BLOCK):
        inside = start + column < width
        x = tl.load(logits + start + column, mask=inside, other=0.0).to(tl.float32)
        right = tl.where(start + column == target, 1 - smoothing, 0.0)
        gradient = (tl.exp(x - log_total) - right - smoothing / width) * real
        tl.store(logits + start + column, gradient, mask=inside)


def token_terms(
    logits: Tensor, target: Tensor, real: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Like `loss.token_terms`, but the gradient overwrites the logits."""
    loss, nll = logits.new_empty(2, len(logits), dtype=torch.float32).unbind()
    _terms[(len(logits),)](
        logits, target, real, loss, nll, logits.shape[1], smoothing,
        BLOCK=min(VOCABULARY_BLOCK, triton.next_power_of_2(logits.shape[1])), num_warps=8,
    )  # fmt: skip
    return loss.sum(), nll.sum(), logits
