"""Which words of successive recognitions of the same growing stretch are certain."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import takewhile

from waitinfo.listening.recogniser import Word
from waitinfo.streaming.segmenter import ends_sentence


def fold(word: str) -> str:
    """A word without case and punctuation, which change as a stretch grows."""
    letters = (c for c in unicodedata.normalize("NFKC", word).lower() if c.isalnum())
    return "".join(letters) or word


class Agreement:
    """Commits words on which successive recognitions of a stretch agree."""

    def __init__(self, carried: Sequence[str] = ()) -> None:
        # Words that are committed already, and that the stretch begins with.
        self.committed: list[str] = list(carried)
        self._before: list[str] = []  # what the recognition before said after them

    def update(self, words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
        """Words that this recognition commits, and those that stay open."""
        rest = self._after_committed(words)
        agreed = common([fold(word.text) for word in rest], self._before)
        # A full stop at the end says only that the audio ends there.
        if agreed and agreed == len(rest) and ends_sentence(rest[-1].text):
            agreed -= 1
        return self._commit(rest, agreed)

    def finish(self, words: Sequence[Word]) -> list[Word]:
        """The stretch is over: commit all that is left."""
        rest = self._after_committed(words)
        return self._commit(rest, len(rest))[0]

    def beyond(self, words: Sequence[Word]) -> list[str]:
        """The committed words that come after these, where a stretch was cut before its end."""
        folded = [fold(word.text) for word in words]
        committed = [fold(word) for word in self.committed]
        return self.committed[nearest_prefix(committed, folded) :]

    def _commit(self, rest: list[Word], count: int) -> tuple[list[Word], list[Word]]:
        self.committed += [word.text for word in rest[:count]]
        self._before = [fold(word.text) for word in rest[count:]]
        return rest[:count], rest[count:]

    def _after_committed(self, words: Sequence[Word]) -> list[Word]:
        """What a recognition says after the committed words, which it may spell differently."""
        folded = [fold(word.text) for word in words]
        return list(words[nearest_prefix(folded, [fold(w) for w in self.committed]) :])


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of words that both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in same)


def nearest_prefix(words: Sequence[str], given: Sequence[str]) -> int:
    """The length of the beginning of `words` that differs least from `given`.

    By words inserted, left out or replaced; of equal ones that whose length is nearest.
    """
    if list(words[: len(given)]) == list(given):
        return len(given)
    row = list(range(len(words) + 1))  # edits between nothing and each beginning of words
    for wanted in given:
        above, row = row, [row[0] + 1]
        for place, word in enumerate(words):
            changed = above[place] + (word != wanted)
            row.append(min(changed, above[place + 1] + 1, row[place] + 1))
    return min(range(len(row)), key=lambda place: (row[place], abs(place - len(given))))
