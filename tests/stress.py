"""Stress test: many streams open, close, fail and are cancelled, on threads and an event loop.

    python -m tests.stress --seconds 120

Checks that every stream writes the same as when it runs alone, and that nothing leaks: no streams,
slots, threads, waiters or memory. The test suite runs a short version.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from tests.streams import record, some_text, toy_model
from waitinfo import AsyncTranslator, Translator, WaitinfoError
from waitinfo.streaming.asynchronous import AsyncStream
from waitinfo.streaming.channel import Channel

TEXTS = [some_text(random.Random(seed), 1 + seed % 9) for seed in range(40)]
POISON = "\N{SKULL}"  # text that makes a session fail


@dataclass
class Stress:
    """One run of the stress test. `more` tells whether to continue."""

    translator: Translator
    more: Callable[[Counter[str]], bool]
    expected: dict[str, list[tuple]]
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)

    def check(self, text: str, found: list[tuple]) -> None:
        assert found == self.expected[text], f"wrong translation of {text!r}"
        self.counts["checked"] += 1

    # On threads

    def thread(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            while self.more(self.counts):
                self._one_stream(draw)
        except BaseException as error:
            self.errors.append(error)

    def _one_stream(self, draw: random.Random) -> None:
        text = draw.choice(TEXTS)
        try:
            stream = self.translator.stream(2)
        except WaitinfoError:
            self.counts["refused"] += 1
            time.sleep(0.005)
            return
        end = draw.choice(["finish", "finish", "iterate", "close", "abandon", "fail"])
        self.counts[end] += 1
        words = text.split()
        if end == "finish":
            events = [event for word in words for event in stream.push(word)]
            self.check(text, record(events + stream.finish()))
        elif end == "iterate":
            for word in words:
                stream.push(word, wait=False)
            stream.finish(wait=False)
            self.check(text, record(list(stream)))
        else:
            stream.push(text, wait=draw.random() < 0.5)
            if end == "close":
                stream.close()
            elif end == "fail":
                self._fail(stream.push)

    def _fail(self, push: Callable[[str], object]) -> None:
        try:
            push(POISON)
        except WaitinfoError:
            return
        raise AssertionError("the poison was swallowed")

    # On an event loop

    async def clients(self, count: int, seed: int) -> None:
        async with AsyncTranslator(self.translator) as server:
            draw = random.Random(seed)
            await asyncio.gather(*(self._client(server, draw) for _ in range(count)))

    async def _client(self, server: AsyncTranslator, draw: random.Random) -> None:
        while self.more(self.counts):
            try:
                # A local variable would keep the stream alive, so pass it directly.
                await self._one_client(server.stream(2), draw)
            except WaitinfoError:
                self.counts["refused"] += 1
                await asyncio.sleep(0.005)

    async def _one_client(self, stream: AsyncStream, draw: random.Random) -> None:
        text = draw.choice(TEXTS)
        if draw.random() < 0.6:
            events = [event for word in text.split() for event in await stream.push(word)]
            self.check(text, record(events + await stream.finish()))
            return
        self.counts["cancelled"] += 1
        if to_the_end := draw.random() < 0.5:
            await stream.push(text, wait=False)
        task = asyncio.create_task(stream.finish() if to_the_end else stream.push(text))
        await asyncio.sleep(draw.random() * 0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if draw.random() < 0.5:
            stream.close()


def picky(translator: Translator) -> Translator:
    """Make the sessions of a translator fail on the poison text."""
    open_channel = translator._open_channel

    def opened(*arguments: object) -> object:
        channel = open_channel(*arguments)  # type: ignore[arg-type]
        add = channel.session.add

        def careful(text: str, at: float | None = None) -> None:
            if text == POISON:
                raise WaitinfoError("poison")
            add(text, at)

        channel.session.add = careful  # type: ignore[method-assign]
        return channel

    translator._open_channel = opened  # type: ignore[method-assign,assignment]
    return translator


def run(
    more: Callable[[Counter[str]], bool], threads: int = 4, clients: int = 6, seed: int = 1
) -> Counter:
    """Run a stress test; raise an error if a check fails, else return counts."""
    translator = picky(Translator(toy_model(), streams=5, capacity=48))
    stress = Stress(translator, more, word_by_word())
    before = live_channels()
    workers = [
        threading.Thread(target=stress.thread, args=(seed * 100 + n,)) for n in range(threads)
    ]
    for worker in workers:
        worker.start()
    asyncio.run(stress.clients(clients, seed))
    for worker in workers:
        worker.join()
    if stress.errors:
        raise stress.errors[0]
    nothing_left(translator)
    counts = stress.counts
    del translator, stress, workers
    gc.collect()
    assert live_channels() <= before, "a stream is still referenced"
    return counts


def live_channels() -> int:
    return sum(type(found) is Channel for found in gc.get_objects())


@lru_cache(maxsize=1)
def word_by_word() -> dict[str, list[tuple]]:
    """The events of each text when its stream runs alone."""
    translator = Translator(toy_model(), streams=1, capacity=48)
    found = {}
    for text in TEXTS:
        with translator.stream(2) as stream:
            events = [event for word in text.split() for event in stream.push(word)]
            found[text] = record(events + stream.finish())
    return found


def nothing_left(translator: Translator) -> None:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "waitinfo":
            thread.join(600)
            assert not thread.is_alive(), "a thread is still running"
    scheduler = translator._scheduler
    assert translator.open_streams == 0, "a stream is still open"
    translator.translate("ba")  # this round releases the slots of streams closed meanwhile
    assert len(scheduler.engine.free) == scheduler.engine.slots, "a slot is still in use"
    assert not scheduler._waiters and not scheduler.bells, "a thread or task is still waiting"
    assert not scheduler._rounds.by_slot and not scheduler._inbox, "work is left"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    word_by_word()
    end = time.monotonic() + options.seconds
    memory: list[int] = []
    counts: Counter = Counter()
    part = 0
    while time.monotonic() < end:
        part += 1
        stop = min(end, time.monotonic() + options.seconds / 8)
        counts += run(lambda _, stop=stop: time.monotonic() < stop, seed=part)  # type: ignore[misc]
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(f"{part}: {dict(counts)}, {memory[-1] / 1024:.0f} MiB", flush=True)
    assert memory[-1] < 1.05 * memory[len(memory) // 4], f"memory grows: {memory}"


if __name__ == "__main__":
    main()
