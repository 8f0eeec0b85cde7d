"""Systems that are only policies: they decide for any model with plain cross-attention.

Such a model may have been trained by any system. Trained under the name of a policy, a model is one
of multipath: given the source read so far, it acts as the wait-k model of the current lag.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems.base import DialValue, LossContext, Losses, System, SystemOptions
from waitinfo.systems.interface import Dial, PolicyState, Step, for_arrays, largest, lookup
from waitinfo.systems.wait_k import Multipath
from waitinfo.text.tokenizer import SPACE, Tokenizer, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch
    from waitinfo.model.transformer import Transformer

MARKS = frozenset(".,;:!?…–—。，、；：！？।؟،؛")
MOST = 1 << 18  # token ids of the tables without a vocabulary


class Policy(System):
    """A system that decides by `ready` and `accept` and leaves training to multipath."""

    validation_lag: ClassVar[int] = 5
    rereads = True

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        common = {field.name: getattr(self.options, field.name) for field in fields(SystemOptions)}
        self.models = Multipath(common)

    def training_dial(self, batch: Batch, context: LossContext) -> DialValue | Tensor | None:
        return self.models.training_dial(batch, context)

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        """The loss of multipath; with a fixed dial, its loss at a lag of `validation_lag`.

        The path of a policy depends on the predicted tokens, so it is not known in training.
        """
        if context.k is not None:
            context = replace(context, k=self.validation_lag)
        return self.models.loss(model, batch, context)


class Confidence(Policy):
    """Write when the best next token is probable enough."""

    name = "confidence"
    summary = "writes when the best token is probable enough; any plain model"
    dial = Dial(
        "probability", 0.5, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of a token that is written",
    )  # fmt: skip
    asks = ("logits",)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.read > 0

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return step.probability >= state.k


class LocalAgreement(Policy):
    """Write what two successive prefixes of the source agree on (Liu et al., 2020).

    Prefixes grow by k tokens. A target token is written if the model predicts it both from the
    present prefix and from the one before, each after the same target tokens.
    """

    name = "local-agreement"
    summary = "writes what two successive prefixes of the source agree on; any plain model"
    dial = Dial("k", 3, help="source tokens from one prefix to the next")
    asks = ("before",)

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | ((state.read > state.k) & (state.read % state.k == 0))

    @for_arrays
    def earlier(self, state: PolicyState) -> Tensor:
        return state.read - state.k

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        return step.tokens == step.before


@dataclass(frozen=True)
class AlignAttOptions(SystemOptions):
    layer: int = 0  # of the decoder, from 1, whose attention decides; 0: the mean of all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer < 0:
            raise WaitinfoError(f"system.layer {self.layer}: must be 0 or more")


class AlignAtt(Policy):
    """Write while attention stays away from the newest source tokens (Papi et al., 2023).

    The next target token is aligned with the source token that cross-attention weighs most. If that
    is one of the last f tokens read, the token may need more of the source, and is not written yet.
    The mark that ends a prefix of a published model is none of them, however much looks at it.
    """

    name = "alignatt"
    summary = "writes while attention stays away from the last f source tokens; any plain model"
    dial = Dial("f", 4, help="newest source tokens that attention must stay away from")
    asks = ("attention",)
    Options = AlignAttOptions
    options: AlignAttOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if self.options.layer > config.decoder_layers:
            raise WaitinfoError(
                f"system.layer {self.options.layer}: the decoder has {config.decoder_layers} layers"
            )

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.read > state.k)

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        layer, weights = self.options.layer, step.attention  # [B, L, H, S]
        chosen = (weights[:, layer - 1] if layer else weights.mean(1)).mean(1)
        words = (chosen >= 0).cumsum(-1) <= state.read[:, None]
        return (chosen * words).argmax(-1) < state.read - state.k


class Punctuation(Policy):
    """Read up to a punctuation mark or k words, then write as far as was read.

    A chunk of the source ends with a punctuation mark, or after k words, which is known once the
    next word begins. After it, target tokens are written until there are as many as source tokens
    up to the end of the chunk. Until `prepare` is called, no token is punctuation and each is a
    word.
    """

    name = "punctuation"
    summary = "writes at punctuation, or after k words; any plain model"
    dial = Dial("k", 5, help="words after which it writes without punctuation")
    asks = ("source",)
    marks, starts = np.zeros(MOST, bool), np.ones(MOST, bool)  # [V] by token id

    def prepare(self, vocabulary: Vocabulary) -> None:
        super().prepare(vocabulary)
        source = vocabulary.source
        tokens = range(len(source))
        self.marks = np.array([is_mark(source, token) for token in tokens])
        self.starts = np.array([source.starts_word(token) for token in tokens])

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        return state.complete | (state.written < self.chunk_end(state))

    def chunk_end(self, state: PolicyState) -> Tensor:
        """[B] source tokens up to the end of the last chunk that is complete."""
        place = (state.source * 0 + 1).cumsum(-1)  # [B, S] 1, 2, …
        read = place <= state.read[:, None]
        last = largest(place * (lookup(self.marks, state.source) & read))
        begins = lookup(self.starts, state.source) & read & (place > last[:, None])
        before = begins.cumsum(-1) - 1  # words of the chunks after the last mark
        full = begins & (before > 0) & (before % state.k[:, None] == 0)
        end = largest(full * (place - 1))
        return end + (last - end) * (last > end)


def is_mark(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token is punctuation that ends a clause."""
    return bool(text := tokenizer.piece(token).removeprefix(SPACE)) and set(text) <= MARKS
