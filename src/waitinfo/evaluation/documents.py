"""Scoring long streams: a whole document is one stream, as a speaker would be.

What the stream writes is realigned to the reference sentences. Each sentence then has its words,
their delays counted from its own first source word, and a score: quality by sacrebleu, latency as
LongYAAL and StreamLAAL. docs/metrics.md has the definitions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, seconds_spent
from waitinfo.evaluation.latency import (
    METRICS,
    Lags,
    average_lagging,
    degeneracy,
    length_adaptive_average_lagging,
    mean_scores,
    yet_another_average_lagging,
)
from waitinfo.evaluation.output import Output, write_documents, write_instances
from waitinfo.evaluation.points import Point
from waitinfo.evaluation.quality import RESAMPLES, bleu, quality
from waitinfo.evaluation.realign import METHODS, realign
from waitinfo.evaluation.trace import WordTrace
from waitinfo.progress import Progress, Silent
from waitinfo.streaming.event import Event, Observer, RoundStats
from waitinfo.streaming.lag import ENDS, GAIN, WordCount
from waitinfo.streaming.segmenter import Segmentation, ends_sentence
from waitinfo.streaming.translator import Translator
from waitinfo.text.files import normalise, read_lines, sha256_lines
from waitinfo.text.speech import Speaker, style_of
from waitinfo.trained.saving import LoadedModel

AUTO = "auto"
STREAMS = {"cpu": 64, "cuda": 512}  # documents translated at a time
PUSHED = 2000  # words of each that are pushed at a time; the translation does not depend on it
LONG = ("LongYAAL", "LongLAAL", "LongAL", "StreamLAAL")


@dataclass(frozen=True)
class Documents:
    """The documents of a test set, as ranges of sentences that follow each other."""

    ranges: tuple[range, ...]

    @classmethod
    def parse(cls, text: str, sentences: int) -> Documents:
        """`all`: one document; a number: blocks of that many lines; else a file.

        The file names the document of every sentence, one a line.
        """
        if text == "all":
            return cls((range(sentences),))
        if text.isdecimal() and int(text):
            size = int(text)
            starts = range(0, sentences, size)
            return cls(tuple(range(start, min(start + size, sentences)) for start in starts))
        if _is_number(text) and not Path(text).exists():
            raise WaitinfoError(f"--documents {text}: use a whole number of lines, 1 or more")
        names = [line.partition(",segid=")[0] for line in read_lines(Path(text))]
        if len(names) != sentences:
            raise WaitinfoError(
                f"--documents {text}: has {len(names)} lines, but the test set has {sentences}; "
                "each line names the document of a sentence"
            )
        numbers = (list(group) for _, group in groupby(range(sentences), lambda i: names[i]))
        return cls(tuple(range(group[0], group[-1] + 1) for group in numbers))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class ShownWords:
    """The words that a stream shows, and how many source words had come when each was shown.

    A full window moves on, or a sentence that fills the whole capacity is ended, when a word comes
    that does not fit. It is read later, but it has come.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self.delays: list[int] = []
        self._count = WordCount()
        self._waiting = 0  # words that have come and are not read
        self._ended: int | None = None  # words shown when the source ended, until it goes on
        self._last = ""  # source word

    def take(self, event: Event) -> None:
        count = self._count
        if event.kind == "READ" and event.token == ENDS:
            self._ended = len(self.words)
        elif event.kind == "READ":
            if self._ended is not None and not ends_sentence(self._last):
                self._delay()
            count.read(event)
            self._waiting, self._ended = 0, None
            self._last = event.word or self._last
        elif event.kind == "MOVE":
            if self._ended is not None:
                self._delay()
            self._waiting = int(event.written > 0 and not count.inside)
            self._ended = None
        elif event.word:
            shown = event.word.split()
            self.words += shown
            self.delays += [count.words + self._waiting] * len(shown)

    def _delay(self) -> None:
        """The source ended because a word came that did not fit."""
        late = self.delays[self._ended :]
        self.delays[self._ended :] = [delay + (not self._count.inside) for delay in late]


def document_trace(events: Iterable[Event], source_words: int) -> WordTrace:
    """The words of a stream, and the source words that had come when each was shown."""
    shown = ShownWords()
    for event in events:
        shown.take(event)
    return WordTrace(shown.words, shown.delays, source_words, " ".join(shown.words))


def repeated(words: Sequence[str]) -> tuple[int, int]:
    """Number of 4-grams that were written before, and of all."""
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(grams) - len(set(grams)), len(grams)


