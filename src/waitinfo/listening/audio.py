"""Audio as blocks of samples: 16 kHz, one channel, float32 between -1 and 1."""

from __future__ import annotations

import io
import math
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError

RATE = 16_000  # samples per second that recognisers take
BLOCK = 0.1  # seconds of audio read at a time
PHASES = 1_000  # of a filter: each takes memory
CHANNELS = 32
VALUES = 1 << 18  # numbers that are worked on at a time
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats of WAV

Samples = NDArray[np.float32]


class Resampler:
    """Changes the rate of audio that comes in pieces. The result does not depend on the pieces."""

    HALF = 16  # zero crossings of the filter on each side

    def __init__(self, rate: int, target: int = RATE) -> None:
        if not 1_000 <= rate <= 384_000:
            raise WaitinfoError(f"sample rate {rate}: must be from 1,000 to 384,000 per second")
        ratio = Fraction(rate, target).limit_denominator(PHASES)  # exact for all usual rates
        self._up, self._down = ratio.denominator, ratio.numerator
        scale = min(1.0, target / rate)  # of the highest frequency that is kept
        self._width = math.ceil(self.HALF / scale)
        # A row for each phase: a sinc under a Kaiser window, around the point between two samples.
        phases = np.arange(self._up)[:, None] / self._up
        at = np.arange(-self._width + 1, self._width + 1)[None, :] - phases
        window = np.i0(9.0 * np.sqrt(np.clip(1 - (at / self._width) ** 2, 0, None))) / np.i0(9.0)
        filters = 0.95 * scale * np.sinc(0.95 * scale * at) * window
        self._filters = (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)
        self._kept = np.zeros(self._width - 1, np.float32)  # input that is still needed
        self._begin = -(self._width - 1)  # its place in the input
        self._next = 0  # place in the output

    def add(self, samples: Samples, last: bool = False) -> Samples:
        """What can be computed with these samples; with the `last`, all that is left."""
        if self._up == self._down:
            return samples
        end = self._begin + len(self._kept) + len(samples)
        tail = np.zeros(self._width if last else 0, np.float32)
        self._kept = np.concatenate([self._kept, samples, tail])
        # Output n lies between the inputs n * down // up and the one after it.
        stop = -(-end * self._up // self._down) if last else self._ready(end)
        if stop <= self._next:
            return np.zeros(0, np.float32)
        most = max(1, VALUES // (2 * self._width))
        parts = [
            self._compute(np.arange(at, min(at + most, stop)))
            for at in range(self._next, stop, most)
        ]
        self._next = stop
        done = self._next * self._down // self._up - self._width + 1 - self._begin
        self._kept, self._begin = self._kept[done:], self._begin + done
        return np.concatenate(parts).astype(np.float32)

    def _compute(self, numbers: NDArray[np.int64]) -> Samples:
        """Some outputs."""
        places, phases = np.divmod(numbers * self._down, self._up)
        first = places - self._width + 1 - self._begin
        windows = np.lib.stride_tricks.sliding_window_view(self._kept, 2 * self._width)
        return np.einsum("nw,nw->n", windows[first], self._filters[phases])

    def _ready(self, end: int) -> int:
        """Outputs whose filter lies within the input that is there."""
        return max(0, -(-(end - self._width) * self._up // self._down))


def from_pcm16(data: bytes) -> Samples:
    """16-bit little-endian samples as numbers between -1 and 1."""
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)


def check_channels(channels: int) -> None:
    if not 1 <= channels <= CHANNELS:
        raise WaitinfoError(f"audio of {channels} channels: must have 1 to {CHANNELS}")


def block_size(rate: int, channels: int, seconds: float) -> int:
    """Samples of each channel that are read at a time."""
    return max(1, min(round(rate * seconds), VALUES // channels))


class WaveFormat:
    """How the samples of a WAV stream are written."""

    def __init__(self, kind: int, channels: int, rate: int, bits: int) -> None:
        if bits not in {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}.get(kind, ()):
            raise WaitinfoError(f"WAV of kind {kind} with {bits} bits: must be PCM or float")
        check_channels(channels)
        self.kind, self.channels, self.rate, self.bits = kind, channels, rate, bits

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * self.bits // 8

    def samples(self, data: bytes) -> Samples:
        """The mean of all channels."""
        if self.kind == FLOAT:
            values = np.frombuffer(data, f"<f{self.bits // 8}").astype(np.float32)
        elif self.bits == 24:
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            values = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        elif self.bits == 8:
            values = np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(128) - 1
        else:
            values = np.frombuffer(data, f"<i{self.bits // 8}").astype(np.float32)
            values /= 2 ** (self.bits - 1)
        return np.nan_to_num(values.reshape(-1, self.channels).mean(axis=1))


def read_wave(stream: BinaryIO, begun: bytes = b"", seconds: float = BLOCK) -> Iterator[Samples]:
    """The blocks of a WAV stream, which may have no end; `begun` has been read from it already."""

    def exactly(count: int) -> bytes:
        nonlocal begun
        data, begun = begun[:count], begun[count:]
        return data + _read(stream, count - len(data))

    if exactly(12)[8:] != b"WAVE":
        raise WaitinfoError("the audio is not WAV")
    found: WaveFormat | None = None
    while len(header := exactly(8)) == 8:
        name, size = header[:4], struct.unpack("<I", header[4:])[0]
        if name == b"data":
            break
        body = exactly(min(size + size % 2, 1 << 20))
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            if kind == EXTENSIBLE and len(body) >= 26:
                kind = struct.unpack("<H", body[24:26])[0]
            found = WaveFormat(kind, channels, rate, bits)
    if found is None:
        raise WaitinfoError("the WAV has no format; the file is damaged")
    endless = size >= 0x7FFFFFFF or size == 0  # as recorders write into a pipe
    left = math.inf if endless else size
    resampler = Resampler(found.rate)
    count = block_size(found.rate, found.channels, seconds) * found.frame
    while left > 0 and (data := _read(stream, int(min(count, left)))):
        left -= len(data)
        yield resampler.add(found.samples(data[: len(data) // found.frame * found.frame]))
    yield resampler.add(np.zeros(0, np.float32), last=True)


def _read(stream: BinaryIO, count: int) -> bytes:
    """So many bytes, or fewer at the end."""
    parts: list[bytes] = []
    while count > 0 and (part := stream.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_raw(stream: BinaryIO, begun: bytes = b"", seconds: float = BLOCK) -> Iterator[Samples]:
    """The blocks of plain 16-bit samples, 16 kHz, one channel."""
    count = 2 * round(RATE * seconds)
    while data := begun + _read(stream, count - len(begun)):
        begun = b""
        yield from_pcm16(data[: len(data) // 2 * 2])


def read_file(path: Path, seconds: float = BLOCK) -> Iterator[Samples]:
    """The blocks of an audio file: WAV, or with the soundfile package FLAC, MP3, Ogg and others."""
    try:
        with path.open("rb") as stream:
            yield from read_audio(stream, str(path), seconds)
    except OSError as error:
        raise WaitinfoError(f"{path}: {error.strerror}") from None


def read_audio(stream: BinaryIO, name: str, seconds: float = BLOCK) -> Iterator[Samples]:
    """The same from an open file, which errors call by a name."""
    begun = stream.read(12)
    if begun[:4] == b"RIFF" and begun[8:] == b"WAVE":
        try:
            yield from read_wave(stream, begun, seconds)
        except WaitinfoError as error:
            raise WaitinfoError(f"{name}: {error}") from None
        return
    stream.seek(0)
    yield from _read_other(stream, name, seconds)


def _read_other(stream: BinaryIO, name: str, seconds: float) -> Iterator[Samples]:
    try:
        import soundfile
    except (ImportError, OSError):
        raise WaitinfoError(
            f"{name}: is not WAV; other formats need: pip install 'waitinfo[listen]'"
        ) from None
    try:
        with soundfile.SoundFile(stream) as opened:
            check_channels(opened.channels)
            resampler = Resampler(opened.samplerate)
            size = block_size(opened.samplerate, opened.channels, seconds)
            for block in opened.blocks(size, dtype="float32", always_2d=True):
                yield resampler.add(np.nan_to_num(block.mean(axis=1)))
            yield resampler.add(np.zeros(0, np.float32), last=True)
    except soundfile.LibsndfileError:
        raise WaitinfoError(
            f"{name}: is not audio that can be read; use WAV, FLAC, Ogg or MP3"
        ) from None


def read_input(seconds: float = BLOCK) -> Iterator[Samples]:
    """Standard input: WAV, or plain 16-bit samples at 16 kHz."""
    if sys.stdin is None:
        raise WaitinfoError("standard input is closed; give --audio or --microphone")
    stream = sys.stdin.buffer
    begun = _read(stream, 12)
    if begun[:4] == b"RIFF":
        return read_wave(stream, begun, seconds)
    return read_raw(stream, begun, seconds)


def read_bytes(data: bytes, seconds: float = BLOCK) -> Iterator[Samples]:
    """A WAV file in memory."""
    return read_wave(io.BytesIO(data), seconds=seconds)
