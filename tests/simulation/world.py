"""The clock, the network and the order of threads, all decided by one seed."""

from __future__ import annotations

import asyncio
import random
import time
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

WINDOW = 1 << 15  # bytes under way, or not read by the other side
HIGH, LOW = 1 << 16, 1 << 14  # as asyncio's transports have them
UNACKNOWLEDGED = 60.0  # seconds after which data that nobody takes breaks a connection
ADDRESS: ContextVar[str] = ContextVar("address", default="10.0.0.1")  # of the client that connects
YEAR = 3e7


class Broken(AssertionError):
    """Something that must always hold does not."""


class World:
    """Everything that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 1e6
        self.worked = 0.0
        self.threads: list[Thread] = []
        self.links: list[Link] = []
        self.checks: list[Callable[[], None]] = []  # after each step
        self.transport_checks: list[Callable[[Transport], None]] = []
        self.accept: Callable[[], asyncio.Protocol] | None = None  # None: nobody listens
        self.calm = False  # no more faults
        self.over = False
        self.steps = 0
        self.digest = 0  # of everything that was sent, and when
        self.switching = self.draw.choice([0.02, 0.2, 0.5])
        self.slowness = self.draw.choice([0.0, 0.001, 0.02, 0.3])  # seconds of a round
        self.loop = Loop(self)

    def chance(self, probability: float) -> bool:
        return not self.calm and self.draw.random() < probability

    def pause(self) -> None:
        """A place where another thread may go on."""
        if self.over or self.draw.random() >= self.switching:
            return
        current = getcurrent()
        if current.parent is not None:
            current.parent.switch()
        elif ready := [thread for thread in self.threads if thread.ready]:
            self.draw.choice(ready).switch()

    def give_way(self) -> None:
        """Let another thread go on, which has something that this one needs."""
        current = getcurrent()
        if current.parent is not None:
            current.parent.switch()
        else:
            self.draw.choice([thread for thread in self.threads if thread.ready]).switch()

    def step(self, timeout: float | None) -> None:
        """The event loop has done all that was due, or (with 0) goes on at once."""
        self.steps += 1
        if self.loop.errors:
            found = self.loop.errors[0].get("exception")
            raise (
                found
                if isinstance(found, Broken)
                else Broken(f"not handled: {self.loop.errors[0]}")
            )
        for check in self.checks:
            check()
        ready = [thread for thread in self.threads if thread.ready]
        if ready and (timeout != 0 or self.draw.random() < 0.5):
            self.draw.choice(ready).switch()
        elif timeout is None:
            raise Broken("everybody waits, and nothing will ever happen")
        elif timeout:
            self.now += timeout
            if self.now > YEAR:
                raise Broken("something goes on for a year")

    def select(self, timeout: float | None) -> list[Any]:
        """What an event loop asks of its selector."""
        self.step(timeout)
        return []

    def _work(self) -> float:
        """Parsing what has arrived takes some time, or much."""
        self.worked += self.draw.choice([0.0, 1e-5, 1e-5, 3e-3])
        return self.worked

    @contextmanager
    def running(self) -> Iterator[None]:
        """Whoever asks for the time is told that of this world."""
        real = time.monotonic, time.time, time.thread_time, random.getstate()
        time.monotonic = time.time = lambda: self.now
        time.thread_time = self._work
        random.seed(self.draw.random())
        try:
            yield
        finally:
            self.over = True
            time.monotonic, time.time, time.thread_time = real[:3]
            random.setstate(real[3])
            for thread in self.threads:
                thread.kill()


class Thread(greenlet):
    """A thread that leads the rounds of a scheduler, in the place of the product's."""

    def __init__(self, world: World, scheduler: Any) -> None:
        super().__init__(self._work)
        self.world, self.scheduler = world, scheduler
        self.rung, self.asleep, self.stopped = 0, False, False
        world.threads.append(self)

    @property
    def ready(self) -> bool:
        return not (self.asleep or self.dead or self.stopped) and (self.rung > 0 or self.leading)

    leading = False

    def ring(self) -> None:
        self.rung += 1

    def _work(self) -> None:
        while not self.world.over:
            if not self.rung:
                self.parent.switch()
                continue
            self.rung -= 1
            self.leading = True
            self.scheduler.lead()
            self.leading = False

    def sleep(self, seconds: float) -> None:
        """A round takes time."""
        if seconds and not self.world.over:
            self.asleep = True
            self.world.loop.call_later(seconds, self._wake)
            self.parent.switch()

    def _wake(self) -> None:
        self.asleep = False

    def kill(self) -> None:
        if not self.dead and self:
            self.throw()


class Worker:
    """In the place of the one that starts real threads."""

    world: World  # at present

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.thread = scheduler, None
        scheduler._lock = Lock(self.world)

    def start(self) -> None:
        if self.thread is None:
            self.thread = Thread(self.world, self.scheduler)
            self.scheduler.bells.append(self.thread.ring)

    def stop(self) -> None:
        if self.thread is not None:
            self.thread.stopped = True


class Lock:
    """Nobody is interrupted while holding it, but before and after."""

    def __init__(self, world: World) -> None:
        self.world, self.held = world, False

    def acquire(self) -> bool:
        self.world.pause()
        if self.held:
            raise Broken("a thread was interrupted while it held the lock")
        self.held = True
        return True

    def release(self) -> None:
        self.held = False
        if getcurrent().parent is not None:
            self.world.pause()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Waited(Lock):
    """One that is held while others go on, who then wait for it."""

    def acquire(self) -> bool:
        while self.held:
            self.world.give_way()
        self.held = True
        return True


