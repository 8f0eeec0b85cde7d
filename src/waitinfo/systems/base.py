"""The interface of a system for simultaneous translation: its training loss and its policy.

Training: `loss` of a batch. Most systems only choose how much of the source each target position
may see (`path`); systems with their own loss override `loss`.

Policy: at every point of a translation, with some source tokens read and some target tokens
written, the system chooses READ or WRITE. It can decide before the next token is computed
(`ready`: wait-k, wait-info), or after (`accept`: by the probability of the token, or by attention
heads that need more source). A rejected token is computed again with more source. Once the source
is complete, every system writes. What a policy asks for beyond counts, it lists in `asks`.

All methods work on rows: each row is a stream with its own dial k and its own position.
"""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.config import PLAIN, ModelConfig, cross_attention_in
from waitinfo.systems.interface import ASKS, Dial, PolicyState, Step, ask, for_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.attention import CrossAttention
    from waitinfo.model.batch import Batch
    from waitinfo.model.transformer import Transformer
    from waitinfo.model.views import Decoded, Embedded
    from waitinfo.text.tokenizer import Vocabulary

INFO_TOTALS = ("mean", "source", "target")
INFO_NORMS = ("sentence", "batch")

DialValue = float | tuple[float, ...]
Side = Literal["source", "target"]


@dataclass(frozen=True)
class LossContext:
    """Inputs of a loss in addition to batch and model."""

    update: int
    draw: random.Random
    label_smoothing: float = 0.0
    k: float | None = None  # fixed dial, for validation; None: the system draws one
    dial: Tensor | None = None  # [] or [draws], already drawn for the batch; None: draw it now


@dataclass(frozen=True)
class Losses:
    """Sums over a batch; the trainer divides by the number of target tokens."""

    total: Tensor  # the loss to differentiate
    parts: dict[str, Tensor]  # detached, for display; always contains "nll"


@dataclass(frozen=True)
class SystemOptions:
    """Options of every system."""

    info_weight: float = 0.3  # lambda of the info-sum loss, if info is learned
    info_total: str = "mean"  # zeta: mean of both lengths, or the source or target length
    info_norm: str = "sentence"  # of the distance to zeta: of each sentence, or of the whole batch
    whole_source_updates: int = 0  # number of first updates with the whole source visible

    def __post_init__(self) -> None:
        if self.info_total not in INFO_TOTALS:
            raise unknown("system.info_total", self.info_total, INFO_TOTALS)
        if self.info_norm not in INFO_NORMS:
            raise unknown("system.info_norm", self.info_norm, INFO_NORMS)


