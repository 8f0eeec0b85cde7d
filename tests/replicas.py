"""Two servers behind one address, one of them killed: python -m tests.replicas [--watchers 1000]

One speaks in a room, all others watch it at both servers, which share a Redis. The server that has
the speaker is killed in the midst of it, and so is Redis, which is started again. In the end all
must have the speaker's text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.redis_server import RedisServer
from waitinfo import AsyncClient

SPEECH = (
    "Meine Damen und Herren, ich freue mich sehr, heute bei Ihnen zu sein. Die Kommission hat "
    "gestern in Brüssel einen neuen Vorschlag zur Verbesserung der Luftqualität vorgelegt."
)
AWAY = 1.0  # seconds for which Redis is away
LOST = (OSError, WebSocketException, TimeoutError)


class Replica:
    """A server in its own process."""

    def __init__(self, redis: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = ["serve", "--port", str(self.port), "--streams", "2", "--compare", "0",
                   "--model", "de-en", "--rooms", redis, "--voices", "0",
                   "--log-level", "warning"]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "waitinfo", *command, "--threads", "1"], env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self) -> None:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, "a server did not start"
            time.sleep(0.1)

    def kill(self) -> None:
        """The whole server: the process that starts the others, and these."""
        place = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = place.read_text("utf-8").split() if self.process.poll() is None else []
        self.process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.process.wait()


class Balancer:
    """One address for several servers: each connection goes to the next one that answers."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = cycle(ports)
        self.count = len(ports)
        self.last = 0  # where the last connection went
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        return self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in islice(self.ports, self.count):
            with suppress(OSError):
                there, here = await asyncio.open_connection("127.0.0.1", port)
                self.last = port
                for task in (_copy(reader, here), _copy(there, writer)):
                    started = asyncio.ensure_future(task)
                    self._tasks.add(started)
                    started.add_done_callback(self._tasks.discard)
                return
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Listener:
    """Follows the room as a phone does: by position, through whatever happens."""

    def __init__(self, key: str | None = None) -> None:
        self.headers = {"Authorization": f"Bearer {key}"} if key else None
        self.text, self.position, self.connections = "", "", 0
        self.stream: str | None = None
        self.last = (-1, 0)

    async def run(self, port: int, few: asyncio.Semaphore) -> None:
        while True:
            with suppress(*LOST):
                url = f"ws://127.0.0.1:{port}/v1/watch?room=hall&after={self.position}"
                async with few:
                    link = await connect(
                        url, open_timeout=60, ping_interval=None, additional_headers=self.headers
                    )
                self.connections += 1
                async with link:
                    async for data in link:
                        self._take(json.loads(data))
            await asyncio.sleep(0.2)

    def _take(self, message: dict[str, Any]) -> None:
        self.position = message["position"]
        if message.get("stream") not in (None, self.stream):
            self.stream, self.last = message["stream"], (-1, 0)
        for word in message["words"]:
            place = word["sentence"], word["read"] - word["lag"]
            if place > self.last:
                self.last = place
                self.text += word["text"]


Faults = Callable[[int], Awaitable[None]]


async def play(watchers: int, words: int, pace: float, keeps: bool) -> dict[str, Any]:
    redis = RedisServer(keeps)
    replicas = [Replica(redis.url) for _ in range(2)]
    speaking = replicas[0]

    async def faults(number: int) -> None:
        nonlocal speaking
        if number == 0:  # the speaker's connection is the newest one
            speaking = next(each for each in replicas if each.port == balancer.last)
        if number == words // 3:
            speaking.kill()
        if number == 2 * words // 3:
            redis.kill()
            await asyncio.sleep(AWAY)
            redis.start()

    try:
        for replica in replicas:
            replica.wait()
        balancer = Balancer([replica.port for replica in replicas])
        async with balancer as port:
            return await follow(port, watchers, SPEECH, words, pace, faults)
    finally:
        for replica in replicas:
            replica.kill()
        redis.close()


async def follow(
    port: int, watchers: int, text: str, words: int, pace: float, faults: Faults,
    key: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Speak words of a text in a room that others watch; `faults` is called after each."""
    few = asyncio.Semaphore(50)
    listeners = [Listener(key) for _ in range(watchers)]
    tasks = [asyncio.ensure_future(each.run(port, few)) for each in listeners]
    while any(not each.connections for each in listeners):
        await asyncio.sleep(0.1)
    async with (
        AsyncClient(f"http://127.0.0.1:{port}", key=key, patience=300) as client,
        client.stream(k=3, room="hall") as stream,
    ):
        for number, word in enumerate(islice(cycle(text.split()), words)):
            await stream.push(f"{word} ", wait=False)
            await asyncio.sleep(pace)
            await faults(number)
        await stream.finish()
        said, connections = stream.text, stream.connections
    end = time.monotonic() + 60
    while any(each.text.strip() != said.strip() for each in listeners):
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "words": len(said.split()), "speaker_connections": connections, "watchers": watchers,
        "complete": sum(each.text.strip() == said.strip() for each in listeners),
        "connections": sum(each.connections for each in listeners),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=1_000)
    parser.add_argument("--words", type=int, default=90)
    parser.add_argument("--forgets", action="store_true", help="Redis comes back empty")
    options = parser.parse_args()
    found = asyncio.run(play(options.watchers, options.words, 1 / 3, not options.forgets))
    print(json.dumps(found))
    raise SystemExit(found["complete"] != found["watchers"])


if __name__ == "__main__":
    main()
