"""Rooms: what one stream writes, shown to everybody who watches it.

Whoever opens a room holds its secret, and only who shows it speaks there. The room is kept for a
while after its speaker has gone, so that nobody else takes the place before the speaker is back.
A ticket gives leave to watch one room for some hours, and no other right.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import secrets
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Protocol

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal

NAME = re.compile(r"[\w.-]{1,64}")
REMEMBERED = 60  # words that a new watcher gets
WAITING = 200  # captions that may wait for a watcher, who then gets the last words instead
ROOMS = 4_096  # with speakers, watchers or neither
KEPT = 16  # rooms without a speaker that are kept for one client


class Occupied(WaitinfoError):
    """Somebody else holds the room."""

    code: ClassVar[str] = "room"


class Caption:
    """A message to all watchers of a room, formatted once."""

    def __init__(self, words: list[dict[str, Any]], **fields: Any) -> None:
        message = {"type": "words", "words": words, **fields}
        self.text = json.dumps(message, ensure_ascii=False)

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
    """One who watches. Nobody waits for a slow one, who gets the last words once there is time.

    write: send a caption at once, if everything before has been taken.
    """

    def __init__(self, room: Room, write: Callable[[Caption], bool]) -> None:
        self._room, self._write = room, write
        self._waiting: deque[Caption] = deque()
        self._arrived = asyncio.Event()
        self._slow = False  # captions wait, or are being sent
        self._missed = False  # some were skipped
        self._over = False

    def put(self, caption: Caption) -> None:
        if not self._slow and self._write(caption):
            return
        self._slow = True
        self._waiting.append(caption)
        if len(self._waiting) > WAITING:
            self._missed = True
            self._waiting.clear()
        self._arrived.set()

    def end(self) -> None:
        """Nothing more will be said."""
        self._over = True
        self._arrived.set()

    async def captions(self) -> AsyncIterator[Caption]:
        """Those that could not be sent at once, until the end."""
        while True:
            while self._waiting or self._missed:
                if self._missed:
                    self._missed = False
                    self._waiting = deque([self._room.snapshot])
                yield self._waiting.popleft()
            self._slow = False
            if self._over:
                return
            self._arrived.clear()
            await self._arrived.wait()


class Occupant(Protocol):
    """A connection that speaks in a room."""

    def stop(self, reason: str) -> None:
        """End it."""


class Room:
    """The last words, who watches, and who may speak."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.words: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.watchers: dict[Watcher, None] = {}
        self.last = (-1, 0)  # sentence and number of the last word
        self.secret: bytes | None = None  # digest; None: anybody may open the room
        self.speaker: Occupant | None = None
        self.owner: object | None = None  # whose client opened it
        self.timer: asyncio.TimerHandle | None = None  # until it is free
        self._snapshot: Caption | None = None

    @property
    def snapshot(self) -> Caption:
        """The last words."""
        if self._snapshot is None:
            self._snapshot = Caption(list(self.words), again=True)
        return self._snapshot

    def begin(self) -> None:
        """A new stream speaks: what was said before does not count any more."""
        self.last, self._snapshot = (-1, 0), None
        self.words.clear()
        self._show(Caption([], again=True, fresh=True))

    def say(self, words: list[dict[str, Any]]) -> None:
        """Show words. A speaker that was cut off repeats some, which were shown already."""
        words = [word for word in words if place(word) > self.last]
        if not words:
            return
        self.last = place(words[-1])
        self.words.extend(words)
        self._snapshot = None
        self._show(Caption(words))

    def _show(self, caption: Caption) -> None:
        for watcher in self.watchers:
            watcher.put(caption)

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.end()


def place(word: dict[str, Any]) -> tuple[int, int]:
    """Where a word stands in the translation: its sentence, and its number there."""
    return word["sentence"], word["read"] - word["lag"]


class Seat:
    """The place of a speaker in a room."""

    def __init__(self, rooms: Rooms, room: Room, speaker: Occupant, secret: str) -> None:
        self._rooms, self._room, self._speaker, self.secret = rooms, room, speaker, secret

    @property
    def name(self) -> str:
        return self._room.name

    def say(self, words: list[dict[str, Any]]) -> None:
        if self._room.speaker is self._speaker:  # else the client has connected again
            self._room.say(words)

    def leave(self, kept: float) -> None:
        """Stop speaking; nobody else may speak for some seconds."""
        if self._room.speaker is self._speaker:
            self._rooms.leave(self._room, kept)


