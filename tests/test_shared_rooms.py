"""Several servers with one Redis: rooms and limits of keys hold everywhere, whatever dies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.redis_server import RedisServer
from tests.replicas import play
from tests.serving import receive, running, send, start, toy_hub, until, wait_for, words_of
from waitinfo.serving import shared
from waitinfo.serving.guards import Caller, KeyLimits, Keys, Refusal
from waitinfo.serving.room import LOT
from waitinfo.serving.rooms import KEPT, Claim, Occupied
from waitinfo.serving.shared import Shared
from waitinfo.serving.shared_rooms import SharedRooms
from waitinfo.serving.tickets import pin_digest

KEY = {"Authorization": "Bearer the-only-key"}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


def test_a_server_dies_and_redis_forgets_everything() -> None:
    """All who watch, at both servers, have the speaker's text in the end."""
    found = asyncio.run(play(watchers=20, words=30, pace=0.1, keeps=False))
    assert found["complete"] == 20 and found["words"] > 20
    assert found["speaker_connections"] > 1 and found["connections"] > 20


def test_a_room_of_two_servers(redis: RedisServer) -> None:
    """Its speaker may move; nobody else takes it, wherever; who comes late sees the last words."""
    secret = "s" * 16
    with running(toy_hub(rooms=redis.url)) as one, running(toy_hub(rooms=redis.url)) as other:
        told = ["waitinfo", "waitinfo-pin.2468"]
        with (
            other.connect("/v1/watch?room=hall", subprotocols=told) as watcher,
            other.connect("/v1/watch?room=hall") as untold,
            one.connect() as speaker,
        ):
            receive(watcher)
            start(speaker, k=2, room="hall", secret=secret, pin="2468")
            with pytest.raises(ConnectionClosed):
                while not words_of([receive(untold)]):
                    pass
            with other.connect() as attacker:
                send(attacker, "start", k=2, room="hall")
                assert receive(attacker)["code"] == "room"
            send(speaker, "text", text="ba be bi. ", id=1)
            said = words_of(until(speaker, "idle"))
            with pytest.raises(InvalidStatus), other.connect("/v1/watch?room=hall"):
                pass
            with other.connect() as moved:
                assert start(moved, k=2, room="hall", secret=secret)["type"] == "started"
                assert until(speaker, "ended")[-1]["reason"] == "replaced"
                send(moved, "text", text="bo bu. ", id=1)
                send(moved, "flush")
                now = words_of(until(moved, "idle"))
                heard = []
                while len(heard) < len(said + now):
                    heard += words_of([receive(watcher)])
                assert heard == said + now
                with one.connect("/v1/watch?room=hall") as late:
                    assert words_of([receive(late)]) == now
                send(moved, "end")
                until(moved, "ended")
        with one.connect() as next_one:
            wait_for(lambda: start(next_one, k=2, room="hall")["type"] == "started")


class Talking:
    """Somebody who speaks."""

    why = ""

    def stop(self, reason: str) -> None:
        self.why = reason


@asynccontextmanager
async def shared_rooms(redis: RedisServer) -> AsyncIterator[SharedRooms]:
    shared = Shared(redis.url)
    found = SharedRooms(5, shared, 600.0)
    try:
        yield found
        while found._tasks - {task for task in found._tasks if "_confirm" in repr(task)}:
            await asyncio.sleep(0.01)
    finally:
        await found.stop()
        await shared.stop()


def claim(name: str, secret: str = "s", pin: str | None = None) -> Claim:
    return Claim(name, Talking, Talking(), secret * 16, pin)


async def answer(work: Awaitable[Any]) -> str:
    """How it was refused."""
    with pytest.raises((Refusal, Occupied)) as refused:
        await work
    return str(refused.value)


def test_nobody_loses_a_room_by_those_of_others(redis: RedisServer) -> None:
    """Who has too many that wait opens no more."""

    async def run() -> None:
        async with shared_rooms(redis) as rooms:
            for number in range(KEPT):
                for name in (f"kept{number}", "kept0"):  # who comes back opens none
                    (await rooms.speak(claim(name))).leave(600.0)
                    while name in rooms._rooms:
                        await asyncio.sleep(0.005)
            assert "wait for their speakers" in await answer(rooms.speak(claim("more")))
            for number in range(KEPT):
                assert "another speaker" in await answer(rooms.speak(claim(f"kept{number}", "o")))
            others = Claim("more", RedisServer, Talking(), "o" * 16)
            (await rooms.speak(others)).leave(0.0)  # it was not taken

    asyncio.run(run())


