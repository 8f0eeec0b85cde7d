"""Validation: loss on the dev split, and BLEU of its translations at one latency.

A model that has hardly learned anything writes up to the length limit, which takes long and scores
nothing. So it translates only once its loss is well below that of guessing words by frequency.

A timed run gives a validation so many seconds. The first one finds out how much of the dev text
fits; all others use the same part, so that their scores can be compared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.quality import bleu
from waitinfo.model.batch import Batch
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, System
from waitinfo.text.corpus import Corpus
from waitinfo.training.batches import sequential_batches

FIRST_CHUNK = 25  # sentences translated before the time is looked at
WORTH_SCORING = 50  # sentences at least: BLEU of fewer says nothing
WORTH_TRANSLATING = 0.75  # of the entropy of single target tokens: the highest loss for BLEU


@dataclass(frozen=True)
class Validation:
    loss: float  # cross-entropy per token, without label smoothing
    bleu: float | None
    k: float


class Validator:
    """Validates a model on a corpus's dev split."""

    def __init__(
        self,
        corpus: Corpus,
        system: System,
        k: float,
        sentences: int,
        limit: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `sentences` are translated; `limit` is the seconds a validation may take."""
        self.corpus, self.system, self.k = corpus, system, k
        self.pairs = corpus.dev_text()[:sentences]
        self.sources = [corpus.vocabulary.source.encode(pair.source) for pair in self.pairs]
        self.level = WORTH_TRANSLATING * token_entropy(corpus)
        self.missing: str | None = None  # why there is no BLEU
        self.limit, self.now = limit, now
        self.batches: int | None = None  # for the loss, once known
        self.sentences: int | None = None  # for BLEU

    def __call__(self, model: Transformer) -> Validation:
        model.eval()
        loss = self._loss(model)
        return Validation(loss, self._bleu(model) if loss <= self.level else None, self.k)

    @torch.inference_mode()
    def _loss(self, model: Transformer) -> float:
        total, tokens = 0.0, 0
        for batch in self._timely_batches():
            context = LossContext(update=0, draw=random.Random(0), k=self.k)
            losses = self.system.loss(model, batch.to(model.device), context)
            total += float(losses.parts["nll"])
            tokens += batch.tokens
        return total / tokens

    def _timely_batches(self) -> Iterator[Batch]:
        """Of the dev text: at first as many as fit half the limit, then the same ones again."""
        began, count = self.now(), 0
        budget = 8192 if self.limit is None else 1024
        for batch in islice(sequential_batches(self.corpus.dev, budget), self.batches):
            yield batch
            count += 1
            if self.batches is None and self._too_late(began):
                break
        self.batches = count

    def _too_late(self, began: float) -> bool:
        return self.limit is not None and self.now() - began > self.limit / 2

    @property
    def translates(self) -> bool:
        """Whether BLEU is measured once the loss is low enough."""
        return bool(self.pairs) and not self.missing

    def _bleu(self, model: Transformer) -> float | None:
        if not self.translates:
            return None
        texts = self._translations(Decoder(model, self.system))
        self.sentences = len(texts)
        if self.sentences < min(WORTH_SCORING, len(self.pairs)):
            self.missing = "translating takes too long for a run of this length"
            return None
        try:
            return bleu(texts, [pair.target for pair in self.pairs[: self.sentences]])
        except WaitinfoError as error:
            self.missing = str(error)
            return None

    def _translations(self, decoder: Decoder) -> list[str]:
        """At first of as many sentences as fit half the limit, then of the same ones again."""
        sources = self.sources[: self.sentences]
        whole = self.limit is None or self.sentences is not None
        texts: list[str] = []
        began = self.now()
        size = len(sources) if whole else FIRST_CHUNK
        while len(texts) < len(sources) and not (texts and self._too_late(began)):
            found = decoder.decode(sources[len(texts) : len(texts) + size], self.k)
            texts += [self.corpus.vocabulary.target.decode(h.tokens) for h in found]
        return texts


def token_entropy(corpus: Corpus) -> float:
    """Entropy of the target's tokens in nats, end-of-sentence counted."""
    counts = np.append(corpus.token_counts("target"), len(corpus.train)).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