class _Reading(Observer):
    """Shows how many source tokens all streams have read."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.tokens = progress, 0

    def round(self, stats: RoundStats) -> None:
        self.tokens += stats.read
        self.progress.advance(self.tokens)


class DocumentEvaluation(Evaluation):
    """Evaluation of a model on documents, each translated as one stream."""

    def __init__(
        self,
        loaded: LoadedModel,
        test: TestSet,
        documents: Documents,
        name: str | None = None,
        run: str | None = None,
        segment: str = AUTO,
    ) -> None:
        if Segmentation.parse(segment).mode == "pause":
            raise WaitinfoError("--segment pause: the words of a file come without pauses")
        condition = "-".join(filter(None, ("documents", test.condition)))
        super().__init__(loaded, replace(test, condition=condition), name, run)
        test.check_words("--documents: latency")
        self.documents, self.segment = documents, segment
        self.lines = [normalise(source) for source in test.sources]
        self.words = [len(line.split()) for line in self.lines]

    def settings(self, decoding: Decoding) -> dict[str, Any]:
        starts = (str(members.start) for members in self.documents.ranges)
        found = {**super().settings(decoding), "documents": sha256_lines(starts)}
        found["window"] = Segmentation.parse(self.segment).window
        if self.segment != AUTO:
            found["segment"] = self.segment
        if decoding.lag is not None:
            found["gain"] = GAIN
        return found

    # Translation

    def streams(self, decoding: Decoding, progress: Progress | None = None) -> list[WordTrace]:
        """What the stream of each document writes."""
        if decoding.ending != "guard" or decoding.beam > 1:
            raise WaitinfoError("--documents: streams are greedy; leave out --ending and --beam")
        progress = progress or Silent()
        tokens = sum(len(sentence) + 1 for sentence in self.tokenized)
        progress.stage(f"{self.test.name} {self.key(decoding).stem}", tokens)
        texts = [" ".join(self.lines[i] for i in each).split() for each in self.documents.ranges]
        groups = self._groups([len(text) for text in texts])
        reading = _Reading(progress)
        translator = Translator(self.loaded, max(map(len, groups)), observer=reading)
        found: dict[int, WordTrace] = {}
        for group in groups:
            traces = self._together(translator, [texts[number] for number in group], decoding)
            found |= zip(group, traces, strict=True)
        return [found[number] for number in range(len(texts))]

    def _groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Documents that are translated together: of similar length, in groups of equal size."""
        most = STREAMS.get(self.loaded.model.device.type, STREAMS["cpu"])
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        size = -(-len(order) // -(-len(order) // most))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _together(
        self, translator: Translator, texts: Sequence[list[str]], decoding: Decoding
    ) -> list[WordTrace]:
        k = None if decoding.lag is not None or not self.loaded.system.dial else decoding.k
        streams = [
            translator.stream(k, history=0, lag=decoding.lag, segment=self.segment) for _ in texts
        ]
        events: dict[Any, list[Event]] = {stream: [] for stream in streams}
        for place in range(0, max(map(len, texts)), PUSHED):
            chunks = {
                stream: " ".join(text[place : place + PUSHED])
                for stream, text in zip(streams, texts, strict=True)
                if place < len(text)
            }
            for stream, new in translator.push_many(chunks).items():
                events[stream] += new
        for stream, new in translator.finish_many(streams).items():
            events[stream] += new
        for stream in streams:
            stream.close()
        return [
            document_trace(events[stream], len(text))
            for stream, text in zip(streams, texts, strict=True)
        ]

    # Scoring

    def sentences(self, outputs: Sequence[WordTrace], method: str) -> list[WordTrace]:
        """The words of every sentence, with delays from its first source word on."""
        found: list[WordTrace] = []
        for trace, members in zip(outputs, self.documents.ranges, strict=True):
            references = [self.test.references[i].split() for i in members]
            offset = 0
            for i, place in zip(members, realign(trace.words, references, method), strict=True):
                delays = [trace.delays[j] - offset for j in place]
                words = [trace.words[j] for j in place]
                found.append(WordTrace(words, delays, self.words[i], " ".join(words)))
                offset += self.words[i]
        return found

    def _ends(self) -> list[int]:
        """By sentence: source words from its beginning to the end of its document."""
        found: list[int] = []
        for members in self.documents.ranges:
            behind = accumulate(self.words[i] for i in reversed(members))
            found += reversed(list(behind))
        return found

    def lags(self, sentences: Sequence[WordTrace]) -> list[Lags]:
        return [
            Lags(trace.delays, trace.source_words, len(reference.split()))
            for trace, reference in zip(sentences, self.test.references, strict=True)
        ]

    def long_latency(self, soft: Sequence[Lags], mwer: Sequence[Lags]) -> dict[str, float | None]:
        """Latency metrics of long streams, in words; means over the sentences with words."""
        rows: list[dict[str, float | None]] = []
        for lags, other, end in zip(soft, mwer, self._ends(), strict=True):
            row: dict[str, float | None] = dict.fromkeys(LONG)
            if lags.delays:
                given = (lags.delays, lags.source, lags.reference)
                row["LongYAAL"] = yet_another_average_lagging(*given, end)
                row["LongLAAL"] = length_adaptive_average_lagging(*given)
                row["LongAL"] = average_lagging(*given)
            if other.delays:
                row["StreamLAAL"] = length_adaptive_average_lagging(
                    other.delays, other.source, other.reference
                )
            rows.append(row)
        return mean_scores(rows, LONG)

    def score_documents(
        self, decoding: Decoding, outputs: Sequence[WordTrace], resamples: int = RESAMPLES
    ) -> tuple[Point, list[WordTrace]]:
        """The point, and the realigned sentences that it scores."""
        found = {method: self.sentences(outputs, method) for method in METHODS}
        soft = found["soft"]
        lags, references = self.lags(soft), self.test.references
        latency = self.long_latency(lags, self.lags(found["mwer"]))
        texts = [trace.text for trace in soft]
        counts = [repeated(trace.words) for trace in outputs]
        written = sum(len(trace.words) for trace in outputs)
        by_edits = bleu([trace.text for trace in found["mwer"]], references)
        point = {
            **self.heading(decoding),
            "quality": quality(texts, references, resamples),
            "paper": dict.fromkeys(METRICS),
            "word": {
                **dict.fromkeys(METRICS),
                "AL": latency["LongAL"],
                "LAAL": latency["LongLAAL"],
                "YAAL": latency["LongYAAL"],
            },
            "documents": {
                "count": len(outputs),
                **latency,
                "BLEU_by_edits": by_edits,
                "repeated_4grams": sum(n for n, _ in counts) / max(1, sum(n for _, n in counts)),
            },
            "degeneracy": degeneracy(lags),
            "early_stop": 0.0,
            "cut_off": 0.0,
            "empty": sum(not trace.words for trace in soft),
            "length_ratio": written / sum(row.reference for row in lags),
            "target_per_source": written / sum(self.words),
            "info_ratio": None,
            "test": self.test.facts,
            "model": self.model_facts,
            "settings": self.settings(decoding),
        }
        return point, soft