class Loop(base_events.BaseEventLoop):
    """An event loop that waits for the world instead of sockets."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = self._selector = world
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self.world.now

    def _process_events(self, events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, call: Any, *arguments: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def done() -> None:
            if not future.done():
                try:
                    future.set_result(call(*arguments))
                except Exception as error:
                    future.set_exception(error)

        self.call_later(self.world.draw.random() / 10, done)
        return future

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], *_: Any, **__: Any
    ) -> tuple[Transport, asyncio.Protocol]:
        """To the server, if there is one."""
        world, address = self.world, ADDRESS.get()
        await asyncio.sleep(world.draw.random() * 0.05)
        if world.accept is None or world.chance(0.02):
            raise ConnectionRefusedError("nobody listens")
        protocol, there = factory(), world.accept()
        link = Link(world, protocol, there, address)
        there.connection_made(link.server)
        protocol.connection_made(link.client)
        return link.client, protocol


class Link:
    """A connection: two transports."""

    def __init__(self, world: World, client: Any, server: Any, address: str) -> None:
        self.world = world
        self.latency = world.draw.choice([0.0, 0.001, 0.02, 0.5])
        self.pieces = world.chance(0.3)  # deliver messages in pieces
        self.half_open = False
        self.client = Transport(self, client, (address, 1))
        self.server = Transport(self, server, ("10.9.9.9", 80))
        self.client.peer, self.server.peer = self.server, self.client
        self.server.names["peername"] = (address, 1)
        self.client.names["peername"] = ("10.9.9.9", 80)
        world.links.append(self)

    def cut(self, client: bool = True, server: bool = True) -> None:
        """Break it; a side that is not told finds out when it has sent data in vain."""
        self.half_open = True
        for told, transport in ((client, self.client), (server, self.server)):
            if told:
                transport.lose(ConnectionResetError("cut"))


class Transport(asyncio.Transport):
    """One side of a connection. The other side gets what is written later, or never."""

    peer: Transport

    def __init__(self, link: Link, protocol: Any, name: Any) -> None:
        super().__init__()
        self.link, self.protocol, self.loop = link, protocol, link.world.loop
        self.names: dict[str, Any] = {"sockname": name}
        self.max_size = 1 << 18
        self.buffer = bytearray()  # not sent
        self.under_way = 0  # sent, and not taken by the other side
        self.arrived: deque[bytes] = deque()
        self.reading, self.full, self.closing, self.lost = True, False, False, False
        self.ended = False  # the other side sends no more
        self.due = 0.0  # when the last piece arrives
        self.timer: asyncio.TimerHandle | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.names.get(name, default)

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All have the same."""

    def can_write_eof(self) -> bool:
        return False

    # Out

    def write(self, data: Any) -> None:
        if self.closing or self.lost:
            return
        world = self.link.world
        world.digest = hash((world.digest, world.now, len(data)))
        self.buffer += data
        self._send()
        self._check()
        if len(self.buffer) > HIGH and not self.full:
            self.full = True
            self.protocol.pause_writing()

    def _check(self) -> None:
        for check in self.link.world.transport_checks:
            check(self)

    def _send(self) -> None:
        if self.link.half_open:
            if self.timer is None and self.buffer:
                error = TimeoutError("not acknowledged")
                self.timer = self.loop.call_later(UNACKNOWLEDGED, self.lose, error)
            return
        world, link = self.link.world, self.link
        while self.buffer and self.under_way < WINDOW:
            count = min(len(self.buffer), WINDOW - self.under_way)
            if link.pieces:
                count = min(count, world.draw.randint(1, 200))
            piece = bytes(self.buffer[:count])
            del self.buffer[:count]
            self.under_way += count
            self._later(partial(self.peer._arrive, piece))
        if self.full and len(self.buffer) < LOW:
            self.full = False
            self.protocol.resume_writing()

    def _later(self, call: Callable[[], None]) -> None:
        """After what was sent before; timers of one moment have no order."""
        delay = self.link.latency * self.link.world.draw.random()
        self.due = max(self.due + 1e-6, self.loop.time() + delay)
        self.loop.call_at(self.due, call)

    # In

    def _arrive(self, piece: bytes) -> None:
        if not (self.link.half_open or self.lost):
            self.arrived.append(piece)
            self._take()

    def _take(self) -> None:
        while self.reading and self.arrived and not (self.closing or self.lost):
            data = self.arrived.popleft()
            if len(data) > self.max_size:
                self.arrived.appendleft(data[self.max_size :])
                data = data[: self.max_size]
            self.peer.under_way -= len(data)
            self.protocol.data_received(data)
            self._check()
            if not self.peer.lost:
                self.peer._send()
                self.peer._finish()
        if self.ended and not (self.arrived or self.closing):
            self.ended = False
            if not self.protocol.eof_received():
                self.close()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.loop.call_soon(self._take)

    def is_reading(self) -> bool:
        return self.reading

    # The end

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.arrived.clear()
            self._finish()

    def _finish(self) -> None:
        """Once everything is sent."""
        if self.closing and not self.buffer and not self.lost:
            self.lose(None)

    def abort(self) -> None:
        self.lose(ConnectionAbortedError())

    def lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self.closing = True
        self.buffer.clear()
        self.arrived.clear()
        if self.timer is not None:
            self.timer.cancel()
        self.loop.call_soon(self.protocol.connection_lost, error)
        if not self.link.half_open:
            self._later(partial(self.peer._end, error))

    def _end(self, error: Exception | None) -> None:
        """The other side has closed the connection."""
        if self.link.half_open:
            return
        if error is not None:
            self.lose(ConnectionResetError("reset"))
        else:
            self.ended = True
            self._take()
