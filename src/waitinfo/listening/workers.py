"""Many voices: recognition in processes of its own, so that translation is not held up.

Each worker process holds the weights once and serves its voices in turn. A thread for each worker
hands over all that a voice has said since its last turn and waits for the answer. So nothing piles
up in a pipe, a busy worker looks less often at each voice, and audio that comes faster than it can
be recognised fills the bounded buffer of its voice alone: `push` says how much it took.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from waitinfo.errors import WaitinfoError, whole
from waitinfo.listening.audio import BLOCK, RATE, Samples
from waitinfo.listening.loading import DEFAULT
from waitinfo.listening.recogniser import Heard

BUFFER = 30.0  # seconds of audio that a voice may be ahead of its recogniser
START = 120.0  # seconds that a worker may take to load its weights


class Turn(NamedTuple):
    """A voice was heard by a worker."""

    seconds: float  # how long it took
    audio: float  # seconds of audio it heard
    waited: float  # seconds that the oldest of that audio had waited
    rhythm: float  # seconds of audio between looks at the open words
    words: int  # that were committed
    voices: int  # open ones


class VoiceObserver:
    """Override what you need. Called on the threads of workers: return quickly."""

    def turn(self, stats: Turn) -> None:
        """A worker has heard a voice."""

    def refused(self, reason: str) -> None:
        """A voice was refused."""

    def failed(self, error: Exception) -> None:
        """A voice failed, or its worker died."""


class Busy(WaitinfoError):
    """As many voices are open as there may be."""


class VoiceStart(NamedTuple):
    """What a voice begins with."""

    language: str | None
    live: bool
    carried: Sequence[str] | None


OnHeard = Callable[[list[Heard]], None]
OnEnd = Callable[[Exception | None], None]


class PooledVoice:
    """One speaker. `on_heard` and `on_end` are called on the thread of the worker."""

    def __init__(
        self, pool: Voices, number: int, speaker: VoiceStart, on_heard: OnHeard, on_end: OnEnd
    ) -> None:
        self.rhythm = 0.0
        self._pool, self._number, self._speaker = pool, number, speaker
        self._on_heard, self._on_end = on_heard, on_end
        self._worker: _WorkerProcess | None = None
        self._blocks: deque[Samples] = deque()
        self._size = 0  # samples that wait
        self._since = 0.0  # when the oldest of them came
        self._finishing = self._closed = False
        self._queued = False

    @property
    def waiting(self) -> float:
        """Seconds of audio that its recogniser has not begun with."""
        return self._size / RATE

    def push(self, samples: Samples) -> int:
        """Audio that has come; the number of samples for which there was room. Never waits."""
        with self._pool._changed:
            if self._finishing or self._closed:
                raise WaitinfoError("this voice has been finished; open another")
            taken = min(len(samples), round(BUFFER * RATE) - self._size)
            if taken > 0:
                if not self._size:
                    self._since = time.monotonic()
                self._blocks.append(samples[:taken])
                self._size += taken
                self._pool._queue(self)
            return max(0, taken)

    def finish(self) -> None:
        """No more audio will come; `on_end` is called after the last words."""
        with self._pool._changed:
            self._finishing = True
            self._pool._queue(self)

    def close(self) -> None:
        """Give the voice up: nothing more is called, and its place is free."""
        with self._pool._changed:
            if not self._closed:
                self._closed = True
                self._blocks.clear()
                self._size = 0
                self._pool._drop(self)

    @property
    def _ready(self) -> bool:
        return self._finishing or self._closed or self._size >= BLOCK * RATE

    def _take(self) -> tuple[Samples, float]:
        """All audio that waits, and how long the oldest of it has waited."""
        samples = np.concatenate([*self._blocks, np.zeros(0, np.float32)])
        waited = time.monotonic() - self._since if self._size else 0.0
        self._blocks.clear()
        self._size = 0
        return samples, waited


class Voices:
    """Opens voices on `workers` processes, at most `voices` at a time."""

    def __init__(
        self,
        recogniser: str | Path = DEFAULT,
        voices: int = 4,
        workers: int = 1,
        threads: int = 0,
        every: float | None = None,
        observer: VoiceObserver | None = None,
    ) -> None:
        self.limit = whole("voices", voices, 1)
        self.observer = observer or VoiceObserver()
        self._changed = threading.Condition()
        self._open: set[PooledVoice] = set()
        self._numbers = 0
        self._closed = False
        threads = threads or max(1, len(os.sched_getaffinity(0)) // whole("workers", workers, 1))
        spec = (str(recogniser), every, threads)
        self._workers = [_WorkerProcess(self, spec) for _ in range(workers)]
        try:
            for worker in self._workers:
                worker.started()
        except BaseException:
            self.close()
            raise

    @property
    def open_voices(self) -> int:
        """How many voices are open."""
        return len(self._open)

    @property
    def waiting(self) -> float:
        """Seconds of audio that wait, of all voices."""
        with self._changed:
            return sum(voice._size for voice in self._open) / RATE

    def open(
        self,
        on_heard: OnHeard,
        on_end: OnEnd = lambda error: None,
        language: str | None = None,
        live: bool = True,
        carried: Sequence[str] | None = None,
    ) -> PooledVoice:
        """Begin with a speaker; raises `Busy` if there is no room for one more.

        `live` and `carried` are as for `Recogniser.voice`.
        """
        with self._changed:
            if self._closed:
                raise WaitinfoError("recognition has been closed")
            if len(self._open) >= self.limit:
                self.observer.refused("voices")
                raise Busy(f"{self.limit} voices are open, which is all there is room for")
            self._numbers += 1
            speaker = VoiceStart(language, live, carried)
            voice = PooledVoice(self, self._numbers, speaker, on_heard, on_end)
            alive = [worker for worker in self._workers if not worker.dead]
            if not alive:
                raise WaitinfoError("the recogniser's process has died and does not start again")
            voice._worker = min(alive, key=lambda worker: worker.load)
            voice._worker.load += 1
            self._open.add(voice)
            return voice

    def close(self) -> None:
        """End all voices and all processes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> Voices:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows is called with the lock held.

    def _queue(self, voice: PooledVoice) -> None:
        worker = voice._worker
        if worker is not None and voice._ready and not voice._queued:
            voice._queued = True
            worker.turns.append(voice)
            self._changed.notify_all()

    def _drop(self, voice: PooledVoice) -> None:
        """A voice is over: free its place, and let its worker forget it."""
        self._open.discard(voice)
        self._queue(voice)


