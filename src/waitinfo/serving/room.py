"""A room: the last minutes of what was said in it, and those who watch.

Each word has a number, counted since the room was opened. A watcher whose connection was cut
names the last number that it has, and gets what followed.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Protocol

REMEMBERED = 60  # words that a new watcher gets, unless it asks for more
KEPT_WORDS = 1_200  # that a room remembers: some eight minutes
LOT = 100  # words that a watcher gets at once of those that it missed
WAITING = 200  # captions that may wait for a watcher, who then gets all that it missed in lots
MADE = 8  # lots that are kept for others who have missed the same
FORGOTTEN = -1  # the number of a word that the room does not remember
DIGITS = 15  # of a number that a client gives


class Caption:
    """A message to all watchers of a room, formatted once. `end`: the number of the next word."""

    def __init__(
        self, words: Iterable[str] = (), end: int = 0, life: str = "", **fields: Any
    ) -> None:
        head = json.dumps({"type": "words", **fields}, ensure_ascii=False)
        self.end, self.life = end, life
        self.text = f'{head[:-1]}, "words": [{", ".join(words)}]}}'

    @cached_property
    def frame(self) -> bytes:
        """As a WebSocket has it: a whole text, without a mask."""
        data = self.text.encode()
        size = len(data)
        if size < 126:
            return struct.pack("!BB", 0x81, size) + data
        if size < 1 << 16:
            return struct.pack("!BBH", 0x81, 126, size) + data
        return struct.pack("!BBQ", 0x81, 127, size) + data


class Watcher:
    """One who watches. Nobody waits for a slow one, who gets what it missed once there is time.

    write: send a caption at once, if everything before has been taken.
    pin: the digest of the PIN that it gave.
    """

    def __init__(
        self, room: Room, write: Callable[[Caption], bool], pin: bytes | None = None
    ) -> None:
        self.room, self._write, self.pin = room, write, pin
        self._waiting: deque[Caption] = deque()
        self._arrived = asyncio.Event()
        self._slow = False  # captions wait, or are being sent
        self._missed = False  # some were skipped
        self._life, self._seen = "", 0  # of the room; the number of the next word for this watcher
        self._over = False

    def put(self, caption: Caption) -> None:
        if not self._slow and self._write(caption):
            self._saw(caption)
            return
        self._slow = True
        if not self._missed:  # else it gets this with the rest
            self._waiting.append(caption)
        if len(self._waiting) > WAITING:
            self._missed = True
            self._waiting.clear()
        self._arrived.set()

    def _saw(self, caption: Caption) -> None:
        self._life, self._seen = caption.life, caption.end

    def miss(self) -> None:
        """There is more than it was given."""
        self._slow = self._missed = True
        self._arrived.set()

    def send_away(self) -> None:
        """What is said from now on is not for this watcher."""
        self._waiting.clear()
        self._slow, self._missed = True, False
        self.end()

    def end(self) -> None:
        """Nothing more will be said."""
        self._over = True
        self._arrived.set()

    async def captions(self) -> AsyncIterator[Caption]:
        """Those that could not be sent at once, until the end."""
        while True:
            while self._waiting or self._missed:
                if not self._waiting:
                    known = self._life == self.room.life  # else its words have other numbers
                    self._waiting = deque(self.room.since(self._seen if known else FORGOTTEN))
                    self._missed = self._waiting[-1].end < self.room.next
                caption = self._waiting.popleft()
                self._saw(caption)
                yield caption
            self._slow = False
            if self._over:
                return
            self._arrived.clear()
            await self._arrived.wait()


class Occupant(Protocol):
    """A connection that speaks in a room."""

    def stop(self, reason: str) -> None:
        """End it."""


class Said(NamedTuple):
    """A word, formatted, and the number of the stream that said it."""

    stream: int
    text: str


@dataclass
class About:
    """What watchers are told of a room."""

    source: str | None = None
    target: str | None = None
    languages: list[str] = field(default_factory=list)  # into which it can be followed
    speaking: bool = False
    problem: str | None = None  # why nothing is said


class Room:
    """What was said, and who watches."""

    def __init__(self, name: str, life: str = "") -> None:
        self.name, self.life = name, life
        self.words: deque[Said] = deque(maxlen=KEPT_WORDS)
        self.next = 0  # number of the next word
        self.stream = 0  # that speaks, counted from 1; 0: it began elsewhere
        self.about = About()
        self.watchers: dict[Watcher, None] = {}
        self.locks = 0  # how often it was locked
        self.last = (-1, 0)  # sentence and number there of the last word
        self._made: dict[int, list[Caption]] = {}  # for those who come, by where they continue

    # What is said

    def begin(self, **about: Any) -> None:
        """A new stream speaks."""
        self.about = About(**about)
        self.last = (-1, 0)
        self.stream += 1
        self._made.clear()
        told: dict[str, Any] = {"stream": self._identity(), "room": vars(self.about)}
        self._show(self._caption([], again=True, fresh=True, **told))

    def forget(self, life: str, number: int = 0, stream: int = 0) -> None:
        """What was said is nobody's business any more."""
        self.life, self.next, self.stream, self.last = life, number, stream, (-1, 0)
        self.words.clear()
        self._made.clear()

    def new(self, words: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Words without those that a speaker repeats who was cut off: they were shown already."""
        return [word for word in words if place(word) > self.last]

    def say(self, words: list[dict[str, Any]]) -> None:
        """Show new words."""
        words = self.new(words)
        if not words:
            return
        self.last = place(words[-1])
        texts = [json.dumps(word, ensure_ascii=False) for word in words]
        self.words.extend(Said(self.stream, text) for text in texts)
        self.next += len(texts)
        self._made.clear()
        self._show(self._caption(texts))

    def tell(self, **about: Any) -> None:
        """Say what has changed in the room."""
        if any(getattr(self.about, name) != value for name, value in about.items()):
            for name, value in about.items():
                setattr(self.about, name, value)
            self._made.clear()
            self._show(self._caption([], room=vars(self.about)))

    # Who watches

    def join(self, watcher: Watcher, position: str | None) -> None:
        """Show a watcher what it has not seen, and from now on everything.

        position: the last one that it was sent, or a negative number: that many words.
        """
        greeting = self._greeting(position or "")
        for caption in greeting:
            watcher.put(caption)
        if greeting[-1].end < self.next:
            watcher.miss()
        self.watchers[watcher] = None

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.end()

    def lock(self, pin: bytes | None) -> None:
        """From now on the room is for those who gave this PIN."""
        self.locks += 1
        for watcher in list(self.watchers) if pin else ():
            if watcher.pin != pin:
                del self.watchers[watcher]
                watcher.send_away()

    def since(self, number: int) -> list[Caption]:
        """A lot from the word with this number on; from all that is left if it is forgotten."""
        if not self.next - len(self.words) <= number <= self.next:
            number = -KEPT_WORDS
        return self._cached(number)

    def _greeting(self, position: str) -> list[Caption]:
        life, _, number = position.rpartition(".")
        short = len(number) <= DIGITS
        if life and life == self.life and short and number.isdecimal():
            return self.since(int(number))
        counts = short and number.startswith("-") and number[1:].isdecimal()
        last = int(number) if counts else -REMEMBERED
        return self._cached(max(last, -KEPT_WORDS) or -REMEMBERED)

    def _cached(self, number: int) -> list[Caption]:
        if number not in self._made:
            if len(self._made) >= MADE:
                del self._made[next(iter(self._made))]
            self._made[number] = [self._last(-number)] if number < 0 else list(self._from(number))
        return self._made[number]

    def _last(self, count: int) -> Caption:
        """For those who come: a lot of the last words of the present stream."""
        mine = [said.text for said in self.words if said.stream == self.stream][-count:]
        end = self.next - len(mine) + len(lot := mine[:LOT])
        return self._caption(lot, end, again=True, stream=self._identity(), room=vars(self.about))

    def _from(self, number: int) -> Iterator[Caption]:
        """For those who come back: one caption for each stream that has spoken since."""
        missed = list(self.words)[number - self.next :][:LOT] if number < self.next else []
        for stream, words in groupby(missed, lambda said: said.stream):
            number += len(texts := [said.text for said in words])
            yield self._caption(texts, number, stream=self._identity(stream))
        if number == self.next:
            yield self._caption([], stream=self._identity(), room=vars(self.about))

    def _identity(self, stream: int | None = None) -> str | None:
        """What tells a stream from all others; None if it did not begin here."""
        number = self.stream if stream is None else stream
        return f"{self.life}.{number}" if number else None

    def _caption(self, words: list[str], end: int | None = None, **fields: Any) -> Caption:
        end = self.next if end is None else end
        return Caption(words, end, self.life, position=f"{self.life}.{end}", **fields)

    def _show(self, caption: Caption) -> None:
        for watcher in self.watchers:
            watcher.put(caption)


def place(word: dict[str, Any]) -> tuple[int, int]:
    """Where a word stands in the translation: its sentence, and its number there."""
    return word["sentence"], word["read"] - word["lag"]
