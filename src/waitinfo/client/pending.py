"""What a stream keeps to continue after a break: text and audio that are not done with."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

PIECE = 1 << 15  # bytes of a message


def as_pcm(samples: Any) -> bytes:
    """16-bit PCM, from bytes of it or from numbers between -1 and 1."""
    if isinstance(samples, bytes | bytearray | memoryview):
        return bytes(samples)
    return (np.clip(np.asarray(samples), -1, 1) * 32767).astype("<i2").tobytes()


def pieces(data: bytes) -> list[bytes]:
    """Messages of a size that servers take."""
    return [data[place : place + PIECE] for place in range(0, len(data), PIECE)]


class PendingAudio:
    """Samples from the newest `replay` of the server on. No input or output here."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._begin = 0  # bytes before them
        self.replay: dict[str, Any] | None = None

    def sent(self, data: bytes) -> None:
        self._blocks.append(data)

    def received(self, heard: dict[str, Any]) -> None:
        """A `heard` message: forget what need not be sent again."""
        self.replay = heard["replay"]
        until = 2 * heard["replay"]["sample"]
        while self._blocks and self._begin + len(self._blocks[0]) <= until:
            self._begin += len(self._blocks.popleft())

    @property
    def rest(self) -> bytes:
        """What to send after a break."""
        begin = 0 if self.replay is None else 2 * self.replay["sample"]
        return b"".join(self._blocks)[begin - self._begin :]


class Pending:
    """What a stream sends again after a break: text that is not done with, and where it continues.

    No input or output here: the same rules in any language (docs/serving.md: in JavaScript).
    """

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []  # text and flush messages from `position` on
        self._owed: list[dict[str, Any]] = []  # flushes in audio
        self._newest: dict[str, Any] = {"position": 0, "sentence": 0}
        self._path: list[list[int]] = []
        self._seconds = 0.0

    @property
    def position(self) -> int:
        """Source text before it is done with."""
        return int(self._newest["position"])

    def sent(self, message: dict[str, Any]) -> None:
        """A message that carries text, or a mark in it, was handed in."""
        self._items.append(message)

    def owed(self, flush: dict[str, Any]) -> None:
        """A flush in audio: the server says where in the text it was."""
        self._owed.append(flush)

    def settled(self, number: int | None) -> None:
        """The server has done what flushes up to this id asked for, or will."""
        self._owed = [each for each in self._owed if each["id"] > (number or 0)]

    def received(self, words: dict[str, Any]) -> None:
        """A `words` message: what is done with is dropped."""
        found = words["replay"]
        if found["sentence"] != self._newest["sentence"]:
            self._drop(found["position"] - self.position)
            self._path = []
        self._path += found["path"]
        self._newest = found
        self._seconds = words["time"]

    def _drop(self, count: int) -> None:
        """Forget the first characters, and the marks among them."""
        while count > 0 and self._items:
            text = self._items[0].get("text", "")
            if len(text) <= count:
                self._items.pop(0)
                count -= len(text)
            else:
                self._items[0] = {**self._items[0], "text": text[count:]}
                count = 0
        while self._items and self._items[0]["type"] == "flush":
            self._items.pop(0)

    def resume(self, vocabulary: str | None) -> dict[str, Any]:
        """The `resume` of a new start message."""
        return {
            **self._newest,
            "path": self._path,
            "seconds": self._seconds,
            "vocabulary": vocabulary,
        }

    def again(self) -> list[dict[str, Any]]:
        """What to send after it. A flush that was not settled is after all that was heard."""
        self._items += self._owed
        self._owed = []
        return list(self._items)
