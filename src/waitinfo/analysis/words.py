"""Words of a text as treebanks divide it, and the tokens of the model that belong to each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from waitinfo.text.files import normalise
from waitinfo.text.tokenizer import SPACE, Tokenizer

# Numbers with their separators; English clitics; runs of letters and digits; single other signs.
WORD = re.compile(
    r"\d+(?:[.,:]\d+)*(?!\w)"
    r"|[^\W\d_]+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    r"|\w+|[^\w\s]",
    re.IGNORECASE,
)
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Word:
    """A word and the positions of its tokens in the sentence.

    `whole` says that its tokens hold nothing else: a token may also span a clitic's border.
    """

    text: str
    tokens: tuple[int, ...]
    whole: bool


def token_spans(tokenizer: Tokenizer, chunk: str) -> list[tuple[int, int]]:
    """Start and end of every token of a chunk without spaces, in characters."""
    spans = []
    at, held = 0, b""  # held: bytes of a character that is not complete
    for token in tokenizer.encode(chunk):
        piece = tokenizer.piece(token)
        found = BYTE.fullmatch(piece)
        held = held + bytes.fromhex(found[1]) if found else b""
        if found:
            try:
                length = len(held.decode("utf-8"))
                held = b""
            except UnicodeDecodeError:
                length = 0
        elif piece == "<unk>":
            length = len(chunk) - at
        else:
            length = len(piece.removeprefix(SPACE))
        spans.append((at, min(at + length, len(chunk))))
        at = spans[-1][1]
    return spans


def words_of(tokenizer: Tokenizer, text: str) -> list[Word]:
    """The words of a text; a token belongs to the word that its first character is in.

    A word without a token of its own, because one token spans it and the word before, is left out.
    """
    found: list[Word] = []
    first = 0  # position of the chunk's first token in the sentence
    for chunk in normalise(text).split():
        spans = token_spans(tokenizer, chunk)
        for match in WORD.finditer(chunk):
            start, end = match.span()
            own = [n for n, (a, b) in enumerate(spans) if start <= a < end or (a == b == start)]
            if own:
                exact = spans[own[0]][0] == start and spans[own[-1]][1] == end
                found.append(Word(match[0], tuple(first + n for n in own), exact))
        first += len(spans)
    return found
