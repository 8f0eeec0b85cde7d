"""Speech recognisers: audio in, words with times out.

A `Recogniser` holds the weights. `Recogniser.voice` begins with one speaker: a `Voice` takes audio
and gives what it has `Heard`. Committed words are never taken back; open words may still change,
and are never translated.

A recogniser of streams has voices of its own. One of whole stretches of audio is a `Transcriber`,
and `Redecoding` makes it one of streams: `Agreement` says which words of successive recognitions
of the same growing stretch are certain.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol, runtime_checkable

from waitinfo.listening.audio import Samples
from waitinfo.streaming.segmenter import ends_sentence


class Word(NamedTuple):
    """A recognised word, with its punctuation, and when it was spoken, in seconds of the audio."""

    text: str
    start: float
    end: float


class Anchor(NamedTuple):
    """Where a voice can be continued: from which sample on, and the words from there on it has."""

    sample: int = 0
    words: tuple[str, ...] = ()


class Heard(NamedTuple):
    """What was heard so far. While nothing is said, one with nothing new comes now and then."""

    words: list[Word]  # committed now, after those before
    open: list[Word]  # what seems to follow
    position: float  # seconds of audio that were taken into account
    pause: bool = False  # the speaker is silent after the words
    anchor: Anchor = Anchor()


class Voice(Protocol):
    """One speaker. Times count from the first sample."""

    rhythm: float  # seconds of audio from one look at the open words to the next, as it is now

    def hear(self, samples: Samples) -> list[Heard]:
        """Audio that has come; all that has come if there was more than one piece."""

    def skip(self, samples: int) -> list[Heard]:
        """So many samples were lost."""

    def finish(self) -> list[Heard]:
        """No more audio will come; nothing stays open."""


class Recogniser(Protocol):
    """The weights of a recogniser. Belongs to one thread at a time."""

    name: str
    every: float  # seconds of audio between looks at the open words, on a machine that keeps up

    def voice(
        self, language: str | None = None, live: bool = True, carried: Sequence[str] | None = None
    ) -> Voice:
        """Begin with a speaker. A `live` one looks less often where the machine is slow.

        To continue a voice, `carried` are the words of its anchor, which are not told again. The
        pause before the anchor may be.
        """


@runtime_checkable
class Transcriber(Protocol):
    """Recognises a stretch of audio as a whole."""

    name: str

    def transcribe(self, samples: Samples, language: str | None) -> Sequence[Word | str]:
        """The words of a stretch of at most half a minute, with times in it where it knows them."""


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
