"""Lines of text as the token sequences that a stream would feed to the engine.

A line is cut at sentence ends, and a sentence of more tokens than `limit` is continued as if it
were the next. Both rules are those of `streaming.words` and `streaming.session`; here they are
applied to whole lines. A line that would move through a window is left to a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from waitinfo.streaming.segmenter import CLOSERS, ENDS, Segmentation, ends_sentence
from waitinfo.streaming.words import GO_ON, STOPS, TAIL, Reader
from waitinfo.text.files import normalise
from waitinfo.text.scripts import is_unspaced
from waitinfo.text.tokenizer import Tokenizer

LAST_LETTERS = frozenset(CLOSERS + ENDS + ".")  # a word that ends a sentence ends in one of these
INNER_END = re.compile(f"(?<=[{re.escape(STOPS)}])(?!{GO_ON.pattern}|$)")

Sentences = list[list[int]]  # the token sequences of a line


def split_sentences(text: str, inside: bool) -> Iterator[str]:
    """Yield the sentences of a normalised text, also those `inside` words without spaces."""
    sentence: list[str] = []
    for word in text.split():
        last = tail = word
        if inside and is_unspaced(word):
            *ended, last = INNER_END.split(word)
            tail = word[-TAIL:]  # all that a stream looks at
            for part in ended:
                yield " ".join([*sentence, part])
                sentence = []
        sentence.append(last)
        if word[-1] in LAST_LETTERS and ends_sentence(tail):
            yield " ".join(sentence)
            sentence = []
    if sentence:
        yield " ".join(sentence)


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


class SentenceCutter:
    """Cuts and tokenizes lines; `slides` if the system can translate text without sentence ends."""

    def __init__(
        self, tokenizer: Tokenizer, limit: int, segmentation: Segmentation, slides: bool
    ) -> None:
        self.tokenizer, self.limit, self.segmentation = tokenizer, limit, segmentation
        self.windows = segmentation.mode if slides else ""

    def encode(self, lines: Sequence[str], threads: int = -1) -> list[Sentences | None]:
        """The token sequences of every line: [] without words, None if it needs a window."""
        texts = [normalise(line) for line in lines]
        if self.segmentation.punctuated:
            sentences = [list(split_sentences(text, self._is_unspaced(text))) for text in texts]
        else:
            sentences = [[text] if text else [] for text in texts]
        flat = [sentence for line in sentences for sentence in line]
        tokens = iter(self.tokenizer.encode_many(flat, threads))
        return [
            self._line(text, line, [next(tokens) for _ in line])
            for text, line in zip(texts, sentences, strict=True)
        ]

    def _is_unspaced(self, text: str) -> bool:
        """Whether a text has words that are read token by token."""
        return self.tokenizer.grows and is_unspaced(text)

    def _line(self, text: str, parts: list[str], sentences: Sentences) -> Sentences | None:
        lengths = [len(tokens) for tokens in sentences]
        if self._needs_window(lengths):
            return None
        if max(lengths, default=0) > self.limit and self._is_unspaced(text):
            return list(self._read(text))
        pairs = zip(parts, sentences, strict=True)
        return [piece for pair in pairs for piece in self._pieces(*pair)]

    def _needs_window(self, lengths: list[int]) -> bool:
        """Whether a stream would move on within a sentence of this line."""
        if self.windows in ("none", "pause"):
            return bool(lengths)  # where the model ends a sentence, the window moves on
        if self.windows != "auto" or not lengths:
            return False
        first, *later = lengths
        return (
            first > min(self.limit, self.segmentation.window) or max(later, default=0) > self.limit
        )

    def _pieces(self, sentence: str, tokens: list[int]) -> Iterator[list[int]]:
        if len(tokens) > self.limit:
            words = [self.tokenizer.encode(word) for word in sentence.split()]
            yield from split_tokens(words, self.limit)
        elif tokens:
            yield tokens

    def _read(self, text: str) -> Iterator[list[int]]:
        """The same for long sentences without spaces, whose tokens are read one by one."""
        reader = Reader(self.tokenizer, segmentation=self.segmentation)
        reader.add(text)
        reader.end()
        words: list[list[int]] = []
        for piece in reader.queue:
            if piece is not None:
                words.append(piece.tokens)
            else:
                yield from split_tokens(words, self.limit)
                words = []
