"""Loss weights by the model's confidence over prefixes, after CBSiMT (Liu et al., 2023).

Where word order differs, a prefix of the source does not say what the next target token is, and
learning that token teaches the model to make things up. Such tokens are recognised by the
probability that the model itself gives them, and count less. `prefix` takes that probability;
`relative` its ratio to the probability with the whole source visible, so that a word that is hard
in any case keeps its weight. Weights have no gradient, and their mean over a batch is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.model import loss
from waitinfo.model.batch import Batch
from waitinfo.model.likelihood import linear_log_probability
from waitinfo.model.transformer import Decoded, Transformer
from waitinfo.text.special import PAD

KINDS = ("none", "prefix", "relative")


@dataclass(frozen=True)
class Weights:
    """The weight of every target token, and the plain negative log-likelihood."""

    tokens: Tensor  # [B, T]
    nll: Tensor  # [] summed over real tokens, for display


@torch.no_grad()
def gold_log_probability(model: Transformer, decoded: Decoded, batch: Batch) -> Tensor:
    """Log-probability of every target token: [B, T] in float32 or better."""
    states = decoded.states.detach()
    matrix = model.target_embedding.weight
    size = max(1, loss.CHUNK_ELEMENTS // matrix.shape[0])
    flat, _ = linear_log_probability(states.flatten(0, 1), matrix, batch.target_out.flatten(), size)
    return flat.view(batch.target_out.shape)


@torch.no_grad()
def confidence_weights(
    confidence: Tensor, real: Tensor, token_power: float, sentence_power: float
) -> Tensor:
    """Weights from the log of the confidence [B, T] of real [B, T] tokens; their mean is 1.

    A token's weight is its confidence to the power of `token_power`, times the geometric mean of
    its sentence to the power of `sentence_power`.
    """
    known = confidence.masked_fill(~real, 0)
    mean = known.sum(-1, keepdim=True) / real.sum(-1, keepdim=True).clamp_min(1)
    weights = (token_power * known + sentence_power * mean).exp() * real
    return weights * (real.sum() / weights.sum())


def weigh(
    model: Transformer,
    batch: Batch,
    decoded: Decoded,
    whole: Decoded | None,
    token_power: float,
    sentence_power: float,
) -> Weights:
    """The weights of a batch; `whole` is the same with the whole source visible, if compared."""
    real = batch.target_out != PAD
    found = gold_log_probability(model, decoded, batch)
    confidence = found
    if whole is not None:
        confidence = (found - gold_log_probability(model, whole, batch)).clamp_max(0)
    nll = -found.masked_fill(~real, 0).sum()
    return Weights(confidence_weights(confidence, real, token_power, sentence_power), nll)
