"""Clients: the interface of a translator, on a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from waitinfo.client.connecting import Address
from waitinfo.client.streams import AsyncRemoteStream
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.streaming.event import Event, shown_text

T = TypeVar("T")

PATIENCE = 60.0  # seconds to go on trying to connect
HISTORY = 2000  # translated words that a stream remembers
TOGETHER = 8  # texts translated at a time
CLOSED = "this client has been closed; make another"
FIELDS = (  # of `start`
    "model", "system", "k", "lag", "segmenter", "trace", "room", "secret", "pin", "audio",
)  # fmt: skip


class AsyncClient:
    """Opens streams on a server, on an event loop.

    `options` are further fields of `start` for all of them, such as `lag` (docs/serving.md).
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        model: str | None = None,
        patience: float = PATIENCE,
        **options: Any,
    ) -> None:
        self._address, self._patience = Address(url, key), patience
        self._options = {"model": model, **options}

    def stream(
        self,
        k: float | None = None,
        raw: bool = False,
        history: int | None = HISTORY,
        **options: Any,
    ) -> AsyncRemoteStream:
        """Open a stream at dial k; `options` are further fields of `start` (docs/serving.md)."""
        start = {**self._options, **options}
        for name in start.keys() - set(FIELDS):
            raise unknown("option", name, FIELDS)  # the server would ignore it
        if "lag" in options:  # this stream has a lag of its own, or a dial
            start["k"] = k
        elif k is not None:
            start |= {"k": k, "lag": None}
        start = {name: value for name, value in start.items() if value is not None}
        return AsyncRemoteStream(self._address, start, raw, self._patience, history)

    async def translate(self, text: str | list[str], k: float | None = None) -> Any:
        """Translate a text, or a list of texts, at dial k."""
        texts = [text] if isinstance(text, str) else text
        found = [shown_text(events) for events in await self.events(texts, k)]
        return found[0] if isinstance(text, str) else found

    async def events(self, texts: list[str], k: float | None = None) -> list[list[Event]]:
        """The events of whole texts, each a stream of its own."""
        few = asyncio.Semaphore(TOGETHER)

        async def one(text: str) -> list[Event]:
            async with few, self.stream(k, history=0) as stream:
                await stream.push(text, wait=False)
                return await stream.finish()

        return list(await asyncio.gather(*(one(text) for text in texts)))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Streams close on their own."""


class Client:
    """Opens streams on a server, from any number of threads; made like an `AsyncClient`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self.closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="waitinfo-client", daemon=True
        )
        self._thread.start()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something on the client's own thread; an interrupt cancels it."""
        with self._lock:
            if self.closed:
                work.close()
                raise WaitinfoError(CLOSED)
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise WaitinfoError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def stream(self, *arguments: Any, **options: Any) -> RemoteStream:
        """Open a stream; the arguments are those of `AsyncClient.stream`."""

        async def opened() -> AsyncRemoteStream:
            return self._client.stream(*arguments, **options)

        return RemoteStream(self, self._do(opened()))

    def translate(self, text: str | list[str], k: float | None = None) -> Any:
        """Translate a text, or a list of texts, at dial k."""
        return self._do(self._client.translate(text, k))

    def events(self, texts: list[str], k: float | None = None) -> list[list[Event]]:
        """The events of whole texts, each a stream of its own."""
        return self._do(self._client.events(texts, k))

    def close(self) -> None:
        """Close all streams and end the client's thread; calls that wait for them fail."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            others = asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
        others.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class RemoteStream:
    """One running translation on a server; opened by `Client.stream`."""

    def __init__(self, client: Client, remote: AsyncRemoteStream) -> None:
        self._client, self.remote = client, remote

    def push(self, text: str, wait: bool = True, at: float | None = None) -> list[Event]:
        """Source text that has arrived, spoken `at` a time; returns the events it caused."""
        return self._client._do(self.remote.push(text, wait, at))

    def hear(self, samples: Any) -> None:
        """Audio of a stream opened with `audio`; iterate, or finish, to get the events."""
        self._client._do(self.remote.hear(samples))

    @property
    def heard(self) -> str:
        """The words recognised so far; of a long stream the last ones (see `history`)."""
        return self.remote.heard

    @property
    def open(self) -> str:
        """What seems to follow, and may change."""
        return self.remote.open

    def flush(self, wait: bool = True) -> list[Event]:
        """End the present sentence, whatever its text; returns its remaining events."""
        return self._client._do(self.remote.flush(wait))

    def finish(self, wait: bool = True) -> list[Event]:
        """No more text will come; returns the remaining events."""
        return self._client._do(self.remote.finish(wait))

    @property
    def k(self) -> float | None:
        """The latency dial. A new value counts from the next decision on."""
        return self.remote.k

    @k.setter
    def k(self, value: float) -> None:
        async def turn() -> None:
            self.remote.k = value

        self._client._do(turn())

    @property
    def text(self) -> str:
        """The words shown so far; of a long stream the last ones (see `history`)."""
        return self.remote.text

    @property
    def connections(self) -> int:
        """How often the stream has connected: more than once, if it was interrupted."""
        return self.remote.connections

    @property
    def secret(self) -> str | None:
        """That of the room where the stream speaks: another stream needs it to speak there."""
        return self.remote.secret

    @property
    def ticket(self) -> str | None:
        """What others need to watch that room, if the server has keys; known once connected."""
        return self.remote.ticket

    def __iter__(self) -> Iterator[Event]:
        """Events as they happen, until the stream has been finished or closed."""
        events = aiter(self.remote)

        async def one() -> Event:
            return await anext(events)

        while True:
            try:
                yield self._client._do(one())
            except StopAsyncIteration:
                return

    def close(self) -> None:
        """Give the stream up, finished or not."""
        try:
            self._client._do(self.remote.close())
        except WaitinfoError:
            if not self._client.closed:  # a closed client has closed its streams
                raise

    def __enter__(self) -> RemoteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
