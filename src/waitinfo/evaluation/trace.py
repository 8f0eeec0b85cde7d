"""Trace of a translation in words or characters: what was shown, and what had arrived by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from waitinfo.streaming.decoder import Hypothesis
from waitinfo.streaming.lag import letter_count
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.words import Reader, WordBuilder
from waitinfo.text.scripts import mostly_unspaced
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Tokenizer, Vocabulary
from waitinfo.trained.calibration import CHARACTERS, WORDS


@dataclass(frozen=True)
class Units:
    """What source and target are counted in: words, or characters in scripts without spaces."""

    source: str = WORDS
    target: str = WORDS

    @classmethod
    def of(cls, sources: Sequence[str], references: Sequence[str]) -> Units:
        """Characters where most of a side's text belongs to such a script."""
        return cls(*(CHARACTERS if mostly_unspaced(s) else WORDS for s in (sources, references)))

    def reference_length(self, reference: str) -> int:
        """As SimulEval counts: its characters include spaces between words."""
        if self.target == CHARACTERS:
            return len(" ".join(reference.split()))
        return len(reference.split())


@dataclass(frozen=True)
class WordTrace:
    """Translated units, and the source units that had arrived when each was shown."""

    words: list[str]
    delays: list[int]
    source_words: int
    text: str = ""


def word_trace(
    vocabulary: Vocabulary, source: str, hypothesis: Hypothesis, units: Units | None = None,
    as_streams: bool = False,
) -> WordTrace:  # fmt: skip
    """Convert a token-level hypothesis to units.

    All tokens of a source word arrive together, and end-of-sentence arrives with the last word. In
    characters, a token arrives when no further character can change it. A target word is shown when
    the first token of the next word, or end-of-sentence, is written. Its delay is the delay of that
    token. A character of a script without spaces is shown with its own token.

    as_streams: characters of the source count when their token is read, not when they arrive.
    """
    units = units or Units()
    arrived, count = arrivals(vocabulary.source, source, units.source)
    if as_streams and units.source == CHARACTERS:
        pieces = [vocabulary.source.piece(token) for token in vocabulary.source.encode(source)]
        arrived = [*accumulate(map(letter_count, pieces)), count]
    builder = WordBuilder(vocabulary.target)
    shown: list[str] = []
    delays: list[int] = []
    text = ""
    tokens = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
    for number, (token, read) in enumerate(zip(tokens, hypothesis.path, strict=True), 1):
        piece = builder.add(token, last=number == len(tokens))
        text += piece
        fresh = list("".join(piece.split())) if units.target == CHARACTERS else piece.split()
        shown += fresh
        delays += [arrived[read - 1]] * len(fresh)
    return WordTrace(shown, delays, count, text)


def arrivals(tokenizer: Tokenizer, source: str, unit: str) -> tuple[list[int], int]:
    """For each source token, the units after which it can be read; and the number of units."""
    arrived: list[int] = []
    if unit == WORDS:
        words = source.split()
        for count, word in enumerate(words, 1):
            arrived += [count] * len(tokenizer.encode(word))
        return [*arrived, len(words)], len(words)
    reader = Reader(tokenizer, raw=True, segmentation=Segmentation("whole"))
    text, count = " ".join(source.split()), 0
    for place, letter in enumerate(text, 1):
        count += letter != " "
        reader.add(letter)
        if place == len(text):
            reader.end()
        arrived += [count for piece in reader.queue if piece for _ in piece.tokens]
        reader.queue.clear()
    return [*arrived, count], count
