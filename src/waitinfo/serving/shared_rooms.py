"""Rooms that several servers share, in a Redis: the speaker at one of them, watchers at all.

For each room Redis has a hash (who may speak) and a stream (what was said in the last minutes).
Each server keeps a copy of the rooms that somebody uses there, and follows them. Words are in
Redis before their speaker is sent them. So a server that dies loses nothing that was sent, and a
Redis that comes back with less than it had gets the rest from the speaker's server.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from waitinfo.serving.guards import Refusal
from waitinfo.serving.room import KEPT_WORDS, LOT, Caption, Room, Watcher
from waitinfo.serving.rooms import (
    KEPT,
    TAKEN,
    Claim,
    Held,
    Occupied,
    Rooms,
    Seat,
    new_life,
    too_many,
)  # fmt: skip
from waitinfo.serving.shared import ANSWER, PREFIX, Shared
from waitinfo.serving.tickets import LOCKED

WANT, PIN, GONE = "want ", "pin ", "gone"
WORDS = f"{PREFIX}:words:"
REMEMBERED = 600  # seconds that a room's words outlive its speaker
PAGE = 50  # entries that are read at a time
FORMER = 16  # rooms that nobody uses any more, whose copies are kept
BEATS = 3  # times that a held room is confirmed while it would be kept

# Programs for Redis. All take the hash and the stream of a room, and then:
# the digest of the secret, seconds, the token of the speaker, the digest of the PIN, a new life.
CLAIM = """
local held = redis.call('HGET', KEYS[1], 'secret')
if held and held ~= ARGV[1] then return false end
if not held and redis.call('HGET', KEYS[1], 'former') ~= ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[2])
end
redis.call('HSET', KEYS[1], 'secret', ARGV[1], 'former', ARGV[1], 'token', ARGV[3], 'pin', ARGV[4])
redis.call('HSETNX', KEYS[1], 'life', ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return {redis.call('HGET', KEYS[1], 'life'), held and 1 or 0}
"""
# The token, seconds, how many entries are kept, the life; the numbers of the next word before, or
# nothing to begin again, and after; entries.
ADD = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return redis.call('EXISTS', KEYS[1]) == 1 and 'replaced' or 'behind'
end
if ARGV[5] == '' then
  redis.call('DEL', KEYS[2])
elseif (redis.call('HGET', KEYS[1], 'next') or '0') ~= ARGV[5] then
  return 'behind'
end
redis.call('HSET', KEYS[1], 'life', ARGV[4], 'next', ARGV[6])
local id
for n = 7, #ARGV do
  id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'entry', ARGV[n])
  redis.call('PUBLISH', KEYS[2], id .. ' ' .. ARGV[n])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])  -- with their PIN
return id
"""
# The token, seconds that its words are remembered.
FREE = """
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'secret', 'token')
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
"""


# The digests of the secret and of the PIN. What others said is not for a new audience.
LOCK = """
local secret = redis.call('HGET', KEYS[1], 'secret')
if secret and secret ~= ARGV[1] then return end
if redis.call('HGET', KEYS[1], 'former') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'pin', ARGV[2])
  redis.call('PUBLISH', KEYS[2], 'pin ' .. ARGV[2])
else
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('PUBLISH', KEYS[2], 'gone')
end
"""


class Copy(Held):
    """A room as this server knows it."""

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.token = ""  # of the speaker here
        self.claim: Claim | None = None
        self.order = asyncio.Lock()  # entries are written one after the other
        self.users = 0  # that need it at the moment
        self.seen = (0, 0)  # the last entry
        self.loading = asyncio.Lock()
        self.waiting: deque[str] | None = deque()  # entries that came before it was complete
        self.complete = asyncio.Event()

    def again(self) -> Copy:
        """The same, to be completed from its last entry on."""
        found = Copy(self.room)
        found.seen, found.pin = self.seen, self.pin
        return found


class SharedRooms(Rooms):
    """As `Rooms`, and other servers have the same."""

    def __init__(self, watchers: int, shared: Shared, kept: float) -> None:
        super().__init__(watchers)
        self._shared, self._kept = shared, kept
        self._claim, self._add = shared.script(CLAIM), shared.script(ADD)
        self._release, self._locking = shared.script(FREE), shared.script(LOCK)
        self._copies: dict[str, Copy] = {}
        self._former: OrderedDict[str, Copy] = OrderedDict()  # that nobody used last
        self._kept_for: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._channel: Any = None  # where news comes from

    # Speaking

    async def speak(self, claim: Claim) -> Seat:
        async with self._copy(claim.name) as held, held.order:
            token = secrets.token_hex(8)
            found = await self._shared.ask(lambda: self._take(claim, token))
            if found is None:
                raise Occupied(TAKEN)
            life, kept = found
            waiting = self._waiting(claim.owner)
            if not kept and len(waiting) >= KEPT and claim.counts:
                await self._shared.ask(lambda: self._free_in_redis(claim.name, token))
                raise too_many()
            waiting.pop(claim.name, None)
            await self._shared.ask(lambda: self._load(held))
            if held.room.life != life:
                held.room.forget(life)
            self._sit(held, claim)
            held.token, held.claim = token, claim
            held.secret, held.owner = claim.digest, claim.owner
            pin = claim.pin_digest
            entry = {"about": claim.about, "begin": not claim.again, "pin": pin and pin.hex()}
            try:
                for name in claim.rooms[1:]:
                    await self._shared.ask(partial(self._lock_all, name, claim))
                await self._shared.ask(lambda: self._write(held, entry))
            except BaseException:
                if held.speaker is claim.speaker:  # which will hear that it does not speak
                    self.leave(held, self._kept if kept else 0.0)
                raise
        self._start(self._confirm(held, token))
        return Seat(self, held, claim)

    async def _lock_all(self, name: str, claim: Claim) -> None:
        """Lock a room that others may know."""
        held, pin = self._copies.get(name), claim.pin_digest
        if held is not None and held.claim is not None and held.claim.digest == claim.digest:
            held.claim = replace(held.claim, pin=claim.pin)
        await self._locking(self._keys(name), [claim.digest.hex(), pin.hex() if pin else ""])

    async def _take(self, claim: Claim, token: str, life: str = "") -> tuple[str, bool] | None:
        """The life of the room, and whether it was kept for this speaker; None: it is another's."""
        keys, pin = self._keys(claim.name), claim.pin_digest
        told = pin.hex() if pin else "", life or new_life()
        arguments = [claim.digest.hex(), self._seconds, token, *told]
        found: list[Any] | None = await self._claim(keys, arguments)
        return None if found is None else (found[0], bool(found[1]))

    async def say(self, held: Held, words: list[dict[str, Any]]) -> None:
        assert isinstance(held, Copy)
        async with held.order:
            if new := held.room.new(words):
                for at in range(0, len(new), LOT):
                    entry = {"words": new[at : at + LOT]}
                    await self._shared.insist(partial(self._write, held, entry))

    async def _write(self, held: Copy, entry: dict[str, Any]) -> None:
        """Add an entry for all servers, and show it here."""
        room = held.room
        entry |= {
            "life": room.life, "at": room.next, "stream": room.stream + entry.get("begin", False),
            "token": held.token, "last": room.last,
        }  # fmt: skip
        after = room.next + len(entry.get("words", ()))
        done = await self._put(held, [room.next, after, json.dumps(entry)])
        if done == "behind":  # Redis has forgotten something: what is known here is written again
            done, claim = "replaced", held.claim
            if claim is not None and await self._take(claim, held.token, room.life) is not None:
                done = await self._put(held, ["", after, *_history(held), json.dumps(entry)])
        if done != "replaced":
            self._apply(held, done, entry)
        elif held.speaker is not None:
            held.speaker.stop("replaced")

    async def _put(self, held: Copy, what: list[Any]) -> str:
        arguments = [held.token, self._seconds, KEPT_WORDS, held.room.life, *what]
        found: str = await self._add(self._keys(held.room.name), arguments)
        return found

    async def _confirm(self, held: Copy, token: str) -> None:
        """As long as the speaker is here, the room is held."""
        while held.token == token and held.speaker is not None:
            await asyncio.sleep(self._kept / BEATS)
            async with held.order:
                if held.token == token and held.speaker is not None:
                    with suppress(*self._shared.away):
                        await self._write(held, {})

    def leave(self, held: Held, kept: float) -> None:
        assert isinstance(held, Copy)
        held.speaker = None
        if self._closing:
            held.room.end()
        self._start(self._left(held, held.token, kept))

    async def _left(self, held: Copy, token: str, kept: float) -> None:
        async with held.order:
            if held.token == token and held.speaker is None:
                about = {**vars(held.room.about), "speaking": False}
                with suppress(Refusal):  # without Redis, which then forgets the room in time
                    await self._shared.ask(lambda: self._write(held, {"about": about}))
                    await self._keep(held, token, kept)
                held.secret = held.owner = held.claim = None
                self._drop(held)

    async def _keep(self, held: Copy, token: str, kept: float) -> None:
        """The room is kept for its speaker, or free."""
        name = held.room.name
        if kept > 0:
            self._waiting(held.owner)[name] = asyncio.get_running_loop().time() + kept
        else:
            await self._shared.ask(lambda: self._free_in_redis(name, token))

    async def _free_in_redis(self, name: str, token: str) -> None:
        await self._release(self._keys(name), [token, REMEMBERED])

    def _waiting(self, owner: object) -> dict[str, float]:
        """Rooms of a client that wait for their speakers, and until when."""
        found, now = self._kept_for.setdefault(owner, {}), asyncio.get_running_loop().time()
        for name in [name for name, until in found.items() if until <= now]:
            del found[name]
        return found

    # Watching

    async def pin(self, name: str) -> bytes | None:
        key = self._keys(name)[0]
        found = await self._shared.ask(lambda: self._shared.client.hget(key, "pin"))
        return bytes.fromhex(found) if found else None

    async def watch(
        self,
        name: str,
        write: Callable[[Caption], bool],
        position: str | None = None,
        pin: bytes | None = None,
    ) -> Watcher:
        async with self._copy(name) as held:
            while True:  # whoever locks the room from here on is heard here
                locks = held.room.locks
                known = await self.pin(name)
                if locks == held.room.locks:
                    break
            if known not in (None, pin):
                raise Refusal(401, "pin", LOCKED)
            held.pin = known or held.pin  # Redis may have forgotten it, and not this copy its words
            return await super().watch(name, write, position, pin)

    def close(self, speakers: bool = False) -> None:
        self._closing = True
        for held in list(self._copies.values()):
            if held.speaker is None or speakers:
                held.room.end()

    async def stop(self) -> None:
        for task in (*self._tasks, *([self._following] if self._following else ())):
            task.cancel()

    # Following

    @asynccontextmanager
    async def _copy(self, name: str) -> AsyncIterator[Copy]:
        """The copy of a room, complete; it stays meanwhile."""
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow())
        self._find(name)
        held = self._copies[name]
        held.users += 1
        try:
            await asyncio.wait_for(held.complete.wait(), ANSWER)
            yield held
        except TimeoutError:
            raise Refusal(503, "redis", "rooms are away for a moment", ANSWER) from None
        finally:
            held.users -= 1
            self._drop(held)

    def _find(self, name: str) -> Held:
        if name not in self._rooms:
            super()._find(name)
            former = self._former.pop(name, None)
            self._rooms[name] = self._copies[name] = Copy(Room(name)) if former is None else former
            self._start(self._subscribe(name))
        return self._rooms[name]

    def _drop(self, held: Held) -> None:
        name = held.room.name
        assert isinstance(held, Copy)
        used = held.secret is not None or held.room.watchers or held.users
        if not used and name in self._copies:
            del self._copies[name]
            del self._rooms[name]
            if held.complete.is_set():  # so that it is not read as a whole for each who comes
                self._former[name] = held.again()
            while len(self._former) > FORMER:
                self._former.popitem(last=False)
            self._start(self._unsubscribe(name))

    async def want(self, name: str, language: str) -> None:
        with suppress(*self._shared.away):
            await self._shared.client.publish(self._keys(name)[1], f"{WANT}{language}")

    async def _subscribe(self, name: str) -> None:
        with suppress(*self._shared.away):  # else once Redis is there again
            if self._channel is not None:
                await self._channel.subscribe(self._keys(name)[1])

    async def _unsubscribe(self, name: str) -> None:
        with suppress(*self._shared.away):
            if self._channel is not None and name not in self._copies:
                await self._channel.unsubscribe(self._keys(name)[1])

    async def _follow(self) -> None:
        """Take the news of all rooms that are watched here, for ever."""
        while True:
            try:
                async with self._shared.client.pubsub() as channel:
                    for held in self._copies.values():
                        held.waiting = deque()  # something may have been missed
                    await channel.subscribe(
                        f"{WORDS}{{}}", *(self._keys(n)[1] for n in self._copies)
                    )
                    self._channel = channel
                    while True:
                        if news := await channel.get_message(timeout=ANSWER):
                            self._hear(news)
            except self._shared.away:
                self._channel = None
                await asyncio.sleep(0.2)

    def _hear(self, news: dict[str, Any]) -> None:
        held = self._copies.get(news["channel"].removeprefix(WORDS)[1:-1])
        if held is None:
            return
        if news["type"] == "subscribe":
            self._start(self._complete(held))
        elif news["type"] == "message" and news["data"].startswith(WANT):
            self.asked(held.room.name, news["data"].removeprefix(WANT))
        elif news["type"] == "message" and news["data"].startswith(PIN):
            self._lock(held, bytes.fromhex(news["data"].removeprefix(PIN)) or None)
        elif news["type"] == "message" and news["data"] == GONE:
            held.room.forget(new_life())
            self._lock(held, None)
        elif news["type"] == "message":
            if held.waiting is not None:
                held.waiting.append(news["data"])
            else:
                self._read(held, news["data"])

    async def _complete(self, held: Copy) -> None:
        await self._shared.insist(lambda: self._load(held))

    async def _load(self, held: Copy) -> None:
        """What Redis has of a room, and what has come meanwhile, in small steps."""
        client, keys = self._shared.client, self._keys(held.room.name)
        async with held.loading:
            held.waiting = held.waiting or deque()
            life, pin = await client.hmget(keys[0], "life", "pin")
            # A Redis that has forgotten a room is told again by its speaker's server.
            if life is not None or not held.complete.is_set():
                if life != held.room.life:
                    held.room.forget(life or new_life())
                self._lock(held, bytes.fromhex(pin or "") or None)  # it may have been meanwhile
            found: list[Any] = [None]
            while found and life:
                found = await client.xrange(keys[1], f"({held.seen[0]}-{held.seen[1]}", count=PAGE)
                for number, fields in found:
                    self._read(held, f"{number} {fields['entry']}")
                    await asyncio.sleep(0)
            while held.waiting:
                self._read(held, held.waiting.popleft())
                await asyncio.sleep(0)
            held.waiting = None
            held.complete.set()

    def _read(self, held: Copy, text: str) -> None:
        number, _, entry = text.partition(" ")
        self._apply(held, number, json.loads(entry))

    def _apply(self, held: Copy, number: str, entry: dict[str, Any]) -> None:
        """Do what an entry says, unless it has been done."""
        seen = tuple(map(int, number.split("-")))
        if seen <= held.seen:
            return
        held.seen = (seen[0], seen[1])
        room = held.room
        if "pin" in entry:
            self._lock(held, bytes.fromhex(entry["pin"] or "") or None)
        if entry["token"] != held.token and held.speaker is not None and entry.get("about"):
            held.speaker.stop("replaced")
        if entry["life"] != room.life:
            room.forget(entry["life"], entry["at"], entry["stream"])
            room.last = tuple(entry["last"])
        if entry["stream"] < room.stream or entry["at"] + len(entry.get("words", ())) < room.next:
            return
        if entry["at"] > room.next:  # the words between were forgotten
            room.forget(room.life, entry["at"], entry["stream"])
            room.last = tuple(entry["last"])
        if entry["stream"] > room.stream:
            room.stream = entry["stream"] - 1
            room.begin(**(entry.get("about") or vars(room.about)))
        elif entry.get("about"):
            room.tell(**entry["about"])
        room.say(entry.get("words", [])[room.next - entry["at"] :])

    def _keys(self, name: str) -> list[str]:
        return [f"{PREFIX}:room:{{{name}}}", f"{WORDS}{{{name}}}"]

    @property
    def _seconds(self) -> int:
        return max(1, round(self._kept))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _history(held: Copy) -> list[str]:
    """All that is remembered of a room, as entries."""
    room, found = held.room, []
    at = room.next - len(room.words)
    for stream, said in groupby(room.words, lambda each: each.stream):
        words = [json.loads(each.text) for each in said]
        entry = {"life": room.life, "at": at, "stream": stream, "token": held.token}
        found.append(
            json.dumps({**entry, "words": words, "last": (-1, 0), "about": vars(room.about)})
        )
        at += len(words)
    return found
