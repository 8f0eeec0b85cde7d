"""Rooms: what one stream writes, shown to everybody who watches it.

Whoever opens a room holds its secret, and only who shows it speaks there. The room is kept for a
while after its speaker has gone, so that nobody else takes the place before the speaker is back.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal
from waitinfo.serving.room import Caption, Occupant, Room, Watcher
from waitinfo.serving.tickets import LOCKED, pin_digest

NAME = re.compile(r"[\w.-]{1,64}")
ROOMS = 4_096  # with speakers, watchers or neither
KEPT = 16  # rooms of one client that may wait for their speakers when it opens another one


TAKEN = "room: it belongs to another speaker; choose another name"


class Occupied(WaitinfoError):
    """Somebody else holds the room."""

    code: ClassVar[str] = "room"


@dataclass(frozen=True)
class Claim:
    """What a speaker says of itself when it takes its place."""

    name: str
    owner: object  # whose client it is
    speaker: Occupant
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    pin: str | None = None  # that watchers have to give
    source: str | None = None
    target: str | None = None
    languages: tuple[str, ...] = ()  # into which the room can be followed
    again: bool = False  # the stream continues one that was interrupted

    @property
    def about(self) -> dict[str, Any]:
        """What watchers are told."""
        known = {"source": self.source, "target": self.target, "languages": [*self.languages]}
        return {**known, "speaking": True, "problem": None}

    @property
    def counts(self) -> bool:
        """Whether it is a room of its own, and not one of its languages."""
        return "/" not in self.name

    @property
    def rooms(self) -> list[str]:
        """The room in all its languages."""
        others = self.languages if self.counts else ()
        return [self.name, *(f"{self.name}/{language}" for language in others)]

    @property
    def pin_digest(self) -> bytes | None:
        room = self.name.partition("/")[0]  # in every language
        return None if self.pin is None else pin_digest(room, self.pin)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret.encode("utf-8", "surrogatepass")).digest()


class Seat:
    """The place of a speaker in a room."""

    def __init__(self, rooms: Rooms, held: Held, claim: Claim) -> None:
        self._rooms, self._held, self._claim = rooms, held, claim
        self.left: Callable[[float], None] = lambda kept: None  # is told so

    @property
    def name(self) -> str:
        return self._claim.name

    @property
    def secret(self) -> str:
        return self._claim.secret

    async def say(self, words: list[dict[str, Any]]) -> None:
        """Show words; returns once the room has them."""
        if self._held.speaker is self._claim.speaker:  # else the client has connected again
            await self._rooms.say(self._held, words)

    def leave(self, kept: float) -> None:
        """Stop speaking; nobody else may speak for some seconds."""
        if self._held.speaker is self._claim.speaker:
            self.left(kept)
            self._rooms.leave(self._held, kept)


class Held:
    """A room and who may speak there."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.secret: bytes | None = None  # digest; None: anybody may open the room
        self.former: bytes | None = None  # digest of whoever spoke last
        self.pin: bytes | None = None  # digest
        self.speaker: Occupant | None = None
        self.owner: object | None = None  # whose client opened it
        self.timer: asyncio.TimerHandle | None = None  # until it is free


