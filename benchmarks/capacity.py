"""Streams in real time: python benchmarks/capacity.py --text FILE [--streams 100 200 400]

How many live streams does a machine serve? Every stream receives words of a text, `--rate` a second
without pause, whatever comes back. The delay of a translated word is the time from the arrival of
the source word that released it, as planned, to the moment when the client has it. A number of
streams holds if the 95th percentile of the delays is at most `--limit` milliseconds, over all of
`--seconds` and over their last quarter alone, so that no queue is growing. With `--probe`, shorter
trials find the largest number first, and only that one is served for `--seconds`. Before all of
them, the largest number of streams warms up for some seconds, which are not counted.

Clients are tasks of an event loop that use `AsyncTranslator`, in the same process as the model.
With `--processes`, several processes share the streams and the device. Examples:

    python benchmarks/capacity.py --text europarl.de --streams 8 16 32 64
    python benchmarks/capacity.py --text europarl.de --size base --device cuda --dtype bfloat16 \\
        --processes 8 --streams 5000 10000 15000 --probe 10
    python benchmarks/capacity.py --text europarl.de --host-only --streams 2000
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capacity_models import OPUS, build_translator
from measurements import save
from waitinfo import AsyncTranslator
from waitinfo.model import SIZES
from waitinfo.streaming.asynchronous import AsyncStream
from waitinfo.streaming.event import Observer, RoundStats

WARM_UP = 5.0  # seconds
MARGIN = 0.8  # of the limit that short trials must keep to: a longer one sees more
END_OF_SENTENCE = "</s>"
SETTLING = 4.0  # seconds at the beginning that do not count
PAUSE = 0.002  # seconds between looks at the clock
SWITCH = 0.0002  # seconds that a thread keeps the interpreter while another one waits for it
AT_ONCE = 256  # words handed in before other tasks get their turn


class Counter(Observer):
    """What the scheduler did."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.rounds = self.read = self.written = self.rows = 0
        self.seconds = 0.0

    def round(self, stats: RoundStats) -> None:
        self.rounds += 1
        self.read += stats.read
        self.written += stats.written
        self.rows += stats.streams
        self.seconds += stats.seconds


@dataclass
class Client:
    """One stream: the words it sends, and the delays of the words it gets."""

    stream: AsyncStream
    words: list[str]
    at: int
    arrivals: deque[float] = field(default_factory=deque)  # of words that were not read yet

    async def send(self, arrival: float) -> None:
        word = self.words[self.at % len(self.words)]
        self.at += 1
        self.arrivals.append(arrival)
        await self.stream.push(word, wait=False)

    async def receive(self, when: array[float], delays: array[float]) -> None:
        released = time.monotonic()
        async for event in self.stream:
            if event.kind == "WRITE":
                if event.word is not None:
                    now = time.monotonic()
                    when.append(now)
                    delays.append(now - released)
            elif event.kind == "READ" and event.token != END_OF_SENTENCE:
                released = self.arrivals[0]  # any of a word's tokens can release something
                if event.word is not None:
                    self.arrivals.popleft()


