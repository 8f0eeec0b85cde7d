"""Score a model on a test set over its latency dial: one point per dial value."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import waitinfo
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.evaluation.latency import PROFILES, Lags, corpus_latency, degeneracy
from waitinfo.evaluation.output import Output, UnfinishedPoint, write_instances
from waitinfo.evaluation.points import FORMAT, Point, PointKey, set_name
from waitinfo.evaluation.quality import RESAMPLES, quality
from waitinfo.evaluation.timing import Timing, timed_latency
from waitinfo.evaluation.trace import Units, WordTrace, word_trace
from waitinfo.progress import Progress, Silent
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.streaming.engine import ENDINGS
from waitinfo.streaming.translator import Translator
from waitinfo.text.files import read_aligned, sha256_lines
from waitinfo.trained.folder import fingerprint
from waitinfo.trained.saving import LoadedModel, checksum
from waitinfo.translation.decoding import BeamDecoder


@dataclass(frozen=True)
class TestSet:
    """Sources and references, line by line."""

    __test__ = False  # not a test for pytest

    source: Path
    reference: Path
    sources: list[str]
    references: list[str]
    condition: str = ""  # how the sources were changed, or how they are translated

    @classmethod
    def read(cls, source: Path, reference: Path) -> TestSet:
        pairs = list(read_aligned(source, reference))
        if not pairs:
            raise WaitinfoError(f"{source}: contains no sentences")
        for number, pair in enumerate(pairs, 1):
            if not pair.target.strip():
                raise WaitinfoError(f"{reference}, line {number}: the reference is empty")
            if not pair.source.strip():
                raise WaitinfoError(f"{source}, line {number}: the sentence is empty")
        return cls(source, reference, [p.source for p in pairs], [p.target for p in pairs])

    @property
    def name(self) -> str:
        name = set_name(self.source.name)
        return f"{name}-{self.condition}" if self.condition else name

    @cached_property
    def units(self) -> Units:
        """What latency is counted in, in the `word` profile."""
        return Units.of(self.sources, self.references)

    def check_words(self, what: str) -> None:
        """Raise an error if something that is counted in words is asked for without spaces."""
        if self.units != Units():
            raise WaitinfoError(
                f"{what} is counted in words, and {self.name} is written without spaces"
            )

    @cached_property
    def facts(self) -> dict[str, Any]:
        return {
            "source": {"file": self.source.name, "sha256": sha256_lines(self.sources)},
            "reference": {"file": self.reference.name, "sha256": sha256_lines(self.references)},
            "sentences": len(self.sources),
        }


@dataclass(frozen=True)
class Decoding:
    """Settings for translating a test set."""

    k: float
    ending: str = "guard"
    beam: int = 1
    lag: float | None = None  # in words, if it was asked for instead of k

    def __post_init__(self) -> None:
        if self.ending not in ENDINGS:
            raise unknown("ending", self.ending, ENDINGS)


@dataclass(frozen=True)
class TrainingRun:
    """The training run that a model folder belongs to, as far as it is known."""

    name: str  # of the run folder; for a model outside of one, that of its own folder
    seed: int | None = None
    updates: int | None = None
    tokens: int | None = None  # of an update, on all processes

    @classmethod
    def of(cls, folder: Path) -> TrainingRun:
        folder = folder.resolve()
        for run in (folder, folder.parent):
            with contextlib.suppress(OSError, ValueError, KeyError):
                record = json.loads((run / "run.json").read_text("utf-8"))
                seed = record["resolved"]["training"]["seed"]
                return cls(run.name, seed, *cls._length(run, record))
        return cls(folder.name)

    @staticmethod
    def _length(run: Path, record: dict[str, Any]) -> tuple[int | None, int | None]:
        """Updates, and tokens of each."""
        try:
            training = record["resolved"]["training"]
            tokens = training["batch_tokens"] * training["accumulate"] * record["processes"]
            lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
            return max(json.loads(line)["update"] for line in lines), tokens
        except (OSError, ValueError, KeyError):
            return None, None


class Evaluation:
    """Evaluation of a model on a test set; work that all points share is done once."""

    def __init__(
        self, loaded: LoadedModel, test: TestSet, name: str | None = None, run: str | None = None
    ) -> None:
        self.loaded, self.test = loaded, test
        self.name = name or loaded.system.name
        self.training = TrainingRun.of(loaded.folder)
        self.run, self.seed = run or self.training.name, self.training.seed
        encode = loaded.vocabulary.source.encode
        self.tokenized = [encode(text) for text in test.sources]
        self.reference_tokens = [len(loaded.vocabulary.target.encode(t)) for t in test.references]

    @cached_property
    def model_facts(self) -> dict[str, Any]:
        return {
            "folder": self.loaded.folder.resolve().name,
            "sha256": fingerprint(self.loaded.folder),
            "parameters": self.loaded.model.parameter_count(),
            "updates": self.training.updates,
            "tokens_per_update": self.training.tokens,
        }

    def settings(self, decoding: Decoding) -> dict[str, Any]:
        """Everything that the translations of a point depend on."""
        system = self.loaded.system
        return {
            "system": system.name,
            "options": asdict(system.options),
            "k": decoding.k if system.dial else None,
            **({} if decoding.lag is None else {"lag": decoding.lag}),
            "ending": decoding.ending,
            "beam": decoding.beam,
            "dtype": str(self.loaded.model.source_embedding.weight.dtype).removeprefix("torch."),
            "model": self.model_facts["sha256"],
            **checksum(system.tensors),
            "source": self.test.facts["source"]["sha256"],
            "reference": self.test.facts["reference"]["sha256"],
        }

    def key(self, decoding: Decoding) -> PointKey:
        """The key that identifies a point. Points by lag form a curve of their own."""
        if decoding.lag is not None:
            return PointKey(f"{self.name}-lag", decoding.lag, self.run, self.seed, self.test.name)
        k = decoding.k if self.loaded.system.dial else None
        return PointKey(self.name, k, self.run, self.seed, self.test.name)

    def heading(self, decoding: Decoding) -> Point:
        """The first fields of a point: what it is."""
        key, system = self.key(decoding), self.loaded.system
        dial = system.dial.name if system.dial else None
        return {
            "format": FORMAT,
            "waitinfo": waitinfo.__version__,
            "name": key.name,
            "run": key.run,
            "seed": key.seed,
            "set": key.set,
            "system": system.name,
            "dial": dial if decoding.lag is None else "lag",
            "k": key.k,
        }

    # Translation

    def translate(
        self,
        decoding: Decoding,
        partial: UnfinishedPoint | None = None,
        progress: Progress | None = None,
    ) -> list[Hypothesis]:
        """Translate the test set, except the sentences that `partial` already has."""
        progress = progress or Silent()
        dial = self.loaded.system.dial
        title = f"{self.name} {dial.name} = {decoding.k:g}" if dial else self.name
        progress.stage(title, len(self.tokenized))
        found = dict(partial.found) if partial else {}
        if found:
            progress.note(f"{len(found):,} sentences are already translated")
        missing = [i for i in range(len(self.tokenized)) if i not in found]
        for number, hypothesis in self._results([self.tokenized[i] for i in missing], decoding):
            found[missing[number]] = hypothesis
            if partial:
                partial.add(missing[number], hypothesis)
            progress.advance(len(found))
        return [found[i] for i in range(len(self.tokenized))]

    def _results(
        self, sentences: Sequence[list[int]], decoding: Decoding
    ) -> Iterator[tuple[int, Hypothesis]]:
        if decoding.beam > 1:
            beams = BeamDecoder(self.loaded.model, decoding.beam, opening=self.loaded.opening)
            return beams.results(sentences)
        loaded = self.loaded
        decoder = Decoder(loaded.model, loaded.system, decoding.ending, opening=loaded.opening)
        return decoder.results(sentences, decoding.k)

    # Scoring

    def traces(self, found: Sequence[Hypothesis], as_streams: bool = False) -> list[WordTrace]:
        return [
            word_trace(self.loaded.vocabulary, source, hypothesis, self.test.units, as_streams)
            for source, hypothesis in zip(self.test.sources, found, strict=True)
        ]

    def token_lags(self, found: Sequence[Hypothesis]) -> list[Lags]:
        """End-of-sentence is counted on both sides."""
        return [
            Lags(h.path, h.source_length, length + 1)
            for h, length in zip(found, self.reference_tokens, strict=True)
        ]

    def word_lags(self, traces: Sequence[WordTrace]) -> list[Lags]:
        return [
            Lags(trace.delays, trace.source_words, self.test.units.reference_length(reference))
            for trace, reference in zip(traces, self.test.references, strict=True)
        ]

    def score(
        self,
        decoding: Decoding,
        found: Sequence[Hypothesis],
        traces: Sequence[WordTrace],
        resamples: int = RESAMPLES,
    ) -> Point:
        """All metrics of a point."""
        references = self.test.references
        tokens, words = self.token_lags(found), self.word_lags(traces)
        return {
            **self.heading(decoding),
            "units": asdict(self.test.units),
            "quality": quality([trace.text for trace in traces], references, resamples),
            "paper": corpus_latency(tokens, PROFILES["paper"]),
            "word": corpus_latency(words, PROFILES["word"]),
            "degeneracy": degeneracy(words),
            "early_stop": sum(h.stopped_early for h in found) / len(found),
            "cut_off": sum(h.looped or not h.ended for h in found) / len(found),
            "empty": sum(not trace.words for trace in traces),
            "length_ratio": sum(len(t.words) for t in traces)
            / sum(lags.reference for lags in words),
            "target_per_source": sum(len(h.path) for h in found) / sum(x.source for x in tokens),
            "info_ratio": info_ratio(found),
            "test": self.test.facts,
            "model": self.model_facts,
            "settings": self.settings(decoding),
        }

    def time(
        self, decoding: Decoding, timing: Timing, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Computation-aware latency of one live stream."""
        if decoding.beam > 1:
            raise WaitinfoError("--rate: streams translate greedily; remove --beam")
        progress = progress or Silent()
        chosen = timing.choose(len(self.test.sources))
        dial = self.loaded.system.dial
        at = f" {dial.name} = {decoding.k:g}" if dial else ""
        progress.stage(f"{self.name}{at}, timed", len(chosen))
        capacity = max(len(self.tokenized[i]) for i in chosen) + 2
        translator = Translator(self.loaded, streams=1, capacity=capacity, ending=decoding.ending)
        return timed_latency(
            translator,
            [self.test.sources[i] for i in chosen],
            [self.test.references[i] for i in chosen],
            decoding.k if self.loaded.system.dial else None,
            timing.rate,
            progress.advance,
        )