def test_a_full_room_is_read_in_small_steps_and_once(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose speaker wrote much at once."""
    turns, reads = 0, Counter[int]()
    read = SharedRooms._read

    def counted(rooms: SharedRooms, held: Any, text: str) -> None:
        assert len(json.loads(text.partition(" ")[2]).get("words", ())) <= LOT
        reads[turns] += 1
        read(rooms, held, text)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        async with shared_rooms(redis) as one, shared_rooms(redis) as other:
            seat = await one.speak(claim("full"))
            for number in range(200):
                await seat.say([word(number)])
            await seat.say([word(number) for number in range(200, 1_500)])
            monkeypatch.setattr(SharedRooms, "_read", counted)
            turning = asyncio.ensure_future(turn())
            for _ in range(3):
                watcher = await other.watch("full", lambda _: True, "-1200")
                assert other._rooms["full"].room.next == 1_500
                other.unwatch(watcher)
                assert "full" not in other._rooms
            turning.cancel()
            assert 200 < reads.total() < 250 and max(reads.values()) <= 2
            seat.leave(0.0)

    asyncio.run(run())


def word(number: int) -> dict[str, Any]:
    return {"word": str(number), "sentence": 0, "read": number, "lag": 0}


def test_a_lock_holds_for_those_who_were_let_in_before(redis: RedisServer) -> None:
    """They were let in at another server, which hears of the lock while they sit down."""

    async def run() -> None:
        async with shared_rooms(redis) as one, shared_rooms(redis) as other:
            await one.speak(claim("early", pin="2468"))
            assert "PIN" in await answer(other.watch("early", lambda _: True))
            right = pin_digest("early", "2468")
            other.unwatch(await other.watch("early", lambda _: True, pin=right))
            ask = other.pin

            async def slow(name: str) -> bytes | None:
                found = await ask(name)
                if other._rooms["late"].pin is None:
                    await one.speak(claim("late", pin="2468"))
                    while other._rooms["late"].pin is None:
                        await asyncio.sleep(0.005)
                return found

            other.pin = slow  # type: ignore[method-assign]
            assert "PIN" in await answer(other.watch("late", lambda _: True))
            assert other.watching == 0

    asyncio.run(run())


def test_who_cannot_sit_down_leaves_no_speaker(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis goes away between the two things that it is asked for."""

    async def run() -> None:
        async with shared_rooms(redis) as rooms:
            put = rooms._put

            async def fail(*_: Any) -> str:
                raise ConnectionError

            for room in ("first", "again"):
                if room == "again":
                    await rooms.speak(claim(room))
                rooms._put = fail  # type: ignore[method-assign]
                assert "away" in await answer(rooms.speak(claim(room)))
                rooms._put = put  # type: ignore[method-assign]
                while room in rooms._rooms:
                    await asyncio.sleep(0.01)
            (await rooms.speak(claim("first", "o"))).leave(0.0)  # nobody has it
            await answer(rooms.speak(claim("again", "o")))  # it is kept for its speaker
            (await rooms.speak(claim("again"))).leave(0.0)

    monkeypatch.setattr(shared, "ANSWER", 0.2)
    asyncio.run(run())


def test_who_leaves_at_once_gives_back_what_was_counted() -> None:
    """While Redis is still asked."""

    class Slow:
        async def enter(self, caller: Caller) -> bool:
            await asyncio.sleep(3_600)
            return True

    async def run() -> None:
        caller = Caller(streams=4)
        caller.ledger = Slow()  # type: ignore[assignment]
        entering = asyncio.ensure_future(caller.enter(1.0, 3))
        await asyncio.sleep(0)
        assert caller.open == 3
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        assert caller.open == 0

    asyncio.run(run())


def test_limits_of_keys_hold_everywhere(redis: RedisServer) -> None:
    def hub():
        keys = Keys([KeyLimits("the-only-key", streams=2, words_per_minute=60)])
        return toy_hub(keys=keys, rooms=redis.url)

    with running(hub()) as one, running(hub()) as other:
        with one.connect(additional_headers=KEY) as first:
            start(first, k=2)
            with other.connect(additional_headers=KEY) as second:
                start(second, k=2)
                for server in (one, other):
                    with (
                        pytest.raises(InvalidStatus) as error,
                        server.connect(additional_headers=KEY),
                    ):
                        pass
                    assert error.value.response.status_code == 429
                send(first, "text", text="ba " * 100)
                assert until(first, "error")[-1]["code"] == "rate"
                caller = next(iter(other.hub.keys.callers.values()))
                wait_for(lambda: caller.spend(0) > 0)  # it knows of the words at the other server
                send(second, "text", text="ba ")
                assert until(second, "error")[-1]["code"] == "rate"
        wait_for(lambda: opens(other))


def opens(server) -> bool:
    """Whether the streams that were closed have been given back."""
    try:
        with server.connect(additional_headers=KEY):
            return True
    except InvalidStatus:
        return False
