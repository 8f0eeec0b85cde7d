"""Load of the server: python benchmarks/serve.py [--levels 16,32] [--seconds 10] [--system NAME…]

N clients on loopback send 3 words a second each, whatever comes back. The delay of a source word
runs from the moment when it was due to the moment when the client has all words that it released.
The largest N with a 95th percentile of at most 500 ms, over all words that released some and over
the last third of them alone, is searched for the server and for the engine alone, in one run on one
machine.

Clients begin within a third of a second and speak on for some time after the last word that counts.
Otherwise the figure would be that of the end, when all streams at once write the rest of a
sentence, and not that of clients who come and go at any time.

The server's clients are processes beside it on the same cores (`--generators`) and need CPU time
too. Real ones are elsewhere. So beside the engine, whose clients are tasks in its process, another
process burns as much CPU time per word as the server's clients took. The CPU time per source word
is given as well: of the server's processes without its clients, of the engine with its own. What a
stream waits longer because of the server is the difference of the medians at the lowest level.
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
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import torch
from websockets.asyncio.client import connect

import waitinfo
from measurements import save

RATE = 3.0  # words per second of a client
BOUND = 0.5  # seconds
SETTLING = 2.0  # seconds at the beginning that do not count
CLOSING = 2.0  # and at the end, when all streams end at once
TEXT = Path(__file__).resolve().parents[1] / "examples" / "demo.py"

Answer = tuple[float, float]  # when a word was due, and its delay
Answers = list[Answer]


@cache
def speech() -> list[str]:
    """The demo's speech, as words."""
    names: dict[str, Any] = {"__name__": "speech"}
    exec(TEXT.read_text("utf-8"), names)
    return " ".join(names["SPEECH"]).split()


class Talk:
    """One client: words at its rate, and the delays of their translations."""

    def __init__(self, number: int, seconds: float) -> None:
        draw = random.Random(number)
        start = draw.randrange(len(speech()))
        self._words = [*speech()[start:], *speech()[:start]]
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time() + draw.random() / RATE
        self._last = int(seconds * RATE)
        self.sent = self._done = 0
        self.answers: Answers = []

    def _due(self, number: int) -> float:
        return self._began + number / RATE

    async def speak(self, send: Callable[[str], Awaitable[Any]]) -> None:
        count = self._last + int(CLOSING * RATE)
        for number, word in zip(range(count), cycle(self._words), strict=False):
            await asyncio.sleep(max(0.0, self._due(number) - self._loop.time()))
            self.sent += 1
            await send(word)

    def worked_off(self, count: int, released: bool) -> None:
        """So many source words are done with; whether words came with the newest of them."""
        now = self._loop.time()
        for number in range(self._done, count) if released else ():
            due = self._due(number)
            if number < self._last and due >= self._began + SETTLING:
                self.answers.append((due, now - due))
        self._done = count


async def through_the_server(port: int, numbers: range, seconds: float) -> Answers:
    async def one(number: int) -> Answers:
        async with connect(f"ws://127.0.0.1:{port}/v1/stream", ping_interval=None) as ws:
            await ws.send('{"type": "start"}')
            assert json.loads(await ws.recv())["type"] == "started"
            talk = Talk(number, seconds)

            async def send(word: str) -> None:
                message = {"type": "text", "text": word + " ", "id": talk.sent}
                await ws.send(json.dumps(message))

            async def listen() -> None:
                released = False
                async for data in ws:
                    message = json.loads(data)
                    released |= message["type"] == "words"
                    if message["type"] == "idle":
                        talk.worked_off(message["id"], released)
                        released = False

            listening = asyncio.ensure_future(listen())
            await talk.speak(send)
            await ws.send('{"type": "end"}')
            await listening
            return talk.answers

    return [*chain(*await asyncio.gather(*(one(number) for number in numbers)))]


