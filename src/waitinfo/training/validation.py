"""Validation: loss on the dev split, and BLEU of its translations at one latency.

A model that has hardly learned anything writes up to the length limit, which takes long and scores
nothing. So it translates only once its loss is well below that of guessing words by frequency.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.quality import bleu
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, System
from waitinfo.text.corpus import Corpus
from waitinfo.training.batches import sequential_batches

WORTH_TRANSLATING = 0.75  # of the entropy of single target tokens: the highest loss for BLEU


@dataclass(frozen=True)
class Validation:
    loss: float  # cross-entropy per token, without label smoothing
    bleu: float | None
    k: float


class Validator:
    """Validates a model on a corpus's dev split."""

    def __init__(self, corpus: Corpus, system: System, k: float, sentences: int) -> None:
        self.corpus, self.system, self.k = corpus, system, k
        self.pairs = corpus.dev_text()[:sentences]
        self.sources = [corpus.vocabulary.source.encode(pair.source) for pair in self.pairs]
        self.level = WORTH_TRANSLATING * token_entropy(corpus)
        self.missing: str | None = None  # why there is no BLEU

    def __call__(self, model: Transformer) -> Validation:
        model.eval()
        loss = self._loss(model)
        return Validation(loss, self._bleu(model) if loss <= self.level else None, self.k)

    @torch.inference_mode()
    def _loss(self, model: Transformer) -> float:
        total, tokens = 0.0, 0
        for batch in sequential_batches(self.corpus.dev, 8192):
            context = LossContext(update=0, draw=random.Random(0), k=self.k)
            losses = self.system.loss(model, batch.to(model.device), context)
            total += float(losses.parts["nll"])
            tokens += batch.tokens
        return total / tokens

    @property
    def translates(self) -> bool:
        """Whether BLEU is measured once the loss is low enough."""
        return bool(self.pairs) and not self.missing

    def _bleu(self, model: Transformer) -> float | None:
        if not self.translates:
            return None
        found = Decoder(model, self.system).decode(self.sources, self.k)
        texts = [self.corpus.vocabulary.target.decode(h.tokens) for h in found]
        try:
            return bleu(texts, [pair.target for pair in self.pairs])
        except WaitinfoError as error:
            self.missing = str(error)
            return None


def token_entropy(corpus: Corpus) -> float:
    """Entropy of the target's tokens in nats, end-of-sentence counted."""
    counts = np.append(corpus.token_counts("target"), len(corpus.train)).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
