"""The engine in a process of its own: streams as if it were here, and what becomes of them."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import waitinfo
from tests.served import Served
from tests.streams import record, toy_model, wait_for
from waitinfo import AsyncTranslator, Client, Translator, WaitinfoError
from waitinfo.serving import supervisor
from waitinfo.serving.hub import Plan
from waitinfo.serving.supervisor import Child, ChildTask, Supervisor
from waitinfo.streaming import host, remote
from waitinfo.streaming.host import Host
from waitinfo.streaming.remote import EngineGone, RemoteScheduler, RemoteTranslator
from waitinfo.streaming.replay import Replay
from waitinfo.trained.folder import bundled_models

TEXT = "ba be bi. bo bu da de di do du? Da bo, be ba bu bi! di do ba"


class Pair:
    """Both sides in this process; everything between them is packed and comes later."""

    def __init__(self, streams: int = 4) -> None:
        self.engine = Translator(toy_model(), streams)
        model = self.engine.loaded.without_weights()
        self.loop = asyncio.get_running_loop()
        self.orders = self.reports = 0
        self.scheduler = RemoteScheduler(Host.facts("toy", self.engine), self._order)
        self.host = Host(self.engine, self._report)
        self.scheduler.alive = True
        self.worker = AsyncTranslator(self.engine)
        self.worker.start()
        self.streams = AsyncTranslator(RemoteTranslator(model, self.scheduler))

    def _order(self, orders: Any) -> None:
        self.orders += 1
        data = pickle.dumps(orders)
        self.loop.call_later(0.001, lambda: self.host.receive(pickle.loads(data)))

    def _report(self, *message: Any) -> None:
        self.reports += 1
        data = pickle.dumps(message)
        self.loop.call_soon_threadsafe(lambda: self.scheduler.reported(*pickle.loads(data)))


@contextmanager
def pair(**options: Any) -> Iterator[Pair]:
    found = Pair(**options)
    try:
        yield found
    finally:
        found.worker.close()


def run(check: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(check(), 300))


async def say(server: AsyncTranslator, seed: int, **options: Any) -> list[tuple]:
    """Text in pieces that a seed decides, with changes of the dial and ends of sentences."""
    draw, found = random.Random(seed), []
    async with server.stream(raw=True, history=0, **options) as stream:
        at = 0
        while at < len(TEXT):
            size = draw.randint(1, 12)
            found += await stream.push(TEXT[at : at + size], at=float(at))
            at += size
            if draw.random() < 0.2:
                found += await stream.flush()
            if draw.random() < 0.2:
                stream.k = draw.randint(1, 4)
        return record(found + await stream.finish())


@pytest.mark.parametrize(
    "options",
    [{"k": 2}, {"segment": "none", "k": 3}, {"segment": "whole"}, {"segment": "pause:3"}],
    ids=str,
)
def test_streams_are_those_of_an_engine_here(options: dict[str, Any]) -> None:
    async def check() -> None:
        with pair() as both:
            here = AsyncTranslator(Translator(toy_model(), 4))
            expected = [await say(here, seed, **options) for seed in range(4)]
            found = await asyncio.gather(*(say(both.streams, seed, **options) for seed in range(4)))
            assert found == expected
            here.close()
            wait_for(lambda: both.engine.open_streams == 0)

    run(check)


def test_one_message_each_way_for_what_comes_together() -> None:
    async def check() -> None:
        with pair() as both:
            streams = [both.streams.stream(2) for _ in range(4)]
            for stream in streams:
                await stream.push("ba be", wait=False)
                await stream.push("bi", wait=False)
                await stream.finish(wait=False)
            assert both.orders == 0
            assert [[event async for event in stream] for stream in streams]
            assert both.orders == 1

    run(check)


def test_wrong_uses_are_told_at_once() -> None:
    async def check() -> None:
        with pair(streams=1) as both:
            with pytest.raises(WaitinfoError, match="k"):
                both.streams.stream(-5)
            with pytest.raises(WaitinfoError, match="cannot have been written"):
                both.streams.stream(2, replay=Replay(path=((10_000, 1),)))
            stream = both.streams.stream(2)
            with pytest.raises(WaitinfoError, match="in use"):
                both.streams.stream(2)
            await stream.push("ba", at=3.0)
            with pytest.raises(WaitinfoError, match="must not go back"):
                await stream.push("ba", at=2.0)
            stream.close()
            stream = both.streams.stream(2)  # its place is free at once
            await stream.finish()
            with pytest.raises(WaitinfoError, match="finished"):
                await stream.push("ba")
            abandoned: Any = both.streams.stream(2)
            await abandoned.push("ba")
            del abandoned, stream
            assert both.streams.translator.open_streams == 0
            await asyncio.to_thread(wait_for, lambda: both.engine.open_streams == 0)

    run(check)


def test_a_reader_that_does_not_read_holds_its_stream_up(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = 64
    monkeypatch.setattr(host, "QUEUE", queue)
    monkeypatch.setattr(remote, "CREDIT", queue // 4)

    async def check() -> None:
        with pair() as both:
            both.engine._scheduler.queue = queue
            stream, other = both.streams.stream(1), both.streams.stream(1)
            words = "ba be bi bo bu da de di do du. " * (queue // 4)
            await stream.push(words, wait=False)
            await stream.finish(wait=False)
            channel, before = stream._channel, -1
            while len(channel.events) != before:  # until nothing more comes
                before = len(channel.events)
                await other.push("ba")
                await asyncio.sleep(0.3)
            assert queue <= before < 2 * queue
            found = [event async for event in stream]
            with Translator(toy_model(), 1).stream(1, history=0) as local:
                assert record(found) == record(local.push(words) + local.finish())

    run(check)


def test_an_engine_that_is_gone_ends_its_streams() -> None:
    async def check() -> None:
        with pair() as both:
            stream = both.streams.stream(2)
            await stream.push("ba be bi")
            waiting = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.sleep(0)
            both.scheduler.lost()
            with pytest.raises(EngineGone):
                await waiting
            with pytest.raises(EngineGone):
                await stream.push("ba")
            with pytest.raises(EngineGone):
                both.streams.stream(2)
            assert both.streams.translator.open_streams == 0
            both.host.drop()  # and on the other side
            assert both.engine.open_streams == 0
            both.scheduler.alive = True
            assert await say(both.streams, 1) == await say(both.worker, 1)

    run(check)


def test_a_failing_stream_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        with pair() as both:
            stream = both.streams.stream(2)
            monkeypatch.setattr(type(both.engine._scheduler._rounds), "_feed", lambda *_: 1 // 0)
            with pytest.raises(WaitinfoError, match="ZeroDivisionError"):
                await stream.push("ba")
            assert both.streams.translator.open_streams == both.engine.open_streams == 0

    run(check)


# The processes themselves


@pytest.fixture
def server() -> Iterator[Served]:
    with Served("--model", "de-en", "--compare", "0", "--streams", "4") as found:
        yield found


WORDS = "Guten Morgen, meine Damen und Herren. Ich muss mit meiner Mutter sprechen.".split()  # noqa: SIM905


def test_who_dies_is_started_again_and_clients_continue(server: Served) -> None:
    found = []
    environment = Path(f"/proc/{server.ids['engine']}/environ").read_bytes()
    assert b"OPENBLAS_NUM_THREADS=1" in environment  # NumPy's threads spin while they wait
    with Client(server.url).stream(k=3, history=None) as stream:
        for number, word in enumerate(WORDS):
            found += stream.push(word)
            if number == 3:
                server.kill("engine")
                assert server.readiness == "starting"
            if number == 7:
                wait_for(lambda: server.readiness == "ready")
                server.kill("front")
        found += stream.finish()
        assert stream.connections == 3
    with waitinfo.load("de-en", streams=1).stream(k=3, history=None) as local:
        expected = [event for word in WORDS for event in local.push(word)] + local.finish()
    assert record(found) == record(expected)
    assert all(any(f"{role} died" in line for line in server.lines) for role in server.ids)
    with Client(server.url).stream(k=3, history=0) as stream:
        stream.push("Guten Morgen, meine Damen")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.readiness == "draining")
        stream.push("und Herren.")
        stream.finish()
        assert stream.connections == 1
    assert server.process.wait(600) == 0
    assert not any("Traceback" in line for line in server.lines)
    assert not any(Path(f"/proc/{number}").exists() for number in server.ids.values())


@pytest.mark.parametrize("deaths", [1, 9])
def test_an_engine_may_die_before_anybody_is_served(
    monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """It is started again, unless it dies again and again."""
    started: list[str] = []
    pipes: dict[str, Any] = {}

    def start(child: Child) -> None:
        child.control, pipes[child.role] = Pipe()
        child.process = SimpleNamespace(wait=lambda *_: 1, poll=lambda: 1)  # type: ignore[assignment]
        started.append(child.role)
        if child.role == "engine":
            pipes["engine"].send("ready")
            if started.count("engine") <= deaths:
                pipes["engine"].close()
            elif "front" in pipes:
                pipes["front"].send("ready")

    monkeypatch.setattr(Child, "start", start)
    monkeypatch.setattr(supervisor, "PAUSES", (0.0, 0.0))
    told: list[bool] = []
    plan = Plan()
    task = ChildTask("", plan, "", 0, 0, "", print, "info")
    found = Supervisor(task, lambda: told.append(True))
    if deaths == 1:
        found._start()
        assert told and started == ["engine", "front", "engine"]
    else:
        with pytest.raises(WaitinfoError, match="dies again and again"):
            found._start()


def test_nobody_is_left_when_the_first_process_is_killed(server: Served) -> None:
    server.process.kill()
    front = server.ids["front"]
    wait_for(lambda: not Path(f"/proc/{front}").exists())  # drains, and has nothing to do


def test_a_model_that_cannot_be_loaded_is_an_error_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundled_models()["de-en"].folder, folder)
    next(folder.glob("*.safetensors")).write_bytes(b"no weights")
    found = subprocess.run(
        [sys.executable, "-m", "waitinfo", "serve", "--port", "0", "--model", str(folder)],
        check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "300"},
    )  # fmt: skip
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert "safetensors" in found.stderr.splitlines()[-1]
