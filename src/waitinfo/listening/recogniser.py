"""Speech recognisers: audio in, words with times out.

A `Recogniser` holds the weights. `Recogniser.voice` begins with one speaker: a `Voice` takes audio
and gives what it has `Heard`. Committed words are never taken back; open words may still change,
and are never translated.

A recogniser of streams has voices of its own. One of whole stretches of audio is a `Transcriber`,
and `Redecoding` makes it one of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from waitinfo.listening.audio import Samples


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
