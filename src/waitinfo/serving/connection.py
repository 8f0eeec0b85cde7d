"""What connections of both protocols do: read and write at the same time, until one ends."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar

from fastapi import WebSocket

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Client, Refusal
from waitinfo.serving.hub import Hub
from waitinfo.serving.live import Live
from waitinfo.serving.logs import log, logger
from waitinfo.serving.protocol import Malformed
from waitinfo.serving.rooms import Seat
from waitinfo.serving.wire import Gone, Stalled, Wire, choose, deny
from waitinfo.streaming.replay import ReplayError

# Why a stream ends, and what the WebSocket is closed with.
CODES = {
    "end": 1000, "idle": 1000, "replaced": 1000, "closing": 1012, "slow": 1008, "full": 1013,
    "refused": 1008, "error": 1011,
}  # fmt: skip
REASONS = {
    "idle": "no text came",
    "replaced": "the room's speaker has connected again",
    "closing": "the server stops; connect again",
    "slow": "the client does not read",
    "full": "all streams are in use; try again later",
    "refused": "the stream cannot be resumed so",
    "error": "the stream failed",
}


class Silent(Exception):
    """No text came for too long."""


class Stopped(Exception):
    """The server ends the stream."""


class Connection(ABC):
    """One WebSocket, at most one stream."""

    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, socket: WebSocket, hub: Hub, client: Client) -> None:
        settings = hub.settings
        self.socket, self.hub, self.client = socket, hub, client
        self.wire = Wire(socket, settings.stall, settings.message_size)
        self.live: Live | None = None
        self.seat: Seat | None = None  # in the room where the stream speaks
        self._stop = asyncio.Event()
        self._why = "closing"
        self._slowed = False

    @classmethod
    async def serve(cls, socket: WebSocket, hub: Hub) -> None:
        """Answer a request for a WebSocket."""
        try:
            client = hub.admit(socket.headers, socket.query_params)
            hub.check_space()
            client.enter(hub.settings.retry)
        except Refusal as refusal:
            hub.refuse(refusal)
            await deny(socket, refusal)
            return
        try:
            await socket.accept(choose(socket, *cls.subprotocols))
            connection = cls(socket, hub, client)
            with hub.connection(connection):
                await connection._run()
        finally:
            client.leave()

    async def _run(self) -> None:
        reason = "gone"
        try:
            reason = await self._until_stopped(self.session())
        except Gone:
            pass
        except Stalled:
            reason = "slow"
        except Silent:
            reason = "idle"
        except Stopped:
            reason = self._why
        except Refusal as refusal:
            reason = "full"
            self.hub.refuse(refusal)
        except Exception as error:
            reason = "refused" if isinstance(error, ReplayError) else "error"
            await self._failed(error)
        finally:
            if self.live is not None:
                self.live.close()
            if self.seat is not None:  # of a stream that was cut, it waits for its speaker
                self.seat.leave(0.0 if reason == "end" else self.hub.settings.kept)
        await self._finish(reason)

    async def _failed(self, error: Exception) -> None:
        """Tell the client why its stream ends, if it is something that it may know."""
        code = "failed"
        if isinstance(error, WaitinfoError):
            message, code = str(error), getattr(error, "code", code)
        else:
            message = "an error of the server"
            logger.error("a connection failed", exc_info=error)
        with suppress(Gone, Stalled):
            await self.error(code, message, None, fatal=True)

    async def _finish(self, reason: str) -> None:
        self.hub.metrics.closed.labels(reason).inc()
        log("closed", logging.DEBUG, reason=reason)
        if reason not in ("gone", "slow"):
            with suppress(Gone, Stalled):
                await self.farewell(reason)
        if reason != "gone":
            await self.wire.close(CODES[reason], REASONS.get(reason, ""))

    async def _until_stopped(self, session: Coroutine[Any, Any, str]) -> str:
        """Run a session until it ends or the server does."""
        running = asyncio.ensure_future(session)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise Stopped
            return running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)

    def stop(self, reason: str = "closing") -> None:
        """End the stream now."""
        self._why = reason
        self._stop.set()

    # For both protocols

    async def both(self, live: Live, writing: Coroutine[Any, Any, None]) -> None:
        """Read and write until all is written, one of the two fails, or the stream is idle."""
        reader, writer = asyncio.ensure_future(self._read(live)), asyncio.ensure_future(writing)
        watcher = asyncio.ensure_future(self._watch(live))
        tasks = {reader, writer, watcher}
        try:
            while not writer.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                tasks -= done
        finally:
            for task in (reader, writer, watcher):
                task.cancel()
            await asyncio.gather(reader, writer, watcher, return_exceptions=True)

    async def _read(self, live: Live) -> None:
        """Handle messages until the client ends the stream."""
        while not live.ended:
            await self._handle(live)
            await live.room()

    async def _watch(self, live: Live) -> None:
        """A stream is idle if neither the client nor the server had anything to do for it."""
        idle = self.hub.settings.idle
        while (quiet := live.quiet()) < idle:
            await asyncio.sleep(idle - quiet)
        raise Silent

    async def _handle(self, live: Live) -> None:
        """One message. A bad one is answered with an error, and the stream lives on."""
        try:
            wait = await self.message(live, await self.wire.receive())
        except WaitinfoError as error:
            code = error.code if isinstance(error, Malformed) else "refused"
            await self.complain(code, str(error))
            return
        if wait > 0:
            if not self._slowed:
                self._slowed = True
                await self.complain("rate", "this key has used up its words per minute", wait)
            await self.client.pause()

    async def complain(self, code: str, message: str, retry: float | None = None) -> None:
        """Tell the client of an error that does not end the stream."""
        self.hub.metrics.errors.labels(code).inc()
        await self.error(code, message, retry, fatal=False)

    # Of each protocol

    @abstractmethod
    async def session(self) -> str:
        """The whole conversation; why it ended."""

    @abstractmethod
    async def message(self, live: Live, text: str) -> float:
        """Do what a message of the running stream asks for; seconds to wait for the next."""

    @abstractmethod
    async def error(self, code: str, message: str, retry: float | None, fatal: bool) -> None:
        """Send an error."""

    @abstractmethod
    async def farewell(self, reason: str) -> None:
        """The last messages."""

    @abstractmethod
    async def announce(self, seconds: float) -> None:
        """Say that the server stops in so many seconds."""