async def engine_alone(translator: Any, clients: int, seconds: float) -> Answers:
    async with waitinfo.AsyncTranslator(translator) as server:

        async def one(number: int) -> Answers:
            async with server.stream(history=0) as stream:
                talk = Talk(number, seconds)

                async def listen() -> None:
                    released = False
                    async for events, idle in stream.batches():
                        released |= any(e.kind == "WRITE" and e.word for e in events)
                        if idle:
                            talk.worked_off(talk.sent, released)
                            released = False

                listening = asyncio.ensure_future(listen())
                await talk.speak(lambda word: stream.push(word, wait=False))
                await stream.finish(wait=False)
                await listening
                return talk.answers

        return [*chain(*await asyncio.gather(*(one(number) for number in range(clients))))]


def p95(delays: list[float]) -> float:
    ordered = sorted(delays)
    return ordered[int(0.95 * (len(ordered) - 1))] if ordered else float("inf")


class Search:
    """Levels upwards until one does not hold, then between the last two."""

    def __init__(
        self, name: str, run: Callable[[int], tuple[Answers, float]], clock: Callable[[], float]
    ) -> None:
        self.name, self._run, self._clock = name, run, clock
        self.levels: dict[int, dict[str, float]] = {}

    def largest(self, levels: list[int], seconds: float, halvings: int = 3) -> int:
        holds, fails = 0, 0
        for clients in levels:
            if not self._holds(clients, seconds):
                fails = clients
                break
            holds = clients
        for _ in range(halvings if fails and holds else 0):
            middle = (holds + fails) // 2
            if self._holds(middle, seconds):
                holds = middle
            else:
                fails = middle
        return holds

    def _holds(self, clients: int, seconds: float) -> bool:
        before = self._clock()
        answers, others = self._run(clients)
        used = self._clock() - before
        delays = [delay for _, delay in sorted(answers)]
        words = clients * int(RATE * (seconds + CLOSING))
        found = {
            "median_ms": 1000 * (statistics.median(delays) if delays else float("inf")),
            "p95_ms": 1000 * p95(delays),
            "last_p95_ms": 1000 * p95(delays[-len(delays) // 3 :]),
            "cpu_ms_a_word": 1000 * used / words,
            "clients_cpu_ms_a_word": 1000 * others / words,
        }
        self.levels[clients] = found
        print(f"{self.name}, {clients} clients: median {found['median_ms']:.0f} ms, 95th percentile"
              f" {found['p95_ms']:.0f} ms; CPU a word {found['cpu_ms_a_word']:.2f} ms, of clients "
              f"{found['clients_cpu_ms_a_word']:.2f} ms", flush=True)  # fmt: skip
        return max(found["p95_ms"], found["last_p95_ms"]) <= 1000 * BOUND


def family(process: int) -> list[int]:
    """A process and those that it has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text("ascii")
    return [process, *map(int, children.split())]


def cpu_seconds(process: int) -> float:
    """That a process and those that it has started have used so far."""
    ticks = 0
    for each in family(process):
        fields = Path(f"/proc/{each}/stat").read_text("utf-8").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def start_server(
    streams: int, options: argparse.Namespace, *more: str
) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "waitinfo", "serve", "--port", str(port), "--compare", "0",
               "--model", "de-en", "--streams", str(streams), "--device", options.device,
               "--dtype", options.dtype, "--threads", str(options.threads), "--log-level", "error",
               *(["--system", options.system] if options.system else []), *more]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(2400):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def generate(port: int, numbers: range, seconds: float) -> tuple[Answers, float]:
    """Some of the clients, and the CPU time that they took; in a process of its own."""
    before = time.process_time()
    answers = asyncio.run(through_the_server(port, numbers, seconds))
    return answers, time.process_time() - before


def search_server(levels: list[int], seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    process, port = start_server(max(levels), options)
    count = options.generators

    def run(clients: int, seconds: float = seconds) -> tuple[Answers, float]:
        shares = [range(index, clients, count) for index in range(count)]
        found = list(pool.map(generate, [port] * count, shares, [seconds] * count))
        return [*chain(*(answers for answers, _ in found))], sum(cpu for _, cpu in found)

    try:
        with ProcessPoolExecutor(count) as pool:
            run(max(levels), 3.0)  # what is used for the first time is slow
            search = Search("server", run, lambda: cpu_seconds(process.pid))
            return {"largest": search.largest(levels, seconds), "levels": search.levels}
    finally:
        process.terminate()
        process.wait()


def burn(share: float, seconds: float) -> float:
    """Use a share of a core in small pieces, as clients do; the CPU time that was used."""
    began, before = time.monotonic(), time.process_time()
    while (elapsed := time.monotonic() - began) < seconds:
        if time.process_time() - before > share * elapsed:
            time.sleep(0.002)
    return time.process_time() - before


def search_engine(
    levels: list[int], seconds: float, options: argparse.Namespace, clients_cpu: float
) -> dict[str, Any]:
    def load() -> waitinfo.Translator:
        if options.threads:
            torch.set_num_threads(options.threads)
        return waitinfo.load(
            device=options.device, dtype=options.dtype, streams=max(levels), system=options.system
        )

    def run(clients: int, seconds: float = seconds) -> tuple[Answers, float]:
        burning = pool.submit(burn, clients_cpu * clients * RATE, seconds + CLOSING)
        return asyncio.run(engine_alone(translator, clients, seconds)), burning.result()

    with ProcessPoolExecutor(1) as pool:
        pool.submit(int).result()
        translator = load()
        run(max(levels), 3.0)
        search = Search("engine", run, lambda: cpu_seconds(os.getpid()))
        return {"largest": search.largest(levels, seconds), "levels": search.levels}


def compare(result: dict[str, Any]) -> None:
    server, engine = result["server"], result["engine"]
    both = sorted(set(server["levels"]) & set(engine["levels"]))
    level = max((n for n in both if n <= server["largest"]), default=both[0])
    cost = server["levels"][level]["cpu_ms_a_word"] / engine["levels"][level]["cpu_ms_a_word"]
    result["ratio"] = server["largest"] / engine["largest"] if engine["largest"] else None
    result["cpu_ratio"] = {"clients": level, "server_over_engine": cost}
    lowest = both[0]
    added = server["levels"][lowest]["median_ms"] - engine["levels"][lowest]["median_ms"]
    result["added_ms"] = {"clients": lowest, "median": added}
    print(f"largest, server over engine: {result['ratio'] or 0:.2f}; "
          f"CPU a word with {level} clients: {cost:.2f}; "
          f"added to the median with {lowest} clients: {added:.1f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", default="16,32,64,128,256,512")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--system", nargs="+", default=[None], help="one or several [the model's own]"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="of the model [the server's and torch's own choice]"
    )
    parser.add_argument("--generators", type=int, default=1, help="processes with clients")
    parser.add_argument("--only", choices=("server", "engine"))
    parser.add_argument("--quick", action="store_true", help="briefly, to check that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    levels, seconds = [int(level) for level in options.levels.split(",")], options.seconds
    if options.quick:
        levels, seconds = levels[:1], 3.0
    systems, found = options.system, {}
    for options.system in systems:
        if options.system:
            print(f"{options.system}:", flush=True)
        found[options.system] = measure(levels, seconds, options)
    save(options.out, found if len(found) > 1 else found[options.system])


def measure(levels: list[int], seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """The server and the engine alone, with one system."""
    result: dict[str, Any] = {
        "system": options.system,
        "device": options.device, "dtype": options.dtype, "seconds": seconds,
        "cores": os.cpu_count(), "generators": options.generators,
    }  # fmt: skip
    clients_cpu = 0.0
    if options.only != "engine":
        found = result["server"] = search_server(levels, seconds, options)
        print(f"server: {found['largest']} clients", flush=True)
        nearest = found["levels"][found["largest"] or levels[0]]
        clients_cpu = nearest["clients_cpu_ms_a_word"] / 1000
    if options.only != "server":
        result["engine"] = search_engine(levels, seconds, options, clients_cpu)
        print(f"engine: {result['engine']['largest']} clients", flush=True)
    if options.only is None:
        compare(result)
    return result


if __name__ == "__main__":
    main()
