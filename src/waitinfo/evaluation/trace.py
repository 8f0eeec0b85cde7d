"""The trace of a translation in words: what a listener sees, and how much had been said by then."""

from __future__ import annotations

from dataclasses import dataclass

from waitinfo.streaming.decoder import Hypothesis
from waitinfo.streaming.words import WordBuilder
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Vocabulary


@dataclass(frozen=True)
class WordTrace:
    """Translated words, and the source words that had arrived when each was shown."""

    words: list[str]
    delays: list[int]
    source_words: int

    @property
    def text(self) -> str:
        return " ".join(self.words)


def word_trace(vocabulary: Vocabulary, source: str, hypothesis: Hypothesis) -> WordTrace:
    """A token-level hypothesis in words.

    A source word arrives whole, and end-of-sentence with the last one. A target word is shown when
    a token that begins another, or ends the sentence, has been written: its delay is that token's.
    """
    arrived: list[int] = []  # by source token: the number of the word it belongs to
    count = 0
    for count, word in enumerate(source.split(), 1):
        arrived += [count] * len(vocabulary.source.encode(word))
    arrived.append(count)
    builder = WordBuilder(vocabulary.target)
    words: list[str] = []
    delays: list[int] = []
    tokens = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
    for number, (token, read) in enumerate(zip(tokens, hypothesis.path, strict=True), 1):
        shown = builder.add(token, last=number == len(tokens))
        words += shown
        delays += [arrived[read - 1]] * len(shown)
    return WordTrace(words, delays, count)