class _WorkerProcess:
    """A process, and the thread that talks to it."""

    def __init__(self, pool: Voices, spec: tuple[str, float | None, int]) -> None:
        self.load = 0  # voices
        self.dead = False  # for good
        self.turns: deque[PooledVoice] = deque()
        self._pool, self._spec = pool, spec
        self._known: set[int] = set()  # voices that the process has begun with
        self._begin()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "waitinfo.listening.worker", str(theirs.fileno())]
        places = [str(Path(__file__).resolve().parents[2]), *sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._pipe: Connection[Any, Any] = Connection(ours.detach())
        self._pipe.send(self._spec)
        self._known.clear()

    def started(self) -> None:
        """Wait until the weights are loaded."""
        self._await()
        self._thread.start()

    def _await(self) -> None:
        try:
            if not self._pipe.poll(START):
                raise WaitinfoError(f"recogniser {self._spec[0]}: does not load in {START:g} s")
            error = self._pipe.recv()
        except (EOFError, OSError):
            raise WaitinfoError(f"recogniser {self._spec[0]}: its process has died") from None
        if error is not None:
            raise WaitinfoError(error)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._process.kill()
        self._process.wait()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._pipe.close()

    def _run(self) -> None:
        pool = self._pool
        while True:
            with pool._changed:
                while not self.turns and not pool._closed:
                    pool._changed.wait()
                if pool._closed:
                    return
                voice = self.turns.popleft()
                voice._queued = False
                samples, waited = voice._take()
                finishing, closed = voice._finishing, voice._closed
            try:
                self._turn(voice, samples, waited, finishing, closed)
            except (EOFError, OSError):
                self._died()
                if pool._closed or not self._again():
                    return

    def _turn(
        self, voice: PooledVoice, samples: Samples, waited: float, finishing: bool, closed: bool
    ) -> None:
        """Let the process hear what a voice has said."""
        number = voice._number
        if closed:
            if number in self._known:
                self._known.discard(number)
                self._pipe.send((number, None, False, None))
                self._pipe.recv()
            self.load -= 1
            return
        self._known.add(number)
        began = time.perf_counter()
        self._pipe.send((number, voice._speaker, finishing, samples))
        found, rhythm, error = self._pipe.recv()
        seconds = time.perf_counter() - began
        if error is not None:
            self._known.discard(number)
            self._fail(voice, WaitinfoError(error))
            return
        words = sum(len(heard.words) for heard in found)
        stats = Turn(seconds, len(samples) / RATE, waited, rhythm, words, self._pool.open_voices)
        self._pool.observer.turn(stats)
        voice.rhythm = rhythm
        if found and not voice._closed:
            voice._on_heard(found)
        if finishing:
            self._known.discard(number)
            self._over(voice, None)

    def _over(self, voice: PooledVoice, error: Exception | None) -> None:
        with self._pool._changed:
            if voice._closed:
                return  # its place is given back by the turn that closes it
            voice._closed = True
            voice._queued = True  # no more turns
            self._pool._open.discard(voice)
            self.load -= 1
        voice._on_end(error)

    def _fail(self, voice: PooledVoice, error: Exception) -> None:
        self._pool.observer.failed(error)
        self._over(voice, error)

    def _died(self) -> None:
        """The process is gone, and with it all of its voices."""
        with self._pool._changed:
            voices = [voice for voice in self._pool._open if voice._worker is self]
            self.turns.clear()
            self.load = len(voices)
        if not self._pool._closed:
            for voice in voices:
                self._fail(voice, WaitinfoError("the recogniser's process has died"))

    def _again(self) -> bool:
        """Start another process; whether it could be."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        try:
            self._begin()
            self._await()
        except WaitinfoError as error:
            self.dead = True
            self._died()  # voices that were opened meanwhile
            self._pool.observer.failed(error)
        return not self.dead
