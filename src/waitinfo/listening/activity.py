"""Where somebody speaks: the loudness above the noise, or Silero's network where it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from waitinfo.listening.audio import RATE, Samples

FRAME = 512  # samples: 32 ms


class Activity(Protocol):
    """Says for each frame whether somebody speaks."""

    def voiced(self, frames: Samples) -> NDArray[np.bool_]:
        """Of the next frames [count, FRAME]."""


class Loudness:
    """Speech is what is clearly louder than the quietest of the last seconds."""

    ABOVE = 10.0  # dB above the noise where speech begins; it ends at half of that
    QUIET = -55.0  # dB below full scale: never speech
    MEMORY = 10.0  # seconds in which the noise is looked for

    def __init__(self) -> None:
        self._levels = np.full(round(self.MEMORY * RATE / FRAME), np.nan)
        self._next = 0
        self._speaks = False

    def voiced(self, frames: Samples) -> NDArray[np.bool_]:
        found = np.zeros(len(frames), np.bool_)
        for number, level in enumerate(loudness(frames)):
            self._levels[self._next % len(self._levels)] = level
            self._next += 1
            noise = np.nanpercentile(self._levels, 10)
            # Speech without a pause in it: its quietest tenth is not noise.
            noise = min(noise, -35.0)
            above = self.ABOVE / (2 if self._speaks else 1)
            self._speaks = level > max(noise + above, self.QUIET)
            found[number] = self._speaks
        return found


class Silero:
    """The network of Silero, which tells speech from noise and music."""

    def __init__(self, path: Path, threshold: float = 0.5) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._threshold, self._speaks = threshold, False
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, 64), np.float32)

    def voiced(self, frames: Samples) -> NDArray[np.bool_]:
        found = np.zeros(len(frames), np.bool_)
        for number, frame in enumerate(frames):
            given = np.concatenate([self._context, frame[None]], axis=1)
            rate = np.array(RATE, np.int64)
            chance, self._state = self._session.run(
                None, {"input": given, "state": self._state, "sr": rate}
            )
            self._context = given[:, -64:]
            self._speaks = chance.item() >= self._threshold - (0.15 if self._speaks else 0.0)
            found[number] = self._speaks
        return found


def loudness(frames: Samples) -> NDArray[np.float64]:
    """The level of each frame in dB below full scale."""
    power = np.square(frames, dtype=np.float64).mean(axis=-1)
    return 10 * np.log10(power + 1e-10)
