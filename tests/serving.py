"""A real server with small models on a free port, for tests of the server and its clients."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import shutil
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

from websockets.sync.client import ClientConnection, connect

from tests.streams import record, toy_model, wait_for
from waitinfo import Translator
from waitinfo.serving.guards import Keys
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models, Served, serve_model
from waitinfo.serving.server import Server, bind
from waitinfo.serving.settings import Settings
from waitinfo.text.languages import Languages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SLOW = 300_000  # milliseconds: busy machines are slow, and no test waits that long on others


def toy_served(
    metrics: Metrics,
    name: str = "toy",
    system: str = "wait-k",
    streams: int = 4,
    target: str = "en",
) -> Served:
    loaded = dataclasses.replace(toy_model(system), languages=Languages("de", target))
    return serve_model(name, loaded, metrics, streams)


def toy_hub(
    streams: int = 4, keys: Keys | None = None, system: str = "wait-k", **settings: Any
) -> Hub:
    metrics = Metrics()
    served = toy_served(metrics, system=system, streams=streams)
    return Hub(Models([served]), Settings(**settings), keys, metrics)


@dataclasses.dataclass
class Running:
    """A server that runs in a thread."""

    hub: Hub
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def dial(self) -> sockets.socket:
        """A bare connection."""
        return sockets.create_connection(("127.0.0.1", self.port), timeout=600)

    def connect(self, path: str = "/v1/stream", **options: Any) -> ClientConnection:
        url = f"ws://127.0.0.1:{self.port}{path}"
        return connect(url, max_size=None, open_timeout=600, **options)


@contextmanager
def running(hub: Hub, port: int = 0, listening: sockets.socket | None = None) -> Iterator[Running]:
    listening = listening or bind("127.0.0.1", port)
    server = Server(hub, "127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield Running(hub, server, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        listening.close()


class Watchdog:
    """How long single steps of the event loop take, in CPU time of its own thread.

    So other threads and other processes do not count.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.step = ""

    def __enter__(self) -> Watchdog:
        gc.collect()
        gc.freeze()  # as `serve` does
        self._run = run = asyncio.Handle._run
        watchdog = self

        def watched(handle: asyncio.Handle) -> None:
            if threading.current_thread() is threading.main_thread():
                run(handle)
                return
            began = time.thread_time()
            run(handle)
            if (taken := time.thread_time() - began) > watchdog.longest:
                watchdog.longest, watchdog.step = taken, repr(handle)[:200]

        asyncio.Handle._run = watched  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        gc.unfreeze()


class Errors(logging.Handler):
    """Collects what is logged as an error while it is open."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def __enter__(self) -> Errors:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


JSON = b"Content-Type: application/json\r\n"


def post(path: bytes, body: bytes, headers: bytes = JSON) -> bytes:
    """A request as it is sent."""
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s" % (path, headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(timeout=600))


def until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    """Messages up to the first of a kind."""
    found = [receive(socket)]
    while found[-1]["type"] != kind:
        assert found[-1]["type"] != "ended", found[-1]
        found.append(receive(socket))
    return found


def start(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    send(socket, "start", **fields)
    return receive(socket)


def words_of(messages: list[dict[str, Any]]) -> list[str]:
    return [word["word"] for m in messages if m["type"] == "words" for word in m["words"]]


def writes_of(messages: list[dict[str, Any]]) -> int:
    """Tokens written, in messages with a trace."""
    return sum(e["kind"] == "WRITE" for m in messages for e in m.get("trace", ()))


def local(text: str, k: float = 2) -> list[tuple]:
    """The record of a local stream, for one on a server to be compared with."""
    with Translator(toy_model(), streams=1).stream(k, history=None) as stream:
        events = [event for word in text.split() for event in stream.push(word)]
        return record(events + stream.finish())
