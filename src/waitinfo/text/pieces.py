"""Tokens of a word that is still growing: each is given as soon as no further letter can change it.

In scripts without spaces a whole sentence is one word. Byte-pair encoding gives a prefix other
tokens than the same prefix inside a longer text, but only near its end. Two facts bound that
(tests compare with the encoding of whole texts):

- tokens are an encoding exactly if every two neighbours are, so the tokens before any token
  boundary of a text are the encoding of the text up to there;
- a token that contains letters still to come begins with letters that begin a token.

So the final tokens start with the common prefix of the encodings up to every place where such a
token may begin.
"""

from __future__ import annotations

import unicodedata

from waitinfo.text.files import normalise
from waitinfo.text.scripts import settled
from waitinfo.text.tokenizer import SPACE, Tokenizer

CONTEXT = 4  # certain tokens that later text is encoded with


class GrowingWord:
    """A word whose letters arrive in pieces; `inside` it, those after one of its tokens."""

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
                self._text += normalise(self._waiting[:end])
                self._waiting = self._waiting[end:]
                found += self._certain()
        return found

    def close(self) -> list[int]:
        """The remaining tokens: the word has ended."""
        self._text += normalise(self._waiting)
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
        while spare and self.tokenizer.is_byte(certain[len(spare)]):
            spare.pop()  # the context must not begin within a letter
        if spare:
            self._text = self._text[len(self.tokenizer.spell(spare)) :]
            self._context = certain[len(spare) :]
            self._at_start = False

    def _encode(self, end: int) -> list[int]:
        """Tokens of the text up to a place."""
        if self._at_start:
            return self.tokenizer.encode(self._text[1:end]) if end > 1 else []
        return self.tokenizer.encode_inside(self._text[:end])
