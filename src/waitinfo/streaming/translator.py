"""A loaded model that serves many streams at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.model.bundled import find_model
from waitinfo.model.saving import LoadedModel, load_model
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.stream import Event, Stream
from waitinfo.systems import check_dial


class Translator:
    """Opens streams on one model and advances them together.

    At most `streams` are open at a time, each with room for sentences of `capacity` source tokens.
    """

    def __init__(
        self, loaded: LoadedModel, streams: int = 32, capacity: int = 256, ending: str = "guard"
    ) -> None:
        self.loaded = loaded
        self.vocabulary, self.system = loaded.vocabulary, loaded.system
        self.engine = Engine(loaded.model, loaded.system, streams, capacity, ending)
        self._open: set[Stream] = set()
        self._slots: dict[int, Stream] = {}
        self._lock = threading.Lock()  # around the engine, which is not for two threads

    @property
    def bytes_per_stream(self) -> int:
        """Memory each stream takes."""
        return self.engine.bytes_per_slot

    def check_dial(self, k: float | None) -> float:
        return check_dial(self.system, k)

    # Streams

    def stream(self, k: float | None = None, raw: bool = False, segment: bool = True) -> Stream:
        """A new stream at dial k.

        With `raw`, text may arrive in any pieces, not only in words. Without `segment`, all text
        is one sentence, whatever its full stops.
        """
        dial = self.check_dial(k)
        if len(self._open) >= self.engine.slots:
            raise WaitinfoError(
                f"all {self.engine.slots} streams are in use; close one, or load the model with "
                f"more: each takes {self.bytes_per_stream / 2**20:.0f} MiB"
            )
        stream = Stream(self, dial, raw, segment)
        self._open.add(stream)
        return stream

    def forget(self, stream: Stream) -> None:
        """Take a stream's slot back."""
        with self._lock:
            self._open.discard(stream)
            if stream.slot is not None:
                del self._slots[stream.slot]
                self.engine.close(stream.slot)
                stream.slot = None

    def serve(self, stream: Stream) -> list[Event]:
        """Advance until nothing more can be done; returns this stream's events."""
        while self.round():
            pass
        return stream.collect()

    def push_many(self, texts: Mapping[Stream, str]) -> dict[Stream, list[Event]]:
        """Text for several streams at once, advanced together."""
        for stream, text in texts.items():
            stream.accept(text)
        while self.round():
            pass
        return {stream: stream.collect() for stream in texts}

    def finish_many(self, streams: Iterable[Stream]) -> dict[Stream, list[Event]]:
        """Finish several streams together."""
        streams = list(streams)
        for stream in streams:
            stream.accept_end()
        while self.round():
            pass
        events = {stream: stream.collect() for stream in streams}
        for stream in streams:
            stream.close()
        return events

    def round(self) -> set[Stream]:
        """Feed what waits and advance the engine once; the streams for which something happened."""
        with self._lock:
            for stream in list(self._open):
                if stream.slot is None and stream.waiting:
                    stream.slot = self.engine.open(stream.k)
                    self._slots[stream.slot] = stream
                if stream.slot is not None:
                    stream.feed(self.engine)
            moved = set()
            for event in self.engine.advance():
                stream = self._slots[event.slot]
                stream.take(event, self.engine)
                moved.add(stream)
            return moved

    # Whole texts

    def translate(self, text: str, k: float | None = None) -> str:
        """A text, all at once, at dial k."""
        stream = self.stream(k)
        stream.push(text)
        stream.finish()
        return stream.text


def load(
    model: str | Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    streams: int = 32,
    capacity: int = 256,
    ending: str = "guard",
    system: str | None = None,
    options: dict[str, Any] | None = None,
) -> Translator:
    """Load a model folder, a run folder or a bundled model (by name) to translate with.

    `system` and `options` replace the system the model was trained with by another it can serve,
    or change options of its own.
    """
    loaded = load_model(find_model(model), device, dtype, system, options)
    return Translator(loaded, streams, capacity, ending)


class AsyncTranslator:
    """The same streams for an event loop: pushes are awaited, and served together.

    The model runs on a thread of its own. What arrives while a round is under way joins the next.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._waiting: dict[Stream, asyncio.Future[list[Event]]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(1, "waitinfo")

    def stream(self, k: float | None = None, raw: bool = False) -> AsyncStream:
        return AsyncStream(self, self.translator.stream(k, raw))

    async def served(self, stream: Stream) -> list[Event]:
        """Wait until a stream has nothing more to do; its events."""
        if stream in self._waiting:
            raise WaitinfoError("await one push of a stream before the next")
        future = asyncio.get_running_loop().create_future()
        self._waiting[stream] = future
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            present = set(self._waiting)
            try:
                moved = await loop.run_in_executor(self._pool, self.translator.round)
            except Exception as error:  # whoever waits must hear of it
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(error)
                self._waiting.clear()
                return
            for stream in present - moved:
                future = self._waiting.pop(stream)
                if not future.done():
                    future.set_result(stream.collect())

    def close(self) -> None:
        self._pool.shutdown()


class AsyncStream:
    """A stream whose pushes are awaited."""

    def __init__(self, server: AsyncTranslator, stream: Stream) -> None:
        self._server, self.stream = server, stream

    async def push(self, text: str) -> list[Event]:
        self.stream.accept(text)
        return await self._server.served(self.stream)

    async def finish(self) -> list[Event]:
        self.stream.accept_end()
        events = await self._server.served(self.stream)
        self.stream.close()
        return events
