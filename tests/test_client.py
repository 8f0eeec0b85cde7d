"""Clients: the same events as a local stream, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.serving import Running, local, running, toy_hub
from tests.streams import record, some_text, toy_model, wait_for
from waitinfo import AsyncClient, Client, Translator, WaitinfoError
from waitinfo.client import clients
from waitinfo.client.clients import FIELDS, RemoteStream
from waitinfo.client.pending import Pending
from waitinfo.serving import protocol
from waitinfo.serving.guards import KeyLimits, Keys
from waitinfo.serving.server import bind

TEXT = some_text(random.Random(21), 40)
KEY = "a-secret-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub()) as found:
        yield found


def test_a_remote_stream_is_like_a_local_one(server: Running) -> None:
    with Client(server.url) as client, client.stream(k=2) as stream:
        events = [event for word in TEXT.split() for event in stream.push(word)]
        events += stream.finish()
        assert record(events) == local(TEXT)
        assert stream.text.split() == [
            word for e in events if e.kind == "WRITE" and e.word for word in e.word.split()
        ]
        with pytest.raises(WaitinfoError, match="has been finished"):
            stream.push("ba")


def test_whole_texts(server: Running) -> None:
    translator = server.hub.models.find().translator
    with Client(server.url) as client:
        assert client.translate("ba be bi.") == translator.translate("ba be bi.")
        texts = [some_text(random.Random(n), 5) for n in range(12)]  # more than there are streams
        assert client.translate(texts, k=3) == translator.translate(texts, k=3)


def test_iterating_and_the_dial(server: Running) -> None:
    async def run() -> list[tuple]:
        async with AsyncClient(server.url) as client, client.stream(k=9, raw=True) as stream:
            stream.k = 2
            for letter in TEXT:
                await stream.push(letter, wait=False)
            await stream.finish(wait=False)
            return record([event async for event in stream])

    assert asyncio.run(run()) == local(TEXT)
    with Client(server.url) as client, client.stream(k=2) as stream:
        stream.push(TEXT, wait=False)
        stream.finish(wait=False)
        assert record(list(stream)) == local(TEXT)


class Proxy:
    """Passes bytes on to a server, and cuts connections."""

    def __init__(self, target: int) -> None:
        self.target, self.tasks = target, set[asyncio.Task]()
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, onward = await asyncio.open_connection("127.0.0.1", self.target)
        self.writers += [writer, onward]
        for pair in ((reader, onward), (other, writer)):
            task = asyncio.create_task(self._pass_on(*pair))
            self.tasks.add(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers = []


@pytest.mark.parametrize("seed", range(3))
def test_cut_connections_change_nothing(server: Running, seed: int) -> None:
    """Cut at random moments, with text, flushes and the end under way."""
    draw = random.Random(seed)

    async def run() -> tuple[list[tuple], int]:
        async with Proxy(server.port) as proxy:
            client = AsyncClient(f"http://127.0.0.1:{proxy.port}")
            async with client.stream(k=2) as stream:
                events = []
                for word in TEXT.split():
                    waiting = draw.random() < 0.5
                    pushed = asyncio.ensure_future(stream.push(word, wait=waiting))
                    if draw.random() < 0.25:
                        await asyncio.sleep(draw.random() * 0.02)
                        proxy.cut()
                    events += await pushed
                last = asyncio.ensure_future(stream.finish())
                await asyncio.sleep(draw.random() * 0.02)
                proxy.cut()
                return record(events + await last), stream.connections

    found, connections = asyncio.run(run())
    assert found == local(TEXT) and connections > 1


def test_flushes_are_replayed(server: Running) -> None:
    async def run(cuts: bool) -> list[tuple]:
        async with Proxy(server.port) as proxy:
            client = AsyncClient(f"http://127.0.0.1:{proxy.port}")
            async with client.stream(k=2, raw=True) as stream:
                events = []
                for piece in ("ba b", "e bi", None, "bo b", None, "u"):
                    if cuts:
                        proxy.cut()
                    wait = piece != "bo b"
                    events += await (stream.push(piece, wait) if piece else stream.flush())
                return record(events + await stream.finish())

    assert asyncio.run(run(True)) == asyncio.run(run(False))


def test_what_is_done_with_is_forgotten() -> None:
    replay = Pending()
    for text in ("ab cd", ". ef", " gh"):
        replay.sent({"type": "text", "text": text})
    said = {"position": 0, "sentence": 0, "read": 2, "last": ""}
    replay.received({"replay": {**said, "path": [[7, 1]]}, "time": 1})
    replay.received({"replay": {**said, "path": [[8, 2]]}, "time": 2})
    assert replay.resume("v")["path"] == [[7, 1], [8, 2]]
    said = {"position": 6, "sentence": 1, "read": 1, "last": "."}
    replay.received({"replay": {**said, "path": [[9, 1]]}, "time": 3})
    assert [item["text"] for item in replay.again()] == [" ef", " gh"]
    assert replay.resume("v") == {
        "position": 6, "sentence": 1, "path": [[9, 1]], "read": 1, "last": ".", "seconds": 3,
        "vocabulary": "v",
    }  # fmt: skip


SERVER = """
import socket, sys
from tests.serving import toy_hub
from waitinfo.serving.server import Server
listening = socket.socket(fileno=int(sys.argv[1]))
Server(toy_hub(system="wait-info"), "127.0.0.1", 0).run(sockets=[listening])
"""


def test_a_killed_server_changes_nothing() -> None:
    """A real process is killed in mid-sentence, and a server of this one takes its place."""
    listening = bind("127.0.0.1", 0)  # by both: nobody else gets the port in between
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", SERVER, str(listening.fileno())]
    path = f"{root / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    text = "ba be bi bo bu da de di do du ba be bi. bo bu"
    with Translator(toy_model("wait-info"), streams=1).stream(2, history=None) as stream:
        expected = [event for word in text.split() for event in stream.push(word)]
        expected += stream.finish()
    first = subprocess.Popen(
        command, cwd=root, env=environment, stderr=subprocess.DEVNULL,
        pass_fds=[listening.fileno()],
    )  # fmt: skip
    try:
        with Client(url, patience=600) as client:
            stream_there = client.stream(k=2)
            words = text.split()
            events = [event for word in words[:8] for event in stream_there.push(word)]
            first.send_signal(signal.SIGKILL)
            first.wait()
            with running(toy_hub(system="wait-info"), listening=listening):
                events += [event for word in words[8:] for event in stream_there.push(word)]
                events += stream_there.finish()
                assert stream_there.connections == 2
    finally:
        first.kill()
        first.wait()
    assert record(events) == record(expected)


def test_errors_are_told_at_once(server: Running) -> None:
    with Client(server.url) as client:
        with pytest.raises(WaitinfoError, match="whole number"):
            client.translate("ba", k=0.5)
        stream = client.stream(k=2)
        stream.push("ba")
        stream.k = 0.5
        with pytest.raises(WaitinfoError, match="whole number"):
            stream.finish()
    with Client(server.url, model="none") as client, pytest.raises(WaitinfoError, match="unknown"):
        client.translate("ba")
    for url in ("localhost", "ftp://a", "http://", "http://a:b", "http://[", ""):
        with pytest.raises(WaitinfoError, match="not a server"):
            Client(url)
    with (
        Client("http://127.0.0.1:9", patience=0.1) as client,
        pytest.raises(WaitinfoError, match="cannot be reached"),
    ):
        client.translate("ba")


def test_unknown_options_are_refused(server: Running) -> None:
    assert set(FIELDS) == protocol.Start.model_fields.keys() - {"type", "version", "resume"}
    with Client(server.url) as client, pytest.raises(WaitinfoError, match="option 'segment'"):
        client.stream(segment="none")
    with Client(server.url, segment="none") as client, pytest.raises(WaitinfoError, match="option"):
        client.translate("ba")


@pytest.mark.parametrize(
    ("common", "own", "k", "lag"),
    [
        ({"k": 3}, {}, 3, None),
        ({"k": 3}, {"k": 5}, 5, None),
        ({"k": 3}, {"lag": 4.0}, None, 4.0),
        ({"lag": 4.0}, {}, None, 4.0),
        ({"lag": 4.0}, {"k": 5}, 5, None),
    ],
)
def test_a_stream_has_a_dial_or_a_lag(
    server: Running, common: dict, own: dict, k: float | None, lag: float | None
) -> None:
    """Its own before the client's; a dial that is set later replaces a lag for good."""

    async def run() -> None:
        async with AsyncClient(server.url, **common) as client, client.stream(**own) as stream:
            assert (stream._start.get("k"), stream._start.get("lag")) == (k, lag)
            stream.k = 2
            assert (stream._start["k"], stream._start.get("lag")) == (2, None)

    asyncio.run(run())


