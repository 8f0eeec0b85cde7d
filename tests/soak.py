"""Soak test of the server: clients that come, go, stall, break off and talk nonsense.

    python -m tests.soak --minutes 30

A server with the bundled model runs in a process of its own. Checked are: every orderly client gets
the words that a local stream writes; every client that does not read is closed; no stream or
connection is left; the server logs no error and prints no traceback; its memory stays flat. The
suite runs a short version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket as sockets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.streams import wait_for
from waitinfo import AsyncClient, Translator

KINDS = ("good", "good", "ours", "realtime", "rest", "corrected",
         "killed", "silent", "nonsense", "slow")  # fmt: skip
NONSENSE = ("{", b"x", "[]", "null", '{"type":"dance"}', '{"type":"set","k":-1}', "[" * 9000)
STALL = 2.0  # seconds after which the server closes a client that does not read
# Buffers that are soon full, and a kernel that leaves closing to the server, on busy machines too.
BUFFER, PATIENCE = 4096, 3_600_000
K = 2


def local(translator: Translator, text: str) -> str:
    """What a stream of this process writes."""
    with translator.stream(K) as stream:
        stream.push(text)
        stream.finish()
        return stream.text


class Soak:
    """One run against a server. `more` says whether to go on."""

    def __init__(
        self, url: str, expected: dict[str, str], more: Callable[[Counter[str]], bool]
    ) -> None:
        self.url, self.expected, self.more = url, expected, more
        self.counts: Counter[str] = Counter()
        self._slowly = asyncio.Lock()

    async def run(self, clients: int, seed: int) -> None:
        await asyncio.gather(*(self._client(random.Random(seed * 99 + n)) for n in range(clients)))

    async def _client(self, draw: random.Random) -> None:
        while self.more(self.counts):
            kind = draw.choice(KINDS)
            text = draw.choice(list(self.expected))
            try:
                await getattr(self, f"_{kind}")(text, draw)
                self.counts[kind] += 1
            except (InvalidStatus, HTTPError, ConnectionClosed) as error:
                # A server without a free stream may refuse a client, but not lose it later.
                assert refused(error), error
                self.counts["refused"] += 1
                await asyncio.sleep(0.02)

    async def _connect(self, path: str = "/v1/stream", **options: Any) -> ClientConnection:
        url = self.url.replace("http", "ws") + path
        return await connect(url, open_timeout=600, close_timeout=1, **options)

    def _check(self, text: str, found: str) -> None:
        wanted = self.expected[text]
        assert found == wanted, f"wrong translation of {text!r}: {found!r} instead of {wanted!r}"

    # Orderly clients

    async def _good(self, text: str, draw: random.Random, nonsense: bool = False) -> None:
        """Word by word; all that is said of a stream in between must not matter."""
        async with await self._connect() as socket:
            await socket.send(json.dumps({"type": "start", "k": K}))
            for word in text.split():
                await socket.send(json.dumps({"type": "text", "text": f"{word} "}))
                if nonsense and draw.random() < 0.5:
                    await socket.send(draw.choice(NONSENSE))
            await socket.send(json.dumps({"type": "end"}))
            words = []
            async for data in socket:
                message = json.loads(data)
                wrong = message["type"] == "error" and message["code"] != "full"
                assert nonsense or not wrong, message
                words += [word["word"] for word in message.get("words", [])]
        self._check(text, " ".join(words))

    async def _corrected(self, text: str, draw: random.Random) -> None:
        """Malformed messages among good ones."""
        await self._good(text, draw, nonsense=True)

    async def _ours(self, text: str, draw: random.Random) -> None:
        client = AsyncClient(self.url, patience=600)
        self._check(text, await client.translate(text, k=K))

    async def _realtime(self, text: str, draw: random.Random) -> None:
        async with await self._connect("/v1/realtime/translations") as socket:
            for event in (
                {"type": "session.update", "session": {"k": K}},
                {"type": "session.input_text_buffer.append", "text": text},
                {"type": "session.close"},
            ):
                await socket.send(json.dumps(event))
            found = [json.loads(data) async for data in socket]
        self._check(text, "".join(message.get("delta", "") for message in found))

    async def _rest(self, text: str, draw: random.Random) -> None:
        values = {"q": text, "source": "de", "target": "en", "k": K}
        found = await asyncio.to_thread(ask, self.url + "/translate", values)
        self._check(text, json.loads(found)["translatedText"])

    # Disorderly ones

    async def _killed(self, text: str, draw: random.Random) -> None:
        async with await self._connect() as socket:
            await socket.send(json.dumps({"type": "start", "k": 1}))
            await socket.send(json.dumps({"type": "text", "text": text}))
            await asyncio.sleep(draw.random() * 0.2)
            socket.transport.abort()

    async def _nonsense(self, text: str, draw: random.Random) -> None:
        async with await self._connect() as socket:
            for _ in range(5):
                await socket.send(draw.choice(NONSENSE))
            assert json.loads(await socket.recv())["type"] == "error"

    async def _silent(self, text: str, draw: random.Random) -> None:
        async with await self._connect():
            await asyncio.sleep(draw.random() * 0.05)

    async def _slow(self, text: str, draw: random.Random) -> None:
        """Asks and asks and reads nothing, until the server has had enough."""
        async with self._slowly:  # one at a time, so that the figure is about this one
            await self._flood()

    async def _flood(self) -> None:
        before = figure(self.url, "waitinfo_closed_streams_total", reason="slow")
        raw = sockets.socket()
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.setblocking(False)
        address = self.url.removeprefix("http://").split(":")
        await asyncio.get_running_loop().sock_connect(raw, (address[0], int(address[1])))
        async with await self._connect(sock=raw, max_queue=1, ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "start", "k": K}))
            if json.loads(await socket.recv())["type"] == "error":
                async for _ in socket:  # until it is closed, for all streams are in use
                    pass
            asking = asyncio.ensure_future(self._ask(socket))
            while not asking.done():
                await asyncio.sleep(0.1)
                if figure(self.url, "waitinfo_closed_streams_total", reason="slow") > before:
                    break
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            socket.transport.abort()

    async def _ask(self, socket: ClientConnection) -> None:
        while True:
            await socket.send('{"type": "stats"}')


def refused(error: Exception) -> bool:
    """Whether all streams of the server were in use."""
    if isinstance(error, ConnectionClosed):
        return error.rcvd is not None and error.rcvd.code == 1013
    code = error.code if isinstance(error, HTTPError) else error.response.status_code  # type: ignore[attr-defined]
    return code == 503


def ask(url: str, values: dict[str, Any] | None = None) -> str:
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return response.read().decode()


def figure(url: str, name: str, **labels: str) -> float:
    """A figure of /metrics, summed over all labels that were not given."""
    found = 0.0
    for line in ask(f"{url}/metrics").splitlines():
        if line.split("{")[0].split(" ")[0] == name:
            wanted = (f'{label}="{value}"' in line for label, value in labels.items())
            found += float(line.rsplit(" ", 1)[1]) if all(wanted) else 0.0
    return found


def nothing_left(url: str) -> None:
    names = ("waitinfo_streams", "waitinfo_connections")
    wait_for(lambda: not any(figure(url, name) for name in names))


SERVER = f"""
from waitinfo.serving import logs, server
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import load_models
from waitinfo.serving.settings import Settings
logs.set_up("info")
server.SEND_BUFFER, server.UNREAD_MILLISECONDS = {BUFFER}, {PATIENCE}
metrics = Metrics()
models = load_models([], metrics, streams=6, device="cpu")
settings = Settings(stall={STALL}, retry=0.05, start=600)
server.tune()
listening = server.bound(server.bind("127.0.0.1", 0).detach())
server.Server(Hub(models, settings, metrics=metrics), "127.0.0.1", 0).run(sockets=[listening])
"""


class Process:
    """A server with the bundled model in a process of its own; its log is kept in a file."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-c", SERVER], stderr=log)
        wait_for(lambda: self._process.poll() is not None or "listening" in self._text())
        port = next(e["port"] for e in self._entries() if e["event"] == "listening")
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: "ok" in self._health())

    def _text(self) -> str:
        return self.log.read_text("utf-8")

    def _health(self) -> str:
        try:
            return ask(f"{self.url}/healthz")
        except OSError:
            return ""

    def _entries(self) -> list[dict[str, Any]]:
        """What it has logged; a traceback is no JSON."""
        return [json.loads(line) for line in self._text().splitlines()]

    def check(self) -> None:
        assert self._process.poll() is None, self._text()
        bad = [entry for entry in self._entries() if entry["level"] not in ("info", "debug")]
        assert not bad, bad[:3]

    @property
    def memory(self) -> int:
        """Bytes."""
        statm = Path(f"/proc/{self._process.pid}/statm").read_text("utf-8")
        return int(statm.split()[1]) * 4096

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0


