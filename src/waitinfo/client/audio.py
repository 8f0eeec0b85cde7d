"""What a stream of audio keeps to continue: samples that the server may have to hear again."""

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