def evaluate_documents(
    evaluation: DocumentEvaluation,
    decoding: Decoding,
    output: Output,
    resamples: int = RESAMPLES,
    progress: Progress | None = None,
) -> Point:
    """Translate, score and write the point of a set of documents, unless it exists."""
    key = evaluation.key(decoding)
    point = output.begin(key, evaluation.settings(decoding))
    if point is not None and (output.has_text(key) or not output.text):
        return point
    began = time.monotonic()
    outputs = evaluation.streams(decoding, progress)
    translated = time.monotonic()
    point, sentences = evaluation.score_documents(decoding, outputs, resamples)
    output.clear(key)
    if output.text:
        test, folder = evaluation.test, output.text_folder(key)
        write_instances(folder, test.sources, test.references, sentences)
        documents = evaluation.documents.ranges
        write_documents(folder, outputs, documents, test.sources, test.references)
    point["seconds"] = seconds_spent(began, translated)
    point["timed"] = None
    output.write(point)
    return point


ALL = ("clean", "lower", "errors-5", "errors-10", "errors-15", "documents", "documents-lower")
NAME = re.compile(r"documents|(?:documents-)?(clean|lower|errors-(\d{1,2}))")


@dataclass(frozen=True)
class Condition:
    """How a test set is given to the model."""

    name: str
    documents: bool  # a whole document is one stream
    spoken: bool  # lower case without punctuation
    errors: float  # share of the words with a recognition error

    @classmethod
    def parse(cls, name: str) -> Condition:
        found = NAME.fullmatch(name)
        if not found:
            raise WaitinfoError(
                f"--condition {name}: use clean, lower (no capitals, no punctuation), errors-N "
                "(lower with N% word errors), documents, documents-lower, documents-errors-N or all"
            )
        spoken = found[1] not in (None, "clean")
        return cls(name, name.startswith("documents"), spoken, int(found[2] or 0) / 100)

    def apply(self, test: TestSet, language: str | None, seed: int = 1) -> TestSet:
        """The test set with its sources changed; documents are made when it is translated."""
        if not self.spoken:
            return test
        lines = [normalise(source) for source in test.sources]
        speaker = Speaker(language, style_of(self.errors, full=False), lines, seed)
        name = self.name.removeprefix("documents-")
        return replace(test, sources=[speaker.say(line) for line in lines], condition=name)


def parse_conditions(text: str) -> list[Condition]:
    """`lower,errors-5`, or `all`; each once."""
    names = [name for part in text.split(",") for name in (ALL if part == "all" else (part,))]
    return [Condition.parse(name) for name in dict.fromkeys(names)]