async def trial(
    translator: AsyncTranslator,
    words: list[str],
    streams: int,
    seconds: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Serve a number of streams for a while."""
    draw = random.Random(options.seed)
    counter: Counter = translator.translator._scheduler.observer  # type: ignore[assignment]
    clients = [
        Client(translator.stream(options.k, history=0), words, draw.randrange(len(words)))
        for _ in range(streams)
    ]
    draw.shuffle(clients)
    when, delays = array("d"), array("d")
    tasks = [asyncio.create_task(client.receive(when, delays)) for client in clients]
    pace = streams * options.rate  # words a second, of all streams
    began = time.monotonic()
    sent, counted, cpu = 0, False, 0.0
    while (elapsed := time.monotonic() - began) < SETTLING + seconds:
        if elapsed > SETTLING and not counted:
            counter.clear()
            counted, cpu = True, time.process_time()
        planned = int(elapsed * pace) + 1
        due = min(planned, sent + AT_ONCE)
        while sent < due:
            await clients[sent % streams].send(began + sent / pace)
            sent += 1
        await asyncio.sleep(0 if planned > sent else PAUSE)
    result = {
        "when": np.array(when) - began - SETTLING,
        "delays": np.array(delays),
        "behind": int((time.monotonic() - began) * pace) - sent,
        "rounds": counter.rounds,
        "read": counter.read,
        "written": counter.written,
        "rows": counter.rows,
        "busy": counter.seconds,
        "cpu": time.process_time() - cpu,
    }
    for client in clients:
        client.stream.close()
    await asyncio.gather(*tasks)
    return result


def worker(pipe: Connection, options: argparse.Namespace, index: int) -> None:
    """Run trials until told to stop; in a process of its own."""
    torch.set_num_threads(options.threads)
    # The model's thread gives the interpreter up with every call of torch. It must not wait for
    # the event loop's 5 ms each time.
    sys.setswitchinterval(SWITCH)
    options.seed += index
    words = options.text.read_text("utf-8").split()
    counter = Counter()
    made = build_translator(options, -(-max(options.streams) // options.processes), counter)
    translator = AsyncTranslator(made)
    pipe.send("ready")
    while task := pipe.recv():
        result = asyncio.run(trial(translator, words, *task, options))
        if options.device.startswith("cuda"):
            result["memory"] = torch.cuda.max_memory_allocated()
        pipe.send(result)
    translator.close()


def run_trial(
    pipes: list[Connection], streams: int, seconds: float, limit: float
) -> dict[str, Any]:
    """One number of streams, shared by all processes."""
    shares = [len(range(index, streams, len(pipes))) for index in range(len(pipes))]
    for pipe, share in zip(pipes, shares, strict=True):
        pipe.send((share, seconds))
    results = [pipe.recv() for pipe in pipes]
    when = np.concatenate([result["when"] for result in results])
    delays = 1000 * np.concatenate([result["delays"] for result in results])
    late = when > 0.75 * seconds
    delays, last = delays[when > 0], delays[late]
    sums = {name: sum(r[name] for r in results) for name in ("read", "written", "rounds", "rows")}
    p95, p95_last = _percentile(delays, 95), _percentile(last, 95)
    found: dict[str, Any] = {
        "streams": streams,
        "seconds": seconds,
        "median_ms": _percentile(delays, 50),
        "p95_ms": p95,
        "p99_ms": _percentile(delays, 99),
        "p95_last_quarter_ms": p95_last,
        "words_per_second": len(delays) / seconds,
        "words_not_sent": sum(result["behind"] for result in results),
        "read_per_second": sums["read"] / seconds,
        "written_per_second": sums["written"] / seconds,
        "rounds_per_second": sums["rounds"] / seconds / len(pipes),
        "streams_per_round": sums["rows"] / max(1, sums["rounds"]),
        "busy": sum(result["busy"] for result in results) / seconds / len(pipes),
        "cores": sum(result["cpu"] for result in results) / seconds,
        "holds": bool(max(p95, p95_last) <= limit),
    }
    if "memory" in results[0]:
        found["device_gigabytes"] = sum(result["memory"] for result in results) / 1e9
    return found


def _percentile(values: np.ndarray, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else float("inf")


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['streams']:6d} streams {'hold' if found['holds'] else 'do NOT hold'}: delay "
        f"median {found['median_ms']:.0f} ms, 95% {found['p95_ms']:.0f}, 99% "
        f"{found['p99_ms']:.0f}, 95% of the last quarter {found['p95_last_quarter_ms']:.0f}; "
        f"{found['read_per_second']:.0f} READ and {found['written_per_second']:.0f} WRITE a "
        f"second, {found['rounds_per_second']:.0f} rounds of {found['streams_per_round']:.0f} "
        f"streams, busy {100 * found['busy']:.0f}%, {found['cores']:.2f} cores",
        flush=True,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="source text, in whole sentences")
    parser.add_argument("--model", default="de-en", help="a model, also for its vocabulary")
    parser.add_argument(
        "--size", choices=[*SIZES, OPUS], help="random weights of this size instead"
    )
    parser.add_argument("--system", help="another than the model's own")
    parser.add_argument("--host-only", action="store_true", help="everything except the model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", help="of weights; auto: as `load` chooses it")
    parser.add_argument("--k", type=float, default=5.0)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--seconds", type=float, default=120.0, help="of each number of streams")
    parser.add_argument("--probe", type=float, help="seconds of trials before the longest one")
    parser.add_argument("--rate", type=float, default=3.0, help="words a second of each stream")
    parser.add_argument("--limit", type=float, default=300.0, help="milliseconds, 95 percent")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for index in range(options.processes):
        mine, theirs = context.Pipe()
        process = context.Process(target=worker, args=(theirs, options, index), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    results: list[dict[str, Any]] = []
    setting = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "out"
    }

    def measure(streams: int, seconds: float) -> bool:
        limit = options.limit if seconds == options.seconds else MARGIN * options.limit
        results.append(run_trial(pipes, streams, seconds, limit))
        show(results[-1])
        save(options.out, {**setting, "torch": torch.__version__, "trials": results})
        return results[-1]["holds"]

    # What is used for the first time is slow: memory, vocabularies, kernels.
    run_trial(pipes, max(options.streams), WARM_UP, options.limit)
    best = 0
    for streams in options.streams:
        if not measure(streams, options.probe or options.seconds):
            break
        best = streams
    if options.probe and best and not measure(best, options.seconds):
        best = 0
    print(f"the largest of these numbers that holds: {best}")
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(timeout=30)


if __name__ == "__main__":
    main()