class Rooms:
    """All rooms by name. A room is there while somebody holds it or watches."""

    def __init__(self, watchers: int) -> None:
        self._limit, self.watching = watchers, 0
        self._rooms: dict[str, Room] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._rooms)

    def speak(
        self, name: str, secret: str | None, owner: object, speaker: Occupant, again: bool = False
    ) -> Seat:
        """Take the place of the speaker; raises if somebody else has it.

        again: the stream continues one that was interrupted.
        """
        check_name(name)
        room = self._rooms.get(name)
        if secret is None:
            secret = secrets.token_urlsafe(16)
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        if room is None:
            room = self._add(name)
        if room.secret is None:
            room.secret, room.owner = digest, owner
        elif not hmac.compare_digest(room.secret, digest):
            raise Occupied("room: it belongs to another speaker; choose another name")
        if room.timer is not None:
            room.timer.cancel()
        if not again:
            room.begin()
        former, room.speaker, room.timer = room.speaker, speaker, None
        if former is not None:
            former.stop("replaced")
        return Seat(self, room, speaker, secret)

    def leave(self, room: Room, kept: float) -> None:
        """The speaker of a room has gone."""
        room.speaker = None
        if self._closing:
            room.end()
        if kept <= 0 or self._closing:
            self._free(room)
            return
        room.timer = asyncio.get_running_loop().call_later(kept, self._free, room)
        mine = [each for each in self._rooms.values() if each.owner is room.owner and each.timer]
        if len(mine) > KEPT:
            self._free(min(mine, key=lambda each: each.timer.when() if each.timer else 0.0))

    def _free(self, room: Room) -> None:
        """Let anybody speak in a room."""
        if room.timer is not None:
            room.timer.cancel()
        room.timer = room.secret = room.owner = None
        self._drop(room)

    def watch(self, name: str, write: Callable[[Caption], bool]) -> Watcher:
        """Watch a room, from its last words on."""
        check_name(name)
        if self.watching >= self._limit:
            raise Refusal(503, "watchers", "too many watch already", 30.0)
        room = self._rooms.get(name) or self._add(name)
        watcher = Watcher(room, write)
        watcher.put(room.snapshot)
        room.watchers[watcher] = None
        self.watching += 1
        return watcher

    def unwatch(self, name: str, watcher: Watcher) -> None:
        room = self._rooms[name]
        del room.watchers[watcher]
        self.watching -= 1
        self._drop(room)

    def close(self, speakers: bool = False) -> None:
        """The server stops: watchers stay until the speaker of their room has gone, or not."""
        self._closing = True
        for room in list(self._rooms.values()):
            if room.speaker is None or speakers:
                room.end()
            if room.speaker is None:
                self._free(room)

    def _add(self, name: str) -> Room:
        if len(self._rooms) >= ROOMS:
            raise Refusal(503, "rooms", "there are too many rooms already", 30.0)
        room = self._rooms[name] = Room(name)
        return room

    def _drop(self, room: Room) -> None:
        if room.secret is None and not room.watchers:
            del self._rooms[room.name]


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise WaitinfoError("room: use up to 64 letters, digits, dots, hyphens or underscores")


class Tickets:
    """Signed leave to watch a room. Every server with the same secret takes them."""

    def __init__(self, secret: bytes, seconds: float) -> None:
        self._secret, self._seconds = secret, seconds

    def issue(self, room: str) -> str:
        expires = f"{int(time.time() + self._seconds):x}"
        return f"{expires}.{self._signature(room, expires)}"

    def check(self, room: str, ticket: str) -> None:
        """Raise unless the ticket is for this room, and not too old."""
        expires, _, signature = ticket.partition(".")
        expected = self._signature(room, expires)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise Refusal(401, "ticket", "this ticket is not for this room")
        if int(expires, 16) < time.time():
            raise Refusal(401, "ticket", "this ticket has expired; ask the speaker for a new link")

    def _signature(self, room: str, expires: str) -> str:
        text = f"watch\n{room}\n{expires}".encode()
        found = hmac.digest(self._secret, text, "sha256")[:16]
        return base64.urlsafe_b64encode(found).decode().rstrip("=")


def find_ticket(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The ticket of a request: ?ticket=, or a subprotocol, as pages send it."""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith("waitinfo-ticket."):
            return offered.strip().removeprefix("waitinfo-ticket.")
    return query.get("ticket")
