"""From recognised words to the text of a stream, and from what it reads back to their times."""

from __future__ import annotations

from collections import deque

from waitinfo.listening.recogniser import Word
from waitinfo.streaming.event import Event
from waitinfo.text.files import normalise
from waitinfo.text.scripts import is_unspaced


def spoken_text(word: Word) -> str:
    """What a word adds to the text of a stream; without a space in scripts that have none."""
    text = " ".join(normalise(word.text).split())
    return text if not text or is_unspaced(text[-1]) else f"{text} "


class SpokenText:
    """The text of a stream opened with `raw`, and when each of its words was spoken."""

    def __init__(self) -> None:
        self._waiting: deque[Word] = deque()  # given to the stream and not read yet
        self._letters = 0  # read of the first of them

    def give(self, word: Word) -> str:
        """The text of a word."""
        if text := spoken_text(word):
            self._waiting.append(word._replace(text=text.rstrip()))
        return text

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
