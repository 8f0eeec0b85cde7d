"""Soak test of the server: clients that come, go, stall, break off and talk nonsense.

    python -m tests.soak --minutes 30

Checks that every orderly client gets the words that it would get alone, that no slot, connection
or room is left, that nothing was logged as an error, and that memory stays flat. The suite runs a
short version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.serving import Running, running, toy_hub
from tests.streams import some_text
from waitinfo import AsyncClient

TEXTS = [some_text(random.Random(seed), 2 + seed % 9) for seed in range(20)]
KINDS = ["good", "good", "ours", "killed", "nonsense", "silent", "slow"]


class Soak:
    """One run. `more` says whether to go on."""

    def __init__(self, server: Running, more: Callable[[Counter[str]], bool]) -> None:
        self.server, self.more = server, more
        self.counts: Counter[str] = Counter()
        translator = server.hub.models.find().translator
        self.expected = dict(zip(TEXTS, translator.translate(TEXTS, k=2), strict=True))

    async def run(self, clients: int, seed: int) -> None:
        await asyncio.gather(*(self._client(random.Random(seed * 99 + n)) for n in range(clients)))

    async def _client(self, draw: random.Random) -> None:
        while self.more(self.counts):
            kind = draw.choice(KINDS)
            try:
                await getattr(self, f"_{kind}")(draw)
                self.counts[kind] += 1
            except (WebSocketException, OSError):
                self.counts["refused"] += 1
                await asyncio.sleep(0.02)

    def _connect(self) -> connect:
        return connect(f"ws://127.0.0.1:{self.server.port}/v1/stream", close_timeout=1)

    async def _good(self, draw: random.Random) -> None:
        text, words = draw.choice(TEXTS), []
        async with self._connect() as socket:
            await socket.send(json.dumps({"type": "start", "k": 2}))
            for word in text.split():
                await socket.send(json.dumps({"type": "text", "text": f"{word} "}))
            await socket.send(json.dumps({"type": "end"}))
            async for data in socket:
                message = json.loads(data)
                if message["type"] == "error":
                    assert message["code"] == "full", message
                    self.counts["full"] += 1
                    return
                words += message.get("words", [])
        found = " ".join(word["word"] for word in words)
        assert found == self.expected[text], f"wrong translation of {text!r}: {found!r}"

    async def _ours(self, draw: random.Random) -> None:
        text = draw.choice(TEXTS)
        client = AsyncClient(self.server.url, patience=600)
        assert await client.translate(text, k=2) == self.expected[text]

    async def _killed(self, draw: random.Random) -> None:
        async with self._connect() as socket:
            await socket.send(json.dumps({"type": "start", "k": 1}))
            await socket.send(json.dumps({"type": "text", "text": draw.choice(TEXTS)}))
            await asyncio.sleep(draw.random() * 0.02)
            socket.transport.abort()

    async def _nonsense(self, draw: random.Random) -> None:
        async with self._connect() as socket:
            for _ in range(5):
                await socket.send(draw.choice(["{", b"x", "[]", '{"type":"start"}', "null"]))
            await socket.recv()

    async def _silent(self, draw: random.Random) -> None:
        async with self._connect() as socket:
            await asyncio.sleep(draw.random() * 0.05)
            await socket.close()

    async def _slow(self, draw: random.Random) -> None:
        """Sends much, reads nothing, and leaves."""
        async with self._connect() as socket:
            await socket.send(json.dumps({"type": "start", "k": 1, "trace": True}))
            for _ in range(5):
                await socket.send(json.dumps({"type": "text", "text": "ba be. " * 20}))
            await asyncio.sleep(0.1)
            socket.transport.abort()


def nothing_left(server: Running) -> None:
    hub = server.hub
    served = hub.models.find()
    end = time.monotonic() + 600
    while served.free < served.translator.streams or hub._connections or len(hub.rooms):
        assert time.monotonic() < end, "a stream, a connection or a room is left"
        time.sleep(0.01)


def memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * 4096


class Errors(logging.Handler):
    """Collects what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    options = parser.parse_args()
    errors = Errors()
    logging.getLogger().addHandler(errors)
    sizes: list[int] = []
    with running(toy_hub(streams=6, stall=2.0, retry=0.05)) as server:
        counts: Counter[str] = Counter()
        for part in range(10):
            stop = time.monotonic() + 6 * options.minutes
            soak = Soak(server, lambda _, stop=stop: time.monotonic() < stop)  # type: ignore[misc]
            asyncio.run(soak.run(options.clients, part))
            counts += soak.counts
            nothing_left(server)
            sizes.append(memory())
            print(f"{part + 1}/10: {dict(counts)}, {sizes[-1] / 2**20:.0f} MiB", flush=True)
    assert not errors.found, errors.found
    assert sizes[-1] < 1.05 * sizes[2], f"memory grows: {sizes}"


if __name__ == "__main__":
    main()