def info_ratio(found: Sequence[Hypothesis]) -> float | None:
    """Mean target info divided by mean source info: close to the source-target length ratio."""
    source = [info for h in found for info in h.source_info]
    target = [info for h in found for info in h.target_info]
    if not source or not target:
        return None
    return (sum(target) / len(target)) / (sum(source) / len(source))


def seconds_spent(began: float, translated: float) -> dict[str, float]:
    return {
        "translating": round(translated - began, 3),
        "scoring_and_logging": round(time.monotonic() - translated, 3),
    }


def evaluate_point(
    evaluation: Evaluation,
    decoding: Decoding,
    output: Output,
    timing: Timing | None = None,
    resamples: int = RESAMPLES,
    progress: Progress | None = None,
) -> Point:
    """Translate, score and write one point, or the missing parts of an existing one."""
    key = evaluation.key(decoding)
    point = output.begin(key, evaluation.settings(decoding))
    changed = False
    if point is None or (output.text and not output.has_text(key)):
        point = _translate_and_score(evaluation, decoding, output, point, resamples, progress)
        changed = True
    if timing and not timing.measured(point["timed"], len(evaluation.test.sources)):
        point["timed"] = evaluation.time(decoding, timing, progress)
        changed = True
    if changed:
        output.write(point)
    return point


def _translate_and_score(
    evaluation: Evaluation,
    decoding: Decoding,
    output: Output,
    old: Point | None,
    resamples: int,
    progress: Progress | None,
) -> Point:
    """Compute and write a point, with label, COMET and timing of an old one of equal settings."""
    key = evaluation.key(decoding)
    partial = UnfinishedPoint(output.folder, output.stem(key), evaluation.settings(decoding))
    try:
        began = time.monotonic()
        found = evaluation.translate(decoding, partial, progress)
        translated = time.monotonic()
        traces = evaluation.traces(found)
        point = evaluation.score(decoding, found, traces, resamples)
        output.clear(key)
        if output.text:
            test = evaluation.test
            write_instances(output.text_folder(key), test.sources, test.references, traces)
        point["seconds"] = seconds_spent(began, translated)
        point["timed"] = old["timed"] if old else None
        if old:
            kept = {k: v for k, v in old["quality"].items() if k.startswith("COMET")}
            point["quality"].update(kept)
            point.update({"label": old["label"]} if "label" in old else {})
        output.write(point)
        partial.remove()
    finally:
        partial.close()
    return point
