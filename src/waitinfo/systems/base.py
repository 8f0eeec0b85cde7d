"""What a system of simultaneous translation is: how it trains, and when it writes.

Training: `loss` of a batch. Most systems only choose how much of the source each target position
may see (`path`); those with a loss of their own override `loss`.

Writing: at every point of a translation, with some source tokens read and some target tokens
written, the system answers READ or WRITE. It may answer before the next token is computed
(`ready`: wait-k, wait-info), or after having seen it (`accept`: a threshold on its probability, or
a head of the attention that wants to read on). A refused step costs nothing but itself: the
token is computed again with one more source token. Once the source is complete every system
writes.

All of it works on rows: each row is a stream with its own dial k and its own place.
"""

from __future__ import annotations

import math
import random
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.attention import Aside
from waitinfo.model.config import ModelConfig
from waitinfo.model.info import info_sum_loss
from waitinfo.model.loss import linear_cross_entropy
from waitinfo.model.transformer import Decoded, Embedded, Transformer
from waitinfo.text.batches import Batch
from waitinfo.text.tokenizer import PAD

LONGEST = 100_000.0  # tokens that anything can lag behind
INFO_TOTALS = ("mean", "source", "target")


@dataclass(frozen=True)
class Dial:
    """The latency dial of a system: what `--k` means for it."""

    name: str
    default: float
    minimum: float = 1.0
    maximum: float = LONGEST
    whole: bool = True  # only whole numbers make sense
    help: str = ""

    def check(self, value: float) -> float:
        fits = math.isfinite(value) and self.minimum <= value <= self.maximum
        if not fits or (self.whole and value != int(value)):
            kind = "whole number" if self.whole else "number"
            limits = f"from {self.minimum:g} to {self.maximum:g}"
            if self.maximum == LONGEST and not value > LONGEST:
                limits = f"of at least {self.minimum:g}"
            raise WaitinfoError(f"k = {value:g}: {self.name} must be a {kind} {limits}")
        return float(value)


@dataclass
class Standing:
    """Where each row stands: B streams between reading and writing."""

    k: Tensor  # [B] float64, the dial
    read: Tensor  # [B] source tokens read, end-of-sentence counted once it is read
    written: Tensor  # [B] target tokens written
    complete: Tensor  # [B] whether everything of the source has been read
    source_info: Tensor  # [B] float64, info of the tokens read
    target_info: Tensor  # [B] float64, info of the tokens written


@dataclass(frozen=True)
class Step:
    """A next token that has been computed but not yet written."""

    tokens: Tensor  # [B] the best token
    logits: Tensor  # [B, V]
    extras: list[Aside | None]  # by layer, from the cross-attention
    write: Tensor | None = None  # [B] log-odds of WRITE, in a model with a head for it


@dataclass(frozen=True)
class Moment:
    """The circumstances of a loss: which update it belongs to, and the draws made for it."""

    update: int
    draw: random.Random
    label_smoothing: float = 0.0
    k: float | None = None  # a fixed dial, for validation; else the system draws its own
    dial: Tensor | None = None  # a dial drawn already, as one number on the device


@dataclass(frozen=True)
class Losses:
    """Sums over a batch; the trainer divides by the number of target tokens."""

    total: Tensor  # what is differentiated
    parts: dict[str, Tensor]  # detached, for the display; "nll" is always among them


@dataclass(frozen=True)
class SystemOptions:
    """Options that every system has."""

    info_weight: float = 0.3  # lambda of the info-sum loss, where info is learned
    info_total: str = "mean"  # zeta: mean of both lengths, or the source's or target's
    whole_source_updates: int = 0  # first updates with the whole source visible

    def __post_init__(self) -> None:
        if self.info_total not in INFO_TOTALS:
            raise unknown("system.info_total", self.info_total, INFO_TOTALS)


