"""Hearing: audio of clients becomes the text of their streams, in processes of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Resampler, Samples, from_pcm16
from waitinfo.listening.loading import DEFAULT
from waitinfo.listening.recogniser import Anchor, Heard, Word
from waitinfo.listening.spoken import spoken_text
from waitinfo.listening.workers import Busy, PooledVoice, Voices
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.protocol import AudioPlace, AudioStart, HeardWords, SpokenWord
from waitinfo.text.languages import Languages

if TYPE_CHECKING:
    from waitinfo.serving.connection import Live

VOICES = 4
AGAIN = 60.0  # seconds after which a recogniser that did not load is tried again
FULL = 0.05  # seconds between two looks whether a voice has room
FLUSHES = 100  # that may wait


class NotHeard(WaitinfoError):
    """There is no recogniser, or it does not take this audio."""

    code: ClassVar[str] = "refused"


class VoiceFailed(WaitinfoError):
    """The recogniser of a voice is gone; another one goes on where it was."""

    code: ClassVar[str] = "voice"


class Hearing:
    """The recogniser of a server, and who has its voices.

    One that nobody has asked for by name is loaded when the first speaker comes.
    """

    def __init__(
        self,
        metrics: Metrics,
        recogniser: str | None = None,
        voices: int = 0,
        retry: float = 5.0,
    ) -> None:
        missing = recogniser is None and find_spec("onnx_asr") is None
        self.limit = 0 if missing else voices
        self._recogniser, self._retry = recogniser or DEFAULT, retry
        self._figures = metrics.voices
        self._pool: Voices | None = None
        self._loading: asyncio.Future[None] | None = None
        self._tried = 0.0
        self._callers: Counter[int] = Counter()

    @property
    def free(self) -> int:
        return self.limit - sum(self._callers.values())

    def load(self) -> None:
        """Begin with the processes; waits until they have loaded their weights."""
        if self.limit and self._pool is None:
            self._pool = Voices(self._recogniser, self.limit, observer=self._figures)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    async def open(self, languages: Languages, start: AudioStart, live: bool = True) -> Ear:
        """A voice for a client that has reserved it."""
        language = _language(start.language, languages.source)
        pool = await self._loaded()
        ear = Ear(start)
        carried = None if start.resume is None else start.resume.words
        try:
            ear.voice = pool.open(ear.heard, ear.ended, language, live, carried)
        except Busy:
            raise self._full() from None
        return ear

    def reserve(self, client: Caller) -> None:
        """Count a voice of a client; refuse one more than there are, or a stranger's half."""
        if not self.limit:
            raise NotHeard("audio: this server takes none; start it with --recogniser")
        share = (self.limit + 1) // 2 if client.stranger else self.limit
        if self.free <= 0 or self._callers[id(client)] >= share:
            raise self._full()
        self._callers[id(client)] += 1
        self._figures.open.inc()

    def _full(self) -> Refusal:
        return Refusal(503, "voices", "all voices are in use; try again later", self._retry)

    def release(self, client: Caller) -> None:
        """A voice of a client is over."""
        self._figures.open.dec()
        self._callers[id(client)] -= 1
        if not self._callers[id(client)]:
            del self._callers[id(client)]

    async def _loaded(self) -> Voices:
        now = time.monotonic()
        if self._loading is None or (self._pool is None and now > self._tried + AGAIN):
            self._tried = now
            self._loading = asyncio.ensure_future(asyncio.to_thread(self.load))
        try:
            await asyncio.shield(self._loading)  # others wait for it, too
        except WaitinfoError as error:
            raise NotHeard(str(error)) from None
        assert self._pool is not None
        return self._pool


def _language(asked: str | None, source: str | None) -> str | None:
    """What the recogniser is told: de, if the speaker is said to have de-AT."""
    codes = [code and code.split("-")[0].lower() for code in (asked, source)]
    if all(codes) and codes[0] != codes[1]:
        raise NotHeard(f"audio.language: the model translates from {source}")
    return codes[0] or codes[1]


