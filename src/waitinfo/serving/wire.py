"""A WebSocket with limits: messages in, messages out, no client that blocks a task for ever."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import WebSocket
from pydantic import BaseModel
from starlette.responses import JSONResponse
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from waitinfo.serving.guards import Refusal
from waitinfo.serving.protocol import Malformed

if TYPE_CHECKING:
    Base = asyncio.Protocol
else:
    Base = AutoWebSocketsProtocol


class Gone(Exception):
    """The client has left."""


class Stalled(Exception):
    """The client does not read what it is sent."""


class Deadline:
    """A limit of time for whatever one task at a time does inside it; raises Stalled.

    Its timer is set again when it has run out, not each time: there are thousands of messages a
    second, and hardly one that waits.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None  # inside
        self._since = 0.0
        self._ticking = self._missed = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task, self._since, self._missed = asyncio.current_task(), loop.time(), False
        if not self._ticking:
            self._tick(loop, self._seconds)

    def _tick(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._ticking = True
        loop.call_later(seconds, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticking = False
        if self._task is None:
            return
        left = self._since + self._seconds - loop.time()
        if left > 0:
            self._tick(loop, left)
        else:
            self._missed = True
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None
        alone = self._missed and task is not None and task.uncancel() == 0
        if alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise Stalled from None


class Wire:
    """Sends and receives for one connection. Several tasks may send."""

    def __init__(self, socket: WebSocket, stall: float, largest: int) -> None:
        self._socket, self._stall, self._largest = socket, stall, largest
        self._lock = asyncio.Lock()
        self._deadline = Deadline(stall)
        self.closed = False

    async def send(self, message: BaseModel | dict[str, Any]) -> None:
        if isinstance(message, BaseModel):
            text = message.model_dump_json(exclude_none=True)
        else:
            text = json.dumps(message, ensure_ascii=False)
        async with self._lock:
            if self.closed:
                raise Gone
            try:
                with self._deadline:
                    await self._socket.send({"type": "websocket.send", "text": text})
            except Stalled:
                raise
            except Exception:  # each server has its own exception for a closed connection
                self.closed = True
                raise Gone from None

    async def receive(self) -> str:
        """The next message."""
        found = await self._socket.receive()
        if found["type"] == "websocket.disconnect":
            self.closed = True
            raise Gone
        text = found.get("text")
        if text is None:
            raise Malformed("messages are text, not bytes")
        if len(text) > self._largest:
            raise Malformed(f"a message may have {self._largest:,} characters")
        return text

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self.closed:
            return
        self.closed = True
        with suppress(Exception):  # the client may have left meanwhile
            await asyncio.wait_for(self._socket.close(code, reason), self._stall)


async def deny(socket: WebSocket, refusal: Refusal) -> None:
    """Answer a request for a WebSocket with an HTTP error."""
    await socket.send_denial_response(
        JSONResponse(
            {"error": refusal.message, "reason": refusal.reason},
            refusal.status,
            headers=retry_header(refusal),
        )
    )


def retry_header(refusal: Refusal) -> dict[str, str]:
    if refusal.retry_after is None:
        return {}
    return {"Retry-After": str(max(1, round(refusal.retry_after)))}


class Gathering:
    """Writes once per turn of the event loop, and pauses reading only at the end of one.

    uvicorn pauses reading after each message until the application takes it, which it mostly does
    in the same turn. Words and the message that all is worked off mostly come in the same turn too.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []  # to be written
        self._pause = self._paused = False  # whether reading is to be paused, and whether it is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.write(b"".join(waiting))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def pause_reading(self) -> None:
        self._pause = True
        self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        if self._pause and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._pause = False
        if self._paused:
            self._paused = False
            self._transport.resume_reading()


class WebSocketProtocol(Base):
    """uvicorn's own, on a transport that gathers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]
