"""The server's protocol for WebSockets on an application that echoes, byte by byte."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from waitinfo.serving.guards import Lane
from waitinfo.serving.wire import WebSocketProtocol

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LARGEST = 4 * 65_536  # bytes of a message
NORMAL = struct.pack("!H", 1000)


class Echo:
    """Sends back what it gets."""

    state = SimpleNamespace(
        hub=SimpleNamespace(visitors=SimpleNamespace(leave=lambda _: None), lane=Lane())
    )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        with suppress(RuntimeError):  # the client's next bytes have closed the connection
            while (message := await receive())["type"] == "websocket.receive":
                await send({**message, "type": "websocket.send"})


class Collector:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data, self.closed = bytearray(), False

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        """Nothing is known of the client."""

    def pause_reading(self) -> None:
        """What has arrived is given to the protocol all the same."""

    resume_reading = pause_reading


def frame(opcode: int, data: bytes = b"", final: bool = True, reserved: int = 0) -> bytes:
    """A frame of a client."""
    first, size, mask = opcode | 0x80 * final | reserved << 4, len(data), b"\x01\x02\x03\x04"
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """What the server has sent: whole frames without masks."""
    found = []
    while data:
        assert data[0] & 0x80 and not data[0] & 0x70 and not data[1] & 0x80
        extended = {126: 2, 127: 8}.get(data[1], 0)
        size = int.from_bytes(data[2 : 2 + extended]) if extended else data[1]
        found.append((data[0] & 15, bytes(data[2 + extended : 2 + extended + size])))
        data = data[2 + extended + size :]
    return found


def converse(*parts: bytes, portion: int = 1 << 20, offer: bytes = b"") -> list[tuple[int, bytes]]:
    """The answers to some bytes in portions; each part is answered before the next one comes."""
    return frames(_converse(parts, portion, offer)[1])


def opened(offer: bytes) -> bytes:
    """The answer to a handshake with one more line."""
    return _converse((), 1, offer)[0]


def _converse(parts: tuple[bytes, ...], portion: int, offer: bytes) -> tuple[bytes, bytes]:
    async def run() -> tuple[bytes, bytes]:
        config = uvicorn.Config(Echo(), ws=WebSocketProtocol, ws_max_size=LARGEST, log_config=None,
                                lifespan="off", ws_per_message_deflate=False)  # fmt: skip
        config.load()
        config.app = config.loaded_app = Echo()
        transport = Collector()
        protocol = WebSocketProtocol(config, ServerState(), {})
        protocol.connection_made(transport)  # type: ignore[arg-type]
        protocol.data_received(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            + offer + b"\r\n"
        )  # fmt: skip
        for _ in range(10):
            await asyncio.sleep(0)
        begin = transport.data.index(b"\r\n\r\n") + 4
        for part in parts:
            for place in range(0, len(part), portion):
                if not transport.closed:
                    protocol.data_received(part[place : place + portion])
                    await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        return bytes(transport.data[:begin]), bytes(transport.data[begin:])

    return asyncio.run(run())


def code(answers: list[tuple[int, bytes]]) -> int:
    """With which the server closed."""
    assert answers[-1][0] == CLOSE
    return struct.unpack("!H", answers[-1][1][:2])[0]
