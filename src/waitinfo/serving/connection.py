"""A connection of any protocol, and its stream: text in, words out, until one of them ends."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from fastapi import WebSocket

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.hearing import Ear
from waitinfo.serving.hub import Hub
from waitinfo.serving.logs import begin_session, failed, log
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import AudioStart, Idle, Malformed, Resume, Stats, Words
from waitinfo.serving.rooms import Seat
from waitinfo.serving.transcript import Surrogates, Transcript, replay_of
from waitinfo.serving.wire import Gone, Inbox, Stalled, Wire, choose, deny
from waitinfo.streaming.asynchronous import AsyncStream
from waitinfo.streaming.remote import EngineGone
from waitinfo.streaming.replay import ReplayError
from waitinfo.text.scripts import PILE

if TYPE_CHECKING:
    from waitinfo.serving.interpreting import Interpreters

# Why a stream ends, and what the WebSocket is closed with.
CODES = {
    "end": 1000, "idle": 1000, "replaced": 1000, "closing": 1012, "slow": 1008, "full": 1013,
    "refused": 1008, "error": 1011,
}  # fmt: skip
REASONS = {
    "idle": "no text came",
    "replaced": "the room's speaker has connected again",
    "closing": "the server stops; connect again",
    "slow": "the client does not read",
    "full": "all streams are in use; try again later",
    "refused": "the stream cannot be resumed so",
    "error": "the stream failed",
}


FAR = 1 << 50  # more than any stream counts, so that it can be counted on from there


class Live:
    """An open stream within its limits, whatever the protocol. `close` it in any case."""

    def __init__(
        self,
        hub: Hub,
        served: Served,
        client: Caller,
        stream: AsyncStream,
        resume: Resume | None = None,
    ) -> None:
        self.hub, self.served, self.client, self.stream = hub, served, client, stream
        self.transcript = Transcript(stream)
        self.ended = False  # no more text will come
        self._began = self._now()
        self._spoken = resume is not None  # whether any text has come
        self.worked_off = True  # all that can be done without more text has been done
        self._handed = 0  # texts and marks since all was worked off
        self._mark: int | None = None  # id of the newest text
        self._surrogates = Surrogates()
        self._progress = asyncio.Event()
        self.listener: Interpreters | None = None  # takes what is said, too
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
        client: Caller,
        k: float | None = None,
        lag: float | None = None,
        segmenter: str | None = None,
        resume: Resume | None = None,
    ) -> Live:
        replay = None
        if resume is not None:
            if resume.vocabulary not in (None, served.vocabulary):
                raise WaitinfoError("resume: the stream was started with another vocabulary")
            if max(resume.position, resume.sentence, resume.begun, resume.kept) > FAR:
                raise WaitinfoError("resume: no stream has come so far")
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
        self._spoken = self._spoken or bool(text.strip())
        source = self.transcript.source
        if source.longest_word(text) > (longest := self.hub.settings.word):
            raise WaitinfoError(f"a word may have {longest:,} characters; the text was not taken")
        if source.piles_marks(text):
            raise WaitinfoError(f"a letter may have {PILE} marks; the text was not taken")
        await self.stream.push(text, wait=False, at=at)
        words = source.add(text)
        if self.listener is not None:
            self.listener.hear(source.received - len(text), text)
        return self._taken(words, mark)

    async def flush(self, mark: int | None = None) -> None:
        if self.ended:
            raise WaitinfoError("this stream has been ended")
        await self.stream.flush(wait=False)
        if self.listener is not None:
            self.listener.flush()
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
        self._handed += 1
        if mark is not None:
            self._mark = mark
        self.transcript.words_in += words
        self._words_in.inc(words)
        return self.client.spend(words)

    def stir(self) -> None:
        """The client has said something that is not text yet."""
        self._active, self._spoken = self._now(), True

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
        while self.full:
            self._progress.clear()
            await self._progress.wait()

    @property
    def full(self) -> bool:
        """Whether the model is too far behind: text of any length takes memory, so does a mark."""
        settings = self.hub.settings
        behind = self.transcript.source.ahead > settings.backlog or self._handed > settings.pieces
        return behind and not self.worked_off

    # Words out

    async def updates(self, trace: bool = False) -> AsyncIterator[Words | Idle]:
        """Messages for the client, until the stream is over."""
        async for events, idle in self.stream.batches():
            mark, self._active = self._mark, self._now()
            if events and (found := self.transcript.take(events, trace)) is not None:
                self._measure(found)
                yield found
            self.worked_off = idle
            if idle:
                self._handed = 0
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
    def silent(self) -> float:
        """Seconds since it was opened without any text; -1 once some has come, or it has ended."""
        over = self._spoken or self.stream.finished
        return -1.0 if over else self._now() - self._began

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
            sentences=transcript.progress.sentence,
            mean_lag=round(transcript.lags / written, 3) if written else None,
            k=self.k,
        )


class TimedOut(Exception):
    """No text came for too long."""


class Stopped(Exception):
    """The server ends the stream."""


FORGIVEN = 10  # errors of a connection
PENANCE = 0.05  # seconds that each further one costs


class Connection(ABC):
    """One WebSocket, at most one stream."""

    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, socket: WebSocket, hub: Hub, client: Caller) -> None:
        settings = hub.settings
        self.socket, self.hub, self.client = socket, hub, client
        self.wire = Wire(socket, settings.stall, settings.message_size, hub.lane)
        self.live: Live | None = None
        self.ear: Ear | None = None  # where the stream takes audio
        self._reserved = False  # a voice
        self.seat: Seat | None = None  # in the room where the stream speaks
        self._stop = asyncio.Event()
        self.name = ""  # in the logs
        self._why = "closing"
        self._slowed = False
        self.refused = ""  # why the stream is
        self._errors = 0  # messages that were answered with one
        self._inbox = Inbox(self.wire, settings.pieces, settings.backlog)

    @classmethod
    async def serve(cls, socket: WebSocket, hub: Hub) -> None:
        """Answer a request for a WebSocket."""
        session = begin_session()
        try:
            client = hub.admit(socket)
            hub.check_space()
            await client.enter(hub.settings.retry)
        except Refusal as refusal:
            hub.refuse(refusal)
            await deny(socket, refusal)
            return
        try:
            await socket.accept(choose(socket, *cls.subprotocols))
            connection = cls(socket, hub, client)
            connection.name = session
            with hub.connection(connection):
                await connection._run()
        finally:
            client.leave()

    async def _run(self) -> None:
        reason = "gone"
        try:
            reason = await self._until_stopped(self.session())
        except Gone:
            pass
        except Stalled:
            reason = "slow"
        except TimedOut:
            reason = "idle"
        except (Stopped, EngineGone):
            reason = self._why
        except Refusal as refusal:
            reason, self.refused = "full", refusal.message
            self.hub.refuse(refusal)
        except Exception as error:
            reason = "refused" if isinstance(error, ReplayError) else "error"
            await self._failed(error)
        finally:
            if self.live is not None:
                self.live.close()
            self._stop_hearing()
            self._inbox.close()
            if self.seat is not None:  # of a stream that was cut, it waits for its speaker
                self.seat.leave(0.0 if reason == "end" else self.hub.settings.kept)
        await self._finish(reason)

    async def _failed(self, error: Exception) -> None:
        """Tell the client why its stream ends, if it is something that it may know."""
        code = "failed"
        if isinstance(error, WaitinfoError):
            message, code = str(error), getattr(error, "code", code)
        else:
            message = "an error of the server"
            failed("a connection failed", error)
        with suppress(Gone, Stalled):
            await self.error(code, message, None, fatal=True)

    async def _finish(self, reason: str) -> None:
        self.hub.metrics.closed.labels(reason).inc()
        log("closed", logging.DEBUG, reason=reason)
        if reason not in ("gone", "slow"):
            with suppress(Gone, Stalled):
                await self.farewell(reason)
        if reason != "gone":
            await self.wire.close(CODES[reason], REASONS.get(reason, ""))

    async def _until_stopped(self, session: Coroutine[Any, Any, str]) -> str:
        """Run a session until it ends or the server does."""
        running = asyncio.ensure_future(session)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise Stopped
            return running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)

    def stop(self, reason: str = "closing") -> None:
        """End the stream now."""
        self._why = reason
        self._stop.set()

    # For both protocols

    async def both(
        self, live: Live, writing: Coroutine[Any, Any, None], *more: Coroutine[Any, Any, None]
    ) -> None:
        """Read and write until all is written, one task fails, or the stream is idle."""
        reading = (self._read(live), self._watch(live), *more)
        writer, *others = map(asyncio.ensure_future, (writing, *reading))
        tasks = {writer, *others}
        try:
            while not writer.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                tasks -= done
        finally:
            for task in (writer, *others):
                task.cancel()
            await asyncio.gather(writer, *others, return_exceptions=True)

    async def open_ear(self, live: Live, start: AudioStart) -> Ear:
        """Take audio from now on."""
        if not self._reserved:  # else it was tried in vain before
            self.hub.hearing.reserve(self.client)
            self._reserved = True
        self.ear = await self.hub.hearing.open(live.served.languages, start)
        return self.ear

    def _stop_hearing(self) -> None:
        if self.ear is not None:
            self.ear.close()
        if self._reserved:
            self.hub.hearing.release(self.client)

    async def end_input(self, live: Live) -> None:
        """The client will send no more."""
        await (live if self.ear is None else self.ear).end()

    async def _read(self, live: Live) -> None:
        """Handle messages until the client ends the stream."""
        while not live.ended:
            await self._handle(live)
            if live.full:
                await self._meanwhile(live.room())

    async def _watch(self, live: Live) -> None:
        """A stream is idle if neither the client nor the server had anything to do for it."""
        idle = self.hub.settings.idle
        while (quiet := live.quiet()) < idle:
            await asyncio.sleep(idle - quiet)
        raise TimedOut

    async def _handle(self, live: Live) -> None:
        """One message. A bad one is answered with an error, and the stream lives on."""
        try:
            found = await self._inbox.next()
            if isinstance(found, bytes):
                wait = await self.audio(live, found)
            else:
                wait = await self.message(live, found)
        except EngineGone:
            raise
        except WaitinfoError as error:
            code = error.code if isinstance(error, Malformed) else "refused"
            await self.complain(code, str(error))
            return
        if wait > 0:
            if not self._slowed:
                self._slowed = True
                await self.complain("rate", "this key has used up its words per minute", wait)
            await self._meanwhile(self.client.pause())

    async def _meanwhile(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for something, and read what comes meanwhile, as far as it may wait.

        Else nobody would see the client's pings, nor that it has left.
        """
        working = asyncio.ensure_future(work)
        try:
            await self._inbox.fill_until(working)
            await working
        finally:
            working.cancel()

    async def complain(self, code: str, message: str, retry: float | None = None) -> None:
        """Tell the client of an error that does not end the stream."""
        self.hub.metrics.errors.labels(code).inc()
        await self.error(code, message, retry, fatal=False)
        self._errors += 1
        if self._errors > FORGIVEN:  # so that a flood of errors is slow
            await asyncio.sleep(PENANCE)

    # Of each protocol

    @abstractmethod
    async def session(self) -> str:
        """The whole conversation; why it ended."""

    @abstractmethod
    async def message(self, live: Live, text: str) -> float:
        """Do what a message of the running stream asks for; seconds to wait for the next."""

    async def audio(self, live: Live, data: bytes) -> float:
        """A binary message; seconds to wait for the next."""
        raise Malformed("messages are text, not bytes")

    @abstractmethod
    async def error(self, code: str, message: str, retry: float | None, fatal: bool) -> None:
        """Send an error."""

    @abstractmethod
    async def farewell(self, reason: str) -> None:
        """The last messages."""

    @abstractmethod
    async def announce(self, seconds: float) -> None:
        """Say in how many seconds the server stops."""
