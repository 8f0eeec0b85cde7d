"""Clients of servers that rest, refuse, cut connections and answer late."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.serving import local, running, toy_hub
from tests.streams import record, wait_for
from waitinfo import AsyncClient, Client, WaitinfoError
from waitinfo.serving.stream import StreamConnection


def test_an_idle_stream_rests_and_goes_on() -> None:
    with running(toy_hub(idle=0.2)) as quick, Client(quick.url) as client:
        stream = client.stream(k=2)
        events = stream.push("ba be bi")
        wait_for(lambda: quick.hub.models.find().free == 4)
        rested = stream.connections  # once, unless this machine was too busy to send text in time
        wait_for(lambda: stream.remote._resting)
        assert stream.connections == rested
        events += stream.push("bo bu.") + stream.finish()
        assert record(events) == local("ba be bi bo bu.") and stream.connections > rested


@pytest.mark.parametrize("late", ["text", "end"])
def test_what_meets_a_closing_idle_stream_is_not_lost(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent before the client hears that the server has closed the stream, which reads no more."""
    sent, farewell = threading.Event(), StreamConnection.farewell

    async def wait_and_tell(connection: StreamConnection, reason: str) -> None:
        if reason == "idle":
            await asyncio.to_thread(sent.wait, 600)
        await farewell(connection, reason)

    monkeypatch.setattr(StreamConnection, "farewell", wait_and_tell)
    with running(toy_hub(idle=0.2)) as quick, Client(quick.url) as client:
        stream = client.stream(k=2)
        stream.push("ba be bi", wait=False)
        wait_for(lambda: stream.connections == 1 and quick.hub.models.find().free == 4)
        if late == "text":
            stream.push("bo bu.", wait=False)
        else:
            stream.finish(wait=False)
        wait_for(lambda: not stream.remote._unsent)
        sent.set()
        if late == "text":
            wait_for(lambda: stream.remote._done == 2)
            stream.finish(wait=False)
        text = "ba be bi bo bu." if late == "text" else "ba be bi"
        assert record(list(stream)) == local(text) and stream.connections > 1


STARTED = {"type": "started", "model": "toy", "system": "wait-k", "vocabulary": "v"}


class Faulty:
    """A server that does one thing to the first connections, and answers all later ones."""

    def __init__(self, fault: str, times: int) -> None:
        self.fault, self.times, self.connections = fault, times, 0
        self.go_on = asyncio.Event()
        self.heard: list[dict] = []

    async def __aenter__(self) -> Faulty:
        self.server = await serve(self._answer, "127.0.0.1", 0, process_request=self._request)
        (listening,) = self.server.sockets
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    def _request(self, socket: ServerConnection, request: object) -> None:
        self.connections += 1
        if self.fault == "no handshake" and self.connections <= self.times:
            socket.transport.abort()

    async def _answer(self, socket: ServerConnection) -> None:
        self.heard.append(json.loads(await socket.recv()))
        if self.fault == "late":
            await self.go_on.wait()
        elif self.connections <= self.times:
            if self.fault == "rests":
                await socket.send(json.dumps(STARTED))
                await socket.recv()
                await socket.send(json.dumps({"type": "ended", "reason": "idle"}))
                await self.go_on.wait()
            elif self.fault == "cut":
                await socket.send(json.dumps(STARTED))
            else:
                await socket.send(json.dumps({"type": "error", "code": self.fault, "message": "x"}))
            return
        await socket.send(json.dumps(STARTED))
        async for data in socket:
            message = json.loads(data)
            self.heard.append(message)
            if message["type"] == "end":
                await socket.send(json.dumps({"type": "ended", "reason": "end"}))
            elif "id" in message:
                await socket.send(json.dumps({"type": "idle", "id": message["id"]}))


@pytest.mark.parametrize("fault", ["no handshake", "start", "full", "cut"])
def test_what_may_pass_is_tried_again(fault: str) -> None:
    async def run() -> int:
        async with Faulty(fault, times=2) as server, AsyncClient(server.url).stream() as stream:
            await stream.push("ba")
            await stream.finish()
            return server.connections

    assert asyncio.run(run()) == 3


def test_a_dial_that_is_turned_during_the_start_counts() -> None:
    async def run() -> list[dict]:
        async with Faulty("late", times=1) as server, AsyncClient(server.url).stream(9) as stream:
            while not server.heard:
                await asyncio.sleep(0.001)
            stream.k = 2
            server.go_on.set()
            await stream.push("ba")
            return server.heard

    start, dial, text, *_ = asyncio.run(run())
    assert (start["k"], dial, text["type"]) == (9, {"type": "set", "k": 2}, "text")


def test_text_that_comes_when_a_stream_begins_to_rest() -> None:
    """Before the task that sends has ended, and while the server has not closed the socket yet."""

    async def run() -> int:
        async with Faulty("rests", times=1) as server, AsyncClient(server.url).stream(2) as stream:
            loop, ended = asyncio.get_running_loop(), stream._ended

            def push_then(reason: str) -> None:
                ended(reason)
                if reason == "idle":
                    loop.call_soon(stream._hand_in, {"type": "text", "text": "ba "})
                    loop.call_later(0.1, server.go_on.set)

            stream._ended = push_then  # type: ignore[method-assign]
            while stream._done < 1:
                await asyncio.sleep(0.001)
            await stream.finish()
            return stream.connections

    assert asyncio.run(run()) == 2


@pytest.mark.parametrize("fault", ["no handshake", "start", "full", "cut"])
def test_patience_ends(fault: str) -> None:
    """Connecting alone is no progress."""

    async def run() -> None:
        async with Faulty(fault, times=10**6) as server:
            stream = AsyncClient(server.url, patience=0.5).stream()
            with pytest.raises(WaitinfoError, match=server.url):
                await stream.push("ba")
            await stream.close()

    asyncio.run(run())


def test_other_errors_are_told_at_once() -> None:
    async def run() -> int:
        async with Faulty("refused", times=9) as server:
            with pytest.raises(WaitinfoError, match="x"):
                await AsyncClient(server.url).stream().push("ba")
            return server.connections

    assert asyncio.run(run()) == 1