class Rooms:
    """All rooms by name. A room is there while somebody holds it or watches."""

    def __init__(self, watchers: int) -> None:
        self._limit, self.watching = watchers, 0
        self._rooms: dict[str, Held] = {}
        self._closing = False
        self.asked: Callable[[str, str], None] = lambda room, language: None  # for a language

    def __len__(self) -> int:
        return len(self._rooms)

    async def speak(self, claim: Claim) -> Seat:
        """Take the place of the speaker; raises if somebody else has it."""
        held = self._find(claim.name)
        if held.secret is None:
            waiting = (each for each in self._rooms.values() if each.timer is not None)
            if sum(each.owner is claim.owner for each in waiting) >= KEPT and claim.counts:
                self._drop(held)
                raise too_many()
            held.secret = claim.digest
            held.owner = claim.owner
        elif not hmac.compare_digest(held.secret, claim.digest):
            raise Occupied(TAKEN)
        for each in (self._rooms[name] for name in claim.rooms if name in self._rooms):
            if each.secret in (None, claim.digest):  # else somebody's interpreter has not ended
                if each.former not in (None, claim.digest):  # nothing of it is for the new audience
                    each.room.forget(new_life())
                self._lock(each, claim.pin_digest)
        held.former = claim.digest
        self._sit(held, claim)
        if claim.again:
            held.room.tell(**claim.about)
        else:
            held.room.begin(**claim.about)
        return Seat(self, held, claim)

    def _lock(self, held: Held, pin: bytes | None) -> None:
        held.pin = pin
        held.room.lock(pin)

    def _sit(self, held: Held, claim: Claim) -> None:
        if held.timer is not None:
            held.timer.cancel()
        former, held.speaker, held.timer = held.speaker, claim.speaker, None
        if former is not None:
            former.stop("replaced")

    def watched(self, name: str) -> bool:
        """Whether anybody watches a room here."""
        return name in self._rooms and bool(self._rooms[name].room.watchers)

    def tell(self, name: str, problem: str) -> None:
        """Tell those who watch here why nothing is said."""
        if name in self._rooms:
            self._rooms[name].room.tell(problem=problem)

    async def want(self, name: str, language: str) -> None:
        """Somebody watches a room in a language."""
        self.asked(name, language)

    async def say(self, held: Held, words: list[dict[str, Any]]) -> None:
        held.room.say(words)

    def leave(self, held: Held, kept: float) -> None:
        """The speaker of a room has gone."""
        held.speaker = None
        if self._closing:
            held.room.end()
        else:
            held.room.tell(speaking=False)
        if kept <= 0 or self._closing:
            self._free(held)
            return
        held.timer = asyncio.get_running_loop().call_later(kept, self._free, held)

    def _free(self, held: Held) -> None:
        """Let anybody speak in a room. What was said stays behind its PIN."""
        if held.timer is not None:
            held.timer.cancel()
        held.timer = held.secret = held.owner = None
        self._drop(held)

    async def pin(self, name: str) -> bytes | None:
        """The digest of the PIN of a room, if it has one."""
        held = self._rooms.get(name)
        return None if held is None else held.pin

    async def watch(
        self,
        name: str,
        write: Callable[[Caption], bool],
        position: str | None = None,
        pin: bytes | None = None,
    ) -> Watcher:
        """Watch a room, from a position or its last words on, having given a PIN of this digest."""
        if self.watching >= self._limit:
            raise Refusal(503, "watchers", "too many watch already", 30.0)
        held = self._find(name)
        watcher = Watcher(held.room, write, pin)
        try:
            if held.pin not in (None, pin):
                raise Refusal(401, "pin", LOCKED)
            held.room.join(watcher, position)
        finally:
            self._drop(held)  # if that failed
        self.watching += 1
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        watcher.room.watchers.pop(watcher, None)  # it may have been sent away
        self.watching -= 1
        if (held := self._rooms.get(watcher.room.name)) is not None:
            self._drop(held)

    def close(self, speakers: bool = False) -> None:
        """The server stops: watchers stay until the speaker of their room has gone, or not."""
        self._closing = True
        for held in list(self._rooms.values()):
            if held.speaker is None or speakers:
                held.room.end()
            if held.speaker is None:
                self._free(held)

    def _find(self, name: str) -> Held:
        """The room of this name, opened if it is not there."""
        found = self._rooms.get(name)
        if found is None:
            if len(self._rooms) >= ROOMS:
                raise Refusal(503, "rooms", "there are too many rooms already", 30.0)
            found = self._rooms[name] = Held(Room(name, new_life()))
        return found

    def _drop(self, held: Held) -> None:
        if held.secret is None and not held.room.watchers:
            del self._rooms[held.room.name]


def too_many() -> Refusal:
    """Nobody loses a room, and so somebody gets none."""
    return Refusal(503, "rooms", f"{KEPT} rooms of yours wait for their speakers already", 30.0)


def new_life() -> str:
    """A name for what is said in a room from now on."""
    return f"{int(1e6 * asyncio.get_running_loop().time()):x}"


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise WaitinfoError("room: use up to 64 letters, digits, dots, hyphens or underscores")
