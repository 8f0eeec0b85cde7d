"""SentencePiece files with other ids: the pieces of a published vocabulary in this project's order.

A SentencePiece file is a protocol buffer: a list of pieces, whose order gives their ids, and
settings. Special tokens have the same ids in every vocabulary here, so the pieces are put into
another order; scores and settings stay, and text is split as before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from waitinfo.errors import WaitinfoError
from waitinfo.text.special import BOS, EOS, PAD, UNK

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
PIECES, TRAINER = 1, 2  # fields of the file
UNK_ID, BOS_ID, EOS_ID, PAD_ID = range(40, 44)  # fields of the trainer's settings
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # kinds of fields


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL

    def encoded(self) -> bytes:
        text = self.text.encode()
        score = struct.pack("<f", self.score)
        return _field(1, BYTES, text) + _field(2, FOUR_BYTES, score) + _field(3, VARINT, self.kind)


SPECIAL_PIECES = {
    PAD: Piece("<pad>", kind=CONTROL),
    UNK: Piece("<unk>", kind=UNKNOWN),
    BOS: Piece("<s>", kind=CONTROL),
    EOS: Piece("</s>", kind=CONTROL),
}


class PieceFile:
    """A SentencePiece file: its pieces, and everything else as it is."""

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        self.pieces: list[Piece] = []
        self.others: list[tuple[int, bytes]] = []
        try:
            for field, kind, value in _fields(model):
                if kind != BYTES:
                    raise ValueError
                assert isinstance(value, bytes)
                if field == PIECES:
                    self.pieces.append(_piece(value))
                else:
                    self.others.append((field, value))
        except (ValueError, IndexError, struct.error, UnicodeDecodeError):
            raise WaitinfoError(f"{name}: not a SentencePiece model") from None
        if not self.pieces:
            raise WaitinfoError(f"{name}: not a SentencePiece model")

    def reordered(self, texts: Sequence[str], control: Sequence[str] = ()) -> bytes:
        """The same file with these pieces after the special tokens, in this order.

        Text is split as before. Pieces of the file that are not named stand at the end; names that
        the file does not have are never used. Those of `control` come last, and are not text.
        """
        own = {piece.text: piece for piece in self.pieces if piece.kind not in (UNKNOWN, CONTROL)}
        chosen = [SPECIAL_PIECES[number] for number in range(len(SPECIAL_PIECES))]
        chosen += [own.get(text, Piece(text, kind=UNUSED)) for text in texts]
        named = set(texts)
        chosen += [piece for text, piece in own.items() if text not in named]
        chosen += [Piece(text, kind=CONTROL) for text in control]
        out = b"".join(_field(PIECES, BYTES, piece.encoded()) for piece in _unique(chosen))
        ids = ((UNK_ID, UNK), (BOS_ID, BOS), (EOS_ID, EOS), (PAD_ID, PAD))
        last = b"".join(
            _field(number, VARINT, value) for number, value in ids
        )  # the last ones count
        for field, value in self.others:
            out += _field(field, BYTES, value + last if field == TRAINER else value)
        return out


def _unique(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Pieces with texts of their own, which SentencePiece asks for."""
    seen: set[str] = set()
    for number, piece in enumerate(pieces):
        text = piece.text if piece.text not in seen else f"<unused {number}>"
        seen.add(text)
        yield piece if text == piece.text else replace(piece, text=text, kind=UNUSED)


def _piece(message: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for field, _, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            text = value.decode()
        elif field == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    return Piece(text, score, kind)


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Number, kind and value of every field of a message."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        field, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _number(message, at)
            yield field, kind, value
            continue
        if kind == BYTES:
            length, at = _number(message, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError
        if at + length > len(message):
            raise ValueError
        yield field, kind, message[at : at + length]
        at += length


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and the place after it."""
    value = shift = 0
    while shift < 70:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(field: int, kind: int, value: bytes | int) -> bytes:
    key = _encoded(field << 3 | kind)
    if isinstance(value, int):
        return key + _encoded(value)
    return key + (_encoded(len(value)) if kind == BYTES else b"") + value
