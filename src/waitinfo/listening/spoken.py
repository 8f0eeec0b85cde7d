"""From recognised words to the text of a stream, and from what it reads back to their times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from waitinfo.listening.recogniser import Word
from waitinfo.streaming.event import Event
from waitinfo.text.files import normalise
from waitinfo.text.scripts import is_unspaced


def spoken_text(word: Word) -> str:
    """What a word adds to the text of a stream; without a space in scripts that have none."""
    text = " ".join(normalise(word.text).split())
    return text if not text or is_unspaced(text[-1]) else f"{text} "


class Told(NamedTuple):
    """Words that a stream has written, or the end of a sentence; times of its source words."""

    kind: Literal["WRITE", "END"]
    text: str
    start: float
    end: float
    source: str = ""  # END: what was spoken
    event: Event | None = None  # WRITE


class SpokenText:
    """The text of a stream opened with `raw`, and when each of its words was spoken."""

    def __init__(self) -> None:
        self._last = 0.0  # end of the last word
        self._sentence: list[Word] = []  # source words of the present sentence
        self._written: list[str] = []  # and its translation
        self._read: list[Word] = []  # since the last words were written
        self._waiting: deque[Word] = deque()  # given to the stream and not read yet
        self._letters = 0  # read of the first of them

    def give(self, word: Word) -> str:
        """The text of a word."""
        self._last = word.end
        if text := spoken_text(word):
            self._waiting.append(word._replace(text=text.rstrip()))
        return text

    def told(self, events: Iterable[Event]) -> Iterator[Told]:
        """What a stream has written, with the times of what it had read."""
        for event in events:
            read = self.read(event)
            self._read += read
            self._sentence += read
            if event.kind == "WRITE" and event.text:
                self._written.append(event.text)
                words = self._read or self._sentence[-1:] or [self._nothing]
                self._read = []
                yield Told("WRITE", event.text, words[0].start, words[-1].end, event=event)
            if event.kind == "MOVE" or (event.kind == "WRITE" and event.token == "</s>"):
                yield from self.end()

    def end(self) -> Iterator[Told]:
        """A sentence is complete, or a window has moved on."""
        words, text = self._sentence, "".join(self._written).strip()
        self._sentence, self._written, self._read = [], [], []
        if words or text:
            words = words or [self._nothing]
            source = " ".join(word.text for word in words).strip()
            yield Told("END", text, words[0].start, words[-1].end, source)

    @property
    def _nothing(self) -> Word:
        return Word("", self._last, self._last)

    def read(self, event: Event) -> list[Word]:
        """The words that are complete with what a stream has read."""
        if event.kind != "READ" or not event.word:
            return []
        self._letters += len("".join(event.word.split()))
        found: list[Word] = []
        while self._waiting and self._letters >= _size(self._waiting[0]):
            self._letters -= _size(self._waiting[0])
            found.append(self._waiting.popleft())
        return found


def _size(word: Word) -> int:
    return len("".join(word.text.split()))
