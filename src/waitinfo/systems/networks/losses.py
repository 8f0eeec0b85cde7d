"""The loss of most systems, and what the others make theirs of."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from waitinfo.model.batch import Batch
from waitinfo.model.info import info_sum_loss
from waitinfo.model.loss import linear_cross_entropy
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import Decoded, Embedded
from waitinfo.systems.base import DialValue, LossContext, Losses, System
from waitinfo.text.special import PAD


def loss(system: System, model: Transformer, batch: Batch, context: LossContext) -> Losses:
    """The loss of a batch, whose targets see the source along the path of the system."""
    k = spread_dial(system.training_dial(batch, context), batch)
    source = model.embed_source(batch.source)
    target = model.embed_target(batch.target_in)
    encoded = model.encode(source, batch.source_lengths)
    source = replace(source, info=encoded.info)
    read, visible = _training_view(system, model, batch, source, target, k)
    # With a fixed dial, the model sees what it would see in a translation at that dial.
    streaming = context.k is not None
    dials = system.dial_rows(batch, context, k)
    decoded = model.decode(target, encoded, visible, dials, read, streaming)
    return system.combine(model, batch, source, target, decoded, context)


def _training_view(
    system: System,
    model: Transformer,
    batch: Batch,
    source: Embedded,
    target: Embedded,
    k: float | Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Source tokens read [B, T] and visible [B, T] or [B, H, T] at each target position."""
    if k is None:
        read = whole_source(batch)
        return read, read  # the same tensor, so that the decoder builds only one bias
    with torch.no_grad():
        read = system.path(batch, source.info, target.info, k)
    written = torch.arange(read.shape[-1], device=read.device)
    dial = dial_column(batch, k)[:, None]
    return read, system.visible(read, written, dial, model.config.heads)


def combine(
    system: System,
    model: Transformer,
    batch: Batch,
    source: Embedded,
    target: Embedded,
    decoded: Decoded,
    context: LossContext,
) -> Losses:
    """Cross-entropy, plus lambda times the info-sum loss if info is learned (Eq. 7)."""
    total, parts = cross_entropy(model, decoded, batch, context.label_smoothing)
    if model.config.info == "attention" and source.info is not None:
        assert target.info is not None
        options = system.options
        info_sum = info_sum_loss(
            source.info, target.info, *info_masks(batch), options.info_total, options.info_norm
        )
        total = total + options.info_weight * info_sum
        parts["info_sum"] = info_sum.detach()
    return Losses(total, parts)


def spread_dial(k: DialValue | Tensor | None, batch: Batch) -> float | Tensor | None:
    """One dial as it is; several as [B, 1], the sentences taking them in turn."""
    if isinstance(k, tuple):
        k = torch.tensor(k, device=batch.source.device)
    if not isinstance(k, Tensor) or k.dim() == 0:
        return k
    turn = torch.arange(batch.pairs, device=k.device) % len(k)
    return k[turn][:, None]


def dial_column(batch: Batch, k: float | Tensor) -> Tensor:
    """The dial of every sentence: [B] float32."""
    if isinstance(k, Tensor):
        return k.float().reshape(-1).expand(batch.pairs)
    return torch.full((batch.pairs,), float(k), device=batch.source.device)


def whole_source(batch: Batch) -> Tensor:
    """The path that reads the whole source first: [B, T]."""
    return batch.source_lengths[:, None].expand(batch.target_in.shape)


def info_masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Masks of real tokens in the source [B, S] and the decoder input [B, T], without specials."""
    source_columns = torch.arange(batch.source.shape[1], device=batch.source.device)
    target_columns = torch.arange(batch.target_in.shape[1], device=batch.source.device)
    source = source_columns < batch.source_lengths[:, None] - 1
    target = (target_columns > 0) & (target_columns < batch.target_lengths[:, None])
    return source, target


def cross_entropy(
    model: Transformer, decoded: Decoded, batch: Batch, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Label-smoothed cross-entropy summed over real tokens, and the plain one for display."""
    states, weight = decoded.states, model.target_embedding.weight
    if model.output_bias is not None:  # one more column, of an input that is always 1
        states = torch.cat([states, torch.ones_like(states[..., :1])], -1)
        weight = torch.cat([weight, model.output_bias[:, None]], -1)
    total, nll = linear_cross_entropy(
        states,
        weight,
        batch.target_out,
        batch.target_out != PAD,
        label_smoothing,
        model.token_terms,
    )
    return total, {"nll": nll}