class System(ABC):
    """One way of translating simultaneously."""

    name: ClassVar[str]
    summary: ClassVar[str]
    dial: ClassVar[Dial | None] = None
    model_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {}
    )  # what the system needs of the Transformer
    attentions: ClassVar[tuple[str, ...]] = ()  # cross-attentions that serve; else its default
    simultaneous: ClassVar[bool] = True  # writes before the source is complete
    stages: ClassVar[tuple[str, ...]] = ("whole_source_updates",)  # options that end a stage
    fixed_shapes: ClassVar[bool] = True  # batches of one shape are computed by the same kernels
    fresh_past: ClassVar[bool] = False  # what was written sees the whole prefix read since
    Options: ClassVar[type[SystemOptions]] = SystemOptions

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = from_mapping(self.Options, options or {}, "system")

    def check_model(self, config: ModelConfig) -> None:
        """Raise if a model cannot serve this system."""
        if self.simultaneous and config.encoder != "causal":
            raise WaitinfoError(
                f"model.encoder {config.encoder}: {self.name} reads word by word and needs a "
                "causal encoder; only full may use another"
            )
        serve = self.attentions or (self.model_defaults.get("cross_attention", "plain"),)
        if config.cross_attention not in serve:
            raise WaitinfoError(
                f"model.cross_attention {config.cross_attention}: {self.name} needs "
                + " or ".join(serve)
            )

    def trained_dial(self) -> float:
        """The dial value that a model of this system was trained for."""
        return self.dial.default if self.dial else 1.0

    # How it trains

    def loss(self, model: Transformer, batch: Batch, moment: Moment) -> Losses:
        """The loss of a batch."""
        k = self.training_dial(batch, moment)
        source = model.embed_source(batch.source)
        target = model.embed_target(batch.target_in)
        read, visible = self._training_view(model, batch, source, target, k)
        encoded = model.encode(source, batch.source_lengths)
        # A fixed dial asks for what a translation at that dial would see.
        streaming = moment.k is not None
        dials = self.dial_rows(batch, moment, k)
        decoded = model.decode(target, encoded, visible, dials, read, streaming)
        return self.combine(model, batch, source, target, decoded, moment)

    def training_dial(self, batch: Batch, moment: Moment) -> float | Tensor | None:
        """The fixed dial or a drawn one; None while the whole source is visible."""
        if moment.k is not None:
            return moment.k
        if moment.update < self.options.whole_source_updates:
            return None
        return self.draw_dial(batch, moment) if moment.dial is None else moment.dial

    def stage(self, update: int) -> tuple[bool, ...]:
        """What of the loss depends on how many updates there were: the same within a stage."""
        return tuple(update < getattr(self.options, name) for name in self.stages)

    def _training_view(
        self,
        model: Transformer,
        batch: Batch,
        source: Embedded,
        target: Embedded,
        k: float | Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """What is read at each target position, [B, T], and what is seen of it."""
        if k is None:
            return whole_source(batch), whole_source(batch)
        with torch.no_grad():
            read = self.path(batch, source.info, target.info, k)
        written = torch.arange(read.shape[-1], device=read.device)
        dial = dial_column(batch, k)[:, None]
        return read, self.visible(read, written, dial, model.config.heads)

    def dial_rows(self, batch: Batch, moment: Moment, k: float | Tensor | None) -> Tensor | None:
        """[B] the dial a batch is seen with, for cross-attention that depends on it."""
        return None if k is None else dial_column(batch, k)

    def draw_dial(self, batch: Batch, moment: Moment) -> float:
        """The dial a training batch is seen with."""
        return self.dial.default if self.dial else 1.0

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        """Source tokens read at each target position: [B, T]."""
        return whole_source(batch)

    def visible(self, read: Tensor, written: Tensor, k: Tensor, heads: int) -> Tensor:
        """Source tokens seen of those read, in training and streaming alike: all, unless by head.

        read [B, T] when `written` [B, T] or [T] target tokens are written, at dial k [B, 1].
        Returns [B, T], or [B, H, T] per head.
        """
        return read

    def combine(
        self,
        model: Transformer,
        batch: Batch,
        source: Embedded,
        target: Embedded,
        decoded: Decoded,
        moment: Moment,
    ) -> Losses:
        """Cross-entropy, and the info-sum loss where info is learned (L = L_ce + lambda L_sum)."""
        total, parts = cross_entropy(model, decoded, batch, moment.label_smoothing)
        if model.config.info == "attention" and source.info is not None:
            assert target.info is not None
            info_sum = info_sum_loss(
                source.info, target.info, *info_masks(batch), self.options.info_total
            )
            total = total + self.options.info_weight * info_sum
            parts["info_sum"] = info_sum.detach()
        return Losses(total, parts)

    # When it writes

    def ready(self, standing: Standing) -> Tensor:
        """[B] whether the next token may be computed with what has been read."""
        return standing.complete

    def accept(self, standing: Standing, step: Step) -> Tensor:
        """[B] whether a computed token may be written; else one more source token is read."""
        return torch.ones_like(standing.complete)


def heads_stopped(step: Step) -> Tensor:
    """[B] whether every head of every layer has found its place within what is read."""
    found = [aside.stopped for aside in step.extras if aside and aside.stopped is not None]
    return torch.stack([stopped[:, :, -1].all(-1) for stopped in found]).all(0)


def dial_column(batch: Batch, k: float | Tensor) -> Tensor:
    """A dial for every sentence: [B] float32."""
    if isinstance(k, Tensor):
        return k.float().expand(batch.pairs)
    return torch.full((batch.pairs,), float(k), device=batch.source.device)


def whole_source(batch: Batch) -> Tensor:
    """Everything visible everywhere: [B, T]."""
    return batch.source_lengths[:, None].expand(batch.target_in.shape)


def info_masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Real tokens of source [B, S] and decoder input [B, T], without special ones."""
    source_columns = torch.arange(batch.source.shape[1], device=batch.source.device)
    target_columns = torch.arange(batch.target_in.shape[1], device=batch.source.device)
    source = source_columns < batch.source_lengths[:, None] - 1
    target = (target_columns > 0) & (target_columns < batch.target_lengths[:, None])
    return source, target


def cross_entropy(
    model: Transformer, decoded: Decoded, batch: Batch, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Label-smoothed cross-entropy summed over real tokens, and the plain one for the display."""
    total, nll = linear_cross_entropy(
        decoded.states,
        model.target_embedding.weight,
        batch.target_out,
        batch.target_out != PAD,
        label_smoothing,
        model.token_terms,
    )
    return total, {"nll": nll}
