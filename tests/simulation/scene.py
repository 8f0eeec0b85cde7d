"""One simulation: a server, its clients, what happens to them, and what must always hold."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

from websockets.asyncio import client

from tests.serving import toy_served
from tests.simulation import actors
from tests.simulation.actors import Speaker, Watcher
from tests.simulation.apart import Apart
from tests.simulation.engine import FakeEngine
from tests.simulation.scripts import scripts
from tests.simulation.voices import FakeVoices
from tests.simulation.world import HIGH, Broken, Transport, Worker, World
from waitinfo.serving import hearing
from waitinfo.serving.hearing import Hearing
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models, Served
from waitinfo.serving.room import WAITING
from waitinfo.serving.server import Server
from waitinfo.serving.settings import Settings
from waitinfo.serving.wire import MOST, PIECES, WebSocketProtocol
from waitinfo.streaming import asynchronous, translator
from waitinfo.streaming.scheduler import QUEUE

ATTACKS = ("pinger", "reader_of_nothing", "silent", "nonsense", "impatient", "mumbler")
VOICES = 8
HEARD = 400  # of one voice that wait: as many as its buffer can give, and flushes
LARGEST = 1 << 14  # bytes of the largest message of these scenes
FINISHED = 3_600.0  # seconds in which every stream ends once there are no more faults


@lru_cache(maxsize=1)
def metrics() -> Metrics:
    return Metrics()


@lru_cache(maxsize=1)
def uvicorn() -> Server:
    """One for all scenes: building the application takes longer than a scene."""
    with faked():
        found = Server(Hub(Models([toy_served(metrics())])), "127.0.0.1", 0)
    found.config.load()
    return found


@contextmanager
def faked() -> Iterator[None]:
    with (
        mock.patch.object(translator, "new_engine", lambda *given: FakeEngine(given[2])),
        mock.patch.object(asynchronous, "_Leader", Worker),
    ):
        yield


class Errors(logging.Handler):
    """What the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Scene:
    """What a seed makes of it all."""

    def __init__(self, seed: int) -> None:
        self.seed, self.world = seed, World(seed)
        self.draw = self.world.draw
        self.errors = Errors()
        self.poisonings = self.asked = 0
        self.hubs: list[Hub] = []
        self.engines: list[FakeEngine] = []
        draw = self.draw
        self.settings = Settings(
            idle=draw.choice([30.0, 900.0]), backlog=draw.choice([20, 20_000]), retry=actors.RETRY,
            drain=draw.choice([2.0, 20.0]), connections=40, watchers=8,
        )  # fmt: skip
        self.streams = draw.choice([1, 2, 6])
        self.kills = draw.random() < 0.5  # the operator's way to stop a server
        self.apart: Apart | None = None  # the engine, if it has a process of its own
        self.hogged = draw.random() < 0.05  # all places are taken; nothing else happens
        self.cuts = draw.random() < 0.5 and not self.hogged
        self.stopped = draw.random() < 0.3 and not self.hogged
        rooms = [f"room{n}" if draw.random() < 0.5 else None for n in range(draw.randint(1, 3))]
        self.speakers = [
            Speaker(self, draw.choice(scripts()), room, f"10.0.0.{number}")
            for number, room in enumerate(rooms[: 1 if self.hogged else None])
        ]
        self.watchers = [
            Watcher(self, speaker)
            for speaker in self.speakers
            for _ in range(draw.choice([0, 1, 2]) if speaker.room else 0)
        ]
        self.world.transport_checks.append(self.check_connection)

    @property
    def hub(self) -> Hub:
        return self.hubs[-1]

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    def run(self) -> None:
        loop, logger = self.world.loop, logging.getLogger("waitinfo")
        logger.addHandler(self.errors)
        Worker.world = FakeVoices.world = self.world
        asyncio.set_event_loop(loop)
        gc.disable()  # it would close abandoned streams at any moment
        try:
            with (
                self.world.running(),
                mock.patch.object(client, "get_proxy", lambda _: None),
                mock.patch.object(hearing, "Voices", FakeVoices),
            ):
                loop.run_until_complete(self._play())
        finally:
            gc.enable()
            logger.removeHandler(self.errors)
            asyncio.set_event_loop(None)
            loop.close()
            self.forget()

    def forget(self) -> None:
        """Let everything go: the finalizers of what is left lead to the world, and it to them."""
        world = self.world
        for engine in self.engines:
            vars(engine).pop("world", None)
        for parts in (world.threads, world.links, world.checks, world.transport_checks):
            parts.clear()
        world.accept = None
        del world.loop

    # The server

    def serve(self) -> None:
        served = self.begin_engine()
        if self.seed % 2:
            self.apart = Apart(self.world, served, metrics())
            served = self.apart.served
        hearing = Hearing(metrics(), "a rule", voices=VOICES)
        hub = Hub(Models([served]), self.settings, metrics=metrics(), hearing=hearing)
        self.hubs.append(hub)
        self.world.checks = [self.check]
        server = uvicorn()
        server.config.app.state.hub = hub  # type: ignore[union-attr]
        self.world.accept = lambda: WebSocketProtocol(
            server.config, server.server_state, {}, self.world.loop
        )

    def begin_engine(self) -> Served:
        with faked():
            served = toy_served(metrics(), streams=self.streams)
        scheduler = served.translator._scheduler
        assert isinstance(scheduler.engine, FakeEngine)
        self.engines.append(scheduler.engine)
        self._parts = scheduler, self.engine
        self.engine.world = self.world
        return served

    async def ask(self, path: str, receive: Any, send: Any) -> None:
        """A request that is not a WebSocket."""
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "headers": [(b"content-type", b"application/json")],
            "client": ("10.6.6.11", 1), "server": ("server", 80),
        }  # fmt: skip
        self.asked += 1
        await uvicorn().config.app(scope, receive, send)  # type: ignore[operator]

    def kill(self) -> None:
        self.world.accept = None
        for link in self.world.links:
            link.cut()
        for served in self.hub.models:
            served.server.close()
        if self.apart is not None:
            self.apart.end()

    # The play

    async def _play(self) -> None:
        draw, world = self.draw, self.world
        self.serve()
        faults = []
        if self.cuts:
            faults.append(actors.cutter(self))
        if draw.random() < 0.1 and not self.hogged:
            faults.append(actors.poisoner(self))
        if self.stopped:
            faults.append(actors.operator(self))
        if self.apart is not None and draw.random() < 0.2 and not (self.stopped or self.hogged):
            faults.append(actors.engine_killer(self))
        if self.hogged:
            attacks = [actors.hog(self) for _ in range(self.streams)]
        else:
            attacks = self._attacks()
        good = [each.run() for each in (*self.speakers, *self.watchers)]
        tasks = [asyncio.ensure_future(each) for each in (*good, *attacks, *faults)]
        world.loop.call_later(draw.choice([5.0, 60.0, 300.0]), setattr, world, "calm", True)
        try:
            done, left = await asyncio.wait(
                tasks, timeout=FINISHED + 1_000, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if left:
                raise Broken(f"still going on: {[task.get_coro().__qualname__ for task in left]}")
            await self._quiet()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _attacks(self) -> list[Coroutine[Any, Any, None]]:
        draw = self.draw
        found = [getattr(actors, draw.choice(ATTACKS))(self) for _ in range(draw.randint(0, 2))]
        if not self.stopped and draw.random() < 0.5:
            found += [actors.usurper(self, speaker) for speaker in self.speakers if speaker.room]
        return found

    async def _quiet(self) -> None:
        """Everything that was taken is given back."""
        for watcher in self.watchers:
            watcher.check()
        end = self.world.now + FINISHED
        while (left := self._left()) and self.world.now < end:
            await asyncio.sleep(10.0)
        if left:
            raise Broken(f"not given back: {left}")
        if self.errors.found and not self.poisonings:
            raise Broken(f"the server logged: {self.errors.found[0]}")

    def check_drained(self) -> None:
        """Who does not read is still being told that the server stops."""
        left = self._left().keys() & {"watchers", "rooms", "streams"}
        if left - ({"streams"} if self.asked else set()):
            raise Broken(f"left after the end: {left}")

    def _left(self) -> dict[str, Any]:
        """What the server has not got back."""
        hub, engine = self.hub, self.engine
        figures = {
            "streams": hub.models.find().translator.open_streams,
            "slots": engine.slots - len(engine.free), "connections": len(hub._connections),
            "watchers": hub.rooms.watching, "rooms": len(hub.rooms),
            "voices": hub.hearing.limit - hub.hearing.free,
            "open voices": len(hub.hearing._pool.open_voices) if hub.hearing._pool else 0,
        }  # fmt: skip
        return {name: number for name, number in figures.items() if number}

    # After each step

    def check(self) -> None:
        scheduler, engine = self._parts
        if len(engine.free) + len(engine.used) != engine.slots or scheduler._open > engine.slots:
            raise Broken("a slot is lost")
        for channel in scheduler._rounds.by_slot.values():
            if len(channel.events) > QUEUE + 100:
                raise Broken("events pile up")
        for ear in (each.ear for each in self.hub._connections if each.ear is not None):
            if ear._found.qsize() > HEARD:
                raise Broken("what was heard piles up")
        if self.apart is not None:
            for channel in self.apart.scheduler._lines:
                if len(channel.events) > 2 * QUEUE:
                    raise Broken("events pile up at the front")

    def check_connection(self, transport: Transport) -> None:
        """After something was written, or has arrived."""
        protocol = transport.protocol
        if transport is transport.link.client or transport.lost:
            return
        waiting = len(transport.buffer) + sum(map(len, protocol.transport._waiting))
        if waiting > HIGH + 2 * MOST + LARGEST:
            raise Broken(f"{waiting} bytes wait for a client that does not read them")
        if len(protocol.frames) > PIECES or protocol.queue.qsize() > MOST // 6:
            raise Broken("messages pile up")
        for room in (held.room for held in self.hub.rooms._rooms.values()):
            if any(len(watcher._waiting) > WAITING for watcher in room.watchers):
                raise Broken("captions pile up")
