"""Several servers with one Redis: rooms and limits of keys hold everywhere, whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.redis_server import RedisServer
from tests.replicas import play
from tests.serving import receive, running, send, start, toy_hub, until, wait_for, words_of
from waitinfo.serving.guards import KeyLimits, Keys

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
