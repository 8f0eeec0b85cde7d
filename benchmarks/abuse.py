"""Abuse beside load: python benchmarks/abuse.py [--quick] [--only NAME] [--part 1/3]

Polite clients send 3 words a second each, as in `serve.py`. Beside them runs each attack in turn,
from an address of its own behind a trusted proxy. The 95th percentile of the polite clients' delay
is measured with each attack, and without any before and after all of them, in one run on one
machine. `--part 2/3` runs every third attack, from the second on.

The attackers are processes of the lowest priority on the same cores: the server's work is to be
measured, and not theirs. An attack is as fast as the server answers it, or as it says.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import random
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from measurements import save
from serve import SETTLING, family, generate, p95, start_server

ATTACKER = "203.0.113.9"  # as the proxy tells it
MEGABYTE = 1_000_000
AT_ONCE = 8  # connections of an attack that waits for answers
SLOW = 300  # connections of an attack that only holds them
BOUND = 0.05  # seconds that the 95th percentile may grow by, if it more than doubles

Attack = Callable[[int, int], Awaitable[None]]  # port, number of the connection
ATTACKS: dict[str, tuple[int, Attack]] = {}


def attack(name: str, connections: int = AT_ONCE) -> Callable[[Attack], Attack]:
    def add(function: Attack) -> Attack:
        ATTACKS[name] = connections, function
        return function

    return add


def request(body: bytes, size: int | None = None) -> bytes:
    return (
        b"POST /translate HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: %s\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    ) % (ATTACKER.encode(), len(body) if size is None else size, body)


async def post(port: int, body: bytes, wait: bool) -> None:
    """Send a body, and wait for the answer or leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(body))
        await writer.drain()
        if wait:
            await reader.read()
    finally:
        writer.transport.abort()


def asked(q: Any, **fields: Any) -> bytes:
    return json.dumps({"q": q, "source": "de", "target": "en", **fields}).encode()


