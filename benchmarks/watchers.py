"""Watchers of one room: python benchmarks/watchers.py [--watchers 2000] [--seconds 20] [--out FILE]

One speaker says 3 words a second, all others watch, on loopback. The delay of a caption runs from
the moment when the first of all clients had it to the moment when a watcher had it, over all
captions and all watchers. They share the cores with the server. Also: CPU time of the
server for each caption of a watcher, and its memory for each watcher.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from measurements import save
from serve import RATE, cpu_seconds, family, p95, speech, start_server

SOON = 50  # watchers that connect at a time


class Watcher(asyncio.Protocol):
    """Notes when each frame with words is complete; keeps nothing of it."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.bytes = 0
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            "GET /v1/watch?room=hall HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        )
        assert isinstance(transport, asyncio.Transport)
        transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self.open.done():
            head, found, rest = self._data.partition(b"\r\n\r\n")
            if not found:
                return
            assert b" 101 " in head, head
            self._data = rest
            self.open.set_result(None)
        while (size := self._frame()) is not None:
            if self._data[0] & 15 == 1 and not self._data.endswith(b'"words": []}', 0, size):
                self.times.append(time.monotonic())
                self.bytes += size
            del self._data[:size]

    def _frame(self) -> int | None:
        """The size of the first frame, if it is there."""
        data = self._data
        if len(data) < 2:
            return None
        extended = {126: 2, 127: 8}.get(data[1], 0)
        size = int.from_bytes(data[2 : 2 + extended]) if extended else data[1]
        whole = 2 + extended + size
        return whole if len(data) >= whole else None


async def watch(port: int, count: int) -> list[Watcher]:
    loop, few = asyncio.get_running_loop(), asyncio.Semaphore(SOON)

    async def one() -> Watcher:
        async with few:
            _, found = await loop.create_connection(Watcher, "127.0.0.1", port)
            await found.open
            return found

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def speak(port: int, seconds: float) -> list[float]:
    """When each message with words came."""
    times: list[float] = []
    async with connect(f"ws://127.0.0.1:{port}/v1/stream", ping_interval=None) as ws:

        async def listen() -> None:
            async for data in ws:
                message = json.loads(data)
                if message["type"] == "words" and message["words"]:
                    times.append(time.monotonic())

        await ws.send('{"type": "start", "room": "hall"}')
        await ws.recv()
        listening = asyncio.ensure_future(listen())
        for _, word in zip(range(int(RATE * seconds)), cycle(speech()), strict=False):
            await ws.send(json.dumps({"type": "text", "text": f"{word} "}))
            await asyncio.sleep(1 / RATE)
        await ws.send('{"type": "end"}')
        await listening
    return times


def resident(process: int) -> int:
    """Bytes of a process and those that it has started."""
    pages = (Path(f"/proc/{each}/statm").read_text("utf-8").split()[1] for each in family(process))
    return 4096 * sum(map(int, pages))


async def measure(process: int, port: int, count: int, seconds: float) -> dict[str, Any]:
    await speak(port, 2.0)
    before = resident(process)
    watchers = await watch(port, count)
    memory = (resident(process) - before) / count
    cpu = cpu_seconds(process)
    alone = await speak(port, seconds)
    await asyncio.sleep(1.0)
    used = cpu_seconds(process) - cpu
    assert all(len(each.times) >= len(alone) for each in watchers), "a watcher was too slow"
    captions = list(zip(alone, *(each.times[-len(alone) :] for each in watchers), strict=True))
    delays = [heard - min(caption) for caption in captions for heard in caption[1:]]
    return {
        "watchers": count, "captions": len(alone), "median_ms": 1000 * statistics.median(delays),
        "p95_ms": 1000 * p95(delays), "most_ms": 1000 * max(delays),
        "server_cpu_us_a_caption": 1e6 * used / len(delays), "kib_a_watcher": memory / 1024,
        "bytes_a_word": watchers[0].bytes / (int(RATE * seconds)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--system", help="another than the model's own")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="briefly, to check that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    count, seconds = (50, 3.0) if options.quick else (options.watchers, options.seconds)
    process, port = start_server(4, options)
    try:
        found = asyncio.run(measure(process.pid, port, count, seconds))
    finally:
        process.terminate()
        process.wait()
    print("\n".join(f"{name}: {value:,.1f}" for name, value in found.items()))
    save(options.out, found)


if __name__ == "__main__":
    main()
