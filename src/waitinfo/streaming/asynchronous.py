"""The same streams for event loops: the model runs on a separate thread."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import ClassVar, NamedTuple

from waitinfo.streaming.channel import Channel, Mark, Said, StreamOptions
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import Dials
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.scheduler import HISTORY, Scheduler
from waitinfo.streaming.stream import Handle
from waitinfo.streaming.translator import Translator
from waitinfo.text.languages import UNKNOWN, Languages

EXIT_SECONDS = 30  # that the interpreter waits for a round under way when it ends


class AsyncTranslator:
    """Opens streams on a translator's model whose pushes are awaited.

    All streams are served together, on a thread that never is the event loop's. What arrives during
    a round joins the next one. One translator may serve threads and event loops at the same time.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._worker = None if translator.elsewhere else _Leader(translator._scheduler)
        if self._worker is not None:
            weakref.finalize(self, self._worker.stop).atexit = False
        self._notifiers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Notifier]
        self._notifiers = weakref.WeakKeyDictionary()

    def stream(
        self,
        k: float | None = None,
        raw: bool = False,
        segment: str | None = None,
        history: int | None = HISTORY,
        replay: Replay | None = None,
        lag: float | None = None,
        languages: Languages = UNKNOWN,
    ) -> AsyncStream:
        """Open a stream; the arguments are those of `Translator.stream`."""
        self.start()
        translator = self.translator
        options = StreamOptions(k, raw, segment, replay, lag, languages)
        channel = translator._open_channel(options, history)
        return AsyncStream(translator._scheduler, channel, translator.dials, self._notifier)

    def _notifier(self) -> _Notifier:
        """That of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._notifiers:
            self._notifiers[loop] = _Notifier(loop)
        return self._notifiers[loop]

    def start(self) -> None:
        """Start the thread, if it has not been started."""
        if self._worker is not None:
            self._worker.start()

    def close(self) -> None:
        """Stop the thread. Open streams are not served any more unless another thread does."""
        if self._worker is not None:
            self._worker.stop()

    async def __aenter__(self) -> AsyncTranslator:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class NewEvents(NamedTuple):
    """Events of a stream, and whether all that can be done without more text has been done."""

    events: list[Event]
    idle: bool


class AsyncStream(Handle):
    """One running translation, for use on one event loop; opened by `AsyncTranslator.stream`."""

    def __init__(
        self,
        scheduler: Scheduler,
        channel: Channel,
        dials: Dials,
        notifier: Callable[[], _Notifier],
    ) -> None:
        super().__init__(scheduler, channel, dials)
        self._notifier = notifier

    async def push(self, text: str, wait: bool = True, at: float | None = None) -> list[Event]:
        """Source text that has arrived; returns the events it caused.

        With `wait=False` it returns at once, and iterate over the stream to get the events.
        Text is taken at once: after a cancelled push, its events come with the next one.
        `at` is when it was spoken, in seconds; pauses are measured by it, or else in real time.
        """
        return await self._hand_in(text, wait, at)

    async def flush(self, wait: bool = True) -> list[Event]:
        """End the present sentence, whatever its text; returns its remaining events."""
        return await self._hand_in(Mark.FLUSH, wait)

    async def finish(self, wait: bool = True) -> list[Event]:
        """No more text will come; returns the remaining events. Cancelled, it closes the stream."""
        try:
            return await self._hand_in(Mark.END, wait)
        except BaseException:
            self.close()
            raise

    async def _hand_in(self, text: Said, wait: bool, at: float | None = None) -> list[Event]:
        channel, scheduler, notifier = self._channel, self._scheduler, self._notifier()
        channel.listener = notifier
        scheduler.submit({channel: text}, served_by=self if wait else None, at=at)
        events: list[Event] = []
        if not wait:
            return events
        try:
            while True:
                busy = channel.busy
                events += scheduler.collect(channel)
                if not busy:
                    scheduler.check_error(channel)
                    return events
                await notifier.change_of(channel)
        except BaseException:
            scheduler.put_back(channel, events)
            raise
        finally:
            scheduler.release([channel])

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events as they happen, until the stream has been finished or closed."""
        async for batch in self.batches():
            for event in batch.events:
                yield event

    async def batches(self) -> AsyncIterator[NewEvents]:
        """Events as they happen, all that there are at a time."""
        channel, scheduler, notifier = self._channel, self._scheduler, self._notifier()
        channel.listener = notifier
        while True:
            seen, over, idle = channel.changes, channel.over, not channel.busy
            events = scheduler.collect(channel)
            yield NewEvents(events, idle)
            if over:
                scheduler.check_error(channel)
                return
            if channel.changes == seen:  # else something has changed while the events were used
                await notifier.change_of(channel)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Notifier:
    """Tells the tasks of one event loop that something has changed, once a round for all of them.

    A change that is told after a task has looked, and before it waits, is not missed: telling is
    itself a call on the event loop, which runs when the task waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._futures: dict[Channel, list[asyncio.Future[None]]] = {}

    async def change_of(self, channel: Channel) -> None:
        """Wait for the next change of a stream."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._futures.setdefault(channel, []).append(future)
        try:
            await future
        except BaseException:
            self._forget(channel, future)
            raise

    def _forget(self, channel: Channel, future: asyncio.Future[None]) -> None:
        waiting = self._futures.get(channel, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._futures.pop(channel, None)

    def __call__(self, channels: Sequence[Channel]) -> None:
        """On the thread that leads."""
        with suppress(RuntimeError):  # the event loop is closed, so no task waits
            self.loop.call_soon_threadsafe(self._wake, channels)

    def _wake(self, channels: Sequence[Channel]) -> None:
        for channel in channels:
            channel.changes += 1
            for future in self._futures.pop(channel, ()):
                if not future.done():
                    future.set_result(None)


class _Leader:
    """A thread that leads the rounds whenever there is something to do."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._thread: _Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = _Thread(self._scheduler)
                self._thread.start()
                self._scheduler.bells.append(self._thread.ring)

    def stop(self) -> None:
        """End the thread after the present round."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._scheduler.bells.remove(thread.ring)
            thread.stop()


class _Thread(threading.Thread):
    """Refers to the scheduler alone, so that a translator that nobody uses any more ends it."""

    alive: ClassVar[weakref.WeakSet[_Thread]] = weakref.WeakSet()

    def __init__(self, scheduler: Scheduler) -> None:
        # Unlike other queues it may be used inside destructors, where streams are abandoned.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._stopped = threading.Event()
        arguments = (scheduler, self._calls, self._stopped)
        super().__init__(target=_work, args=arguments, name="waitinfo", daemon=True)
        self.alive.add(self)

    def ring(self) -> None:
        self._calls.put(None)

    def stop(self) -> None:
        self._stopped.set()
        self.ring()


def _work(scheduler: Scheduler, calls: SimpleQueue[None], stopped: threading.Event) -> None:
    over = False
    while not over:
        calls.get()
        over = stopped.is_set()  # then `lead` passes on what is left
        try:
            scheduler.lead(stopped.is_set)
        except Exception as error:  # a bug in the scheduler must not leave tasks waiting
            logging.getLogger(__name__).exception("rounds are not possible any more")
            scheduler.abort(error)


@atexit.register
def _stop_all() -> None:
    """Let every thread end before the interpreter does.

    A thread that is inside torch when the interpreter ends, be it only to free tensors, aborts the
    process.
    """
    threads = [thread for thread in _Thread.alive if thread.is_alive()]
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(timeout=EXIT_SECONDS)
