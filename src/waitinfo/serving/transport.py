"""Fewer system calls for each WebSocket: one write and no needless pause per turn of the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

if TYPE_CHECKING:
    Base = asyncio.Protocol
else:
    Base = AutoWebSocketsProtocol


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
