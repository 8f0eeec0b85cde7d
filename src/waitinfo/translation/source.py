"""Lines of text as the token sequences that a stream would feed to the engine.

A line is cut at sentence ends, and a sentence of more tokens than `limit` is continued as if it
were the next. Both rules are those of `streaming.session`; here they are applied to whole lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waitinfo.streaming.segmenter import CLOSERS, ENDS, ends_sentence
from waitinfo.text.files import normalise
from waitinfo.text.tokenizer import Tokenizer

LAST_LETTERS = frozenset(CLOSERS + ENDS + ".")  # a word that ends a sentence ends in one of these


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a normalised text."""
    words = text.split()
    start = 0
    for end, word in enumerate(words, 1):
        if word[-1] in LAST_LETTERS and ends_sentence(word):
            yield " ".join(words[start:end])
            start = end
    if start < len(words):
        yield " ".join(words[start:])


def split_tokens(words: Sequence[list[int]], limit: int) -> Iterator[list[int]]:
    """Cut the tokens of a sentence, given by word, into pieces of at most `limit` tokens.

    A piece ends before the first word that does not fit. Only a word that is itself longer than a
    piece is cut.
    """
    piece: list[int] = []
    for word in words:
        rest = word
        if piece and len(rest) > limit - len(piece):
            yield piece
            piece = []
        while len(rest) > limit:
            yield rest[:limit]
            rest = rest[limit:]
        piece = piece + rest
    if piece:
        yield piece


class SourceText:
    """Cuts and tokenizes lines."""

    def __init__(self, tokenizer: Tokenizer, limit: int, segment: bool = True) -> None:
        self.tokenizer, self.limit, self.segment = tokenizer, limit, segment

    def encode(self, lines: Sequence[str], threads: int = -1) -> list[list[list[int]]]:
        """The token sequences of every line; none for a line without words."""
        texts = [normalise(line) for line in lines]
        if self.segment:
            sentences = [list(split_sentences(text)) for text in texts]
        else:
            sentences = [[text] if text else [] for text in texts]
        flat = [sentence for line in sentences for sentence in line]
        tokens = iter(zip(flat, self.tokenizer.encode_many(flat, threads), strict=True))
        return [
            [piece for _ in line for piece in self._pieces(*next(tokens))] for line in sentences
        ]

    def _pieces(self, sentence: str, tokens: list[int]) -> list[list[int]]:
        if len(tokens) <= self.limit:
            return [tokens] if tokens else []
        words = [self.tokenizer.encode(word) for word in sentence.split()]
        return list(split_tokens(words, self.limit))
