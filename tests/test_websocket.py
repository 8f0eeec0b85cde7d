"""WebSockets as RFC 6455 has them: what the Autobahn test suite asks of a server, case by case.

| cases | | here, by a part of the test's name |
|---|---|---|
| 1.1.1–7, 1.2.1–7 | sizes of texts and binary messages | `all_sizes` |
| 1.1.8, 1.2.8 | 65,536 bytes in chops of 997 | `any_portions` |
| 2.1–2.4, 2.6–2.11 | pings and pongs, whole and byte by byte | `pings` |
| 2.5 | a ping of 126 bytes | `no_websocket` |
| 3.1, 3.5–3.7 | reserved bits | `no_websocket` |
| 3.2–3.4, 4.1.3–5, 4.2.3–5 | after a proper message, before a ping | `came_before` |
| 4.1.1–2, 4.2.1–2 | reserved opcodes | `no_websocket` |
| 5.1, 5.2, 5.9–5.18 | control frames in fragments; fragments of nothing | `no_websocket` |
| 5.3–5.8, 5.19, 5.20 | fragments, with pings between them | `fragments_are_joined` |
| 6.1 | fragments of no length | `may_be_empty` |
| 6.2, 6.5–6.7, 6.9, 6.11, 6.22, 6.23 | UTF-8 | `utf8_may` |
| 6.3, 6.6, 6.8, 6.10, 6.12–6.21 | wrong UTF-8 | `wrong_utf8` |
| 6.4 | wrong UTF-8 in an early fragment | `wrong_utf8`: refused when it is complete |
| 7.1.1–7.1.4 | what comes after a close | `nothing_counts` |
| 7.1.5, 7.1.6 | a close in the midst, and after a long message | `under_way` |
| 7.3.1, 7.3.3–5, 7.7 | proper closes | `codes` |
| 7.3.2, 7.3.6, 7.9, 7.13 | a close that is too short or long; numbers | `no_websocket` |
| 7.5.1 | a reason that is no UTF-8 | `wrong_utf8` |
| 9.1–9.6 | megabytes in one message, fragment or chop | refused: `larger_messages` |
| 9.7, 9.8 | a thousand messages | `thousand` |
| 10.1.1 | fragments of 1,300 bytes | `any_portions` |
| 12, 13 | compression | not offered: `compression` |
"""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from tests.serving import toy_hub
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
    opened,
)
from waitinfo.serving.server import Server

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
    if portion == 997:
        for kind in (TEXT, BINARY):
            data = b"*" * 65_536
            whole, parts = [(kind, data), (CLOSE, NORMAL)], range(0, len(data), 1_300)
            assert converse(frame(kind, data), CLOSING, portion=portion) == whole
            cut = b"".join(frame(CONT if at else kind, data[at : at + 1_300], at == parts[-1])
                           for at in parts)  # fmt: skip
            assert converse(cut, CLOSING, portion=portion) == whole


def test_a_thousand_messages() -> None:
    sizes = [0, 16, 64, 256, 1_024] * 200
    sent = [frame(TEXT if n % 2 else BINARY, b"*" * size) for n, size in enumerate(sizes)]
    assert [len(data) for _, data in converse(*sent, CLOSING)] == [*sizes, 2]


