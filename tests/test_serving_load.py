"""What keeps the event loop cheap under load, and memory bounded: writes, timers, looks."""

from __future__ import annotations

import asyncio
import io
import selectors
import socket
from typing import Any, ClassVar

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from tests.serving import toy_hub
from waitinfo.serving import pace, server, wire
from waitinfo.serving.pace import Pace
from waitinfo.serving.server import PacedSelector, Server, paced_loop
from waitinfo.serving.wire import (
    PIECES,
    Deadline,
    Gathering,
    Stalled,
    WebSocketProtocol,
    Wire,
)


class Recorder:
    """A transport to a client that reads nothing; notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.max_size = 1 << 18
        self.protocol: Any = None  # is told when more than 64 KiB wait

    def write(self, data: bytes) -> None:
        before = self.get_write_buffer_size()
        self.calls.append(data)
        if self.protocol and before <= 1 << 16 < self.get_write_buffer_size():
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return sum(len(call) for call in self.calls if isinstance(call, bytes))

    def get_extra_info(self, name: str) -> None:
        """Nothing is known of the client."""

    @property
    def paused(self) -> bool:
        settled = [call for call in self.calls if call in ("pause", "resume")]
        return settled[-1:] == ["pause"]

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return "close" in self.calls


async def turn() -> None:
    """Let everything run that is due now."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_writes_of_a_turn_are_one() -> None:
    async def check() -> None:
        found = Recorder()
        transport = Gathering(found)
        transport.write(b"one ")
        transport.write(b"two")
        assert found.calls == []
        await turn()
        assert found.calls == [b"one two"]
        transport.write(b"three")
        await turn()
        assert found.calls == [b"one two", b"three"]
        transport.write(b"last")
        assert not transport.is_closing()
        transport.close()  # loses nothing
        await turn()
        assert found.calls[2:] == [b"last", "close"] and transport.is_closing()

    asyncio.run(check())


def test_only_pauses_that_last_are_made() -> None:
    async def check() -> None:
        found = Recorder()
        transport = Gathering(found)
        transport.pause_reading()
        transport.resume_reading()
        await turn()
        assert found.calls == []
        transport.pause_reading()
        await turn()
        assert found.calls == ["pause"]
        transport.resume_reading()
        transport.resume_reading()
        assert found.calls == ["pause", "resume"]
        transport.pause_reading()
        await turn()
        assert found.calls == ["pause", "resume", "pause"]

    asyncio.run(check())


def test_what_takes_too_long_is_ended() -> None:
    async def check() -> None:
        deadline = Deadline(0.05)
        with pytest.raises(Stalled), deadline:
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        with deadline:  # and may be used again
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(check(), 60))


def test_the_time_counts_from_the_beginning_of_each_wait() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        deadline = Deadline(600)
        with deadline:
            deadline._since -= 700
        deadline._check(loop)  # nothing is under way
        with pytest.raises(Stalled), deadline:
            deadline._check(loop)  # has just begun
            await turn()
            deadline._since -= 700
            deadline._check(loop)
            await turn()

    asyncio.run(check())


def test_a_deadline_hides_no_cancellation() -> None:
    async def check() -> None:
        deadline = Deadline(60)

        async def work() -> None:
            with deadline:
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(check())


def test_looks_are_rarer_with_more_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(server.time, "sleep", sleep)
    monkeypatch.setattr(server.time, "monotonic", lambda: now[0])
    pairs = [socket.socketpair() for _ in range(5)]
    with PacedSelector() as selector:
        for ours, theirs in pairs:
            selector.register(ours, selectors.EVENT_READ)
            theirs.send(b".")
        assert len(selector.select(None)) == 5 and pauses == []  # the last look was long ago
        assert len(selector.select(0)) == 5 and pauses == []  # there is something else to do
        selector.select(None)
        assert pauses == [pytest.approx(5 * server.EACH)]
        monkeypatch.setattr(server, "LONGEST", 2 * server.EACH)
        selector.select(None)
        assert pauses[1] == pytest.approx(2 * server.EACH)
    for ours, theirs in pairs:
        ours.close(), theirs.close()


def test_a_paced_loop_is_a_loop() -> None:
    async def echo() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            found = await reader.read()
            writer.close()
            return found

    with asyncio.Runner(loop_factory=paced_loop) as runner:
        assert runner.run(echo()) == b"hello\n"


