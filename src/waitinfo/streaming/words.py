"""Whole words from target tokens: a word is shown when it is known to be complete."""

from __future__ import annotations

from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Tokenizer


class WordBuilder:
    """Collects target tokens and returns the words that they complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._open: list[int] = []  # tokens of the current word, which may continue

    def add(self, token: int, last: bool = False) -> list[str]:
        """Return the words that a written token completes; the `last` token completes all."""
        complete = []
        if self._open and (token == EOS or self.tokenizer.starts_word(token)):
            complete.append(self._take())
        if token != EOS:
            self._open.append(token)
        if last and self._open:
            complete.append(self._take())
        return [word for text in complete for word in text.split()]

    def _take(self) -> str:
        tokens, self._open = self._open, []
        return self.tokenizer.decode(tokens)
