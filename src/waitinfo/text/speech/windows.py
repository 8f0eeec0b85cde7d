"""Windows: consecutive sentences of a text joined into one line."""

from __future__ import annotations

import random

from waitinfo.text.files import Pair
from waitinfo.text.speech.marks import join

SENTENCES = (2, 6)  # in a window, at least and at most
LONGEST = 120  # words of a window's source


class Windows:
    """Joins pairs that follow each other, so that about `share` of the pairs are in a window.

    Pairs come one by one with their position in the text; a gap in the positions ends a window. A
    pair is in one window at most. A window's source has at most `longest` words.
    """

    def __init__(self, share: float, draw: random.Random, longest: int = LONGEST) -> None:
        mean = sum(SENTENCES) / 2
        # A free pair starts a window with this chance, which makes `share` of the pairs members.
        self.start = share / (mean * (1 - share) + share)
        self.random, self.longest = draw, longest
        self._open: list[Pair] = []
        self._size = 0  # sentences that the open window wants
        self._words = 0
        self._next = -1  # position that would continue the open window

    def add(self, pair: Pair, position: int) -> Pair | None:
        """The next pair; returns the window that is complete now, if one is."""
        words = len(pair.source.split())
        complete = None
        if self._open and (position != self._next or self._words + words > self.longest):
            complete = self.take()
        self._next = position + 1
        if self._open or self.random.random() < self.start:
            self._size = self._size if self._open else self.random.randint(*SENTENCES)
            self._open.append(pair)
            self._words += words
        if len(self._open) == self._size and self._open:
            complete = self.take()
        return complete

    def take(self) -> Pair | None:
        """The open window, if it has two sentences or more; there is none afterwards."""
        members, self._open, self._words = self._open, [], 0
        if len(members) < SENTENCES[0]:
            return None
        source, target = members[0]
        for pair in members[1:]:
            source, target = join(source, pair.source), join(target, pair.target)
        return Pair(source, target)
