"""Tokenizers: SentencePiece models of subwords (BPE) or whole words.

Both kinds are ordinary SentencePiece files, so a model folder always contains `tokenizer.model`
(and `tokenizer.target.model` if the two languages have separate vocabularies). A piece never
contains parts of two words, so encoding a sentence equals encoding its words one by one. This lets
a stream tokenize a word as soon as it is complete.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece as spm

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import normalise
from waitinfo.text.scripts import UNSPACED, settled
from waitinfo.text.special import BOS, EOS, NAMES, PAD, SPECIALS, UNK

SPACE = "\u2581"
_APART = "\U0010fffd"  # for private use, the last there is
# Streams repeat few words: their tokens are remembered, and forgotten when there are too many.
LONGEST_KNOWN, MOST_KNOWN = 32, 1 << 16
SOURCE_FILE, TARGET_FILE = "tokenizer.model", "tokenizer.target.model"


@dataclass(frozen=True)
class VocabularySpec:
    """The value of `--vocab`: `bpe` (its size fits the text), `bpe:SIZE` or `words:THRESHOLD`."""

    kind: str
    number: int  # 0: fits the text

    @classmethod
    def parse(cls, text: str) -> VocabularySpec:
        kind, _, number = text.partition(":")
        if text == "bpe":
            return cls(kind, 0)
        if kind not in ("bpe", "words") or not number.isdigit() or not 0 < int(number) < 1 << 31:
            raise WaitinfoError(
                f"--vocab {text}: not understood; use bpe (its size fits the text), bpe:SIZE "
                "(such as bpe:16000) or words:THRESHOLD (such as words:5)"
            )
        return cls(kind, int(number))


class Tokenizer:
    """Converts text of one or both languages to token ids and back."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = spm.SentencePieceProcessor(model_proto=model)
        # Without byte fallback, SentencePiece merges adjacent unknown words into one token.
        self._joins = self._processor.piece_to_id("<0x00>") == UNK
        self._known_words: dict[str, list[int]] = {}
        self._known_tokens: dict[tuple[int, ...], str] = {}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        try:
            return cls(path.read_bytes())
        except OSError:
            raise WaitinfoError(f"{path}: no such tokenizer") from None
        except RuntimeError:
            raise WaitinfoError(f"{path}: not a SentencePiece model") from None

    def save(self, path: Path) -> None:
        path.write_bytes(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        if len(text) > LONGEST_KNOWN:
            return self._encode(text)
        found = self._known_words.get(text)
        if found is None:
            found = self._known_words[text] = self._encode(text)
            _limit(self._known_words)
        return found.copy()

    def _encode(self, text: str) -> list[int]:
        if not self._joins:
            return self._processor.encode(normalise(text))
        return [t for word in normalise(text).split() for t in self._processor.encode(word)]

    def encode_many(self, texts: Sequence[str], threads: int = -1) -> list[list[int]]:
        """Token ids of texts that are already normalised."""
        if not self._joins:
            return self._processor.encode(list(texts), num_threads=threads)
        words = list({word for text in texts for word in text.split()})
        tokens = self._processor.encode(words, num_threads=threads)
        known = dict(zip(words, tokens, strict=True))
        return [[token for word in text.split() for token in known[word]] for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids, without special tokens."""
        tokens = tuple(tokens)
        if len(tokens) > LONGEST_KNOWN:
            return self._decode(tokens)
        found = self._known_tokens.get(tokens)
        if found is None:
            found = self._known_tokens[tokens] = self._decode(tokens)
            _limit(self._known_tokens)
        return found

    def _decode(self, tokens: Iterable[int]) -> str:
        return self._processor.decode(_without_specials(tokens)).strip()

    def decode_many(self, sentences: Iterable[Iterable[int]], threads: int = -1) -> list[str]:
        """Texts of token ids, with single spaces between words and without special tokens."""
        kept = [_without_specials(tokens) for tokens in sentences]
        texts = self._processor.decode(kept, num_threads=threads) if kept else []
        return [" ".join(text.split()) for text in texts]

    def piece(self, token: int) -> str:
        """A token as text, with a leading space shown as '▁'."""
        return self._pieces[token]

    def token(self, piece: str) -> int:
        """The token with this text; the inverse of `piece`."""
        return self._processor.piece_to_id(piece)

    def starts_word(self, token: int) -> bool:
        """Whether a token starts a new word."""
        return self._starts[token]

    @cached_property
    def _pieces(self) -> list[str]:
        return [self._processor.id_to_piece(token) for token in range(len(self))]

    @cached_property
    def _starts(self) -> list[bool]:
        return [t == UNK or piece.startswith(SPACE) for t, piece in enumerate(self._pieces)]

    # Text that is still growing

    @property
    def has_bytes(self) -> bool:
        """Whether characters without a piece are encoded as bytes, so that none is unknown."""
        return not self._joins

    @cached_property
    def grows(self) -> bool:
        """Whether words are made of pieces, so that the first are known before a word has ended."""
        return any(not piece.startswith(SPACE) for piece in self._pieces[SPECIALS:])

    @property
    def tag(self) -> int:
        """A token that no text contains, to tag sentences: a byte that UTF-8 does not use."""
        if not self.has_bytes:
            raise WaitinfoError(
                "tagged sentences require a vocabulary with bytes; use --vocab bpe:SIZE"
            )
        return self.token("<0xFF>")

    def is_byte(self, token: int) -> bool:
        """Whether a token is one byte of a character."""
        return self._processor.is_byte(token)

    def goes_on(self, token: int) -> bool:
        """Whether a token is a byte within a character, and not its first one."""
        return self.is_byte(token) and self.piece(token)[3] in "89AB"

    def spell(self, tokens: Iterable[int]) -> str:
        """The exact text of tokens, with spaces shown as '▁'; a broken character is U+FFFD."""
        parts = (
            bytes([int(self.piece(token)[3:-1], 16)])
            if self.is_byte(token)
            else self.piece(token).encode()
            for token in tokens
        )
        return b"".join(parts).decode("utf-8", "replace")

    def normal(self, text: str) -> str:
        """The letters of a text as pieces have them: published vocabularies may change widths."""
        return self._processor.normalize(normalise(text)).removeprefix(SPACE)

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of normalised text inside a word: no token starts with '▁'."""
        # A character that no piece contains keeps the text apart from the start of the word.
        tokens = self._processor.encode(_APART + text)[self._apart :]
        joined = self._joins and text and self._processor.encode(text[0])[-1] == UNK
        return [UNK, *tokens] if joined else tokens

    @cached_property
    def _apart(self) -> int:
        return len(self._processor.encode(_APART))

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        """What the text of every piece begins with, the whole piece left out."""
        found = {""}
        for token in range(SPECIALS, len(self)):
            if not self.is_byte(token):
                piece = self.piece(token)
                found.update(piece[:end] for end in range(1, len(piece)))
        return frozenset(found)

    @cached_property
    def longest_piece(self) -> int:
        """Characters of the longest piece."""
        return 1 + max(map(len, self._beginnings))

    def begins_piece(self, text: str) -> bool:
        """Whether some piece begins with a text and goes on; '' counts."""
        return text in self._beginnings


def _limit(known: dict[Any, Any]) -> None:
    if len(known) > MOST_KNOWN:
        known.clear()


def _without_specials(tokens: Iterable[int]) -> list[int]:
    return [t for t in tokens if t >= SPECIALS or t == UNK]


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of a language pair; joint if both languages share one."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        source = Tokenizer.load(folder / SOURCE_FILE)
        target = folder / TARGET_FILE
        return cls(source, Tokenizer.load(target) if target.exists() else source)

    def save(self, folder: Path) -> None:
        self.source.save(folder / SOURCE_FILE)
        if not self.joint:
            self.target.save(folder / TARGET_FILE)


class VocabularyTooLarge(Exception):
    """The text is too small for the requested vocabulary; `largest` is the largest size."""

    def __init__(self, largest: int) -> None:
        super().__init__(largest)
        self.largest = largest


def train_tokenizer(lines: Iterable[str], spec: VocabularySpec) -> tuple[Tokenizer, str | None]:
    """Train a tokenizer on normalised lines; also return a note if its size was reduced."""
    lines = list(lines)
    if spec.kind == "words":
        return _train_words(lines, spec.number), None
    size = spec.number or fitting_size(lines)
    try:
        return _train_bpe(lines, size), None
    except VocabularyTooLarge as limit:
        note = f"vocabulary reduced from {size:,} to {limit.largest:,}: the text is small"
        return _train_bpe(lines, limit.largest), note if spec.number else None


def fitting_size(lines: Sequence[str]) -> int:
    """A vocabulary whose pieces come often enough in a text to be learned.

    It grows with the square root of the text, from 1,000 to 16,000 pieces. Single characters of
    scripts without spaces are added: they are pieces, and most of them are rare.
    """
    words = sum(len(line.split()) + len(UNSPACED.findall(line)) // 2 for line in lines)
    characters = len({char for line in lines for char in UNSPACED.findall(line)})
    size = round(8 * math.sqrt(words) / 500) * 500
    return max(1000, min(size, 16_000)) + characters


def _train_bpe(lines: Sequence[str], size: int) -> Tokenizer:
    # Byte fallback encodes the characters outside the coverage, so nothing is unknown.
    try:
        return _train(
            lines,
            model_type="bpe",
            vocab_size=size,
            character_coverage=0.9998,
            byte_fallback=True,
        )
    except RuntimeError as error:
        message = str(error)
        if found := re.search(r"too high.*<= (\d+)", message):
            raise VocabularyTooLarge(int(found.group(1))) from None
        if "smaller than required_chars" in message:
            found = re.search(r"required_chars\D*\d+ vs (\d+)", message)
            least = found.group(1) if found else "a few hundred"
            raise WaitinfoError(
                f"--vocab bpe:{size}: too small for the characters of this text; "
                f"use at least {least}"
            ) from None
        raise


def _train_words(lines: Sequence[str], threshold: int) -> Tokenizer:
    lines = [" ".join(word for word in line.split() if word not in NAMES) for line in lines]
    counts = Counter(word for line in lines for word in line.split())
    frequent = sum(count >= threshold for count in counts.values())
    if not frequent:
        raise WaitinfoError(f"--vocab words:{threshold}: no word occurs {threshold} times or more")
    return _train(
        lines,
        model_type="word",
        vocab_size=frequent + SPECIALS,
        character_coverage=1.0,
        unk_surface=" <unk>",
    )


def _train(lines: Sequence[str], **options: Any) -> Tokenizer:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        normalization_rule_name="identity",
        max_sentence_length=1 << 20,
        num_threads=4,
        minloglevel=2,
        **options,
    )
    return Tokenizer(model.getvalue())


# Growing words. In scripts without spaces a whole sentence is one word. A prefix has other tokens
# than the same prefix inside a longer text, but only near its end. Two facts bound that (tests
# compare with the encoding of whole texts):
#
# - the tokens before any token boundary of a text are the encoding of the text up to there: in
#   byte-pair encoding, tokens are an encoding exactly if every two neighbours are, and a unigram
#   model adds up the scores of single tokens;
# - a token that contains letters still to come begins with letters that begin a token.
#
# So the final tokens start with the common prefix of the encodings up to every place where such a
# token may begin.


CONTEXT = 4  # certain tokens that later text is encoded with


class GrowingWord:
    """A word whose letters arrive in pieces; `inside` it, those after one of its tokens.

    Each token is given as soon as no further letter can change it.
    """

    def __init__(self, tokenizer: Tokenizer, inside: bool = False) -> None:
        self.tokenizer = tokenizer
        self._waiting = ""  # letters that may still join with what follows
        self._text = "" if inside else SPACE  # from the start of the oldest token of the context
        self._context: list[int] = []  # certain tokens that the text begins with
        self._at_start = not inside  # the text begins where the word does

    def add(self, letters: str) -> list[int]:
        """Tokens that have become certain, in order."""
        found: list[int] = []
        for letter in letters:  # one by one, so that nothing depends on how they arrive
            if self._waiting and unicodedata.combining(letter):
                self._waiting += letter  # it joins with all that waits
                continue
            self._waiting += letter
            end = settled(self._waiting)
            if end:
                self._text += self.tokenizer.normal(self._waiting[:end])
                self._waiting = self._waiting[end:]
                found += self._certain()
        return found

    def close(self) -> list[int]:
        """The remaining tokens: the word has ended."""
        self._text += self.tokenizer.normal(self._waiting)
        rest = self._encode(len(self._text))[len(self._context) :]
        self.__init__(self.tokenizer)  # type: ignore[misc]
        return rest

    def _certain(self) -> list[int]:
        tokenizer, text = self.tokenizer, self._text
        starts = [
            at
            for at in range(max(1, len(text) - tokenizer.longest_piece), len(text) + 1)
            if tokenizer.begins_piece(text[at:])
        ]
        if tokenizer.begins_piece(text) and (self._at_start or not self._context):
            return []  # it may be one token
        shared = self._encode(starts[0])
        for at in starts[1:]:
            tokens = self._encode(at)
            same = (a == b for a, b in zip(shared, tokens, strict=False))
            shared = shared[: next((n for n, equal in enumerate(same) if not equal), len(shared))]
            shared = shared[: len(tokens)]
        fresh = shared[len(self._context) :]
        self._move_on(shared)
        return fresh

    def _move_on(self, certain: list[int]) -> None:
        """Keep only the last certain tokens as context, where their text is known."""
        self._context = certain
        spare = certain[:-CONTEXT]
        while spare and not self._parts(spare[-1], certain[len(spare)]):
            spare.pop()
        if spare and (end := self._end_of(spare)):
            self._text = self._text[end:]
            self._context = certain[len(spare) :]
            self._at_start = False

    def _parts(self, last: int, first: int) -> bool:
        """Whether text can begin between two tokens: not within a letter or unknown letters."""
        return UNK not in (last, first) and not self.tokenizer.goes_on(first)

    def _end_of(self, tokens: list[int]) -> int | None:
        """Where the text of the first tokens ends; unknown letters are not spelled by theirs."""
        guess = len(self.tokenizer.spell(tokens))
        places = [guess, *range(len(self._text), 0, -1)]
        return next((at for at in places if self._encode(at) == tokens), None)

    def _encode(self, end: int) -> list[int]:
        """Tokens of the text up to a place."""
        if self._at_start:
            return self.tokenizer.encode(self._text[1:end]) if end > 1 else []
        return self.tokenizer.encode_inside(self._text[:end])