def texts() -> list[str]:
    from examples.demo import SENTENCE, SPEECH

    return [SENTENCE, *SPEECH, " ".join(SPEECH), "Guten Morgen!"]


def soak(server: Process, minutes: float, clients: int, parts: int = 10) -> Sequence[int]:
    """Memory after each part."""
    import waitinfo

    translator = waitinfo.load(device="cpu")
    expected = {text: local(translator, text) for text in texts()}
    counts: Counter[str] = Counter()
    sizes = []
    for part in range(parts):
        stop = time.monotonic() + 60 * minutes / parts
        run = Soak(server.url, expected, lambda _, stop=stop: time.monotonic() < stop)  # type: ignore[misc]
        asyncio.run(run.run(clients, part))
        counts += run.counts
        nothing_left(server.url)
        server.check()
        sizes.append(server.memory)
        print(f"{part + 1}/{parts}: {dict(counts)}, {sizes[-1] / 2**20:.1f} MiB", flush=True)
    closed = figure(server.url, "waitinfo_closed_streams_total", reason="slow")
    assert closed == counts["slow"], f"{closed:g} of {counts['slow']} slow readers were closed"
    print(f"{sum(counts.values()):,} clients, {counts['refused']:,} of them refused at first")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Process(Path(folder))
        try:
            sizes = soak(server, options.minutes, options.clients)
        finally:
            server.stop()
    first, most = sizes[2], max(sizes[2:])
    print(f"memory after warm-up: {first / 2**20:.1f} MiB, at most {most / first - 1:+.1%}")
    assert most < 1.05 * first, f"memory grows: {sizes}"


if __name__ == "__main__":
    main()
