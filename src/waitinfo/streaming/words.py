"""Text from target tokens: shown when it is known to be complete.

A word is complete when the next one begins or the sentence ends. In scripts without spaces, every
character is.
"""

from __future__ import annotations

from waitinfo.text.scripts import is_unspaced, last_unspaced
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Tokenizer


class WordBuilder:
    """Collects target tokens and returns the text that they complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._open: list[int] = []  # tokens of the current word, which may continue
        self._shown = 0  # characters of these tokens that were shown
        self._inside = False  # the beginning of the current word was shown
        self._last = ""  # the last character shown
        self._first = True  # nothing of this sentence was shown

    @property
    def open(self) -> bool:
        """Whether text was written and not shown yet."""
        return bool(self._open)

    def go_on(self, last: str, first: bool) -> None:
        """Go on with a text that ends with a character, at the beginning of a sentence or not."""
        self._last, self._first = last, first

    def add(self, token: int, last: bool = False) -> str:
        """Return the text that a written token completes; the `last` token completes all.

        It begins with a space if one separates it from the text before.
        """
        text = ""
        if token == EOS or self.tokenizer.starts_word(token):
            text += self._end_word()
        if token != EOS:
            self._open.append(token)
            text += self._show_certain()
        if last:
            text += self._end_word()
            self._first = True
        return text

    def _end_word(self) -> str:
        """The rest of the current word."""
        word = self.tokenizer.decode(self._open)
        text = self._show(word[self._shown :])
        self._open, self._shown, self._inside = [], 0, False
        return text

    def _show_certain(self) -> str:
        """The characters of the current word that stay as they are, whatever follows."""
        newest = self._open[-1]
        if not (self.tokenizer.is_byte(newest) or is_unspaced(self.tokenizer.piece(newest))):
            return ""
        word = self.tokenizer.decode(self._open)
        end = last_unspaced(word)
        text = self._show(word[self._shown : end])
        self._shown = max(self._shown, end)
        if 0 < end == len(word):
            self._open, self._shown = [], 0
        return text

    def _show(self, text: str) -> str:
        text = " ".join(text.split())
        if not text:
            return ""
        space = not self._inside and self._separated(text)
        self._last, self._first, self._inside = text[-1], False, True
        return f" {text}" if space else text

    def _separated(self, text: str) -> bool:
        """Whether a space comes before a new word."""
        # Between two sentences there is no token that says so.
        between = self._first and is_unspaced(self._last + text[0])
        return bool(self._last) and not between