def test_larger_messages_are_refused() -> None:
    assert code(converse(frame(TEXT, b"*" * (LARGEST + 1)))) == 1009
    half = b"*" * (LARGEST // 2 + 1)
    assert code(converse(frame(TEXT, half, final=False) + frame(CONT, half))) == 1009


@pytest.mark.parametrize("portion", [1 << 20, 1])
@pytest.mark.parametrize("data", [b"", b"Hello", b"\x00\xff\xfe\xfd", b"\xfe" * 125])
def test_pings_are_answered(data: bytes, portion: int) -> None:
    def answers(sent: bytes) -> list[tuple[int, bytes]]:
        return converse(sent + CLOSING, portion=portion)[:-1]

    assert answers(frame(PING, data)) == [(PONG, data)]
    assert answers(frame(PONG, data)) == []
    assert answers(frame(PONG, b"unasked") + frame(PING, data)) == [(PONG, data)]
    assert answers(frame(PING, data) * 10) == [(PONG, data)] * 10


@pytest.mark.parametrize(
    "sent",
    [
        frame(PING, b"x" * 126), frame(PONG, b"x" * 126), frame(CLOSE, NORMAL + b"x" * 124),
        frame(PING, b"x", final=False) + frame(CONT, b"y"),
        frame(PONG, b"x", final=False) + frame(CONT, b"y"),
        *(frame(TEXT, b"x", reserved=bits) for bits in range(1, 8)),
        frame(PING, reserved=1), frame(CLOSE, NORMAL, reserved=4),
        frame(BINARY, b"x", reserved=5), frame(CLOSE, NORMAL, reserved=7),
        *(frame(opcode, data)
          for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15) for data in (b"", b"reserved")),
        frame(CONT, b"x"), frame(CONT, b"x", final=False) + frame(CONT, b"y"),
        frame(CONT, b"x") + frame(TEXT, b"y"), frame(CONT, b"x", final=False) + frame(TEXT, b"y"),
        (frame(CONT, b"x", final=False) + frame(TEXT, b"y", final=False)) * 2,
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


@pytest.mark.parametrize("portion", [1 << 20, 1])
@pytest.mark.parametrize(
    "wrong", [frame(TEXT, b"x", reserved=2), *(frame(n, b"x") for n in (5, 6, 7, 13, 14, 15))]
)
def test_only_what_came_before_is_answered(wrong: bytes, portion: int) -> None:
    """A ping after it is not."""
    found = converse(frame(TEXT, b"proper"), wrong + frame(PING), portion=portion)
    assert found[0] == (TEXT, b"proper") and len(found) == 2 and code(found) == 1002


@pytest.mark.parametrize("number", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000,
                                    3999, 4000, 4999])  # fmt: skip
def test_codes_that_clients_may_close_with(number: int) -> None:
    for reason in ("", "tschüß", "*" * 123):
        closing = struct.pack("!H", number) + reason.encode()
        assert code(converse(frame(CLOSE, closing))) == number
    assert converse(frame(CLOSE)) == [(CLOSE, b"")]


def test_nothing_counts_after_the_close() -> None:
    assert converse(CLOSING + frame(TEXT, b"late") + frame(PING) + CLOSING) == [(CLOSE, NORMAL)]


def test_a_close_ends_what_is_under_way() -> None:
    begun = frame(TEXT, b"begun", final=False)
    assert code(converse(begun + CLOSING + frame(CONT, b"done"))) == 1002  # it was not whole
    long = frame(TEXT, b"*" * LARGEST)
    assert converse(long + CLOSING + frame(PING))[-1] == (CLOSE, NORMAL)


def test_compression_is_not_agreed_on() -> None:
    server = Server(toy_hub(), "127.0.0.1", 0)
    assert not server.config.ws_per_message_deflate
    offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    assert b"sec-websocket-extensions" not in opened(offer).lower()
    assert code(converse(frame(TEXT, b"x", reserved=4), offer=offer)) == 1002


@pytest.mark.parametrize("portion", [1 << 20, 1])
def test_fragments_are_joined_and_pings_come_between(portion: int) -> None:
    sent = [frame(CONT if n else TEXT, b"ab", n == 9) + frame(PING, b"%d" % n) for n in range(10)]
    for parts in (sent, [b"".join(sent)]):  # a pause after each, or none
        found = converse(*parts, CLOSING, portion=portion)
        assert [data for kind, data in found if kind == PONG] == [b"%d" % n for n in range(10)]
        assert [data for kind, data in found if kind == TEXT] == [b"ab" * 10]


@pytest.mark.parametrize("parts", [[b""], [b"", b""], [b"", b"", b""], [b"", b"middle", b""]])
def test_fragments_may_be_empty(parts: list[bytes]) -> None:
    sent = b"".join(frame(CONT if n else TEXT, part, n == len(parts) - 1)
                    for n, part in enumerate(parts))  # fmt: skip
    assert converse(sent, CLOSING) == [(TEXT, b"".join(parts)), (CLOSE, NORMAL)]


NONE = [plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)]  # no characters


@pytest.mark.parametrize(
    "text",
    ["κόσμε", "Hello-µ@ßöäüàá-UTF-8!!", "\x00", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff",
     "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\ufdd0\ufdef",
     "\ufff9\ufffa\ufffb\ufffc\ufffd",
     "".join(map(chr, NONE))],
)  # fmt: skip
def test_utf8_may_be_cut_anywhere(text: str) -> None:
    data = text.encode()
    for place in {*range(min(len(data), 20) + 1), len(data)}:
        sent = frame(TEXT, data[:place], final=False) + frame(CONT, data[place:])
        assert converse(sent, CLOSING)[0] == (TEXT, data)
    single = b"".join(frame(CONT if n else TEXT, data[n : n + 1], n == len(data) - 1)
                      for n in range(len(data)))  # fmt: skip
    assert converse(single, CLOSING)[0] == (TEXT, data)


INCOMPLETE = [
    bytes([lead]) + tail * n
    for leads, tail in ((b"\xc0\xe0\xf0\xf8\xfc", b"\x80"), (b"\xdf\xef\xf7\xfb\xfd", b"\xbf"))
    for n, lead in enumerate(leads)
]


@pytest.mark.parametrize(
    "data",
    [b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80edited",
     *("κόσμε".encode()[:n] for n in (1, 3, 5, 7, 9)), *INCOMPLETE, b"".join(INCOMPLETE),
     b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xf7\xbf\xbf\xbf",
     b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf", b"\xf4\x90\x80\x80",
     b"\x80", b"\xbf", *(b"\x80\xbf" * n for n in (1, 2, 3)), bytes(range(0x80, 0xC0)),
     *(b" ".join(bytes([n]) for n in range(*lead)) + b" "
       for lead in ((0xC0, 0xE0), (0xE0, 0xF0), (0xF0, 0xF8), (0xF8, 0xFC), (0xFC, 0xFE))),
     b"\xfe", b"\xff", b"\xfe\xfe\xff\xff",
     *(head + tail + last for last in (b"\xaf", b"\xbf", b"\x80") for head, tail in (
         (b"\xc0", b""), (b"\xe0", b"\x80"), (b"\xf0", b"\x80\x80"), (b"\xf8", b"\x80" * 3),
         (b"\xfc", b"\x80" * 4))),
     b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf",
     *(chr(n).encode("utf-8", "surrogatepass")
       for n in (0xD800, 0xDB7F, 0xDB80, 0xDBFF, 0xDC00, 0xDF80, 0xDFFF)),
     *(f"{chr(high)}{chr(low)}".encode("utf-8", "surrogatepass")
       for high in (0xD800, 0xDB7F, 0xDB80, 0xDBFF) for low in (0xDC00, 0xDFFF))],
)  # fmt: skip
def test_wrong_utf8_is_closed(data: bytes) -> None:
    assert code(converse(frame(TEXT, data))) == 1007
    assert code(converse(frame(TEXT, data[:1], final=False) + frame(CONT, data[1:]))) == 1007
    assert code(converse(frame(CLOSE, NORMAL + data))) in (1002, 1007)
    assert code(converse(frame(TEXT, data) * 3 + frame(PING) + frame(TEXT, data))) == 1007
