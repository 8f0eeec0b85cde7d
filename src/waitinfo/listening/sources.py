"""Where audio comes from, and when: all at once, at its own pace, or from a microphone.

A source gives samples, or `Lost` where some were dropped because nobody took them in time. Its
clock says how much time has passed since its audio began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import BLOCK, RATE, Resampler, Samples

BUFFER = 30.0  # seconds of audio that may wait; older audio is dropped


class Lost(NamedTuple):
    """Samples that were dropped."""

    samples: int


class Clock:
    """Simulated time: computing takes as long as it takes, and waiting takes no time."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    def until(self, moment: float) -> None:
        """Wait until a moment has come."""
        self._began -= max(0.0, moment - self.now())


class RealClock(Clock):
    """Time as it passes."""

    def until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))


class Source(Protocol):
    """Gives audio."""

    clock: Clock
    live: bool  # it does not wait for those who take it

    def __iter__(self) -> Iterator[Samples | Lost]: ...

    def stop(self) -> None:
        """End the source; may be called from another thread or a signal handler."""


class Recording:
    """Audio that is there: all of it, as fast as it is taken."""

    live = False

    def __init__(self, blocks: Iterable[Samples]) -> None:
        self._blocks = blocks
        self._stopped = False
        self.clock = Clock()

    def __iter__(self) -> Iterator[Samples | Lost]:
        self.clock = Clock()
        given = 0
        for block in self._blocks:
            if self._stopped:
                return
            given += len(block)
            self.clock.until(given / RATE)
            yield block

    def stop(self) -> None:
        self._stopped = True


class Paced:
    """The same as if it were spoken now, by a clock that is real or simulated.

    Who takes long gets all that has come meanwhile.
    """

    live = True

    def __init__(self, blocks: Iterable[Samples], clock: Clock | None = None) -> None:
        self._blocks = blocks
        self._stopped = False
        self.clock = clock or RealClock()

    def __iter__(self) -> Iterator[Samples | Lost]:
        blocks, waiting = iter(self._blocks), np.zeros(0, np.float32)
        given, ended = 0, False
        self.clock.__init__()  # type: ignore[misc]
        while not (self._stopped or (ended and not len(waiting))):
            self.clock.until(given / RATE + BLOCK)
            due = int(self.clock.now() * RATE) - given
            while len(waiting) < due and not ended:
                block = next(blocks, None)
                ended = block is None
                waiting = waiting if block is None else np.concatenate([waiting, block])
            if due > BUFFER * RATE and len(waiting) > BUFFER * RATE:
                count = min(len(waiting), due) - round(BUFFER * RATE)
                waiting, given = waiting[count:], given + count
                yield Lost(count)
                continue
            now, waiting = waiting[:due], waiting[due:]
            given += len(now)
            if len(now):
                yield now

    def stop(self) -> None:
        self._stopped = True


class Buffered:
    """Audio that another thread puts in. Bounded: the oldest is dropped, or the thread waits."""

    live = True

    def __init__(self, drop: bool) -> None:
        self.clock: Clock = RealClock()
        self._drop = drop
        self._changed = threading.Condition()
        self._blocks: list[Samples] = []
        self._size = self._lost = 0
        self._ended = False
        self._error: Exception | None = None

    def put(self, block: Samples) -> None:
        with self._changed:
            while not self._drop and self._size > BUFFER * RATE and not self._ended:
                self._changed.wait()
            self._blocks.append(block)
            self._size += len(block)
            while self._drop and self._size > BUFFER * RATE:
                oldest = self._blocks.pop(0)
                self._size -= len(oldest)
                self._lost += len(oldest)
            self._changed.notify_all()

    def end(self, error: Exception | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def stop(self) -> None:
        # No lock: a signal handler may interrupt who holds it.
        self._ended = True

    def __iter__(self) -> Iterator[Samples | Lost]:
        while True:
            with self._changed:
                while not (self._size >= BLOCK * RATE or self._lost or self._ended):
                    self._changed.wait(0.2)  # in case a signal handler has stopped it
                blocks, lost, ended = self._blocks, self._lost, self._ended
                self._blocks, self._size, self._lost = [], 0, 0
                self._changed.notify_all()
            if lost:
                yield Lost(lost)
            if blocks:
                yield np.concatenate(blocks)
            if ended:
                if self._error is not None:
                    raise self._error
                return


class Piped(Buffered):
    """Blocks that come when they come, as from a recorder on standard input."""

    def __init__(self, blocks: Iterable[Samples]) -> None:
        super().__init__(drop=False)
        self._given = blocks

    def __iter__(self) -> Iterator[Samples | Lost]:
        threading.Thread(target=self._read, daemon=True).start()
        self.clock = RealClock()
        yield from super().__iter__()

    def _read(self) -> None:
        error = None
        try:
            for block in self._given:
                self.put(block)
                if self._ended:
                    return
        except (WaitinfoError, OSError) as found:
            error = found
        self.end(error)


class Microphone(Buffered):
    """A microphone by a part of its name or its number, or the default one.

    `sounddevice` may be another module like it; tests give one.
    """

    def __init__(self, name: str | None = None, sounddevice: Any = None) -> None:
        super().__init__(drop=True)
        self._module = sounddevice or _sounddevice()
        device = int(name) if name is not None and name.isdecimal() else name or None
        try:
            info = self._module.query_devices(device, "input")
        except (ValueError, self._module.PortAudioError) as error:
            raise WaitinfoError(
                f"microphone {name or '(default)'}: {_line(error)}; there {self._listed()}"
            ) from None
        self.name = str(info["name"])
        self._device, self._rate = device, RATE
        try:
            self._module.check_input_settings(device, channels=1, dtype="float32", samplerate=RATE)
        except self._module.PortAudioError:
            self._rate = round(info["default_samplerate"])

    def _listed(self) -> str:
        devices = self._module.query_devices()
        names = [str(each["name"]) for each in devices if each["max_input_channels"] > 0]
        return f"are: {', '.join(names)}" if names else "is no microphone"

    def __iter__(self) -> Iterator[Samples | Lost]:
        resampler = Resampler(self._rate)

        def arrived(block: Any, frames: int, when: Any, status: Any) -> None:
            self.put(resampler.add(block[:, 0].astype(np.float32)))

        try:
            opened = self._module.InputStream(
                device=self._device, channels=1, dtype="float32", samplerate=self._rate,
                blocksize=round(self._rate * BLOCK), callback=arrived, finished_callback=self.end,
            )  # fmt: skip
            with opened:
                self.clock = RealClock()
                yield from super().__iter__()
        except self._module.PortAudioError as error:
            raise WaitinfoError(f"microphone {self.name}: {_line(error)}") from None


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError:
        raise WaitinfoError("--microphone needs: pip install 'waitinfo[listen]'") from None
    except OSError:
        raise WaitinfoError(
            "--microphone needs PortAudio: install libportaudio2 (or pipe a recorder into "
            "'waitinfo listen -')"
        ) from None
    return sounddevice


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
