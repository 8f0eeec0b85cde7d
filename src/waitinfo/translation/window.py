"""Some lines on their way: their sentences, and which of them are translated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from waitinfo.text.scripts import is_unspaced
from waitinfo.translation.search import Candidate


def join_sentences(texts: Iterable[str]) -> str:
    """One text of several sentences, as a stream shows them: without spaces where none is due."""
    joined = ""
    for text in filter(None, texts):
        space = " " if joined and not is_unspaced(joined[-1] + text[0]) else ""
        joined += space + text
    return joined


class Translation(NamedTuple):
    """A translation of one line."""

    line: int  # its number, from 0
    text: str
    score: float  # log p / length^penalty; 0 unless scores were asked for


class Window:
    """Some lines and their sentences.

    Sentences that occur several times are translated once, unless they are sampled (`distinct`).
    """

    def __init__(
        self, indices: Sequence[int], lines: Sequence[list[list[int]]], distinct: bool
    ) -> None:
        self.indices = indices
        self.sentences: list[list[int]] = []
        self.places: list[tuple[int, int]] = []  # (line, part of it) where each sentence is first
        self._users: list[list[int]] = []  # by sentence: the lines that contain it
        self._parts: list[list[int]] = []  # by line: its sentences
        self._missing = [len(line) for line in lines]  # sentences not translated yet
        known: dict[tuple[int, ...], int] = {}
        for number, line in enumerate(lines):
            self._parts.append([])
            for part, tokens in enumerate(line):
                place = len(self.sentences)
                if not distinct:
                    place = known.setdefault(tuple(tokens), place)
                if place == len(self.sentences):
                    self.sentences.append(tokens)
                    self.places.append((indices[number], part))
                    self._users.append([])
                self._users[place].append(number)
                self._parts[-1].append(place)
        self._found: list[list[tuple[str, Candidate]]] = [[] for _ in self.sentences]

    def empty(self, best: int) -> list[list[Translation]]:
        """The translations of lines without words."""
        numbers = [number for number, count in enumerate(self._missing) if not count]
        return [[Translation(self.indices[number], "", 0.0)] * best for number in numbers]

    def add(
        self, place: int, found: list[tuple[str, Candidate]], penalty: float
    ) -> list[list[Translation]]:
        """Record the translations of a sentence; return those of the lines that it completes."""
        self._found[place] = found
        complete = []
        for number in self._users[place]:
            self._missing[number] -= 1
            if not self._missing[number]:
                complete.append(self._joined(number, penalty))
        return complete

    def _joined(self, number: int, penalty: float) -> list[Translation]:
        """The translations of a line: the best of every sentence, then the second of every one.

        Where a sentence has fewer than others, its last is used again.
        """
        parts = [self._found[place] for place in self._parts[number]]
        joined = []
        for choice in zip_longest(*parts):
            chosen = [own or part[-1] for own, part in zip(choice, parts, strict=True)]
            text = join_sentences(text for text, _ in chosen)
            logp = sum(candidate.logp for _, candidate in chosen)
            length = sum(candidate.length for _, candidate in chosen)
            joined.append(Translation(self.indices[number], text, logp / length**penalty))
        return joined