# Clients that do not read


def connected(transport: Recorder) -> WebSocketProtocol:
    """The server's side of a WebSocket."""
    server = Server(toy_hub(), "127.0.0.1", 0)
    server.config.load()
    protocol = WebSocketProtocol(server.config, server.server_state, {})
    transport.protocol = protocol
    protocol.connection_made(transport)  # type: ignore[arg-type]
    protocol.data_received(
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return protocol


def masked(opcode: int, data: bytes, final: bool = True) -> bytes:
    """A frame of a client, with a mask of zeros."""
    return bytes([opcode | 0x80 * final, 0x80 | len(data), 0, 0, 0, 0]) + data


@pytest.mark.parametrize("size", [0, 125])
def test_a_flood_of_pings_is_not_answered_in_memory(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client sends pings as long as the server reads, and reads no pong."""
    monkeypatch.setattr(Pace, "wait", lambda *_: 0.0)  # nor is it slowed

    async def check() -> None:
        transport = Recorder()
        protocol = connected(transport)
        await turn()
        frame, sent = masked(9, b"x" * size), 0
        while not transport.paused:
            data = frame * (transport.max_size // len(frame))
            sent += len(data)
            assert sent < 1 << 20, "the server reads on"
            protocol.data_received(data)
            await turn()
        assert transport.get_write_buffer_size() < (1 << 16) + (1 << 15)
        protocol.resume_writing()
        assert not transport.paused
        protocol.connection_lost(None)
        await turn()

    asyncio.run(check())


def test_a_flood_of_frames_is_read_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a client that reads all answers."""
    worked = [0.0]
    monkeypatch.setattr(wire.time, "thread_time", lambda: worked[0])
    monkeypatch.setattr(pace, "ALL", 0.0)
    monkeypatch.setattr(pace, "BEYOND", 0.0)

    async def check() -> None:
        transport = Recorder()
        protocol = connected(transport)
        await turn()
        handle, costs = protocol.handle_events, iter([1e-5] * 8 + [3e-3] * 9)

        def events() -> None:
            worked[0] += next(costs)
            handle()

        monkeypatch.setattr(protocol, "handle_events", events)
        sizes, sent = [], io.BytesIO(masked(10, b"") * 20_000)
        while not transport.paused:
            sizes.append(transport.max_size)
            protocol.data_received(sent.read(transport.max_size))
            sizes[-1] = transport.max_size
            await turn()
        assert sizes[0] <= 512 and sizes[-1] < max(sizes) and len(sizes) <= 13
        protocol.connection_lost(None)
        await turn()

    asyncio.run(check())


def test_messages_that_wait_leave_the_others_a_turn() -> None:
    async def check() -> None:
        turns = [0]

        class Full:
            """A client whose messages are there already."""

            scope: ClassVar[dict[str, Any]] = {}

            async def receive(self) -> dict[str, Any]:
                return {"type": "websocket.receive", "text": "{}"}

        async def others() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        waiting = asyncio.ensure_future(others())
        found = Wire(Full(), 1.0, 100)  # type: ignore[arg-type]
        taken = [turns[0] for _ in range(100) if await found.receive()]
        assert max(taken.count(turn) for turn in taken) < 10
        waiting.cancel()

    asyncio.run(check())


def test_a_message_in_endless_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "wait", lambda *_: 0.0)  # it is not slowed

    async def check() -> None:
        transport = Recorder()
        protocol = connected(transport)
        await turn()
        protocol.data_received(masked(1, b"{", final=False))
        for _ in range(10_000):
            protocol.data_received(masked(0, b"", final=False))
            if transport.is_closing():
                break
        assert len(protocol.frames) <= PIECES and transport.is_closing()
        assert int.from_bytes(transport.calls[-2][2:4]) == 1009
        protocol.connection_lost(None)
        await turn()

    asyncio.run(check())


def test_a_closed_connection_does_not_wait_for_ever() -> None:
    async def check() -> None:
        transport, loop = Recorder(), asyncio.get_running_loop()
        gathering = Gathering(transport)
        gathering.write(b"never read")
        gathering.close()
        (timer,) = loop._scheduled  # type: ignore[attr-defined]
        assert timer.when() > loop.time()
        timer._run()
        assert transport.calls == [b"never read", "close", "abort"]

    asyncio.run(check())
