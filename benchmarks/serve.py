"""Load of the server: python benchmarks/serve.py [--levels 4,8,16] [--seconds 30] [--out FILE.json]

N clients on loopback send 3 words a second each. Measured is the time from a word to the last of
the words that it releases. The largest N with a 95th percentile of at most 500 ms is found for the
server and for the engine alone, in one run on one machine, and their ratio is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count, cycle
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

import waitinfo
from measurements import save

RATE = 3.0  # words per second of a client
BOUND = 0.5  # seconds
TEXT = Path(__file__).resolve().parents[1] / "examples" / "demo.py"

Push = Callable[[str], Awaitable[bool]]  # sends a word; whether it released something


def speech() -> list[str]:
    """The demo's speech, as words."""
    names: dict[str, Any] = {"__name__": "speech"}
    exec(TEXT.read_text("utf-8"), names)
    return " ".join(names["SPEECH"]).split()


async def talk(push: Push, number: int, seconds: float) -> list[float]:
    """One client: words at its rate, whatever the answers; the times they took."""
    words = speech()
    start = random.Random(number).randrange(len(words))
    words = [*words[start:], *words[:start]]
    loop = asyncio.get_running_loop()
    began = loop.time() + random.Random(number).random() / RATE
    times: list[float] = []
    for n, word in zip(count(), cycle(words), strict=False):
        due = began + n / RATE
        if due > began + seconds:
            return times
        await asyncio.sleep(max(0.0, due - loop.time()))
        if await push(word):
            times.append(loop.time() - due)  # a client that is behind waits longer
    return times


async def through_the_server(port: int, clients: int, seconds: float) -> list[float]:
    async def one(number: int) -> list[float]:
        async with connect(f"ws://127.0.0.1:{port}/v1/stream", ping_interval=None) as ws:
            await ws.send(json.dumps({"type": "start"}))
            assert json.loads(await ws.recv())["type"] == "started"
            ids = count(1)

            async def push(word: str) -> bool:
                await ws.send(json.dumps({"type": "text", "text": word + " ", "id": next(ids)}))
                released = False
                while (message := json.loads(await ws.recv()))["type"] != "idle":
                    released |= bool(message.get("words"))
                return released

            return await talk(push, number, seconds)

    found = await asyncio.gather(*(one(number) for number in range(clients)))
    return [t for times in found for t in times]


async def engine_alone(translator: Any, clients: int, seconds: float) -> list[float]:
    async with waitinfo.AsyncTranslator(translator) as server:

        async def one(number: int) -> list[float]:
            async with server.stream(history=0) as stream:

                async def push(word: str) -> bool:
                    events = await stream.push(word)
                    return any(event.kind == "WRITE" and event.word for event in events)

                return await talk(push, number, seconds)

        found = await asyncio.gather(*(one(number) for number in range(clients)))
    return [t for times in found for t in times]


def p95(times: list[float]) -> float:
    ordered = sorted(times)
    return ordered[int(0.95 * (len(ordered) - 1))] if ordered else float("inf")


def climb(name: str, levels: list[int], run: Callable[[int], list[float]]) -> dict[str, Any]:
    """Go up the levels until the bound is passed."""
    found: dict[str, Any] = {"largest": 0, "levels": {}}
    for clients in levels:
        times = run(clients)
        worst = p95(times)
        median = statistics.median(times) if times else float("inf")
        found["levels"][clients] = {"median_ms": 1000 * median, "p95_ms": 1000 * worst}
        print(f"{name}, {clients} clients: median {1000 * median:.0f} ms, "
              f"95th percentile {1000 * worst:.0f} ms", flush=True)  # fmt: skip
        if worst > BOUND:
            break
        found["largest"] = clients
    return found


def start_server(streams: int, dtype: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "waitinfo", "serve", "--port", str(port), "--compare", "0",
               "--streams", str(streams), "--dtype", dtype, "--log-level", "error"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(2400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", default="1,2,4,8,12,16,20,24,32,40,48,64")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quick", action="store_true", help="briefly, to check that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    levels = [int(level) for level in options.levels.split(",")]
    seconds = options.seconds
    if options.quick:
        levels, seconds = levels[:2], 3.0
    process, port = start_server(max(levels), options.dtype)
    try:
        served = climb(
            "server", levels, lambda n: asyncio.run(through_the_server(port, n, seconds))
        )
    finally:
        process.terminate()
        process.wait()
    translator = waitinfo.load(device="cpu", dtype=options.dtype, streams=max(levels))
    alone = climb("engine", levels, lambda n: asyncio.run(engine_alone(translator, n, seconds)))
    ratio = served["largest"] / alone["largest"] if alone["largest"] else 0.0
    print(f"largest: server {served['largest']}, engine {alone['largest']}; ratio {ratio:.2f}")
    save(options.out, {"server": served, "engine": alone, "ratio": ratio, "dtype": options.dtype,
                       "cores": os.cpu_count(), "seconds": seconds})  # fmt: skip


if __name__ == "__main__":
    main()