class System(ABC):
    """A system for simultaneous translation."""

    name: ClassVar[str]
    summary: ClassVar[str]
    dial: ClassVar[Dial | None] = None
    # Model settings that the system needs; the cross-attention is added automatically.
    trains_bias: ClassVar[bool] = True  # whether its loss trains `model.output_bias`
    model_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Its cross-attentions, the default first: their names, and the module that defines them; or
    # the classes themselves.
    attentions: ClassVar[tuple[str | type[CrossAttention], ...]] = (PLAIN,)
    network: ClassVar[str] = ""
    simultaneous: ClassVar[bool] = True  # can write before the source is complete
    # Works with every plain model, also one whose encoder sees both directions: what was read is
    # then encoded again as it grows, and what was written is computed again from it.
    rereads: ClassVar[bool] = False
    # Names of options that hold update numbers. The loss may depend on the update only through
    # them: it changes at these updates and nowhere else.
    milestones: tuple[str, ...] = ("whole_source_updates",)
    plans_by_length: ClassVar[bool] = False  # the loss plans its work from the batch's lengths
    fresh_past: ClassVar[bool] = False  # written tokens are recomputed with the whole prefix read
    # What the policy asks for: source, target, source_words and target_words of `PolicyState`;
    # logits, states, attention and before of `Step`.
    asks: tuple[str, ...] = ()
    memory: ClassVar[tuple[float, ...]] = ()  # what a stream remembers, as each source begins
    Options: ClassVar[type[SystemOptions]] = SystemOptions
    vocabulary: Vocabulary | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for asked in cls.asks:
            if asked not in ASKS:
                raise unknown(f"entry in the asks of {cls.__name__}", asked, ASKS)
        if cls.network:
            for name in cls.attention_names():
                cross_attention_in(name, cls.network)
        attention = {"cross_attention": cls.attention_names()[0]}
        cls.model_defaults = MappingProxyType({**cls.model_defaults, **attention})

    @classmethod
    def attention_names(cls) -> list[str]:
        """Values of `model.cross_attention` that the system can use, the default first."""
        return [kind if isinstance(kind, str) else kind.name for kind in cls.attentions]

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = from_mapping(self.Options, options or {}, "system")

    def check_model(self, config: ModelConfig) -> None:
        """Raise an error if the system cannot use a model."""
        if self.simultaneous and not self.rereads:
            self._check_causal(config)
        allowed = self.attention_names()
        if config.cross_attention not in allowed:
            raise WaitinfoError(
                f"model.cross_attention {config.cross_attention}: {self.name} requires "
                + " or ".join(allowed)
            )
        special = config.cross_attention != PLAIN or self.fresh_past
        if special and not {"attention", "before"}.isdisjoint(self.asks):
            raise WaitinfoError(
                f"model.cross_attention {config.cross_attention}: {self.name} asks for attention "
                "or the step before, which only plain cross-attention gives"
            )

    def check_training(self, config: ModelConfig) -> None:
        """Raise an error if the system cannot train a model."""
        self.check_model(config)
        if config.output_bias and not self.trains_bias:
            raise WaitinfoError(f"model.output_bias true: {self.name} does not train one")
        if self.simultaneous:
            self._check_causal(config)

    def _check_causal(self, config: ModelConfig) -> None:
        if config.encoder != "causal":
            rereading = "full and systems that are only policies"
            raise WaitinfoError(
                f"model.encoder {config.encoder}: {self.name} reads word by word and requires a "
                f"causal encoder; only {rereading} can use another"
            )

    def computes_again(self, config: ModelConfig) -> bool:
        """Whether what was written is computed again with all that was read."""
        return self.fresh_past or (self.simultaneous and config.encoder != "causal")

    @property
    def decides_after(self) -> bool:
        """Whether a policy looks at the step, and not only at what was read and written."""
        methods = ("accept", "wait", "remember")
        return any(getattr(type(self), name) is not getattr(System, name) for name in methods)

    @property
    def waits(self) -> bool:
        """Whether a policy says how much to read after a refusal."""
        return type(self).wait is not System.wait

    def trained_dial(self) -> float:
        """The dial value that a model of this system was trained for."""
        return self.dial.default if self.dial else 1.0

    # Training

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        """The loss of a batch."""
        from waitinfo.systems.networks import losses

        return losses.loss(self, model, batch, context)

    def training_dial(self, batch: Batch, context: LossContext) -> DialValue | Tensor | None:
        """The fixed dial, or a drawn one; None while the whole source is visible."""
        if context.k is not None:
            return context.k
        if context.update < self.options.whole_source_updates:
            return None
        return self.draw_dial(batch, context) if context.dial is None else context.dial

    def dial_rows(
        self, batch: Batch, context: LossContext, k: float | Tensor | None
    ) -> Tensor | None:
        """[B] the dial of each sentence, for cross-attention that depends on it."""
        from waitinfo.systems.networks.losses import dial_column

        return None if k is None else dial_column(batch, k)

    def draw_dial(self, batch: Batch, context: LossContext) -> DialValue:
        """Draw the dial of a training batch, or several that its sentences share out."""
        return self.dial.default if self.dial else 1.0

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        """Source tokens read at each target position: [B, T]."""
        from waitinfo.systems.networks.losses import whole_source

        return whole_source(batch)

    @for_arrays
    def visible(self, read: Tensor, written: Tensor, k: Tensor, heads: int) -> Tensor:
        """Source tokens that attention sees, of those read; by default all of them.

        Training and streaming both use it. read [B, T]: tokens read when `written` [B, T] or [T]
        target tokens are written; k [B, 1]: the dial. Returns [B, T], or [B, H, T] per head.
        """
        return read

    def combine(
        self,
        model: Transformer,
        batch: Batch,
        source: Embedded,
        target: Embedded,
        decoded: Decoded,
        context: LossContext,
    ) -> Losses:
        """Cross-entropy, plus lambda times the info-sum loss if info is learned."""
        from waitinfo.systems.networks import losses

        return losses.combine(self, model, batch, source, target, decoded, context)

    # Policy

    def prepare(self, vocabulary: Vocabulary) -> None:
        """Called with the vocabulary of a model before the system translates with it."""
        self.vocabulary = vocabulary

    def adopt(self, tensors: Mapping[str, NDArray[Any]], config: ModelConfig) -> None:
        """Called with the policy's own weights, if the model folder has some, before `prepare`."""
        return

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """The policy's own weights, to be stored in a model folder."""
        return {}

    def words(self, side: Side, tokens: Sequence[Sequence[int]]) -> list[list[str]]:
        """The words of token lists, in the language of this side."""
        if self.vocabulary is None:
            raise WaitinfoError(
                f"{self.name} asks for words; call its prepare with a vocabulary first"
            )
        tokenizer = getattr(self.vocabulary, side)
        return [tokenizer.decode(some).split() for some in tokens]

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        """[B] whether to compute the next token from the source read so far."""
        return state.complete

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        """[B] whether to write the computed token; otherwise more source is read."""
        return state.complete | True

    @for_arrays
    def wait(self, state: PolicyState, step: Step) -> Tensor:
        """[B] source tokens to read before a token is computed again that was not accepted."""
        return state.read * 0 + 1

    @for_arrays
    def earlier(self, state: PolicyState) -> Tensor:
        """[B] source tokens that `Step.before` sees: fewer than were read."""
        return state.read - 1

    @for_arrays
    def remember(self, state: PolicyState, step: Step) -> Tensor:
        """[B, M] the memory once the computed tokens are written.

        It goes on when a window moves, and when an interrupted stream continues elsewhere.
        """
        return state.memory


def by_head(model: Any, system: System) -> bool:
    """Whether heads may see different prefixes of the source."""
    one = np.ones((1, 1))
    return ask(system.visible, one, one, one, model.config.heads).ndim == 3


def heads_stopped(step: Step) -> Tensor:
    """[B] whether every head of every layer has stopped within the source read so far."""
    found = [report.stopped for report in step.extras if report and report.stopped is not None]
    return reduce(and_, [stopped[:, :, -1].all(-1) for stopped in found])
