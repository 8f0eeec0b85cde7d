"""WebSockets as RFC 6455 has them: what the Autobahn test suite asks of a server, case by case."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from tests.websockets import (
    BINARY,
    CLOSE,
    CONT,
    LARGEST,
    NORMAL,
    PING,
    PONG,
    TEXT,
    code,
    converse,
    frame,
)

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
