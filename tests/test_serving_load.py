"""What keeps the event loop cheap under load: gathered writes, lasting timers, paced looks."""

from __future__ import annotations

import asyncio
import selectors
import socket
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from waitinfo.serving import pace
from waitinfo.serving.pace import PacedSelector, paced_loop
from waitinfo.serving.wire import Deadline, Gathering, Stalled


class Recorder:
    """A transport that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

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

    monkeypatch.setattr(pace.time, "sleep", sleep)
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    pairs = [socket.socketpair() for _ in range(5)]
    with PacedSelector() as selector:
        for ours, theirs in pairs:
            selector.register(ours, selectors.EVENT_READ)
            theirs.send(b".")
        assert len(selector.select(None)) == 5 and pauses == []  # the last look was long ago
        assert len(selector.select(0)) == 5 and pauses == []  # there is something else to do
        selector.select(None)
        assert pauses == [pytest.approx(5 * pace.EACH)]
        monkeypatch.setattr(pace, "LONGEST", 2 * pace.EACH)
        selector.select(None)
        assert pauses[1] == pytest.approx(2 * pace.EACH)
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
