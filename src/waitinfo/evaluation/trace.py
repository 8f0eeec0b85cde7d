"""Word-level trace of a translation: the words shown, and the source words read by then."""

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
    """Convert a token-level hypothesis to words.

    All tokens of a source word arrive together, and end-of-sentence arrives with the last word. A
    target word is shown when the first token of the next word, or end-of-sentence, is written. Its
    delay is the delay of that token.
    """
    arrived: list[int] = []  # for each source token, the number of its word
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
