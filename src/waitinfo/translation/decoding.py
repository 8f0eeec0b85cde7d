"""Sentences to candidates, batch by batch: the search that a system and its options need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from waitinfo.errors import WaitinfoError
from waitinfo.model.integers.conversion import IntegerTransformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.batches import Budget
from waitinfo.translation.beam import BeamSearch
from waitinfo.translation.greedy import GreedySearch
from waitinfo.translation.options import TranslationOptions
from waitinfo.translation.sampling import Sampler, sentence_keys
from waitinfo.translation.search import Candidate

Batch = tuple[list[int], list[list[Candidate]]]  # numbers of sentences, and their translations
Place = tuple[int, int]  # (line, part of the line)


class SentenceDecoder:
    """Translates tokenized sentences in batches, with one model or several together."""

    def __init__(
        self,
        loaded: LoadedModel,
        options: TranslationOptions,
        rows: int | None = None,
        others: Sequence[LoadedModel] = (),
    ) -> None:
        self.model, self.system, self.options = loaded.model, loaded.system, options
        self.others = [check_ensemble(loaded, other).model for other in others]
        self.k = options.dial(loaded.system)
        self.budget = Budget.for_model(loaded.model, rows).shared(1 + len(others))
        self.copies = options.best if options.samples else options.beam

    def decode(self, sentences: Sequence[list[int]], places: Sequence[Place]) -> Iterator[Batch]:
        """Yield translations as batches are completed."""
        if self.system.simultaneous or self._is_native:
            yield from self._by_engine(sentences)
            return
        todo = list(range(len(sentences)))
        while todo:
            lengths = [len(sentences[i]) for i in todo]
            done: set[int] = set()
            for some in self.budget.batches(lengths, self.copies):
                numbers = [todo[i] for i in some]
                try:
                    found = self._search(
                        [sentences[i] for i in numbers], [places[i] for i in numbers]
                    )
                except torch.OutOfMemoryError:
                    self._shrink(len(numbers))
                    break
                done.update(numbers)
                yield numbers, found
            todo = [i for i in todo if i not in done]

    def _search(
        self, sentences: Sequence[list[int]], places: Sequence[Place]
    ) -> list[list[Candidate]]:
        options = self.options
        if options.beam > 1:
            search = BeamSearch(
                self.model, sentences, options.beam, options.penalty, options.best, self.others
            )
            return search.run()
        choose = None
        if options.samples:
            keys = sentence_keys(options.seed, places, options.best).to(self.model.device)
            choose = Sampler(keys, options.temperature, options.top_k)
        return GreedySearch(
            self.model, sentences, self.copies, choose, options.scores, self.others
        ).run()

    def _shrink(self, rows: int) -> None:
        """Go on with batches of half the size when the device ran out of memory."""
        if rows == 1:
            raise WaitinfoError("out of memory on the device, even for a single sentence")
        torch.cuda.empty_cache()
        self.budget = self.budget.halved()

    @property
    def _is_native(self) -> bool:
        """Whether compiled code does what is asked: the engine's caches need no padding there."""
        options = self.options
        special = options.beam > 1 or options.samples or options.scores or self.others
        model = self.model
        native = model.native if isinstance(model, IntegerTransformer) else None
        return native is not None and not special

    def _by_engine(self, sentences: Sequence[list[int]]) -> Iterator[Batch]:
        """Translate as streams that get all their input at once."""
        decoder = Decoder(self.model, self.system, self.options.ending, self.budget.rows)
        results = decoder.results(sentences, self.k)
        while some := list(islice(results, self.budget.rows)):
            found = [[Candidate(h.tokens, 0.0, h.ended)] for _, h in some]
            yield [number for number, _ in some], found


def check_ensemble(first: LoadedModel, other: LoadedModel) -> LoadedModel:
    """Raise an error unless two models can write together; returns the second."""
    for loaded in (first, other):
        if loaded.system.simultaneous:
            raise WaitinfoError(
                f"{loaded.folder}: {loaded.system.name} reads word by word; only full-sentence "
                "models can translate together"
            )
    if first.vocabulary != other.vocabulary:
        raise WaitinfoError(
            f"{other.folder}: has another vocabulary than {first.folder}; models that translate "
            "together must share it"
        )
    return other