class Flushed(NamedTuple):
    """The client ends a sentence."""

    mark: int | None


class Ear:
    """The voice of one connection: PCM in, `heard` messages out, and text for its stream."""

    voice: PooledVoice

    def __init__(self, start: AudioStart) -> None:
        self._rate = start.rate
        place = start.resume or AudioPlace(sample=0, words=[])
        self._before = place.sample  # samples of streams that this one continues
        self._newest = Heard([], [], 0.0, anchor=Anchor(0, tuple(place.words)))
        self._resampler = Resampler(start.rate)
        self._half = b""  # of a sample
        self._loop = asyncio.get_running_loop()
        self._found: asyncio.Queue[list[Heard] | Flushed | Exception | None] = asyncio.Queue()
        self.begun = self.finished = self._closed = False
        self._flushes = 0  # that wait
        self._owed = 0.0  # seconds that the client's key has to wait

    # On the thread of the worker

    def heard(self, found: list[Heard]) -> None:
        self._tell(found)

    def ended(self, error: Exception | None) -> None:
        self._tell(VoiceFailed(f"the recogniser failed: {error}") if error else None)

    def _tell(self, found: list[Heard] | Exception | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._found.put_nowait, found)

    # On the event loop

    async def take(self, data: bytes) -> float:
        """Samples; waits while there is no room. The seconds that the client's key has to wait."""
        if self.finished:
            raise WaitinfoError("this stream has been ended")
        self.begun = True
        data = self._half + data
        size = len(data) // 2 * 2
        self._half = data[size:]
        await self.push(self._resampler.add(from_pcm16(data[:size])))
        return self._owed

    async def push(self, samples: Samples) -> None:
        """Samples as recognisers take them; waits while there is no room."""
        while len(samples) and not self._closed:
            try:
                samples = samples[self.voice.push(samples) :]
            except WaitinfoError:  # it has failed, and `batches` says why
                return
            if len(samples):
                await asyncio.sleep(FULL)

    async def end(self) -> None:
        """No more audio will come."""
        if not self.finished:
            self.finished = True
            await self.push(self._resampler.add(np.zeros(0, np.float32), last=True))
            self.voice.finish()

    async def flush(self, mark: int | None) -> None:
        """A sentence ends after all that has been heard."""
        while self._flushes >= FLUSHES and not self._closed:
            await asyncio.sleep(FULL)
        self._flushes += 1
        self._found.put_nowait(Flushed(mark))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.voice.close()

    async def batches(self) -> AsyncIterator[list[Heard] | Flushed]:
        """What was heard, until all has been."""
        while (found := await self._found.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found

    async def messages(self, live: Live) -> AsyncIterator[HeardWords]:
        """Messages for the client; the text of each goes to the stream after it was sent."""
        async for batch in self.batches():
            live.stir()
            found: list[Heard] = [] if isinstance(batch, Flushed) else batch
            mark = None
            if isinstance(batch, Flushed):
                found, mark = [self._newest._replace(words=[], open=[], pause=True)], batch.mark
                self._flushes -= 1
            for self._newest in found:
                yield (message := self._message(self._newest, mark))
                if message.text:
                    self._owed = await live.text(message.text, at=message.words[-1].end)
                if message.pause:
                    await live.flush(mark)
        await live.end()

    def _message(self, heard: Heard, mark: int | None) -> HeardWords:
        begin, anchor = self._before / self._rate, heard.anchor
        sample = self._before + anchor.sample * self._rate // RATE
        return HeardWords(
            words=_shifted(heard.words, begin),
            text="".join(map(spoken_text, heard.words)),
            open=_shifted(heard.open, begin),
            position=round(heard.position + begin, 3),
            pause=heard.pause,
            id=mark,
            replay=AudioPlace(sample=sample, words=list(anchor.words)),
        )


def _shifted(words: list[Word], seconds: float) -> list[SpokenWord]:
    return [
        SpokenWord(
            text=word.text, start=round(word.start + seconds, 3), end=round(word.end + seconds, 3)
        )
        for word in words
    ]
