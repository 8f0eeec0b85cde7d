"""Sentences to candidates, batch by batch: how they are translated, and the search that needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model import IntegerModel, Network
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.streaming.engine import ENDINGS
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.systems import System, check_dial
from waitinfo.text.languages import Opening
from waitinfo.trained.saving import LoadedModel

if TYPE_CHECKING:
    from waitinfo.model.transformer import Transformer

# Rows of a batch by device. More rows than this make a step slower, not a token faster.
ROWS = {"cpu": 128, "cuda": 4096}
TOKENS = {"cpu": 8192, "cuda": 262_144}  # source tokens of a batch, padding counted
MEMORY_SHARE = 0.5  # of the free memory of a GPU; the rest is for activations and copies


class Candidate(NamedTuple):
    """One translation of a sentence."""

    tokens: list[int]  # without end-of-sentence
    logp: float  # of all tokens, including end-of-sentence
    ended: bool  # by end-of-sentence, not by the length limit

    @property
    def length(self) -> int:
        """Number of tokens, including end-of-sentence; at least 1."""
        return len(self.tokens) + self.ended


Batch = tuple[list[int], list[list[Candidate]]]  # numbers of sentences, and their translations
Place = tuple[int, int]  # (line, part of the line)


@dataclass(frozen=True)
class TranslationOptions:
    """Everything that a translation depends on, except the model, its system and its text."""

    k: float | None = None  # the dial; None: the system's own
    ending: str = "guard"
    segment: str = "auto"  # where the sentences of a line end, as in a stream
    capacity: int = 256  # source tokens of the longest sentence, including end-of-sentence
    beam: int = 1
    penalty: float = 1.0  # the score is log p / length^penalty
    best: int = 1  # translations of each line
    temperature: float = 0.0  # of sampling; 0: the most probable token
    top_k: int = 0  # tokens to sample from; 0: all
    seed: int = 1  # of sampling
    scores: bool = False

    def __post_init__(self) -> None:
        if self.ending not in ENDINGS:
            raise unknown("ending", self.ending, ENDINGS)
        for name, least in (("beam", 1), ("best", 1), ("top_k", 0), ("capacity", 2)):
            if getattr(self, name) < least:
                raise WaitinfoError(f"{name} {getattr(self, name)}: must be at least {least}")
        if not 0 <= self.temperature < math.inf:
            raise WaitinfoError(f"temperature {self.temperature:g}: must be 0 or more, and finite")
        if not math.isfinite(self.penalty):
            raise WaitinfoError(f"penalty {self.penalty:g}: must be finite")
        if not -(2**63) <= self.seed < 2**63:
            raise WaitinfoError(f"seed {self.seed}: must fit into 64 bits")
        Segmentation.parse(self.segment)
        self._check_search()

    def _check_search(self) -> None:
        if self.samples and self.beam > 1:
            raise WaitinfoError("sampling and beam search exclude each other; give one of them")
        if self.top_k and not self.samples:
            raise WaitinfoError(f"top_k {self.top_k}: needs a temperature above 0")
        if not self.samples and self.best > self.beam:
            raise WaitinfoError(
                f"best {self.best}: more translations than beams ({self.beam}); "
                "use a wider beam, or sampling"
            )

    @property
    def samples(self) -> bool:
        return self.temperature > 0

    def dial(self, system: System) -> float:
        """The dial value, checked; also check that the system can do what is asked."""
        if system.simultaneous:
            asked = {"beam": self.beam > 1, "sampling": self.samples, "scores": self.scores}
            for name in (name for name, wanted in asked.items() if wanted):
                raise WaitinfoError(
                    f"{name}: only full-sentence models offer it; this is {system.name}"
                )
        return check_dial(system, self.k)

    def settings(self, system: System) -> dict[str, Any]:
        """All options, with the dial that is used."""
        return asdict(self) | {"k": self.dial(system) if system.dial else None}


@dataclass(frozen=True)
class Budget:
    """The size of a batch: at most `rows` rows, and `tokens` source tokens with their padding."""

    rows: int
    tokens: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.tokens < 1:
            raise WaitinfoError(f"a batch of {self.rows} rows: must be at least 1")

    @classmethod
    def for_model(cls, model: Network, rows: int | None = None) -> Budget:
        """The budget of a model's device, with another number of rows if it is given."""
        kind = model.device.type if model.device.type in ROWS else "cpu"
        rows = ROWS[kind] if rows is None else rows
        tokens = max(TOKENS[kind], 32 * rows)
        if kind == "cuda":
            import torch

            from waitinfo.model.integers.in_torch import in_torch

            device: Any = model.device
            free, _ = torch.cuda.mem_get_info(device)
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            tokens = min(
                tokens, int(MEMORY_SHARE * (free + unused)) // bytes_per_token(in_torch(model))
            )
        return cls(rows, max(1, tokens))

    def halved(self) -> Budget:
        return Budget(max(1, self.rows // 2), max(1, self.tokens // 2))

    def shared(self, models: int) -> Budget:
        """The budget where several models keep their caches."""
        return Budget(self.rows, max(1, self.tokens // models))

    def batches(self, lengths: Sequence[int], copies: int = 1) -> Iterator[list[int]]:
        """Indices of sentences, longest first, in batches; every sentence takes `copies` rows."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        start = 0
        while start < len(order):
            # The first sentence is the longest; one more token is end-of-sentence.
            rows = min(self.rows, self.tokens // (lengths[order[start]] + 1)) // copies
            yield order[start : start + max(1, rows)]
            start += max(1, rows)


def bytes_per_token(model: Transformer) -> int:
    """Memory for one source token of a row: its keys and values, and those of its translation.

    A translation may be twice as long as its source, and growing caches are copied.
    """
    config = model.config
    size = model.dtype.itemsize
    return size * (2 * config.width * config.decoder_layers * (1 + 3) + 4 * config.ffn)


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
        self.opening = loaded.opening
        self.others = [check_ensemble(loaded, other).model for other in others]
        self.k = options.dial(loaded.system)
        self.budget = Budget.for_model(loaded.model, rows).shared(1 + len(others))
        self.copies = options.best if options.samples else options.beam

    def decode(self, sentences: Sequence[list[int]], places: Sequence[Place]) -> Iterator[Batch]:
        """Yield translations as batches are completed."""
        if self.system.simultaneous or self._greedy_integers:
            yield from self._by_engine(sentences)
            return
        import torch

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
        from waitinfo.translation.beam import BeamSearch
        from waitinfo.translation.search import GreedySearch, Sampler, sentence_keys

        options = self.options
        if options.beam > 1:
            search = BeamSearch(
                self.model, sentences, options.beam, options.penalty, options.best, self.others,
                self.opening,
            )  # fmt: skip
            return search.run()
        choose = None
        if options.samples:
            keys = sentence_keys(options.seed, places, options.best).to(str(self.model.device))
            choose = Sampler(keys, options.temperature, options.top_k)
        return GreedySearch(
            self.model, sentences, self.copies, choose, options.scores, self.others, self.opening
        ).run()

    def _shrink(self, rows: int) -> None:
        """Go on with batches of half the size when the device ran out of memory."""
        if rows == 1:
            raise WaitinfoError("out of memory on the device, even for a single sentence")
        import torch

        torch.cuda.empty_cache()
        self.budget = self.budget.halved()

    @property
    def _greedy_integers(self) -> bool:
        """Whether the engine does what is asked: with integers, it needs no padding."""
        options = self.options
        special = options.beam > 1 or options.samples or options.scores or self.others
        return isinstance(self.model, IntegerModel) and not special

    def _by_engine(self, sentences: Sequence[list[int]]) -> Iterator[Batch]:
        """Translate as streams that get all their input at once."""
        rows, ending = self.budget.rows, self.options.ending
        decoder = Decoder(self.model, self.system, ending, rows, self.opening)
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


class BeamDecoder:
    """Translates tokenized sentences with a beam. The score is log p / length^penalty."""

    def __init__(
        self,
        model: Network,
        beam: int,
        penalty: float = 1.0,
        rows: int | None = None,
        opening: Opening | None = None,
    ) -> None:
        if beam < 1:
            raise WaitinfoError(f"--beam {beam}: must be at least 1")
        self.model, self.beam, self.penalty, self.opening = model, beam, penalty, opening
        self.budget = Budget.for_model(model, rows)

    def decode(self, sentences: Sequence[list[int]]) -> list[Hypothesis]:
        """Translate token lists; results are in the order of the sentences."""
        found = dict(self.results(sentences))
        return [found[i] for i in range(len(sentences))]

    def results(self, sentences: Sequence[list[int]]) -> Iterator[tuple[int, Hypothesis]]:
        """Yield translations with the indices of their sentences, one batch at a time."""
        from waitinfo.translation.beam import BeamSearch

        for indices in self.budget.batches([len(s) for s in sentences], self.beam):
            some = [sentences[i] for i in indices]
            search = BeamSearch(self.model, some, self.beam, self.penalty, opening=self.opening)
            found = search.run()
            for index, source, candidates in zip(indices, some, found, strict=True):
                yield index, self._hypothesis(source, candidates[0])

    def _hypothesis(self, source: list[int], found: Candidate) -> Hypothesis:
        n = len(source) + 1
        model: Any = self.model
        with model.computing():
            found_info = model.embed_source(model.given(np.array([source]))).info
        info = [] if found_info is None else found_info[0].tolist()
        path = [n] * (len(found.tokens) + found.ended)
        return Hypothesis(found.tokens, path, n, info, [], found.ended)