def test_keys() -> None:
    with running(toy_hub(keys=Keys([KeyLimits(KEY)]))) as server:
        with (
            Client(server.url) as client,
            pytest.raises(WaitinfoError, match="requires a valid key"),
        ):
            client.translate("ba")
        with Client(server.url, key=KEY) as client:
            assert client.translate("ba be.")


def test_waits_for_a_free_stream() -> None:
    with running(toy_hub(streams=1, retry=0.1)) as server, Client(server.url) as client:
        first = client.stream(k=2)
        first.push("ba")
        threading.Timer(0.1, first.finish).start()
        assert client.translate("ba be.")


# Calls from several threads, and wrong values


def test_numbers_of_other_libraries(server: Running) -> None:
    with Client(server.url) as client, client.stream(k=np.int64(9)) as stream:
        stream.k = torch.tensor(2)
        events = [e for w in TEXT.split() for e in stream.push(w, at=np.float32(1))]
        assert record(events + stream.finish()) == local(TEXT)


@pytest.mark.parametrize("value", [object(), float("nan"), [object()]])
def test_what_is_no_message_is_refused(server: Running, value: object) -> None:
    with Client(server.url) as client:
        with pytest.raises(WaitinfoError, match="cannot be sent"):
            client.stream(k=value).push("ba")
        with client.stream(k=2) as stream:
            events = stream.push("ba")
            with pytest.raises(WaitinfoError, match="cannot be sent"):
                stream.k = value
            with pytest.raises(WaitinfoError, match="cannot be sent"):
                stream.push("be", at=value)
            events += stream.push("bi") + stream.finish()  # nothing was lost
            assert record(events) == local("ba bi")


def test_closing_a_client_ends_the_calls_of_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that waits, and one that comes while the client is being closed."""
    cancel_all = clients._cancel_all
    cancelled, go_on = threading.Event(), threading.Event()

    async def slowly() -> None:
        await cancel_all()
        cancelled.set()
        await asyncio.to_thread(go_on.wait, 600)

    monkeypatch.setattr(clients, "_cancel_all", slowly)
    told: list[str] = []

    def call(stream: RemoteStream) -> None:
        with pytest.raises(WaitinfoError) as error:
            stream.push("ba")
        told.append(str(error.value))

    client = Client("http://127.0.0.1:9", patience=600)  # where nobody listens
    stream = client.stream(k=2)
    waiting = threading.Thread(target=call, args=[stream], daemon=True)
    waiting.start()
    wait_for(lambda: stream.remote._last == 1)
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    assert cancelled.wait(600)
    waiting.join(600)
    call(stream)
    go_on.set()
    closing.join(600)
    assert told == [clients.CLOSED] * 2 and not closing.is_alive()
    client.close()
    stream.close()
