"""What is analysed: one or two systems on a test set, and their translations, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from waitinfo.analysis.forced_decoding import PairInfo, pair_infos
from waitinfo.analysis.summaries import Numbers, mean_of_known, titled
from waitinfo.analysis.tagger import Tagger
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import Decoding, Evaluation
from waitinfo.evaluation.latency import PROFILES, sentence_latency
from waitinfo.evaluation.output import UnfinishedPoint
from waitinfo.model import IntegerModel
from waitinfo.progress import Progress, Silent
from waitinfo.streaming.decoder import Hypothesis
from waitinfo.trained.saving import LoadedModel, load_model

UNEQUAL = 0.2  # latencies that differ by a larger share are not called equal


@dataclass(frozen=True)
class Translated:
    """The translations of a test set at one dial value."""

    k: float
    ending: str
    hypotheses: list[Hypothesis]
    texts: list[str]
    latencies: np.ndarray  # of each sentence, by the study's metric; NaN where undefined

    @property
    def latency(self) -> float:
        return mean_of_known(self.latencies)

    @property
    def early(self) -> np.ndarray:
        """[sentences] whether the translation ended before the whole source was read."""
        return np.array([h.stopped_early for h in self.hypotheses])


class Subject:
    """A model decoded by a system over its dial."""

    def __init__(
        self, name: str, evaluation: Evaluation, dials: Sequence[float], store: Path, x: str
    ) -> None:
        self.name, self.evaluation, self.dials = name, evaluation, list(dials)
        self.store, self.x = store, x
        self._found: dict[tuple[float, str], Translated] = {}

    @property
    def has_info(self) -> bool:
        return self.evaluation.loaded.model.source_info is not None

    @property
    def has_dial(self) -> bool:
        return self.evaluation.loaded.system.dial is not None

    def shown(self, k: float) -> float | None:
        """A dial value for readers: None if the system has no dial."""
        return k if self.has_dial else None

    def decoded(self, k: float, ending: str, progress: Progress) -> Translated:
        """Translate at a dial value, unless the store already has the translations."""
        if (k, ending) not in self._found:
            decoding = Decoding(k, ending)
            found = self._translate(decoding, progress)
            traces = self.evaluation.traces(found)
            texts = [t.text for t in traces]
            latencies = self._latencies(found, traces)
            self._found[k, ending] = Translated(k, ending, found, texts, latencies)
            lines = "".join(f"{text}\n" for text in texts)
            (self.store / f"{self._stem(decoding)}.txt").write_text(lines, "utf-8")
        return self._found[k, ending]

    def _stem(self, decoding: Decoding) -> str:
        return f"{titled(self.name, self.shown(decoding.k))}-{decoding.ending}".replace(" ", "-")

    def _translate(self, decoding: Decoding, progress: Progress) -> list[Hypothesis]:
        settings = self.evaluation.settings(decoding)
        partial = UnfinishedPoint(
            self.store, f"{self.name}-{decoding.k:g}-{decoding.ending}", settings
        )
        try:
            allowed = self._found.get((decoding.k, "allow"))
            if decoding.ending == "guard" and allowed:
                self._reuse(partial, allowed)
            return self.evaluation.translate(decoding, partial, progress)
        finally:
            partial.close()

    @staticmethod
    def _reuse(partial: UnfinishedPoint, allowed: Translated) -> None:
        """The guard changes only translations that end early; the others are the same with it."""
        for number, hypothesis in enumerate(allowed.hypotheses):
            if not hypothesis.stopped_early and number not in partial.found:
                partial.found[number] = hypothesis
                partial.add(number, hypothesis)

    def _latencies(self, found: Sequence[Hypothesis], traces: Sequence) -> np.ndarray:
        profile, _, metric = self.x.rpartition(".")
        paper = profile == "paper"
        lags = self.evaluation.token_lags(found) if paper else self.evaluation.word_lags(traces)
        values = [sentence_latency(each, PROFILES[profile])[metric] for each in lags]
        return np.array([np.nan if v is None else v for v in values], np.float64)


@dataclass
class Study:
    """A subject and those that it is compared with, on the same test set."""

    main: Subject
    others: Sequence[Subject] = ()
    x: str = "paper.AL"  # latency at which systems are compared
    taggers: dict[str, Tagger] = field(default_factory=dict)  # by side: source, target
    case: int | None = None  # number of the sentence of the case study
    lines: list[int] = field(default_factory=list)  # line numbers of the sentences in their file
    notes: list[str] = field(default_factory=list)  # what a reader should know
    progress: Progress = field(default_factory=Silent)

    @property
    def other(self) -> Subject | None:
        """The second system; significance compares with those after it, too."""
        return self.others[0] if self.others else None

    @property
    def subjects(self) -> list[Subject]:
        return [self.main, *self.others[:1]]

    @property
    def sources(self) -> list[str]:
        return self.main.evaluation.test.sources

    @property
    def references(self) -> list[str]:
        return self.main.evaluation.test.references

    @cached_property
    def reference_tokens(self) -> list[list[int]]:
        encode = self.main.evaluation.loaded.vocabulary.target.encode
        return [encode(text) for text in self.references]

    @cached_property
    def infos(self) -> list[PairInfo]:
        """Info of sources and references."""
        tokens = self.main.evaluation.tokenized
        loaded = self.main.evaluation.loaded
        return pair_infos(loaded, tokens, self.reference_tokens, self.progress)

    @cached_property
    def float_model(self) -> LoadedModel:
        """The main model, computed with floats: with integers, attention cannot be observed."""
        loaded = self.main.evaluation.loaded
        if not isinstance(loaded.model, IntegerModel):
            return loaded
        floats = load_model(loaded.folder, str(loaded.model.device), "float32")
        return floats.between(loaded.languages.source, loaded.languages.target)

    def line(self, index: int) -> int:
        """The line of a sentence in its file, from 1."""
        return self.lines[index] if self.lines else index + 1

    def middle(self) -> Translated:
        """The main subject at its own default dial, or at the middle one of those given."""
        system = self.main.evaluation.loaded.system
        default = system.trained_dial()
        dials = sorted(self.main.dials)
        k = default if default in dials else dials[len(dials) // 2]
        return self.main.decoded(k, "guard", self.progress)

    def require_latency(self, name: str, found: Translated) -> None:
        """Raise an error if the latency is undefined for every sentence."""
        if np.isnan(found.latency):
            raise WaitinfoError(
                f"{name}: {self.x} is undefined for every sentence at dial {found.k:g}; give "
                "other dial values (--k, --against-k)"
            )

    def matched(self) -> list[Translated]:
        """Both subjects at about the same latency: the main one at its middle dial."""
        first = self.middle()
        if self.other is None:
            return [first]
        found = [self.other.decoded(k, "guard", self.progress) for k in self.other.dials]
        second = min(found, key=lambda d: np.nan_to_num(abs(d.latency - first.latency), nan=np.inf))
        pair = [first, second]
        if abs(second.latency - first.latency) > UNEQUAL * abs(first.latency):
            names = (titled(s.name, s.shown(d.k)) for s, d in zip(self.subjects, pair, strict=True))
            lags = (f"{name} at {d.latency:.2f}" for name, d in zip(names, pair, strict=True))
            self._tell(f"compared at unequal {self.x}: {' and '.join(lags)}; --against-k has more")
        return pair

    def _tell(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def facts(self) -> Numbers:
        """What was analysed, for the report."""
        test = self.main.evaluation.test
        return {
            "test": test.facts,
            "latency": self.x,
            "subjects": [
                {
                    "name": s.name,
                    "system": s.evaluation.loaded.system.name,
                    "dials": [k for k in s.dials if s.has_dial],
                    "model": s.evaluation.model_facts,
                    "settings": s.evaluation.settings(Decoding(s.dials[0])),
                }
                for s in (self.main, *self.others)
            ],
        }


def check_comparable(main: Subject, other: Subject, x: str) -> None:
    """Latency in tokens can be compared only where the tokens are the same."""
    own, their = (s.evaluation.loaded.vocabulary for s in (main, other))
    same = own.source.model == their.source.model and own.target.model == their.target.model
    if x.startswith("paper.") and not same:
        raise WaitinfoError(
            f"--x {x}: counts tokens, and the two models have different vocabularies; "
            "compare them with --x word.LAAL"
        )
