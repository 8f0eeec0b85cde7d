"""The scheduler: the only owner of the engine, its slots and the lock.

Streams hand in text and take out events; everything else happens in rounds. One thread at a time
leads: it takes in the text that has arrived, advances the engine, and publishes the events. A
thread that waits for its stream leads if no other thread does, and otherwise sleeps until its
stream is served. The rounds serve all streams together, so no stream waits for another's backlog.

The lock is held only to hand things over, never while the model computes, so that an event loop may
call everything here except `push` with `wait`, `wait_for_events` and `lead`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.channel import Arrival, Channel, Listener, Mark, Rounds, Said
from waitinfo.streaming.engine import Engine
from waitinfo.streaming.event import Event, Observer, RoundStats
from waitinfo.streaming.lag import LagController
from waitinfo.streaming.session import Session
from waitinfo.systems.registry import plugin_error

if TYPE_CHECKING:
    from logging import Logger

QUEUE = 4096  # events that wait for their reader before a stream is held up
HISTORY = 2000  # events, and translated words, that a stream remembers


class _Waiter(threading.Condition):
    """A thread that sleeps until its streams are served or, with `eager`, have any events."""

    def __init__(self, lock: threading.Lock, eager: bool) -> None:
        super().__init__(lock)
        self.eager = eager


class Scheduler:
    """Rounds over all streams of one engine. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        observer: Observer | None = None,
        queue: int = QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.observer, self.queue = engine, observer or Observer(), queue
        self.clock = clock  # when text was spoken that comes without a time
        self.bells: list[Callable[[], None]] = []  # each wakes a thread that can lead
        self._lock = threading.Lock()
        self._open = 0
        self._abandoned: deque[Channel] = deque()  # filled without the lock, by destructors
        self._inbox: dict[Channel, None] = {}  # channels with something new, oldest first
        self._leading = False
        self._waiters: dict[Channel, list[_Waiter]] = {}
        self._rounds = Rounds(engine)  # of the thread that leads

    # Streams

    @property
    def open_streams(self) -> int:
        with self._lock:
            self._close_abandoned()
            return self._open

    def open(self, session: Session, k: float, history: int | None = HISTORY) -> Channel:
        """Admit a stream, or refuse it at once."""
        channel = Channel(session, k, history)
        with self._lock:
            self._close_abandoned()
            if admitted := self._open < self.engine.slots:
                self._open += 1
        if not admitted:
            self.observer.refused("full")
            raise WaitinfoError(
                f"all {self.engine.slots} streams are in use; close one, or load the model with "
                f"more: each takes {self.engine.bytes_per_slot / 2**20:.0f} MiB"
            )
        return channel

    def submit(
        self,
        texts: Mapping[Channel, Said],
        served_by: object | None = None,
        at: float | None = None,
    ) -> None:
        """Hand in text or a mark; all of it or, if a stream refuses, none.

        `served_by` marks the streams as waited for until `release`. `at` is when it was spoken.
        """
        now, clock = time.monotonic(), self.clock()
        with self._lock:
            for channel, text in texts.items():
                if not isinstance(text, Said):
                    raise WaitinfoError(f"a stream takes text, not {type(text).__name__}")
                channel.check(at)
            for channel, text in texts.items():
                channel.inbox.append(Arrival(now, text, channel.spoken(at, clock)))
                channel.ended = text is Mark.END
                channel.served_by = served_by
                self._announce(channel)
            self._pass_on()

    def receive(self, channel: Channel, arrivals: Sequence[Arrival]) -> None:
        """Take in what another process has checked."""
        with self._lock:
            if not (channel.closed or channel.ended):
                channel.inbox.extend(arrivals)
                channel.ended = any(arrival.text is Mark.END for arrival in arrivals)
                self._announce(channel)
                self._pass_on()

    def release(self, channels: Iterable[Channel]) -> None:
        """The call that waited for these streams is over."""
        with self._lock:
            for channel in channels:
                channel.served_by = None

    def set_dial(self, channel: Channel, k: float, controller: LagController | None = None) -> None:
        """Turn the dial of a stream, or have it turned from now on."""
        with self._lock:
            channel.k = k
            channel.controller = controller
            if not channel.closed:
                self._announce(channel)
            self._pass_on()

    def close(self, channels: Sequence[Channel]) -> None:
        """Give streams up, finished or not."""
        with self._lock:
            for channel in channels:
                self._close(channel)
                channel.events.clear()
            self._pass_on()
        self._tell(channels)

    def abandon(self, channel: Channel) -> None:
        """Close an unreferenced stream. Takes no lock: it may run inside any other call."""
        self._abandoned.append(channel)
        for bell in self.bells[-1:]:
            bell()

    def collect(self, channel: Channel) -> list[Event]:
        """Events that were not collected yet."""
        with self._lock:
            return self._collect(channel)

    def put_back(self, channel: Channel, events: Sequence[Event]) -> None:
        """Return events that were collected but not delivered."""
        with self._lock:
            channel.events.extendleft(reversed(events))

    @staticmethod
    def check_error(channel: Channel) -> None:
        """Raise the error that a stream has failed with, if any."""
        if channel.error is not None:
            raise channel.error_kind(channel.error)

    def history(self, channel: Channel) -> tuple[list[Event], list[str]]:
        """The last events of a stream and the last words it has shown."""
        with self._lock:
            return list(channel.trace), list(channel.words)

    # Waiting for streams

    def push(
        self, texts: Mapping[Channel, Said], wait: bool = True, at: float | None = None
    ) -> dict[Channel, list[Event]]:
        """Hand in text or marks, and wait until nothing more can be done; the events that follow.

        If a stream fails, its error is raised once all are served; the events of the others stay
        in their queues. Without `wait`, there are no events yet.
        """
        found: dict[Channel, list[Event]] = {channel: [] for channel in texts}

        def served() -> bool:
            for channel in texts:
                found[channel] += self._collect(channel)
            return not any(channel.busy for channel in texts)

        self.submit(texts, served_by=self if wait else None, at=at)
        if not wait:
            return found
        try:
            with self._lock:
                self._wait(list(texts), served)
            failed = next((channel for channel in texts if channel.error is not None), None)
            if failed is not None:
                for channel, events in found.items():
                    self.put_back(channel, events)
                self.check_error(failed)
        finally:
            self.release(texts)
        return found

    def wait_for_events(self, channel: Channel) -> list[Event]:
        """Wait until a stream has events; none mean that it is over."""
        with self._lock:
            self._wait([channel], lambda: bool(channel.events) or channel.over, eager=True)
            events = self._collect(channel)
        if not events:
            self.check_error(channel)
        return events

    def _wait(
        self, channels: Sequence[Channel], done: Callable[[], bool], eager: bool = False
    ) -> None:
        """Sleep, or lead, until `done`. With the lock held."""
        leader = False
        try:
            while not done():
                if leader or not self._leading:
                    leader = self._leading = self._has_work()
                if leader:
                    self._round()
                else:  # another thread leads, or there is nothing to do without more text
                    self._sleep(channels, eager)
        finally:
            if leader:
                self._leading = False
            self._pass_on()

    def _sleep(self, channels: Sequence[Channel], eager: bool) -> None:
        waiter = _Waiter(self._lock, eager)
        for channel in channels:
            self._waiters.setdefault(channel, []).append(waiter)
        try:
            waiter.wait()
        finally:
            for channel in channels:
                self._waiters[channel].remove(waiter)
                if not self._waiters[channel]:
                    del self._waiters[channel]

    def lead(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Run rounds until nothing is left to do; for a thread that does nothing else."""
        with self._lock:
            if self._leading:
                return  # the leader sees to it, or passes on what is left
            self._leading = True
            try:
                while self._has_work() and not stopped():
                    self._round()
            finally:
                self._leading = False
                self._pass_on()

    def abort(self, error: Exception) -> None:
        """Fail all streams, because rounds are not possible any more."""
        with self._lock:
            channels = list(self._rounds.channels | set(self._inbox))
            for channel in channels:
                channel.fail(error)
                self._close(channel)
            self._rounds.arrivals.clear()
            self._rounds.take_out()
        self._tell(channels)

    # With the lock held

    def _pass_on(self) -> None:
        """Wake a thread to lead if none does and there is something to do."""
        if self._leading or not self._has_work():
            return
        for bell in self.bells[-1:]:  # a thread that ends takes its bell away without the lock
            bell()
            return
        if self._waiters:
            next(iter(self._waiters.values()))[0].notify()

    def _announce(self, channel: Channel) -> None:
        channel.busy = True
        self._inbox[channel] = None

    def _has_work(self) -> bool:
        return bool(self._inbox or self._abandoned or self._rounds.has_work)

    def _close_abandoned(self, leader: bool = False) -> None:
        while self._abandoned:
            self._close(self._abandoned.popleft(), leader)

    def _close(self, channel: Channel, leader: bool = False) -> None:
        """End a stream; its slot is given back now, or by the thread that leads."""
        if channel.closed:
            return
        channel.closed, channel.busy = True, False
        self._open -= 1
        if leader or not self._leading:
            self._rounds.give_back(channel)
        else:
            self._inbox[channel] = None
        self._notify(channel)

    def _notify(self, channel: Channel, eager: bool = False) -> None:
        """Wake the threads that wait for a stream, or only the `eager` ones."""
        for waiter in self._waiters.get(channel, ()):
            if waiter.eager or not eager:
                waiter.notify()

    def _collect(self, channel: Channel) -> list[Event]:
        events = list(channel.events)
        channel.events.clear()
        if len(events) >= self.queue and not channel.closed:  # it was held up
            self._announce(channel)
            self._pass_on()
        return events

    # Rounds: by the leader, without the lock but to hand things over

    def _round(self) -> None:
        """Take in what has arrived, run the engine, publish. The lock is given up meanwhile."""
        began, rounds = time.monotonic(), self._rounds
        self._close_abandoned(leader=True)
        rounds.arrivals.extend(self._inbox)
        waiting = [channel.inbox[0].when for channel in self._inbox if channel.inbox]
        self._inbox.clear()
        self._lock.release()
        try:
            while rounds.arrivals:
                self._take_in(rounds.arrivals[0])
                rounds.arrivals.popleft()
            streams = rounds.run()
            touched = self._publish()
            if streams:
                stats = RoundStats(
                    seconds=time.monotonic() - began,
                    streams=streams,
                    read=rounds.read,
                    written=rounds.written,
                    queue_age=began - min(waiting) if waiting else 0.0,
                    open_streams=self._open,
                )
                self._observe(lambda: self.observer.round(stats))
            self._tell(touched)
        finally:
            self._lock.acquire()

    def _take_in(self, channel: Channel) -> None:
        if channel.closed:
            self._rounds.give_back(channel)
            return
        with self._lock:
            inbox, channel.inbox = channel.inbox, []
            full = len(channel.events) >= self.queue
        self._rounds.take_in(channel, inbox, hold=full)

    def _publish(self) -> list[Channel]:
        """Give the streams their events, and wake the threads that waited for them."""
        touched, failures = self._rounds.take_out()
        failures = {c: plugin_error(error) or error for c, error in failures.items()}
        with self._lock:
            for channel, events in touched.items():
                self._deliver(channel, events)
            for channel, error in failures.items():
                channel.fail(error)
                self._close(channel, leader=True)
        for error in failures.values():
            if not isinstance(error, WaitinfoError):
                _log().error("a stream failed", exc_info=error)
            self._observe(lambda error=error: self.observer.failed(error))  # type: ignore[misc]
        return [*touched, *failures]

    def _deliver(self, channel: Channel, events: list[Event]) -> None:
        if channel.closed:
            return
        channel.add(events)
        channel.busy = bool(channel.inbox) or self._rounds.can_go_on(channel)
        if channel.hungry:  # the next round takes in more of its text
            self._inbox[channel] = None
        full = len(channel.events) >= self.queue
        if full and channel.slot is not None:
            self.engine.hold(channel.slot)
        if channel.ended and not channel.busy:
            self._close(channel, leader=True)
        elif full or not channel.busy:
            self._notify(channel)
        elif events:
            self._notify(channel, eager=True)

    def _tell(self, channels: Iterable[Channel]) -> None:
        by_listener: dict[Listener, list[Channel]] = {}
        for channel in dict.fromkeys(channels):
            if channel.listener is not None:
                by_listener.setdefault(channel.listener, []).append(channel)
        for listener, some in by_listener.items():
            listener(some)

    @staticmethod
    def _observe(report: Callable[[], None]) -> None:
        try:
            report()
        except Exception:
            _log().exception("an observer failed")


def _log() -> Logger:
    import logging

    return logging.getLogger(__name__)
