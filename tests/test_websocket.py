"""WebSockets as RFC 6455 has them: what the Autobahn test suite asks of a server, case by case."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

import uvicorn
from uvicorn.server import ServerState

from waitinfo.serving.wire import WebSocketProtocol

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LARGEST = 4 * 65_536  # bytes of a message
NORMAL = struct.pack("!H", 1000)


class Echo:
    """Sends back what it gets."""

    state = SimpleNamespace(hub=SimpleNamespace(visitors=SimpleNamespace(leave=lambda _: None)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
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


def converse(*parts: bytes, portion: int = 1 << 20) -> list[tuple[int, bytes]]:
    """The answers to some bytes, which arrive in portions; each part is answered before the next."""

    async def run() -> list[tuple[int, bytes]]:
        config = uvicorn.Config(Echo(), ws=WebSocketProtocol, ws_max_size=LARGEST, log_config=None,
                                lifespan="off", ws_per_message_deflate=False)  # fmt: skip
        config.load()
        config.app = config.loaded_app = Echo()
        transport = Collector()
        protocol = WebSocketProtocol(config, ServerState(), {})
        protocol.connection_made(transport)  # type: ignore[arg-type]
        protocol.data_received(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
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
        return frames(bytes(transport.data[begin:]))

    return asyncio.run(run())


def code(answers: list[tuple[int, bytes]]) -> int:
    """With which the server closed."""
    assert answers[-1][0] == CLOSE
    return struct.unpack("!H", answers[-1][1][:2])[0]


CLOSING = frame(CLOSE, NORMAL)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 65_535, 65_536, LARGEST])
@pytest.mark.parametrize("kind", [TEXT, BINARY])
def test_messages_of_all_sizes(kind: int, size: int) -> None:
    data = b"*" * size
    assert converse(frame(kind, data), CLOSING) == [(kind, data), (CLOSE, NORMAL)]


@pytest.mark.parametrize("portion", [1, 7, 997])
def test_messages_arrive_in_any_portions(portion: int) -> None:
    sent = frame(TEXT, b"x" * 300) + frame(PING, b"?") + frame(TEXT, "κόσμε 😀".encode())
    found = converse(sent, CLOSING, portion=portion)
    assert sorted(found) == sorted([(TEXT, b"x" * 300), (PONG, b"?"),
        (TEXT, "κόσμε 😀".encode()), (CLOSE, NORMAL)])  # fmt: skip


def test_larger_messages_are_refused() -> None:
    assert code(converse(frame(TEXT, b"*" * (LARGEST + 1)))) == 1009
    half = b"*" * (LARGEST // 2 + 1)
    assert code(converse(frame(TEXT, half, final=False) + frame(CONT, half))) == 1009


@pytest.mark.parametrize("data", [b"", b"Hello", b"\x00\xff\xfe\xfd", b"\xfe" * 125])
def test_pings_are_answered(data: bytes) -> None:
    assert converse(frame(PING, data) + CLOSING) == [(PONG, data), (CLOSE, NORMAL)]
    assert converse(frame(PONG, data) + CLOSING) == [(CLOSE, NORMAL)]
    many = converse(frame(PING, data) * 10 + CLOSING)
    assert many == [(PONG, data)] * 10 + [(CLOSE, NORMAL)]


@pytest.mark.parametrize(
    "sent",
    [
        frame(PING, b"x" * 126), frame(PONG, b"x" * 126), frame(CLOSE, NORMAL + b"x" * 124),
        frame(PING, b"x", final=False) + frame(CONT, b"y"),
        frame(PONG, b"x", final=False) + frame(CONT, b"y"),
        *(frame(TEXT, b"x", reserved=bits) for bits in range(1, 8)),
        frame(PING, reserved=1), frame(CLOSE, NORMAL, reserved=4),
        *(frame(opcode) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
        frame(CONT, b"x"), frame(CONT, b"x", final=False) + frame(CONT, b"y"),
        frame(TEXT, b"x", final=False) + frame(TEXT, b"y"),
        frame(TEXT, b"x", final=False) + frame(CONT, b"y") + frame(CONT, b"z"),
        b"\x81\x05Hello",  # without a mask
        frame(CLOSE, b"\x03"),
        *(frame(CLOSE, struct.pack("!H", number))
          for number in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535)),
    ],
)  # fmt: skip
def test_what_is_no_websocket_is_closed(sent: bytes) -> None:
    assert code(converse(sent)) == 1002


@pytest.mark.parametrize("number", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000,
                                    3999, 4000, 4999])  # fmt: skip
def test_codes_that_clients_may_close_with(number: int) -> None:
    reason = struct.pack("!H", number) + "tschüß".encode()
    assert code(converse(frame(CLOSE, reason))) == number
    assert converse(frame(CLOSE)) == [(CLOSE, b"")]


def test_nothing_counts_after_the_close() -> None:
    assert converse(CLOSING + frame(TEXT, b"late") + frame(PING) + CLOSING) == [(CLOSE, NORMAL)]


def test_fragments_are_joined_and_pings_come_between() -> None:
    sent = b"".join(frame(CONT if n else TEXT, b"ab", n == 9) + frame(PING, b"%d" % n)
                    for n in range(10))  # fmt: skip
    found = converse(sent, CLOSING)
    assert [data for kind, data in found if kind == PONG] == [b"%d" % n for n in range(10)]
    assert [data for kind, data in found if kind == TEXT] == [b"ab" * 10]
    assert converse(frame(TEXT, final=False) + frame(CONT), CLOSING) == [
        (TEXT, b""), (CLOSE, NORMAL)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["κόσμε", "\x00", "\x7f", "\u0800", "\U0010ffff", "\ufffe", "\ufdd0"]
)
def test_utf8_may_be_cut_anywhere(text: str) -> None:
    data = text.encode()
    for place in range(len(data) + 1):
        sent = frame(TEXT, data[:place], final=False) + frame(CONT, data[place:])
        assert converse(sent, CLOSING)[0] == (TEXT, data)


@pytest.mark.parametrize(
    "data",
    [b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80edited", b"\xff", b"\x80", b"\xc0\xaf",
     b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xed\xa0\x80", b"\xce"],
)  # fmt: skip
def test_wrong_utf8_is_closed(data: bytes) -> None:
    assert code(converse(frame(TEXT, data))) == 1007
    assert code(converse(frame(TEXT, data[:1], final=False) + frame(CONT, data[1:]))) == 1007
    assert code(converse(frame(CLOSE, NORMAL + data))) in (1002, 1007)
