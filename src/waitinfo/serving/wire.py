"""A WebSocket with limits: messages in, messages out, no client that blocks a task for ever."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import WebSocket
from pydantic import BaseModel
from starlette.responses import JSONResponse
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from waitinfo.serving.guards import Refusal
from waitinfo.serving.http import PROTOCOL
from waitinfo.serving.pace import LONGEST, PACE, Lane, Pace
from waitinfo.serving.protocol import Malformed

if TYPE_CHECKING:
    Base: Any = asyncio.Protocol
else:
    Base = AutoWebSocketsProtocol


# Bytes read at a time. While they are parsed, all others wait: so it is as many as take a moment.
LEAST, MOST, MOMENT = 1 << 8, 1 << 14, 0.001
STALLED = {"type": "websocket.disconnect", "code": 1008, "reason": "the client does not read"}
PIECES = 1_024  # frames of one message
CLOSING = 20.0  # seconds in which a client has to read the rest
MESSAGE, LETTER = 1.5e-4, 3e-8  # seconds that a message takes, and a character of it
FRAMES = 5e-5  # and whatever is parsed at once, at least


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
        self._pace: Pace = socket.scope.get(PACE) or Pace(Lane())
        self._taken = 0.0  # of the event loop's time, in this turn
        self._lock = asyncio.Lock()
        self._deadline = Deadline(stall)
        self._protocol = socket.scope.get("extensions", {}).get(PROTOCOL)
        self.closed = False

    def write(self, frame: bytes) -> bool:
        """Send a frame made for many at once, unless the client has not taken all before it."""
        if self._protocol is None or self.closed or self._lock.locked():
            return False
        return bool(self._protocol.write_frame(frame))

    async def send(self, message: BaseModel | dict[str, Any] | str) -> None:
        if isinstance(message, BaseModel):
            text = message.model_dump_json(exclude_none=True)
        elif isinstance(message, str):
            text = message
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
        """The next message, which must be text."""
        found = await self.receive_any()
        if isinstance(found, bytes):
            raise Malformed("messages are text, not bytes")
        return found

    async def receive_any(self) -> str | bytes:
        """The next message: text, or audio."""
        found = await self._socket.receive()
        if found["type"] == "websocket.disconnect":
            if found.get("reason") == STALLED["reason"]:
                raise Stalled
            self.closed = True
            raise Gone
        text: str | bytes | None = found.get("text")
        if text is None:
            text = found.get("bytes") or b""
        await self._keep_pace(MESSAGE + LETTER * len(text))
        if len(text) > self._largest:
            unit = "characters" if isinstance(text, str) else "bytes"
            raise Malformed(f"a message may have {self._largest:,} {unit}")
        return text

    async def _keep_pace(self, cost: float) -> None:
        """Messages that wait already would be handled before anybody else has a turn."""
        self._taken += cost
        if self._taken > MOMENT:
            self._taken = 0.0
            await asyncio.sleep(0)
        await self._pace.turn(cost)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self.closed:
            return
        self.closed = True
        try:
            await asyncio.wait_for(self._socket.close(code, reason), self._stall)
        except TimeoutError:
            if self._protocol is not None:  # it will not read the rest either
                self._protocol.transport.abort()
        except Exception:
            """The client has left meanwhile."""


class Inbox:
    """Messages that came while those before them had to wait."""

    def __init__(self, wire: Wire, count: int, size: int) -> None:
        self._wire, self._count, self._most = wire, count, size
        self._came: deque[str | bytes | Malformed] = deque()
        self._size = 0  # of all of them
        self._coming: asyncio.Future[str | bytes] | None = None

    async def next(self) -> str | bytes:
        """The next message."""
        if self._came:
            found = self._came.popleft()
            if isinstance(found, Malformed):
                raise found
            self._size -= len(found)
            return found
        if self._coming is None:
            return await self._wire.receive_any()
        coming, self._coming = self._coming, None
        return await coming

    async def fill_until(self, over: asyncio.Future[None]) -> None:
        """Take messages until something is over, or as many wait as may."""
        while not over.done() and len(self._came) < self._count and self._size < self._most:
            if self._coming is None:
                self._coming = asyncio.ensure_future(self._wire.receive_any())
            both: set[asyncio.Future[Any]] = {over, self._coming}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._coming.done():
                self._take(self._coming)
                self._coming = None

    def _take(self, coming: asyncio.Future[str | bytes]) -> None:
        try:
            found = coming.result()
        except Malformed as error:  # it is answered in its turn
            self._came.append(error)
        else:
            self._came.append(found)
            self._size += len(found)

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()


def choose(socket: WebSocket, *names: str) -> str | None:
    """The first subprotocol offered by the client that is one of these."""
    offered = socket.scope.get("subprotocols") or []
    return next((name for name in offered if name in names), None)


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
        self._pause = self._full = self._resting = False  # why reading is to be paused
        self._paused = False  # whether it is
        self._portion = transport.max_size = LEAST

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
        if self._transport.get_write_buffer_size():  # the client does not read, and may never
            self._loop.call_later(CLOSING, self._transport.abort)

    def pause_reading(self) -> None:
        self._pause = True
        self._loop.call_soon(self._settle)

    def resume_reading(self) -> None:
        self._pause = False
        self._settle()

    def full(self, full: bool) -> None:
        """A client that does not read is not read from: its pings would be answered in memory."""
        self._full = full
        self._settle()

    def rest(self, seconds: float, then: Callable[[], None]) -> None:
        """Read nothing for some time, and then go on."""
        self._resting = True
        self._loop.call_later(seconds, self._rested, then)
        self._settle()

    def _rested(self, then: Callable[[], None]) -> None:
        self._resting = False
        then()
        if not self._transport.is_closing():
            self._settle()

    def parsed(self, size: int, cost: float) -> None:
        """Parsing `size` bytes took `cost` seconds: read more at a time from now on, or fewer."""
        if cost > MOMENT:
            self._portion = max(LEAST, self._portion // 2)
        elif size == self._portion and cost < MOMENT / 4:
            self._portion = min(MOST, 2 * self._portion)
        self._transport.max_size = self._portion

    def _settle(self) -> None:
        wanted = self._pause or self._full or self._resting
        if wanted and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not wanted:
            self._transport.resume_reading()
        self._paused = wanted


class WebSocketProtocol(Base):
    """uvicorn's own, with bounds on what waits in memory, on a transport that gathers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]
        self._held, self._place = b"", 0.0  # data that waits for its turn

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.config.app.state.hub.visitors.leave(self.client[0] if self.client else "")

    @property
    def _pace(self) -> Pace | None:
        """Whose pace this is; None until the handshake has been looked at."""
        scope = getattr(self, "scope", None)
        return scope and scope.get(PACE)

    def data_received(self, data: bytes) -> None:
        """Frames that are no messages, such as pings, take time as well."""
        self._held += data
        if (pace := self._pace) is not None:
            self._place = pace.book(FRAMES, self.loop.time())
        self._parse()

    def _parse(self) -> None:
        """Parse what has come in its turn: others of the same address may have sent, too."""
        if self.transport.is_closing():
            return
        pace = self._pace
        if pace is not None and (rest := pace.wait(self._place, self.loop.time())) > 0:
            self.transport.rest(min(rest, LONGEST), self._parse)
            return
        data, self._held = self._held, b""
        began = time.thread_time()
        super().data_received(data)
        cost = time.thread_time() - began
        self.transport.parsed(len(data), cost)
        if (pace := self._pace) is not None:
            pace.charge(max(0.0, cost - FRAMES), self.loop.time())

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)  # type: ignore[misc]
        if (scope := getattr(self, "scope", None)) is not None:
            scope["extensions"][PROTOCOL] = self

    def write_frame(self, frame: bytes) -> bool:
        """Write a frame made for many clients, if this one has taken everything before."""
        if self.close_sent or not self.writable.is_set() or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def send_receive_event_to_app(self) -> None:
        """A message is complete; what came behind one that closes the connection does not count."""
        if self.conn.state.name in ("CONNECTING", "OPEN"):
            super().send_receive_event_to_app()  # type: ignore[misc]

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) >= PIECES:  # which may all be empty, and so have no limit of size
            self.conn.fail(1009, f"a message may have {PIECES:,} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)  # type: ignore[misc]

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.full(True)
        # It is not read from any more, so perhaps nothing else is sent that would be seen to stall.
        stall = self.config.app.state.hub.settings.stall
        self._stalling = self.loop.call_later(stall, self.queue.put_nowait, STALLED)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.full(False)
        self._stalling.cancel()
