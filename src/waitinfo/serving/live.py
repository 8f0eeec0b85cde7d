"""One stream of one client, whatever the protocol: text in, words out, within its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Client
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import Idle, Resume, Stats, Words
from waitinfo.serving.transcript import Surrogates, Transcript, replay_of
from waitinfo.streaming.asynchronous import AsyncStream


class Live:
    """An open stream. `close` it in any case."""

    def __init__(
        self,
        hub: Hub,
        served: Served,
        client: Client,
        stream: AsyncStream,
        resume: Resume | None = None,
    ) -> None:
        self.hub, self.served, self.client, self.stream = hub, served, client, stream
        tokenizer = served.translator.vocabulary.target
        self.transcript = Transcript(tokenizer, resume, stream.dial_state, stream.memory)
        self.ended = False  # no more text will come
        self.worked_off = True  # all that can be done without more text has been done
        self._mark: int | None = None  # id of the newest text
        self._surrogates = Surrogates()
        self._progress = asyncio.Event()
        self._newest = self._active = self._now()
        metrics, name = hub.metrics, served.name
        self._words_in = metrics.words_in.labels(name)
        self._words_out = metrics.words_out.labels(name)
        self._lag, self._response = metrics.lag.labels(name), metrics.response.labels(name)
        metrics.streams.labels(name).inc()

    @classmethod
    def open(
        cls,
        hub: Hub,
        served: Served,
        client: Client,
        k: float | None = None,
        lag: float | None = None,
        segmenter: str | None = None,
        resume: Resume | None = None,
    ) -> Live:
        replay = None
        if resume is not None:
            if resume.vocabulary not in (None, served.vocabulary):
                raise WaitinfoError("resume: the stream was started with another vocabulary")
            if len(resume.path) > hub.settings.path:
                raise WaitinfoError(f"resume: a path may have {hub.settings.path:,} tokens")
            replay = replay_of(resume)
        return cls(hub, served, client, served.open(k, lag, segmenter, replay), resume)

    def close(self) -> None:
        self.stream.close()
        self._progress.set()
        self.hub.metrics.streams.labels(self.served.name).dec()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # Text in

    async def text(self, text: str, mark: int | None = None, at: float | None = None) -> float:
        """Take text, spoken `at` a time; the seconds until the client's key may send more."""
        if self.ended:
            raise WaitinfoError("this stream has been ended")
        text = self._surrogates.add(text)
        source = self.transcript.source
        if source.longest_word(text) > (longest := self.hub.settings.word):
            raise WaitinfoError(f"a word may have {longest:,} characters; the text was not taken")
        await self.stream.push(text, wait=False, at=at)
        return self._taken(source.add(text), mark)

    async def flush(self, mark: int | None = None) -> None:
        if self.ended:
            raise WaitinfoError("this stream has been ended")
        await self.stream.flush(wait=False)
        self._taken(self.transcript.source.cut(), mark)

    async def end(self) -> None:
        if not self.ended:
            self.ended = True
            await self.stream.finish(wait=False)
            self._taken(self.transcript.source.cut(), None)

    def _taken(self, words: int, mark: int | None) -> float:
        """Note that something was handed in, and count its words."""
        self._newest = self._active = self._now()
        self.worked_off = False
        if mark is not None:
            self._mark = mark
        self.transcript.words_in += words
        self._words_in.inc(words)
        return self.client.spend(words)

    def set(self, k: float | None, lag: float | None) -> None:
        """Turn the dial, or hold a lag."""
        if k is not None and lag is not None:
            raise WaitinfoError("give either k or lag, not both")
        if lag is not None:
            self.stream.lag = lag
        if k is not None:
            self.stream.k = k

    async def room(self) -> None:
        """Wait until the model has caught up with the text, so far that more may come."""
        while self.transcript.source.ahead > self.hub.settings.backlog and not self.worked_off:
            self._progress.clear()
            await self._progress.wait()

    # Words out

    async def updates(self, trace: bool = False) -> AsyncIterator[Words | Idle]:
        """What there is to tell, until the stream is over."""
        async for events, idle in self.stream.batches():
            mark, self._active = self._mark, self._now()
            if events and (found := self.transcript.take(events, trace)) is not None:
                self._measure(found)
                yield found
            self.worked_off = idle
            self._progress.set()
            if idle and mark is not None:
                if self._mark == mark:
                    self._mark = None
                yield Idle(id=mark)

    def _measure(self, found: Words) -> None:
        self._words_out.inc(len(found.words))
        for word in found.words:
            self._lag.observe(word.lag)
        if found.words:
            self._response.observe(self._now() - self._newest)

    def quiet(self) -> float:
        """Seconds since there was something to do for the stream; 0 while there is."""
        return self._now() - self._active if self.worked_off else 0.0

    @property
    def k(self) -> float | None:
        return None if self.served.system.dial is None else self.stream.k

    def stats(self) -> Stats:
        transcript = self.transcript
        written = transcript.words_out
        return Stats(
            seconds=round(time.monotonic() - self.stream.began, 3),
            words_in=transcript.words_in,
            words_out=written,
            sentences=transcript.sentence,
            mean_lag=round(transcript.lags / written, 3) if written else None,
            k=self.k,
        )