BODIES = {
    "HTML without an end": asked("<a " * (MEGABYTE // 4), format="html"),
    "HTML of many tags": asked("<p>ba <b>be</b>" * (MEGABYTE // 16), format="html"),
    "a word of a megabyte": asked("a" * MEGABYTE),
    "newlines": asked("\n" * (MEGABYTE // 2)),
    "long words": asked(("a" * 4_000 + " ") * 200),
    "20,000 words": asked("Ich habe heute mit meiner Mutter gesprochen. " * 2_500),
    "numbers for texts": asked([0] * (MEGABYTE // 4)),
}


def _posts(body: bytes, wait: bool) -> Attack:
    async def again(port: int, _: int) -> None:
        await post(port, body, wait)
        await asyncio.sleep(0.05)

    return again


for _name, _body in BODIES.items():
    attack(f"{_name}, waiting")(_posts(_body, wait=True))
    attack(f"{_name}, leaving")(_posts(_body, wait=False))


async def _hold(port: int, sent: bytes, more: bytes) -> None:
    """Keep a connection open by a byte a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        while not reader.at_eof():
            writer.write(more)
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1.0)
    finally:
        writer.transport.abort()


@attack("heads that never end", SLOW)
async def slow_heads(port: int, _: int) -> None:
    await _hold(port, b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"a")


@attack("bodies that never end", SLOW)
async def slow_bodies(port: int, _: int) -> None:
    await _hold(port, request(b"", 1_000), b"a")


@attack("connections that say nothing", SLOW)
async def idle(port: int, _: int) -> None:
    await _hold(port, b"", b"")


def stream(port: int) -> Any:
    return connect(
        f"ws://127.0.0.1:{port}/v1/stream",
        additional_headers={"X-Forwarded-For": ATTACKER},
        ping_interval=None,
        max_size=None,
    )


@attack("streams that say nothing", 64)
async def silent(port: int, _: int) -> None:
    async with stream(port) as ws:
        await ws.send('{"type": "start"}')
        await ws.wait_closed()


@attack("as much text as is taken")
async def firehose(port: int, _: int) -> None:
    async with stream(port) as ws:
        await ws.send('{"type": "start"}')
        reading = asyncio.ensure_future(_drop(ws))
        try:
            while True:
                text = "Ich habe heute mit meiner Mutter gesprochen. " * 20
                await ws.send(json.dumps({"type": "text", "text": text}))
        finally:
            reading.cancel()


async def _drop(ws: Any) -> None:
    async for _ in ws:
        pass


@attack("messages that mean nothing")
async def malformed(port: int, number: int) -> None:
    draw = random.Random(number)
    async with stream(port) as ws:
        while True:
            await ws.send(draw.choice(["[" * 5_000, '{"type": "none"}', "x" * 60_000, "null"]))
            await ws.recv()


@attack("forged resumes")
async def forged(port: int, number: int) -> None:
    draw = random.Random(number)
    path = [[draw.randrange(9_000), draw.randrange(1, 60)] for _ in range(500)]
    async with stream(port) as ws:
        resume = {"path": path, "sentence": 3, "position": 10}
        await ws.send(json.dumps({"type": "start", "resume": resume}))
        await ws.recv()
    await asyncio.sleep(0.02)


@attack("connections that come and go")
async def churn(port: int, _: int) -> None:
    async with stream(port) as ws:
        await ws.send('{"type": "start"}')
        await ws.recv()
        ws.transport.abort()
    await asyncio.sleep(0.02)


async def flood(port: int, frames: bytes, path: str = "stream", start: bytes = b"") -> None:
    """Small frames as fast as they are taken; all answers are read."""
    reader, writer = await raw(port, path)
    await reader.readuntil(b"\r\n\r\n")
    reading = asyncio.ensure_future(reader.read())
    try:
        writer.write(start)
        while True:
            writer.write(frames * (20_000 // len(frames)))
            await asyncio.wait_for(writer.drain(), 60.0)
    finally:
        reading.cancel()
        writer.transport.abort()


def frame(text: bytes) -> bytes:
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


START = frame(b'{"type": "start"}')


@attack("pings")
async def pings(port: int, _: int) -> None:
    await flood(port, b"\x89\x80\0\0\0\0")


@attack("small messages: statistics")
async def statistics_(port: int, _: int) -> None:
    await flood(port, frame(b'{"type": "stats"}'), start=START)


@attack("small messages: ends of sentences")
async def flushes(port: int, _: int) -> None:
    await flood(port, frame(b'{"type": "flush"}'), start=START)


@attack("watchers who talk")
async def talk(port: int, _: int) -> None:
    await flood(port, frame(b"x"), path="watch?room=a")


async def raw(port: int, path: str, limit: int = 1 << 16) -> Any:
    """A WebSocket without a library."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /v1/{path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {ATTACKER}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n\r\n"
    )
    writer.write(head.encode())
    return reader, writer


@attack("pings whose answers nobody reads")
async def unread(port: int, _: int) -> None:
    _, writer = await raw(port, "stream", limit=1)
    try:
        await asyncio.sleep(0.2)
        while True:
            writer.write((b"\x89\xfd\0\0\0\0" + b"x" * 125) * 100)
            await asyncio.wait_for(writer.drain(), 5.0)
    finally:
        writer.transport.abort()


def run_attack(name: str, port: int, ready: Any, end: float) -> None:
    """In a process of its own, until a time."""
    os.nice(19)
    connections, function = ATTACKS[name]

    async def again(number: int) -> None:
        while time.time() < end:
            with suppress(Exception):  # refused, closed, or cut off: that is what is wanted
                await function(port, number)
            await asyncio.sleep(0.01)

    async def everything() -> None:
        tasks = [asyncio.ensure_future(again(number)) for number in range(connections)]
        ready.set()
        await asyncio.wait(tasks, timeout=max(0.0, end - time.time()))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=2.0)

    asyncio.run(everything())


def alive(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as probe:
        probe.settimeout(10)
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return b" 200 " in probe.recv(100)
    return False


def memory(process: int) -> float:
    """MiB in use by the server's processes."""
    pages = [Path(f"/proc/{each}/statm").read_text("ascii").split()[1] for each in family(process)]
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(
    name: str | None, port: int, process: int, clients: int, seconds: float
) -> dict[str, Any]:
    """The polite clients' delays beside an attack, or without any."""
    attacker = None
    if name is not None:
        ready = multiprocessing.Event()
        attacker = multiprocessing.Process(
            target=run_attack, args=(name, port, ready, time.time() + seconds + 4.0)
        )
        attacker.start()
        ready.wait(30)
    try:
        answers, _ = generate(port, range(clients), seconds)
    except Exception as error:  # a polite client was refused or cut off
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        answers = []
    finally:
        if attacker is not None:
            attacker.join(15)
            if attacker.is_alive():
                attacker.kill()
    delays = [delay for _, delay in answers]
    found = {
        "median_ms": 1000 * (statistics.median(delays) if delays else float("inf")),
        "p95_ms": 1000 * p95(delays),
        "answers": len(delays),
        "memory_mib": memory(process),
        "alive": alive(port),
    }
    print(f"| {name or 'no attack'} | {found['median_ms']:.0f} | {found['p95_ms']:.0f} | "
          f"{found['memory_mib']:.0f} |", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="20 clients, 4 seconds each")
    parser.add_argument("--only", help="attacks whose name contains this")
    parser.add_argument("--part", default="1/1", help="such as 2/3: one in three attacks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--system", help="another than the model's own")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", help="JSON file to write")
    options = parser.parse_args()
    if options.seconds <= SETTLING:
        parser.error(f"--seconds: must be more than {SETTLING:g}; earlier words do not count")
    if options.quick:
        options.clients, options.seconds = min(options.clients, 20), min(options.seconds, 4.0)
    part, parts = map(int, options.part.split("/"))
    names = [name for name in ATTACKS if (options.only or "") in name][part - 1 :: parts]
    process, port = start_server(options.clients + 64, options, "--proxy", "127.0.0.0/8")
    try:
        print("| attack | median, ms | 95th percentile, ms | memory, MiB |\n|---|---|---|---|")
        arguments = port, process.pid, options.clients, options.seconds
        generate(port, range(options.clients), 3.0)
        found = {"no attack": measure(None, *arguments)}
        for name in names:
            found[name] = measure(name, *arguments)
        found["no attack, again"] = measure(None, *arguments)
    finally:
        process.terminate()
        process.wait()
    usual = min(found["no attack"]["p95_ms"], found["no attack, again"]["p95_ms"])
    allowed = max(2 * usual, usual + 1000 * BOUND)
    beyond = [name for name in names if not found[name]["p95_ms"] <= allowed]
    print(f"\nallowed: {allowed:.0f} ms; beyond it: {', '.join(beyond) or 'none'}")
    if options.out:
        save(options.out, {"clients": options.clients, "attacks": found})


if __name__ == "__main__":
    main()
