"""The two ends of the pipe between the process with the sockets and the one with the models.

A message is its length and a pickle. From the front: the number of a model, and orders for its
streams. From the engine: first the facts of all models, then for each round the number of its
model, its figures, and reports. Both processes are ours, and only this user may connect.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from waitinfo.serving.logs import log
from waitinfo.streaming.host import Host
from waitinfo.streaming.remote import Facts, RemoteScheduler
from waitinfo.text.languages import Languages
from waitinfo.trained.saving import LoadedModel


class Meeting(NamedTuple):
    """The first message of an engine."""

    facts: list[Facts]
    loaded: list[LoadedModel]  # without their weights
    offers: list[tuple[str, Languages, int]]  # name, direction, and number of the engine


HEAD = struct.Struct("!I")
PIECE = 1 << 18  # bytes read at a time
AGAIN = 0.2  # seconds between two tries to reach an engine that does not answer


def packed(message: Any) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(data)) + data


class Messages:
    """Messages from bytes as they arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> Iterator[Any]:
        self._data += data
        while len(self._data) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            message = bytes(self._data[HEAD.size : end])
            del self._data[:end]
            yield pickle.loads(message)


# The engine's end


def serve_front(connection: socket.socket, hosts: Callable[[Callable[[Any], None]], list[Host]],
                meeting: Meeting) -> None:  # fmt: skip
    """Serve the process with the sockets until it is gone."""

    lock = threading.Lock()  # each model has a thread that sends

    def send(message: Any) -> None:
        with lock, suppress(OSError):  # it is gone, which `recv` tells
            connection.sendall(packed(message))

    served, messages = hosts(send), Messages()
    send(meeting)
    try:
        while data := connection.recv(PIECE):
            for number, orders in messages.add(data):
                served[number].receive(orders)
    except OSError:
        """As if it were gone."""
    finally:
        for host in served:
            host.drop()


# The front's end


class EngineLink(asyncio.Protocol):
    """Connects to the engine, and again whenever it has been lost."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.facts: list[Facts] = []
        self.schedulers: list[RemoteScheduler] = []
        self._transport: asyncio.WriteTransport | None = None
        self._messages = Messages()
        self._greeted = self._closed = False
        self._keeping: asyncio.Task[None] | None = None
        self._ready, self._lost = asyncio.Event(), asyncio.Event()

    def meet(self) -> Meeting:
        """Wait until the engine is ready, and learn what it has; before the event loop runs."""
        while True:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as found:
                found.connect(self.path)
                messages = Messages()
                while data := found.recv(PIECE):
                    for meeting in messages.add(data):
                        self.facts = meeting.facts
                        return meeting  # type: ignore[no-any-return]
            time.sleep(AGAIN)  # it has ended, and is started again

    async def start(self) -> None:
        """Connect."""
        self._keeping = asyncio.ensure_future(self._keep())
        await self._ready.wait()

    def close(self) -> None:
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
        if self._transport is not None:
            self._transport.close()

    def send(self, number: int, orders: list[tuple[Any, ...]]) -> None:
        if self._transport is not None:
            self._transport.write(packed((number, orders)))

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            self._messages, self._greeted = Messages(), False
            try:
                await loop.create_unix_connection(lambda: self, self.path)
                await self._lost.wait()
            except OSError:
                """It is not there."""
            await asyncio.sleep(AGAIN)

    # As the event loop calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._messages.add(data):
            if self._greeted:
                number, stats, reports = message
                self.schedulers[number].reported(stats, reports)
            elif message.facts != self.facts:
                log("the engine has other models than before; start the server again")
            else:
                self._greeted = True
                self._ready.set()
                for scheduler in self.schedulers:
                    scheduler.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for scheduler in self.schedulers:
            scheduler.lost()
        if not self._closed:
            log("the engine is gone")
        self._lost.set()
