"""Rooms: what one stream writes, shown to everybody who watches it."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal

NAME = re.compile(r"[\w.-]{1,64}")
REMEMBERED = 60  # words that a new watcher gets
WAITING = 200  # messages that may wait for a watcher; older ones are skipped


class Occupied(WaitinfoError):
    """Another stream speaks in the room, or an earlier connection of the same client."""

    code: ClassVar[str] = "room"


class Watcher:
    """One who watches. Captions that it did not fetch in time are skipped, not kept."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, Any]] = deque(maxlen=WAITING)
        self._arrived = asyncio.Event()

    def put(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._arrived.set()

    async def get(self) -> dict[str, Any]:
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()


class Room:
    """The words of a stream, and who watches them."""

    def __init__(self) -> None:
        self.words: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.watchers: set[Watcher] = set()
        self.speaker: object | None = None

    def say(self, speaker: object, words: list[dict[str, Any]]) -> None:
        if speaker is not self.speaker:
            return  # its client has connected again, and speaks from there
        self.words.extend(words)
        for watcher in self.watchers:
            watcher.put({"type": "words", "words": words})


class Rooms:
    """All rooms by name. A room is there while somebody speaks or watches in it."""

    def __init__(self, watchers: int) -> None:
        self._limit = watchers
        self._rooms: dict[str, Room] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def check(self, name: str | None, again: bool) -> None:
        """Raise unless a stream may speak in this room."""
        if name is None:
            return
        check_name(name)
        if name in self._rooms and self._rooms[name].speaker is not None and not again:
            raise Occupied("room: another stream speaks there; choose another name")

    @contextmanager
    def speak(self, name: str | None, speaker: object, again: bool) -> Iterator[Room | None]:
        """The room that a stream speaks in; one at a time, unless it has come back (`again`)."""
        self.check(name, again)
        if name is None:
            yield None
            return
        room = self._rooms.setdefault(name, Room())
        room.speaker = speaker
        try:
            yield room
        finally:
            if room.speaker is speaker:
                room.speaker = None
                self._leave(name)

    @contextmanager
    def watch(self, name: str) -> Iterator[Watcher]:
        """Watch a room, from its last words on."""
        check_name(name)
        if sum(len(room.watchers) for room in self._rooms.values()) >= self._limit:
            raise Refusal(503, "watchers", "too many watch already", 30.0)
        room = self._rooms.setdefault(name, Room())
        watcher = Watcher()
        watcher.put({"type": "words", "words": list(room.words), "again": True})
        room.watchers.add(watcher)
        try:
            yield watcher
        finally:
            room.watchers.discard(watcher)
            self._leave(name)

    def _leave(self, name: str) -> None:
        room = self._rooms[name]
        if room.speaker is None and not room.watchers:
            del self._rooms[name]


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise WaitinfoError("room: use up to 64 letters, digits, dots, hyphens or underscores")
